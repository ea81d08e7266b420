"""An operator's requests on their way to the replay topic: written in order, acknowledged, at a rate. Never what they mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from txlayer.adapters.ports import HalfWriter
from txlayer.core.dead_letters import replay_topic
from txlayer.core.handling import ReplayRecord
from txlayer.core.replays import encode_replay
from txlayer.errors import OutcomeUnknownError

BATCH_BYTES = 16_384
"""One produce batch; requests are small."""

IN_FLIGHT_MAX = 1_000
"""Requests that wait for their acknowledgement: a command that is killed leaves at most so many unknown, and the same
request id asks the topic which came through."""

_WRITE_S = 120.0
"""Longer than any record waits for its acknowledgement before the client gives it up."""
_ROUND_S = 0.1


class Request(NamedTuple):
    """A request for the replay topic of `topic`."""

    topic: str
    partition: int
    key: bytes | None  # the dead letter's
    record: ReplayRecord


class Written(NamedTuple):
    """An acknowledged request."""

    request: Request
    offset: int


class RequestWriter:
    """Writes requests of one group. One thread uses it."""

    def __init__(
        self,
        make_log_writer: Callable[[int], HalfWriter],
        *,
        group: str,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._make_log_writer = make_log_writer
        self._group = group
        self._clock = clock
        self._pause = pause

    def write(
        self,
        requests: Iterable[Request],
        *,
        rate_max: float | None = None,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> list[Written]:
        """Write them in this order, at most `rate_max` a second; returns when all are acknowledged.

        Requests of one partition stand there in their order.

        Raises:
            OutcomeUnknownError, NotAuthorisedError, RetriableError, RefusedRecordError: not all are stored; those
                acknowledged before stay. The same requests may be written again, but those that came through.
        """
        writing = _Writing(self._make_log_writer(BATCH_BYTES), self._clock, on_progress)
        try:
            due = self._clock()
            for request in requests:
                self._wait_until(due, writing)
                writing.add(replay_topic(self._group, request.topic), request)
                if rate_max is not None:
                    due = max(due, self._clock() - 1 / rate_max) + 1 / rate_max
            writing.settle(0)
        finally:
            writing.close()
        return writing.written

    def _wait_until(self, due: float, writing: _Writing) -> None:
        while (left_s := due - self._clock()) > 0:
            writing.serve(0)
            self._pause(min(left_s, _ROUND_S))


class _Writing:
    """Requests under way through one writer."""

    def __init__(
        self, writer: HalfWriter, clock: Callable[[], float], on_progress: Callable[[int], None]
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._on_progress = on_progress
        self._errors: list[tuple[Any, str]] = []
        self._in_flight_count = 0
        self._placeless_count = 0
        self.written: list[Written] = []

    def add(self, topic: str, request: Request) -> None:
        def reported(error: Any, record: Any) -> None:
            self._in_flight_count -= 1
            if error is not None:
                self._errors.append((error, topic))
            elif (offset := record.offset()) is None:
                self._placeless_count += 1
            else:
                self.written.append(Written(request, offset))

        value = encode_replay(request.record)
        while True:
            try:
                self._writer.produce(topic, value, request.key, request.partition, reported, None, 0, None)  # fmt: skip
            except BufferError:
                self.serve()
            else:
                break
        self._in_flight_count += 1
        self.serve(0)
        if self._in_flight_count >= IN_FLIGHT_MAX:
            self.settle(IN_FLIGHT_MAX // 2)
        self._check()

    def serve(self, timeout_s: float = _ROUND_S) -> None:
        if self._writer.poll(timeout_s):
            self._on_progress(len(self.written))

    def settle(self, count_max: int) -> None:
        """Wait until at most so many are unacknowledged."""
        give_up_at = self._clock() + _WRITE_S
        while self._in_flight_count > count_max and self._clock() < give_up_at:
            self.serve()
            self._check()
        if self._in_flight_count > count_max:
            raise OutcomeUnknownError(
                f"{self._in_flight_count} requests were not acknowledged", step="request"
            )
        self._check()

    def close(self) -> None:
        self._writer.close(0)

    def _check(self) -> None:
        failed = self._writer.failure()
        if failed is not None:
            raise failed
        if self._errors:
            error, topic = self._errors[0]
            raise self._writer.error_of(error, topic=topic, txn_id="")
        if self._placeless_count:
            raise OutcomeUnknownError(
                f"{self._placeless_count} requests are stored, and nobody told where",
                step="request",
            )
