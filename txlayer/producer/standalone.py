"""A responder without a producer: it answers for services that are down, or that run only briefly.

It is a producer that sends no messages, with the same reader, handler, writer and errors.
"""

import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from txlayer.adapters.connect import ConnectProducer, connect_producer
from txlayer.adapters.ports import Barrier
from txlayer.adapters.telemetry import NO_TRACING, Log, Tracing
from txlayer.config import AnsweringConfig, ResponderConfig
from txlayer.errors import FencedError, NotAuthorisedError, RetriableError
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.questions import ParkedTransaction
from txlayer.producer.responder import ObservedResponder

logger = Log("txlayer.responder")

LOOK_S = 0.1  # how often it checks whether to stop

RENEW_S = 1.0
RENEW_MAX_S = 30.0  # longest pause before it replaces a failed client; the pause grows with each failure
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
    shared = [*(field.name for field in fields(AnsweringConfig)), "close_timeout", "start_timeout"]
    made_with: dict[str, Any] = {
        **{name: getattr(config, name) for name in shared},
        "group": group,
        "check": check,
        "on_parked": on_parked,
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
