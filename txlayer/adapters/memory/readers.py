"""The `LogReader` and the `GroupReader` of a cluster in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from txlayer.adapters.error_codes import NOT_AUTHORISED_CODES, PASSING_CODES, Code
from txlayer.adapters.memory.admin import MemoryAdmin
from txlayer.adapters.memory.groups import Member, MemberMetadata
from txlayer.adapters.memory.link import RETRY_BACKOFF_S, Link
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.adapters.memory.reading import Reading
from txlayer.adapters.memory.refusal import ClientError, NoAnswerError, RefusedError
from txlayer.adapters.ports import Assignment, TopicPartition
from txlayer.adapters.translation import COORDINATOR_ADVICE, translate_read_error
from txlayer.errors import TxLayerError

POLL_INTERVAL_MAX_MS = 60_000
"""The group client's `max.poll.interval.ms`: who does not read for so long leaves the group, heartbeats or not."""

STEPS_MAX = 8
"""Requests to the group within one read: bounds a read while everything changes."""


class MemoryLogReader:
    """Reads partitions that it names itself and tells the end of each. One thread uses it."""

    def __init__(self, link: Link, *, isolation: str) -> None:
        self._link = link
        self._is_committed = isolation == "read_committed"
        self._reading = Reading(link, is_committed=self._is_committed, tells_end=True)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets."""
        self._reading.assign(positions)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        """Records as they come; an empty list after `timeout_s`."""
        if not self._link.world.wait(self._reading.is_ready, timeout_s=timeout_s):
            return ()
        return self._reading.fetch(record_count_max)

    def pause(self, partition: TopicPartition) -> None:
        """Stop reading this one."""
        self._reading.pause([partition])

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        """(first offset, next offset as the isolation level sees it).

        Raises:
            BrokerUnavailableError: not answered within `timeout_s`.
        """
        admin = MemoryAdmin(self._link, timeout_s=timeout_s)
        return admin.watermarks(partition, is_committed=self._is_committed)

    def close(self) -> None:
        """End."""
        self._reading.assign({})


class Membership(Enum):
    """Where a client stands with its group."""

    IDLE = "idle"  #: not started, or closed
    OUT = "out"  #: it must join
    JOINING = "joining"  #: it joined, and others have not yet
    IN = "in"  #: it has its share


class MemoryGroupReader:
    """A member of a group. One thread uses it; its heartbeats count as sent while its client runs."""

    def __init__(
        self,
        link: Link,
        *,
        group: str,
        session_timeout_ms: int,
        tells_end: bool = False,
        reader: str = "the coordinator",
        advice: str = COORDINATOR_ADVICE,
    ) -> None:
        self._link = link
        self._group = group
        self._session_ms = session_timeout_ms
        self._poll_s_max = max(POLL_INTERVAL_MAX_MS, session_timeout_ms) / 1000
        self._reading = Reading(link, is_committed=True, tells_end=tells_end)
        self._reader_name = reader
        self._advice = advice
        self._reached: dict[TopicPartition, int] = {}
        self._topics: tuple[str, ...] = ()
        self._state = Membership.IDLE
        self._member_id = ""
        self._generation = -1
        self._assignment: Assignment | None = None
        self._is_revoked = False
        self._ask_again_at = 0.0
        self._read_at = 0.0

    # --- the port -----------------------------------------------------------------------------------------------------

    def start(self, topics: Sequence[str]) -> None:
        """Join the group; the assignment comes from within a later `read`."""
        self._topics = tuple(topics)
        self._state = Membership.OUT
        self._read_at = self._link.world.monotonic()

    def take_assignment(self) -> Assignment | None:
        """The newest assignment that was not taken yet; it assigns nothing, `resume_at` does."""
        taken, self._assignment = self._assignment, None
        return taken

    def take_revocation(self) -> bool:
        """True once after the group took its partitions back, or the session was lost."""
        taken, self._is_revoked = self._is_revoked, False
        return taken

    def resume_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read the assigned partitions from here."""
        self._reached.clear()
        self._reading.assign(positions)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these."""
        self._reading.pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these again."""
        self._reading.resume(partitions)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        """Records as they come, none with an error; serves the group.

        Raises:
            ConfigError: the stored offset is not in the log any more.
            TxLayerError: anything else that stops reading. Rebuild from the stored offsets.
        """
        self._check_poll_interval()
        if not self._wait(timeout_s):
            return ()
        self._serve_group()
        if self._state is not Membership.IN or not self._reading.is_ready():
            return ()
        records = self._reading.fetch(record_count_max)
        return [record for record in records if not self._is_error(record)]

    def _is_error(self, record: MemoryRecord) -> bool:
        error = record.error()
        if error is None:
            return False
        if error.code() == Code.LOCAL_PARTITION_EOF:
            self._reached[record.topic(), record.partition()] = record.offset()
        elif error.code() not in PASSING_CODES:
            raise self._translated(error, topic=record.topic())
        return True

    def _translated(self, error: ClientError, *, topic: str = "") -> TxLayerError:
        return translate_read_error(
            error, bootstrap_servers=self._link.bootstrap_servers, reader=self._reader_name,
            advice=self._advice_for(topic),
        )  # fmt: skip

    def _advice_for(self, topic: str) -> str:  # noqa: ARG002 - for those that read several
        return self._advice

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        """(first offset, last stable offset).

        Raises:
            BrokerUnavailableError: not answered within `timeout_s`.
        """
        return MemoryAdmin(self._link, timeout_s=timeout_s).watermarks(partition, is_committed=True)

    def read_to(self, partition: TopicPartition) -> int:
        """Where reading stands, at the end of a partition; -1: it is not there."""
        return self._reading.read_to(partition)

    def known_end(self, partition: TopicPartition) -> int | None:
        """None: nothing is fetched ahead of `read`."""
        del partition
        known: int | None = None
        return known

    def close(self) -> None:
        """Leave the group."""
        member_id, broker = self._member_id, self._link.broker
        is_member = self._state in (Membership.JOINING, Membership.IN)
        self._state = Membership.IDLE
        self._reading.assign({})
        if is_member:
            try:
                self._link.ask("LeaveGroup", lambda: broker.leave(self._group, member_id))
            except (NoAnswerError, RefusedError):
                return  # the session ends by itself

    # --- the group ----------------------------------------------------------------------------------------------------

    def _check_poll_interval(self) -> None:
        now = self._link.world.monotonic()
        is_late = now - self._read_at >= self._poll_s_max
        self._read_at = now
        if is_late and self._state in (Membership.JOINING, Membership.IN):
            self._on_refusal(Code.UNKNOWN_MEMBER_ID)  # the client itself left the group
            raise self._translated(ClientError(Code.LOCAL_MAX_POLL_EXCEEDED))

    def _wait(self, timeout_s: float) -> bool:
        world = self._link.world
        deadline = world.monotonic() + timeout_s
        while True:
            now = world.monotonic()
            rest_s = self._ask_again_at - now if self._ask_again_at > now else float("inf")
            if world.wait(self._has_something, timeout_s=max(min(deadline - now, rest_s), 0.0)):
                return True
            if world.monotonic() >= deadline:
                return False

    def _has_something(self) -> bool:
        if self._state is Membership.IDLE:
            return False
        cluster = self._link.cluster
        cluster.catch_up()
        if self._state is Membership.OUT:
            return cluster.is_up and self._link.world.monotonic() >= self._ask_again_at
        return self._has_news() or (self._state is Membership.IN and self._reading.is_ready())

    def _has_news(self) -> bool:
        cluster = self._link.cluster
        if not cluster.is_up or self._link.world.monotonic() < self._ask_again_at:
            return False
        group = cluster.group(self._group)
        if self._state is Membership.JOINING:
            return not group.is_rebalancing or group.has_news(self._member_id, self._generation)
        return group.has_news(self._member_id, self._generation)

    def _serve_group(self) -> None:
        for _ in range(STEPS_MAX):
            try:
                if self._state is Membership.OUT:
                    self._join()
                elif not self._has_news():
                    return
                elif self._state is Membership.JOINING:
                    self._sync()
                else:
                    self._beat()
            except NoAnswerError:
                self._rest()
                return
            except RefusedError as exc:
                self._on_refusal(exc.code)
                if exc.code in PASSING_CODES:
                    return

    def _join(self) -> None:
        link, topics = self._link, self._topics
        if not self._member_id:
            # Drawn by the client: a join whose answer is lost leaves no member behind that nobody is.
            self._member_id = f"rdkafka-{link.world.random.getrandbits(64):016x}"
        member = Member(
            self._member_id,
            link.client,
            session_ms=self._session_ms,
            rebalance_ms=int(self._poll_s_max * 1000),
            is_beating=partial(self._is_beating, self._member_id),
        )
        link.ask("JoinGroup", lambda: link.broker.join(self._group, member, topics))
        self._state = Membership.JOINING

    def _sync(self) -> None:
        link, member_id = self._link, self._member_id
        share = link.ask("SyncGroup", lambda: link.broker.sync(self._group, member_id))
        if share is None:
            return
        self._generation, partitions = share
        self._state = Membership.IN
        self._assignment = Assignment(
            tuple(sorted(partitions)),
            MemberMetadata(self._group, member_id, self._generation),
            self._generation,
        )

    def _beat(self) -> None:
        link, member_id, generation = self._link, self._member_id, self._generation
        link.ask("Heartbeat", lambda: link.broker.heartbeat(self._group, member_id, generation))

    def _on_refusal(self, code: Code) -> None:
        if code in PASSING_CODES:
            self._rest()
            return
        if code in NOT_AUTHORISED_CODES:
            raise self._translated(ClientError(code))
        if self._state is Membership.IN:
            self._before_revocation(is_lost=code is not Code.REBALANCE_IN_PROGRESS)
            self._assignment = None
            self._is_revoked = True
            self._reading.assign({})
        if code is Code.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        self._state = Membership.OUT

    def _before_revocation(self, *, is_lost: bool) -> None:
        """For members that must finish something first."""

    def _rest(self) -> None:
        self._ask_again_at = self._link.world.monotonic() + self._link.jittered(RETRY_BACKOFF_S)

    def _is_beating(self, member_id: str) -> bool:
        world = self._link.world
        return (
            self._state is not Membership.IDLE
            and self._member_id == member_id
            and world.is_running(self._link.client)
            and world.monotonic() - self._read_at < self._poll_s_max
        )
