"""Dead letters, results and the offsets that account for them: one Kafka transaction. Never which message is given up.

The naming rule, as the coordinator has it: a writer's name is new for every assignment and never used again, and it
stands in the stored metadata before the writer writes for the first time. So whoever takes a queue over knows the name,
and ends with it what the former owner left open (`assignments.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from txlayer.adapters.ports import LogReader, Record, StoredOffset, TopicPartition
from txlayer.adapters.readers import read_ranges, runs_of
from txlayer.consumer.kafka_transaction import (
    RECYCLE_AFTER_S,
    TIMEOUT_S,
    Entry,
    Fence,
    KafkaTransactions,
    WriterConnections,
)
from txlayer.core.dead_letters import (
    CUT_HEADER,
    DLQ_HEADER,
    dead_letter_topic,
    encode_dead_letter,
    encode_replay,
    replay_topic,
)
from txlayer.core.retry import DeadLetter, ReplayRecord
from txlayer.errors import InvariantError, TxLayerError


class Truncation(Enum):
    """What is left out of a dead letter that its topic refuses whole."""

    NOTHING = "nothing"  #: it goes there whole
    CONTENT = "content"  #: its value and headers
    KEY_TOO = "key-too"  #: its key as well: a key that compressed well at its origin may be larger than any record here


class GivenUpMessage(NamedTuple):
    """A message that becomes a dead letter: its record as it was read from its topic, and why."""

    record: Record
    letter: DeadLetter
    cut: Truncation = Truncation.NOTHING


class Answered(NamedTuple):
    """What became of a request: a record for the replay topic of `topic`."""

    topic: str
    partition: int
    key: bytes | None  # of the request
    result: ReplayRecord


OffsetsOf = Callable[[list[int]], Mapping[TopicPartition, StoredOffset]]
"""The offsets of the dead letters just written → what is stored with them. A parked key's metadata hold its last one."""


