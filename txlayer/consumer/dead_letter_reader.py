"""Reads chosen dead letters again, for their replay. Never what becomes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from txlayer.adapters.ports import LogReader, Record, TopicPartition
from txlayer.adapters.ranges import read_ranges, runs_of
from txlayer.errors import TxLayerError

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
