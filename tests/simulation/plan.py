"""What happens in one simulated world, out of a seed: who takes part, what they do, what goes wrong. Never: playing it.

A plan is plain data, so that a found fault can be shrunk by leaving parts of it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from txlayer.core.messages import Resolution

if TYPE_CHECKING:
    from tests.simulation.unkind import Unkind

NAMESPACE = "sim"
TARGETS = ("orders", "stock")
LATE_TARGET = "late"
"""A target that is created in the middle of a run."""
SMALL_TARGET = "small"
"""A target whose largest message is smaller than what some producers send, because it shrank after they asked."""

LARGE_BYTES = 3_000


class Harm(Enum):
    """What can go wrong."""

    LOSE_REQUEST = "request lost"
    LOSE_ANSWER = "answer lost"
    LATE = "request late"  #: lost for its client, and arrives afterwards
    ECHO = "answer lost, request again late"
    DOUBLE = "request twice"
    TWIN = "kept twice by the broker"  #: librdkafka #4953
    SLOW = "slow"
    REFUSE = "refused"
    DIE_BEFORE = "dies, request under way"
    DIE_AFTER = "dies before the answer"
    DIE = "dies"
    FREEZE = "freezes"
    LEAVE = "leaves"
    CUT = "cut off"
    DOWN = "brokers down"
    DENY = "topic denied"
    LEADERLESS = "topic without leaders"


AT_REQUEST = frozenset(
    {
        Harm.LOSE_REQUEST,
        Harm.LOSE_ANSWER,
        Harm.LATE,
        Harm.ECHO,
        Harm.DOUBLE,
        Harm.TWIN,
        Harm.SLOW,
        Harm.REFUSE,
        Harm.DIE_BEFORE,
        Harm.DIE_AFTER,
    }
)
"""Those that happen to the n-th request of a kind; the others have their time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    harm: Harm
    slot: str  # whose: "c0", "p1"; of a topic its name, and with "/1" of one partition; "" for the brokers
    request: str = ""  # Kafka's name, for those at a request; "" counts all of them
    number: int = 0  # the n-th such request of the slot, from 1
    at_s: float = 0.0
    seconds: float = 0.0  # how long, or how late
    behind: int = 0  # of a late one: after how many more requests of its slot it arrives, instead of a time
    code: str = ""
    is_beating: bool = False  # of a frozen process: its heartbeats go on

    def __str__(self) -> str:
        where = f"{self.request or 'request'} {self.number}" if self.number else f"{self.at_s:.2f} s"
        rest = f" {self.code}" if self.code else ""
        if self.behind:
            rest += f", arrives {self.behind} requests later"
        elif self.seconds:
            rest += f" for {self.seconds:.2f} s"
        return f"{self.slot or 'brokers'}: {self.harm.value} at {where}{rest}"


class End(Enum):
    """Where a producer process dies in a transaction."""

    SENT = "sent"  #: half messages under way, not acknowledged
    PREPARED = "prepared"  #: half messages acknowledged, the local transaction not run
    BEGUN = "begun"  #: the local transaction is open
    LOCAL = "local"  #: the local transaction ended, nothing said
    RESOLVED = "resolved"  #: the resolution is queued
    SAID = "said"  #: the resolution is acknowledged


@dataclass(frozen=True, slots=True)
class Line:
    """An op line that somebody else than the producer writes."""

    resolution: Resolution
    after_s: float
    wrong_offset: int = 0  # added to the offset that it names


@dataclass(frozen=True, slots=True)
class PlannedTransaction:
    """One transaction of a producer."""

    txn_id: str
    at_s: float
    messages: tuple[tuple[str, int, bool], ...]  # topic, bytes of the value, has a key
    ordering_key: str | None
    order: str
    local: Resolution  # what the user's database says
    work_s: float
    is_silent: bool  # the producer never says what became of it
    end: End | None
    lines: tuple[Line, ...]
    immunity_s: float | None = None  # its own
    is_unclear: bool = False  # the connection is lost in the local commit
    is_retried: bool = False  # who dies in it tries the same id again
    unresolved: str | None = None  # its own policy
    delays_s: tuple[float | None, ...] = ()  # of its messages: how much later they may be seen; empty: none has a time
    check_with: tuple[str, ...] = ()  # what questions about it carry


@dataclass(frozen=True, slots=True)
class Garbage:
    """A record that no producer of ours writes."""

    at_s: float
    kind: str
    number: int


@dataclass(frozen=True, slots=True)
class Settings:
    """What differs from world to world without being a fault."""

    partition_count: int
    target_partitions: int
    doubt_after_s: float
    hold_after_s: float
    held_age_max_s: float
    batch_lines_max: int
    batch_moves_max: int
    ahead_lines_max: int
    content_bytes_max: int
    latency_s: float
    slow_share: float
    lateness: float  # by how much of its length a wait may take longer
    marker_delay_s: float
    late_target_s: float  # when `LATE_TARGET` is created
    small_target_s: float  # when `SMALL_TARGET` shrinks
    skews: tuple[float, ...]  # rates of the clients' clocks
    wall_skews: tuple[float, ...]  # seconds by which their wall clocks are wrong
    settle_share: float  # of the undecided ones at the end that a person decides


class Answers(Enum):
    """How a producer group knows what became of a transaction."""

    BARRIER = "barrier"  #: the first writer of the row says it
    HONEST = "honest"  #: it looks, and waits for who still lives
    NAIVE = "naive"  #: what is not committed yet is rolled back: wrong when the check comes early
    MUTE = "mute"  #: it never knows
    TORN = "torn"  #: each instance has its own opinion


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One producer group, and how it is asked."""

    name: str
    answers: Answers
    responders: tuple[float, ...]  # when each joins; () nobody ever does
    immunity_s: float
    interval_s: float
    interval_max_s: float
    rate_max: int
    answered_max: int
    age_max_s: float
    unresolved: str
    open_count_max: int
    slow_share: float  # of the answers that take long, and how long at most
    slow_s: float
    twice_share: float  # of the answers that are written twice
    failing_share: float  # of the checks to which the database does not say anything


@dataclass(frozen=True, slots=True)
class Act:
    """What an operator does by hand to one of the transactions that there are."""

    at_s: float
    word: str  # commit, rollback, ask, abandon, move
    number: int  # which one


@dataclass(frozen=True, slots=True)
class Door:
    """From then on producers may begin transactions, or may not."""

    at_s: float
    is_open: bool


@dataclass(frozen=True, slots=True)
class CheckBack:
    """Everything about check-back in one world."""

    groups: tuple[GroupPlan, ...]
    membership: tuple[int, ...]  # of each producer: the number of its group
    acts: tuple[Act, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One world."""

    seed: int  # of everything that is drawn while it runs
    settings: Settings
    coordinators: tuple[float, ...]  # when each joins
    producers: tuple[tuple[PlannedTransaction, ...], ...]
    garbage: tuple[Garbage, ...]
    faults: tuple[Fault, ...]
    until_s: float
    notes: tuple[str, ...] = field(default=())
    check_back: CheckBack | None = None  # nobody answers, nobody is asked
    doors: tuple[Door, ...] = ()  # an operator closes and opens the namespace
    unkind: Unkind | None = None  # beside faults, the cluster does nothing that it need not


def make_plan(seed: int) -> Plan:
    """The plan of a seed, the same on every machine."""
    from tests.simulation.checked import with_check_back
    from tests.simulation.draw import Planner

    return with_check_back(Planner(seed).plan(), seed)
