"""Every guard that lives in code, the promise it keeps, and a seed whose world is clean with it and red without.

`python -m tests.simulation.seek` looks for the seeds anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tests.simulation import done_again as da
from tests.simulation import unasked as ua
from tests.simulation import unguarded as un
from tests.simulation.asked import make_asked_plan
from tests.simulation.plan import Plan, make_plan
from tests.simulation.society import Variant
from tests.simulation.timed import make_timed_plan, make_waiting_plan
from tests.simulation.unguarded import coordinator_with, wrapped
from tests.simulation.unkind import make_unkind_plan
from tests.support.checker import Kind
from txlayer.adapters.sql import Inbox, SqlBarrier


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard, and how a world looks without it."""

    name: str
    promise: str
    place: str
    without: Variant
    seed: int
    kinds: frozenset[Kind]
    """What a world without it has at least one of."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of both worlds."""
    plan: Callable[[int], Plan] = make_plan
    """Of the seed."""


@dataclass(frozen=True, slots=True)
class SecondLine:
    """A guard behind which another one stands: worlds without it are clean."""

    name: str
    place: str
    without: Variant
    why: str


@dataclass(frozen=True, slots=True)
class LocalGuard:
    """One guard of a local transaction, and a history on a small database that is clean with it and red without."""

    name: str
    promise: str
    place: str
    history: Callable[[Any], frozenset[Kind]]
    """What is seen with such a barrier or inbox."""
    with_it: type
    without: type
    kinds: frozenset[Kind]


_K = Kind
_LOSS = frozenset({_K.LOST, _K.FORGOTTEN, _K.DROPPED})
_TWICE = frozenset({_K.DUPLICATE})
_STUCK = frozenset({_K.RESTLESS, _K.HANGING})
_ASKED = frozenset({_K.ASKED})
_COUNTS = frozenset({_K.MISCOUNTED, _K.GIVEN_UP})
_SLOW_KAFKA = {"kafka_transaction_timeout": timedelta(seconds=600)}

