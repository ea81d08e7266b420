"""Settings of producers and of stand-alone responders."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from txlayer.config.client import ClientConfig, check_limits
from txlayer.core.checks import IMMUNITY_MS_MAX

IMMUNITY_MAX = timedelta(milliseconds=IMMUNITY_MS_MAX)
"""Half and op records are kept for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringConfig(ClientConfig):
    """What producers and responders share: how check-backs are answered."""

    check_timeout: timedelta = timedelta(seconds=10)
    """How long a check handler may take; then the answer is UNKNOWN, and what it says later is dropped."""
    check_workers: int = 8
    """Calls of the check handler at a time: one slow call does not hold up the others."""
    check_session_timeout: timedelta = timedelta(seconds=10)
    """The check group notices after this that an instance died, and gives its questions to another."""

    def __post_init__(self) -> None:
        """Check every limit."""
        ClientConfig.__post_init__(self)
        check_limits(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(AnsweringConfig):
    """A transactional producer."""

    in_flight_max: int = 5_000
    """Transactions between `prepare` and the acknowledged op; more wait (bounds memory and what a crash leaves open)."""
    transaction_messages_max: int = 10_000
    """Messages of one transaction (they become one Kafka transaction)."""
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Bytes of keys, values and headers of one transaction."""
    prepare_timeout: timedelta = timedelta(seconds=30)
    """How long half messages may wait for their acknowledgement; then it is `OutcomeUnknownError`."""
    resolution_timeout: timedelta = timedelta(minutes=5)
    """How long a resolution is sent again while no broker takes it; then a check-back settles the transaction."""
    close_timeout: timedelta = timedelta(seconds=30)
    """How long `close()` waits for what is in flight."""
    start_timeout: timedelta = timedelta(seconds=10)
    """How long the first use waits for a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponderConfig(AnsweringConfig):
    """A stand-alone responder."""

    close_timeout: timedelta = timedelta(seconds=30)
    """How long answers in flight may take after SIGTERM; what is not answered is asked again."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long it waits for a broker at start before it gives up with exit code 3."""
