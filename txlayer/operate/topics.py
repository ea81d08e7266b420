"""The topics of a namespace or of a consumer group, and the rights of a principal, compared with what they must be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txlayer.adapters.namespace import Applied, Namespace
from txlayer.adapters.ports import Administration
from txlayer.adapters.topic_files import GROUP_ROLES, read_acl_files, read_topic_files
from txlayer.config import SystemTopics
from txlayer.core import acls
from txlayer.core.acls import Acl, AclChange, CreateAcl, RoleSpec, WantedAcl
from txlayer.core.dead_letters import dead_letter_topic, namesakes
from txlayer.core.ids import check_group
from txlayer.core.topics import (
    AlterSetting,
    Change,
    CreateTopic,
    DesiredTopic,
    TopicSpec,
    TopicState,
    plan,
)
from txlayer.errors import ConfigError, TopicMismatchError, UsageError


class GroupTopics:
    """Dead-letter and replay topics of a group, for topics that it consumes; nothing here deletes or shrinks."""

    def __init__(
        self,
        admin: Administration,
        *,
        group: str,
        topics: Sequence[str],
        files: Mapping[str, Mapping[str, object]],
    ) -> None:
        self._admin = admin
        self._group = group
        self._topics = tuple(dict.fromkeys(topics))
        self._specs = [
            TopicSpec.parse(files[role], origin=f"topics/{role}.toml") for role in GROUP_ROLES
        ]

    def plan(self, *, replication_factor: int | None = None) -> list[Change]:
        """What is missing or different; each topic has as many partitions as the one that it belongs to.

        Raises:
            TopicMismatchError: a topic that the group is to consume does not exist.
            UsageError: another group's topics of another topic have the same names: each would read the other's letters.
        """
        self._refuse_namesakes()
        sources = self._admin.describe_topics(self._topics)
        for topic in self._topics:
            if topic not in sources:
                raise TopicMismatchError(
                    "create it first: its dead letters stand in as many partitions",
                    topic=topic,
                    expected="a topic",
                    found="none",
                )
        desired = self._desired(sources, replication_factor)
        actual = {**sources, **self._admin.describe_topics([topic.name for topic in desired])}
        return plan(desired, actual)

    def apply(self, *, replication_factor: int | None = None) -> Applied:
        """Create what is missing, alter what may be altered; safe to repeat, also after a crash in the middle.

        Raises: as `plan`; nothing was created then.
        """
        creations = [
            c
            for c in self.plan(replication_factor=replication_factor)
            if isinstance(c, CreateTopic)
        ]
        created = set(self._admin.create(creations)) if creations else set()
        # Only a topic that exists shows its replicas and its limits.
        alterations = [
            c
            for c in self.plan(replication_factor=replication_factor)
            if isinstance(c, AlterSetting)
        ]
        self._admin.alter_settings(alterations)
        done: list[Change] = [*(c for c in creations if c.topic in created), *alterations]
        return Applied(done, self.plan(replication_factor=replication_factor))

    def _refuse_namesakes(self) -> None:
        others = [
            (topic, *other) for topic in self._topics for other in namesakes(self._group, topic)
        ]
        there = self._admin.describe_topics({other for _, _, other in others})
        for topic, group, other in others:
            if other not in there:
                continue
            places = [(other, p) for p in range(there[other].partition_count)]
            if any(self._admin.stored_offsets(group, places).values()):
                raise UsageError(
                    f"{dead_letter_topic(self._group, topic)} is the name for the dead letters of group {group} and topic "
                    f"{other}, too, and that group reads that topic: choose another name for one of the groups"
                )

    def _desired(
        self, sources: Mapping[str, TopicState], replication_factor: int | None
    ) -> list[DesiredTopic]:
        return [
            spec.desired(
                names={"group": self._group, "topic": topic},
                partition_count=sources[topic].partition_count,
                replication_factor=replication_factor,
            )
            for topic in self._topics
            for spec in self._specs
        ]


@dataclass(frozen=True, slots=True)
class WantedTopics:
    """Whose topics are meant, and what was asked for."""

    namespace: SystemTopics
    partitions: int | None
    replication_factor: int | None
    group: str | None
    topics: tuple[str, ...]

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: the options contradict each other. Nothing was asked.
        """
        if (self.group is None) != (not self.topics):
            raise UsageError(
                "--group and --topic go together: each topic has dead letters for each group"
            )
        if self.group is not None:
            check_group(self.group)
            if self.partitions is not None:
                raise UsageError(
                    "--partitions: a group's topics have as many as the topic that they belong to"
                )

    def plan(self, admin: Administration) -> list[Change]:
        """What is missing or different."""
        owner, sizes = self._owner(admin)
        return owner.plan(**sizes)

    def apply(self, admin: Administration) -> Applied:
        """Create and alter."""
        owner, sizes = self._owner(admin)
        return owner.apply(**sizes)

    def _owner(self, admin: Administration) -> tuple[Namespace | GroupTopics, dict[str, Any]]:
        sizes: dict[str, Any] = {"replication_factor": self.replication_factor}
        files = read_topic_files()
        if self.group is not None:
            return GroupTopics(admin, group=self.group, topics=self.topics, files=files), sizes
        sizes["partition_count"] = self.partitions
        return Namespace(admin, topics=self.namespace, files=files), sizes


class AclAdministration(Protocol):
    """Reads and creates the rights of a cluster."""

    def read(self) -> Collection[Acl]:
        """All rights that the cluster knows."""
        ...

    def create(self, acls: Sequence[Acl], /) -> None:
        """Create rights; those that are there stay."""
        ...


@dataclass(frozen=True, slots=True)
class WantedRights:
    """The rights that the roles of one principal need in one namespace."""

    namespace: str
    principal: str
    acls: tuple[WantedAcl, ...]

    @staticmethod
    def of(
        namespace: str,
        roles: Sequence[str],
        principal: str,
        *,
        group: str | None,
        topics: Sequence[str],
        host: str,
    ) -> WantedRights:
        """What topics/*.toml say of these roles.

        Raises:
            ConfigError, UsageError: a role is unknown or lacks a name, or the principal is none.
        """
        files = read_acl_files()
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name) or principal == acls.ANYBODY:
            raise ConfigError(
                "not one principal", name="--principal", value=principal, expected="User:NAME"
            )
        if group is not None:
            check_group(group)
        wanted: dict[Acl, WantedAcl] = {}
        for role in dict.fromkeys(roles):
            if role not in files:
                raise ConfigError(
                    "no such role", name="--role", value=role, expected=f"one of {', '.join(files)}"
                )
            entries = RoleSpec.parse(role, files[role]).wanted(
                namespace=namespace,
                group=group,
                topics=tuple(topics),
                principal=principal,
                host=host,
            )
            for entry in entries:
                wanted.setdefault(entry.acl, entry)
        return WantedRights(namespace, principal, tuple(wanted.values()))

    def compare(self, cluster: AclAdministration, *, creates: bool = False) -> list[AclChange]:
        """What is missing or more; with `creates` what is missing is created."""
        changes = acls.plan(self.acls, cluster.read(), namespace=self.namespace)
        if creates:
            cluster.create([change.acl for change in changes if isinstance(change, CreateAcl)])
        return changes
