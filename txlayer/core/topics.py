"""The required state of topics (`TopicSpec`), and the changes that bring a cluster to it (`plan`).

`plan` contains no change that deletes or shrinks. Each setting of a topic file has a rule in `SETTING_RULES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

PARTITION_COUNT = 4
"""Partitions of half, op and doubt in a new namespace. They keep two coordinators on four cores busy. Clients send a request per
partition, so that each further partition costs the brokers CPU."""
CLOSED_SETTING, OPEN_VALUE = "min.compaction.lag.ms", "0"
"""The setting of half that says since when producers begin no transactions, in milliseconds since 1970, and its value if they may.
Brokers use it for compacted topics alone, and half is not compacted."""
_CLOSED_MS_MIN = 10**12  # an earlier time is an ordinary value of the setting


def closed_at_ms(settings: Mapping[str, str]) -> int | None:
    """Since when the namespace accepts no new transactions, by the settings of its half topic; None: it accepts them."""
    found = setting_number(settings, CLOSED_SETTING)
    return None if found is None or found < _CLOSED_MS_MIN else found


class SettingRule(Enum):
    """What may be done if a topic's setting differs."""

    EXACT = "exact"  #: altered to the value; no record is lost
    AT_LEAST = "at least"  #: raised to the value; a larger one stays
    AT_LEAST_OR_UNLIMITED = "at least or -1"  #: the same, and -1 is greater than any number
    BY_HAND = "by hand"  #: not altered: it could delete records


SETTING_RULES: Mapping[str, SettingRule] = {
    "cleanup.policy": SettingRule.BY_HAND,
    "max.message.bytes": SettingRule.AT_LEAST,
    "message.timestamp.type": SettingRule.EXACT,
    "min.compaction.lag.ms": SettingRule.AT_LEAST,
    "min.insync.replicas": SettingRule.AT_LEAST,
    "retention.bytes": SettingRule.AT_LEAST_OR_UNLIMITED,
    "retention.ms": SettingRule.AT_LEAST_OR_UNLIMITED,
    "unclean.leader.election.enable": SettingRule.EXACT,
}


class PartitionSource(Enum):
    """Source of a topic's partition count, if the count is not a number."""

    NAMESPACE = "namespace"  #: one count for half, op and doubt
    SOURCE = "source"  #: as many as the topic to which it belongs


@dataclass(frozen=True, slots=True)
class FollowsSetting:
    """A setting that follows the same setting of another topic."""

    topic: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a topic, with its reason."""

    name: str
    value: str
    why: str
    replication_min: int = 1  # the setting applies only to topics with at least this number of replicas
    above: FollowsSetting | None = None


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One file of topics/. `name` and `above.topic` may contain {namespace}, {group}, {topic}."""

    name: str
    partitions: int | PartitionSource
    partitions_why: str
    settings: tuple[Setting, ...]

    @staticmethod
    def parse(content: Mapping[str, Any]) -> TopicSpec:
        """The content of a file of topics/. The files are a part of txlayer: a test checks their form."""
        partitions = content["partitions"]
        count = partitions["count"]
        return TopicSpec(
            name=content["name"],
            partitions=count if isinstance(count, int) else PartitionSource(count),
            partitions_why=partitions["why"],
            settings=tuple(_setting(name, **given) for name, given in content["settings"].items()),
        )

    def desired(
        self, *, names: Mapping[str, str], partition_count: int, replication_factor: int | None = None
    ) -> DesiredTopic:
        """This topic for the given names. `partition_count` applies if the file contains no number."""
        settings = tuple(
            replace(s, above=s.above and replace(s.above, topic=s.above.topic.format_map(names))) for s in self.settings
        )
        return DesiredTopic(
            name=self.name.format_map(names),
            partition_count=self.partitions if isinstance(self.partitions, int) else partition_count,
            is_count_shared=self.partitions is PartitionSource.NAMESPACE,
            partitions_why=self.partitions_why,
            replication_factor=replication_factor,
            settings=settings,
        )


@dataclass(frozen=True, slots=True)
class DesiredTopic:
    """The required state of a topic."""

    name: str
    partition_count: int
    is_count_shared: bool  # half, op and doubt must have the same count, or coordinators refuse to start
    partitions_why: str
    replication_factor: int | None  # None: the broker's default
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class TopicState:
    """The actual state of a topic; `settings` are the effective ones, wherever they were set."""

    partition_count: int
    replication_factor: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a missing topic."""

    topic: str
    partition_count: int
    replication_factor: int | None
    settings: Mapping[str, str]
    why: str


@dataclass(frozen=True, slots=True)
class AlterSetting:
    """Alter a setting that differs, without loss of records."""

    topic: str
    setting: str
    found: str | None
    wanted: str
    why: str


@dataclass(frozen=True, slots=True)
class StoreFirstOffsets:
    """Store offsets for a group that has none, for partitions that nothing has used yet: the group begins at their start."""

    topic: str
    group: str
    partitions: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference that txlayer does not change: an operator must."""

    topic: str
    what: str
    found: str
    wanted: str
    why: str
    is_widening_interrupted: bool = False
    """More partitions were added, and `txlayer topics widen` did not come to its end."""


