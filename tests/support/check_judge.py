"""The judge of check-back: what was asked, answered, counted, given up and told, held against the logs alone.

A part of `run_checker`: fed by the same `History`, whose `policies` say how the groups may be asked. Never the ledger.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from urllib.parse import unquote

from tests.support.checker import Expected, Finding, Judge, Kind, decides
from tests.support.history import History
from tests.support.logs import Seen
from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import (
    CheckKind,
    CheckRecord,
    DoubtSummary,
    OpMessage,
    ParkReason,
    Resolution,
    Source,
    Undecodable,
    UnresolvedAction,
)

_ANSWERING = frozenset({Source.CHECK, Source.BARRIER})
_TOLD = frozenset({Source.PRODUCER, *_ANSWERING})
_PARKED, _OPEN = TxnState.PARKED.value, TxnState.OPEN.value
_ROUNDING_MS = 2

Position = tuple[int, int]


def check_back_findings(history: History, judge: Judge) -> Iterable[Finding]:
    """Everything that is wrong with questions, answers, counts and giving up."""
    if history.policies is None:
        return ()
    return _CheckBack(history, judge, history.policies).findings()


class _CheckBack:
    """What the logs say about check-back."""

    def __init__(self, history: History, judge: Judge, policies: CheckPolicies) -> None:
        self._history = history
        self._judge = judge
        self._policies = policies
        self._questions: dict[str, list[tuple[Seen, CheckRecord]]] = defaultdict(list)
        self._parkings: set[str] = set()
        """Keys of transactions of whose parking a group heard."""
        self._told: set[tuple[str, str]] = set()
        self._answers: dict[str, dict[int, Position]] = defaultdict(dict)
        """{key: {question: where it was first answered with unknown}}."""
        self._lines: list[tuple[OpMessage, Seen, Position]] = []
        self._by_hand: set[str] = set()
        """Keys that a person had asked out of turn."""
        self._summaries: dict[str, list[tuple[Seen, DoubtSummary | None]]] = defaultdict(list)
        self._read()

    def findings(self) -> Iterable[Finding]:
        """All of them."""
        for key, asked in self._questions.items():
            txn = self._judge.expected.get(key)
            if txn is None:
                yield Finding(Kind.ASKED, key, "a question about an unknown transaction")
                continue
            yield from self._early(txn, asked)
            yield from self._too_late(txn, asked)
            yield from self._of_nobody(txn, asked)
            yield from self._numbers(txn, asked)
            yield from self._carried(txn, asked)
        for key, summaries in self._summaries.items():
            yield from self._counts(key, summaries)
            yield from self._parked(key, summaries)
        for key in self._parkings:
            if not any(summary is not None and summary.state == _PARKED for _, summary in self._summaries.get(key, ())):
                yield Finding(Kind.ASKED, key, "its group heard of a parking that no summary shows")
        yield from self._by_policy()
        yield from self._untold()
        yield from self._unended()

    # --- the logs -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        logs, counts = self._history.logs, self._judge.counts
        for record in logs.check:
            check = codec.decode_check(record.value)
            if isinstance(check, Undecodable):
                continue
            counts[f"check {check.kind.name.lower()}"] += 1
            if check.kind is CheckKind.QUESTION:
                self._questions[check.key].append((record, check))
            elif check.kind is CheckKind.PARKED:
                self._parkings.add(check.key)
            elif check.kind is CheckKind.REFUSED:
                self._told.add((check.key, check.text.partition(" ")[0]))
        for record in logs.op:
            lines = codec.split_ops(record.value)
            for number, line in enumerate([] if isinstance(lines, Undecodable) else lines):
                op = codec.decode_op(line)
                if isinstance(op, OpMessage):
                    self._take_line(op, record, (record.offset, number))
        for record in logs.doubt:
            parsed = codec.parse_doubt_key(record.key)
            if parsed is None or parsed[1] is not None:
                continue
            summary = None if record.value is None else codec.decode_summary(parsed[0], record.value)
            if not isinstance(summary, Undecodable):
                self._summaries[parsed[0]].append((record, summary))

    def _take_line(self, op: OpMessage, record: Seen, position: Position) -> None:
        self._lines.append((op, record, position))
        self._judge.counts[f"{op.resolution.name.lower()} by {op.source.value}"] += 1
        if op.resolution is not Resolution.UNKNOWN or op.time_ms is not None:
            return  # it answers nothing, and asks for no question
        if op.source is Source.OPERATOR:
            self._by_hand.add(op.key)
        elif op.source in _ANSWERING and op.check_number is not None:
            self._answers[op.key].setdefault(op.check_number, position)

    # --- questions ----------------------------------------------------------------------------------------------------

    def _policy(self, txn: Expected) -> CheckPolicy:
        return self._policies.of(txn.head.producer_group)

    def _immune_until_ms(self, txn: Expected) -> int:
        own = txn.head.options.immunity_ms
        immunity_ms = self._policy(txn).check_immunity_ms if own is None else own
        return txn.records[min(txn.records)].timestamp_ms + immunity_ms

    def _is_before(self, at_ms: int, wanted_ms: int) -> bool:
        """True when no coordinator's clock can have read `wanted_ms` at `at_ms`."""
        logs = self._history.logs
        # Each record of half or op tells it the time, and its own clock runs from there.
        began_ms = min(record.timestamp_ms for record in chain(logs.half, logs.op))
        gained_ms = self._history.clock_drift * (at_ms - began_ms)
        return at_ms + gained_ms + _ROUNDING_MS < wanted_ms

    def _early(self, txn: Expected, asked: list[tuple[Seen, CheckRecord]]) -> Iterable[Finding]:
        if txn.key in self._by_hand:
            return
        immune_until_ms = self._immune_until_ms(txn)
        for record, check in asked:
            if self._is_before(record.timestamp_ms, immune_until_ms):
                detail = f"question {check.number} at {record.timestamp_ms}, immune until {immune_until_ms}"
                yield Finding(Kind.ASKED, txn.key, detail)

    def _too_late(self, txn: Expected, asked: list[tuple[Seen, CheckRecord]]) -> Iterable[Finding]:
        """What was in the Kafka transaction that applied the decision, or before it, may be asked; nothing later."""
        if txn.decision is None:
            return
        over_ms = self._over_ms(txn)
        known_from = self._decision_known_from(txn)
        for record, check in asked:
            where = f"question {check.number} at {record.topic}-{record.partition}@{record.offset}"
            if over_ms is not None and record.timestamp_ms > over_ms:
                yield Finding(Kind.ASKED, txn.key, f"{where}, over since {over_ms}")
            elif record.offset >= known_from.get(record.partition, record.offset + 1):
                yield Finding(Kind.ASKED, txn.key, f"{where}, decided at op {txn.decided_at}")

    def _over_ms(self, txn: Expected) -> int | None:
        ends = [r.timestamp_ms for r, s in self._summaries.get(txn.key, ()) if s is None]
        # A part of a transaction with times is visible with its decision, and a question may be in that Kafka transaction.
        options = [head.options for head in txn.heads.values()]
        if all(each.timestamp_ms is None and each.deliver_at_ms is None for each in options):
            visible = self._judge.visible.get(txn.key, {})
            ends += [record.timestamp_ms for record in visible.values()]
        return min(ends, default=None)

    def _decision_known_from(self, txn: Expected) -> dict[int, int]:
        """{partition of check: the first offset that was free when the decision was stored as applied}."""
        history = self._history
        for sample in history.samples:
            op = sample.stored.get((history.op_topic, txn.partition))
            if op is None or not op.metadata:
                continue
            if (op.offset, int(op.metadata.split("|")[3])) > txn.decided_at:
                topic = history.check_topic
                return {p: end for (name, p), end in sample.real_ends.items() if name == topic}
        return {}

    def _of_nobody(self, txn: Expected, asked: list[tuple[Seen, CheckRecord]]) -> Iterable[Finding]:
        if txn.key in self._by_hand:
            return
        for absence in self._history.absences:
            for record, check in asked:
                is_then = absence.from_ms < record.timestamp_ms < absence.until_ms
                if is_then and check.producer_group == absence.group:
                    detail = f"question {check.number}: nobody of {absence.group} was there"
                    yield Finding(Kind.ASKED, txn.key, detail)

    def _numbers(self, txn: Expected, asked: list[tuple[Seen, CheckRecord]]) -> Iterable[Finding]:
        numbers = [check.number for _, check in asked]
        if numbers != list(range(1, len(numbers) + 1)):
            yield Finding(Kind.MISCOUNTED, txn.key, f"questions {numbers}")
        if txn.decision is None and txn.key not in self._judge.summaries:
            yield Finding(Kind.MISCOUNTED, txn.key, "was asked about, and does not stand on doubt")

    def _carried(self, txn: Expected, asked: list[tuple[Seen, CheckRecord]]) -> Iterable[Finding]:
        """A question carries what the first half record says, or names what it leaves out; never anything else."""
        half = txn.records.get(0)
        if half is None:
            return
        options = dict(half.headers)["txl"].decode().rpartition("|")[2].split(",")  # type: ignore[union-attr]  # it has one
        given = {option[:1]: option[1:] for option in options}
        query = unquote(given["q"]).encode() if "q" in given else None
        holds = {"k": ("txl-key", half.key), "q": ("txl-query", query), "c": ("txl-content", half.value)}
        wanted = [holds[part] for part in filter(None, given.get("a", "").split("+"))]
        self._judge.counts["question that carries something"] += len(asked) * bool(wanted)
        for record, check in asked:
            found = [header for header in record.headers if header[0].startswith("txl")]
            missing = [header for header in wanted if header not in found]
            others = [header for header in found if header not in wanted and header[0] != "txl-left-out"]
            if others or (missing and "txl-left-out" not in dict(found)):
                detail = f"question {check.number} carries {found}, not {wanted}"
                yield Finding(Kind.ASKED, txn.key, detail[:500])

    # --- counts -------------------------------------------------------------------------------------------------------

    def _counts(self, key: str, summaries: list[tuple[Seen, DoubtSummary | None]]) -> Iterable[Finding]:
        asked_count, answered = len(self._questions.get(key, ())), self._answers.get(key, {})
        before = (0, 0, 0)
        for record, summary in summaries:
            if summary is None:
                before = (0, 0, 0)
                continue
            now = (summary.checked_count, summary.answered_count, summary.answered_number)
            where = f"doubt-{record.partition}@{record.offset}"
            if any(new < old for new, old in zip(now, before, strict=True)):
                yield Finding(Kind.MISCOUNTED, key, f"{where}: {before} → {now}")
            if summary.checked_count > asked_count:
                detail = f"{where}: {summary.checked_count} questions counted of {asked_count}"
                yield Finding(Kind.MISCOUNTED, key, detail)
            answered_count = sum(number <= summary.checked_count for number in answered)
            if summary.answered_count > answered_count:
                detail = f"{where}: {summary.answered_count} answers counted of {answered_count}"
                yield Finding(Kind.MISCOUNTED, key, detail)
            before = now
        last = summaries[-1][1]
        if last is not None and last.checked_count < asked_count:
            detail = f"{asked_count} questions, {last.checked_count} counted at the end"
            yield Finding(Kind.MISCOUNTED, key, detail)

    # --- giving up ----------------------------------------------------------------------------------------------------

    def _parked(self, key: str, summaries: list[tuple[Seen, DoubtSummary | None]]) -> Iterable[Finding]:
        txn = self._judge.expected.get(key)
        for record, summary in summaries:
            if txn is None or summary is None or summary.state != _PARKED or not summary.seen:
                continue
            count = summary.answered_count
            yield from self._given_up(txn, summary.reason, record, count, UnresolvedAction.PARK)

    def _by_policy(self) -> Iterable[Finding]:
        for op, record, position in self._lines:
            txn = self._judge.expected.get(op.key)
            is_end = decides(op)
            if op.source is Source.POLICY and txn is not None and is_end:
                answers = self._answers.get(op.key, {}).values()
                count = sum(answered_at < position for answered_at in answers)
                then = UnresolvedAction[op.resolution.name]
                yield from self._given_up(txn, op.reason, record, count, then)

    def _given_up(
        self, txn: Expected, reason: str, record: Seen, answered_count: int, then: UnresolvedAction
    ) -> Iterable[Finding]:
        policy, where = self._policy(txn), f"{record.topic}-{record.partition}@{record.offset}"
        wanted = txn.head.options.unresolved or policy.unresolved
        is_incomplete = then is UnresolvedAction.PARK and len(txn.records) < txn.head.count
        if wanted is not then and not (is_incomplete and wanted is UnresolvedAction.COMMIT):
            yield Finding(Kind.GIVEN_UP, txn.key, f"{where}: {then.value}, against its policy")
        if reason == ParkReason.TOO_OLD.value:
            old_from_ms = self._immune_until_ms(txn) + policy.transaction_age_max_ms
            if self._is_before(record.timestamp_ms, old_from_ms):
                detail = f"{where}: too old at {record.timestamp_ms}, not before {old_from_ms}"
                yield Finding(Kind.GIVEN_UP, txn.key, detail)
        elif answered_count < policy.check_max:
            detail = f"{where}: {reason or 'no reason'} after {answered_count} answers"
            yield Finding(Kind.GIVEN_UP, txn.key, detail)

    # --- what must have happened --------------------------------------------------------------------------------------

    def _untold(self) -> Iterable[Finding]:
        spans = self._spans()
        for txn, op, position in self._judge.conflicts:
            if op.source not in _TOLD or txn.may_be_gone:
                continue
            if (op.key, op.resolution.name) in self._told:
                continue
            # Who took over in between need not remember what was settled long ago.
            for first, last in spans.get(txn.partition, ()):
                if first <= txn.decided_at and position < last:
                    detail = f"{op.resolution.name} at op {position} was refused"
                    yield Finding(Kind.UNTOLD, txn.key, detail)

    def _spans(self) -> dict[int, list[tuple[Position, Position]]]:
        """Per partition, from which op position to which one and the same ledger was seen to work."""
        found: dict[tuple[int, str], list[Position]] = defaultdict(list)
        topic = self._history.op_topic
        for sample in self._history.samples:
            for (name, partition), stored in sample.stored.items():
                if name == topic and stored.metadata:
                    _, writer, _, line, *_ = stored.metadata.split("|")
                    found[partition, writer].append((stored.offset, int(line)))
        spans: dict[int, list[tuple[Position, Position]]] = defaultdict(list)
        for (partition, _), positions in found.items():
            spans[partition].append((min(positions), max(positions)))
        return spans

    def _unended(self) -> Iterable[Finding]:
        for key in sorted(self._history.must_end):
            txn, summary = self._judge.expected.get(key), self._judge.summaries.get(key)
            if txn is None or txn.decision is not None:
                continue
            if summary is None or summary.state == _OPEN:
                asked_count = len(self._questions.get(key, ()))
                yield Finding(Kind.STUCK, key, f"open after {asked_count} questions")
