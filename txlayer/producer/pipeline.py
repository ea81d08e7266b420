"""The producer's thread: it serves reports, runs local transactions, writes op records, and wakes those who wait.

One per producer. It owns every pending transaction: after the first half message is queued, this thread alone changes it,
and others send values through `post`. The one exception is that any thread may add a resolution to the op queue.
All threads share its writer for half messages, and any of them may write op records (`OpQueue.write`).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from txlayer.adapters.ports import IdempotentWriter
from txlayer.adapters.telemetry import Log
from txlayer.core import codec
from txlayer.core.messages import NONCE_LENGTH, ROLLBACK, UNKNOWN, Resolution
from txlayer.errors import (
    FencedError,
    InvariantError,
    LifecycleError,
    OutcomeUnknownError,
    RetriableError,
    RollbackRequiredError,
    TxLayerError,
)
from txlayer.producer.encoding import HalfRecord
from txlayer.producer.waiting import LOOK_S, Bell, Waker

if TYPE_CHECKING:
    from txlayer.core.history import TransactionHistory
    from txlayer.producer.engine import OffsetLookup
    from txlayer.producer.interceptors import Watch
    from txlayer.producer.metrics import Meter
    from txlayer.producer.submitted import SubmittedTransaction


class TransactionSendResult(NamedTuple):
    """An acknowledged resolution: what this producer said is in the op log, whatever happens to this process.

    The first commit or rollback in the op log decides, and another one may have come first: an answer to a check-back, an
    operator's word, that of anybody who may write op. `result(with_decision=True)` reads what was decided. Nor is it visibility.
    """

    txn_id: str
    nonce: str
    resolution: Resolution
    """What this producer said; `decision` may be another."""
    half_partition: int
    """Partition of the half and op records."""
    last_half_offset: int
    """Of the transaction's last half record; `txlayer tx show` finds it by partition and offset."""
    op_offset: int
    """Of the op record that holds the resolution; -1 where the broker's answer was lost and a later one vouched for it."""
    decision: Resolution | None = None
    """What was decided, COMMIT or ROLLBACK, read from the topics; None: not asked for, or UNKNOWN was said and it is not decided yet."""


class PendingStage(Enum):
    """How far a pending transaction has come."""

    STORING = "storing"  #: half messages were sent, not all are reported
    PREPARED = "prepared"  #: all are acknowledged: the local transaction may run
    FAILED = "failed"  #: `error` says why, and what is known of it
    ACKNOWLEDGED = "acknowledged"  #: the op line with its resolution is acknowledged


STORING, PREPARED, FAILED, ACKNOWLEDGED = PendingStage

UNSTORED = -1  # instead of an offset: not acknowledged
OFFSET_UNKNOWN = -2  # instead of an offset: acknowledged, at an unknown offset (ports.py, `DeliveryReport`)


class PendingTransaction:
    """One transaction in flight, and what a local transaction is told about it."""

    # One per transaction on the hot path: no dictionary, no lock, no object of its own for waiting.
    own_condition: threading.RLock | None = None  # of a future that is waited for: its state changes under it

    __slots__ = (
        "born_ms",
        "error",
        "first_offset",
        "key",
        "last_offset",
        "op_offset",
        "queue",
        "resolution",
        "stage",
        "unreported_count",
        "unsent",
        "waker",
        "watches",
    )

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
        self.watches: Sequence[Watch] = ()

    @property
    def txn_id(self) -> str:
        return self.key[: -NONCE_LENGTH - 1]

    @property
    def nonce(self) -> str:
        """The nonce of this attempt: together with the id it is the transaction."""
        return self.key[-NONCE_LENGTH:]

    @property
    def trace_id(self) -> str:
        """The trace that its messages carry; "" without tracing."""
        return next(filter(None, (watch.trace_id for watch in self.watches)), "")

    @property
    def half_partition(self) -> int:
        """Partition of its half and op records."""
        return self.queue.partition

    @property
    def last_half_offset(self) -> int:
        """Offset of its last half record, -1 while it is unknown."""
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
        assert self.resolution is not None
        return TransactionSendResult(
            self.txn_id,
            self.nonce,
            self.resolution,
            self.queue.partition,
            self.last_offset,
            max(self.op_offset, UNSTORED),
        )

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
            self.last_offset = OFFSET_UNKNOWN if offset is None else offset
        elif self.error is None:
            self.error = pipeline.error_of(error, topic=pipeline.half_topic, txn=self)
        self.unreported_count -= 1
        if not self.unreported_count:
            self._all_reported()

    def half_not_sent(self, message_count: int, error: BaseException) -> None:
        """So many half messages were never queued; one less, if `error` interrupted its caller behind the client's call."""
        if self.unreported_count <= 0:
            return  # it was that one, and its report came first
        self.error = self.error or error
        self.unreported_count -= message_count
        if self.unreported_count <= 0:
            self._all_reported()

    def _all_reported(self) -> None:
        if self.last_offset == OFFSET_UNKNOWN:
            self.queue.pipeline.offset_unknown.append(self)
        else:
            self.prepared()

    def offset_found(self, offset: int) -> None:
        """Its last half record was found there; `UNSTORED`: it was not found."""
        if offset < 0 and self.error is None:
            self.error = OutcomeUnknownError(
                "its messages are stored at an offset that was not found. Nothing was decided",
                txn_id=self.txn_id,
                step="half",
            )
        self.last_offset = offset
        self.prepared()

    def prepared(self) -> None:
        """Every half message is reported."""
        for watch in self.watches:
            watch.prepared(self)
        if self.error is not None:
            self.failed_to_prepare(self.error)
        elif self.resolution is not None:
            self.queue.waiting.append(self)  # abandoned meanwhile
        else:
            self.stage = PREPARED
            self.wake()

    def failed_to_prepare(self, error: BaseException) -> None:
        """Not all half messages are stored: roll back those that are."""
        for meter in self.queue.pipeline.meters:
            meter.failed()
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
        """Its caller went away without a word, so what its local transaction did is unknown."""
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


