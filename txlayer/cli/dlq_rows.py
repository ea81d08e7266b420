"""What `txlayer dlq` shows: dead letters as JSON values and as rows of tables. Users' keys and values only when asked."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from txlayer.adapters.telemetry import printable
from txlayer.cli import output
from txlayer.cli.output import Json, age_text, cell, time_text
from txlayer.cli.tx_rows import bytes_json
from txlayer.consumer.dead_letter_log import FoundLetter, Place
from txlayer.consumer.letter_choice import Chosen
from txlayer.core.dead_letters import original_headers
from txlayer.core.handling import DeadLetter, ReplayKind
from txlayer.core.history import split_operator_reason
from txlayer.core.letter_states import Said
from txlayer.operate.replay import Outcome, Result

KIND_WORDS = {"R": "replay", "D": "drop", "P": "pause", "U": "resume", "E": "result"}


def place_json(place: Place) -> Json:
    """Where a dead letter stands."""
    return {
        "letter": str(place),
        "topic": place.topic,
        "partition": place.partition,
        "offset": place.offset,
    }


def chosen_json(chosen: Chosen, *, now_ms: int) -> Json:
    """What is shown of a dead letter before it is asked for."""
    letter = chosen.letter
    return {
        **place_json(chosen.place),
        "state": chosen.history.state.value,
        "age_ms": max(now_ms - chosen.at_ms, 0),
        **_of_letter(letter),
    }


def letter_json(found: FoundLetter, *, now_ms: int, has_key: bool) -> Json:
    """One object of `dlq list --json`."""
    row = {
        **place_json(found.place),
        "state": found.history.state.value,
        "written_ms": found.at_ms,
        "age_ms": max(now_ms - found.at_ms, 0),
        "value_bytes": len(found.record),
        "request_ids": list(found.history.asked),
        "republished_by": list(found.history.copies),
    }
    if has_key:
        row["key"] = bytes_json(found.key)
    letter = found.letter
    if not isinstance(letter, DeadLetter):
        return {**row, "state": "undecodable", "reason": None, "why": letter.why}
    return {**row, **_of_letter(letter)}


def _of_letter(letter: DeadLetter) -> Json:
    return {
        "reason": letter.reason.value,
        "origin": letter.origin._asdict(),
        "origin_ms": letter.origin_ms,
        "attempt_count": letter.attempt_count,
        "first_ms": letter.first_ms or None,
        "last_ms": letter.last_ms or None,
        "error_type": letter.error_type or None,
        "error_message": letter.error_message or None,
    }


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
            cell("" if origin is None else f"{origin['topic']}-{origin['partition']}@{origin['offset']}"),
        ]  # fmt: skip
        table.add_row(*cells, *([cell(bytes_text(row["key"]))] if has_key else []))
    return table


def show_json(found: FoundLetter, said: Sequence[Said], *, now_ms: int, has_value: bool) -> Json:
    """What `dlq show --json` prints."""
    row = letter_json(found, now_ms=now_ms, has_key=True)
    row["headers"] = [
        {"name": name, "value": bytes_json(value)}
        for name, value in original_headers(found.record.headers())
    ]
    if has_value:
        row["value"] = bytes_json(found.record.value())
    row["history"] = [said_json(each) for each in said]
    return row


def said_json(said: Said) -> Json:
    """One record of the replay topic."""
    record = said.record
    is_request = record.outcome is None
    operator, text = split_operator_reason(record.text) if is_request else ("", record.text)
    return {
        "offset": said.offset,
        "at_ms": said.at_ms,
        "kind": KIND_WORDS[record.kind.value],
        "request_id": record.request_id,
        "outcome": None if record.outcome is None else record.outcome.value,
        "operator": operator or None,
        "text": text or None,
    }


def show_tables(row: Json) -> RenderableType:
    """What `dlq show` prints."""
    head = Table.grid(padding=(0, 2))
    origin = row.get("origin")
    facts = [
        ("letter", row["letter"]),
        ("state", row["state"]),
        ("reason", row["reason"] or row["why"]),
        ("came from", "" if origin is None else f"{origin['topic']}-{origin['partition']}@{origin['offset']}"),
        ("its time", time_text(row.get("origin_ms") or None)),
        ("attempts", row.get("attempt_count", "")),
        ("first", time_text(row.get("first_ms"))),
        ("last", time_text(row.get("last_ms"))),
        ("given up", time_text(row["written_ms"])),
        ("error", _error(row)),
        ("key", bytes_text(row["key"])),
        *((f"header {h['name']}", bytes_text(h["value"])) for h in row["headers"]),
        ("value", bytes_text(row["value"]) if "value" in row else f"{row['value_bytes']:,} bytes; --value shows them"),
    ]  # fmt: skip
    for name, value in facts:
        head.add_row(cell(name, "bold"), cell(value))
    if not row["history"]:
        return head
    history = output.table("when", "what", "request", "outcome", "who", "text")
    for said in row["history"]:
        history.add_row(
            cell(time_text(said["at_ms"])), cell(said["kind"]), cell(said["request_id"]),
            cell(said["outcome"] or ""), cell(said["operator"] or ""), cell(said["text"] or ""),
        )  # fmt: skip
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
        filter(None, (row.get("error_type") or "", row.get("error_message") or row.get("why") or ""))
    )  # fmt: skip


def outcome_json(outcome: Outcome, kind: ReplayKind) -> Json:
    """One object of `dlq replay --json` and `dlq drop --json`."""
    return {
        **place_json(outcome.place),
        "act": "replay" if kind is ReplayKind.REPLAY else "drop",
        "result": outcome.result.value,
        "state": None if outcome.state is None else outcome.state.value,
        "request_id": outcome.request_id,
        "text": outcome.text or None,
    }


_SENTENCES: Mapping[Result, str] = {
    Result.PLANNED: "would be asked for",
    Result.REQUESTED: "is asked for, and no consumer of the group has answered yet; it is done when one runs",
    Result.HANDLED: "was handled",
    Result.FAILED: "failed again and stays",
    Result.DROPPED: "is dropped",
    Result.REPUBLISHED: "is published",
    Result.REQUESTED_ALREADY: "is asked for already and not answered yet",
    Result.MISSING: "was not there any more when its turn came",
    Result.UNKNOWN: "was not understood: the group's consumers do not know such a request",
    Result.NOT_FOUND: "is not found: no record stands there (any more)",
    Result.UNDECODABLE: "is no dead letter of the group; `txlayer dlq show` tells why",
    Result.LAST_OF_KEY: "is the last dead letter of a parked key and was not dropped: earlier ones of the key are open; "
    "drop or replay them first",
}


def sentence(outcome: Outcome, kind: ReplayKind) -> str:
    """What became of one dead letter, in one line without control characters."""
    if outcome.result is Result.ALREADY:
        state = "" if outcome.state is None else outcome.state.value
        more = "; --again asks all the same" if kind is ReplayKind.REPLAY else ""
        return f"{outcome.place} was {state} already{more}"
    text = f": {outcome.text}" if outcome.text else ""
    return printable(f"{outcome.place} {_SENTENCES[outcome.result]}{text}")
