"""Growing old without a decision: questions to the producer group, their answers, and giving up.

Never here: whose turn it is (checks.py), and what a decision does (settling.py).
"""

from __future__ import annotations

from collections.abc import Collection

from txlayer.core import codec
from txlayer.core.batch import ReportKind
from txlayer.core.checks import Then, groups_over_limit
from txlayer.core.half_fold import HalfFold
from txlayer.core.messages import (
    CheckKind,
    CheckRecord,
    OpMessage,
    ParkReason,
    Resolution,
    Source,
)
from txlayer.core.transaction import Transaction
from txlayer.core.transitions import SETTLED, Effect, Kind, TxnState, transition

LIMIT_LOOK_MS = 10_000
"""How often open transactions are counted where there are very many, and a limit is said again."""

ANSWERING = frozenset({Source.CHECK, Source.BARRIER})
"""Who writes op lines that answer a question."""


class Asking(HalfFold):
    """What follows from a transaction's age."""

    def _answered_unknown(self, txn: Transaction, op: OpMessage) -> None:
        """A line says that nobody can say yet."""
        if op.source is Source.OPERATOR:
            self._ask(txn, self.newest_ms)
            return
        more = txn.more
        if (
            op.source not in ANSWERING
            or more is None
            or op.check_number != more.checked_count
            or op.check_number <= more.answered_number
        ):
            # Its producer's own, an answer to an older question, or one that was given already: never counted.
            self._carry_out_repeat(op, Effect.REPEAT)
            return
        more.answered_count += 1
        more.answered_number = op.check_number
        if txn.state is TxnState.OPEN and self.schedule.is_out_of_answers(txn):
            self._give_up(txn, ParkReason.CHECKS_EXHAUSTED, self.newest_ms)
        self._keep(txn)

    def _carry_out_repeat(self, op: OpMessage, effect: Effect) -> None:
        kind = ReportKind.REPEAT
        if effect is Effect.CONFLICT:
            kind = ReportKind.CONFLICT
            self._tell_refused(op)
        self._report(
            kind, op.key, f"{op.resolution.name} by {op.source.value} {op.reason}".rstrip()
        )

    def _tell_refused(self, op: OpMessage) -> None:
        """The group learns that its word came too late."""
        if op.source in (Source.OPERATOR, Source.POLICY) or self.is_replaying:
            return
        self.batch.checks[f"{op.key}/{op.resolution.value}"] = CheckRecord(
            CheckKind.REFUSED, op.key, op.producer_group, self.partition, op.last_offset, op.born_ms,
            op.check_number or 0, f"{op.resolution.name} by {op.source.value}",
        )  # fmt: skip

    def _ask_those_due(self, *, now_ms: int, present: Collection[str], count_max: int) -> None:
        """Questions that are due, to groups that somebody answers for; the end of asking for the rest."""
        self._grow_old(now_ms)
        schedule = self.schedule
        self._wake_those_due(now_ms, count_max)
        schedule.ripen(now_ms)
        for txn in schedule.take_overdue(now_ms, count_max):
            if self._has_room:
                self._give_up(txn, ParkReason.TOO_OLD, now_ms)
            else:
                schedule.try_again(txn, now_ms)
        for txn in schedule.take(now_ms, present, count_max):
            if not self._has_room:
                schedule.add(txn)
            elif schedule.is_out_of_answers(txn):
                self._give_up(txn, ParkReason.CHECKS_EXHAUSTED, now_ms)
            elif txn.key in self.batch.checks:
                schedule.add(txn)  # asked by hand in this very batch
            else:
                self._ask(txn, now_ms)
        schedule.tidy(len(self.transactions))
        self._look_at_limits(now_ms)

    def _wake_those_due(self, now_ms: int, count_max: int) -> None:
        """Only so many as can be asked soon: those of a group that nobody answers for sleep on."""
        left = count_max  # for all groups together: very many may have one each
        for group in self.asleep.groups:
            for key in self.asleep.too_old(group, now_ms, left):
                self._wake(key)
                left -= 1
            room = 2 * self.schedule.policies.of(group).rate_max - self.schedule.due_count(group)
            for key in self.asleep.due(group, now_ms, min(room, left)):
                self._wake(key)
                left -= 1
            if left <= 0:
                return

    def _grow_old(self, now_ms: int) -> None:
        """Whose immunity is over has a place in the schedule; those who asked for their own have it already."""
        immune_after_ms = now_ms - self.settings.checks.shortest_immunity_ms
        young, old = self._young, self._old
        # Who was appended in the future must not hold up all behind it: its place is where that time comes.
        while young and not immune_after_ms < young[0].appended_ms <= now_ms:
            txn = young.popleft()
            self._give_a_place(txn)
            if txn.state not in SETTLED and not txn.is_in_doubt:
                old.append(txn)

    def _give_a_place(self, txn: Transaction) -> None:
        """Whoever leaves the young ones, by age or because doubt holds it meanwhile, has a place in the schedule."""
        was_asked = txn.more is not None and txn.more.checked_count > 0  # by hand: it has its place
        if txn.state is TxnState.OPEN and txn.options.immunity_ms is None and not was_asked:
            self.schedule.add(txn)

    def _ask(self, txn: Transaction, now_ms: int) -> None:
        """A question about `txn`; it stands on doubt from now on, where the count survives."""
        if self.is_replaying or not txn.seen:  # nobody could name a half record of it
            return
        if txn.key in self.batch.checks:  # one question at a time, or its number is skipped
            return
        more = txn.extra()
        more.checked_count += 1
        more.asked_ms = now_ms
        self.batch.checks[txn.key] = CheckRecord(
            CheckKind.QUESTION, txn.key, txn.group, self.partition, txn.last_offset, txn.born_ms,
            more.checked_count, ",".join(topic for topic in txn.topics if topic),
        )  # fmt: skip
        self._keep(txn)
        if txn.state is TxnState.OPEN:
            self.schedule.add(txn)
        self._report(ReportKind.CHECKED, txn.key, f"question {more.checked_count}")

    def _give_up(self, txn: Transaction, reason: ParkReason, now_ms: int) -> None:
        """Nobody is asked any more."""
        if self.is_replaying or txn.state is not TxnState.OPEN:
            return  # asked by hand it had two places in the schedule, and both were due
        policy = self.schedule.policies.of(txn.group)
        if policy.then is Then.ROLLBACK:
            self.batch.policy_lines[txn.key] = codec.encode_op(
                OpMessage(
                    Resolution.ROLLBACK, txn.key, txn.group, txn.last_offset, txn.born_ms, Source.POLICY,
                    reason=reason.value,
                )
            )  # fmt: skip
            self.schedule.try_again(txn, now_ms + policy.interval_max_ms)
            self._report(ReportKind.POLICY, txn.key, f"rollback: {reason.value}")
            return
        txn.state, _ = transition(txn.state, Kind.PARK, txn_id=txn.key)
        txn.extra().reason = reason
        self._leave_order(txn)
        self._keep(txn)
        self._report(ReportKind.PARKED, txn.key, reason.value)

    def _look_at_limits(self, now_ms: int) -> None:
        if now_ms - self._limits_looked_at_ms < LIMIT_LOOK_MS:
            return
        self._limits_looked_at_ms = now_ms
        policies = self.schedule.policies
        over: dict[str, int] = {}
        if self._limited or self.open_count >= policies.smallest_open_count_max:
            over = groups_over_limit(
                self.transactions.values(),
                policies,
                now_ms=now_ms,
                limited=self._limited.keys(),
                asleep=self.asleep.counts,
            )
        for group in {**self._limited, **over}:
            is_over = group in over
            self.batch.checks[f"{group}/"] = CheckRecord(
                CheckKind.LIMIT, "", group, self.partition, number=over.get(group, 0),
                text="on" if is_over else "off",
            )  # fmt: skip
            if is_over is not (group in self._limited):
                detail = f"{group}: {over[group]} are open" if is_over else f"{group}: not any more"
                self._report(ReportKind.LIMITED, "", detail)
        self._limited = over