logger = Log("txlayer.producer")

LINE_BYTES_MAX = 512  # longer than the longest line that a producer writes (id 128, group 200, numbers)
NAMED_MAX = 10  # transactions that one log line names


_take = methodcaller("acquire", False)  # noqa: FBT003 - quicker than by its name


class OpQueue:
    """Any thread adds transactions that have their resolution, and any thread writes what is there."""

    __slots__ = ("_lock", "_unwritten", "line_count_max", "partition", "pipeline", "waiting")

    def __init__(self, pipeline: Pipeline, *, partition: int, line_count_max: int) -> None:
        self.pipeline = pipeline
        self.partition = partition
        self.waiting: list[PendingTransaction] = []
        self.line_count_max = line_count_max
        self._unwritten: OpRecord | None = None  # of the first that wait: the client had no room for it
        self._lock = threading.Lock()

    def write(self) -> None:
        """Write what is ready, unless another thread does so just now: then that one takes this too."""
        is_written = True
        # A thread that finds the lock taken may go: its holder looks again after letting go.
        while self.waiting and is_written:
            is_written = False
            # No interrupt comes between a step of a loop, which takes the lock here, and its body.
            for lock in filter(_take, (self._lock,)):
                try:
                    # No room: the producer's thread tries again when reports have made some.
                    is_written = self._write_one_record()
                finally:
                    lock.release()

    def give_up(self, error: BaseException) -> None:
        """Tell those who wait that nothing is written any more."""
        with self._lock:
            self._unwritten = None
            txns = self.waiting[:]
            del self.waiting[: len(txns)]
        if txns:
            OpRecord(self, txns).give_up(error)

    def _write_one_record(self) -> bool:
        record = self._unwritten or OpRecord(self, self.waiting[: self.line_count_max])
        self._unwritten = record
        if not record.write():
            return False
        self._unwritten = None  # first: an interrupt in between writes it once more
        # Only now, and in one go: other threads add to the end meanwhile.
        del self.waiting[: len(record.txns)]
        return True


