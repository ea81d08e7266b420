"""Kafka transactions as their coordinator keeps them: producer ids, epochs, states, markers. Never: a record.

The old protocol, which librdkafka speaks: the epoch grows at an init and at a time-out, not with every Kafka
transaction. So a request that arrives late is taken for the present one's, as on a real broker (KAFKA-17754).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from txlayer.adapters.error_codes import Code
from txlayer.adapters.memory.refusal import RefusedError
from txlayer.adapters.ports import TopicPartition

EPOCH_MAX = 32_766
"""Then the id gets a new producer id."""

TIMEOUT_MS_MAX = 900_000
"""The broker's `transaction.max.timeout.ms`."""

Place = TopicPartition | str
"""Where a marker goes: to a partition, or to a group."""


class TransactionState(Enum):
    """What the transaction coordinator knows of an id."""

    EMPTY = "empty"  #: none was begun since the init
    ONGOING = "ongoing"  #: something was added
    ENDING = "ending"  #: decided, and not every marker is written
    ENDED = "ended"  #: every marker is written


EMPTY, ONGOING, ENDING, ENDED = TransactionState


class KafkaTransaction:
    """One transactional id."""

    __slots__ = (
        "epoch", "is_commit", "places", "producer_id", "started_ms", "state", "timeout_ms", "transactional_id", "unmarked",
    )  # fmt: skip

    def __init__(self, transactional_id: str, producer_id: int, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = 0
        self.timeout_ms = timeout_ms
        self.state = EMPTY
        self.is_commit = False
        self.started_ms = 0
        self.places: dict[Place, None] = {}
        self.unmarked: set[Place] = set()

    # --- requests -----------------------------------------------------------------------------------------------------

    def reopen(self, timeout_ms: int, new_producer_id: int) -> bool:
        """InitProducerId: a newer holder. True when something is open and must be given up first (`give_up`).

        Raises:
            RefusedError: CONCURRENT_TRANSACTIONS: the last one's markers are not all written; ask again.
        """
        if self.state is ENDING:
            raise RefusedError(Code.CONCURRENT_TRANSACTIONS)
        if self.state is ONGOING:
            return True
        self.timeout_ms = timeout_ms
        self.state = EMPTY
        if self.epoch >= EPOCH_MAX:
            self.producer_id, self.epoch = new_producer_id, 0
        else:
            self.epoch += 1
        return False

    def add(self, producer_id: int, epoch: int, places: Iterable[Place], now_ms: int) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn: what the Kafka transaction is going to write to.

        Raises:
            RefusedError: the producer is fenced, or the last one's markers are not all written.
        """
        self.check(producer_id, epoch)
        if self.state is ENDING:
            raise RefusedError(Code.CONCURRENT_TRANSACTIONS)
        if self.state is not ONGOING:
            self.state = ONGOING
            self.started_ms = now_ms
            self.places = {}
        self.places.update(dict.fromkeys(places))

    def check_part(self, producer_id: int, epoch: int, place: Place) -> None:
        """What a write is verified for (KIP-890, part 1).

        Raises:
            RefusedError: the producer is fenced, or its Kafka transaction does not hold the place.
        """
        self.check(producer_id, epoch)
        if self.state is not ONGOING or place not in self.places:
            raise RefusedError(Code.INVALID_TXN_STATE)

    def end(self, producer_id: int, epoch: int, *, is_commit: bool) -> bool:
        """EndTxn; True when markers are to be written, False when it ended so before.

        Raises:
            RefusedError: the producer is fenced, markers are being written, or it ended otherwise.
        """
        self.check(producer_id, epoch)
        if self.state is ONGOING:
            self._decide(is_commit=is_commit)
            return True
        if self.state is EMPTY or self.is_commit is not is_commit:
            raise RefusedError(Code.INVALID_TXN_STATE)
        if self.state is ENDING:
            raise RefusedError(Code.CONCURRENT_TRANSACTIONS)
        return False

    def check(self, producer_id: int, epoch: int) -> None:
        """Is it the present holder that asks?

        Raises:
            RefusedError: INVALID_PRODUCER_ID_MAPPING or INVALID_PRODUCER_EPOCH.
        """
        if producer_id != self.producer_id:
            raise RefusedError(Code.INVALID_PRODUCER_ID_MAPPING)
        if epoch != self.epoch:
            raise RefusedError(Code.INVALID_PRODUCER_EPOCH)

    # --- the coordinator's own doing ----------------------------------------------------------------------------------

    @property
    def due_ms(self) -> float:
        """When it times out."""
        return self.started_ms + self.timeout_ms if self.state is ONGOING else float("inf")

    def give_up(self) -> None:
        """Fence the holder and abort: a newer one is there, or the time is over."""
        self.epoch += 1
        self._decide(is_commit=False)

    def marked(self, place: Place) -> None:
        """A marker is written."""
        self.unmarked.discard(place)
        if not self.unmarked:
            self.state = ENDED

    def _decide(self, *, is_commit: bool) -> None:
        self.is_commit = is_commit
        self.unmarked = set(self.places)
        self.state = ENDING if self.unmarked else ENDED
