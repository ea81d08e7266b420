"""Answers on their way into the op log, packed by partition, through the producer's own writer.

An answer that is lost is no harm: the question comes again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from txlayer.core import codec
from txlayer.core.messages import OpMessage
from txlayer.producer.pipeline import Pipeline

logger = logging.getLogger("txlayer.responder")


class AnswerWriter:
    """The responder's thread adds and writes; reports come on the producer's thread."""

    def __init__(self, pipeline: Pipeline, *, line_count_max: int) -> None:
        self._pipeline = pipeline
        self._line_count_max = line_count_max
        self._waiting: dict[int, list[str]] = {}
        self._written_count = 0
        # Written by the producer's thread alone.
        self._stored_count = 0
        self._lost_count = 0

    @property
    def partition_count(self) -> int:
        """Of half and op."""
        return len(self._pipeline.queues)

    @property
    def is_alive(self) -> bool:
        """False once nothing is written any more: the producer is closed or failed."""
        return self._pipeline.is_alive

    @property
    def stored_count(self) -> int:
        """Answers that the broker acknowledged."""
        return self._stored_count

    @property
    def lost_count(self) -> int:
        """Answers that may not be stored; their questions come again."""
        return self._lost_count

    @property
    def unreported_count(self) -> int:
        """Answers that are neither stored nor lost yet."""
        waiting_count = sum(map(len, self._waiting.values()))
        return waiting_count + self._written_count - self._stored_count - self._lost_count

    def add(self, partition: int, answer: OpMessage) -> None:
        """An answer for the next `write`."""
        self._waiting.setdefault(partition, []).append(codec.encode_op(answer))

    def write(self) -> None:
        """Write what is there; where the client has no room, the rest waits for the next call."""
        for partition in list(self._waiting):
            lines = self._waiting[partition]
            while lines and self._write_one(partition, lines[: self._line_count_max]):
                del lines[: self._line_count_max]
            if lines:
                return
            del self._waiting[partition]

    def _write_one(self, partition: int, lines: list[str]) -> bool:
        count = len(lines)
        try:
            self._pipeline.produce(
                self._pipeline.op_topic,
                codec.encode_ops(lines),
                None,
                partition,
                partial(self._reported, count),
            )
        except BufferError:
            return False
        except Exception as exc:  # noqa: BLE001 - border to the client; the question comes again
            self._written_count += count
            self._lost_count += count
            logger.warning("answers.not_written", extra={"count": count, "reason": str(exc)})
            return True
        self._written_count += count
        return True

    def _reported(self, count: int, error: Any, _record: Any) -> None:
        # A delivery report: it never raises.
        if error is None:
            self._stored_count += count
        else:
            self._lost_count += count
            logger.warning("answers.not_acknowledged", extra={"count": count, "reason": str(error)})
