"""The judge of consumers: order, progress, attempts, dead letters, replays (P6, P9). Never a broker, never the engine.

What a handler was called for is held against the logs and against what the group had stored at that moment. A process
that lost its queue may not know it yet: a call counts against what whoever took the queue over as it did could know.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from tests.support.checker import Finding, Kind, Verdict
from tests.support.consumer_history import ConsumerHistory, HandlerCall
from tests.support.lease_judge import lease_findings
from tests.support.logs import Seen, header
from txlayer.core.dead_letters import (
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    dead_letter_of,
    dead_letter_topic,
    decode_replay,
    original_headers,
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
        self.begins: dict[Place, int] = {}
        """Where a group began that does not begin at the first message."""
        if history.begins_behind:
            for _, place, at in history.stored:
                self.begins.setdefault(place, at.offset)
        for record in history.logs.topics:
            if record.offset >= self.begins.get((record.topic, record.partition), 0):
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
                if not said.tells_ends:
                    above |= self._answered_above(place, stored.offset, at_ms)
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

    def _answered_above(self, place: Place, offset: int, at_ms: float) -> frozenset[int]:
        """Requests that have a result by then."""
        queue = next((queue for queue in self.queues if self.replay_place(queue) == place), None)
        if queue is None:
            return frozenset()
        results = {(a.said.request_id, a.said.dead_letter_offset): a for a in self.answers[queue] if a.at_ms <= at_ms}
        found = [(r.offset, results.get((r.said.request_id, r.said.dead_letter_offset))) for r in self.requests[queue]]
        return frozenset(at for at, result in found if result is not None and offset < at < result.offset)

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

    def told(self, queue: Place, offset: int) -> DeadLetter | None:
        """What a handler of dead letters is told of this one; None: it is not for it."""
        record, hears_of = self.records[queue].get(offset), self.history.hears_of
        said = record and dead_letter_of(record.headers)
        if record is None or hears_of is None or not isinstance(said, DeadLetter):
            return None
        group = (header(record.headers, "txl-group") or b"").decode()
        return said._replace(producer_group=group) if hears_of[0] in (None, group) else None

    def is_passed_over(self, queue: Place, offset: int) -> bool:
        """No handler is for it: it counts as handled."""
        return self.history.hears_of is not None and self.told(queue, offset) is None

    def is_end(self, call: HandlerCall) -> bool:
        """Its message needs nothing more: it is handled, or given up where there are no dead letters."""
        is_last = call.result == "reject" and call.given_up_ms is None
        is_last |= call.attempt >= self.history.attempt_count_max and 1 in call.counts
        return call.is_handled or (self.history.is_broadcast and is_last and call.over_ms is not None)

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


_NEVER = float("inf")
SOON_MS = 200
"""A handler that takes less ends before its queue is given back."""
TOO_LATE_MS = 300
"""Before the time of a message that a program has taken is over, its answer may come too late."""
_RELEASING = frozenset({ReplayOutcome.HANDLED, ReplayOutcome.DROPPED})


def judge_consumers(history: ConsumerHistory) -> Verdict:
    """Everything that is wrong in a run that was healed and has come to rest."""
    evidence = Evidence(history)
    _note_postponed(evidence)
    verdict = Verdict()
    verdict.findings += [
        *_hanging(history),
        *_letters(evidence),
        *_progress(evidence),
        *_answers(evidence),
        *_repeats(evidence),
        *_decided_again(evidence),
        *_rejected_again(evidence),
        *_attempts(evidence),
        *_begun_elsewhere(evidence),
        *_told(evidence),
        *_probes(history),
        *_given_up(history),
        *_stale_writes(history),
    ]
    if history.order is not QueueOrder.NONE:
        verdict.findings += [*_order(evidence), *_order_of_letters(evidence), *_parked(evidence)]
    if history.is_leased:
        verdict.findings += lease_findings(history)
    verdict.counts = _counts(evidence)
    return verdict


def finding(kind: Kind, queue: Place, detail: str) -> Finding:
    return Finding(kind, f"{queue[0]}-{queue[1]}", detail)


def _hanging(history: ConsumerHistory) -> Iterable[Finding]:
    for place, (stable, end) in history.ends.items():
        if stable != end:
            yield finding(Kind.HANGING, place, f"stable to {stable} of {end}")


# --- dead letters -----------------------------------------------------------------------------------------------------


def _letters(evidence: Evidence) -> Iterable[Finding]:
    for queue, letters in evidence.letters.items():
        seen: Counter[int] = Counter(letter.origin for letter in letters)
        for origin, count in seen.items():
            if count > 1:
                yield finding(Kind.DUPLICATE, queue, f"{origin} is a dead letter {count} times")
        for letter in letters:
            record = evidence.records[queue].get(letter.origin)
            where = f"dead letter {letter.offset} of {letter.origin}"
            if record is None:
                yield finding(Kind.PHANTOM, queue, f"{where}: no such message")
                continue
            theirs = letter.seen.key, letter.seen.value, original_headers(letter.seen.headers)
            if theirs != (record.key, record.value, record.headers):
                yield finding(Kind.ALTERED, queue, where)
            yield from _reason(evidence, queue, letter, where)


def _reason(evidence: Evidence, queue: Place, letter: Letter, where: str) -> Iterable[Finding]:
    said, count_max = letter.said, evidence.history.attempt_count_max
    if said.reason is DeadLetterReason.KEY_PARKED:
        chain = evidence.chain(queue, letter.origin)
        earlier = [
            other
            for other in evidence.letters[queue]
            if other.offset < letter.offset and evidence.chain(queue, other.origin) == chain
        ]
        if not earlier:
            yield finding(Kind.PHANTOM, queue, f"{where}: its key is not parked")
        return
    failed = {
        call.attempt
        for call in evidence.calls[queue]
        if call.offset == letter.origin
        and call.letter_offset is None
        and not call.is_handled
        and 1 in call.counts
        and (call.over_ms or 0) <= letter.at_ms + 1
    }
    wanted = said.attempt_count
    if wanted not in failed or wanted > count_max:
        yield finding(Kind.ATTEMPTS, queue, f"{where}: {wanted} attempts, failed were {failed}")
    elif said.reason is DeadLetterReason.ATTEMPTS_EXHAUSTED and wanted < count_max:
        yield finding(Kind.ATTEMPTS, queue, f"{where}: given up after {wanted} attempts")


def _order_of_letters(evidence: Evidence) -> Iterable[Finding]:
    for queue, letters in evidence.letters.items():
        newest: dict[object, int] = {}
        for letter in letters:
            chain = evidence.chain(queue, letter.origin)
            if letter.origin < newest.get(chain, -1):
                detail = f"dead letter {letter.offset} of {letter.origin} behind that of {newest[chain]}"
                yield finding(Kind.OUT_OF_ORDER, queue, detail)
            newest[chain] = letter.origin


def _parked(evidence: Evidence) -> Iterable[Finding]:
    if not evidence.history.is_parking:
        return
    for queue, call in evidence.topic_calls():
        chain = evidence.chain(queue, call.offset)
        known_until = evidence.known_until(queue, call)
        before = [
            letter
            for letter in evidence.chains(queue)[chain].letters
            if letter.at_ms < known_until and letter.origin < call.offset
        ]
        if before and not _is_released(evidence, queue, before[-1], call.began_ms):
            detail = f"{call.offset} is handled by {call.process}, and dead letter {before[-1].offset} parks its key"
            yield finding(Kind.OUT_OF_ORDER, queue, detail)


def _is_released(evidence: Evidence, queue: Place, letter: Letter, at_ms: float) -> bool:
    return any(
        answer.said.dead_letter_offset == letter.offset and answer.said.outcome in _RELEASING and answer.at_ms <= at_ms
        for answer in evidence.answers[queue]
    )


# --- progress ---------------------------------------------------------------------------------------------------------


def _progress(evidence: Evidence) -> Iterable[Finding]:
    for queue, records in evidence.records.items():
        samples = evidence.samples.get(queue, [])
        handled: dict[int, float] = {}
        for call in evidence.calls[queue]:
            if evidence.is_end(call) and call.letter_offset is None and call.over_ms is not None:
                handled[call.offset] = min(call.over_ms, handled.get(call.offset, call.over_ms))
        lettered = {letter.origin: letter.at_ms for letter in evidence.letters[queue]}
        for offset in records:
            first = evidence.finished_at(queue, offset)
            is_early = first < min(handled.get(offset, _NEVER), lettered.get(offset, _NEVER))
            if is_early and not evidence.is_passed_over(queue, offset):
                yield finding(Kind.LOST, queue, f"{offset} is stored as finished, and was not")
            if not evidence.history.is_over and (not samples or not is_finished(samples[-1], offset)):
                yield finding(Kind.STUCK, queue, f"{offset} has no end that is stored")
        yield from _backwards(evidence, queue)
        if samples and samples[-1].said.parked:
            yield finding(Kind.STUCK, queue, "keys are parked")
        if samples and samples[-1].said.is_paused:
            yield finding(Kind.STUCK, queue, "paused")


def _backwards(evidence: Evidence, queue: Place) -> Iterable[Finding]:
    for place in (queue, evidence.replay_place(queue)):
        samples = evidence.samples.get(place, [])
        for before, now in pairwise(samples):
            lost = [o for o in before.above if not is_finished(now, o)]
            fewer = [
                offset
                for offset, attempts in before.said.attempts.items()
                if not is_finished(now, offset)
                and attempts.ended_count > (now.said.attempts[offset].ended_count if offset in now.said.attempts else 0)
            ]
            if now.offset < before.offset or lost or fewer:
                detail = f"{before.offset} {before.said} → {now.offset} {now.said}"
                yield finding(Kind.BACKWARDS, place, detail)


def _repeats(evidence: Evidence) -> Iterable[Finding]:
    for queue, call in evidence.all_calls():
        place, offset = evidence.source(queue, call)
        ended = evidence.finished_at(place, offset)
        if ended < evidence.known_until(queue, call):
            detail = f"{place[0]} {offset} at {call.began_ms:.0f} by {call.process}, finished at {ended:.0f}"
            yield finding(Kind.AGAIN, queue, detail)


def _decided_again(evidence: Evidence) -> Iterable[Finding]:
    """Who leaves in order writes what handlers decided in its time: dead letters of what they rejected, answers to replays."""
    if not evidence.history.is_calm:
        return
    decided: dict[tuple[Place, int], HandlerCall] = {}
    for queue, call in evidence.all_calls():
        source = evidence.source(queue, call)
        if (before := decided.get(source)) is not None:
            detail = f"{source} by {call.process} at {call.began_ms:.0f}, {before.result} at {before.ended_ms:.0f}"
            yield finding(Kind.AGAIN, queue, detail)
        is_decision = call.result == "reject" or (call.is_handled and call.request_offset is not None)
        if is_decision and call.ended_ms is not None and call.ended_ms - call.began_ms < SOON_MS:
            decided[source] = call


def _rejected_again(evidence: Evidence) -> Iterable[Finding]:
    """An attempt whose number counts one that ended with a rejection: what counted it knows that it was the last."""
    last: dict[tuple[Place, int], HandlerCall] = {}
    for queue, call in evidence.all_calls():
        source = evidence.source(queue, call)
        before, last[source] = last.get(source), call
        if before is None or before.result != "reject" or before.given_up_ms is not None or before.ended_ms is None:
            continue
        if call.attempt > before.attempt and before.ended_ms < evidence.known_until(queue, call):
            detail = f"{source} by {call.process} at {call.began_ms:.0f}, rejected at {before.ended_ms:.0f}"
            yield finding(Kind.AGAIN, queue, detail)


def _attempts(evidence: Evidence) -> Iterable[Finding]:
    last: dict[tuple[Place, int, int], HandlerCall] = {}
    failed_counts: Counter[tuple[Place, int]] = Counter()
    for queue, call in evidence.all_calls():
        place, offset = evidence.source(queue, call)
        known = evidence.last_known(queue, place, call)
        before = last.get((place, call.tenure, offset))
        last[place, call.tenure, offset] = call
        counted = known.said.attempts.get(offset) if known else None
        stored = counted.ended_count if counted else 0
        wanted = {before.attempt + n for n in before.counts} if before else {1 + stored}
        where = f"{place[0]} {offset} by {call.process}: attempt {call.attempt}"
        if call.attempt not in wanted:
            yield finding(Kind.ATTEMPTS, queue, f"{where}, and {wanted} was next")
        if call.attempt > 1 + failed_counts[place, offset]:
            yield finding(Kind.ATTEMPTS, queue, f"{where}, and {failed_counts[place, offset]} can have failed")
        failed_counts[place, offset] += 1 in call.counts
        if call.attempt > evidence.history.attempt_count_max:
            yield finding(Kind.ATTEMPTS, queue, f"{where} is one too many")
        if call.attempt > 1 + stored:
            yield finding(Kind.ATTEMPTS, queue, f"{where} before the last one's count was stored")


def _begun_elsewhere(evidence: Evidence) -> Iterable[Finding]:
    """Who keeps its place in memory begins with its process, not before."""
    for place, offset in evidence.begins.items():
        if offset < evidence.history.begins_behind.get(place, 0):
            yield finding(Kind.BACKWARDS, place, f"it begins at {offset}")


def _told(evidence: Evidence) -> Iterable[Finding]:
    """Handlers of dead letters get those that are for them, and the truth about each."""
    for queue, call in evidence.topic_calls():
        if evidence.history.hears_of is not None and call.heard != evidence.told(queue, call.offset):
            yield finding(Kind.ALTERED, queue, f"of {call.offset} it is told {call.heard}")


def _note_postponed(evidence: Evidence) -> None:
    """Each call learns since when its message was postponed, by its handler or by a breaker."""
    maybe: dict[tuple[Place, int, int], float] = {}
    surely: dict[tuple[Place, int, int], float] = {}
    batch = 0
    for queue, call in evidence.all_calls():
        is_first, batch = call.batch != batch, call.batch
        which = (*evidence.source(queue, call), call.tenure)
        # How much of that time was an operator's pause, which does not count, is not known.
        was_paused = any(request.said.kind is ReplayKind.PAUSE for request in evidence.requests[queue])
        call.maybe_postponed_ms, call.postponed_ms = maybe.get(which), None if was_paused else surely.get(which)
        if call.taken_ms is None or 0 not in call.counts:
            continue
        maybe.setdefault(which, call.taken_ms)
        if is_first and call.counts == {0}:  # those behind it in a batch wait for it
            surely.setdefault(which, call.taken_ms)


def _probes(history: ConsumerHistory) -> Iterable[Finding]:
    """While a breaker is open, one call at a time is made under it."""
    last: dict[int, HandlerCall] = {}
    for call in history.calls:
        if call.breaker is None or not call.breaker.is_heard_open(call.began_ms):
            continue
        before = last.get(id(call.breaker))
        last[id(call.breaker)] = call
        if before is None or before.batch == call.batch:
            continue
        if before.over_ms is None or before.over_ms > call.began_ms:
            detail = f"{call.offset} by {call.process} is tried beside {before.offset} while a breaker is open"
            yield finding(Kind.ATTEMPTS, (call.topic, call.partition), detail)


def _given_up(history: ConsumerHistory) -> Iterable[Finding]:
    """Who is given up had its time; clocks of processes differ by some."""
    for call in history.calls:
        if call.given_up_ms is None or call.result == "given back":
            continue
        # A program may be too late in the last moments.
        began_ms = call.began_ms if call.ready_ms is None else call.ready_ms - TOO_LATE_MS
        took_ms = call.given_up_ms - began_ms
        if took_ms < history.attempt_timeout_ms * 0.9:
            detail = f"{call.offset} by {call.process} is given up after {took_ms:.0f} ms"
            yield finding(Kind.ATTEMPTS, (call.topic, call.partition), detail)


# --- replays ----------------------------------------------------------------------------------------------------------


def _answers(evidence: Evidence) -> Iterable[Finding]:
    for queue, requests in evidence.requests.items():
        answers = evidence.answers[queue]
        counts = Counter((a.said.request_id, a.said.dead_letter_offset) for a in answers)
        asked = {(r.said.request_id, r.said.dead_letter_offset): r for r in requests}
        for name, count in counts.items():
            if name not in asked or count > 1:
                kind = Kind.DUPLICATE if name in asked else Kind.PHANTOM
                yield finding(kind, queue, f"{name} is answered {count} times")
        for name, request in asked.items():
            is_of_letter = request.said.kind in (ReplayKind.REPLAY, ReplayKind.DROP)
            if is_of_letter and not counts[name]:
                yield finding(Kind.STUCK, queue, f"{name} is not answered")
        for answer in answers:
            found = asked.get((answer.said.request_id, answer.said.dead_letter_offset))
            if found is not None and not _is_true(evidence, queue, found.offset, answer):
                yield finding(Kind.PHANTOM, queue, f"{answer.said}: it was not so")


def _is_true(evidence: Evidence, queue: Place, request_offset: int, answer: Letter) -> bool:
    outcome, letter = answer.said.outcome, answer.said.dead_letter_offset
    calls = [c for c in evidence.calls[queue] if c.request_offset == request_offset]
    is_there = any(each.offset == letter for each in evidence.letters[queue])
    if outcome is ReplayOutcome.HANDLED and letter is not None:
        return any(c.is_handled and (c.ended_ms or 1e18) <= answer.at_ms + 1 for c in calls)
    return outcome is not ReplayOutcome.MISSING or not is_there


# --- order ------------------------------------------------------------------------------------------------------------


def _order(evidence: Evidence) -> Iterable[Finding]:
    for queue in evidence.queues:
        handled = _handled(evidence, queue)
        for chain in evidence.chains(queue).values():
            running: list[HandlerCall] = []
            for call in chain.calls:
                what = f"{call.offset} (request {call.request_offset}) by {call.process} at {call.began_ms:.1f}"
                for other in running:
                    if _is_beside(evidence, other, call):
                        detail = f"{what} beside {other.offset} (request {other.request_offset})"
                        yield finding(Kind.OUT_OF_ORDER, queue, detail)
                # Calls stand in the order of their begin: who is over now is beside nobody who comes later.
                running = [c for c in running if c.over_ms is None or c.over_ms > call.began_ms]
                running.append(call)
                if call.letter_offset is None:
                    for offset in _not_ended_before(evidence, queue, call, chain, handled):
                        yield finding(Kind.OUT_OF_ORDER, queue, f"{what} before {offset}")
                else:
                    for offset in _not_answered_before(evidence, queue, call):
                        yield finding(Kind.OUT_OF_ORDER, queue, f"{what} before request {offset}")


def _handled(evidence: Evidence, queue: Place) -> dict[tuple[int, int], float]:
    """{(tenure, offset): when its handler first succeeded}."""
    found: dict[tuple[int, int], float] = {}
    for call in evidence.calls[queue]:
        if evidence.is_end(call) and call.letter_offset is None and call.over_ms is not None:
            place = call.tenure, call.offset
            found[place] = min(call.over_ms, found.get(place, _NEVER))
    return found


def _is_beside(evidence: Evidence, other: HandlerCall, call: HandlerCall) -> bool:
    """One key's handlers at the same time, in one process that knows of both."""
    if other.process != call.process or other.batch >= call.batch:
        return False
    is_over = other.over_ms is not None and other.over_ms <= call.began_ms
    # A handler that hangs is not waited for beyond its deadline, when the queue is taken over anew.
    hangs = call.began_ms - other.began_ms >= evidence.history.attempt_timeout_ms * 0.9
    return not is_over and (other.tenure == call.tenure or not hangs)


