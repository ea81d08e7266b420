"""Settings of consumers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from txlayer.config.client import ClientConfig, check_limits, check_transaction_timeout
from txlayer.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of a consumer process."""

    in_flight_max: int = 1_000
    """Messages whose handler runs or is about to start; more wait. It limits what a crash or a rebalance repeats."""
    worker_count: int = 16
    """Number of threads, or of processes, for plain handlers. Coroutines use `in_flight_max` instead."""
    record_count_max: int = 100_000
    """Records in memory, waiting or in flight. At the limit partitions pause; reading resumes below half of it."""
    record_bytes_max: int = 128 * 1024 * 1024
    """The same limit in bytes of keys, values and headers."""
    attempt_count_max: int = 16
    """Attempts of one message before it becomes a dead letter. A handler's own `RetryPolicy` takes precedence."""
    attempt_timeout: timedelta = timedelta(minutes=5)
    """Longest time of one attempt, which then has failed: a process is killed, a coroutine cancelled, a thread given up."""
    hung_handlers_max: int = 16
    """Handlers that were given up and have not returned. At the limit the consumer is not ready, and gives up no more."""
    store_interval: timedelta = timedelta(milliseconds=100)
    """How often progress is stored. A crash repeats messages that ended within this time before it."""
    store_timeout: timedelta = timedelta(seconds=10)
    """How long a store of offsets may go unanswered; then the consumer starts over from the stored offsets."""
    metadata_bytes_max: int = 4096
    """The brokers' `offset.metadata.max.bytes`. A partition whose progress does not fit pauses until it does."""
    parked_keys_max: int = 64
    """Parked keys of one partition, each 19 bytes of its metadata. At the limit the partition waits for replays."""
    revoke_timeout: timedelta = timedelta(seconds=5)
    """How long handlers may finish when the group revokes partitions; the other members wait meanwhile."""
    close_timeout: timedelta = timedelta(seconds=30)
    """How long handlers may finish after `close()` or SIGTERM; the next owner reads the unfinished messages again."""
    session_timeout: timedelta = timedelta(seconds=6)
    """Time after which the group notices a dead member."""
    lease_renewal: timedelta = timedelta(seconds=20)
    """How often a lease is renewed; two renewals may fail before it expires."""
    lease_expiry: timedelta = timedelta(seconds=60)
    """A lease ends this long after its last renewal, by the brokers' clock; no handler starts later."""
    kafka_transaction_timeout: timedelta = timedelta(seconds=10)
    """Time after which the broker aborts a hanging Kafka transaction of dead letters; part of the longest fail-over."""
    recycle_after: timedelta = timedelta(milliseconds=70)
    """0.7 x retry.backoff.ms: a slower send_offsets or commit may have been sent twice (KAFKA-17754)."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long the consumer waits for a broker at start before it exits with code 3."""
    instance_id: str = ""
    """`group.instance.id` of a static member: a restart within the session causes no rebalance. One process at a time may use it."""

    def __post_init__(self) -> None:
        """Check every limit."""
        ClientConfig.__post_init__(self)
        check_limits(self)
        check_transaction_timeout(self.kafka_transaction_timeout)
        if self.lease_expiry < 2 * self.lease_renewal:
            raise ConfigError(
                "one late renewal would end the lease",
                name="lease_expiry",
                value=self.lease_expiry,
                expected="at least twice lease_renewal",
            )
