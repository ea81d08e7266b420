"""What `txlayer tx` shows: transactions as JSON values and as rows of tables. Users' keys and values are never shown.

Ids, groups, topics and reasons come from the log, where anybody may have put anything: control characters are shown, not
sent to the terminal.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from txlayer.adapters.coordinator_status import PartitionStatus
from txlayer.coordinator.overview import Standing
from txlayer.core.history import TransactionHistory, split_operator_reason
from txlayer.core.messages import HalfOptions, OpMessage, Source, nonce_of, txn_id_of
from txlayer.core.transitions import SETTLED, TxnState

WIDE = 240
"""Columns when nobody sees a terminal: a file or a pipe wants whole ids on one line."""

Json = dict[str, Any]


def console() -> Console:
    """Where tables go."""
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def plain(text: str) -> str:
    """Text in which nothing moves a cursor or rings a bell: what cannot be printed is shown as Python escapes it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cell(text: object, style: str = "") -> Text:
    """A cell of a table that is taken as it is: no markup, no control characters."""
    return Text(plain(str(text)), style=style, overflow="fold")


def age_text(length_ms: int) -> str:
    """An age in its two largest units: 850 ms, 12 s, 3 min 20 s, 5 h 2 min, 3 d 4 h."""
    if length_ms < 1000:
        return f"{max(length_ms, 0)} ms"
    seconds = length_ms // 1000
    for unit, size, lower, lower_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= size:
            rest = seconds % size // lower_size
            return f"{seconds // size} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{seconds} s"


def time_text(at_ms: int | None) -> str:
    """An instant of UTC; a broken clock may have written any number."""
    if at_ms is None:
        return ""
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03d}Z"


# --- list -------------------------------------------------------------------------------------------------------------


def standing_json(found: Standing, *, now_ms: int) -> Json:
    """One object of `tx list --json`."""
    txn, more = found.txn, found.txn.more
    return {
        "txn_id": txn_id_of(txn.key),
        "nonce": nonce_of(txn.key),
        "producer_group": txn.group,
        "state": found.state,
        "reason": more.reason.value if more is not None and more.reason is not None else None,
        "appended_ms": txn.appended_ms,
        "age_ms": max(now_ms - txn.appended_ms, 0),
        "seen_count": txn.seen,
        "message_count": txn.count,
        "topics": [topic for topic in txn.topics if topic],
        "partition": found.partition,
        "first_half_offset": txn.first_offset if txn.first_offset >= 0 else None,
        "last_half_offset": txn.last_offset if txn.last_offset >= 0 else None,
        "stands_in": "doubt" if txn.is_in_doubt else "half",
        "checked_count": more.checked_count if more is not None else 0,
        "answered_count": more.answered_count if more is not None else 0,
        "asked_ms": (more.asked_ms or None) if more is not None else None,
        **_options_json(txn.options),
    }


def list_table(rows: list[Json]) -> Table:
    """The table of `tx list`."""
    table = Table()
    for name in (
        "id",
        "nonce",
        "group",
        "state",
        "reason",
        "age",
        "messages",
        "topics",
        "half",
        "in",
        "checks",
        "last asked",
    ):
        is_number = name in ("age", "messages", "half", "checks")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=name == "nonce")
    for row in rows:
        offset = "none" if row["first_half_offset"] is None else row["first_half_offset"]
        table.add_row(
            cell(row["txn_id"]),
            cell(row["nonce"]),
            cell(row["producer_group"]),
            cell(row["state"], _style(row["state"])),
            cell(row["reason"] or ""),
            cell(age_text(row["age_ms"])),
            cell(f"{row['seen_count']}/{row['message_count']}"),
            cell(", ".join(row["topics"])),
            cell(f"{row['partition']}:{offset}"),
            cell(row["stands_in"]),
            cell(f"{row['answered_count']}/{row['checked_count']}"),
            cell(time_text(row["asked_ms"])),
        )
    return table


# --- stats ------------------------------------------------------------------------------------------------------------


def partition_json(status: PartitionStatus, *, doubt_count: int, aside_count: int) -> Json:
    """One partition of `tx stats --json`: so many transactions, and records kept aside, stand on its doubt partition."""
    doubt_low = status.doubt_low or 0
    return {
        "partition": status.partition,
        "low_water": status.low_water,
        "half_end": status.half_end,
        "op_next": status.op_next,
        "op_end": status.op_end,
        "op_lag": status.op_lag,
        "doubt_low": doubt_low,
        "doubt_end": status.doubt_end,
        "doubt_record_count": status.doubt_end - doubt_low,
        "doubt_transaction_count": doubt_count,
        "kept_aside_count": aside_count,
    }


