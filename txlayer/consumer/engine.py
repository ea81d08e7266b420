"""The engine of every consumer: read → queues → handlers → outcomes → store, in one thread. The rules are in `core`.

Crash-only, like the coordinator: after any error of its own the engine drops the queues and rebuilds them from the stored
offsets, which show what has ended. A handler's exception is not such an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import Any, Protocol

from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.ports import Record, StoredOffset, StoringGroupReader, TopicPartition
from txlayer.config import ConsumerConfig, milliseconds
from txlayer.consumer.assignments import Assignments
from txlayer.consumer.context import FOR_EVER, size_in_memory
from txlayer.consumer.dead_letters import (
    SEARCH_S,
    Answered,
    DeadLetterReader,
    DeadLetterWriter,
    GivenUpMessage,
    ResultSearch,
    Truncation,
)
from txlayer.consumer.dispatch import Dispatcher
from txlayer.consumer.failed_tries import FailedTries
from txlayer.consumer.lease_keeper import LeaseKeeper
from txlayer.consumer.metrics import ConsumerStats, TopicCounts, TopicStats
from txlayer.consumer.offsets import OffsetStorer, OwnedPartition
from txlayer.consumer.plan import ConsumerPlan, check_topics
from txlayer.consumer.pools import Pool
from txlayer.core.breaker import Breaker
from txlayer.core.dead_letters import (
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_of,
    dead_letter_topic,
    decode_replay,
    is_cut,
    original_headers,
)
from txlayer.core.key_queue import DUE_BYTES_MAX, Item, ItemSource, Snapshots, letter_bytes
from txlayer.core.ledger.batch import HALVINGS_MAX, BatchSize
from txlayer.core.messages import Headers, Origin, Undecodable
from txlayer.errors import (
    ConfigError,
    InstanceFencedError,
    InvariantError,
    RefusedRecordError,
    RetriableError,
    TxLayerError,
    UsageError,
)
from txlayer.runtime.environment import REAL, Environment, wait_before_rebuild

logger = logging.getLogger("txlayer.consumer")

LETTER_COUNT_MAX = 500
"""Dead letters that are read again together; all of them are in memory at once, within the byte limit."""


LOOK_FOR_ROOM_MS = 60_000
"""How often a partition without room to park a key looks whether retention has removed the dead letters of parked ones."""


class DeadLetterSource(Protocol):
    """Reads dead letters again."""

    def first_offset(self, topic: str, partition: int) -> int:
        """The offset from which on dead letters are there."""

    def fetch(
        self, topic: str, partition: int, offsets: Sequence[int], *, bytes_max: int | None = None
    ) -> Mapping[int, Record | None]:
        """The records at these offsets, the lowest first, up to `bytes_max`; None for an offset without a record."""

    def look_for_results(self, topic: str, partition: int, search: ResultSearch) -> bool:
        """Look for results of requests of a replay topic for a while; False: call it again to go on."""


class DeadLetterRecord:
    """A dead letter in the form of its original record: topic, offset, time and headers are the original's."""

    __slots__ = ("_letter", "_record")

    def __init__(self, record: Any, letter: DeadLetter) -> None:
        self._record = record
        self._letter = letter

    def topic(self) -> str:
        return self._letter.origin.topic

    def partition(self) -> int:
        return self._letter.origin.partition

    def offset(self) -> int:
        return self._letter.origin.offset

    def key(self) -> bytes | None:
        key: bytes | None = self._record.key()
        return key

    def value(self) -> bytes | None:
        value: bytes | None = self._record.value()
        return value

    def headers(self) -> Headers:
        return original_headers(self._record.headers())

    def timestamp(self) -> tuple[int, int]:
        return self._record.timestamp()[0], self._letter.origin_ms

    def __len__(self) -> int:
        return len(self._record)


