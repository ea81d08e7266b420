"""What the ledgers of an assignment are built from: the number of partitions, settings and check policies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import Assignment, limits_of, no_append_time
from txlayer.config import CoordinatorConfig, SystemTopics, milliseconds, parse_value
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.codec import PlainHeaders
from txlayer.core.ledger.ledger import Ledger, LedgerSettings
from txlayer.core.ledger.transaction import Target
from txlayer.core.messages import ParkReason, UnresolvedAction
from txlayer.errors import BrokerUnavailableError, ConfigError, TopicMismatchError

CHECK_SETTINGS = tuple(field.name.removesuffix("_ms") for field in fields(CheckPolicy))
"""Settings that a producer group may have of its own; a `CheckPolicy` holds them under the same names, lengths in ms."""


def check_policies(config: CoordinatorConfig) -> CheckPolicies:
    """The check policy of each producer group; ConfigError: a setting is none of these, or malformed."""
    values = {name: getattr(config, name) for name in CHECK_SETTINGS}
    own: dict[str, dict[str, Any]] = {}
    for name, text in config.group_policies.items():
        group, _, setting = name.rpartition(".")
        if not group or setting not in CHECK_SETTINGS:
            raise ConfigError(
                "no check setting of a producer group",
                name=name,
                value=text,
                expected="GROUP.NAME=VALUE, NAME one of " + ", ".join(CHECK_SETTINGS),
            )
        value = parse_value(name, setting, text, CoordinatorConfig)
        own.setdefault(group, dict(values))[setting] = value
    return CheckPolicies(_policy(values), {group: _policy(v) for group, v in own.items()})


def _policy(values: dict[str, Any]) -> CheckPolicy:
    try:
        unresolved = UnresolvedAction(values["unresolved"])
    except ValueError as exc:
        raise ConfigError(
            "no end for a transaction that nobody resolves",
            name="unresolved",
            value=values["unresolved"],
            expected=" or ".join(action.value for action in UnresolvedAction),
        ) from exc
    made: dict[str, Any] = {"unresolved": unresolved}
    for name, value in values.items():
        if isinstance(value, str):
            continue
        is_length = isinstance(value, timedelta)
        number = milliseconds(value) if is_length else value
        if number < 1:
            raise ConfigError("not possible as a limit", name=name, value=number, expected="more than 0")
        made[f"{name}_ms" if is_length else name] = number
    return CheckPolicy(**made)


def first_partition_count(
    connections: CoordinatorConnections, config: CoordinatorConfig, *, clock: Callable[[], float]
) -> int:
    """`count_partitions` for a cluster that may just be starting: retries until `start_timeout` is over."""
    patience_s = config.start_timeout.total_seconds()
    give_up_at = clock() + patience_s
    while True:
        connections.wait_until_reachable(config.topics.half, timeout_s=patience_s)
        try:
            return count_partitions(connections, config.topics)
        except BrokerUnavailableError:
            if clock() >= give_up_at:
                raise


def count_partitions(connections: CoordinatorConnections, topics: SystemTopics) -> int:
    """Number of partitions of half, op and doubt.

    Raises:
        TopicMismatchError: a topic is missing, the numbers differ, or the broker does not set append times. Nothing was read.
    """
    counts = {}
    for topic in (topics.half, topics.op, topics.doubt, topics.check):
        limits = limits_of(connections.topic_limits, topic)
        if topic in (topics.half, topics.op) and limits.is_append_time is False:
            raise no_append_time(topic, why="transactions grow old by the broker's clock alone")
        counts[topic] = limits.partition_count
    del counts[topics.check]  # its records name the partition that they concern
    for topic, count in counts.items():
        if count != counts[topics.half]:
            raise TopicMismatchError(
                "half, op and doubt must have equally many partitions; transactions would be torn apart",
                topic=topic,
                expected=str(counts[topics.half]),
                found=str(count),
            )
    return counts[topics.half]


def assigned_partitions(assignment: Assignment, topics: SystemTopics, *, partition_count: int) -> list[int]:
    """The assigned partitions, the same for half and op.

    Raises:
        TopicMismatchError: they differ, or there are more than `partition_count` by now; nothing may be read.
    """
    halves = {p for topic, p in assignment.partitions if topic == topics.half}
    ops = {p for topic, p in assignment.partitions if topic == topics.op}
    if halves != ops:
        raise TopicMismatchError(
            "half and op were not assigned alike; every member must subscribe to both with equal partition counts",
            topic=topics.op,
            expected=str(sorted(halves)),
            found=str(sorted(ops)),
        )
    if max(halves, default=0) >= partition_count:
        raise TopicMismatchError(
            "the topics of the namespace got more partitions while this coordinator ran; records would seem to be in the wrong "
            "one. Start it again",
            topic=topics.half,
            expected=str(partition_count),
            found=f"partition {max(halves)}",
        )
    return sorted(halves)


def ledger_settings(config: CoordinatorConfig, *, partition_count: int) -> LedgerSettings:
    return LedgerSettings(
        half_topic=config.topics.half,
        op_topic=config.topics.op,
        partition_count=partition_count,
        doubt_after_ms=milliseconds(config.doubt_after),
        held_age_max_ms=milliseconds(config.held_age_max),
        transaction_messages_max=config.transaction_messages_max,
        checks=check_policies(config),
        transaction_bytes_max=config.transaction_bytes_max,
    )


def empty_ledgers(
    partitions: Sequence[int],
    *,
    settings: LedgerSettings,
    targets: Mapping[str, Target],
    refusals: Mapping[str, ParkReason],
    make: type[Ledger] = Ledger,
) -> dict[int, Ledger]:
    """One ledger per partition, to be filled by a recovery."""
    headers = PlainHeaders(targets)
    ledgers = {p: make(p, settings=settings, targets=targets, refusals=refusals, headers=headers) for p in partitions}
    for ledger in ledgers.values():
        ledger.settled.share_memory(partition_count=len(ledgers))
    return ledgers
