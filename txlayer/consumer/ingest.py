"""What is read becomes items of queues: messages, requests to replay dead letters, and how much is read ahead."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from txlayer.adapters.ports import Record, RecordView, StoringGroupReader, TopicPartition
from txlayer.adapters.telemetry import Log
from txlayer.consumer.context import size_in_memory
from txlayer.consumer.dead_letters import SEARCH_S, DeadLetterReader, PauseSearch, ResultSearch
from txlayer.consumer.offsets import FailedTries, OwnedPartition
from txlayer.core.dead_letters import (
    ANSWERED_COUNT_MAX,
    AnsweredRequests,
    DeadLetter,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_of,
    dead_letter_topic,
    decode_replay,
    is_cut,
    original_headers,
)
from txlayer.core.key_queue import ItemSource, PartitionQueue
from txlayer.core.messages import Headers, Undecodable
from txlayer.errors import ForbiddenTopicError, NotAuthorisedError, RetriableError

logger = Log("txlayer.consumer")

LETTER_COUNT_MAX = 500
"""Dead letters that are read again together; all of them are in memory at once, within the byte limit."""
LOOK_FOR_ROOM_MS = 60_000
"""How often a partition without room to park a key looks whether retention has removed the dead letters of parked ones."""

LOOK_FOR_RESUME_MS = 1_000
"""How often a paused partition whose requests wait for room looks for the end of the pause behind them."""


class DeadLetterRecord(RecordView):
    """A dead letter in the form of its original record: topic, offset, time and headers are the original's."""

    __slots__ = ("_letter",)

    def __init__(self, record: Record, letter: DeadLetter) -> None:
        super().__init__(record)
        self._letter = letter

    def topic(self) -> str:
        return self._letter.origin.topic

    def partition(self) -> int:
        return self._letter.origin.partition

    def offset(self) -> int:
        return self._letter.origin.offset

    def headers(self) -> Headers:
        return original_headers(self._record.headers())

    def timestamp(self) -> tuple[int, int]:
        return self._record.timestamp()[0], self._letter.origin_ms


