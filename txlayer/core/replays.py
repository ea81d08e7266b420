"""Records of a replay topic: requests about dead letters and queues, and what became of them. Never who writes them.

Nothing here raises on bad bytes: the decoder returns `Undecodable`. The format, with test vectors, is written down in
docs/explanation/protocol.md.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from txlayer.core.dead_letters import is_request_id
from txlayer.core.fields import VERSION, known_fields, whole, wrong_form
from txlayer.core.handling import ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.messages import Undecodable

TEXT_LENGTH_MAX = 1_200
"""Characters of an operator's name and reason, or of a result's detail."""

_KINDS = {kind.value: kind for kind in ReplayKind}
_OUTCOMES = {outcome.value: outcome for outcome in ReplayOutcome}
_REQUEST_FIELDS = 5
_RESULT_FIELDS = 6
_OF_A_LETTER = frozenset({ReplayKind.REPLAY, ReplayKind.DROP})
_OF_A_QUEUE = frozenset({ReplayKind.PAUSE, ReplayKind.RESUME})


def encode_replay(record: ReplayRecord) -> bytes:
    """One line, ASCII: version|kind|request id|dead-letter offset|text, a result's outcome before the text."""
    offset = "" if record.dead_letter_offset is None else str(record.dead_letter_offset)
    text = quote(record.text[:TEXT_LENGTH_MAX], safe=" ", errors="replace")
    outcome = "" if record.outcome is None else f"{record.outcome.value}|"
    return f"{VERSION}|{record.kind.value}|{record.request_id}|{offset}|{outcome}{text}".encode("ascii")  # fmt: skip


def decode_replay(raw: bytes | None) -> ReplayRecord | Undecodable:
    """The value of a record of a replay topic."""
    try:
        fields = (raw or b"").decode("ascii").split("|")
        kind = _KINDS.get(fields[1]) if len(fields) > 1 else None
        count = _RESULT_FIELDS if kind is ReplayKind.RESULT else _REQUEST_FIELDS
        known = known_fields(fields, count)
        if known is None:
            return wrong_form("replay record", fields, count)
        fields = known
        offset = whole(fields[3]) if fields[3] else None
    except ValueError as exc:
        return Undecodable(f"replay record: {exc}")
    if kind is None or not is_request_id(fields[2]):
        return Undecodable("replay record: kind or request id out of form")
    if (kind in _OF_A_LETTER and offset is None) or (kind in _OF_A_QUEUE and offset is not None):
        return Undecodable(
            "replay record: a dead letter's offset is missing, or where none belongs"
        )
    text = unquote(fields[-1])[:TEXT_LENGTH_MAX]
    if kind is not ReplayKind.RESULT:
        return ReplayRecord(kind, fields[2], offset, text=text)
    outcome = _OUTCOMES.get(fields[4])
    if outcome is None:
        return Undecodable("replay record: outcome out of form")
    return ReplayRecord(kind, fields[2], offset, outcome, text)