GUARDS: tuple[Guard, ...] = (
    Guard(
        "a producer that may have stale requests is replaced",
        "P2",
        "publish.py",
        Variant(settings={"recycle_after": timedelta(hours=1)}),
        1412,
        _LOSS | _TWICE | {_K.TORN},
    ),
    Guard(
        "offsets carry the group's generation",
        "P2",
        "loop.py, group.py",
        wrapped(un.Unfenced),
        1938,
        _TWICE | {_K.BACKWARDS},
    ),
    Guard(
        "a Kafka transaction begins only after the one before succeeded",
        "P1",
        "publish.py",
        Variant(make=coordinator_with(publisher=un.ImpatientPublisher)),
        6,
        _LOSS,
    ),
    Guard(
        "offsets are stored in the Kafka transaction that forwards",
        "P2",
        "publish.py",
        Variant(make=coordinator_with(publisher=un.TwoStepPublisher)),
        120,
        _TWICE,
    ),
    Guard(
        "doubt is written in the Kafka transaction that stores the offsets",
        "P1",
        "publish.py",
        Variant(make=coordinator_with(publisher=un.LateDoubtPublisher)),
        53,
        _LOSS,
    ),
    Guard(
        "after any error the ledgers are built again",
        "P2",
        "loop.py",
        Variant(make=un.StubbornCoordinator),
        136,
        _TWICE | _LOSS,
    ),
    Guard(
        "a successor fences the writers before it",
        "P11",
        "recovery.py",
        Variant(make=coordinator_with(recovery=un.TrustingRecovery)),
        6,
        _STUCK,
        _SLOW_KAFKA,
    ),
    Guard(
        "a process fences what it left open itself",
        "P11",
        "recovery.py",
        Variant(make=coordinator_with(recovery=un.ForgetfulRecovery)),
        537,
        _STUCK,
        _SLOW_KAFKA,
    ),
    Guard(
        "a writer's name is stored before it forwards",
        "P11",
        "loop.py",
        Variant(make=un.NamelessCoordinator),
        46,
        _STUCK,
        _SLOW_KAFKA,
    ),
    Guard("a successor waits for stable offsets", "P2", "recovery.py", wrapped(un.Unstable), 1290, _TWICE),
    Guard(
        "doubt is read with read_committed",
        "P1",
        "recovery.py",
        wrapped(un.Uncommitted),
        6,
        _LOSS | _TWICE | {_K.PHANTOM, _K.LEFT_ON_DOUBT, _K.BROKEN, _K.TORN},
    ),
    Guard(
        "no op line is applied before its half record was read",
        "P1",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.HastyLedger)),
        8,
        _LOSS,
    ),
    Guard(
        "nothing follows from a replay",
        "P2",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.EchoingLedger)),
        14,
        _TWICE,
    ),
    Guard(
        "the low-water mark stays at the oldest open transaction",
        "P1",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.CarelessLedger)),
        3,
        _LOSS,
    ),
    Guard(
        "of an op record that is applied in part the rest is not replayed",
        "P1",
        "recovery.py",
        Variant(make=coordinator_with(recovery=un.GreedyRecovery)),
        111,
        _LOSS,
    ),
    Guard(
        "a half record that is there twice is recognised as a duplicate copy",
        "P2",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.CopyBlindLedger)),
        669,
        frozenset({_K.DUPLICATE, _K.LEFT_ON_DOUBT}),
    ),
    Guard(
        "a transaction that waits for one on doubt is on doubt too",
        "P6",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.LonelyLedger)),
        11,
        _LOSS | {_K.OUT_OF_ORDER, _K.RESTLESS},
    ),
    Guard(
        "a line counts only when it names a half record of its transaction",
        "P4",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.CredulousLedger)),
        4,
        _LOSS | {_K.CONTRARY, _K.PHANTOM},
    ),
    Guard(
        "a line that names nothing is given up",
        "P11",
        "shard.py",
        Variant(make=coordinator_with(ledger=un.PatientLedger)),
        8,
        _STUCK,
    ),
    Guard(
        "a transaction is forwarded whole or not at all",
        "P5",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.TearingLedger)),
        17,
        frozenset({_K.TORN}),
    ),
    Guard(
        "one ordering key goes in order",
        "P6",
        "forward_order.py",
        Variant(make=coordinator_with(ledger=un.UnorderedLedger)),
        7,
        frozenset({_K.OUT_OF_ORDER}),
    ),
    Guard(
        "a refused record is found and parked, a refusing topic held",
        "P11",
        "refusals.py",
        Variant(make=un.DeafCoordinator),
        108,
        _STUCK,
    ),
    Guard(
        "a topic that refused is looked at again", "P1", "targets.py", Variant(make=un.ResignedCoordinator), 6, _STUCK
    ),
    Guard(
        "op that ran ahead is read again without a new record",
        "P1",
        "loop.py",
        Variant(make=un.DrowsyCoordinator),
        32,
        _STUCK,
    ),
    Guard(
        "a suspicion ends where nothing is left to do",
        "P11",
        "refusals.py",
        Variant(make=un.GrudgingCoordinator),
        2239,
        _STUCK,
    ),
    Guard(
        "content beyond its limit leaves memory",
        "P11",
        "shard.py",
        Variant(make=coordinator_with(ledger=un.HoardingLedger)),
        66,
        frozenset({_K.HOARDED}),
        plan=make_unkind_plan,
    ),
    Guard(
        "content that is read ahead is bounded",
        "P11",
        "read_ahead.py",
        Variant(make=coordinator_with(read_ahead=un.HoardingReadAhead)),
        7,
        frozenset({_K.HOARDED}),
        plan=make_waiting_plan,
    ),
    Guard(
        "a second copy moves no more to doubt at once than one Kafka transaction takes",
        "P11",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.SweepingLedger)),
        952,
        _STUCK,
        plan=make_unkind_plan,
    ),
    Guard(
        "who cannot store what it folded last ends in peace",
        "P1",
        "loop.py",
        Variant(make=un.BrusqueCoordinator),
        147,
        frozenset({_K.BROKEN}),
    ),
    Guard(
        "a check writes its rollback before it says so",
        "P8",
        "adapters/sql/barrier.py",
        Variant(barrier=ua.ReadingCheck),
        0,
        frozenset({_K.CONTRARY}),
    ),
    Guard(
        "what the database did not confirm is unknown",
        "P8",
        "adapters/sql/barrier.py",
        Variant(barrier=ua.HopefulCheck),
        294,
        frozenset({_K.CONTRARY}),
    ),
    Guard(
        "the row of another attempt means rollback",
        "P8",
        "adapters/sql/barrier.py",
        Variant(barrier=ua.NamelessCheck),
        47,
        frozenset({_K.CONTRARY}),
    ),
    Guard("a group without members is not asked", "P7", "targets.py", Variant(make=ua.ShoutingCoordinator), 4, _ASKED),
    Guard(
        "an immune transaction is not asked about",
        "P7",
        "ledger.py",
        Variant(make=coordinator_with(ledger=ua.HastyAskingLedger)),
        27,
        _ASKED,
    ),
    Guard(
        "a question is withdrawn when its batch holds the decision",
        "P7",
        "ledger.py",
        Variant(make=coordinator_with(ledger=ua.NosyLedger)),
        48,
        _ASKED,
    ),
    Guard(
        "an answer counts once, and only to the newest question",
        "P7",
        "ledger.py",
        Variant(make=coordinator_with(ledger=ua.GullibleLedger)),
        1,
        _COUNTS,
    ),
    Guard(
        "an unanswered question is not counted",
        "P7",
        "ledger.py",
        Variant(make=coordinator_with(ledger=ua.ImpatientLedger)),
        0,
        _COUNTS,
    ),
    Guard(
        "the counts stand on doubt",
        "P7",
        "transaction.py",
        Variant(make=coordinator_with(ledger=ua.ForgetfulLedger)),
        14,
        _COUNTS,
    ),
    Guard(
        "a restart finds on doubt that questions carry something",
        "P7",
        "doubt.py",
        Variant(make=coordinator_with(ledger=ua.ShortOfMemoryLedger)),
        14,
        _ASKED,
        plan=make_asked_plan,
    ),
    Guard(
        "a writer that decides too late is notified",
        "P7",
        "ledger.py",
        Variant(make=coordinator_with(ledger=ua.MuteLedger)),
        19,
        frozenset({_K.UNTOLD}),
    ),
    Guard(
        "the first decision stands",
        "P4",
        "transitions.py",
        Variant(make=coordinator_with(ledger=ua.FickleLedger)),
        216,
        _LOSS,
    ),
    Guard(
        "a policy's line acts when it is read back",
        "P4",
        "ledger.py",
        Variant(make=coordinator_with(ledger=ua.HighHandedLedger)),
        1703,
        _LOSS | {_K.CONTRARY, _K.LEFT_ON_DOUBT},
    ),
    Guard(
        "a line that was appended before its time releases nothing",
        "P3",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.UntimelyLedger)),
        11,
        frozenset({_K.EARLY}),
        plan=make_timed_plan,
    ),
)

