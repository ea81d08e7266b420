"""Dead letters: written with their offsets in one Kafka transaction, and read again for replays.

Each assignment uses a new writer name, as in the coordinator, and stores it in the offset metadata before the first
write. The next owner of a queue therefore knows the name, and ends what the former owner left open (`assignments.py`).
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from txlayer.adapters.connect import ConsumerConnections, CoordinatorConnections
from txlayer.adapters.ports import LogReader, Record, StoredOffset, TopicPartition
from txlayer.adapters.readers import Range, records_of, runs_of
from txlayer.consumer.context import ReceivedMessage, size_in_memory
from txlayer.core.dead_letters import (
    DLQ_CUT_HEADER,
    DLQ_HEADER,
    AnsweredRequests,
    DeadLetter,
    ReplayKind,
    ReplayRecord,
    dead_letter_topic,
    decode_replay,
    encode_dead_letter,
    encode_replay,
    replay_topic,
)
from txlayer.core.key_queue import PARTITION_REQUESTS
from txlayer.core.messages import HEADERS_READ_MAX, Undecodable
from txlayer.errors import InvariantError, RetriableError, TxLayerError
from txlayer.runtime.kafka_transactions import Entry, Fence, KafkaTransactions, WriterConnections


class Truncation(Enum):
    """The parts of a dead letter that are left out because its topic refuses the whole record."""

    NOTHING = "nothing"  #: the whole record is written
    CONTENT = "content"  #: without value and headers
    KEY_TOO = (
        "key-too"  #: without key, value and headers: a key that compressed well at its origin may be too large here
    )


class GivenUpMessage(NamedTuple):
    """A message that becomes a dead letter: its record as it was read, and the reason."""

    record: Record
    letter: DeadLetter
    cut: Truncation = Truncation.NOTHING


class Answered(NamedTuple):
    """The result of a replay request, as a record for the replay topic of `topic`."""

    topic: str
    partition: int
    key: bytes | None  # of the request
    result: ReplayRecord


OffsetsOf = Callable[[list[int]], Mapping[TopicPartition, StoredOffset]]
"""Maps the offsets of the dead letters just written to what is stored with them. A parked key's metadata hold its last one."""


class DeadLetterWriter(KafkaTransactions):
    """The Kafka transactions that write the dead letters and answers of one assignment, under a `name` drawn for it, which is stored
    for every partition before the first of them. Its producer is made then: most consumers write no dead letter. Not thread-safe.
    """

    def __init__(self, connections: WriterConnections, *, group: str, **given: Any) -> None:
        super().__init__(connections, **given)
        self._group = group

    def write_letters(
        self, letters: Sequence[GivenUpMessage], answers: Sequence[Answered] = (), *, offsets: OffsetsOf, member: Any
    ) -> list[int]:
        """Append dead letters and results, and store offsets, in one Kafka transaction; returns the dead letters' offsets.

        A dead letter has key, value and headers of its record, followed by the header `txl-dlq`. It goes to the
        dead-letter topic of its origin, to the same partition. `offsets` is called when all are acknowledged.

        Raises:
            RefusedRecordError, ForbiddenTopicError: a topic is missing or does not accept the record.
            TxLayerError: anything else. In each case this writer refuses every further call. If it `has_sent_nothing`,
                nothing is stored and nothing will be: write the same with another writer. Otherwise the outcome is
                unknown: take the queues over again with `stable_offsets`, with this name among the former writers. The
                stored offsets then show the outcome, and what was not stored is in no dead-letter topic.
            LifecycleError: an earlier call failed; nothing was written.
        """
        entries = [*map(self._dead_letter, letters), *map(self._answer, answers)]

        def fence(written_at: list[int]) -> Fence:
            wanted = offsets(written_at[: len(letters)])
            if not wanted:
                # Without offsets its records would not be fenced by the group.
                raise InvariantError("a Kafka transaction of dead letters that stores no offset")
            return Fence(wanted, member)

        return self.write(entries, fence=fence)[: len(letters)]

    def _dead_letter(self, given_up: GivenUpMessage) -> Entry:
        record, letter, cut = given_up
        topic, partition = dead_letter_topic(self._group, letter.origin.topic), letter.origin.partition
        headers = record.headers() or ()
        # Its own header is one more than those of its message.
        if cut is not Truncation.NOTHING or len(headers) >= HEADERS_READ_MAX:
            key, size_bytes = record.key(), len(record)
            if cut is Truncation.KEY_TOO:
                key, size_bytes = None, size_bytes + len(key or b"")
            sender = ReceivedMessage(record)
            letter = letter._replace(txn_id=sender.txn_id or "", producer_group=sender.producer_group or "")
            left = [(DLQ_CUT_HEADER, b"%d" % size_bytes), (DLQ_HEADER, encode_dead_letter(letter))]
            return Entry(topic, partition, key, None, left)
        own = (DLQ_HEADER, encode_dead_letter(letter))
        return Entry(topic, partition, record.key(), record.value(), [*headers, own])

    def _answer(self, answer: Answered) -> Entry:
        topic = replay_topic(self._group, answer.topic)
        return Entry(topic, answer.partition, answer.key, encode_replay(answer.result))


PATIENCE_S = 10.0  # without a record for this long, the broker counts as unreachable
SEARCH_S = 0.25
"""How long one call may read once records arrive: the group and the leases must be served between two calls."""


