"""What `txlayer locks` shows of leases: rows for JSON, and tables of them."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from txlayer.adapters.telemetry import printable
from txlayer.cli import tables
from txlayer.cli.tables import cell
from txlayer.cli.tx_rows import age_text, time_text
from txlayer.consumer.locks_by_hand import FoldedEntry, LockStanding, LockState
from txlayer.core.lock_codec import parse_queue

Json = dict[str, Any]

_STYLES = {LockState.HELD.value: "green", LockState.EXPIRED.value: "yellow"}


def standing_json(standing: LockStanding) -> Json:
    """One queue."""
    lease = standing.lease
    group, topic, partition = parse_queue(lease.queue)
    return {
        "queue": lease.queue,
        "group": group,
        "topic": topic,
        "partition": partition,
        "state": standing.state.value,
        "holder": lease.holder,
        "instance_id": lease.instance_id or None,
        "generation": lease.generation,
        "token": lease.token,
        "renewed_ms": lease.renewed_ms,
        "expires_in_ms": standing.expires_in_ms,
        "reason": lease.reason or None,
    }


def record_json(folded: FoldedEntry) -> Json:
    """One record of the lock log."""
    entry, effect = folded
    record = entry.record
    return {
        "offset": entry.offset,
        "appended_ms": entry.appended_ms,
        "kind": record.kind.name.lower(),
        "effect": effect.value,
        "holder": record.holder,
        "instance_id": record.instance_id or None,
        "generation": record.generation,
        "token": record.token,
        "reason": record.reason or None,
    }


def list_table(rows: list[Json]) -> Table:
    """The table of `locks list`."""
    table = tables.table(
        "queue", "state", "holder", "instance", "generation", "token", "expires in",
        right=("generation", "token", "expires in"),
    )  # fmt: skip
    for row in rows:
        table.add_row(
            cell(row["queue"]),
            cell(row["state"], _STYLES.get(row["state"], "")),
            cell(row["holder"]),
            cell(row["instance_id"] or ""),
            cell(row["generation"]),
            cell(row["token"]),
            cell(_end_text(row)),
        )
    return table


def detail(row: Json) -> RenderableType:
    """What `locks show` tells."""
    table = tables.table(
        "offset", "appended", "kind", "effect", "holder", "generation", "token", "reason",
        title="newest records", right=("offset", "generation", "token"),
    )  # fmt: skip
    for record in row["records"]:
        token = "" if record["token"] is None else record["token"]
        table.add_row(
            cell(record["offset"]),
            cell(time_text(record["appended_ms"])),
            cell(record["kind"]),
            cell(record["effect"]),
            cell(record["holder"]),
            cell(record["generation"]),
            cell(token),
            cell(record["reason"] or ""),
        )
    return Group(list_table([row]), table)


def sentence(standing: LockStanding) -> str:
    """One queue in words, in one line without control characters."""
    lease, state = standing.lease, standing.state
    if state is LockState.HELD:
        return printable(
            f"{lease.queue} is held by {lease.holder} (generation {lease.generation}, token {lease.token}), "
            f"renewed {age_text(standing.age_ms)} ago"
        )
    return f"nobody holds {lease.queue}: its lease is {state.value}"


def _end_text(row: Json) -> str:
    if row["state"] == LockState.RELEASED.value:
        return "released"
    left_ms = row["expires_in_ms"]
    return age_text(left_ms) if left_ms >= 0 else f"{age_text(-left_ms)} ago"
