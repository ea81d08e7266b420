"""The dead letters of a consumer group, which of them a list shows, and the topics that groups consume."""

import heapq
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from txlayer.adapters.connect import Clients
from txlayer.adapters.ports import Administration, LogReader, StoredOffset, TopicPartition, partition_count_of
from txlayer.adapters.readers import Range, records_of
from txlayer.core.dead_letters import (
    ENDED,
    DeadLetter,
    DeadLetterEvent,
    DeadLetterHistory,
    DeadLetterReason,
    DeadLetterState,
    PartitionStates,
    dead_letter_of,
    dead_letter_topic,
    decode_replay,
    original_headers,
    replay_topic,
    source_topic,
)
from txlayer.core.history import split_operator_reason
from txlayer.core.key_queue import lone_request_key
from txlayer.core.messages import Undecodable, check_group, check_topic, is_topic_name
from txlayer.core.progress import NO_KEY, NOTHING, Attempts, Foreign, Progress, StoredProgress, decode, hash_of_key
from txlayer.errors import NotAuthorisedError, TopicMismatchError, TxLayerError, UsageError
from txlayer.operate import Json, bytes_json

COUNT_MAX = 100  # groups and topics that are looked at


class ConsumedTopic(NamedTuple):
    """One topic of one consumer group."""

    group: str
    topic: str
    member_count: int | None = None
    lag: int | None = None
    """Offsets that are not stored as finished (markers count); of messages that wait behind a failing one, too."""
    letter_count: int | None = None
    """Offsets of the dead-letter topic (markers count): there are at most so many, those handled since, too."""
    problem: str | None = None  # why the numbers are not known


def consumed_pairs(admin: Administration) -> Iterator[tuple[str, str]]:
    """(group, topic) of every dead-letter topic whose source and replay topics are there, too.

    If the dots of a name fit several pairs, those whose group reads the topic; the first one if none does.
    """
    known = admin.topic_names()
    for name in sorted(known):
        parts = name.split(".")[:-1]
        pairs = ((".".join(parts[:n]), ".".join(parts[n:])) for n in range(1, len(parts)))
        fits = [(g, t) for g, t in pairs if g and dead_letter_topic(g, t) == name and {t, replay_topic(g, t)} <= known]
        yield from fits if len(fits) < 2 else [pair for pair in fits if _is_read(admin, *pair)] or fits[:1]


def _is_read(admin: Administration, group: str, topic: str) -> bool:
    tps = [(topic, partition) for partition in range(admin.partition_count(topic) or 0)]
    try:
        return any(admin.stored_offsets(group, tps).values())
    except NotAuthorisedError:
        return False


def read_consumed_topics(clients: Clients) -> list[ConsumedTopic]:
    """Every topic of every consumer group, with its lag and its dead letters; the first `COUNT_MAX` by name."""
    found: list[ConsumedTopic | None] = []
    with closing(clients.admin()) as admin:
        names = islice(consumed_pairs(admin), COUNT_MAX)
        count = cache(lambda group: len(admin.group(group).members))
        for group, topic in names:
            try:
                found.append(_read_consumed_topic(admin, group, topic, count))
            except NotAuthorisedError as exc:  # the others may be readable
                found.append(ConsumedTopic(group, topic, problem=str(exc)))
    return [each for each in found if each is not None]


def _read_consumed_topic(
    admin: Administration, group: str, topic: str, count_members: Callable[[str], int]
) -> ConsumedTopic | None:
    dlq = dead_letter_topic(group, topic)
    count, letters = admin.partition_count(topic), admin.partition_count(dlq)
    if count is None or letters is None:  # deleted just now
        return None
    tps = [(topic, partition) for partition in range(count)]
    dlq_tps = [(dlq, partition) for partition in range(letters)]
    starts, ends = admin.start_offsets([*tps, *dlq_tps]), admin.end_offsets([*tps, *dlq_tps])
    lag = 0
    for tp, offset in admin.stored_offsets(group, tps).items():
        lag += ends[tp] - (starts[tp] if offset is None else max(offset.offset, starts[tp]))
    letter_count = sum(ends[tp] - starts[tp] for tp in dlq_tps)
    return ConsumedTopic(group, topic, count_members(group), lag, letter_count)


PATIENCE_S = 10.0  # nothing came for so long: the broker does not answer any more


