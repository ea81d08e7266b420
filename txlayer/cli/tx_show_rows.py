"""What `txlayer tx show` says of one transaction, as a JSON value and as tables. Users' keys and values are never shown."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txlayer.cli import tables
from txlayer.cli.tables import cell
from txlayer.cli.tx_rows import Json, age_text, options_json, style_of, time_text
from txlayer.core.history import CheckNote, OpLine, TransactionHistory, split_operator_reason
from txlayer.core.messages import OpMessage, Source
from txlayer.core.transitions import SETTLED

_SETTLED = frozenset(state.value for state in SETTLED)


def history_json(history: TransactionHistory, *, is_applied: bool | None) -> Json:
    """One object of `tx show --json`; `is_applied` says whether the coordinators have carried out the decision."""
    h, summary = history, history.summary
    return {
        "txn_id": h.txn_id,
        "nonce": h.nonce,
        "producer_group": h.producer_group,
        "partition": h.partition,
        "state": None if h.state is None else h.state.value,
        "is_applied": is_applied,
        "reason": h.reason or None,
        "born_ms": h.born_ms,
        "appended_ms": h.appended_ms,
        "message_count": h.message_count,
        "decided_at": None if h.decided_at is None else {"offset": h.decided_at[0], "line": h.decided_at[1]},
        "half_records": [
            {"offset": r.offset, "appended_ms": r.appended_ms, "topic": r.topic, "index": r.index, **options_json(r.options)}
            for r in h.half_records
        ],
        "op_lines": [_op_line_json(n) for n in h.op_lines],
        "doubt": None
        if summary is None
        else {
            "state": summary.state,
            "reason": summary.reason or None,
            "moved_ms": summary.moved_ms,
            "seen_count": summary.seen,
            "topics": list(summary.topics),
            "checked_count": summary.checked_count,
            "answered_count": summary.answered_count,
            "asked_ms": summary.asked_ms or None,
        },
        "questions": [_question_json(q, h) for q in h.questions],
        "refusals": [
            {"appended_ms": r.appended_ms, "partition": r.partition, "offset": r.offset, "text": r.text}
            for r in h.refusals
        ],
        "left_doubt_ms": h.left_doubt_ms,
    }  # fmt: skip


def _op_line_json(n: OpLine) -> Json:
    operator, reason = _operator(n.op)
    return {
        "offset": n.offset,
        "line": n.line,
        "appended_ms": n.appended_ms,
        "resolution": "ABANDON" if n.op.is_abandon else n.op.resolution.name,
        "source": n.op.source.value,
        "operator": operator,
        "producer_group": n.op.producer_group,
        "last_half_offset": n.op.last_offset,
        "check_number": n.op.check_number,
        "reason": reason,
        "is_counted": n.is_counted,
    }


def _question_json(question: CheckNote, history: TransactionHistory) -> Json:
    answers = [
        {
            "offset": n.offset,
            "line": n.line,
            "appended_ms": n.appended_ms,
            "resolution": n.op.resolution.name,
            "source": n.op.source.value,
        }
        for n in history.op_lines
        if n.op.check_number == question.number
    ]
    return {
        "number": question.number,
        "asked_ms": question.appended_ms,
        "partition": question.partition,
        "offset": question.offset,
        "answers": answers,
    }


def history_tables(row: Json) -> RenderableType:
    """What `tx show` prints of one transaction."""
    head = Table.grid(padding=(0, 2))
    for name, value in _head(row):
        head.add_row(cell(name, "bold"), value)
    parts: list[RenderableType] = [head]
    if row["half_records"]:
        halves = tables.table(
            "offset", "appended", "real topic", "message", "options", title="half"
        )
        for r in row["half_records"]:
            message = f"{r['index'] + 1} of {row['message_count']}"
            halves.add_row(
                cell(r["offset"]), cell(time_text(r["appended_ms"])), cell(r["topic"]), cell(message),
                cell(_options_text(r)),
            )  # fmt: skip
        parts.append(halves)
    parts.extend(_check_tables(row))
    if row["op_lines"]:
        ops = tables.table(
            "position",
            "appended",
            "resolution",
            "source",
            "operator",
            "reason",
            "counts",
            title="op",
        )
        for n in row["op_lines"]:
            check = "" if n["check_number"] is None else f" {n['check_number']}"
            counts = "yes"
            if not n["is_counted"]:
                is_own = n["producer_group"] == row["producer_group"]
                counts = f"no: names half offset {n['last_half_offset']}"
                counts = counts if is_own else f"no: names group {n['producer_group']}"
            ops.add_row(
                cell(f"{n['offset']}:{n['line']}"), cell(time_text(n["appended_ms"])), cell(n["resolution"]),
                cell(n["source"] + check), cell(n["operator"] or ""), cell(n["reason"] or ""), cell(counts),
            )  # fmt: skip
        parts.append(ops)
    return Group(*parts)


def _check_tables(row: Json) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if row["questions"]:
        checks = tables.table("number", "asked", "answered", "answer", "by", title="check")
        for q in row["questions"]:
            answers = q["answers"] or [
                {"appended_ms": None, "resolution": "none yet", "source": ""}
            ]
            for n in answers:
                checks.add_row(
                    cell(q["number"]), cell(time_text(q["asked_ms"])), cell(time_text(n["appended_ms"])),
                    cell(n["resolution"]), cell(n["source"]),
                )  # fmt: skip
        parts.append(checks)
    if row["refusals"]:
        refused = tables.table("told", "what came too late", title="refused")
        for r in row["refusals"]:
            refused.add_row(cell(time_text(r["appended_ms"])), cell(r["text"]))
        parts.append(refused)
    return parts


def _operator(op: OpMessage) -> tuple[str | None, str | None]:
    """(operator, reason) of an op line; only an operator's reason begins with a name."""
    if op.source is not Source.OPERATOR:
        return None, op.reason or None
    operator, reason = split_operator_reason(op.reason)
    return operator or None, reason or None