SECOND_LINES: tuple[SecondLine, ...] = (
    SecondLine(
        "a revocation ends all that was done for the partitions",
        "loop.py",
        wrapped(un.Unrevoked),
        "the generation that goes with the offsets refuses the next Kafka transaction; the guard saves its work",
    ),
    SecondLine(
        "a recovery ends when the group moved the partitions",
        "loop.py",
        Variant(make=coordinator_with(recovery=un.BlindRecovery)),
        "the first Kafka transaction, which stores the offsets alone, is refused; the guard saves the time until then",
    ),
    SecondLine(
        "a suspected partition that has nothing to do holds nobody up",
        "loop.py",
        Variant(make=un.StarvingCoordinator),
        "a partition with nothing left to do is not suspected any more after 10 s; the guard saves the others the time until then",
    ),
    SecondLine(
        "an unanswered commit is asked for again",
        "publish.py",
        Variant(make=coordinator_with(publisher=un.HurriedPublisher)),
        "a rebuild from the stored offsets finds out whether it happened; the guard saves the rebuild",
    ),
    SecondLine(
        "sizes are checked before anything is produced",
        "ledger.py",
        Variant(make=coordinator_with(ledger=un.UnmeasuredLedger)),
        "the broker refuses the record and bisection finds it; the guard saves the Kafka transactions until then",
    ),
)

LOCAL_GUARDS: tuple[LocalGuard, ...] = (
    LocalGuard(
        "no sale is committed after its local transaction was rolled back",
        "P8",
        "adapters/sql/joined.py",
        da.sell_again,
        SqlBarrier,
        da.LenientBarrier,
        frozenset({_K.LOST}),
    ),
    LocalGuard(
        "no sale is committed when a failed statement took the barrier's row",
        "P8",
        "adapters/sql/joined.py, barrier.py",
        da.sell_behind_a_failed_statement,
        SqlBarrier,
        da.CredulousBarrier,
        frozenset({_K.LOST}),
    ),
    LocalGuard(
        "no effect is committed after the inbox's row was rolled back",
        "P2",
        "adapters/sql/inbox.py",
        da.handle_again,
        Inbox,
        da.LenientInbox,
        frozenset({_K.AGAIN}),
    ),
)
