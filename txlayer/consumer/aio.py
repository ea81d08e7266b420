"""`AsyncOrderedConsumer`: coroutine handlers as tasks of the user's event loop. Never a word that the others lack."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import ClassVar, Literal, Self, Unpack

from txlayer.adapters.connect import ConnectConsumer, connect_consumer
from txlayer.adapters.tracing import NO_TRACING, Tracing
from txlayer.config import ConsumerConfig
from txlayer.consumer.async_pool import AsyncPool
from txlayer.consumer.calls import Caller
from txlayer.consumer.deserializing import Deserializer
from txlayer.consumer.handlers import (
    AsyncBatchHandlerFunction,
    AsyncHandlerFunction,
    Interceptor,
)
from txlayer.consumer.ordered import order_of
from txlayer.consumer.pools import Pool
from txlayer.consumer.service import ConsumerService
from txlayer.consumer.settings import ConsumerSettings
from txlayer.consumer.starts import StartAt
from txlayer.core.attempts import RetryPolicy
from txlayer.errors import LifecycleError


class AsyncOrderedConsumer(ConsumerService[AsyncHandlerFunction, AsyncBatchHandlerFunction]):
    """`OrderedConsumer` for coroutine handlers: up to `in_flight_max` of them run as tasks of the running event loop.

    A handler whose deadline is over is cancelled, and has failed, also when it ignores that. Arguments and promises are those of `OrderedConsumer`; there
    are no workers to choose.
    """

    is_async: ClassVar[bool] = True

    def __init__(
        self,
        *,
        bootstrap_servers: str = "127.0.0.1:9092",
        group: str,
        topics: Sequence[str],
        parallel_by: Literal["key", "partition"] = "key",
        null_keys: Literal["ordered", "free"] = "ordered",
        start_at: StartAt | None = None,
        retry: RetryPolicy | None = None,
        interceptors: Iterable[Interceptor] = (),
        deserializer: Deserializer | None = None,
        key_deserializer: Deserializer | None = None,
        key_group: Callable[[bytes | None], str] | None = None,
        namespace: str = "txlayer",
        connect: ConnectConsumer = connect_consumer,
        tracing: Tracing = NO_TRACING,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        super().__init__(
            ConsumerConfig(bootstrap_servers=bootstrap_servers, namespace=namespace, **settings),
            group=group, topics=topics, order=order_of(parallel_by), null_keys=null_keys, start_at=start_at,
            retry=retry, interceptors=interceptors, deserializer=deserializer, key_deserializer=key_deserializer,
            key_group=key_group, connect=connect, tracing=tracing,
        )  # fmt: skip
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    async def run(self) -> None:
        """Handle messages until `stop`, `close` or cancellation; then let what runs end, store it and leave the group.

        Raises:
            UsageError: topics, settings or stored offsets are not as they must be.
            BrokerUnavailableError: no broker answered within `start_timeout`.
            LifecycleError: it ran before.
        """
        self._begin(is_waited_for=True)
        assert self._end is not None
        try:
            await self._end.wait()
        finally:
            await self._until_ended()
        self._raise_failure()

    async def start(self) -> None:
        """Begin in the background; `close` ends it. When it ends by itself, `failure` says why, and it is logged.

        Raises:
            UsageError: as `run`; what only the cluster can tell comes from `join` and `close`.
        """
        self._begin(is_waited_for=False)

    async def join(self) -> None:
        """Wait until it has ended; it is not told to end.

        Raises:
            TxLayerError: why it ended by itself.
            LifecycleError: it was not started.
        """
        if self._end is None:
            raise LifecycleError("it was not started", state="new")
        await self._end.wait()
        self._raise_failure()

    async def close(self) -> None:
        """Let what runs end within `close_timeout`, store it and leave the group; what goes on beyond is cancelled.

        Raises:
            TxLayerError: why the consumer ended by itself, unless `run` or `join` raised it before.
        """
        self._stopping.set()
        if self._end is not None:
            await self._until_ended()
            self._raise_untold_failure()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _begin(self, *, is_waited_for: bool) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self._launch(is_waited_for=is_waited_for)

    async def _until_ended(self) -> None:
        """The loop must go on until the last handler has ended, also when whoever waits is cancelled again and again."""
        assert self._end is not None
        self._stopping.set()
        cancelled: asyncio.CancelledError | None = None
        while not self._end.is_set():
            try:
                await self._end.wait()
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            raise cancelled

    def _make_pool(self, caller: Caller) -> Pool:
        if self._loop is None:
            raise LifecycleError("it is started on an event loop", state="new")
        return AsyncPool(
            caller,
            loop=self._loop,
            task_count_max=self._config.in_flight_max,
            attempt_timeout_s=self._config.attempt_timeout.total_seconds(),
            hung_max=self._config.hung_handlers_max,
        )

    def _tell_end(self) -> None:
        if self._loop is not None and self._end is not None:
            # The loop may be closed already when its program ends without waiting.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end.set)