class DeadLetterPosition(NamedTuple):
    """Position of a dead letter in the dead-letter topic of `topic`."""

    topic: str  # that the message came from
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}:{self.offset}"


def parse_letter(text: str, *, topics: Sequence[str] = ()) -> DeadLetterPosition:
    """`orders/3:17`, or `3:17` where `topics` has one; UsageError: it is neither."""
    match = re.fullmatch(r"(?:([^/]+)/)?(\d{1,9}):(\d{1,18})", text, re.ASCII)
    topic = None if match is None else match[1] or (topics[0] if len(topics) == 1 else None)
    if match is None or topic is None or not is_topic_name(topic):
        raise UsageError(
            f"{text[:80]!r} names no dead letter: TOPIC/PARTITION:OFFSET is asked for, as `txlayer dlq list` shows it, or "
            "PARTITION:OFFSET with one --topic"
        )
    return DeadLetterPosition(topic, int(match[2]), int(match[3]))


class FoundLetter(NamedTuple):
    """A record of a dead-letter topic."""

    position: DeadLetterPosition
    key: bytes | None
    at_ms: int  # when it was written
    letter: DeadLetter | Undecodable
    history: DeadLetterHistory
    record: Any = None  # Record; a selection, which may be long, does without

    @property
    def reason(self) -> DeadLetterReason | None:
        """None: it is no dead letter of the group."""
        return self.letter.reason if isinstance(self.letter, DeadLetter) else None

    @property
    def error(self) -> tuple[str, str]:
        """The error's type, and the first line of its message."""
        if not isinstance(self.letter, DeadLetter):
            return "", ""
        return self.letter.error_type, self.letter.error_message.lstrip().partition("\n")[0].strip()


class QueueStatus(NamedTuple):
    """What a group stored for one partition of a topic."""

    is_paused: bool
    parked: frozenset[bytes]  # hashes of keys
    replays: StoredOffset | None  # of the replay topic
    stuck: Mapping[bytes, int]  # by hash of the key: the dead letter whose replay failed
    failing: tuple[Attempts, ...] = ()  # of messages whose handler failed, and that are not finished

    @property
    def tells_ends(self) -> bool:
        """False: the stored progress does not say which requests have ended, as they had no room there; their results do."""
        found = None if self.replays is None else decode(self.replays.offset, self.replays.metadata)
        return isinstance(found, StoredProgress) and found.tells_ends

    def has_taken(self, offset: int) -> bool:
        """True if the pause or resume at this offset of the replay topic has ended; requests before it may still wait."""
        if self.replays is None:
            return False
        found = decode(self.replays.offset, self.replays.metadata)
        progress = Progress(self.replays.offset, NOTHING if isinstance(found, Foreign) else found)
        return not progress.read([offset], [lone_request_key(offset)])


def topics_of(admin: Administration, group: str) -> list[str]:
    """The topics of which a consumer group may have dead letters, as far as the names of topics say."""
    found = (source_topic(group, name) for name in admin.topic_names())
    return sorted(topic for topic in found if topic is not None)