@dataclass(slots=True)
class ResultSearch:
    """How far results of the requests of one queue were looked for. It ends with the ownership of the queue."""

    next_offset: int
    found: AnsweredRequests
    end: int | None = None
    """The end of the partition at the first call: later results can only be those of the queue's owner."""

    def fold(self, offset: int, request: ReplayRecord) -> None:
        self.found.fold(offset, request)


@dataclass(slots=True)
class PauseSearch:
    """Whether a paused partition still is, behind the requests that were looked at."""

    next_offset: int
    look_at_ms: int = 0  # when to look at what came since
    is_paused: bool = True

    def fold(self, _offset: int, request: ReplayRecord) -> None:
        if request.kind in PARTITION_REQUESTS:
            self.is_paused = request.kind is ReplayKind.PAUSE


def _hidden(tp: TopicPartition, offset: int) -> RetriableError:
    return RetriableError(f"{tp[0]}-{tp[1]}@{offset}: an open Kafka transaction hides what is there")


class DeadLetterReader:
    """Reads dead letters of one consumer again: committed records, without a group. Not thread-safe."""

    def __init__(
        self,
        connections: ConsumerConnections | CoordinatorConnections,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._patience_s = patience_s
        self._clock = clock
        self._reader: LogReader | None = None

    def fetch(
        self, topic: str, partition: int, offsets: Collection[int], *, bytes_max: int | None = None
    ) -> dict[int, Record | None]:
        """The records at these offsets of one partition; None for an offset without a record.

        It reads them in one sweep in offset order, because a seek for each would cost 1.2 ms. All of them are in memory
        at once, so the caller limits their number or their bytes: the record that reaches `bytes_max` is the last, and
        the rest is left out. With `bytes_max` the rest is also left out after `SEARCH_S`. What an open Kafka transaction hides
        is left out, too.

        Raises:
            RetriableError: all of them are hidden, and there is no `bytes_max`.
            TxLayerError: the partition could not be read; you may call it again.
        """
        found: dict[int, Record | None] = dict.fromkeys(offsets)
        tp = (topic, partition)
        first = self._connections.start_offsets([tp])[tp]
        end = self._connections.end_offsets([tp])[tp]
        if any(offset >= end for offset in found):
            hidden = range(end, self._connections.end_offsets([tp], is_committed=False)[tp])
            found = {offset: None for offset in found if offset not in hidden}
            if not found and bytes_max is None:
                raise _hidden(tp, end)

        size_bytes = 0
        is_over = self._stop_watch()
        there = [(offset, offset + 1) for offset in found if first <= offset < end]
        for run in runs_of(there):
            for record in self._records({tp: run}):
                is_late = is_over() and size_bytes > 0
                is_full = record.offset() in found and bytes_max is not None and size_bytes >= bytes_max
                if is_full or (is_late and bytes_max is not None):
                    return {offset: letter for offset, letter in found.items() if offset < record.offset()}
                if record.offset() in found:
                    found[record.offset()] = record
                    size_bytes += size_in_memory(record, record.key())
        return found

    def offset_range(self, topic: str, partition: int) -> range:
        """The offsets at which dead letters may be, also those that an open Kafka transaction hides.

        Raises:
            TxLayerError: the cluster did not answer; you may call it again.
        """
        tp = (topic, partition)
        first = self._connections.start_offsets([tp])[tp]
        return range(first, self._connections.end_offsets([tp], is_committed=False)[tp])

    def look_for_results(self, topic: str, partition: int, search: ResultSearch) -> bool:
        """Look for results of the requests of a replay topic for about `SEARCH_S`. False: call it again to go on.

        Raises:
            TxLayerError: the partition could not be read; you may call it again, and it goes on.
        """
        tp = (topic, partition)
        if search.end is None:
            written = self._connections.end_offsets([tp], is_committed=False)[tp]
            end = self._connections.end_offsets([tp])[tp]
            if end < written:
                raise _hidden(tp, end)
            search.end = end
        return self._look_on(tp, search, search.end)

    def look_for_pause(self, topic: str, partition: int, search: PauseSearch) -> bool:
        """Look for the newest pause or resume of a replay topic, as `look_for_results` does."""
        tp = (topic, partition)
        return self._look_on(tp, search, self._connections.end_offsets([tp])[tp])

    def _look_on(self, tp: TopicPartition, search: ResultSearch | PauseSearch, end: int) -> bool:
        is_over = self._stop_watch()
        # Retention may have taken some meanwhile.
        first = max(search.next_offset, self._connections.start_offsets([tp])[tp])
        for record in self._records({tp: (first, end)}):
            request = decode_replay(record.value())
            if not isinstance(request, Undecodable):
                search.fold(record.offset(), request)
            search.next_offset = record.offset() + 1
            if is_over():
                return search.next_offset >= end
        return True

    def _stop_watch(self) -> Callable[[], bool]:
        """True from `SEARCH_S` after its first call on: to open a reader, and to wait for the first record, does not count."""
        give_up_at: float | None = None

        def is_over() -> bool:
            nonlocal give_up_at
            now = self._clock()
            if give_up_at is None:
                give_up_at = now + SEARCH_S
            return now >= give_up_at

        return is_over

    def _records(self, ranges: dict[TopicPartition, Range]) -> Iterator[Any]:
        try:
            yield from records_of(self._opened(), ranges, patience_s=self._patience_s, clock=self._clock)
        except TxLayerError:
            self.close()  # after an error the reader may keep a position or another error
            raise

    def close(self) -> None:
        """Close the reader; the next `fetch` opens a new one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _opened(self) -> LogReader:
        if self._reader is None:
            self._reader = self._connections.make_reader("read_committed")
        return self._reader