def _head(row: Json) -> list[tuple[str, Text]]:
    state = row["state"] or "settled; what decided it is older than what was read"
    said = ""
    if row["state"] in _SETTLED and row["is_applied"] is not None:
        said = " (carried out)" if row["is_applied"] else " (not carried out yet)"
    reason = f": {row['reason']}" if row["reason"] else ""
    seen = len(row["half_records"])
    head = [
        ("transaction", cell(f"{row['txn_id']} / {row['nonce']}")),
        ("state", cell(state + said + reason, style_of(state))),
        ("group", cell(row["producer_group"])),
        ("partition", cell(row["partition"])),
        ("born", cell(time_text(row["born_ms"]) + " by its producer's clock")),
        ("messages", cell(f"{seen} half records read, of {row['message_count']}")),
    ]
    if row["born_ms"] is None:
        del head[4]
    if row["message_count"] is None:
        head[-1] = ("messages", cell("no half record read"))
    doubt = row["doubt"]
    if doubt is not None:
        text = f"since {time_text(doubt['moved_ms'])}, {doubt['seen_count']} messages to {', '.join(doubt['topics'])}"
        checks = f"; {doubt['answered_count']} of {doubt['checked_count']} checks answered"
        if doubt["asked_ms"] is not None:
            checks += f", the last asked {time_text(doubt['asked_ms'])}"
        head.append(("on doubt", cell(text + checks)))
    elif row["left_doubt_ms"] is not None:
        head.append(("on doubt", cell(f"until {time_text(row['left_doubt_ms'])}")))
    return head


def _options_text(row: Json) -> str:
    parts = []
    if row["key_hash"]:
        parts.append(f"ordering key {row['key_hash']}, by {row['order']}")
    if row["immunity_ms"] is not None:
        parts.append(f"immunity {age_text(row['immunity_ms'])}")
    return ", ".join(parts)
