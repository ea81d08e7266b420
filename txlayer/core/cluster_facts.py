"""Facts about a cluster: values that an adapter collects and `operate/doctor.py` judges. None: unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from txlayer.core.topics import Change

CLOCK_ERROR_MS = 60_000
"""Maximum trusted difference between clocks. Beyond it, `tx list`, `verify --since` and the user's own times are wrong by
more than a grace.
"""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """One broker."""

    broker_id: int
    settings: Mapping[str, str]
    """Empty: these credentials may not read them."""
    features: Mapping[str, int] | None
    """{feature: level in force}; None: not reported."""
    metadata_level_max: int | None = None
    """The newest `metadata.version` that this broker's software knows: its release."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic: the namespace's own, a Kafka-internal or a real one."""

    name: str
    replicas: tuple[tuple[int, ...], ...]
    """Per partition: brokers, the preferred leader first."""
    in_sync: tuple[tuple[int, ...], ...]
    leaders: tuple[int | None, ...]
    settings: Mapping[str, str]
    """Empty: these credentials may not read them."""

    @property
    def replication_factor(self) -> int:
        """The replication factor of the partition with the fewest replicas."""
        return min(map(len, self.replicas), default=0)

    def number(self, setting: str) -> int | None:
        """The value of a numeric setting; None if it is not a number."""
        text = self.settings.get(setting, "")
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition of half, op and doubt; None: nothing is stored, or there is no record."""

    partition: int
    half_start: int
    half_end: int
    op_start: int
    op_end: int
    low_water: int | None
    op_next: int | None
    low_water_ms: int | None = None
    """When the half record at the low-water mark was stored; None: half has none from there on."""
    owner: str = ""
    """Client id of the coordinator that owns it; "" if there is none."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The coordinators' group."""

    name: str
    state: str
    member_count: int


class ClockFacts(NamedTuple):
    """The broker's clock minus this machine's."""

    at_least_ms: int | None  # None: unknown in this direction
    at_most_ms: int | None


NO_CLOCK = ClockFacts(None, None)


class Right(NamedTuple):
    """One operation that was tried or queried, and whether these credentials may do it."""

    role: str  # the role that needs it: coordinator, producer, doctor
    operation: str  # as named in ACLs
    kind: str  # topic, group, transactional id
    resource: str
    is_allowed: bool | None  # None: could not be determined
    tried: str  # how it was tried
    detail: str = ""


class Limits(NamedTuple):
    """txlayer's settings that a cluster must allow; milliseconds and bytes."""

    check_immunity_ms: int
    check_interval_ms: int
    check_interval_max_ms: int
    check_max: int
    transaction_age_max_ms: int
    immunity_max_ms: int
    doubt_after_ms: int
    kafka_transaction_timeout_ms: int
    session_timeout_ms: int
    metadata_bytes_max: int

    @property
    def check_span_ms(self) -> int:
        """Time from the first half message to the last check-back, if each is answered with unknown."""
        span = self.check_immunity_ms
        for number in range(self.check_max):
            span += min(self.check_interval_ms * 2**number, self.check_interval_max_ms)
        return span

    @property
    def longest_ms(self) -> int:
        """Longest time that a transaction may be undecided before its policy acts."""
        return max(self.check_span_ms, self.transaction_age_max_ms + self.check_immunity_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """All facts about the cluster."""

    namespace: str
    half: str
    op: str
    now_ms: int
    brokers: tuple[BrokerFacts, ...]
    topics: tuple[TopicFacts, ...]
    """The namespace's topics."""
    internal_topics: tuple[TopicFacts, ...] = ()
    real_topics: tuple[TopicFacts, ...] = ()
    missing_real_topics: tuple[str, ...] = ()
    """Named by half messages or by an option, and missing."""
    changes: tuple[Change, ...] = ()
    """The plan of `topics plan`."""
    partitions: tuple[PartitionFacts, ...] = ()
    group: GroupFacts | None = None
    clock: ClockFacts = NO_CLOCK
    rights: tuple[Right, ...] = ()
    untold: Mapping[str, str] = field(default_factory=dict)
    """{fact that could not be determined: reason}."""

    def topic(self, name: str) -> TopicFacts | None:
        """One of the namespace's topics."""
        return next((topic for topic in self.topics if topic.name == name), None)
