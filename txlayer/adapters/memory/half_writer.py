"""The `HalfWriter` of a cluster in memory: an idempotent producer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txlayer.adapters.error_codes import Code
from txlayer.adapters.memory.link import FATAL, Link
from txlayer.adapters.memory.log import MemoryRecord, ProducerMark
from txlayer.adapters.memory.outbox import Batch, Outbox, send_batch
from txlayer.adapters.memory.refusal import ClientError, ClientFailureError
from txlayer.adapters.ports import TopicPartition
from txlayer.adapters.translation import translate_fatal, translate_unwritten
from txlayer.errors import TxLayerError

QUEUE_MAX = 100_000
"""The client's `queue.buffering.max.messages`."""


class MemoryHalfWriter:
    """Any thread may `produce`; `poll` and `close` belong to one."""

    def __init__(self, link: Link, *, batch_bytes_max: int, message_timeout_s: float) -> None:
        self._link = link
        self._outbox = Outbox(
            link,
            send=self._send,
            on_failed=self._on_failed,
            batch_bytes_max=batch_bytes_max,
            message_timeout_s=message_timeout_s,
            queue_max=QUEUE_MAX,
        )
        self._producer_id = -1
        self._positions: dict[TopicPartition, tuple[int, int]] = {}  # epoch, next sequence
        self._fatal: ClientError | None = None
        self.produce: Callable[..., None] = self._outbox.put
        self.poll: Callable[[float], int] = self._poll
        self.unreported_count: Callable[[], int] = lambda: self._outbox.unreported_count

    def error_of(self, error: Any, *, topic: str, txn_id: str) -> TxLayerError:
        """What a report's error, or an exception of `produce`, means for the record."""
        inner = error.error if isinstance(error, ClientFailureError) else error
        return translate_unwritten(inner, topic=topic, txn_id=txn_id)

    def failure(self) -> TxLayerError | None:
        """A fatal error, after which nothing is written any more."""
        return None if self._fatal is None else translate_fatal(self._fatal)

    def close(self, timeout_s: float) -> None:
        """Wait for what is queued for at most `timeout_s` seconds, report the rest as errors, and end."""
        deadline = self._link.world.monotonic() + timeout_s
        while self._outbox.unreported_count:
            left_s = deadline - self._link.world.monotonic()
            if left_s <= 0:
                self._outbox.purge()
                self._outbox.serve()
                return
            self._poll(left_s)

    def _poll(self, timeout_s: float = -1.0) -> int:
        outbox = self._outbox
        if not outbox.wait(max(timeout_s, 0.0)):
            return 0
        if self._fatal is None:
            outbox.send()
        else:
            outbox.purge()
        return outbox.serve()

    def _send(self, batch: Batch, records: list[MemoryRecord]) -> int | None:
        link, place = self._link, batch.place
        if self._producer_id < 0:
            self._producer_id, _ = link.ask(
                "InitProducerId", lambda: link.broker.init_producer_id(None, 0)
            )
        epoch, sequence = self._positions.get(place, (0, 0))
        mark = ProducerMark(self._producer_id, epoch, sequence, is_transactional=False)
        base = send_batch(link, lambda: link.broker.produce(place, records, mark))
        self._positions[place] = (epoch, sequence + len(records))
        return base

    def _on_failed(self, batch: Batch | None, code: Code) -> None:
        if batch is None:
            return
        if code in FATAL["Produce"]:
            self._fatal = ClientError(code, is_fatal=True)
        # A new epoch: whether the broker counted the batch is unknown, and one that still arrives is another's.
        epoch, _ = self._positions.get(batch.place, (0, 0))
        self._positions[batch.place] = (epoch + 1, 0)
