"""Every guard that lives in code: its row on the page of guards, and what a world is without it.

The page says its promise, what is seen without it, and a seed whose world is clean with it and red without.
`python -m tests.simulation.seek` looks for the seeds anew, also for the guards of consumers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.simulation import done_again as da
from tests.simulation import unasked as ua
from tests.simulation import unguarded as un
from tests.simulation.asked import make_asked_plan
from tests.simulation.consumers.plan import ConsumerPlan
from tests.simulation.doors import make_closing_plan
from tests.simulation.leaderless import make_leaderless_plan
from tests.simulation.plan import Plan, make_plan
from tests.simulation.society import Variant
from tests.simulation.timed import make_timed_plan, make_waiting_plan
from tests.simulation.unguarded import coordinator_with, wrapped
from tests.simulation.unkind import make_unkind_plan
from tests.support.checker import Kind
from txlayer.adapters.sql import Inbox, SqlBarrier

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "guards.md"
SLOW_KAFKA = {"kafka_transaction_timeout": timedelta(seconds=600)}
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Guard(Generic[V]):
    """One guard, and how a world looks without it."""

    name: str
    kinds: frozenset[Kind]
    """What a world without it has at least one of."""
    seed: int
    without: V
    settings: dict[str, Any] = field(default_factory=dict)
    """Of both worlds."""
    plan: Callable[[int], Plan | ConsumerPlan] = make_plan
    """Of the seed."""


def rows_of(heading: str, *, column_count: int) -> list[list[str]]:
    """The rows with so many columns of the tables below a heading of the page, without their heads."""
    _, _, behind = PAGE.read_text("utf-8").partition(f"# {heading}\n")
    rows = [
        line.strip("| ").split(" | ") for line in behind.partition("\n## ")[0].splitlines() if line.startswith("| ")
    ]
    return [row for row in rows if len(row) == column_count and row[0] not in ("guard", "---")]


def guards_of(
    heading: str,
    without: Mapping[str, V],
    *,
    is_slow: frozenset[str],
    plans: Mapping[str, Callable[[int], Plan | ConsumerPlan]],
    make: Callable[[int], Plan | ConsumerPlan],
) -> tuple[Guard[V], ...]:
    """The guards that the page lists there; their worlds are made by `make`, if not by the plan of their name."""
    return tuple(
        Guard(
            name,
            kinds_of(kinds),
            int(seed),
            without[name],
            SLOW_KAFKA if name in is_slow else {},
            plans.get(name, make),
        )
        for name, _promise, _place, kinds, seed in rows_of(heading, column_count=5)
    )


def kinds_of(text: str) -> frozenset[Kind]:
    """Those that the page names."""
    return frozenset(map(Kind, text.split(", ")))


def _with(**parts: Any) -> Variant:
    return Variant(make=coordinator_with(**parts))


WITHOUT: dict[str, Variant] = {
    "a producer that may have stale requests is replaced": Variant(settings={"recycle_after": timedelta(hours=1)}),
    "offsets carry the group's generation": wrapped(un.Unfenced),
    "a Kafka transaction begins only after the one before succeeded": _with(publisher=un.ImpatientPublisher),
    "offsets are stored in the Kafka transaction that forwards": _with(publisher=un.TwoStepPublisher),
    "doubt is written in the Kafka transaction that stores the offsets": _with(publisher=un.LateDoubtPublisher),
    "after any error the ledgers are built again": Variant(make=un.StubbornCoordinator),
    "a successor fences the writers before it": _with(recovery=un.TrustingRecovery),
    "a process fences what it left open itself": _with(recovery=un.ForgetfulRecovery),
    "a writer's name is stored before it forwards": Variant(make=un.NamelessCoordinator),
    "a successor waits for stable offsets": wrapped(un.Unstable),
    "doubt is read with read_committed": wrapped(un.Uncommitted),
    "no op line is applied before its half record was read": _with(ledger=un.HastyLedger),
    "nothing follows from a replay": _with(ledger=un.EchoingLedger),
    "the low-water mark stays at the oldest open transaction": _with(ledger=un.CarelessLedger),
    "the rest of an op record that was applied in part is not replayed": _with(recovery=un.GreedyRecovery),
    "a half record that is there twice is recognised as a duplicate copy": _with(ledger=un.CopyBlindLedger),
    "a transaction that waits for one on doubt is on doubt too": _with(ledger=un.LonelyLedger),
    "a line counts only when it names a half record of its transaction": _with(ledger=un.CredulousLedger),
    "a line that names nothing is given up": _with(ledger=un.PatientLedger),
    "a transaction is forwarded whole or not at all": _with(ledger=un.TearingLedger),
    "one ordering key goes in order": _with(ledger=un.UnorderedLedger),
    "a refused record is found and parked, a refusing topic held": Variant(make=un.DeafCoordinator),
    "a topic that refused is looked at again": Variant(make=un.ResignedCoordinator),
    "op lines ahead of half are read again without a new record": Variant(make=un.DrowsyCoordinator),
    "a partition with nothing left to do is no longer suspected": Variant(make=un.GrudgingCoordinator),
    "content beyond its limit leaves memory": _with(ledger=un.HoardingLedger),
    "content that is read ahead is bounded": _with(read_ahead=un.HoardingReadAhead),
    "a second copy moves no more to doubt at once than one Kafka transaction takes": _with(ledger=un.SweepingLedger),
    "a coordinator that cannot store what it folded last ends without an error": Variant(make=un.BrusqueCoordinator),
    "a check writes its rollback before it says so": Variant(barrier=ua.ReadingCheck),
    "what the database did not confirm is unknown": Variant(barrier=ua.HopefulCheck),
    "the row of another attempt means rollback": Variant(barrier=ua.NamelessCheck),
    "a group without members is not asked": Variant(make=ua.ShoutingCoordinator),
    "an immune transaction is not asked about": _with(ledger=ua.HastyAskingLedger),
    "a question is withdrawn when its batch holds the decision": _with(ledger=ua.NosyLedger),
    "an answer counts once, and only to the newest question": _with(ledger=ua.GullibleLedger),
    "an unanswered question is not counted": _with(ledger=ua.ImpatientLedger),
    "the counts stand on doubt": _with(ledger=ua.ForgetfulLedger),
    "a restart finds on doubt what questions carry": _with(ledger=ua.ShortOfMemoryLedger),
    "a writer that decides too late is notified": _with(ledger=ua.MuteLedger),
    "the first decision stands": _with(ledger=ua.FickleLedger),
    "a policy's line acts when it is read back": _with(ledger=ua.HighHandedLedger),
    "a line that was appended before its time releases nothing": _with(ledger=un.UntimelyLedger),
    "a partition that had no leader is taken over again": Variant(make=un.LeavingCoordinator),
    "a closed namespace lets no transaction begin": Variant(produce=un.assemble_open),
    "a namespace is drained only when no transaction is open": Variant(look=un.look_at_logs),
}
"""A world without each of them."""

PLANS: dict[str, Callable[[int], Plan]] = {
    "content beyond its limit leaves memory": make_unkind_plan,
    "content that is read ahead is bounded": make_waiting_plan,
    "a second copy moves no more to doubt at once than one Kafka transaction takes": make_unkind_plan,
    "a restart finds on doubt what questions carry": make_asked_plan,
    "a line that was appended before its time releases nothing": make_timed_plan,
    "a partition that had no leader is taken over again": make_leaderless_plan,
    "a closed namespace lets no transaction begin": make_closing_plan,
    "a namespace is drained only when no transaction is open": make_closing_plan,
}
IS_SLOW = frozenset(
    {
        "a successor fences the writers before it",
        "a process fences what it left open itself",
        "a writer's name is stored before it forwards",
    }
)
GUARDS = guards_of("Guards", WITHOUT, is_slow=IS_SLOW, plans=PLANS, make=make_plan)

SECOND_LINES: dict[str, Variant] = {
    "a revocation ends all that was done for the partitions": wrapped(un.Unrevoked),
    "a recovery ends when the group moved the partitions": _with(recovery=un.BlindRecovery),
    "a suspected partition with nothing to do stops no other": Variant(make=un.StarvingCoordinator),
    "an unanswered commit is asked for again": _with(publisher=un.HurriedPublisher),
    "sizes are checked before anything is produced": _with(ledger=un.UnmeasuredLedger),
}
"""Guards behind which another one stands: worlds without them are clean."""

LOCAL_GUARDS: dict[str, tuple[Callable[[Any], frozenset[Kind]], type, type]] = {
    "no sale is committed after its local transaction was rolled back": (da.sell_again, SqlBarrier, da.LenientBarrier),
    "no sale is committed when a failed statement took the barrier's row": (
        da.sell_behind_a_failed_statement,
        SqlBarrier,
        da.CredulousBarrier,
    ),
    "no effect is committed after the inbox's row was rolled back": (da.handle_again, Inbox, da.LenientInbox),
}
"""Guards of local transactions: what is seen with such a barrier or inbox, the real one, and one without the guard."""
