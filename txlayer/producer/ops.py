"""One partition's resolutions on their way into the op log: what is ready is written together, nothing is waited for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txlayer.core import codec
from txlayer.producer.flight import Flight

if TYPE_CHECKING:
    from txlayer.producer.pipeline import Pipeline

LINE_BYTES_MAX = 512
"""Longer than the longest line that a producer writes (id 128, group 200, numbers)."""


class OpQueue:
    """Any thread adds flights that have their resolution, and any thread writes what is there."""

    __slots__ = ("_line_count_max", "_lock", "partition", "pipeline", "waiting")

    def __init__(self, pipeline: Pipeline, *, partition: int, line_count_max: int) -> None:
        self.pipeline = pipeline
        self.partition = partition
        self.waiting: list[Flight] = []
        self._line_count_max = line_count_max
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

    def _write_one_record(self) -> bool:
        flights = self.waiting[: self._line_count_max]
        if not OpRecord(self, flights).write():
            return False
        # Deleted only now, and atomically: another thread may have added to the end meanwhile.
        del self.waiting[: len(flights)]
        return True


class OpRecord:
    """One op record on its way: the resolutions of several transactions."""

    __slots__ = ("flights", "queue", "written_at_s")

    def __init__(self, queue: OpQueue, flights: Sequence[Flight]) -> None:
        self.queue = queue
        self.flights = flights
        self.written_at_s = 0.0

    def write(self) -> bool:
        """Queue it; False when the client has no room."""
        pipeline = self.queue.pipeline
        group, encode = pipeline.group, codec.producer_op
        lines = [
            # `_value_`, because `value` is a property that takes longer than the line.
            encode(f.resolution._value_, f.key, group, f.last_offset, f.born_ms)  # type: ignore[union-attr]  # they have one
            for f in self.flights
        ]
        return pipeline.produce_op(self, codec.encode_ops(lines))

    def reported(self, error: Any, record: Any) -> None:
        """It is acknowledged or not; a delivery report, so it never raises."""
        pipeline = self.queue.pipeline
        if not pipeline.is_serving:
            pipeline.begin_round()
        if error is None:
            pipeline.ops_acknowledged(self.flights, record.offset())
        else:
            pipeline.ops_not_acknowledged(self, error)