def _not_ended_before(
    evidence: Evidence, queue: Place, call: HandlerCall, chain: Chain, handled: Mapping[tuple[int, int], float]
) -> Iterator[int]:
    until_ms = evidence.known_until(queue, call)
    waiting = chain.unfinished(before=call.offset, until_ms=until_ms)
    if not waiting:
        return
    together = {c.offset for c in chain.calls if c.batch == call.batch}
    lettered = {letter.origin for letter in chain.letters if letter.at_ms <= call.began_ms}
    if evidence.history.is_broadcast and (known := evidence.last_known(queue, queue, call)):
        # Its last attempt is stored: nothing more is written about it.
        last, count_max = known.said.attempts, evidence.history.attempt_count_max
        lettered |= {at for at, tries in last.items() if tries.is_rejected or tries.ended_count >= count_max}
    for offset in waiting:
        is_handled = handled.get((call.tenure, offset), _NEVER) <= call.began_ms
        if is_handled or offset in together or offset in lettered or evidence.is_passed_over(queue, offset):
            continue
        if evidence.finished_at(queue, offset) >= until_ms:
            yield offset


def _not_answered_before(evidence: Evidence, queue: Place, call: HandlerCall) -> Iterator[int]:
    chain = evidence.chain_of(call)
    answered = {
        (answer.said.request_id, answer.said.dead_letter_offset)
        for answer in evidence.answers[queue]
        if answer.at_ms <= call.began_ms
    }
    assert call.request_offset is not None
    for request in evidence.requests[queue]:
        if (
            request.offset < call.request_offset
            and request.said.kind in (ReplayKind.REPLAY, ReplayKind.DROP)
            and evidence.chain_of_key(request.seen.key, -1 - request.offset) == chain
            and (request.said.request_id, request.said.dead_letter_offset) not in answered
        ):
            yield request.offset