class Ingest:
    """Adds records to queues. The engine's thread uses it."""

    def __init__(
        self,
        *,
        group: str,
        letters: DeadLetterSource,
        now_ms: Callable[[], int],
        known_end: Callable[[TopicPartition], int | None] = lambda _tp: None,
    ) -> None:
        self._group = group
        self._letters = letters
        self._known_end = known_end
        self._now_ms = now_ms
        self._failed_tries = FailedTries(now_ms)  # of queues whose dead letters could not be read
        self._stopped_at: TopicPartition | None = None  # the queue at which the last call gave up

    def add(self, records: Sequence[Any], by_source: Mapping[TopicPartition, OwnedPartition]) -> None:
        """Add records of these queues' sources, in the order of their offsets; records of other queues are dropped.

        Raises:
            RetriableError: later records were added before; these would now count as ended. The queues must be dropped.
        """
        groups: dict[TopicPartition, list[Any]] = {}
        topic, partition, group = "", -1, []
        for record in records:
            if record.partition() != partition or record.topic() != topic:
                topic, partition = record.topic(), record.partition()
                group = groups.setdefault((topic, partition), [])
            group.append(record)
        for tp, found in groups.items():
            owned = by_source.get(tp)
            if owned is None:
                continue  # revoked or lost while the record was on its way
            _check_order(found, tp, next_offset=owned.next_offsets[tp])
            owned.next_offsets[tp] = found[-1].offset() + 1
            if tp == owned.topic_partition:
                self._add_messages(owned, found)
            else:
                owned.requests.extend((record, decode_replay(record.value())) for record in found)

    def reach(self, reached: Mapping[TopicPartition, int], by_source: Mapping[TopicPartition, OwnedPartition]) -> None:
        """Everything below was read in the current assignment: offsets without a record are markers.

        The stored offset moves past them. Otherwise, after retention has emptied the partition, it would be below the
        start of the log, as if messages had been lost.
        """
        for tp, position in reached.items():
            owned = by_source.get(tp)
            if owned is not None and position > owned.next_offsets[tp]:
                owned.next_offsets[tp] = position
                if tp == owned.topic_partition:
                    owned.queue.reach(ItemSource.TOPIC, position)
                elif owned.requests:
                    owned.reached = position  # messages that wait below it have not ended
                else:
                    owned.queue.reach(ItemSource.REPLAY, position)

    def add_waiting(self, queues: Iterable[OwnedPartition], *, count_max: int, bytes_max: int) -> None:
        """Add waiting requests while there is room for their dead letters, in number and in bytes per queue.

        During an operator's pause there is no limit: nothing is handled, and the request that ends the pause may follow
        them. If no more keys can be parked, requests are read on until one can make room.

        If dead letters cannot be read now, the requests of their queue wait; the other queues go on. One call makes at most one
        try that fails, looks for results in at most one queue, and reads no further after about `SEARCH_S`, because leases, the
        group and outcomes must be served in between.

        Raises:
            TxLayerError: they cannot be read for another reason; the queues must be dropped.
        """
        waiting = {owned.topic_partition: owned for owned in queues if owned.requests or self._may_find_room(owned)}
        found = [owned for tp, owned in waiting.items() if tp not in self._failed_tries]
        behind = next((n for n, owned in enumerate(found, 1) if owned.topic_partition == self._stopped_at), 0)
        found = found[behind:] + found[:behind]
        again = self._failed_tries.first(waiting)
        give_up_at_ms = self._now_ms() + int(SEARCH_S * 1000)
        for owned in [*found, *([] if again is None else [waiting[again]])]:
            began_ms = self._now_ms()
            if began_ms < self._failed_tries.until_ms(owned.topic_partition):
                continue
            try:
                if self._may_find_room(owned):
                    self._look_for_room(owned)
                has_looked = self._look_for_results(owned)
                if owned.queue.knows_replays:
                    self._add_while_there_is_room(
                        owned, count_max=count_max, bytes_max=bytes_max, give_up_at_ms=give_up_at_ms
                    )
            except RetriableError as exc:
                self._failed_tries.failed(owned.topic_partition, took_ms=self._now_ms() - began_ms)
                logger.warning("dead_letters.unreadable", extra=owned.log_fields | {"reason": str(exc)})
                return
            self._failed_tries.passed(owned.topic_partition)
            if has_looked or self._now_ms() >= give_up_at_ms:
                self._stopped_at = owned.topic_partition  # the next call begins behind it
                return

    def _may_find_room(self, owned: OwnedPartition) -> bool:
        return owned.queue.is_without_room and owned.look_at_ms <= self._now_ms()

    def _look_for_room(self, owned: OwnedPartition) -> None:
        """Release parked keys of which retention has removed all dead letters: no request can."""
        first = self._letters.first_offset(dead_letter_topic(self._group, owned.topic), owned.partition)
        owned.look_at_ms = self._now_ms() + LOOK_FOR_ROOM_MS
        count = owned.queue.forget_parked(before=first)
        if count:
            logger.warning("keys.released", extra=owned.log_fields | {"key_count": count})

    def _add_while_there_is_room(
        self, owned: OwnedPartition, *, count_max: int, bytes_max: int, give_up_at_ms: int
    ) -> None:
        queues = owned.queue
        while owned.requests:
            room_bytes = bytes_max - queues.replay_bytes
            has_room = room_bytes > 0 and queues.replay_count < count_max
            if not (has_room or queues.is_paused or queues.needs_requests):
                break
            self._add_requests(owned, bytes_max=room_bytes if has_room else bytes_max)
            if not owned.requests and owned.reached > 0:
                queues.reach(ItemSource.REPLAY, owned.reached)
                owned.reached = 0
            if self._now_ms() >= give_up_at_ms:
                break

    def _look_for_results(self, owned: OwnedPartition) -> bool:
        """Go on finding out which requests have ended, if that is not known; True if their topic had to be read for it."""
        if owned.queue.knows_replays or not owned.requests:
            return False
        if owned.search is None:
            if not self._may_be_answered(owned):
                owned.queue.learn_answered(())
                return False
            owned.search = ResultSearch(owned.requests[0][0].offset())
        if self._letters.look_for_results(*owned.replay_partition, owned.search):
            owned.queue.learn_answered(owned.search.found.runs)
            owned.search = None
        return True

    def _may_be_answered(self, owned: OwnedPartition) -> bool:
        """True if a result is among what was read, or may be behind it. Only the owner writes results.

        The fetch that brought the requests also reported the end of their partition; without a known end, all was read.
        """
        end = self._known_end(owned.replay_partition)
        if end is not None and owned.next_offsets[owned.replay_partition] < end:
            return True
        return any(not isinstance(said, Undecodable) and said.outcome is not None for _, said in owned.requests)

    def _add_messages(self, owned: OwnedPartition, records: list[Any]) -> None:
        last = records[-1].offset()
        route = owned.route
        if route.only is None:
            wanted = [record for record in records if route.handler_of(record) is not None]
            owned.tally.passed_over += len(records) - len(wanted)
            records = wanted
        keys = [record.key() for record in records]
        owned.queue.add(
            records,
            offsets=[record.offset() for record in records],
            keys=keys,
            sizes=list(map(size_in_memory, records, keys)),
            now_ms=self._now_ms(),
        )
        if not records or records[-1].offset() != last:
            owned.queue.reach(ItemSource.TOPIC, last + 1)  # messages without a handler have ended

    def _add_requests(self, owned: OwnedPartition, *, bytes_max: int) -> None:
        """Add the first waiting request, and those after it whose dead letters fit."""
        part = list(islice(owned.requests, LETTER_COUNT_MAX))
        topic = dead_letter_topic(self._group, owned.topic)
        wanted = sorted({offset for _, request in part if (offset := _letter_at(request)) is not None})
        letters: Mapping[int, Record | None] = {}
        if wanted:
            letters = self._letters.fetch(topic, owned.partition, wanted, bytes_max=bytes_max)
        for index, (record, request) in enumerate(part):
            offset = _letter_at(request)
            if offset is not None and offset not in letters:
                if index:
                    return
                letters = self._letters.fetch(topic, owned.partition, [offset])
            owned.requests.popleft()
            self._add_request(owned, record, request, letters)

    def _add_request(
        self,
        owned: OwnedPartition,
        record: Any,
        request: ReplayRecord | Undecodable,
        letters: Mapping[int, Record | None],
    ) -> None:
        offset = record.offset()
        if isinstance(request, Undecodable):
            # It names no request, so there is no one to answer.
            logger.warning(
                "replay.undecodable",
                extra={"topic": owned.topic, "partition": owned.partition, "offset": offset, "reason": request.why},
            )
        elif request.kind is not ReplayKind.RESULT:
            content: Any = record
            outcome: ReplayOutcome | None = None
            if request.kind is ReplayKind.REPLAY:
                content, outcome = self._letter(owned, request, letters)
            owned.queue.add_replay(
                request,
                offset=offset,
                key=record.key(),
                record=record if content is None else content,
                size_bytes=size_in_memory(record if content is None else content, None),
                outcome=outcome,
            )
            return
        owned.queue.reach(ItemSource.REPLAY, offset + 1)

    def _letter(
        self, owned: OwnedPartition, request: ReplayRecord, letters: Mapping[int, Record | None]
    ) -> tuple[DeadLetterRecord | None, ReplayOutcome | None]:
        found = letters.get(request.dead_letter_offset or 0)
        letter = None if found is None else dead_letter_of(found.headers())
        if found is None or not isinstance(letter, DeadLetter) or is_cut(found.headers(), found.value()):
            return None, ReplayOutcome.MISSING
        if letter.consumer_group != self._group or letter.origin[:2] != owned.topic_partition:
            return None, ReplayOutcome.MISSING  # another group's dead letter has the same form
        content = DeadLetterRecord(found, letter)
        if owned.route.handler_of(content) is None:
            return None, ReplayOutcome.UNKNOWN
        return content, None


