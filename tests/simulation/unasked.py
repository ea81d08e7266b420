"""Coordinators and checks with one guard of check-back taken out. Never a switch in txlayer."""

from collections.abc import Collection, Iterable
from typing import Any

from tests.simulation.databases import BarrierCheck
from tests.simulation.processes import Process
from txlayer.coordinator.loop import Coordinator
from txlayer.core.ledger.dormant import DormantTransactions
from txlayer.core.ledger.doubt import DoubtFold
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.transaction import OpPosition, Transaction
from txlayer.core.ledger.transitions import TxnEvent, TxnState, transition
from txlayer.core.messages import ROLLBACK, OpMessage, ParkReason, Resolution, Source, UnresolvedAction, txn_id_of

# --- the barrier ------------------------------------------------------------------------------------------------------


class ReadingCheck(BarrierCheck):
    """Looks for the row and writes none."""

    def insert(self, key: str, process: Process) -> None:
        """Nothing."""

    def judge(self, key: str) -> Resolution:
        """No row: nobody committed."""
        return self._database.said_of(key) or ROLLBACK


class HopefulCheck(BarrierCheck):
    """Takes its own insert for done, whatever the database said of it."""

    def judge(self, key: str) -> Resolution:
        """Whoever has no row has ours."""
        return self._database.said_of(key) or ROLLBACK


class NamelessCheck(BarrierCheck):
    """Takes the row of another attempt for this one's."""

    def judge(self, key: str) -> Resolution:
        """The row, whoever wrote it."""
        row = self._database.rows.get(txn_id_of(key))
        return super().judge(key) if row is None else row.resolution


# --- asking -----------------------------------------------------------------------------------------------------------


class ShoutingCoordinator(Coordinator):
    """Asks groups that nobody answers for."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._presence = _Everybody()  # type: ignore[assignment]  # as far as it is used


class _Everybody:
    def of(self, schedules: Iterable[Any]) -> frozenset[str]:
        return frozenset(group for schedule in schedules for group in schedule.groups_due())


class HastyAskingLedger(Ledger):
    """Asks about whoever is there, as young as they are."""

    def _ask_those_due(self, *, now_ms: int, present: Collection[str], count_max: int) -> None:
        for txn in list(self.dormant.all_unsettled()):
            self.find(txn.key)
        for txn in list(self.transactions.values()):
            is_first = txn.extras is None or not txn.extras.checked_count
            if txn.state is TxnState.OPEN and txn.group in present and is_first:
                self._ask(txn, now_ms)
        super()._ask_those_due(now_ms=now_ms, present=present, count_max=count_max)


class ShortOfMemoryLedger(Ledger):
    """Forgets in a restart that questions carry something."""

    def start_replay(self, positions: Any, kept: DoubtFold, **more: Any) -> None:
        for txn in kept.transactions.values():
            txn.options = txn.options._replace(check_with="")
        super().start_replay(positions, kept, **more)


class GullibleLedger(Ledger):
    """Counts every answer, also to a question of yesterday, and also a second time."""

    def _answered_unknown(self, txn: Transaction, op: OpMessage) -> None:
        if op.source is not Source.OPERATOR and txn.extras is not None:
            op = op._replace(source=Source.CHECK, check_number=txn.extras.checked_count)
            txn.extras.answered_number = min(txn.extras.answered_number, txn.extras.checked_count - 1)
        super()._answered_unknown(txn, op)


class ImpatientLedger(Ledger):
    """Counts questions, answered or not."""

    def _ask(self, txn: Transaction, now_ms: int) -> None:
        super()._ask(txn, now_ms)
        if txn.extras is not None:
            txn.extras.answered_count = max(0, txn.extras.checked_count - 1)


class ForgetfulLedger(Ledger):
    """A successor knows nothing of the questions before it."""

    def start_replay(self, positions: Any, kept: DoubtFold, *, doubt_next: int, time_ms: int = 0) -> None:
        kept.transactions, kept.dormant = kept.all_unsettled(), DormantTransactions()
        for txn in kept.transactions.values():
            extras = txn.ensure_extras()
            extras.checked_count = extras.answered_count = extras.answered_number = 0
        super().start_replay(positions, kept, doubt_next=doubt_next, time_ms=time_ms)


class NosyLedger(Ledger):
    """Asks although the decision stands in the same batch."""

    def _settle(self, txn: Transaction) -> None:
        question = self.batch.checks.get(txn.key)
        super()._settle(txn)
        if question is not None:
            self.batch.checks[txn.key] = question


class MuteLedger(Ledger):
    """Tells nobody that a resolution came too late."""

    def _notify_refused(self, op: OpMessage) -> None:
        del op


# --- deciding ---------------------------------------------------------------------------------------------------------


class FickleLedger(Ledger):
    """The last word counts, not the first."""

    def _apply(self, op: OpMessage, position: OpPosition) -> None:
        if op.resolution is ROLLBACK:
            txn = self.find(op.key)
            if txn is not None and txn.state in (TxnState.WAITING, TxnState.HELD):
                op = op._replace(is_abandon=True)
        super()._apply(op, position)


class HighHandedLedger(Ledger):
    """Rolls back by policy at once, without reading its own line first."""

    def _give_up(self, txn: Transaction, reason: ParkReason, now_ms: int) -> None:
        super()._give_up(txn, reason, now_ms)
        is_rollback = self.schedule.policies.of(txn.group).unresolved is UnresolvedAction.ROLLBACK
        if is_rollback and not self.is_replaying and txn.state is TxnState.OPEN:
            line = self.batch.policy_lines.get(txn.key, "")
            txn.state, _ = transition(txn.state, TxnEvent.ROLLBACK, txn_id=txn.key)
            self._settle(txn)
            txn.content = None
            self.batch.policy_lines[txn.key] = line
