"""What `txlayer tx` prints: tables. Users' keys and values are never shown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txlayer.cli import output
from txlayer.cli.output import cell
from txlayer.core.ledger.transitions import SETTLED, TxnState
from txlayer.operate import Json, time_text
from txlayer.operate.history import timeline

_STYLES = {
    TxnState.HELD.value: "yellow",
    TxnState.PARKED.value: "red",
    TxnState.PARKED_COMMITTED.value: "red",
    TxnState.COMMITTED.value: "green",
}


def style_of(state: str) -> str:
    return _STYLES.get(state, "")


# --- list -------------------------------------------------------------------------------------------------------------


def list_table(rows: Sequence[Json]) -> Table:
    columns: output.Columns = {
        "id": "txn_id",
        "nonce": "nonce",
        "group": "producer_group",
        "state": _state,
        "reason": "reason",
        "age": output.ages("age_ms"),
        "messages": lambda row: f"{row['seen_count']}/{row['message_count']}",
        "topics": lambda row: ", ".join(row["topics"]),
        "half": lambda row: f"{row['partition']}:{_first_half_offset(row)}",
        "in": "stands_in",
        "checks": lambda row: f"{row['answered_count']}/{row['checked_count']}",
        "last asked": output.times("asked_ms"),
    }
    if any(row["query_id"] is not None for row in rows):
        columns = {**columns, "query id": "query_id"}
    if any(row["due_ms"] is not None for row in rows):
        columns = {**columns, "due": output.times("due_ms")}
    right = ("age", "messages", "half", "checks")
    return output.rows_table(rows, columns, right=right, whole=("nonce",))


def _state(row: Json) -> Text:
    return cell(row["state"], style_of(row["state"]))


_first_half_offset = output.number_or_none("first_half_offset")


# --- stats ------------------------------------------------------------------------------------------------------------


def stats_table(body: Json) -> RenderableType:
    quarantined_count = body["kept_aside_count"]
    quarantined = f", {quarantined_count:,} kept aside" if quarantined_count else ""
    if not body["states"]:
        return f"nothing is open{quarantined}"
    columns: output.Columns = {
        "group": "producer_group",
        "state": _state,
        "transactions": lambda row: f"{row['count']:,}",
        "oldest": output.ages("oldest_age_ms"),
    }
    title = f"{body['namespace']}: {body['transaction_count']:,} not settled{quarantined}"
    return output.rows_table(body["states"], columns, title=title, right=("transactions", "oldest"))


# --- show -------------------------------------------------------------------------------------------------------------

_SETTLED = frozenset(state.value for state in SETTLED)


def histories_tables(rows: Sequence[Json]) -> RenderableType:
    return Group(*map(history_tables, rows))


def history_tables(row: Json) -> RenderableType:
    columns: output.Columns = {
        "when": lambda event: time_text(event.at_ms),
        "what": lambda event: event.what,
        "where": lambda event: event.place,
        "more": lambda event: event.detail,
    }
    return Group(output.grid(_head(row)), output.rows_table(timeline(row), columns, whole=("where",)))


def _head(row: Json) -> list[tuple[str, object]]:
    state = row["state"] or "settled; what decided it is older than what was read"
    said = ""
    if row["state"] in _SETTLED and row["is_applied"] is not None:
        said = " (carried out)" if row["is_applied"] else " (not carried out yet)"
    reason = f": {row['reason']}" if row["reason"] else ""
    messages = f"{len(row['half_records'])} half records read, of {row['message_count']}"
    head: list[tuple[str, object]] = [
        ("transaction", f"{row['txn_id']} / {row['nonce']}"),
        ("state", cell(state + said + reason, style_of(state))),
        ("group", row["producer_group"]),
        ("partition", row["partition"]),
    ]
    if row["query_id"] is not None:
        head.insert(1, ("query id", row["query_id"]))
    if row["born_ms"] is not None:
        head.append(("born", time_text(row["born_ms"]) + " by its producer's clock"))
    if row["message_count"] is None:
        messages = "no half record read"
    head.append(("messages", messages))
    doubt = row["doubt"]
    if doubt is not None:
        text = f"since {time_text(doubt['moved_ms'])}, {doubt['seen_count']} messages to {', '.join(doubt['topics'])}"
        text += f"; {doubt['answered_count']} of {doubt['checked_count']} checks answered"
        if doubt["asked_ms"] is not None:
            text += f", the last asked {time_text(doubt['asked_ms'])}"
        head.append(("on doubt", text))
    elif row["left_doubt_ms"] is not None:
        head.append(("on doubt", f"until {time_text(row['left_doubt_ms'])}"))
    return head


# --- kept aside -------------------------------------------------------------------------------------------------------


def quarantined_list(rows: Sequence[Json]) -> Table:
    columns: output.Columns = {
        "kept aside": "name",
        "reason": "reason",
        "what is wrong": "why",
        "names transaction": _named,
        "age": output.ages("age_ms"),
    }
    return output.rows_table(rows, columns, right=("age",), whole=("reason",))


def quarantined_table(row: Json) -> Table:
    what = "record" if row["line"] is None else f"line {row['line']} of the record"
    return output.grid(
        (
            ("kept aside", f"{what} {row['topic']}-{row['partition']}@{row['offset']}"),
            ("why", f"{row['reason'] or 'unknown reason'}: {row['why']}"),
            ("transaction", _named(row) or "it names none that can be read"),
            ("since", time_text(row["kept_ms"])),
            ("key", _size(row["key_bytes"])),
            ("value", _size(row["value_bytes"])),
            ("headers", ", ".join(row["header_names"]) or "none"),
            ("bytes", f"on doubt, partition {row['doubt_partition']}, offset {row['doubt_offset']}"),
        )
    )


def _named(row: Json) -> str:
    return f"{row['txn_id']} / {row['nonce']}" if row["txn_id"] else ""


def _size(byte_count: int | None) -> str:
    return "null" if byte_count is None else f"{byte_count:,} bytes"