class DeadLetterWriter:
    """The dead-letter writer of one assignment. One thread uses it.

    Args:
        connections: make its producer, at the first write: most consumers never write a dead letter.
        group: the consumer group.
        name: transactional id; drawn for this assignment, and stored for every partition before the first write.
    """

    def __init__(
        self,
        connections: WriterConnections,
        *,
        group: str,
        name: str,
        timeout_s: float = TIMEOUT_S,
        recycle_after_s: float = RECYCLE_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.dead_letter_count = 0
        self._group = group
        self._transactions = KafkaTransactions(
            connections, name=name, timeout_s=timeout_s, recycle_after_s=recycle_after_s, clock=clock
        )  # fmt: skip

    @property
    def kafka_transaction_count(self) -> int:
        """Those that ended well."""
        return self._transactions.count

    @property
    def replaced_count(self) -> int:
        """Producers that were replaced because a request of theirs could still be under way."""
        return self._transactions.replaced_count

    def write(
        self,
        letters: Sequence[GivenUpMessage],
        answers: Sequence[Answered] = (),
        *,
        offsets: OffsetsOf,
        member: Any,
    ) -> list[int]:
        """Append dead letters and results, and store offsets, in one Kafka transaction; the dead letters' offsets.

        A dead letter has key, value and headers of its record, and the header `txl-dlq` behind them. It stands in the
        dead-letter topic of its origin, in the origin's partition. `offsets` is called when all are acknowledged.

        Raises:
            RefusedRecordError, ForbiddenTopicError: a topic is missing or does not take the record.
            TxLayerError: anything else. In each case nobody knows whether it happened; this writer refuses every
                further call. Take the queues over again with `stable_offsets`, its name among the former writers: what
                is stored then tells, and what was not stored is in no dead-letter topic.
            LifecycleError: an earlier call failed; nothing was written.
        """
        entries = [*map(self._dead_letter, letters), *map(self._answer, answers)]

        def fence(places: list[int]) -> Fence:
            wanted = offsets(places[: len(letters)])
            if not wanted:
                # Without offsets its records would carry no fence of the group.
                raise InvariantError("a Kafka transaction of dead letters that stores no offset")
            return Fence(wanted, member)

        places = self._transactions.write(entries, fence=fence)
        self.dead_letter_count += len(letters)
        return places[: len(letters)]

    @property
    def has_sent_nothing(self) -> bool:
        """True when the last `write` failed before any offset was sent: it stores none, and its dead letters are in no topic."""
        return self._transactions.has_sent_nothing

    @property
    def refused(self) -> list[int]:
        """Which of the letters were refused when the last `write` raised `RefusedRecordError`."""
        return self._transactions.refused

    def close(self) -> None:
        """Give the producer back; an open Kafka transaction is left to who takes over."""
        self._transactions.close()

    def _dead_letter(self, given_up: GivenUpMessage) -> Entry:
        record, letter, cut = given_up
        if cut is not Truncation.NOTHING:
            key, size_bytes = record.key(), len(record)
            if cut is Truncation.KEY_TOO:
                key, size_bytes = None, size_bytes + len(key or b"")
            left = [(CUT_HEADER, b"%d" % size_bytes), (DLQ_HEADER, encode_dead_letter(letter))]
            topic = dead_letter_topic(self._group, letter.origin.topic)
            return Entry(topic, letter.origin.partition, key, None, left)
        headers = [
            *(record.headers() or ()),
            (DLQ_HEADER, encode_dead_letter(letter)),
        ]
        topic = dead_letter_topic(self._group, letter.origin.topic)
        return Entry(topic, letter.origin.partition, record.key(), record.value(), headers)

    def _answer(self, answer: Answered) -> Entry:
        topic = replay_topic(self._group, answer.topic)
        return Entry(topic, answer.partition, answer.key, encode_replay(answer.result))


PATIENCE_S = 10.0
"""Nothing came for so long: the broker does not answer any more."""


class SweepConnections(Protocol):
    """What a sweep asks of a cluster."""

    def make_reader(self, isolation: str) -> LogReader:
        """A reader that assigns itself."""
        ...

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, per partition."""
        ...

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offset, per partition."""
        ...


class _EnoughError(Exception):
    """No more dead letters fit."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class DeadLetterReader:
    """One consumer's way back to its dead letters. One thread uses it; it reads what is committed, and joins no group."""

    def __init__(
        self,
        connections: SweepConnections,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._patience_s = patience_s
        self._clock = clock
        self._reader: LogReader | None = None

    def fetch(
        self,
        topic: str,
        partition: int,
        offsets: Collection[int],
        *,
        bytes_max: int | None = None,
    ) -> dict[int, Record | None]:
        """The records at these offsets of one partition; None where there is none, or not any more.

        They are read in one sweep in offset order: a seek for each would cost 1.2 ms. All of them are in memory then,
        so whoever asks limits their number, or their bytes: the one that brings them to `bytes_max` is the last, and those behind it are left out.

        Raises:
            TxLayerError: the partition could not be read; ask again.
        """
        found: dict[int, Record | None] = dict.fromkeys(offsets)
        place = (topic, partition)
        first = self._connections.start_offsets([place])[place]
        end = self._connections.end_offsets([place])[place]

        size_bytes = 0

        def take(record: Any) -> None:
            nonlocal size_bytes
            if record.offset() in found:
                if bytes_max is not None and size_bytes >= bytes_max:
                    raise _EnoughError(record.offset())
                found[record.offset()] = record
                size_bytes += len(record)

        there = [(offset, offset + 1) for offset in found if first <= offset < end]
        try:
            for run in runs_of(there):
                read_ranges(
                    self._opened(), {place: run}, take, patience_s=self._patience_s, clock=self._clock
                )  # fmt: skip
        except _EnoughError as enough:
            return {offset: record for offset, record in found.items() if offset < enough.offset}
        except TxLayerError:
            self.close()  # a reader that failed may hold a position or an error of before
            raise
        return found

    def close(self) -> None:
        """End; the next `fetch` would begin anew."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _opened(self) -> LogReader:
        if self._reader is None:
            self._reader = self._connections.make_reader("read_committed")
        return self._reader