def _stale_writes(history: ConsumerHistory) -> Iterable[Finding]:
    newest: dict[tuple[str, int, bytes | None], int] = {}
    for effect in history.effects:
        if effect.is_accepted:
            if effect.token < newest.get(effect.row, -1):
                detail = f"{effect.row[2]!r} {effect.offset} under {effect.token} by {effect.process}"
                yield finding(Kind.STALE_WRITE, effect.row[:2], detail)
            newest[effect.row] = max(effect.token, newest.get(effect.row, -1))


def _counts(evidence: Evidence) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _, call in evidence.all_calls():
        counts["replay attempt" if call.letter_offset is not None else "attempt"] += 1
        counts[f"result {call.result or 'none'}"] += 1
        counts["later attempt"] += call.attempt > 1
    for letters in evidence.letters.values():
        counts.update(f"letter {letter.said.reason.value}" for letter in letters)
    for answers in evidence.answers.values():
        counts.update(f"replay {a.said.outcome.value}" for a in answers if a.said.outcome)
    breakers = {id(call.breaker): call.breaker for call in evidence.history.calls if call.breaker is not None}
    counts["breaker opened"] = sum(is_open for each in breakers.values() for _, is_open in each.changes)
    counts["stored"] = len(evidence.history.stored)
    counts["write refused"] = sum(not effect.is_accepted for effect in evidence.history.effects)
    counts["locks"] = len(evidence.history.logs.locks)
    return counts
