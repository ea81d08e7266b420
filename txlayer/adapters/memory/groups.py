"""Consumer groups of the classic protocol: members, generations, range assignment, stored offsets.

The rounds of JoinGroup and SyncGroup are one step here: when every member has joined, the group has its next generation
and each member its share. A member that does not join again in time is left out. A `RefusedError` holds
the code that Kafka answers; then nothing was changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from txlayer.adapters.errors import Code
from txlayer.adapters.memory.world import RefusedError
from txlayer.adapters.ports import StoredOffset, TopicPartition

NEVER = float("inf")


class MemberMetadata(NamedTuple):
    """A member's fence: of one generation of one group. Without a member and with -1 it fences nothing (Kafka's hole)."""

    group: str
    member_id: str = ""
    generation: int = -1


@dataclass(slots=True, eq=False)
class Member:
    """One member as the group coordinator knows it."""

    member_id: str
    client: str
    session_ms: int
    rebalance_ms: int
    is_beating: Callable[[], bool]
    """Asked when the session would end: a client's heartbeats come from a thread of its own."""
    topics: tuple[str, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    has_joined: bool = False
    seen_ms: int = 0
    join_by_ms: float = NEVER


class Group:
    """One consumer group."""

    def __init__(self, counts: Callable[[Iterable[str]], Mapping[str, int]]) -> None:
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.is_rebalancing = False
        self.stored: dict[TopicPartition, tuple[int, StoredOffset]] = {}
        """(number of the append, what was stored): the newest append wins, from any writer."""
        self.pending: dict[int, dict[TopicPartition, tuple[int, StoredOffset]]] = {}
        """The same by producer id, until the marker of its Kafka transaction lands."""
        self._counts = counts

    @property
    def state(self) -> str:
        """As Kafka's administrators see it."""
        if not self.members:
            return "empty" if self.generation or self.stored or self.pending else "dead"
        return "preparing_rebalancing" if self.is_rebalancing else "stable"

    # --- members ------------------------------------------------------------------------------------------------------

    def join(self, member: Member, topics: Sequence[str], now_ms: int) -> None:
        """A member joins, or joins again; its share comes when all others have."""
        is_new = member.member_id not in self.members
        # A member that is there already keeps its share: a join may come twice.
        member = self.members.setdefault(member.member_id, member)
        member.topics = tuple(sorted(topics))
        member.seen_ms = now_ms
        if is_new and not self.is_rebalancing:
            self._begin_rebalance(now_ms)
        member.has_joined = True
        member.join_by_ms = NEVER
        self._complete()

    def leave(self, member_id: str, now_ms: int) -> None:
        if self.members.pop(member_id, None) is not None:
            self._lost_one(now_ms)

    def heartbeat(self, member_id: str, generation: int, now_ms: int) -> None:
        member = self.member(member_id)
        member.seen_ms = now_ms
        if self.is_rebalancing and not member.has_joined:
            raise RefusedError(Code.REBALANCE_IN_PROGRESS)
        if generation != self.generation:
            raise RefusedError(Code.ILLEGAL_GENERATION)

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID)
        return member

    def has_news(self, member_id: str, generation: int) -> bool:
        """True when this member's next heartbeat, or its wait for a share, would be answered with something new."""
        member = self.members.get(member_id)
        if member is None:
            return True
        if self.is_rebalancing:
            return not member.has_joined
        return generation != self.generation

    def check_fence(self, fence: MemberMetadata) -> None:
        """What a store of offsets within a Kafka transaction is checked for: neither ownership nor the group's state."""
        if fence.generation < 0 and not fence.member_id:
            return  # the known hole
        if fence.member_id not in self.members:
            raise RefusedError(Code.UNKNOWN_MEMBER_ID)
        if fence.generation != self.generation:
            raise RefusedError(Code.ILLEGAL_GENERATION)

    def expire(self, now_ms: int) -> float:
        """Leave out whose session or time to join has ended; when to look again."""
        due = NEVER
        for member in list(self.members.values()):
            ends_ms = member.seen_ms + member.session_ms
            if ends_ms <= now_ms and member.is_beating():
                member.seen_ms = now_ms
                ends_ms = now_ms + member.session_ms
            if ends_ms <= now_ms or member.join_by_ms <= now_ms:
                del self.members[member.member_id]
                self._lost_one(now_ms)
            else:
                due = min(due, ends_ms, member.join_by_ms)
        return min(due, *(m.join_by_ms for m in self.members.values())) if self.members else due

    def look_again(self, now_ms: int) -> None:
        """Topics came or went: the members share anew."""
        if self.members and not self.is_rebalancing:
            self._begin_rebalance(now_ms)

    def _lost_one(self, now_ms: int) -> None:
        if not self.members:
            self.is_rebalancing = False
            self.generation += 1
        elif not self.is_rebalancing:
            self._begin_rebalance(now_ms)
        else:
            self._complete()

    def _begin_rebalance(self, now_ms: int) -> None:
        self.is_rebalancing = True
        for member in self.members.values():
            member.has_joined = False
            member.join_by_ms = now_ms + member.rebalance_ms

    def _complete(self) -> None:
        if not self.is_rebalancing or not all(m.has_joined for m in self.members.values()):
            return
        self.is_rebalancing = False
        self.generation += 1
        topics = {topic for member in self.members.values() for topic in member.topics}
        shares = assign_ranges({m.member_id: m.topics for m in self.members.values()}, self._counts(topics))
        for member in self.members.values():
            member.assigned = shares[member.member_id]

    # --- offsets ------------------------------------------------------------------------------------------------------

    def land_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """A Kafka transaction ended here: its offsets count, unless something newer was appended since, or are gone."""
        for tp, (number, offset) in self.pending.pop(producer_id, {}).items():
            current = self.stored.get(tp)
            if is_commit and (current is None or current[0] < number):
                self.stored[tp] = (number, offset)

    def is_pending(self, tp: TopicPartition) -> bool:
        """True while a Kafka transaction that is not ended stored an offset for it."""
        return any(tp in offsets for offsets in self.pending.values())


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """{member: partitions}: topic by topic, each member in the order of ids gets one run; the first get the rest.

    Source: Apache Kafka, org.apache.kafka.clients.consumer.RangeAssignor.
    """
    shares: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic in sorted(counts):
        members = sorted(m for m, topics in subscriptions.items() if topic in topics)
        each, rest = divmod(counts[topic], len(members)) if members else (0, 0)
        start = 0
        for number, member in enumerate(members):
            length = each + (number < rest)
            shares[member] += [(topic, p) for p in range(start, start + length)]
            start += length
    return {member: tuple(share) for member, share in shares.items()}
