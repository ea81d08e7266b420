"""Settings of each role: coordinators, producers, stand-alone responders and consumers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from txlayer.config.client import ClientConfig, check_transaction_timeout
from txlayer.core.checks import IMMUNITY_MS_MAX
from txlayer.errors import ConfigError

_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")
"""The characters of topic names and of patterns."""

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

DOUBT_AFTER_MAX = timedelta(days=1)
"""Longest `doubt_after`. Half deletes records after 7 days: what is undecided must be on doubt long before, also after an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(ClientConfig):
    """Settings of a coordinator process."""

    target_topics: tuple[str, ...] = ()
    """Patterns (`orders`, `shop.*`) of the allowed target topics; empty: every topic that is not a system topic."""
    doubt_after: timedelta = timedelta(seconds=60)
    """Age at which an undecided transaction moves to the doubt topic; it limits how far half is read again."""
    hold_after: timedelta = timedelta(seconds=30)
    """How long a target that is unreachable, or where records time out, may stop partitions before its transactions are held."""
    held_age_max: timedelta = timedelta(days=7)
    """Age at which a held transaction is parked."""
    content_bytes_max: int = 256 * 1024 * 1024
    """Content kept in memory per worker; more is dropped and read again when needed."""
    unsettled_bytes_max: int = 512 * 1024 * 1024
    """Approximate memory of unsettled transactions per worker, without content; at the limit reading of half stops."""
    batch_lines_max: int = 10_000
    """Op lines of one partition in one Kafka transaction; it limits how long readers wait."""
    batch_bytes_max: int = 16 * 1024 * 1024
    """Bytes of one partition in one Kafka transaction."""
    batch_moves_max: int = 2_000
    """Moves to doubt of one partition in one Kafka transaction. Transactions that wait for a moved one move with it, 5,000 at most."""
    ahead_lines_max: int = 200_000
    """Op lines kept until half is read up to them; at the limit reading of op stops (P11)."""
    transaction_messages_max: int = 10_000
    """Messages of one transaction; a larger transaction is parked."""
    transaction_bytes_max: int = 128 * 1024 * 1024
    """Bytes of one transaction. A larger one is parked, and doubt gets only the positions of its messages. Set it higher than
    the producers' setting of this name, by 1 KB per message."""
    publish_interval: timedelta = timedelta(milliseconds=20)
    """Under load, the shortest time from the beginning of one Kafka transaction to the next: after one that forwarded 100
    transactions or more. Each costs the broker some twenty requests. Messages wait that much longer; 1 ms is practically none."""
    compression: str = "none"
    """Compression of what the coordinator writes: `none`, `gzip`, `snappy`, `lz4` or `zstd`. A topic's own
    `compression.type` takes precedence."""
    kafka_transaction_timeout: timedelta = timedelta(seconds=10)
    """Time after which the broker aborts a hanging Kafka transaction; part of the longest fail-over."""
    session_timeout: timedelta = timedelta(seconds=6)
    """Time after which the group notices a dead coordinator."""
    recycle_after: timedelta = timedelta(milliseconds=70)
    """0.7 x retry.backoff.ms: a slower send_offsets or commit may have been sent twice (KAFKA-17754)."""
    check_immunity: timedelta = timedelta(seconds=6)
    """Age, by the broker's clock, before which no check-back is sent; a producer may set its own value per transaction."""
    check_interval: timedelta = timedelta(seconds=30)
    """Pause after the first check-back; it doubles with each further one."""
    check_interval_max: timedelta = timedelta(minutes=10)
    """Longest pause between two check-backs of one transaction."""
    check_rate_max: int = 250
    """Check-backs per second to one producer group about one partition; it spreads them out after an outage."""
    check_max: int = 15
    """Number of UNKNOWN answers after which `unresolved` applies. Check-backs without an answer do not count."""
    transaction_age_max: timedelta = timedelta(hours=72)
    """Age without a decision after which `unresolved` applies, counted from the end of the immunity."""
    unresolved: str = "park"
    """What happens to a transaction that stays unresolved: `park` keeps it for an operator, `rollback` rolls it back."""
    open_count_max: int = 1_000_000
    """Open transactions of one producer group in one partition. At the limit, if its members do not decide them, its producers
    refuse new ones."""
    group_policies: Mapping[str, str] = field(default_factory=dict)
    """Check settings per producer group: {"orders.check_max": "5", "orders.unresolved": "rollback"}."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long a coordinator waits for a broker at start before it exits with code 3."""
    misplaced_after: timedelta = timedelta(seconds=10)
    """Time after which an op line is misplaced if the half position it names holds no record, once half is read to its high
    watermark. Lines behind it wait meanwhile; time-based work goes on."""

    def __post_init__(self) -> None:
        """Check every limit."""
        ClientConfig.__post_init__(self)
        check_transaction_timeout(self.kafka_transaction_timeout)
        if self.doubt_after > DOUBT_AFTER_MAX:
            raise ConfigError(
                "half would delete transactions that are not on doubt yet",
                name="doubt_after",
                value=self.doubt_after,
                expected="at most 1 day",
            )
        if self.compression not in COMPRESSIONS:
            raise ConfigError(
                "no such compression", name="compression", value=self.compression, expected=", ".join(COMPRESSIONS)
            )
        for pattern in self.target_topics:
            # A pattern that matches no topic name would park every message of the intended topic.
            if not _PATTERN.fullmatch(pattern):
                raise ConfigError(
                    "no topic has such a name",
                    name="target_topics",
                    value=pattern,
                    expected="a name or a pattern (orders, shop.*); several as --target-topic each, or with commas in "
                    "TXLAYER_TARGET_TOPICS",
                )


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
        check_transaction_timeout(self.kafka_transaction_timeout)
        if self.lease_expiry < 2 * self.lease_renewal:
            raise ConfigError(
                "one late renewal would end the lease",
                name="lease_expiry",
                value=self.lease_expiry,
                expected="at least twice lease_renewal",
            )
