"""Settings of consumers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from txlayer.config.client import ClientConfig, check_limits, check_transaction_timeout
from txlayer.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """A consumer process."""

    in_flight_max: int = 1_000
    """Messages whose handler runs or is about to; more wait their turn (bounds what a crash or a rebalance repeats)."""
    worker_count: int = 16
    """Threads of plain handlers, or processes. Coroutines need none: `in_flight_max` of them run at a time."""
    record_count_max: int = 100_000
    """Records in memory, waiting or in flight; with more their partitions are paused, and read again below half of it."""
    record_bytes_max: int = 128 * 1024 * 1024
    """The same for bytes of keys and values."""
    attempt_count_max: int = 16
    """Attempts of one message; then it is a dead letter. A handler's own `RetryPolicy` wins."""
    attempt_timeout: timedelta = timedelta(minutes=5)
    """How long one attempt may take; then it has failed. A process is killed, a coroutine is cancelled, a thread is given up."""
    hung_handlers_max: int = 16
    """Handlers that were given up and have not come back; with so many a consumer is not ready, and gives up no more."""
    store_interval: timedelta = timedelta(milliseconds=100)
    """Progress is stored so often: what a crash repeats ended within this time before it."""
    store_timeout: timedelta = timedelta(seconds=10)
    """A store of offsets that is not answered for so long is given up, and everything begins anew from what is stored."""
    metadata_bytes_max: int = 4096
    """The brokers' `offset.metadata.max.bytes`; when progress does not fit, its partition pauses until it does."""
    parked_keys_max: int = 64
    """Parked keys of one partition, each 19 bytes of its metadata; with more it waits for replays."""
    revoke_timeout: timedelta = timedelta(seconds=5)
    """How long handlers may finish when the group takes partitions back; the other members wait meanwhile."""
    close_timeout: timedelta = timedelta(seconds=30)
    """How long handlers may finish after `close()` or SIGTERM; what has not ended then is read again by the next owner."""
    session_timeout: timedelta = timedelta(seconds=6)
    """The group notices a dead member after this."""
    lease_renewal: timedelta = timedelta(seconds=20)
    """How often a lease is renewed: two may fail before it expires."""
    lease_expiry: timedelta = timedelta(seconds=60)
    """A lease ends so long after its last renewal, by the brokers' clock; no handler starts later."""
    kafka_transaction_timeout: timedelta = timedelta(seconds=10)
    """The broker ends a dead letter's Kafka transaction that hangs; part of the worst fail-over."""
    recycle_after: timedelta = timedelta(milliseconds=70)
    """0.7 x retry.backoff.ms: a slower send_offsets or commit may have been re-sent (KAFKA-17754)."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long it waits for a broker at start before it gives up with exit code 3."""
    instance_id: str = ""
    """`group.instance.id` of a static member: restarts within the session cost no rebalance. One process at a time has it."""

    def __post_init__(self) -> None:
        """Check every limit."""
        ClientConfig.__post_init__(self)
        check_limits(self)
        check_transaction_timeout(self.kafka_transaction_timeout)
        if self.lease_expiry < 2 * self.lease_renewal:
            raise ConfigError(
                "one late renewal would end the lease", name="lease_expiry",
                value=self.lease_expiry, expected="at least twice lease_renewal",
            )  # fmt: skip
