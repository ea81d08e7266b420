"""One namespace on one cluster: read, plan and apply its topics, and store its coordinators' offsets.

The required topics are data, the files of topics/ in the checkout or their copy in the wheel. `core/topics.py` derives the
changes; this module executes them.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from txlayer.adapters.ports import Administration, StoredOffset, TopicPartition
from txlayer.adapters.readers import COORDINATOR_ADVICE
from txlayer.config import SystemTopics
from txlayer.core.topics import (
    PARTITION_COUNT,
    AlterSetting,
    Change,
    CreateTopic,
    DesiredTopic,
    Difference,
    StoreFirstOffsets,
    TopicSpec,
    TopicState,
    plan,
    shared_partition_count,
)
from txlayer.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
# The wheel's copy first: next to an installed package, `topics/` could be anything.
_FOLDERS = (_PACKAGE / "_topics", _PACKAGE.parent / "topics")

NAMESPACE_ROLES = ("half", "op", "doubt", "check", "locks")  # the topics of a namespace

GROUP_ROLES = ("dlq", "replay")  # the topics of a consumer group, one of each for every topic that it consumes

START_OF_LOG = StoredOffset(0, "")
"""Where the coordinators of a new namespace begin; empty metadata means that the partition had no owner before."""


class Applied(NamedTuple):
    """The changes that `Namespace.apply` made, and those that it left to an operator."""

    done: list[Change]
    left: list[Change]


class Namespace:
    """The topics of one namespace and the offsets of its coordinator group. No method deletes or shrinks a topic."""

    def __init__(self, admin: Administration, *, topics: SystemTopics) -> None:
        self._admin = admin
        self._topics = topics
        self._specs = _installed_specs()

    def plan(self, *, partition_count: int | None = None, replication_factor: int | None = None) -> list[Change]:
        """The changes that are missing; empty if coordinators can start.

        `partition_count` defaults to that of the namespace, and to 4 for a new one.
        """
        actual = self._admin.describe_topics(self._topics.all)
        changes = plan(self._desired(actual, partition_count, replication_factor), actual)
        return [*changes, *self._missing_offsets(actual)]

    def apply(self, *, partition_count: int | None = None, replication_factor: int | None = None) -> Applied:
        """Create missing topics and apply the permitted changes. Safe to repeat, also after a crash in the middle.

        It stores offset 0 for the coordinator group where none is stored, if this call creates half, op and doubt, or
        in a namespace where no coordinator has worked yet (an earlier call was interrupted). Elsewhere it leaves a missing
        offset to an operator, because a coordinator that began at 0 would forward messages again. So would one that
        began in a recreated op topic, which lacks the earlier decisions.

        Raises:
            LifecycleError: an offset is missing, and a coordinator is a member of the group; no offset was stored.
        """
        wanted = partial(self.plan, partition_count=partition_count, replication_factor=replication_factor)
        return apply_changes(self._admin, wanted, on_created=self._store_first_offsets)

    def _desired(
        self, actual: Mapping[str, TopicState], partition_count: int | None, replication_factor: int | None
    ) -> list[DesiredTopic]:
        names = [self._topics.half, self._topics.op, self._topics.doubt]
        return [
            spec.desired(
                names={"namespace": self._topics.namespace},
                partition_count=partition_count or shared_partition_count(names, actual) or PARTITION_COUNT,
                replication_factor=replication_factor,
            )
            for spec in self._specs
        ]

    def _missing_offsets(self, actual: Mapping[str, TopicState]) -> list[Change]:
        group = self._topics.coordinator_group
        read = _partitions_of((self._topics.half, self._topics.op), actual)
        stored = self._admin.stored_offsets(group, read)
        missing: dict[str, list[int]] = {}
        for topic, p in read:
            if stored[topic, p] is None:
                missing.setdefault(topic, []).append(p)
        if missing and self._is_untouched(actual, stored):
            why = "no coordinator starts without; none has done anything here yet"
            return [StoreFirstOffsets(topic, group, tuple(without), why) for topic, without in missing.items()]
        last = max((p for (_, p), at in stored.items() if at is not None), default=-1)
        return [
            Difference(
                topic=name,
                what=f"offsets stored for {group}",
                found=f"{actual[name].partition_count - len(without)} of {actual[name].partition_count}",
                wanted="every partition",
                why=f"a widening was interrupted; `txlayer topics widen --partitions {actual[name].partition_count}` ends it"
                if (is_interrupted := 0 <= last < without[0])
                else f"no coordinator starts; find out what was lost, then {COORDINATOR_ADVICE}",
                is_widening_interrupted=is_interrupted,
            )
            for name, without in missing.items()
        ]

    def _is_untouched(
        self, actual: Mapping[str, TopicState], stored: Mapping[TopicPartition, StoredOffset | None]
    ) -> bool:
        """True while offset 0 is correct for missing offsets, because no message can have been forwarded or parked.

        Offsets may also be missing after coordinators have worked: they expire, or the group is deleted. Then the op or
        the doubt topic has had a record, which its end offset shows even if all records are gone.
        """
        shared = (self._topics.half, self._topics.op, self._topics.doubt)
        if len({actual[name].partition_count for name in shared if name in actual}) > 1:
            return False  # an operator is changing it, or must
        if any(at not in (None, START_OF_LOG) for at in stored.values()):
            return False
        written = _partitions_of((self._topics.op, self._topics.doubt), actual)
        if any(self._admin.end_offsets(written, is_committed=False).values()):
            return False
        return not any(self._admin.start_offsets(list(stored)).values())

    def _store_first_offsets(self, created: Sequence[CreateTopic]) -> None:
        counts = {c.topic: c.partition_count for c in created}
        if not {self._topics.half, self._topics.op, self._topics.doubt} <= counts.keys():
            return  # `plan` sees whether a coordinator has worked here
        partitions = [(topic, p) for topic in (self._topics.half, self._topics.op) for p in range(counts[topic])]
        stored = self._admin.stored_offsets(self._topics.coordinator_group, partitions)
        self._admin.store_offsets(
            self._topics.coordinator_group, {p: START_OF_LOG for p in partitions if stored[p] is None}
        )


def apply_changes(
    admin: Administration,
    wanted: Callable[[], list[Change]],
    *,
    on_created: Callable[[Sequence[CreateTopic]], None] = lambda _created: None,
) -> Applied:
    """Create what is missing and make the permitted changes. Safe to repeat, also after a crash in the middle."""
    creations = [c for c in wanted() if isinstance(c, CreateTopic)]
    names = set(admin.create(creations))
    created = [c for c in creations if c.topic in names]
    on_created(created)
    # Only an existing topic shows its replicas and its limits; the others follow them.
    changes = wanted()
    alterations = [c for c in changes if isinstance(c, AlterSetting)]
    admin.alter_settings(alterations)
    begun = [c for c in changes if isinstance(c, StoreFirstOffsets)]
    for change in begun:
        admin.store_offsets(change.group, {(change.topic, p): START_OF_LOG for p in change.partitions})
    return Applied([*created, *alterations, *begun], wanted())


def _partitions_of(topics: Sequence[str], actual: Mapping[str, TopicState]) -> list[TopicPartition]:
    return [(name, p) for name in topics if name in actual for p in range(actual[name].partition_count)]


@cache
def _installed_specs() -> tuple[TopicSpec, ...]:
    """Those of a namespace's own topics; they do not change while a process runs."""
    files = read_topic_files()
    return tuple(TopicSpec.parse(files[role]) for role in NAMESPACE_ROLES)


def read_topic_files(folders: Sequence[Path] = _FOLDERS) -> dict[str, dict[str, object]]:
    """{role: content} of every topic file; the role is the name of the file (`half`, `op`, …).

    It uses the first existing folder.

    Raises:
        ConfigError: the files are missing, or one is not valid TOML.
    """
    return _read(folders, "")


def read_acl_files() -> dict[str, dict[str, object]]:
    """{role: content} of every file of rights; the role is the name of the file (`producer`, `coordinator`, …)."""
    return _read(_FOLDERS, "acl")


def _read(folders: Sequence[Path], below: str) -> dict[str, dict[str, object]]:
    folder = next((folder / below for folder in folders if (folder / below).is_dir()), None)
    if folder is None:
        raise ConfigError(
            "the installation is damaged, install txlayer again",
            name="topic files",
            value=None,
            expected="topics/*.toml",
        )
    files: dict[str, dict[str, object]] = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            files[path.stem] = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as exc:
            raise ConfigError(f"{path.name}: {exc}", name="topic file", value=path.name, expected="TOML") from exc
    return files
