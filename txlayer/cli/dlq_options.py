"""Options of `txlayer dlq`, and what they mean together: which group, which dead letters, who asks and why."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from txlayer.cli.operators import check_signature, default_operator
from txlayer.config import milliseconds, parse_duration
from txlayer.consumer.dead_letter_log import Place
from txlayer.consumer.letter_choice import LetterFilter
from txlayer.core.dead_letters import is_request_id
from txlayer.core.handling import DeadLetterReason
from txlayer.core.ids import check_group, is_topic_name
from txlayer.core.letter_states import LetterState
from txlayer.errors import ConfigError, UsageError

Group = Annotated[
    str,
    typer.Option("--group", metavar="GROUP", help="The consumer group that gave the messages up."),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Only messages of this topic; may be repeated. Default: every topic that the group has dead letters of.",
        show_default=False,
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="TEXT", help="Only this key, as UTF-8.", show_default=False),
]
KeyHex = Annotated[
    str | None,
    typer.Option(
        "--key-hex", metavar="HEX", help="Only this key, as bytes in hex.", show_default=False
    ),
]
ReasonCode = Annotated[
    list[DeadLetterReason] | None,
    typer.Option(
        "--reason-code",
        help="Only those given up for this reason; may be repeated.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="2h|TIME",
        help="Only those given up since: so long ago, or a time such as 2026-11-21T10:00:00+00:00.",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="2h|TIME",
        help="Only those given up before: so long ago, or a time.",
        show_default=False,
    ),
]
States = Annotated[
    list[LetterState] | None,
    typer.Option("--state", help="Only this state; may be repeated.", show_default=False),
]
Letters = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LETTER…",
        help="Dead letters as `list` names them: TOPIC/PARTITION:OFFSET, with one --topic PARTITION:OFFSET.",
        show_default=False,
    ),
]
Reason = Annotated[
    str,
    typer.Option("--reason", metavar="TEXT", help="Why; recorded.", show_default=False),
]
Operator = Annotated[
    str | None,
    typer.Option("--operator", metavar="NAME", help="Who; default USER@host.", show_default=False),
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="ID",
        help="Name of the request; the same again asks only for what was not asked for yet. Default: a new one.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Author:
    """Who asks, why, and under which name."""

    operator: str
    reason: str
    request_id: str

    @property
    def text(self) -> str:
        """What stands in every request."""
        return f"{self.operator}: {self.reason}"


def author_of(command: str, *, operator: str | None, reason: str, request_id: str | None) -> Author:
    """The author of a request.

    Raises:
        UsageError: no reason, or a name that cannot be one. Nothing was read.
    """
    named = default_operator() if operator is None else operator
    check_signature(
        command, operator=named, reason=reason, recorded="it is recorded in the request"
    )
    drawn = request_id or secrets.token_hex(6)
    if not is_request_id(drawn):
        raise UsageError(f"{command}: --request-id takes 1 to 64 of A-Z a-z 0-9 . _ -")
    return Author(named, reason, drawn)


def make_filter(
    *,
    key: str | None,
    key_hex: str | None,
    reason_code: Collection[DeadLetterReason] | None,
    since: str | None,
    until: str | None,
    state: Collection[LetterState] | None = None,
    now_ms: int,
) -> LetterFilter:
    """What the options say together.

    Raises:
        ConfigError, UsageError: one has the wrong form, or two contradict each other.
    """
    if key is not None and key_hex is not None:
        raise UsageError("--key and --key-hex: name the key once")
    raw = None if key is None else key.encode("utf-8", "surrogateescape")
    if key_hex is not None:
        try:
            raw = bytes.fromhex(key_hex)
        except ValueError as exc:
            raise ConfigError("not a key", name="--key-hex", value=key_hex, expected="hex digits") from exc  # fmt: skip
    return LetterFilter(
        raw,
        frozenset(reason_code or ()),
        None if since is None else parse_time("--since", since, now_ms=now_ms),
        None if until is None else parse_time("--until", until, now_ms=now_ms),
        frozenset(state or ()),
    )


def parse_time(name: str, text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970 of `2h` (so long ago) or of an ISO 8601 time (UTC when it names no zone).

    Raises:
        ConfigError: it is neither.
    """
    if re.fullmatch(r"\s*[0-9.]+[a-z]+\s*", text):
        return max(now_ms - milliseconds(parse_duration(name, text)), 0)
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(int(at.timestamp() * 1000), 0)
    except (ValueError, OverflowError) as exc:
        raise ConfigError(
            "not a time", name=name, value=text, expected="2h, 3d or 2026-11-21T10:00:00+00:00"
        ) from exc


def parse_letter(text: str, *, topics: Sequence[str]) -> Place:
    """`orders/3:17`, or `3:17` where `topics` has one.

    Raises:
        UsageError: it has another form.
    """
    match = re.fullmatch(r"(?:([^/]+)/)?(\d{1,9}):(\d{1,18})", text, re.ASCII)
    topic = None if match is None else match[1] or (topics[0] if len(topics) == 1 else None)
    if match is None or topic is None or not is_topic_name(topic):
        raise UsageError(
            f"{text[:80]!r} names no dead letter: TOPIC/PARTITION:OFFSET is asked for, as `txlayer dlq list` shows it, or "
            "PARTITION:OFFSET with one --topic"
        )  # fmt: skip
    return Place(topic, int(match[2]), int(match[3]))


def check_names(group: str, topics: Sequence[str] | None) -> None:
    """Refuse what topics cannot be named after.

    Raises:
        UsageError: a name is out of form.
    """
    check_group(group)
    for topic in topics or ():
        if not is_topic_name(topic):
            raise UsageError(f"--topic {topic[:80]!r}: no topic can have this name")
