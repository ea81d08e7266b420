"""A responder without a producer: it answers for services that are down, or that run only briefly.

It is a producer that sends no messages, with the same reader, handler, writer and errors.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from txlayer.adapters.connect import ConnectProducer, connect_producer
from txlayer.adapters.ports import Barrier
from txlayer.adapters.telemetry import NO_TRACING, Log, Tracing
from txlayer.config import AnsweringConfig, ResponderConfig
from txlayer.errors import FencedError, NotAuthorisedError, RetriableError
from txlayer.producer.aio import HEARING_COUNT_MAX
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.questions import ParkedTransaction
from txlayer.producer.responder import ObservedResponder
from txlayer.runtime.environment import is_coroutine_function

logger = Log("txlayer.responder")

LOOK_S = 0.1  # how often it checks whether to stop

RENEW_S = 1.0
RENEW_MAX_S = 30.0  # longest pause before it replaces a failed client; the pause grows with each failure
LOOP_END_S = 1.0  # how long a loop may take to stop; a handler that blocks it is abandoned
HEALTHY_AFTER_S = 60.0  # after this long without a failure, the count of failures is reset


def run_responder(
    config: ResponderConfig,
    *,
    group: str,
    should_stop: Callable[[], bool],
    check: Callable[[CheckRequest], Any] | None = None,
    barrier: Barrier | None = None,
    on_parked: Callable[[ParkedTransaction], Any] | None = None,
    connect: ConnectProducer = connect_producer,
    observed: ObservedResponder | None = None,
    tracing: Tracing = NO_TRACING,
) -> None:
    """Answer for `group` until `should_stop`; then finish the running calls, and leave the group.

    Once started, it waits for the end of any outage of the brokers. `observed` receives the source of the metrics.

    Raises:
        BrokerUnavailableError: no broker answered within `start_timeout`.
        NotAuthorisedError: the broker refused credentials or rights.
        TopicMismatchError: the namespace's topics do not exist.
        UsageError: the handler cannot be called.
    """
    timeout_s = config.check_timeout.total_seconds()
    with _callable(check, timeout_s=timeout_s) as handler, _callable(on_parked, timeout_s=timeout_s) as hears:
        shared = [*(field.name for field in fields(AnsweringConfig)), "close_timeout", "start_timeout"]
        made_with: dict[str, Any] = {
            **{name: getattr(config, name) for name in shared},
            "group": group,
            "check": handler,
            "on_parked": hears,
            "barrier": barrier,
            "connect": connect,
            "tracing": tracing,
        }
        _run(made_with, should_stop, observed)


def _run(made_with: dict[str, Any], should_stop: Callable[[], bool], observed: ObservedResponder | None) -> None:
    renew_s = RENEW_S
    has_run = False
    while not should_stop():
        begun_at = time.monotonic()
        try:
            with TransactionalProducer(**made_with) as producer:
                has_run = True
                logger.info("responder.started", extra={"group": made_with["group"]})
                if observed is not None:
                    observed.follow(producer.responder_stats)
                _answer(producer, should_stop)
        except (FencedError, RetriableError) as exc:
            # Its client failed for good, or the next one found no broker: once it has run, that is no reason to end.
            if not has_run:
                raise
            if observed is not None:
                observed.follow(None)
            logger.error("responder.renewed", extra={"reason": str(exc)})  # noqa: TRY400 - the reason is all there is
            if time.monotonic() - begun_at > HEALTHY_AFTER_S:
                renew_s = RENEW_S
            end_at = time.monotonic() + renew_s
            while time.monotonic() < end_at and not should_stop():
                time.sleep(LOOK_S)
            renew_s = min(renew_s * 2, RENEW_MAX_S)


def _answer(producer: TransactionalProducer, should_stop: Callable[[], bool]) -> None:
    while not should_stop():
        time.sleep(LOOK_S)
        producer.start()  # raises if its client has failed
        stats = producer.responder_stats()
        if stats is not None and isinstance(stats.failure, NotAuthorisedError):
            raise stats.failure


@contextmanager
def _callable(function: Callable[[Any], Any] | None, *, timeout_s: float) -> Iterator[Callable[[Any], Any] | None]:
    """The function as threads call it; a coroutine function runs on its own loop, in one more thread."""
    if function is None or not is_coroutine_function(function):
        yield function
        return
    handler: Callable[[Any], Coroutine[Any, Any, Any]] = function
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="txlayer-check-loop", daemon=True)
    thread.start()
    running: set[asyncio.Task[Any] | None] = set()  # a call may ignore that it was cancelled

    async def run(request: Any) -> Any:
        running.add(task := asyncio.current_task())
        try:
            return await handler(request)
        finally:
            running.discard(task)

    def call(request: Any) -> Any:
        if len(running) >= HEARING_COUNT_MAX:
            raise RetriableError(f"{len(running)} earlier calls have not returned")
        future = asyncio.run_coroutine_threadsafe(run(request), loop)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    try:
        yield call
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LOOP_END_S)
        if not thread.is_alive():
            loop.close()