class OpRecord:
    """One op record on its way: the resolutions of several transactions."""

    __slots__ = ("queue", "txns", "written_at_s")

    def __init__(self, queue: OpQueue, txns: Sequence[PendingTransaction]) -> None:
        self.queue = queue
        self.txns = txns
        self.written_at_s = 0.0

    def write(self) -> bool:
        """Queue it; False: the client has no room. Its transactions learn of a refusal."""
        pipeline = self.queue.pipeline
        group, encode = pipeline.group, codec.producer_op
        lines = [
            # `_value_`, because `value` is a property that takes longer than the line.
            encode(f.resolution._value_, f.key, group, f.last_offset, f.born_ms)  # type: ignore[union-attr]  # it has one
            for f in self.txns
        ]
        if not self.written_at_s:
            for txn, watch in self._watched():
                watch.ending(txn)
            self.written_at_s = time.monotonic()
        try:
            pipeline.produce(pipeline.op_topic, codec.encode_ops(lines), None, self.queue.partition, self.reported)
        except BufferError:
            return False
        except Exception as exc:  # noqa: BLE001 - border to the client: callers that wait for the transactions get it
            pipeline.post(partial(self._not_acknowledged, exc))
        return True

    # --- on the producer's thread -------------------------------------------------------------------------------------

    def reported(self, error: Any, record: Any) -> None:
        """It is acknowledged or not; a delivery report, so it never raises."""
        pipeline = self.queue.pipeline
        if not pipeline.is_serving:
            pipeline.begin_round()
        if error is None:
            offset = record.offset()
            self._acknowledged(OFFSET_UNKNOWN if offset is None else offset)
        else:
            self._not_acknowledged(error)

    def _acknowledged(self, offset: int) -> None:
        pipeline = self.queue.pipeline
        for txn, watch in self._watched():
            if txn.op_offset == UNSTORED:
                watch.ended(txn, self, offset, None)
        for meter in pipeline.meters:
            meter.acknowledged(self)
        watched: list[PendingTransaction] = []
        guarded: list[tuple[threading.RLock, PendingTransaction]] = []
        ended_count = 0
        with pipeline.making_conditions:
            for txn in self.txns:
                if txn.op_offset != UNSTORED:
                    continue  # an interrupt in `OpQueue.write` may write a line twice
                ended_count += 1
                txn.op_offset = offset
                if txn.own_condition is not None:
                    guarded.append((txn.own_condition, txn))
                    continue
                if txn.stage is not FAILED:
                    txn.stage = ACKNOWLEDGED
                if txn.waker is not None:
                    watched.append(txn)
        pipeline.give_back(ended_count)
        for condition, txn in guarded:
            with condition:
                if txn.stage is not FAILED:
                    txn.stage = ACKNOWLEDGED
            txn.wake()
        for txn in watched:
            txn.wake()

    def _not_acknowledged(self, reason: Any) -> None:
        pipeline = self.queue.pipeline
        error = pipeline.error_of(reason, topic=pipeline.op_topic, txn=self.txns[0])
        waited_s = time.monotonic() - self.written_at_s
        if isinstance(error, OutcomeUnknownError) and pipeline.is_alive and waited_s < pipeline.resolution_timeout_s:
            pipeline.unsent.append(self)  # a line that comes twice says the same
            return
        self.give_up(error)

    def _watched(self) -> list[tuple[PendingTransaction, Watch]]:
        """Its transactions, each with what watches it."""
        return [(txn, watch) for txn in self.txns for watch in txn.watches] if self.queue.pipeline.is_watched else []

    def tell_lost(self) -> None:
        """Tell watches and meters that its lines may not be stored."""
        for txn, watch in self._watched():
            error = OutcomeUnknownError("its resolution may not be stored", txn_id=txn.txn_id, step="op")
            watch.ended(txn, self, UNSTORED, error)
        for meter in self.queue.pipeline.meters:
            meter.lost(self)

    def give_up(self, error: BaseException) -> None:
        """Tell its transactions that their lines may not be stored."""
        # Those of a line that is stored know it: an interrupt in `OpQueue.write` may write a line twice.
        self.txns = [txn for txn in self.txns if txn.op_offset == UNSTORED]
        if not self.txns:
            return
        self.tell_lost()
        logger.error(
            "op.not_acknowledged",
            extra={
                "txn_count": len(self.txns),
                "txn_id": " ".join(f.txn_id for f in self.txns[:NAMED_MAX]),
                "trace_id": " ".join(filter(None, (f.trace_id for f in self.txns[:NAMED_MAX]))),
                "reason": str(error),
            },
        )
        for txn in self.txns:
            unknown = OutcomeUnknownError(f"its resolution may not be stored: {error}", txn_id=txn.txn_id, step="op")
            unknown.__cause__ = error
            txn.op_failed(unknown)


POLL_S = 0.05  # how long the thread may sleep in the client: reports end the sleep, only `close` waits for it
POLLS_MAX = 4  # calls of `poll` in one round: more would keep senders out for long
SLICE_S = 0.001
"""Local transactions run for so long before the resolutions that are ready are written: none waits for a slow one."""
SLOTS_SHARE = 16  # callers that wait for a slot in flight are woken when one in so many is free
JOIN_S = 5.0
"""How long a round may go on beyond the time that `close` has: a poll ends by then, a local transaction may hang for ever."""


