"""Settings of producers and of stand-alone responders."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from txlayer.config.client import ClientConfig, check_limits
from txlayer.core.checks import IMMUNITY_MS_MAX

IMMUNITY_MAX = timedelta(milliseconds=IMMUNITY_MS_MAX)
"""The retention of half and op records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringConfig(ClientConfig):
    """Settings of producers and responders for answering check-backs."""

    check_timeout: timedelta = timedelta(seconds=10)
    """Longest time of a check handler; then the answer is UNKNOWN, and a later result is dropped."""
    check_workers: int = 8
    """Concurrent calls of the check handler; one slow call does not delay the others."""
    check_session_timeout: timedelta = timedelta(seconds=10)
    """Time after which the check group notices a dead instance and gives its check-backs to another."""

    def __post_init__(self) -> None:
        """Check every limit."""
        ClientConfig.__post_init__(self)
        check_limits(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(AnsweringConfig):
    """Settings of a transactional producer."""

    in_flight_max: int = 5_000
    """Transactions between `prepare` and the acknowledged op; more wait. It limits memory and what a crash leaves open."""
    transaction_messages_max: int = 10_000
    """Messages of one transaction; they become one Kafka transaction."""
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Bytes of keys, values and headers of one transaction."""
    prepare_timeout: timedelta = timedelta(seconds=30)
    """How long half messages may wait for acknowledgement; then `prepare` raises `OutcomeUnknownError`."""
    resolution_timeout: timedelta = timedelta(minutes=5)
    """How long a resolution is retried while no broker accepts it; then a check-back settles the transaction."""
    close_timeout: timedelta = timedelta(seconds=30)
    """How long `close()` waits for transactions in flight."""
    start_timeout: timedelta = timedelta(seconds=10)
    """How long the first use waits for a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponderConfig(AnsweringConfig):
    """Settings of a stand-alone responder."""

    close_timeout: timedelta = timedelta(seconds=30)
    """How long answers in flight may take after SIGTERM; unanswered check-backs are asked again."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long the responder waits for a broker at start before it exits with code 3."""