Change = CreateTopic | AlterSetting | StoreFirstOffsets | Difference


def shared_partition_count(names: Sequence[str], actual: Mapping[str, TopicState]) -> int | None:
    """The partition count of a namespace's existing topics (the first existing one in `names`); None for a new namespace."""
    return next((actual[name].partition_count for name in names if name in actual), None)


def plan(desired: Sequence[DesiredTopic], actual: Mapping[str, TopicState]) -> list[Change]:
    """What is missing or different, in the order of `desired`. Pure; contains no change that deletes or shrinks.

    After applying it, a new plan is empty, except for `Difference`s and for what only a created topic shows (its
    replication, and the settings of topics that others follow): plan twice.
    """
    names = [d.name for d in desired if d.is_count_shared]
    shared = shared_partition_count(names, actual)
    counts = {actual[name].partition_count for name in names if name in actual}
    changes: list[Change] = []
    for topic in desired:
        state = actual.get(topic.name)
        if state is None:
            changes.append(_create(topic, actual, shared))
            continue
        changes.extend(_differences(topic, state, max(counts) if len(counts) > 1 else None))
        changes.extend(_settings(topic, state, actual))
    return changes


def _create(topic: DesiredTopic, actual: Mapping[str, TopicState], shared: int | None) -> CreateTopic:
    replication = topic.replication_factor or 1
    return CreateTopic(
        topic=topic.name,
        # Existing topics cannot be changed, so new ones follow them, whatever was requested.
        partition_count=shared if topic.is_count_shared and shared is not None else topic.partition_count,
        replication_factor=topic.replication_factor,
        settings={s.name: _wanted(s, actual) for s in topic.settings if replication >= s.replication_min},
        why=topic.partitions_why,
    )


def _differences(topic: DesiredTopic, state: TopicState, uneven: int | None) -> list[Difference]:
    """`uneven`: the largest number of partitions where half, op and doubt have not the same: none of them gets fewer."""
    found: list[Difference] = []
    count, wanted, why = state.partition_count, topic.partition_count, topic.partitions_why
    is_interrupted = topic.is_count_shared and uneven is not None
    if is_interrupted:
        wanted = uneven or 0
        command = f"`txlayer topics widen --partitions {wanted}` ends a widening that was interrupted"
        why = f"half, op and doubt must have one partition count: no coordinator starts; {command}"
    if count != wanted:
        found.append(Difference(topic.name, "partitions", str(count), str(wanted), why, is_interrupted))
    replicas, wanted = state.replication_factor, topic.replication_factor or 0
    if replicas < wanted:
        why = "replicas are moved by the cluster's own tools (kafka-reassign-partitions)"
        found.append(Difference(topic.name, "replication factor", str(replicas), str(wanted), why))
    return found


def _settings(topic: DesiredTopic, state: TopicState, actual: Mapping[str, TopicState]) -> list[Change]:
    changes: list[Change] = []
    for setting in topic.settings:
        if state.replication_factor < setting.replication_min:
            continue
        found, wanted = state.settings.get(setting.name), _wanted(setting, actual)
        if found is not None and _is_met(setting.name, found=found, wanted=wanted):
            continue
        if SETTING_RULES[setting.name] is SettingRule.BY_HAND:
            changes.append(Difference(topic.name, setting.name, found or "", wanted, setting.why))
        else:
            changes.append(AlterSetting(topic.name, setting.name, found, wanted, setting.why))
    return changes


def _wanted(setting: Setting, actual: Mapping[str, TopicState]) -> str:
    if setting.above is None or setting.above.topic not in actual:
        return setting.value
    followed = setting_number(actual[setting.above.topic].settings, setting.name)
    return str(max(int(setting.value), (followed or 0) * setting.above.times))


def _is_met(name: str, *, found: str, wanted: str) -> bool:
    rule = SETTING_RULES[name]
    if rule is SettingRule.EXACT:
        return found == wanted
    if rule is SettingRule.BY_HAND:
        return {part.strip() for part in found.split(",")} == {part.strip() for part in wanted.split(",")}
    number, floor = _number(found), int(wanted)
    if number is None:
        return False
    if rule is SettingRule.AT_LEAST_OR_UNLIMITED and -1 in (number, floor):
        return number == -1
    return number >= floor


def setting_number(settings: Mapping[str, str], name: str) -> int | None:
    """The value of a numeric setting; None if it is missing or not a number."""
    return _number(settings.get(name, ""))


def _number(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() else None


def _setting(
    name: str, *, value: str, why: str, replication_min: int = 1, above: Mapping[str, Any] | None = None
) -> Setting:
    return Setting(name, value, why, replication_min, None if above is None else FollowsSetting(**above))
