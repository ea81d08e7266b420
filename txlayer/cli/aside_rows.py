"""What `txlayer tx` shows of records kept aside: where they stood and what was wrong, never their bytes."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from txlayer.cli import tables
from txlayer.cli.tables import cell
from txlayer.cli.tx_rows import Json, age_text, time_text
from txlayer.core import codec
from txlayer.core.asides import Aside
from txlayer.core.messages import nonce_of, txn_id_of

STATE = "kept-aside"
"""In the place where a transaction's JSON has its state."""


def aside_json(found: Aside, *, now_ms: int) -> Json:
    """One object of `tx list --kept-aside --json`; `name` is what `tx show` finds it by."""
    origin = found.origin
    name = codec.kept_aside_key(origin, found.line).decode("ascii")
    return {
        "state": STATE,
        "name": name,
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "line": found.line,
        "reason": found.reason or None,
        "why": found.why,
        "txn_id": txn_id_of(found.key) or None,
        "nonce": nonce_of(found.key) or None,
        "kept_ms": found.kept_ms,
        "age_ms": max(now_ms - found.kept_ms, 0),
        "key_bytes": found.key_bytes,
        "value_bytes": found.value_bytes,
        "header_names": list(found.header_names),
        "doubt_partition": found.place.partition,
        "doubt_offset": found.place.offset,
    }


def aside_list(rows: list[Json]) -> Table:
    """The table of `tx list --kept-aside`."""
    table = tables.table("kept aside", "reason", "what is wrong", "names transaction", "age", right=("age",), whole=("reason",))  # fmt: skip
    for row in rows:
        cells = (row["name"], row["reason"] or "", row["why"], _named(row), age_text(row["age_ms"]))
        table.add_row(*(cell(text) for text in cells))
    return table


def aside_table(row: Json) -> RenderableType:
    """What `tx show` prints of one record kept aside."""
    table = Table.grid(padding=(0, 2))
    what = "record" if row["line"] is None else f"line {row['line']} of the record"
    for name, text in (
        ("kept aside", f"{what} {row['topic']}-{row['partition']}@{row['offset']}"),
        ("why", f"{row['reason'] or 'unknown reason'}: {row['why']}"),
        ("transaction", _named(row) or "it names none that can be read"),
        ("since", time_text(row["kept_ms"])),
        ("key", _size(row["key_bytes"])),
        ("value", _size(row["value_bytes"])),
        ("headers", ", ".join(row["header_names"]) or "none"),
        ("bytes", f"on doubt, partition {row['doubt_partition']}, offset {row['doubt_offset']}"),
    ):
        table.add_row(cell(name, "bold"), cell(text))
    return table


def _named(row: Json) -> str:
    return f"{row['txn_id']} / {row['nonce']}" if row["txn_id"] else ""


def _size(byte_count: int | None) -> str:
    return "null" if byte_count is None else f"{byte_count:,} bytes"
