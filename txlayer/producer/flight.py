"""A transaction in flight: from its first half message sent until its op line is acknowledged.

Once its first half message is queued, the producer's thread alone changes a flight (rule of one owner); the one thing
that others do is to add its resolution to the op queue. Whoever waits for it subscribes a waker.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from txlayer.core.ids import NONCE_LENGTH
from txlayer.core.messages import ROLLBACK, UNKNOWN, Resolution
from txlayer.errors import OutcomeUnknownError, RetriableError, RollbackRequiredError, TxLayerError
from txlayer.producer.results import TransactionSendResult
from txlayer.producer.waiting import Waker

if TYPE_CHECKING:
    from txlayer.producer.encoding import HalfRecord
    from txlayer.producer.ops import OpQueue


class Stage(Enum):
    """How far a flight has come."""

    STORING = "storing"  #: half messages were sent, not all are reported
    PREPARED = "prepared"  #: all are acknowledged: the local transaction may run
    FAILED = "failed"  #: `error` says why, and what is known of it
    ACKNOWLEDGED = "acknowledged"  #: the op line with its resolution is acknowledged


STORING, PREPARED, FAILED, ACKNOWLEDGED = Stage

UNSTORED = -1
"""Instead of an offset: not acknowledged."""
PLACELESS = -2
"""Instead of an offset: acknowledged, and nobody told where (ports.py, `DeliveryReport`)."""


class Flight:
    """One transaction in flight, and what a local transaction is told about it."""

    # One per transaction on the hot path: no dictionary, no lock, no object of its own for waiting.
    __slots__ = (
        "born_ms", "error", "first_offset", "key", "last_offset", "op_offset", "queue", "resolution", "stage",
        "unreported_count", "unsent", "waker",
    )  # fmt: skip

    def __init__(self, queue: OpQueue, key: str, born_ms: int, message_count: int) -> None:
        self.queue = queue
        self.key = key
        self.born_ms = born_ms
        self.unreported_count = message_count
        self.stage = STORING
        self.first_offset = self.last_offset = UNSTORED
        self.op_offset = UNSTORED
        self.resolution: Resolution | None = None
        self.error: BaseException | None = None
        self.unsent: tuple[list[HalfRecord], int] | None = None
        """(all half records, how many are queued) while the client has no room for the rest."""
        self.waker: Waker | None = None

    @property
    def txn_id(self) -> str:
        """The transaction id."""
        return self.key[: -NONCE_LENGTH - 1]

    @property
    def nonce(self) -> str:
        """The nonce of this attempt: together with the id it is the transaction."""
        return self.key[-NONCE_LENGTH:]

    @property
    def trace_id(self) -> str:
        """The trace that its messages carry; "" where nobody traces."""
        return ""

    @property
    def half_partition(self) -> int:
        """Partition of its half and op records."""
        return self.queue.partition

    @property
    def last_half_offset(self) -> int:
        """Offset of its last half record, -1 while nobody knows it."""
        return max(self.last_offset, UNSTORED)

    @property
    def is_over(self) -> bool:
        """True when nothing will change any more for those who wait."""
        return self.stage is ACKNOWLEDGED or self.stage is FAILED

    # One waiter at a time. The producer's thread changes the stage first and looks for the waker then; the waiter does
    # it the other way round: so one of the two sees the other.

    def until_stored(self, waker: Waker) -> bool:
        """Have `waker` called when every half message is reported; False when that is so already."""
        self.waker = waker
        return self.stage is STORING

    def until_over(self, waker: Waker) -> bool:
        """Have `waker` called when nothing will change any more; False when that is so already."""
        self.waker = waker
        return not self.is_over

    def send_result(self) -> TransactionSendResult:
        """The result of an acknowledged flight."""
        assert self.resolution is not None
        return TransactionSendResult(
            self.txn_id, self.nonce, self.resolution, self.queue.partition, self.last_offset,
            max(self.op_offset, UNSTORED),
        )  # fmt: skip

    # --- on the producer's thread -------------------------------------------------------------------------------------

    def half_reported(self, error: Any, record: Any) -> None:
        """One half message is acknowledged or not; a delivery report, so it never raises."""
        pipeline = self.queue.pipeline
        if not pipeline.is_serving:
            pipeline.begin_round()
        if error is None:
            offset = record.offset()
            if self.last_offset == UNSTORED and offset is not None:
                self.first_offset = offset
            self.last_offset = PLACELESS if offset is None else offset
        elif self.error is None:
            self.error = pipeline.error_of(error, topic=pipeline.half_topic, flight=self)
        self.unreported_count -= 1
        if not self.unreported_count:
            self._all_reported()

    def half_not_sent(self, message_count: int, error: BaseException) -> None:
        """So many half messages were never queued."""
        self.error = self.error or error
        self.unreported_count -= message_count
        if not self.unreported_count:
            self._all_reported()

    def _all_reported(self) -> None:
        if self.last_offset == PLACELESS:
            self.queue.pipeline.placeless.append(self)
        else:
            self.prepared()

    def placed(self, offset: int) -> None:
        """Whoever looked found its last half record there; `UNSTORED`: nobody found out."""
        if offset < 0 and self.error is None:
            self.error = OutcomeUnknownError(
                "its messages are stored, and nobody could tell where. Nothing was decided",
                txn_id=self.txn_id,
                step="half",
            )
        self.last_offset = offset
        self.prepared()

    def prepared(self) -> None:
        """Every half message is reported."""
        if self.error is not None:
            self.failed_to_prepare(self.error)
        elif self.resolution is not None:
            self.queue.waiting.append(self)  # abandoned meanwhile
        else:
            self.stage = PREPARED
            self.wake()

    def failed_to_prepare(self, error: BaseException) -> None:
        """Not all half messages are stored: roll back those that are."""
        if self.queue.pipeline.meter is not None:
            self.queue.pipeline.meter.failed()
        if self.last_offset < 0:
            self.queue.pipeline.give_back(1)
        else:
            # What is stored in part can never be forwarded; saying so spares the coordinator its waiting.
            self.resolution = ROLLBACK
            self.queue.waiting.append(self)
            if isinstance(error, RetriableError):
                error = RollbackRequiredError(str(error), txn_id=self.txn_id)
        self.fail(error)

    def abandon(self) -> None:
        """Whoever began it went away without a word, so nobody can say what its local transaction did."""
        if self.resolution is None and not self.is_over:
            self.resolution = UNKNOWN
            if self.stage is PREPARED:
                self.queue.waiting.append(self)

    def op_failed(self, error: TxLayerError) -> None:
        """Its op line may not be stored: a check-back will ask."""
        self.queue.pipeline.give_back(1)
        if self.stage is not FAILED:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Nothing more will happen."""
        self.error = error
        self.stage = FAILED
        self.wake()

    def wake(self) -> None:
        """Have the waker called at the end of the round, if there is one."""
        if self.waker is not None:
            self.queue.pipeline.to_wake.append(self.waker)
            self.waker = None
