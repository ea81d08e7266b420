"""One partition's resolutions on their way into the op log: what is ready is written together, nothing is waited for."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from txlayer.core import codec
from txlayer.errors import OutcomeUnknownError
from txlayer.producer.flight import ACKNOWLEDGED, FAILED, PLACELESS, UNSTORED, Flight

if TYPE_CHECKING:
    from txlayer.producer.pipeline import Pipeline

logger = logging.getLogger("txlayer.producer")

LINE_BYTES_MAX = 512
"""Longer than the longest line that a producer writes (id 128, group 200, numbers)."""


NAMED_MAX = 10
"""Transactions that one log line names."""


class OpQueue:
    """Any thread adds flights that have their resolution, and any thread writes what is there."""

    __slots__ = ("_lock", "line_count_max", "partition", "pipeline", "waiting")

    def __init__(self, pipeline: Pipeline, *, partition: int, line_count_max: int) -> None:
        self.pipeline = pipeline
        self.partition = partition
        self.waiting: list[Flight] = []
        self.line_count_max = line_count_max
        self._lock = threading.Lock()

    def write(self) -> None:
        """Write what is ready, unless another thread does so just now: then that one takes this too."""
        # Whoever finds the lock taken may go: its holder looks again after letting go.
        while self.waiting and self._lock.acquire(blocking=False):
            try:
                is_written = self._write_one_record()
            finally:
                self._lock.release()
            if not is_written:
                return  # no room: the producer's thread tries again when reports have made some

    def give_up(self, error: BaseException) -> None:
        """Tell those who wait that nothing is written any more."""
        with self._lock:
            flights = self.waiting[:]
            del self.waiting[: len(flights)]
        if flights:
            OpRecord(self, flights).give_up(error)

    def _write_one_record(self) -> bool:
        flights = self.waiting[: self.line_count_max]
        if not self._record_of(flights).write():
            return False
        # Only now, and in one go: other threads add to the end meanwhile.
        del self.waiting[: len(flights)]
        return True

    def _record_of(self, flights: list[Flight]) -> OpRecord:
        return OpRecord(self, flights)


class OpRecord:
    """One op record on its way: the resolutions of several transactions."""

    __slots__ = ("flights", "queue", "written_at_s")

    def __init__(self, queue: OpQueue, flights: Sequence[Flight]) -> None:
        self.queue = queue
        self.flights = flights
        self.written_at_s = 0.0

    def write(self) -> bool:
        """Queue it; False: the client has no room. A refusal is told to the flights."""
        pipeline = self.queue.pipeline
        group, encode = pipeline.group, codec.producer_op
        lines = [
            # `_value_`, because `value` is a property that takes longer than the line.
            encode(f.resolution._value_, f.key, group, f.last_offset, f.born_ms)  # type: ignore[union-attr]  # it has one
            for f in self.flights
        ]
        self.written_at_s = self.written_at_s or time.monotonic()
        try:
            pipeline.produce(
                pipeline.op_topic,
                codec.encode_ops(lines),
                None,
                self.queue.partition,
                self.reported,
            )
        except BufferError:
            return False
        except Exception as exc:  # noqa: BLE001 - border to the client: whoever waits for the flights is told
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
            self._acknowledged(PLACELESS if offset is None else offset)
        else:
            self._not_acknowledged(error)

    def _acknowledged(self, offset: int) -> None:
        pipeline = self.queue.pipeline
        if pipeline.meter is not None:
            pipeline.meter.acknowledged(self)
        watched = []
        ended_count = 0
        with pipeline.condition:
            for flight in self.flights:
                if flight.op_offset != UNSTORED:
                    continue  # an interrupt in `OpQueue.write` may write a line twice
                ended_count += 1
                flight.op_offset = offset
                if flight.stage is not FAILED:
                    flight.stage = ACKNOWLEDGED
                if flight.waker is not None:
                    watched.append(flight)
        pipeline.give_back(ended_count)
        for flight in watched:
            flight.wake()

    def _not_acknowledged(self, reason: Any) -> None:
        pipeline = self.queue.pipeline
        error = pipeline.error_of(reason, topic=pipeline.op_topic, flight=self.flights[0])
        waited_s = time.monotonic() - self.written_at_s
        if (
            isinstance(error, OutcomeUnknownError)
            and pipeline.is_alive
            and waited_s < pipeline.resolution_timeout_s
        ):
            pipeline.unsent.append(self)  # a line that comes twice says the same
            return
        self.give_up(error)

    def give_up(self, error: BaseException) -> None:
        """Tell its flights that their lines may not be stored."""
        if self.queue.pipeline.meter is not None:
            self.queue.pipeline.meter.lost(self)
        logger.error(
            "op.not_acknowledged",
            extra={
                "txn_count": len(self.flights),
                "txn_id": " ".join(f.txn_id for f in self.flights[:NAMED_MAX]),
                "trace_id": " ".join(filter(None, (f.trace_id for f in self.flights[:NAMED_MAX]))),
                "reason": str(error),
            },
        )
        for flight in self.flights:
            unknown = OutcomeUnknownError(
                f"its resolution may not be stored: {error}", txn_id=flight.txn_id, step="op"
            )
            unknown.__cause__ = error
            flight.op_failed(unknown)
