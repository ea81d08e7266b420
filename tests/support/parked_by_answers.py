"""Who was parked by an answer, told from check, op and doubt alone. Never the ledger.

The doubt topic shows what is parked at the end of a Kafka transaction. One whose last answer that counts is "unknown" is parked by
that line of op, and when the next line of the same Kafka transaction decides it, no summary ever says so.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from tests.support.history import History, Logs
from txlayer.core import codec
from txlayer.core.checks import CheckPolicies
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import CheckKind, CheckRecord, DoubtSummary, OpMessage, Resolution, Source, UnresolvedAction

Position = tuple[int, int]
"""(offset, line) in op."""

_ANSWERING = frozenset({Source.CHECK, Source.BARRIER})


def parked_by_answers(history: History) -> dict[str, Position]:
    """{"id/nonce": the line of op that was the last answer its group may give} of those whom no summary may show parked."""
    if history.policies is None:
        return {}
    answers = _unknown_answers(history.logs)
    asked_counts = _asked_counts(history.logs)
    found = {}
    for key, summary in _last_open(history.logs).items():
        number = summary.checked_count
        answered_at = answers.get(key, {}).get(number)
        # Asked once more since: an answer to the question before does not count.
        is_last_question = asked_counts[key] == number > summary.answered_number
        if answered_at is not None and is_last_question and _is_last(summary, history.policies):
            found[key] = answered_at
    return found


def _is_last(summary: DoubtSummary, policies: CheckPolicies) -> bool:
    policy = policies.of(summary.producer_group)
    return (
        summary.unresolved or policy.unresolved
    ) is UnresolvedAction.PARK and summary.answered_count + 1 >= policy.check_max


def _unknown_answers(logs: Logs) -> Mapping[str, dict[int, Position]]:
    """{key: {question: where it was first answered with unknown}}."""
    answers: dict[str, dict[int, Position]] = defaultdict(dict)
    for record in logs.op:
        for number, line in enumerate((record.value or b"").decode("ascii", "replace").split("\n")):
            op = codec.decode_op(line)
            if not isinstance(op, OpMessage) or op.check_number is None:
                continue
            if op.resolution is Resolution.UNKNOWN and op.source in _ANSWERING:
                answers[op.key].setdefault(op.check_number, (record.offset, number))
    return answers


def _asked_counts(logs: Logs) -> Counter[str]:
    checks = (codec.decode_check(record.value) for record in logs.check)
    return Counter(check.key for check in checks if isinstance(check, CheckRecord) and check.kind is CheckKind.QUESTION)


def _last_open(logs: Logs) -> dict[str, DoubtSummary]:
    """{key: the last that doubt said of it while it was open}."""
    found = {}
    for record in logs.doubt:
        parsed = codec.parse_doubt_key(record.key)
        if parsed is None or parsed[1] is not None or record.value is None:
            continue
        summary = codec.decode_summary(parsed[0], record.value)
        if isinstance(summary, DoubtSummary) and summary.state == TxnState.OPEN.value:
            found[parsed[0]] = summary
    return found
