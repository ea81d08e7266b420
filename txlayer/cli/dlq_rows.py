"""What `txlayer dlq` prints of dead letters: tables, and sentences of what became of them. Users' keys and values only when asked."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from txlayer.adapters.telemetry import printable
from txlayer.cli import output
from txlayer.cli.output import time_text
from txlayer.core.retry import ReplayKind
from txlayer.operate import Json
from txlayer.operate.dead_letters import DeadLetterResult
from txlayer.operate.replay import DeadLetterOutcome


def list_table(rows: Sequence[Json], *, has_key: bool) -> Table:
    """The table of `dlq list`."""
    columns: dict[str, str | Callable[[Json], object]] = {
        "letter": "letter",
        "state": "state",
        "reason": _reason,
        "age": output.ages("age_ms"),
        "attempts": lambda row: row.get("attempt_count"),
        "error": _error,
        "came from": _origin,
    }
    if has_key:
        columns["key"] = lambda row: bytes_text(row["key"])
    return output.rows_table(rows, columns, right=("age", "attempts"), whole=("letter",))


def show_tables(row: Json) -> RenderableType:
    """What `dlq show` prints."""
    value = f"{row['value_bytes']:,} bytes; --value shows them"
    head = output.grid(
        (
            ("letter", row["letter"]),
            ("state", row["state"]),
            ("reason", _reason(row)),
            ("came from", _origin(row)),
            ("its time", time_text(row.get("origin_ms") or None)),
            ("attempts", row.get("attempt_count")),
            ("first", time_text(row.get("first_ms"))),
            ("last", time_text(row.get("last_ms"))),
            ("given up", time_text(row["written_ms"])),
            ("error", _error(row)),
            ("key", bytes_text(row["key"])),
            *((f"header {h['name']}", bytes_text(h["value"])) for h in row["headers"]),
            ("value", bytes_text(row["value"]) if "value" in row else value),
        )
    )
    if not row["history"]:
        return head
    columns: output.Columns = {
        "when": output.times("at_ms"),
        "what": "kind",
        "request": "request_id",
        "outcome": "outcome",
        "who": "operator",
        "text": "text",
    }
    return Group(head, output.rows_table(row["history"], columns))


def _reason(row: Json) -> object:
    return row["reason"] or row["why"]


def _origin(row: Json) -> str:
    origin = row.get("origin")
    return "" if origin is None else f"{origin['topic']}-{origin['partition']}@{origin['offset']}"


def bytes_text(raw: Json | None) -> str:
    """Bytes for a person: text where they are UTF-8, else hex."""
    if raw is None:
        return "null"
    if raw["text"] is not None:
        return str(raw["text"])
    return "0x" + base64.b64decode(raw["base64"]).hex()


def _error(row: Json) -> str:
    parts = (row.get("error_type"), row.get("error_message") or row.get("why"))
    return ": ".join(filter(None, parts))


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