def _letter_at(request: ReplayRecord | Undecodable) -> int | None:
    """The offset of the dead letter to read for a request; None if none is needed."""
    if isinstance(request, Undecodable) or request.kind is not ReplayKind.REPLAY:
        return None
    return request.dead_letter_offset


def _check_order(records: Sequence[Any], tp: TopicPartition, *, next_offset: int) -> None:
    first = records[0].offset()
    if first < next_offset:
        raise RetriableError(
            f"{tp[0]}-{tp[1]} was read at {first} after everything before {next_offset}: begin anew from what is stored"
        )


class ReadLimits:
    """Pauses partitions that have used their share of the memory; reading resumes below half of it."""

    def __init__(self, reader: StoringGroupReader, *, record_count_max: int, record_bytes_max: int) -> None:
        self._reader = reader
        self._count_max = record_count_max
        self._bytes_max = record_bytes_max

    def share(self, queue_count: int) -> tuple[int, int]:
        """(records, bytes) of each queue: equal shares, so that a blocked queue leaves the others theirs; the same for replays."""
        count = max(queue_count, 1)
        return max(self._count_max // count, 1), max(self._bytes_max // count, 1)

    def apply(self, queues: Iterable[OwnedPartition]) -> None:
        """Apply the limits to every queue."""
        found = list(queues)
        count_max, bytes_max = self.share(len(found))
        for owned in found:
            if owned.is_replay_paused != bool(owned.requests):
                owned.is_replay_paused = bool(owned.requests)
                change = self._reader.pause if owned.is_replay_paused else self._reader.resume
                change([owned.replay_partition])
            count = owned.queue.count - owned.queue.replay_count
            size_bytes = owned.queue.size_bytes - owned.queue.replay_bytes
            if owned.is_reading_paused:
                if count * 2 <= count_max and size_bytes * 2 <= bytes_max:
                    owned.is_reading_paused = False
                    self._reader.resume([owned.topic_partition])
            elif count >= count_max or size_bytes >= bytes_max:
                owned.is_reading_paused = True
                self._reader.pause([owned.topic_partition])


END_COUNT_MAX = 500
"""Ends of one queue in one Kafka transaction; it limits how long readers of the dead letters wait.

After a Kafka transaction that took too long, the next one holds half as many of all queues together, or half the bytes, and
so on: with as many as before it would take too long again.
"""

CUT_COUNT_MAX = 10_000
"""Refused dead letters that are remembered until they are written; a forgotten one is refused once more."""


class Completions:
    """Writes dead letters and answers that are due. The engine's thread uses it."""

    def __init__(
        self,
        *,
        group: str,
        now_ms: Callable[[], int],
        cut: Callable[[OwnedPartition], object],
        kafka_transaction_timeout_ms: int,
    ) -> None:
        self._group = group
        self._now_ms = now_ms
        self._cut_chunks = cut
        self._long_ms = kafka_transaction_timeout_ms // 2
        self._size = BatchSize()
        self._turn = 0
        self._turns: dict[TopicPartition, int] = {}  # when ends of that source were last written
        self._failed_tries = FailedTries(now_ms)  # of sources whose ends could not be written
        self._were_answers = False  # the kind of the last attempt
        self._cut: dict[Origin, Truncation] = {}  # refused as whole records, in order

    def not_before_ms(self, owned: OwnedPartition) -> int:
        """When this queue's due ends may be written."""
        found = [self._failed_tries.until_ms(tp) for tp in _due_sources(owned)]
        return min(found, default=0)

    def has_due(self, owned: OwnedPartition) -> bool:
        """True if ends of this queue are to be written now."""
        return owned.queue.has_due and self.not_before_ms(owned) <= self._now_ms()

    def write(self, queues: Iterable[OwnedPartition], writer: DeadLetterWriter, member: Any) -> None:
        """Write one Kafka transaction with due answers or due dead letters; no other store of these queues may run meanwhile.

        Answers and dead letters have different topics: if one accepts nothing, the other must not wait for it.

        A dead letter that its topic refuses is written without its content at the next write, and then also without its
        key; otherwise it would block its queue. Queues whose ends could not be written wait a while, and are then tried
        one by one, so that the others do not wait for them.

        Raises:
            ConfigError: the topic refuses the dead letter even without content and key.
            TxLayerError: the writer must be dropped. Unless it `has_sent_nothing`, the outcome is unknown: these queues must
                be dropped, too. Otherwise the ends are due again.
        """
        due = self._due(list(queues))
        if not due:
            return
        letters, answers = self._records(due)
        ended: list[tuple[OwnedPartition, list[Item[Any]], list[int], Snapshots]] = []

        def offsets(written_at: list[int]) -> Mapping[TopicPartition, StoredOffset]:
            ended.clear()
            rest = iter(written_at)
            stored = {}
            for owned, items in due:
                own = [next(rest) if isinstance(_end_of(i), DeadLetterReason) else -1 for i in items]
                snapshots = owned.queue.ending(items, own)
                ended.append((owned, items, own, snapshots))
                for tp, taken in zip((owned.topic_partition, owned.replay_partition), snapshots, strict=True):
                    stored[tp] = StoredOffset(taken.offset, taken.metadata)
            return stored

        began_ms = self._now_ms()
        try:
            writer.write(letters, answers, offsets=offsets, member=member)
        except TxLayerError as exc:
            self._not_written(due)
            refused = writer.refused if isinstance(exc, RefusedRecordError) else ()
            if not self._cut_refused([letters[at] for at in refused if at < len(letters)], exc):
                self._failed(due, took_ms=self._now_ms() - began_ms)
            raise
        self._size.passed()
        for given_up in letters:
            self._cut.pop(given_up.letter.origin, None)
        for owned, items, own, snapshots in ended:
            self._failed_tries.passed(_source_of(owned, items))
            owned.queue.written(items, own, snapshots)
            owned.tally.dead_lettered += sum(offset >= 0 for offset in own)
            for item, offset in zip(items, own, strict=True):
                if offset >= 0:
                    self._log_letter(owned, item, offset)

    def drop(self, queues: Iterable[OwnedPartition]) -> None:
        """End what is due in queues without dead letters; it is logged, and its content stays in its topic alone."""
        for owned in queues:
            if items := owned.queue.take_due(END_COUNT_MAX):
                nowhere = [-1] * len(items)
                owned.queue.written(items, nowhere, owned.queue.ending(items, nowhere))
                owned.tally.dead_lettered += len(items)
                for item in items:
                    self._log_letter(owned, item, None)

    def _records(
        self, due: list[tuple[OwnedPartition, list[Item[Any]]]]
    ) -> tuple[list[GivenUpMessage], list[Answered]]:
        """Dead letters and answers, in order. Behind the answer to a pause no handler begins."""
        letters: list[GivenUpMessage] = []
        answers: list[Answered] = []
        for owned, items in due:
            for item in items:
                if isinstance(_end_of(item), DeadLetterReason):
                    letter = self._letter(owned, item)
                    cut = self._cut.get(letter.origin, Truncation.NOTHING)
                    letters.append(GivenUpMessage(item.record, letter, cut))
                else:
                    if item.more and item.more.request and item.more.request.kind is ReplayKind.PAUSE:
                        self._cut_chunks(owned)
                    answers.append(_answer(owned, item))
        return letters, answers

    def _due(self, queues: list[OwnedPartition]) -> list[tuple[OwnedPartition, list[Item[Any]]]]:
        """The due ends for one Kafka transaction, beginning with the queue that waits longest; answers and dead letters in turn."""
        now_ms = self._now_ms()
        found = [
            (owned, p) for owned in queues for p in _due_sources(owned) if self._failed_tries.until_ms(p) <= now_ms
        ]
        answers = [each for each in found if each[1] == each[0].replay_partition]
        letters = [each for each in found if each[1] == each[0].topic_partition]
        of_requests = bool(answers) and not (letters and self._were_answers)
        self._were_answers = of_requests
        count_max = self._size.of(END_COUNT_MAX * max(1, len(queues)))
        bytes_max = self._size.of(DUE_BYTES_MAX)
        due: list[tuple[OwnedPartition, list[Item[Any]]]] = []
        chosen = answers if of_requests else letters
        for owned, tp in sorted(chosen, key=lambda each: self._turns.get(each[1], 0)):
            is_alone = tp in self._failed_tries
            if is_alone and due:
                continue
            items = owned.queue.take_due(min(END_COUNT_MAX, count_max), bytes_max=bytes_max, of_requests=of_requests)
            if items:
                due.append((owned, items))
                self._turn += 1
                self._turns[tp] = self._turn
            count_max -= len(items)
            bytes_max -= sum(map(letter_bytes, items))
            if count_max <= 0 or bytes_max <= 0 or (is_alone and items):
                break
        return due

    def _failed(self, due: list[tuple[OwnedPartition, list[Item[Any]]]], *, took_ms: int) -> None:
        """Delay these queues, as their ends could not be written: by the time it took, longer if they cannot be fewer.

        If it took too long, the next Kafka transaction holds fewer ends, or fewer bytes.
        """
        for owned, items in due:
            tp = _source_of(owned, items)
            self._failed_tries.failed(tp, took_ms=took_ms, is_again=len(items) == 1)
        items = [item for _, found in due for item in found]
        size_bytes = sum(map(letter_bytes, items))
        # The broker aborts a Kafka transaction that lasts too long; its writer then gets a fencing error.
        if took_ms < self._long_ms or len(items) == 1:
            return
        for _ in range(HALVINGS_MAX):
            self._size.failed()
            if self._size.of(END_COUNT_MAX * len(due)) < len(items) or self._size.of(DUE_BYTES_MAX) < size_bytes:
                return

    def _not_written(self, due: list[tuple[OwnedPartition, list[Item[Any]]]]) -> None:
        for owned, items in due:
            owned.queue.not_written(items)

    def _cut_refused(self, refused: list[GivenUpMessage], reason: TxLayerError) -> bool:
        """Cut refused dead letters; returns False if there are none."""
        for given_up in refused:
            origin = given_up.letter.origin
            if given_up.cut is Truncation.KEY_TOO:
                raise ConfigError(
                    f"the dead-letter topic refuses {origin.topic}-{origin.partition}@{origin.offset} even without its "
                    f"key and content: {reason}",
                    name="dead-letter topic",
                    value=dead_letter_topic(self._group, origin.topic),
                    expected="one that takes two short headers",
                ) from reason
            is_first = given_up.cut is Truncation.NOTHING
            self._cut[origin] = Truncation.CONTENT if is_first else Truncation.KEY_TOO
            if len(self._cut) > CUT_COUNT_MAX:
                del self._cut[next(iter(self._cut))]
            logger.error(
                "dead_letter.refused",
                extra={
                    "group": self._group,
                    "topic": origin.topic,
                    "partition": origin.partition,
                    "offset": origin.offset,
                    "size_bytes": len(given_up.record),
                    "reason": str(reason),
                },
            )
        return bool(refused)

    def _log_letter(self, owned: OwnedPartition, item: Item[Any], offset: int | None) -> None:
        """Log a dead letter as an error for an operator; those that follow a parked key's first one at a lower level."""
        reason, more = _end_of(item), item.more
        assert more is not None
        is_follower = reason is DeadLetterReason.KEY_PARKED
        letters = dead_letter_topic(self._group, owned.topic)
        logger.log(
            logging.INFO if is_follower else logging.ERROR,
            "message.given_up" if offset is None else "message.dead_lettered",
            extra=owned.log_fields
            | {
                "offset": item.offset,
                "reason": reason.value,
                "attempt_count": more.attempt_count,
                "error_type": more.error_type,
            }
            | ({} if offset is None else {"dead_letter_topic": letters, "dead_letter_offset": offset}),
        )

    def _letter(self, owned: OwnedPartition, item: Item[Any]) -> DeadLetter:
        more, reason = item.more, _end_of(item)
        assert more is not None
        assert isinstance(reason, DeadLetterReason)
        return DeadLetter(
            reason,
            Origin(*owned.topic_partition, item.offset),
            max(item.record.timestamp()[1], 0),
            more.attempt_count,
            more.first_ms,
            more.last_ms,
            more.error_type,
            more.error_message,
            self._group,
        )


def _due_sources(owned: OwnedPartition) -> list[TopicPartition]:
    """The sources of a queue that have due ends; the ends of each are written separately."""
    return [owned.partition_of(source) for source in owned.queue.due_sources]


def _source_of(owned: OwnedPartition, items: list[Item[Any]]) -> TopicPartition:
    return owned.partition_of(items[0].source)


def _end_of(item: Item[Any]) -> DeadLetterReason | ReplayOutcome:
    if item.more is None or item.more.end is None:
        raise InvariantError("an end is due, and nobody said which")
    return item.more.end


def _answer(owned: OwnedPartition, item: Item[Any]) -> Answered:
    more, outcome = item.more, _end_of(item)
    assert more is not None
    assert more.request is not None
    assert isinstance(outcome, ReplayOutcome)
    request = more.request
    detail = ""
    if outcome is ReplayOutcome.FAILED:
        detail = f"{more.attempt_count} attempts, {more.error_type}: {more.error_message}"
    result = ReplayRecord(ReplayKind.RESULT, request.request_id, request.dead_letter_offset, outcome, detail)
    return Answered(owned.topic, owned.partition, item.record.key(), result)


READ_COUNT_MAX = 5_000
"""Records of one read; it limits how long results wait meanwhile."""
IDLE_WAIT_S = 0.1
"""How long an idle read waits; a record ends the wait."""
BUSY_WAIT_S = 0.005
"""How long the engine waits for handlers before it looks for records again; half a chunk, if that is longer and no worker is
free: then only an outcome lets a job start, and it ends the wait."""
READY_FACTOR = 4
"""Reading goes on while fewer than this many times `in_flight_max` messages could start."""
AHEAD_FACTOR = 10
"""Records in memory, in multiples of `in_flight_max`; beyond it only a consumer with too few runnable messages reads on. Records
used long after they were read have left the processor's caches, and an empty handler then costs a quarter more."""
FILLED_SHARE = 0.9
"""The share of `in_flight_max` that counts as filled: the last slots may wait for failed keys that return by themselves, and
reading on for them would fill the memory."""
STORING_WAIT_S = 0.002
"""The same during a store: next attempts wait for its acknowledgement."""
DRAIN_LOOK_S = 0.02
"""How often a drain serves the group."""
POOL_END_S = 0.5
"""How long the pool may take to end after handlers in flight were given up."""


class Engine:
    """Owns one group member and the queues of its partitions.

    Args:
        plan: what is consumed, and how.
        connections: the cluster.
        pool: where handlers run.
        make_leases: makes the lease keeper, which decides whether a queue may be processed; called again after it failed.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        plan: ConsumerPlan,
        *,
        connections: ConsumerConnections,
        pool: Pool,
        make_leases: Callable[[], LeaseKeeper],
        environment: Environment = REAL,
    ) -> None:
        self._config = config
        self._plan = plan
        self._connections = connections
        self._pool = pool
        self._environment = environment
        self._clock = environment.clock
        self._wall_base = environment.wall_clock() - environment.clock()
        self._is_ending = False
        self.rebuild_count = 0
        self._turned_at: float | None = None
        self._reader = connections.make_group_reader(plan.group)
        self._storer = OffsetStorer(
            self._reader,
            interval_s=config.store_interval.total_seconds(),
            timeout_s=config.store_timeout.total_seconds(),
            clock=self._clock,
            is_kept=plan.keeps_position,
        )
        self._dispatcher = Dispatcher(
            pool,
            in_flight_max=config.in_flight_max,
            clock=self._clock,
            now_ms=self._now_ms,
            draw=environment.draw,
            key_group=plan.key_group,
            breakers={topic: Breaker(policy) for topic, policy in plan.breakers.items()},
        )
        self._assignments = Assignments(
            config,
            plan,
            connections=connections,
            reader=self._reader,
            make_leases=make_leases,
            storer=self._storer,
            dispatcher=self._dispatcher,
            chunk_s=pool.chunk_s,
            environment=environment,
            now_ms=self._now_ms,
        )
        self._letters = DeadLetterReader(connections, clock=self._clock)
        self._ingest = Ingest(
            group=plan.group, letters=self._letters, now_ms=self._now_ms, known_end=self._reader.known_end
        )
        timeout_ms = milliseconds(config.kafka_transaction_timeout)
        self._completions = Completions(
            group=plan.group, now_ms=self._now_ms, cut=self._dispatcher.cut, kafka_transaction_timeout_ms=timeout_ms
        )
        self._read_limits = ReadLimits(
            self._reader, record_count_max=config.record_count_max, record_bytes_max=config.record_bytes_max
        )

    # --- life ---------------------------------------------------------------------------------------------------------

    def run(self, *, should_stop: Callable[[], bool]) -> None:
        """Work until `should_stop`, then let handlers end, store what ended, and leave the group.

        Raises:
            UsageError: topics, settings or stored offsets are not valid.
            BrokerUnavailableError: no broker answered at the start.
            InstanceFencedError: another process has the same `instance_id`. What is stored is correct.
            InvariantError: a bug in txlayer; what is stored is correct.
        """
        failure_count = 0
        try:
            self.start()
            while not should_stop():
                try:
                    self.turn()
                    failure_count = 0
                except (UsageError, InstanceFencedError, InvariantError):
                    raise
                except TxLayerError as exc:
                    failure_count += 1
                    self._start_over(exc, failure_count)
            self._end()
        finally:
            self.close()

    def start(self) -> None:
        """Check the topics and join the group; retries until `start_timeout` while the cluster is starting.

        Raises:
            TopicMismatchError: a topic is missing, or topics that belong together have different partition counts.
            RetriableError, NotAuthorisedError: the cluster gave no answer.
        """
        timeout_s = self._config.start_timeout.total_seconds()
        give_up_at = self._clock() + timeout_s
        while True:
            self._connections.wait_until_reachable(self._plan.topics[0], timeout_s=timeout_s)
            try:
                check_topics(self._connections, self._plan)
                self._assignments.start()
                break
            except RetriableError as exc:  # also a leader that just moved and cannot report the end of its log yet
                if self._clock() >= give_up_at:
                    raise
                reason = {"group": self._plan.group, "reason": str(exc)}
                logger.warning("consumer.waiting", extra=reason)
        self._pool.start()
        self._reader.start(self._plan.sources, on_revoke=self._on_revoke)

    def _end(self) -> None:
        """Let running handlers end, and store their results while the member is in the group."""
        try:
            self._drain(self._config.close_timeout.total_seconds(), serve=self._serve_group)
        except (UsageError, InvariantError):
            raise
        except TxLayerError as exc:
            # The session is over, or no broker answers: the next owner repeats what is not stored.
            logger.warning("consumer.end_not_stored", extra={"group": self._plan.group, "reason": str(exc)})

    def turn(self) -> None:
        """One round; if there is nothing to do, it waits for at most `IDLE_WAIT_S`.

        Raises:
            TxLayerError: the queues must be rebuilt.
        """
        assignments, dispatcher = self._assignments, self._dispatcher
        self._turned_at = self._clock()
        records = self._reader.read(record_count_max=self._read_count(), timeout_s=self._read_s())
        reached = self._reader.take_reached()
        if not assignments.take_rebalance():
            # Before anything else is read: a take-over reads on, and records that are added late count as ended.
            self._add(records, reached)
        assignments.look_at_leases(self._serve_take_over)
        dispatcher.take()
        self._storer.look()
        self._write_letters_and_answers()
        owned = assignments.owned.values()
        count_max, bytes_max = self._read_limits.share(len(owned))
        self._ingest.add_waiting(owned, count_max=count_max, bytes_max=bytes_max)
        dispatcher.begin(owned)
        # Also while more ends are due: the other queues must not wait until all are written.
        self._storer.begin(owned)
        self._read_limits.apply(owned)
        now = self._clock()
        for tally in assignments.tallies.values():
            tally.roll(now)
        assignments.note_log_ends(now)
        if dispatcher.in_flight_count:
            dispatcher.wait(min(self._busy_wait_s(), self._next_s()))

    def close(self) -> None:
        """Store what ended, leave the group and close everything. Results of handlers that still run are discarded."""
        self._is_ending = True
        with ExitStack() as ending:  # from the last one on, also if one raises
            ending.callback(self._connections.close)
            ending.callback(self._pool.close, POOL_END_S)
            ending.callback(self._letters.close)
            ending.callback(self._assignments.close)
            ending.callback(self._reader.close)  # calls `_on_revoke`, which stores

    def stats(self) -> ConsumerStats:
        """The consumer's figures; thread-safe."""
        owned = list(self._assignments.owned.values())
        now_ms = self._now_ms()
        return ConsumerStats(
            topics={
                topic: _topic_stats(
                    tally,
                    [o for o in owned if o.topic == topic],
                    now_ms,
                    self._assignments.ends,
                    self._dispatcher.breakers.get(topic),
                )
                for topic, tally in self._assignments.tallies.items()
            },
            partitions=tuple(sorted(o.topic_partition for o in owned)),
            rebuild_count=self.rebuild_count,
            stale_count=self._dispatcher.stale_count,
            assigned_count=self._assignments.assigned_count,
            rebalance_count=self._assignments.rebalance_count,
            lost_lease_count=self._assignments.lost_lease_count,
            replaced_count=self._assignments.replaced_count,
            turned_at=self._turned_at,
            hung_count=self._pool.hung_count,
            hung_count_max=self._config.hung_handlers_max,
        )

    # --- how long to wait ---------------------------------------------------------------------------------------------

    def _read_count(self) -> int:
        in_flight_max = self._config.in_flight_max
        found = [owned.queue for owned in self._assignments.owned.values()]
        ready = sum(queues.ready_count for queues in found)
        busy_count = min(int(in_flight_max * FILLED_SHARE), self._pool.busy_count)
        has_enough = ready >= READY_FACTOR * in_flight_max or (
            ready + self._dispatcher.in_flight_count >= busy_count
            and sum(queues.count for queues in found) >= AHEAD_FACTOR * in_flight_max
        )
        # With enough runnable messages, read only as much as serving the group requires.
        return 1 if has_enough else READ_COUNT_MAX

    def _read_s(self) -> float:
        if self._dispatcher.in_flight_count:
            return 0.0  # results wake the engine, not records
        return min(STORING_WAIT_S if self._storer.is_under_way else IDLE_WAIT_S, self._next_s())

    def _next_s(self) -> float:
        """Seconds until the next action that no event triggers."""
        at, now, now_ms = FOR_EVER, self._clock(), self._now_ms()
        # At `in_flight_max` nothing starts even if workers are free; only an outcome changes that.
        has_room = self._dispatcher.in_flight_count < self._config.in_flight_max
        has_workers = has_room and self._pool.free_count() > 0
        for owned in self._assignments.owned.values():
            queues = owned.queue
            if queues.has_due and not self._storer.is_under_way:
                # Otherwise its end cannot be written before the acknowledgement.
                at = min(at, self._completions.not_before_ms(owned) / 1000 - self._wall_base)
            may_begin = has_workers and not queues.is_paused and owned.lease.valid_until > now
            breaker = self._dispatcher.breakers.get(owned.topic)
            not_before_ms = max(queues.suspended_until_ms, 0 if breaker is None else breaker.next_at_ms)
            if may_begin and queues.ready_count and not queues.is_full:
                if not_before_ms <= now_ms:
                    return 0.0
                at = min(at, not_before_ms / 1000 - self._wall_base)
            if may_begin and queues.next_retry_at_ms is not None:
                at = min(at, max(queues.next_retry_at_ms, not_before_ms) / 1000 - self._wall_base)
            if not self._storer.is_under_way and any(map(queues.is_changed, ItemSource)):
                at = min(at, self._storer.next_at)
        return max(at - now, 0.0)

    def _busy_wait_s(self) -> float:
        has_free_workers = self._pool.free_count() > 0
        return BUSY_WAIT_S if has_free_workers else max(BUSY_WAIT_S, self._pool.chunk_s / 2)

    def _has_due(self) -> bool:
        return any(map(self._completions.has_due, self._assignments.owned.values()))

    def _now_ms(self) -> int:
        # The wall clock at the start plus monotonic time: back-offs do not jump with the machine's clock.
        return int((self._wall_base + self._clock()) * 1000)

    # --- dead letters -------------------------------------------------------------------------------------------------

    def _write_letters_and_answers(self) -> None:
        if self._plan.is_broadcast:
            self._completions.drop(self._assignments.owned.values())
            return
        # The last append wins at the broker: during a store, no Kafka transaction may store the same offsets.
        if self._storer.is_under_way or not self._has_due():
            return
        assignments = self._assignments
        if assignments.writer is None or assignments.assignment is None:
            raise InvariantError("a dead letter is due, and nobody is there to write it")
        try:
            self._completions.write(assignments.owned.values(), assignments.writer, assignments.assignment.member)
        except (UsageError, InvariantError):
            raise
        except TxLayerError as exc:
            if not assignments.writer.has_sent_nothing:
                raise
            # The queues know what is due, and none of it was stored: only the writer is of no use any more.
            extra = {"group": self._plan.group, "reason": str(exc)}
            logger.warning("dead_letters.not_written", extra=extra)
            assignments.replace_writer()

    # --- serving the group --------------------------------------------------------------------------------------------

    def _serve_take_over(self) -> None:
        """Serve the group during a take-over; records that arrive belong to the other queues."""
        records = self._reader.read(record_count_max=READ_COUNT_MAX, timeout_s=0.0)
        reached = self._reader.take_reached()
        self._assignments.raise_if_rebalanced()
        self._add(records, reached)

    def _add(self, records: Sequence[Any], reached: Mapping[TopicPartition, int]) -> None:
        if records:
            self._ingest.add(records, self._assignments.by_source)
        if reached:
            self._ingest.reach(reached, self._assignments.by_source)

    def _serve_group(self) -> None:
        """Serve the group, keep the leases and store results while the last handlers end; start nothing new."""
        self._reader.read(record_count_max=1, timeout_s=0.0)
        self._assignments.take_rebalance()
        self._assignments.keep_leases()
        self._storer.look()
        self._storer.begin(self._assignments.owned.values())

    def _on_revoke(self, is_lost: bool) -> None:  # noqa: FBT001 - the port's
        """Called from within a read: store what has ended before the group continues without these partitions."""
        assignments = self._assignments
        try:
            if assignments.owned and not is_lost:
                if not self._is_ending:
                    self._drain(self._config.revoke_timeout.total_seconds())
                self._dispatcher.take()
                self._storer.store_now(assignments.owned.values(), timeout_s=self._config.store_timeout.total_seconds())
        finally:
            assignments.revoke()

    def _drain(self, timeout_s: float, *, serve: Callable[[], None] = lambda: None) -> None:
        """Start nothing more and wait for the running handlers; give up those that do not end in time."""
        dispatcher, give_up_at = self._dispatcher, self._clock() + timeout_s
        in_flight = dispatcher.cut()
        while self._assignments.owned and dispatcher.in_flight_count and self._clock() < give_up_at:
            self._plan.give_back()
            serve()
            dispatcher.wait(min(DRAIN_LOOK_S, max(give_up_at - self._clock(), 0.0)))
            dispatcher.take()
        if in_flight:
            logger.info(
                "handlers.drained",
                extra={"group": self._plan.group, "in_flight": in_flight, "given_up": dispatcher.in_flight_count},
            )

    # --- errors -------------------------------------------------------------------------------------------------------

    def _start_over(self, reason: TxLayerError, failure_count: int) -> None:
        logger.warning(
            "consumer.rebuild", extra={"group": self._plan.group, "reason": str(reason), "failure_count": failure_count}
        )
        self.rebuild_count += 1
        self._assignments.give_up()
        wait_before_rebuild(
            reason,
            failure_count=failure_count,
            session_timeout_s=self._config.session_timeout.total_seconds(),
            serve_group=self._serve_rebalance,
            environment=self._environment,
            logger=logger,
        )

    def _serve_rebalance(self, wait_s: float) -> bool:
        """Serve the group while nothing is owned. True if it revoked or assigned something."""
        self._reader.read(record_count_max=1, timeout_s=wait_s)
        self._dispatcher.take()
        return self._assignments.take_rebalance()


def _topic_stats(
    tally: TopicCounts,
    owned: list[OwnedPartition],
    now_ms: int,
    ends: Mapping[TopicPartition, int],
    breaker: Breaker | None,
) -> TopicStats:
    figures = [o.queue.figures() for o in owned]
    added = [f.oldest_added_ms for f in figures if f.oldest_added_ms is not None]
    in_flight = sum(f.in_flight_count for f in figures)
    return TopicStats(
        handled=tally.handled,
        failed=tally.failed,
        dead_lettered=tally.dead_lettered,
        passed_over=tally.passed_over,
        rate=tally.rate,
        attempt_ms=tally.mean_ms,
        in_flight=in_flight,
        waiting=sum(f.unfinished_count for f in figures) - in_flight,
        retrying=sum(f.retry_count for f in figures),
        parked_keys=sum(f.parked_count for f in figures),
        oldest_ms=max(now_ms - min(added), 0) if added else 0,
        paused_partitions=sum(
            o.is_reading_paused or f.is_paused or f.is_full or o.queue.suspended_until_ms > now_ms
            for o, f in zip(owned, figures, strict=True)
        ),
        handled_by_key_group=dict(tally.by_key_group),
        attempts=tally.attempt_count,
        attempt_s=tally.durations.total,
        attempt_durations=tally.durations.view(),
        timed_out=tally.timed_out,
        postponed=tally.postponed,
        failed_rate=tally.failed_rate,
        breaker="" if breaker is None else breaker.state.value,
        breaker_is_open=breaker is not None and not breaker.is_closed,
        breaker_opened=0 if breaker is None else breaker.opened_count,
        unread=sum(
            max(ends[o.topic_partition] - o.next_offsets[o.topic_partition], 0)
            for o in owned
            if o.topic_partition in ends
        ),
    )
