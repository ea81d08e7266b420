"""A consumers' history, sorted by queue, source and time for its judge. Never what is right or wrong."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

from tests.support.consumer_history import ConsumerHistory, HandlerCall
from tests.support.logs import Seen
from txlayer.core.dead_letters import (
    DeadLetter,
    ReplayKind,
    dead_letter_of,
    dead_letter_topic,
    decode_replay,
    replay_topic,
)
from txlayer.core.key_queue import NullKeys, QueueOrder
from txlayer.core.messages import Undecodable
from txlayer.core.progress import Foreign, StoredProgress, decode

Place = tuple[str, int]


class Sample(NamedTuple):
    """What was stored of a place from then on."""

    at_ms: float
    offset: int
    said: StoredProgress
    above: frozenset[int] = frozenset()
    """Offsets above the stored one that are finished."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, a request, or an answer, where it stands."""

    offset: int
    at_ms: float
    said: Any  # DeadLetter or ReplayRecord
    seen: Seen

    @property
    def origin(self) -> int:
        """Of a dead letter: the message's offset."""
        return int(self.said.origin.offset)


@dataclass(slots=True)
class Ends:
    """From when on what is stored of a place says that an offset is finished."""

    at_ms: list[float] = field(default_factory=list)
    furthest: list[int] = field(default_factory=list)
    """Of each sample: the largest stored offset until then."""
    above: dict[int, float] = field(default_factory=dict)
    """Of offsets that were finished above the stored one."""

    def of(self, offset: int) -> float:
        """Infinity: it never says so."""
        place = bisect_left(self.furthest, offset + 1)
        below = self.at_ms[place] if place < len(self.at_ms) else float("inf")
        return min(below, self.above.get(offset, float("inf")))


@dataclass(slots=True)
class Chain:
    """What is in order with each other in one queue."""

    calls: list[HandlerCall] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """Of its messages."""
    all_finished: list[float] = field(default_factory=list)
    """From when on a message and all before it are finished, as far as what is stored says."""

    def unfinished(self, *, before: int, until_ms: float) -> list[int]:
        """Offsets below `before`; without those at the front that are stored as finished by then."""
        first = bisect_left(self.all_finished, until_ms)
        return self.offsets[first : bisect_left(self.offsets, before)]


def is_finished(sample: Sample, offset: int) -> bool:
    """True when a successor would not handle that offset."""
    return offset < sample.offset or offset in sample.above


