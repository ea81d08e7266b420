"""What `txlayer dlq` prints of dead letters: tables, and sentences of what became of them. Users' keys and values only when asked."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from txlayer.adapters.telemetry import printable
from txlayer.cli import output
from txlayer.cli.output import age_text, cell, time_text
from txlayer.core.retry import ReplayKind
from txlayer.operate import Json
from txlayer.operate.replay import DeadLetterOutcome, DeadLetterResult


def list_table(rows: Sequence[Json], *, has_key: bool) -> Table:
    """The table of `dlq list`."""
    names = ["letter", "state", "reason", "age", "attempts", "error", "came from"]
    names += ["key"] if has_key else []
    table = output.table(*names, right=("age", "attempts"), whole=("letter",))
    for row in rows:
        origin = row.get("origin")
        cells = [
            cell(row["letter"]),
            cell(row["state"]),
            cell(row["reason"] or row["why"]),
            cell(age_text(row["age_ms"])),
            cell(row.get("attempt_count", "")),
            cell(_error(row)),
            cell(
                ""
                if origin is None
                else f"{origin['topic']}-{origin['partition']}@{origin['offset']}"
            ),
        ]
        table.add_row(*cells, *([cell(bytes_text(row["key"]))] if has_key else []))
    return table


def show_tables(row: Json) -> RenderableType:
    """What `dlq show` prints."""
    head = Table.grid(padding=(0, 2))
    origin = row.get("origin")
    facts = [
        ("letter", row["letter"]),
        ("state", row["state"]),
        ("reason", row["reason"] or row["why"]),
        (
            "came from",
            "" if origin is None else f"{origin['topic']}-{origin['partition']}@{origin['offset']}",
        ),
        ("its time", time_text(row.get("origin_ms") or None)),
        ("attempts", row.get("attempt_count", "")),
        ("first", time_text(row.get("first_ms"))),
        ("last", time_text(row.get("last_ms"))),
        ("given up", time_text(row["written_ms"])),
        ("error", _error(row)),
        ("key", bytes_text(row["key"])),
        *((f"header {h['name']}", bytes_text(h["value"])) for h in row["headers"]),
        (
            "value",
            bytes_text(row["value"])
            if "value" in row
            else f"{row['value_bytes']:,} bytes; --value shows them",
        ),
    ]
    for name, value in facts:
        head.add_row(cell(name, "bold"), cell(value))
    if not row["history"]:
        return head
    history = output.table("when", "what", "request", "outcome", "who", "text")
    for said in row["history"]:
        history.add_row(
            cell(time_text(said["at_ms"])),
            cell(said["kind"]),
            cell(said["request_id"]),
            cell(said["outcome"] or ""),
            cell(said["operator"] or ""),
            cell(said["text"] or ""),
        )
    return Group(head, history)


def bytes_text(raw: Json | None) -> str:
    """Bytes for a person: text where they are UTF-8, else hex."""
    if raw is None:
        return "null"
    if raw["text"] is not None:
        return str(raw["text"])
    return "0x" + base64.b64decode(raw["base64"]).hex()


def _error(row: Json) -> str:
    return ": ".join(
        filter(
            None, (row.get("error_type") or "", row.get("error_message") or row.get("why") or "")
        )
    )


_SENTENCES: Mapping[DeadLetterResult, str] = {
    DeadLetterResult.PLANNED: "would be asked for",
    DeadLetterResult.REQUESTED: "is asked for, and no consumer of the group has answered yet; it is done when one runs",
    DeadLetterResult.HANDLED: "was handled",
    DeadLetterResult.FAILED: "failed again and stays",
    DeadLetterResult.DROPPED: "is dropped",
    DeadLetterResult.REPUBLISHED: "is published",
    DeadLetterResult.REQUESTED_ALREADY: "is asked for already and not answered yet",
    DeadLetterResult.MISSING: "was not there any more when its turn came",
    DeadLetterResult.UNKNOWN: "was not understood: the group's consumers do not know such a request",
    DeadLetterResult.NOT_FOUND: "is not found: there is no record (any more)",
    DeadLetterResult.UNDECODABLE: "is no dead letter of the group; `txlayer dlq show` tells why",
    DeadLetterResult.LAST_OF_KEY: "is the last dead letter of a parked key and was not dropped: earlier ones of the key are open; "
    "drop or replay them first",
}


def sentence(outcome: DeadLetterOutcome, kind: ReplayKind) -> str:
    """What became of one dead letter, in one line without control characters."""
    if outcome.result is DeadLetterResult.ALREADY:
        state = "" if outcome.state is None else outcome.state.value
        more = "; --again asks all the same" if kind is ReplayKind.REPLAY else ""
        return f"{outcome.place} was {state} already{more}"
    text = f": {outcome.text}" if outcome.text else ""
    return printable(f"{outcome.place} {_SENTENCES[outcome.result]}{text}")