class Ingest:
    """Adds records to queues. The engine's thread uses it."""

    def __init__(self, *, group: str, letters: DeadLetterReader, now_ms: Callable[[], int]) -> None:
        self._group = group
        self._letters = letters
        self._now_ms = now_ms
        self._failed_tries = FailedTries(now_ms)  # of queues whose dead letters could not be read
        self._stopped_at: TopicPartition | None = None  # the queue at which the last call gave up

    def add(self, records: Sequence[Any], by_source: Mapping[TopicPartition, OwnedPartition]) -> None:
        """Add records of these queues' sources, in the order of their offsets; records of other queues are dropped.

        Raises:
            RetriableError: later records were added before, so these would count as ended. Drop the queues.
        """
        by_partition: dict[TopicPartition, list[Any]] = {}
        topic, partition, in_partition = "", -1, []
        for record in records:
            if record.partition() != partition or record.topic() != topic:
                topic, partition = record.topic(), record.partition()
                in_partition = by_partition.setdefault((topic, partition), [])
            in_partition.append(record)
        for tp, found in by_partition.items():
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

        A request that ends an operator's pause takes effect before its turn. If no more keys can be parked, requests are read
        until one can make room.

        If dead letters cannot be read now, the requests of their queue wait; the other queues go on. One call makes at most one
        try that fails, looks for results in at most one queue, and stops after about `SEARCH_S`: leases, the group and outcomes
        must be served in between.

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
            except (RetriableError, ForbiddenTopicError, NotAuthorisedError) as exc:  # of their topic alone
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
        """Release parked keys whose dead letters are not there any more: no request can."""
        there = self._letters.offset_range(dead_letter_topic(self._group, owned.topic), owned.partition)
        owned.look_at_ms = self._now_ms() + LOOK_FOR_ROOM_MS
        count = owned.queue.forget_parked(there)
        if count:
            logger.warning("keys.released", extra=owned.log_fields | {"key_count": count})

    def _add_while_there_is_room(
        self, owned: OwnedPartition, *, count_max: int, bytes_max: int, give_up_at_ms: int
    ) -> None:
        queues = owned.queue
        while owned.requests:
            room_bytes = bytes_max - queues.replay_bytes
            is_near = owned.requests[0][0].offset() < _end(queues)
            has_room = room_bytes > 0 and queues.replay_count < count_max and is_near
            if not (has_room or queues.needs_requests):
                if queues.is_paused:
                    self._look_for_resume(owned)
                break
            self._add_requests(owned, bytes_max=room_bytes if has_room else bytes_max)
            if not owned.requests and owned.reached > 0:
                queues.reach(ItemSource.REPLAY, owned.reached)
                owned.reached = 0
            if self._now_ms() >= give_up_at_ms:
                break

    def _look_for_resume(self, owned: OwnedPartition) -> None:
        """End an operator's pause if a request behind those that wait does: nothing is handled before, and nothing makes room."""
        search = owned.pause_search = owned.pause_search or PauseSearch(owned.requests[0][0].offset())
        if self._now_ms() < search.look_at_ms:
            return
        if self._letters.look_for_pause(*owned.replay_partition, search):
            search.look_at_ms = self._now_ms() + LOOK_FOR_RESUME_MS
            if not search.is_paused:
                owned.queue.end_pause()

    def _look_for_results(self, owned: OwnedPartition) -> bool:
        """Go on finding out which requests have ended, if that is not known; True if their topic had to be read for it.

        Their results may be behind what was read. The end that a fetch reports does not tell: that of a new leader may be too low.
        """
        if owned.queue.knows_replays or not owned.requests:
            return False
        if owned.search is None:
            answered = AnsweredRequests(with_pauses=owned.queue.had_progress)
            owned.search = ResultSearch(owned.requests[0][0].offset(), answered)
        if self._letters.look_for_results(*owned.replay_partition, owned.search):
            owned.queue.learn_answered(owned.search.found.runs)
            owned.search = None
        return True

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
        """Add the first waiting request, and those after it before `_end` whose dead letters fit."""
        end = _end(owned.queue)
        requests = list(islice(owned.requests, LETTER_COUNT_MAX))
        topic = dead_letter_topic(self._group, owned.topic)
        wanted = sorted({offset for _, request in requests if (offset := _offset_to_read(request)) is not None})
        letters: Mapping[int, Record | None] = {}
        if wanted:
            letters = self._letters.fetch(topic, owned.partition, wanted, bytes_max=bytes_max)
        for index, (record, request) in enumerate(requests):
            if index and record.offset() >= end:
                return
            offset = _offset_to_read(request)
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
            extra = {"topic": owned.topic, "partition": owned.partition, "offset": offset, "reason": request.why}
            logger.warning("replay.undecodable", extra=extra)
        elif request.kind is not ReplayKind.RESULT:
            content: Any = None
            outcome: ReplayOutcome | None = None
            if request.kind is ReplayKind.REPLAY:
                content, outcome = self._content_or_outcome(owned, request, record.key(), letters)
            kept = record if content is None else content  # also its key, which is the same
            size_bytes = size_in_memory(kept, kept.key())
            owned.queue.add_replay(
                request, offset=offset, key=kept.key(), record=kept, size_bytes=size_bytes, outcome=outcome
            )
            return
        owned.queue.reach(ItemSource.REPLAY, offset + 1)

    def _content_or_outcome(
        self, owned: OwnedPartition, request: ReplayRecord, key: bytes | None, letters: Mapping[int, Record | None]
    ) -> tuple[DeadLetterRecord | None, ReplayOutcome | None]:
        found = letters.get(request.dead_letter_offset or 0)
        letter = None if found is None else dead_letter_of(found.headers())
        if found is None or not isinstance(letter, DeadLetter):
            return None, ReplayOutcome.MISSING
        if letter.consumer_group != self._group or letter.origin[:2] != owned.topic_partition:
            return None, ReplayOutcome.MISSING  # another group's dead letter has the same form
        if found.key() != key:
            return None, ReplayOutcome.MISSING  # it would be handled beside the messages of its key
        content = DeadLetterRecord(found, letter)
        if owned.route.handler_of(content) is None or is_cut(found.headers(), found.value()):
            return None, ReplayOutcome.UNKNOWN  # later ones of its parked key wait, until it is dropped
        return content, None


def _end(queue: PartitionQueue[Any]) -> int:
    """Requests from this offset on wait: their results would be further behind the lowest request than a search remembers."""
    return queue.lowest_replay + ANSWERED_COUNT_MAX


def _offset_to_read(request: ReplayRecord | Undecodable) -> int | None:
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
