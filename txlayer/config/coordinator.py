"""Settings of coordinator processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from txlayer.config.client import ClientConfig, check_limits, check_transaction_timeout
from txlayer.errors import ConfigError

_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")
"""What topics' names are made of, and what patterns are."""

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(ClientConfig):
    """A coordinator process."""

    target_topics: tuple[str, ...] = ()
    """Patterns (`orders`, `shop.*`) of topics that may be forwarded to; empty means every topic that is no system topic."""
    doubt_after: timedelta = timedelta(seconds=60)
    """Age at which an undecided transaction moves to the doubt topic: half is read again for so long at most."""
    hold_after: timedelta = timedelta(seconds=30)
    """How long an unreachable target, or one whose records time out, may stop partitions before its transactions are held."""
    held_age_max: timedelta = timedelta(days=7)
    """Then a held transaction is parked."""
    content_bytes_max: int = 256 * 1024 * 1024
    """Content kept in memory per worker; what is dropped is read again when it is needed."""
    unsettled_bytes_max: int = 512 * 1024 * 1024
    """About how much memory per worker unsettled transactions may take, without content; beyond it half is not read on."""
    batch_lines_max: int = 10_000
    """Op lines of one partition in one Kafka transaction: bounds how long readers wait for it."""
    batch_bytes_max: int = 16 * 1024 * 1024
    """Bytes of one partition in one Kafka transaction."""
    batch_moves_max: int = 2_000
    """Moves to doubt of one partition in one Kafka transaction."""
    ahead_lines_max: int = 200_000
    """Op lines kept while half is read up to them; then op waits (P11)."""
    transaction_messages_max: int = 10_000
    """A transaction with more is parked."""
    transaction_bytes_max: int = 128 * 1024 * 1024
    """A larger transaction is parked, and doubt gets only where its messages are. More than its producers' setting of this
    name, by 1 KB for each message."""
    compression: str = "none"
    """How the coordinator compresses what it writes: `none`, `gzip`, `snappy`, `lz4` or `zstd`. A topic whose own
    `compression.type` names one is stored in that, whatever is said here."""
    kafka_transaction_timeout: timedelta = timedelta(seconds=10)
    """The broker ends a Kafka transaction that hangs; part of the worst fail-over."""
    session_timeout: timedelta = timedelta(seconds=6)
    """The group notices a dead coordinator after this."""
    recycle_after: timedelta = timedelta(milliseconds=70)
    """0.7 x retry.backoff.ms: a slower send_offsets or commit may have been re-sent (KAFKA-17754)."""
    check_immunity: timedelta = timedelta(seconds=6)
    """Nobody is asked about a younger transaction, by the broker's clock; a producer may ask for more or less."""
    check_interval: timedelta = timedelta(seconds=30)
    """Pause after the first question; it doubles with every further one."""
    check_interval_max: timedelta = timedelta(minutes=10)
    """Longest pause between two questions about one transaction."""
    check_rate_max: int = 250
    """Questions a second to one producer group about one partition: after an outage they are spread over time."""
    check_max: int = 15
    """Answers that knew nothing; then `unresolved` says what becomes of the transaction. Questions that nobody answered
    never count."""
    transaction_age_max: timedelta = timedelta(hours=72)
    """The same after this time without a decision, counted from the end of the immunity."""
    unresolved: str = "park"
    """What becomes of a transaction that nobody could resolve: `park` keeps it for a person, `rollback` gives it up."""
    open_count_max: int = 1_000_000
    """Open transactions of one producer group in one partition; with more, when its members do not decide them, its producers refuse new ones."""
    group_policies: Mapping[str, str] = field(default_factory=dict)
    """Other check settings for single producer groups: {"orders.check_max": "5", "orders.unresolved": "rollback"}."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long a coordinator waits for a broker at start before it gives up with exit code 3."""
    misplaced_after: timedelta = timedelta(seconds=10)
    """An op line that names a place of half without a record is misplaced after this time, once half is read to its high
    watermark. Lines behind it wait meanwhile; what time brings does not."""

    def __post_init__(self) -> None:
        """Check every limit."""
        ClientConfig.__post_init__(self)
        check_limits(self)
        check_transaction_timeout(self.kafka_transaction_timeout)
        if self.compression not in COMPRESSIONS:
            raise ConfigError(
                "no such compression", name="compression", value=self.compression,
                expected=", ".join(COMPRESSIONS),
            )  # fmt: skip
        for pattern in self.target_topics:
            # A pattern that no topic's name can fit would park whatever is committed to the topic that was meant.
            if not _PATTERN.fullmatch(pattern):
                raise ConfigError(
                    "no topic has such a name", name="target_topics", value=pattern,
                    expected="a name or a pattern (orders, shop.*); several as --target-topic each, or with commas in "
                    "TXLAYER_TARGET_TOPICS",
                )  # fmt: skip