def stats_tables(body: Json) -> RenderableType:
    """The tables of `tx stats`."""
    aside_count = body["kept_aside_count"]
    asides = f", {aside_count:,} kept aside" if aside_count else ""
    states = Table(
        title=plain(f"{body['namespace']}: {body['transaction_count']:,} not settled{asides}")
    )
    for name in ("group", "state", "transactions", "oldest"):
        states.add_column(name, justify="right" if name in ("transactions", "oldest") else "left")
    for row in body["states"]:
        states.add_row(
            cell(row["producer_group"]),
            cell(row["state"], _style(row["state"])),
            cell(f"{row['count']:,}"),
            cell(age_text(row["oldest_age_ms"])),
        )
    partitions = Table(title="partitions")
    names = {
        "partition": "partition", "low water": "low_water", "half end": "half_end", "op next": "op_next",
        "op end": "op_end", "op lag": "op_lag", "doubt low": "doubt_low", "doubt end": "doubt_end",
        "doubt records": "doubt_record_count", "on doubt": "doubt_transaction_count",
        "kept aside": "kept_aside_count",
    }  # fmt: skip
    for name in names:
        partitions.add_column(name, justify="right")
    for row in body["partitions"]:
        partitions.add_row(*(cell("none" if row[n] is None else row[n]) for n in names.values()))
    if body["states"]:
        return Group(states, partitions)
    return Group(cell(f"nothing is open{asides}"), partitions)


# --- show -------------------------------------------------------------------------------------------------------------


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
            {"offset": r.offset, "appended_ms": r.appended_ms, "topic": r.topic, "index": r.index, **_options_json(r.options)}
            for r in h.half_records
        ],
        "op_lines": [
            {
                "offset": n.offset,
                "line": n.line,
                "appended_ms": n.appended_ms,
                "resolution": "ABANDON" if n.op.is_abandon else n.op.resolution.name,
                "source": n.op.source.value,
                "operator": _operator(n.op)[0],
                "producer_group": n.op.producer_group,
                "last_half_offset": n.op.last_offset,
                "check_number": n.op.check_number,
                "reason": _operator(n.op)[1],
                "is_counted": n.is_counted,
            }
            for n in h.op_lines
        ],
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
        "questions": [
            {
                "number": q.number,
                "asked_ms": q.appended_ms,
                "partition": q.partition,
                "offset": q.offset,
                "answers": [
                    {"offset": n.offset, "line": n.line, "appended_ms": n.appended_ms,
                     "resolution": n.op.resolution.name, "source": n.op.source.value}
                    for n in h.op_lines
                    if n.op.check_number == q.number
                ],
            }
            for q in h.questions
        ],
        "refusals": [
            {"appended_ms": r.appended_ms, "partition": r.partition, "offset": r.offset, "text": r.text}
            for r in h.refusals
        ],
        "left_doubt_ms": h.left_doubt_ms,
    }  # fmt: skip


def history_tables(row: Json) -> RenderableType:
    """What `tx show` prints of one transaction."""
    head = Table.grid(padding=(0, 2))
    for name, value in _head(row):
        head.add_row(cell(name, "bold"), value)
    parts: list[RenderableType] = [head]
    if row["half_records"]:
        halves = Table("offset", "appended", "real topic", "message", "options", title="half")
        for r in row["half_records"]:
            message = f"{r['index'] + 1} of {row['message_count']}"
            halves.add_row(
                cell(r["offset"]), cell(time_text(r["appended_ms"])), cell(r["topic"]), cell(message),
                cell(_options_text(r)),
            )  # fmt: skip
        parts.append(halves)
    parts.extend(_check_tables(row))
    if row["op_lines"]:
        ops = Table(
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
            counts = "yes" if n["is_counted"] else f"no: names half offset {n['last_half_offset']}"
            ops.add_row(
                cell(f"{n['offset']}:{n['line']}"), cell(time_text(n["appended_ms"])), cell(n["resolution"]),
                cell(n["source"] + check), cell(n["operator"] or ""), cell(n["reason"] or ""), cell(counts),
            )  # fmt: skip
        parts.append(ops)
    return Group(*parts)


def _check_tables(row: Json) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if row["questions"]:
        checks = Table("number", "asked", "answered", "answer", "by", title="check")
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
        refused = Table("told", "what came too late", title="refused")
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
        ("state", cell(state + said + reason, _style(state))),
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


def _options_json(options: HalfOptions) -> Json:
    return {
        "key_hash": options.key_hash,
        "order": options.order.value,
        "immunity_ms": options.immunity_ms,
    }


def _options_text(row: Json) -> str:
    parts = []
    if row["key_hash"]:
        parts.append(f"ordering key {row['key_hash']}, by {row['order']}")
    if row["immunity_ms"] is not None:
        parts.append(f"immunity {age_text(row['immunity_ms'])}")
    return ", ".join(parts)


_SETTLED = frozenset(state.value for state in SETTLED)
_STYLES = {
    TxnState.HELD.value: "yellow",
    TxnState.PARKED.value: "red",
    TxnState.PARKED_COMMITTED.value: "red",
    TxnState.COMMITTED.value: "green",
}


def _style(state: str) -> str:
    return _STYLES.get(state, "")
