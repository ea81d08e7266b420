"""The topics of a namespace or of a consumer group, compared with what they must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from txlayer.adapters.administration import Administration
from txlayer.adapters.group_topics import GroupTopics
from txlayer.adapters.namespace import Applied, Namespace
from txlayer.adapters.topic_files import read_topic_files
from txlayer.config import SystemTopics
from txlayer.core.ids import check_group
from txlayer.core.topicspec import Change
from txlayer.errors import UsageError


@dataclass(frozen=True, slots=True)
class WantedTopics:
    """Whose topics are meant, and what was asked for."""

    namespace: SystemTopics
    partitions: int | None
    replication_factor: int | None
    group: str | None
    topics: tuple[str, ...]

    @staticmethod
    def of(
        namespace: SystemTopics,
        partitions: int | None,
        replication_factor: int | None,
        group: str | None,
        topics: Sequence[str] | None,
    ) -> WantedTopics:
        """The options together.

        Raises:
            UsageError: they contradict each other. Nothing was asked.
        """
        if (group is None) != (not topics):
            raise UsageError("--group and --topic go together: each topic has dead letters for each group")  # fmt: skip
        if group is not None:
            check_group(group)
            if partitions is not None:
                raise UsageError("--partitions: a group's topics have as many as the topic that they belong to")  # fmt: skip
        return WantedTopics(namespace, partitions, replication_factor, group, tuple(topics or ()))

    def plan(self, admin: Administration) -> list[Change]:
        """What is missing or different."""
        if self.group is not None:
            return self._group(admin, self.group).plan(replication_factor=self.replication_factor)
        return self._namespace(admin).plan(
            partition_count=self.partitions, replication_factor=self.replication_factor
        )

    def apply(self, admin: Administration) -> Applied:
        """Create and alter."""
        if self.group is not None:
            return self._group(admin, self.group).apply(replication_factor=self.replication_factor)
        return self._namespace(admin).apply(
            partition_count=self.partitions, replication_factor=self.replication_factor
        )

    def _namespace(self, admin: Administration) -> Namespace:
        return Namespace(admin, topics=self.namespace, files=read_topic_files())

    def _group(self, admin: Administration, group: str) -> GroupTopics:
        return GroupTopics(admin, group=group, topics=self.topics, files=read_topic_files())