class PipelineState(Enum):
    """What a pipeline may be used for."""

    OPEN = "open"  #: everything
    CLOSING = "closing"  #: what is in flight may end, nothing new begins
    CLOSED = "closed"  #: nothing
    FAILED = "failed"  #: nothing: `failure` says why
    FORKED = "forked"  #: nothing: its thread and its client stayed in the parent process


OPEN = PipelineState.OPEN


def call_in_forked_child(method: Callable[[], None]) -> None:
    """Call a bound method in each process forked from this one, as long as its object lives."""
    reference = weakref.WeakMethod(method)

    def forked() -> None:
        call = reference()
        if call is not None:
            call()

    os.register_at_fork(after_in_child=forked)


class Pipeline:
    """Everything that is in flight at one producer."""

    def __init__(
        self,
        writer: IdempotentWriter,
        *,
        group: str,
        half_topic: str,
        op_topic: str,
        partition_count: int,
        op_line_count_max: int,
        in_flight_max: int,
        resolution_timeout_s: float,
    ) -> None:
        self.group = group
        self.state = PipelineState.OPEN
        self.failure: BaseException | None = None
        self.queues = [OpQueue(self, partition=p, line_count_max=op_line_count_max) for p in range(partition_count)]
        self.to_run: deque[SubmittedTransaction] = deque()
        self._running: SubmittedTransaction | None = None
        self.to_wake: list[Waker] = []
        self.offset_unknown: list[PendingTransaction] = []  # stored, at an unknown offset: `find` looks for them
        self.offset_lookup: OffsetLookup | None = None
        # Closed while reports are served. The client takes and gives back Python's lock for every single report; with
        # another thread of ours waiting for that lock each report costs a wake-up, more than all the rest together.
        self.gate = threading.Lock()
        self.is_serving = False
        self.making_conditions = threading.Lock()
        """Held for a moment: futures without a condition of their own change their state under it, and get one."""
        self.unsent: deque[OpRecord] = deque()  # op records that were not acknowledged; sent again as they are
        # Free slots: popping and appending are atomic, so taking one needs no lock and is exact.
        self.slots: list[None] = [None] * in_flight_max
        self.taken_slots = iter(self.slots.pop, ...)
        """Takes a slot for who looks at its next; IndexError: there is none. No interrupt comes between a loop's step and its body."""
        self.slots_bell = Bell(lambda: bool(self.slots) or self.state is not OPEN)
        self.round_bell = Bell(lambda: not self.is_alive)
        self.at_end_of_round: Callable[[], None] | None = None
        self.meters: list[Meter] = []
        """They count how transactions end, on the producer's thread, before the transactions are notified."""
        self.is_watched = False  # its transactions may have watches, which see their ends before the meters do
        self.write_soon: Callable[[OpQueue], None] = self._write_unless_reports_come
        """What `resolved` does with a queue; a loop gathers what its tasks say in one turn."""
        self._in_flight_max = in_flight_max
        self._slots_at_once = max(in_flight_max // SLOTS_SHARE, 1)
        self.resolution_timeout_s = resolution_timeout_s
        self._writer = writer
        self.produce = writer.produce
        self.half_topic, self.op_topic = half_topic, op_topic
        self._posted: deque[Callable[[], None]] = deque()
        self._is_stopping = self._is_client_gone = False
        self._thread = threading.Thread(target=self._run, name=f"txlayer-{group}", daemon=True)
        self._pid = os.getpid()

    def start(self) -> None:
        # Checked through the state, because asking for the process id costs more than a tenth of a transaction.
        call_in_forked_child(self._forked)
        self._thread.start()

    def _forked(self) -> None:
        self.state = PipelineState.FORKED

    # --- any thread ---------------------------------------------------------------------------------------------------

    def give_back(self, slot_count: int) -> None:
        self.slots += [None] * slot_count

    @property
    def in_flight_count(self) -> int:
        """Transactions whose half messages are sent and whose op line is not acknowledged."""
        return self._in_flight_max - len(self.slots)

    @property
    def is_alive(self) -> bool:
        """True while reports may still come."""
        return self.state is OPEN or self.state is PipelineState.CLOSING

    def check_alive(self) -> None:
        """Return while reports may still come; LifecycleError, FencedError: it ended."""
        if not self.is_alive:
            self.check_open()

    @property
    def is_own_thread(self) -> bool:
        """True on the producer's thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def store(self, txn: PendingTransaction, records: Sequence[HalfRecord], start: int = 0) -> int:
        """Queue half records from `start` on; how many are queued now. Fewer than all: the client has no room.

        Raises:
            TxLayerError: the client refuses one. What was queued before is rolled back when it is acknowledged.
        """
        produce, topic, partition = self.produce, self.half_topic, txn.queue.partition
        group, key, born_ms = self.group, txn.key, txn.born_ms
        index = start
        try:
            if self.is_serving:
                self.wait_at_gate()
            count = len(records)
            for index in range(start, count):
                real_topic, message_key, value, headers, options = records[index]
                ours = (codec.HALF_HEADER, codec.half_header(key, group, real_topic, index, count, born_ms, options))
                produce(
                    topic,
                    value,
                    message_key,
                    partition,
                    txn.half_reported,
                    None,
                    0,
                    # Ours is the last, where readers look first.
                    [*headers, ours] if headers else [ours],
                )
        except BufferError:
            return index
        except BaseException as exc:
            txn.unsent = None
            raise self.not_sent(txn, len(records) - index, exc) from exc
        return count

    def wait_at_gate(self) -> None:
        """Return when the reports that are being served are done; at once on the producer's own thread, which serves them."""
        if not self.is_own_thread:
            with self.gate:  # an interrupt never leaves it closed
                pass

    def not_sent(self, txn: PendingTransaction, message_count: int, exc: BaseException) -> BaseException:
        """So many half messages will not be sent, because of `exc`; what to raise for it."""
        error = exc
        if isinstance(exc, Exception):  # the client's refusal; else an interrupt
            error = self.error_of(exc, topic=self.half_topic, txn=txn)
        self.post(partial(txn.half_not_sent, message_count, error))
        return error

    def dropped(self, txn: PendingTransaction, exc: BaseException) -> None:
        """Whoever launched it goes away, with `exc`: without the messages that are unsent it can only be rolled back."""
        if txn.unsent is not None:
            records, queued_count = txn.unsent
            self.post(partial(txn.half_not_sent, len(records) - queued_count, exc))
        self.post(txn.abandon)

    def resolved(self, queue: OpQueue) -> None:
        """Write the resolutions that wait in the queue; without waiting."""
        if self.is_alive:
            self.write_soon(queue)
        elif self.state is not PipelineState.FORKED:  # there, the locks are copies of a moment
            self._give_up_rest()

    def _write_unless_reports_come(self, queue: OpQueue) -> None:
        # While records are unreported, a report arrives within a round trip. After it the producer's thread writes all lines
        # that are ready: under load that packs several lines into one record. It cannot miss this line, because a record
        # counts as unreported until its report is served, and lines are written after that.
        if not self._writer.unreported_count():
            queue.write()

    def post(self, call: Callable[[], None]) -> None:
        """Have the producer's thread do something at the end of its round; it must not raise."""
        self._posted.append(call)
        if not self.is_alive:
            self._run_posted()

    def check_open(self) -> None:
        """Return when transactions may begin.

        Raises:
            LifecycleError: it is closed, or of another process. Nothing was sent.
            FencedError: it failed for good. Nothing was sent.
        """
        if self.state is PipelineState.OPEN:
            return
        if self.state is PipelineState.FORKED:
            raise LifecycleError(f"made in process {self._pid}; make a new producer after the fork", state="forked")
        if self.state is PipelineState.FAILED:
            raise FencedError(f"this producer failed; make a new one: {self.failure}") from self.failure
        raise LifecycleError("this producer is closed; make a new one", state=self.state.value)

    def error_of(self, error: Any, *, topic: str, txn: PendingTransaction | TransactionHistory) -> TxLayerError:
        """What a report's error, or an exception of `produce`, means for a record of `txn`."""
        return self._writer.error_of(error, topic=topic, txn_id=txn.txn_id)

    # --- the end ------------------------------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """Refuse new transactions; what is in flight goes on."""
        if self.state is OPEN:
            self.state = PipelineState.CLOSING
            self.post(self.slots_bell.ring)  # a caller that waits for a slot would wait for ever

    def end(self, timeout_s: float) -> None:
        """Stop the thread and give the client back; what is in flight then is told that it failed.

        A local transaction that does not return keeps the thread, which does nothing more when it comes back.
        """
        if self.state in (PipelineState.CLOSED, PipelineState.FORKED):
            return
        self._is_stopping = True
        self._thread.join(timeout_s + JOIN_S)
        if self._thread.is_alive():
            logger.error("producer.hangs", extra={"producer_group": self.group})
        if self.state is not PipelineState.FAILED:
            self.state = PipelineState.CLOSED
        if not self._is_client_gone:
            self._end_client(timeout_s)

    def _end_client(self, timeout_s: float) -> None:
        """Give the client back, and tell everybody who waits."""
        self._is_client_gone = True
        self._writer.close(timeout_s)
        self._after_round()
        for txn in (*filter(None, [self._running]), *self.to_run):
            OpRecord(txn.queue, [txn]).tell_lost()
            txn.watches = ()  # they know it, also if its local transaction returns
            error = "the producer ended before its local transaction did; a check-back settles it"
            txn.fail(OutcomeUnknownError(error, step="close"))
        self._give_up_rest()

    def _give_up_rest(self) -> None:
        """Tell those whose resolutions are not sent any more."""
        if self.offset_lookup is not None:
            self.offset_lookup.end()
        ended = LifecycleError("the producer ended before they could be sent", state="closed")
        while self.unsent:
            self.unsent.popleft().give_up(ended)
        for queue in self.queues:
            queue.give_up(ended)
        self._wake()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """The first report of a round: a thread that wants to send now waits at the gate rather than for Python's lock."""
        self.gate.acquire()
        self.is_serving = True

    def serve(self, timeout_s: float) -> None:
        """One round: wait for reports for at most so long, and do what follows from them."""
        poll = self._writer.poll
        if poll(timeout_s):
            for _ in range(POLLS_MAX):  # reports that came while this thread waited for its turn
                if not poll(0):
                    break
        self._after_round()

    def _run(self) -> None:
        looked_at = time.monotonic()
        try:
            while not self._is_stopping:
                self.serve(POLL_S)
                now = time.monotonic()
                if now - looked_at > LOOK_S:
                    looked_at = now
                    self.slots_bell.ring()
                    if (fatal := self._writer.failure()) is not None:
                        self._fail(fatal)
        except BaseException as exc:
            logger.critical("producer.broken", exc_info=exc)
            self._is_stopping = True
            self._fail(InvariantError(f"the producer's thread ended: {exc!r}"))
            self._end_client(0.0)  # nobody else brings reports to those who wait

    def _after_round(self) -> None:
        """What follows from the reports of one round."""
        self._open_gate()
        if self.offset_unknown and self.offset_lookup is not None:
            sought, self.offset_unknown = self.offset_unknown, []
            self.offset_lookup.find(sought)
        if self.to_run:
            self._run_local_transactions()
        self._run_posted()
        while self.unsent and self.is_alive and self.unsent[0].write():
            self.unsent.popleft()
        if self._is_client_gone:
            self._give_up_rest()
        self.write_ops()
        if self.slots_bell and self._is_room_again():
            self.slots_bell.ring(len(self.slots))
        if self.round_bell:
            self.round_bell.ring()
        self._wake()
        if self.at_end_of_round is not None:
            self.at_end_of_round()

    def _is_room_again(self) -> bool:
        """True when callers that wait for a slot in flight should be woken."""
        # One at a time they would take turns with this thread for every single slot. While reports are still to come
        # there will be more of them within a round trip.
        count = len(self.slots)
        return count >= self._slots_at_once or (count > 0 and not self._writer.unreported_count())

    def _open_gate(self) -> None:
        if self.is_serving:
            self.is_serving = False
            self.gate.release()

    def _run_posted(self) -> None:
        while True:
            try:
                call = self._posted.popleft()
            except IndexError:
                return
            call()

    def _wake(self) -> None:
        wakers, self.to_wake = self.to_wake, []
        for waker in wakers:
            waker()

    def write_ops(self) -> None:
        for queue in self.queues:
            if queue.waiting:
                queue.write()

    def _run_local_transactions(self) -> None:
        clock = time.monotonic
        written_at = clock()
        while self.to_run and not self._is_stopping:
            self._running = self.to_run.popleft()
            self._running.run()
            self._running = None
            if clock() - written_at > SLICE_S:
                self.write_ops()
                written_at = clock()

    def _fail(self, failure: BaseException) -> None:
        if self.failure is None:
            logger.error("producer.failed", extra={"reason": str(failure)})
            self.failure = failure
        self.state = PipelineState.FAILED
        self._open_gate()
        self.slots_bell.ring()
        self.round_bell.ring()
        if self.at_end_of_round is not None:
            self.at_end_of_round()