class Evidence:
    """The same as the history; queues are (topic, partition)."""

    def __init__(self, history: ConsumerHistory) -> None:
        self.history = history
        self.queues = [(t, p) for t in history.topics for p in range(history.partition_count)]
        self.records: dict[Place, dict[int, Seen]] = {queue: {} for queue in self.queues}
        for record in history.logs.topics:
            self.records[record.topic, record.partition][record.offset] = record
        self.letters = self._letters()
        self.requests: dict[Place, list[Letter]] = {queue: [] for queue in self.queues}
        self.answers: dict[Place, list[Letter]] = {queue: [] for queue in self.queues}
        self._sort_replays()
        self._keys = self._sort_keys()
        self.calls: dict[Place, list[HandlerCall]] = {queue: [] for queue in self.queues}
        for call in history.calls:
            self.calls[call.topic, call.partition].append(call)
        self.samples: dict[Place, list[Sample]] = {}
        for at_ms, place, stored in history.stored:
            said = decode(stored.offset, stored.metadata)
            if not isinstance(said, Foreign):
                above = self._finished_above(place, stored.offset, said)
                self.samples.setdefault(place, []).append(Sample(at_ms, stored.offset, said, above))
        self._ends: dict[tuple[Place, str], float] = {}
        self._finished: dict[Place, Ends] = {}
        self._chains = {queue: self._sort_chains(queue) for queue in self.queues}

    def _finished_above(self, place: Place, offset: int, said: StoredProgress) -> frozenset[int]:
        runs = {at for first, end in said.finished for at in range(first, end)}
        keys = self._keys.get(place, {})
        if said.waiting is not None:
            # By the protocol page: a record is unfinished when its key's hash is named at its offset or before.
            firsts = said.waiting.keys
            for at in range(offset, said.waiting.until):
                key = keys.get(at)
                name = bytes(8) if key is None else blake2b(key, digest_size=8).digest()
                if key is None and bytes([0] * 7 + [1]) in firsts:  # each record without a key by its offset
                    name = bytes([128]) + at.to_bytes(7, "big")
                if firsts.get(name, at + 1) > at:
                    runs.add(at)
        return frozenset(runs & keys.keys())  # an offset without a record is nobody's

    def _sort_keys(self) -> dict[Place, dict[int, bytes | None]]:
        """What each record waits for by the protocol page; a pause or resume waits for nothing."""
        found = {queue: {at: seen.key for at, seen in records.items()} for queue, records in self.records.items()}
        for queue, requests in self.requests.items():
            found[self.replay_place(queue)] = {
                r.seen.offset: r.seen.key
                if r.said.kind in (ReplayKind.REPLAY, ReplayKind.DROP)
                else b"\0request %d" % r.seen.offset
                for r in requests
            }
        return found

    def _letters(self) -> dict[Place, list[Letter]]:
        found: dict[Place, list[Letter]] = {queue: [] for queue in self.queues}
        topics = {dead_letter_topic(self.history.group, t): t for t in self.history.topics}
        for seen in self.history.logs.letters:
            said = dead_letter_of(seen.headers)
            if isinstance(said, DeadLetter):
                queue = topics[seen.topic], seen.partition
                found[queue].append(Letter(seen.offset, seen.timestamp_ms, said, seen))
        return found

    def _sort_replays(self) -> None:
        topics = {replay_topic(self.history.group, t): t for t in self.history.topics}
        for seen in self.history.logs.replays:
            said = decode_replay(seen.value)
            if not isinstance(said, Undecodable):
                kept = self.answers if said.kind is ReplayKind.RESULT else self.requests
                queue = topics[seen.topic], seen.partition
                kept[queue].append(Letter(seen.offset, seen.timestamp_ms, said, seen))

    # --- calls --------------------------------------------------------------------------------------------------------

    def all_calls(self) -> Iterator[tuple[Place, HandlerCall]]:
        """Every message of every call, with its queue."""
        for queue, calls in self.calls.items():
            for call in calls:
                yield queue, call

    def topic_calls(self) -> Iterator[tuple[Place, HandlerCall]]:
        """Those that were read from the topic itself."""
        return ((q, call) for q, call in self.all_calls() if call.letter_offset is None)

    def replay_place(self, queue: Place) -> Place:
        """Where the requests about a queue's dead letters stand."""
        return replay_topic(self.history.group, queue[0]), queue[1]

    def source(self, queue: Place, call: HandlerCall) -> tuple[Place, int]:
        """Which offset of which partition has an end when the call succeeds."""
        if call.request_offset is None:
            return queue, call.offset
        return self.replay_place(queue), call.request_offset

    # --- chains -------------------------------------------------------------------------------------------------------

    def chain(self, queue: Place, offset: int) -> object:
        """What a message is in order with."""
        record = self.records[queue].get(offset)
        return None if record is None else self.chain_of_key(record.key, offset)

    def chain_of(self, call: HandlerCall) -> object:
        """The same of a call."""
        alone = call.offset if call.request_offset is None else -1 - call.request_offset
        return self.chain_of_key(call.key, alone)

    def chain_of_key(self, key: bytes | None, alone: int) -> object:
        """The same of a key; `alone` names who waits for nobody."""
        history = self.history
        if history.order is QueueOrder.PARTITION:
            return "partition"
        if history.order is QueueOrder.NONE or (key is None and history.null_keys is NullKeys.FREE):
            return alone
        return key

    def chains(self, queue: Place) -> dict[object, Chain]:
        """All of a queue."""
        return self._chains[queue]

    def _sort_chains(self, queue: Place) -> dict[object, Chain]:
        found: dict[object, Chain] = defaultdict(Chain)
        for offset, record in self.records[queue].items():
            found[self.chain_of_key(record.key, offset)].offsets.append(offset)
        for chain in found.values():
            ends = (self.finished_at(queue, offset) for offset in chain.offsets)
            chain.all_finished = list(accumulate(ends, max))
        for call in self.calls[queue]:
            found[self.chain_of(call)].calls.append(call)
        for letter in self.letters[queue]:
            found[self.chain(queue, letter.origin)].letters.append(letter)
        return found

    # --- what was known -----------------------------------------------------------------------------------------------

    def ends_at(self, queue: Place, writer: str) -> float:
        """When what is stored named another writer, after it had named this one."""
        found = self._ends.get((queue, writer))
        if found is None:
            found, has_begun = float("inf"), False
            for sample in self.samples.get(queue, ()):
                if sample.said.writer == writer:
                    has_begun = True
                elif has_begun:
                    found = sample.at_ms
                    break
            self._ends[queue, writer] = found
        return found

    def known_until(self, queue: Place, call: HandlerCall) -> float:
        """What was stored before this was stored before a call, by the same owner or those before it."""
        return min(call.began_ms, self.ends_at(queue, call.writer))

    def last_known(self, queue: Place, place: Place, call: HandlerCall) -> Sample | None:
        """The newest of it, of `place`."""
        samples, until_ms = self.samples.get(place, ()), self.known_until(queue, call)
        count = bisect_left(samples, until_ms, key=lambda sample: sample.at_ms)
        return samples[count - 1] if count else None

    def finished_at(self, place: Place, offset: int) -> float:
        """When an offset was first stored as finished; infinity: never."""
        found = self._finished.get(place)
        if found is None:
            found, furthest = Ends(), -1
            for at_ms, stored, _, finished in self.samples.get(place, ()):
                furthest = max(furthest, stored)
                found.at_ms.append(at_ms)
                found.furthest.append(furthest)
                for above in finished:
                    found.above.setdefault(above, at_ms)
            self._finished[place] = found
        return found.of(offset)
