"""The administrator's view of a cluster: its topics, groups and offsets, and how they are changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from txlayer.adapters.ports import StoredOffset, TopicLimits, TopicPartition
from txlayer.core.topicspec import AlterSetting, CreateTopic, TopicState


class GroupMember(NamedTuple):
    """One member of a consumer group."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class GroupState(NamedTuple):
    """A consumer group; one that never was is `dead` and has no member."""

    state: str
    members: tuple[GroupMember, ...]

    @property
    def is_active(self) -> bool:
        """True while somebody is, or may be, a member."""
        return bool(self.members) or self.state not in ("dead", "empty")


class Administration(Protocol):
    """The administrator's view of one cluster, for one thread at a time; it connects at the first question.

    Every question raises, beside what it names itself:
        BrokerUnavailableError: no answer in time; a change may have happened, ask for the state.
        NotAuthorisedError: credentials or rights were refused; nothing was changed.
    """

    def describe_topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """{name: state} of those of `names` that exist, with every setting in effect."""
        ...

    def topic_names(self) -> frozenset[str]:
        """The names of all topics that may be seen."""
        ...

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has, None when there is no such topic."""
        ...

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What a writer must know of a topic, None when there is no such topic."""
        ...

    def create(self, topics: Sequence[CreateTopic]) -> list[str]:
        """Create topics; the names of those that this call created.

        Raises:
            UsageError: the cluster refuses a topic's form; nothing was created.
        """
        ...

    def alter_settings(self, changes: Sequence[AlterSetting]) -> None:
        """Set these settings and no other.

        Raises:
            UsageError: the cluster refuses a value; what was asked for other topics may have happened.
        """
        ...

    def group(self, group: str) -> GroupState:
        """Who is a member of a consumer group and reads what."""
        ...

    def stored_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, is_stable: bool = False
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What `group` stored for each of `partitions`, None where nothing is.

        Without `is_stable` the answer does not wait for offsets of a Kafka transaction that is still open.
        """
        ...

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store offsets for a group that nobody is a member of; it need not exist.

        Raises:
            LifecycleError: the group has active members; nothing was stored.
        """
        ...

    def start_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, per partition."""
        ...

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The next offset per partition: as a `read_committed` reader sees it, else the high watermark."""
        ...

    def offsets_at(
        self, partitions: Collection[TopicPartition], *, at_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset whose record is of `at_ms` or later, else the next offset, per partition."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class AdminAnswers:
    """The questions that coordinators and consumers ask of a cluster, answered by one administrator's view.

    Every question raises:
        BrokerUnavailableError: no answer in time; ask again.
        NotAuthorisedError: this principal may not ask.
    """

    def __init__(self, admin: Administration) -> None:
        self._admin = admin

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored; with `is_stable` the answer waits for pending transactional offsets."""
        return self._admin.stored_offsets(group, partitions, is_stable=is_stable)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, per partition."""
        return self._admin.start_offsets(partitions)

    def end_offsets(
        self, partitions: Sequence[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        """The next offset per partition: the last stable one, or without `is_committed` the high watermark."""
        return self._admin.end_offsets(partitions, is_committed=is_committed)

    def offsets_at(
        self, partitions: Sequence[TopicPartition], *, at_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset whose record is of `at_ms` or later, else the next offset, per partition."""
        return self._admin.offsets_at(partitions, at_ms=at_ms)

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """What the broker says of a topic now; None: there is no such topic."""
        return self._admin.topic_limits(topic)

    def close(self) -> None:
        """Give back what the administrator's view holds."""
        self._admin.close()
