"""What `txlayer tx` shows: transactions as JSON values and as rows of tables. Users' keys and values are never shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from txlayer.adapters.coordinator_status import PartitionStatus
from txlayer.cli import tables
from txlayer.cli.tables import cell
from txlayer.coordinator.overview import Standing
from txlayer.core.messages import HalfOptions, nonce_of, txn_id_of
from txlayer.core.transitions import TxnState

Json = dict[str, Any]


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
        **options_json(txn.options),
    }


def list_table(rows: list[Json]) -> Table:
    """The table of `tx list`."""
    table = tables.table(
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
        right=("age", "messages", "half", "checks"),
        whole=("nonce",),
    )
    for row in rows:
        offset = "none" if row["first_half_offset"] is None else row["first_half_offset"]
        table.add_row(
            cell(row["txn_id"]),
            cell(row["nonce"]),
            cell(row["producer_group"]),
            cell(row["state"], style_of(row["state"])),
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
    states = tables.table(
        "group", "state", "transactions", "oldest", right=("transactions", "oldest"),
        title=f"{body['namespace']}: {body['transaction_count']:,} not settled{asides}",
    )  # fmt: skip
    for row in body["states"]:
        states.add_row(
            cell(row["producer_group"]),
            cell(row["state"], style_of(row["state"])),
            cell(f"{row['count']:,}"),
            cell(age_text(row["oldest_age_ms"])),
        )
    names = {
        "partition": "partition", "low water": "low_water", "half end": "half_end", "op next": "op_next",
        "op end": "op_end", "op lag": "op_lag", "doubt low": "doubt_low", "doubt end": "doubt_end",
        "doubt records": "doubt_record_count", "on doubt": "doubt_transaction_count",
        "kept aside": "kept_aside_count",
    }  # fmt: skip
    positions, doubt = list(names)[:6], list(names)[6:]
    partitions = tables.Parted(
        {
            header: [cell("none" if row[name] is None else row[name]) for row in body["partitions"]]
            for header, name in names.items()
        },
        parts=(positions, ["partition", *doubt]),
        title="partitions",
        right=names,
    )
    if body["states"]:
        return Group(states, partitions)
    return Group(cell(f"nothing is open{asides}"), partitions)


# --- both -------------------------------------------------------------------------------------------------------------


def options_json(options: HalfOptions) -> Json:
    """What its producer asked for."""
    return {
        "key_hash": options.key_hash,
        "order": options.order.value,
        "immunity_ms": options.immunity_ms,
    }


_STYLES = {
    TxnState.HELD.value: "yellow",
    TxnState.PARKED.value: "red",
    TxnState.PARKED_COMMITTED.value: "red",
    TxnState.COMMITTED.value: "green",
}


def style_of(state: str) -> str:
    """How a state is coloured."""
    return _STYLES.get(state, "")