class DeadLetterLog:
    """The dead letters of one group and topic. One thread uses it; it fences no producer and joins no group.

    Constructor and calls raise TopicMismatchError if the group has no dead-letter topic or no replay topic for this topic.
    """

    def __init__(self, admin: Administration, *, group: str, topic: str, make_reader: Callable[[], LogReader]) -> None:
        self.group = group
        self.topic = topic
        self.dead_letters = dead_letter_topic(group, topic)
        self.replays = replay_topic(group, topic)
        self._admin = admin
        self._make_reader = make_reader
        self._states: dict[int, PartitionStates] = {}
        self.partition_count = self._count_partitions()
        self._next = admin.start_offsets([(self.replays, p) for p in range(self.partition_count)])
        self.follow()

    def _count_partitions(self) -> int:
        create = f"txlayer topics apply --group {self.group} --topic {self.topic}"
        letters, replays = (
            partition_count_of(self._admin, t, create=create) for t in (self.dead_letters, self.replays)
        )
        if letters != replays:
            raise TopicMismatchError(
                "a request must be in the partition of its dead letter; `txlayer topics check "
                f"--group {self.group} --topic {self.topic}` says more",
                topic=self.replays,
                expected=f"{letters} partitions",
                found=f"{replays}",
            )
        return letters

    def follow(self) -> None:
        """Read what came to the replay topic since the last call, the first time all of it."""
        ends = self._admin.end_offsets(list(self._next))
        for partition, event in self._events({tp: (self._next[tp], end) for tp, end in ends.items()}):
            self._states.setdefault(partition, PartitionStates()).fold(event)
        self._next = ends

    def history(self, position: DeadLetterPosition) -> DeadLetterHistory:
        """What was asked and answered about one dead letter, as far as the replay topic was read."""
        return self._states.get(position.partition, PartitionStates()).of(position.offset)

    def pause(self, partition: int) -> DeadLetterEvent | None:
        """The newest request to pause this partition or to resume it, as far as the replay topic was read."""
        return self._states.get(partition, PartitionStates()).pause

    def letters(
        self,
        *,
        since_ms: int | None = None,
        partitions: Collection[int] | None = None,
        count_max: int | None = None,
        first_offset: int = 0,
    ) -> Iterator[FoundLetter]:
        """Every dead letter there is now, in offset order per partition.

        `since_ms` leaves out those before it by their timestamps; some may be given all the same. With `count_max`, about so many
        of the newest, shared among the partitions. Those before `first_offset` are left out.
        """
        numbers = range(self.partition_count) if partitions is None else sorted(partitions)
        tps = [(self.dead_letters, p) for p in numbers if p < self.partition_count]
        if not tps:
            return
        starts = self._admin.start_offsets(tps) if since_ms is None else self._admin.offsets_at(tps, at_ms=since_ms)
        ends = self._admin.end_offsets(tps)
        if count_max is not None:
            starts = {tp: max(starts[tp], ends[tp] - max(count_max // len(tps), 1)) for tp in tps}
        yield from map(self._found, self._records({tp: (max(starts[tp], first_offset), ends[tp]) for tp in tps}))

    def letter_count(self, partitions: Collection[int] | None = None) -> int:
        """Offsets of the dead-letter topic, or of these partitions of it: those of markers, and of dead letters that ended, too."""
        numbers = range(self.partition_count) if partitions is None else partitions
        tps = [(self.dead_letters, p) for p in numbers if p < self.partition_count]
        starts, ends = self._admin.start_offsets(tps), self._admin.end_offsets(tps)
        return sum(ends[tp] - starts[tp] for tp in tps)

    def at(self, partition: int, offset: int) -> FoundLetter | None:
        if not 0 <= partition < self.partition_count:
            return None
        tp = (self.dead_letters, partition)
        start, end = self._span(tp)
        if start <= offset < end:
            for record in self._records({tp: (offset, offset + 1)}):
                return self._found(record)
        return None

    def is_gone(self, partition: int, offset: int) -> bool:
        """True if retention has removed this dead letter; one that an open Kafka transaction hides is not gone."""
        tp = (self.dead_letters, partition)
        return offset < self._admin.start_offsets([tp])[tp]

    def requested(self, request_id: str) -> Iterator[tuple[DeadLetterPosition, DeadLetterHistory]]:
        """The dead letters for which a request of this name asked, as far as the replay topic was read."""
        for partition, states in sorted(self._states.items()):
            for offset, history in sorted(states.letters.items()):
                if request_id in history.asked:
                    yield DeadLetterPosition(self.topic, partition, offset), history

    def events_about(self, position: DeadLetterPosition) -> list[DeadLetterEvent]:
        """Everything that the replay topic says of one dead letter, in order."""
        tp = (self.replays, position.partition)
        events = self._events({tp: self._span(tp)})
        return [event for _, event in events if event.record.dead_letter_offset == position.offset]

    def queues(self) -> dict[int, QueueStatus]:
        """What the group stored for each partition; metadata that are not ours say nothing."""
        sources = [(self.topic, p) for p in range(self.partition_count)]
        replays = [(self.replays, p) for p in range(self.partition_count)]
        stored = self._admin.stored_offsets(self.group, [*sources, *replays])
        found = {}
        for (topic, partition), replay in zip(sources, replays, strict=True):
            source, taken = stored[topic, partition], stored[replay]
            progress = None if source is None else decode(source.offset, source.metadata)
            known = None if isinstance(progress, Foreign) else progress
            found[partition] = QueueStatus(
                known is not None and known.is_paused,
                frozenset() if known is None else frozenset(known.parked),
                taken,
                {} if known is None else known.stuck,
                () if known is None else tuple(known.attempts.values()),
            )
        return found

    def ends(self, partitions: Collection[int]) -> dict[TopicPartition, int]:
        """Where dead letters and requests of these partitions end, with what an open Kafka transaction hides."""
        tps = [(topic, partition) for topic in (self.dead_letters, self.replays) for partition in sorted(partitions)]
        return self._admin.end_offsets(tps, is_committed=False)

    def is_hidden(self, ends: Mapping[TopicPartition, int]) -> bool:
        """True while an open Kafka transaction hides what is before one of these ends."""
        readable = self._admin.end_offsets(list(ends))
        return any(readable[tp] < end for tp, end in ends.items())

    def _span(self, tp: TopicPartition) -> Range:
        return self._admin.start_offsets([tp])[tp], self._admin.end_offsets([tp])[tp]

    def _found(self, record: Any) -> FoundLetter:
        letter = dead_letter_of(record.headers())
        if isinstance(letter, DeadLetter) and (letter.consumer_group, letter.origin.topic) != (self.group, self.topic):
            letter = Undecodable(f"a dead letter of group {letter.consumer_group} and topic {letter.origin.topic}")
        position = DeadLetterPosition(self.topic, record.partition(), record.offset())
        return FoundLetter(position, record.key(), record.timestamp()[1], letter, self.history(position), record)

    def _events(self, ranges: Mapping[TopicPartition, Range]) -> Iterator[tuple[int, DeadLetterEvent]]:
        """(partition, event) of the replay topic, without records that cannot be read."""
        for record in self._records(ranges):
            found = decode_replay(record.value())
            if not isinstance(found, Undecodable):
                yield record.partition(), DeadLetterEvent(record.offset(), record.timestamp()[1], found)

    def _records(self, ranges: Mapping[TopicPartition, Range]) -> Iterator[Any]:
        with closing(self._make_reader()) as reader:
            yield from records_of(reader, ranges, patience_s=PATIENCE_S)


Logs = Mapping[str, DeadLetterLog]  # {topic: its dead letters}, of one group


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """What a dead letter must be like; the default lets every one through."""

    key: bytes | None = None
    reasons: frozenset[DeadLetterReason] = frozenset()
    since_ms: int | None = None  # written then or later
    until_ms: int | None = None  # written before
    states: frozenset[DeadLetterState] = frozenset()
    partition: int | None = None
    key_hash: bytes | None = None
    error_type: str | None = None
    first_line: str | None = None  # of the error's message

    @property
    def is_empty(self) -> bool:
        return self == DeadLetterFilter()

    def lets_through(self, found: FoundLetter) -> bool:
        return (
            (self.key is None or found.key == self.key)
            and (not self.reasons or found.reason in self.reasons)
            and (self.since_ms is None or found.at_ms >= self.since_ms)
            and (self.until_ms is None or found.at_ms < self.until_ms)
            and (not self.states or found.history.state in self.states)
            and (self.partition is None or found.position.partition == self.partition)
            and (self.key_hash is None or hash_of_key(found.key) == self.key_hash)
            and (self.error_type is None or found.error[0] == self.error_type)
            and (self.first_line is None or found.error[1] == self.first_line)
        )


def partitions_in_one_chain(
    log: DeadLetterLog,
    queues: Mapping[int, QueueStatus],
    partitions: Collection[int],
    letters: Iterable[FoundLetter] | None = None,
) -> set[int]:
    """Partitions whose messages are one chain, whatever their keys. Only their dead letters show it: if `NO_KEY` alone is parked, that is
    such a chain or that of the null key, and only in the former do dead letters with a key follow.

    `letters`: the dead letters of partitions where `NO_KEY` alone is parked, if they were read already.
    """
    in_one_chain: set[int] = set()
    keyed: set[int] = set()  # an open dead letter has a key
    begun: set[int] = set()  # one without a key was the first of its order, and is open or came behind those of `keyed`
    begun_before: set[int] = set()  # the same, but it has ended
    suspects = [p for p in partitions if queues[p].parked == {NO_KEY}]
    for found in log.letters(partitions=suspects) if letters is None else letters:
        if found.reason is None:
            continue
        partition, is_open = found.position.partition, found.history.state not in ENDED
        follows = found.reason is DeadLetterReason.KEY_PARKED
        if found.key is None and not follows:
            (begun if is_open else begun_before).add(partition)
        elif found.key is not None and is_open and follows:
            in_one_chain.add(partition)
        elif found.key is not None and is_open:
            keyed.add(partition)
            begun_before.discard(partition)
    # Where none without a key began to park, one with a key did.
    return in_one_chain | (keyed - begun - begun_before)


@contextmanager
def opened_logs(clients: Clients, group: str, topics: Sequence[str] = ()) -> Iterator[dict[str, DeadLetterLog]]:
    """{topic: its dead letters}, of these topics, else of all that the group has dead letters of; for one thread.

    Raises:
        UsageError: no group or no topic can have such a name.
        TopicMismatchError: a topic that was named has no dead-letter topic, or the group has none at all.
    """
    check_group(group)
    for topic in topics:
        check_topic(topic)
    with closing(clients.admin()) as admin:
        found = list(dict.fromkeys(topics)) or topics_of(admin, group)
        if not found:
            raise TopicMismatchError(
                f"group {group} has no dead-letter topic that these credentials may see; "
                f"`txlayer topics apply --group {group} --topic TOPIC` creates that of a topic",
                topic=f"{group}.TOPIC.dlq",
                found="none",
            )
        yield {topic: DeadLetterLog(admin, group=group, topic=topic, make_reader=clients.reader) for topic in found}


def look_at_each(
    clients: Clients, admin: Administration, look: Callable[[DeadLetterLog], None]
) -> tuple[dict[str, str], bool]:
    """Look at the dead letters of every group and topic, as far as the names of topics say; the first `COUNT_MAX` by name.

    Returns what could not be read, and why, by group and topic; and whether there are more.
    """
    problems: dict[str, str] = {}
    for number, (group, topic) in enumerate(consumed_pairs(admin)):
        if number >= COUNT_MAX:
            return problems, True
        try:
            look(DeadLetterLog(admin, group=group, topic=topic, make_reader=clients.reader))
        except TxLayerError as exc:  # the others may be readable
            problems[f"{group} {topic}"] = str(exc)
    return problems, False


@dataclass(slots=True)
class Listing:
    """The oldest dead letters that a filter lets through, and how many there are of each kind."""

    letters: list[FoundLetter] = field(default_factory=list)
    listed_count: int = 0  # let through, and open unless all were wanted
    ended_count: int = 0  # let through, but handled or dropped
    undecodable_count: int = 0  # records that are no dead letters of the group


def list_letters(logs: Logs, wanted: DeadLetterFilter, *, with_ended: bool, limit: int) -> Listing:
    """The oldest dead letters, the oldest first; those handled or dropped only with `with_ended`."""
    found = Listing()
    kept = found.letters
    for letter in (letter for log in logs.values() for letter in log.letters(since_ms=wanted.since_ms)):
        if isinstance(letter.letter, Undecodable):
            found.undecodable_count += 1
        elif not wanted.lets_through(letter):
            continue
        elif letter.history.state in ENDED and not with_ended:
            found.ended_count += 1
        else:
            found.listed_count += 1
            kept.append(letter)
            if len(kept) >= 2 * limit:  # contents may be large: no more of them in memory
                kept[:] = _oldest(kept, limit)
    kept[:] = _oldest(kept, limit)
    return found


def _oldest(letters: Sequence[FoundLetter], limit: int) -> list[FoundLetter]:
    return heapq.nsmallest(limit, letters, key=lambda letter: letter.at_ms)


SURVEY_COUNT_MAX = 50_000
SURVEY_BYTES_MAX = 256 * 1024 * 1024
"""Dead letters that a survey reads of each topic, the newest, and their values' bytes in all."""
FAILURE_KINDS_MAX = 500  # kinds of failures that a survey tells apart


class FailureKind(NamedTuple):
    """The group, topic, reason and error that dead letters have in common."""

    group: str
    topic: str
    reason: DeadLetterReason
    error_type: str
    first_line: str


@dataclass(slots=True)
class FailureCount:
    """How many dead letters are of one kind, and when the oldest and the newest of them were given up."""

    by_state: Counter[DeadLetterState] = field(default_factory=Counter)
    oldest_ms: int = 0
    newest_ms: int = 0

    @property
    def open_count(self) -> int:
        return self.by_state.total() - sum(self.by_state[state] for state in ENDED)


@dataclass(slots=True)
class Survey:
    """Dead letters by what went wrong."""

    by_kind: dict[FailureKind, FailureCount] = field(default_factory=dict)
    letters: list[FoundLetter] = field(default_factory=list)  # the oldest, without their contents
    count: int = 0  # let through by the filter
    other_count: int = 0  # of kinds beyond the limit
    undecodable_count: int = 0
    has_more: bool = False  # older or further ones were not read
    problems: dict[str, str] = field(default_factory=dict)  # by group and topic

    def add(self, log: DeadLetterLog, wanted: DeadLetterFilter, *, limit: int = 0) -> None:
        """Read one topic's; the `limit` oldest of all are kept."""
        size_bytes = 0
        partitions = None if wanted.partition is None else [wanted.partition]
        self.has_more |= log.letter_count(partitions) > SURVEY_COUNT_MAX
        for found in log.letters(since_ms=wanted.since_ms, partitions=partitions, count_max=SURVEY_COUNT_MAX):
            size_bytes += len(found.record)
            if size_bytes > SURVEY_BYTES_MAX:
                self.has_more = True
                break
            if isinstance(found.letter, Undecodable):
                self.undecodable_count += 1
            elif wanted.lets_through(found):
                self._count(log.group, found)
                if limit:
                    self.letters.append(found._replace(record=None))
                if len(self.letters) >= 2 * max(limit, 1):
                    self.letters[:] = _oldest(self.letters, limit)
        self.letters[:] = _oldest(self.letters, limit)

    def _count(self, group: str, found: FoundLetter) -> None:
        self.count += 1
        assert found.reason is not None
        name = FailureKind(group, found.position.topic, found.reason, *found.error)
        if name not in self.by_kind and len(self.by_kind) >= FAILURE_KINDS_MAX:
            self.other_count += 1
            return
        count = self.by_kind.setdefault(name, FailureCount(oldest_ms=found.at_ms))
        count.by_state[found.history.state] += 1
        count.oldest_ms, count.newest_ms = min(count.oldest_ms, found.at_ms), max(count.newest_ms, found.at_ms)


def survey_all(clients: Clients) -> Survey:
    found = Survey()
    with closing(clients.admin()) as admin:
        found.problems, has_more = look_at_each(clients, admin, lambda log: found.add(log, DeadLetterFilter()))
    found.has_more |= has_more
    return found


def position_json(position: DeadLetterPosition) -> Json:
    return {
        "letter": str(position),
        "topic": position.topic,
        "partition": position.partition,
        "offset": position.offset,
    }


def letter_json(found: FoundLetter, *, now_ms: int, has_key: bool) -> Json:
    """Without the record of a dead letter it has no size."""
    letter = found.letter
    row = {
        **position_json(found.position),
        "state": found.history.state.value,
        "written_ms": found.at_ms,
        "age_ms": max(now_ms - found.at_ms, 0),
        "value_bytes": None if found.record is None else len(found.record),
        "request_ids": list(found.history.asked),
    }
    if has_key:
        row["key"] = bytes_json(found.key)
    if not isinstance(letter, DeadLetter):
        return {**row, "state": "undecodable", "reason": None, "why": letter.why}
    return {
        **row,
        "reason": letter.reason.value,
        "origin": letter.origin._asdict(),
        "origin_ms": letter.origin_ms,
        "attempt_count": letter.attempt_count,
        "first_ms": letter.first_ms or None,
        "last_ms": letter.last_ms or None,
        "error_type": letter.error_type or None,
        "error_message": letter.error_message or None,
    }


def show_json(found: FoundLetter, said: Sequence[DeadLetterEvent], *, now_ms: int, has_value: bool) -> Json:
    row = letter_json(found, now_ms=now_ms, has_key=True)
    row["headers"] = [
        {"name": name, "value": bytes_json(value)} for name, value in original_headers(found.record.headers())
    ]
    if has_value:
        row["value"] = bytes_json(found.record.value())
    row["history"] = [event_json(each) for each in said]
    return row


def event_json(said: DeadLetterEvent) -> Json:
    record = said.record
    is_request = record.outcome is None
    operator, text = split_operator_reason(record.text) if is_request else ("", record.text)
    return {
        "offset": said.offset,
        "at_ms": said.at_ms,
        "kind": record.kind.name.lower(),
        "request_id": record.request_id,
        "outcome": None if record.outcome is None else record.outcome.value,
        "operator": operator or None,
        "text": text or None,
    }
