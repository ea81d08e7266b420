"""What is fed with arbitrary bytes, and what must hold. Each check returns whether the input was accepted.

A check may meet no exception but the documented one of what it calls; what is accepted must come out of its own
encoder as it went in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import typer

from tests.fuzz.partition import check_partition
from txlayer.adapters.bodies import Body, write_json
from txlayer.adapters.ports import StoredOffset
from txlayer.cli.main import build_app
from txlayer.cli.options import parse_instant, parse_start
from txlayer.config import (
    KNOWN_NAMES,
    ClientConfig,
    CoordinatorConfig,
    ProducerConfig,
    SystemTopics,
    from_environ,
    milliseconds,
    parse_duration,
    parse_settings,
)
from txlayer.coordinator.recovery import decode_stored, encode_stored
from txlayer.core import codec
from txlayer.core.dead_letters import decode_dead_letter, decode_replay, encode_dead_letter, encode_replay
from txlayer.core.ledger.transaction import from_summary
from txlayer.core.messages import NO_OPTIONS, HalfHeader, OpMessage, Undecodable, check_group, check_txn_id
from txlayer.core.partitions import half_partition, partition_of_key_hash
from txlayer.errors import ConfigError, UsageError
from txlayer.operate.dead_letters import parse_letter
from txlayer.operate.history import parse_position

TOPICS = SystemTopics("txlayer")
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of bytes."""

    name: str
    check: Callable[[bytes], bool]
    share: int = 10
    """Of a long run; less for those that are slow."""


def text_of(raw: bytes) -> str:
    """Bytes as a command line or an environment brings them."""
    return raw.decode("utf-8", "surrogateescape")


# --- records ----------------------------------------------------------------------------------------------------------


def check_half_header(raw: bytes) -> bool:
    """The header `txl`."""
    found = codec.decode_half_header(raw)
    if isinstance(found, Undecodable):
        assert found.why
        return False
    again = codec.encode_half_header(found)
    assert found == codec.decode_half_header(again)
    if found.options.key_hash is not None:
        partition_of_key_hash(found.options.key_hash, partition_count=8)
    half_partition(ordering_key=None, txn_id=found.key.partition("/")[0], partition_count=8)
    return True


def check_options(raw: bytes) -> bool:
    """The options of a half header."""
    try:
        found = codec.decode_options(raw.decode("latin-1"))
    except ValueError:
        return False
    assert found == codec.decode_options(codec.encode_options(found))
    return True


def check_op(raw: bytes) -> bool:
    """The value of an op record."""
    lines = codec.split_ops(raw)
    if isinstance(lines, Undecodable):
        assert lines.why
        return False
    read = [codec.decode_op(line) for line in lines]
    found = [op for op in read if isinstance(op, OpMessage)]
    if found:
        again = codec.split_ops(codec.encode_ops([codec.encode_op(op) for op in found]))
        assert found == [codec.decode_op(line) for line in again]  # type: ignore[union-attr]  # ASCII was written
    return len(found) == len(lines)


def check_summary(raw: bytes) -> bool:
    """A summary on doubt, and the transaction that a restart makes of it."""
    key = "a/00000001"
    found = codec.decode_summary(key, raw)
    if isinstance(found, Undecodable):
        assert found.why
        return False
    assert found == codec.decode_summary(key, codec.encode_summary(found))
    try:
        txn = from_summary(found, doubt_offset=3)
    except ValueError:  # a state or a reason of a later version
        return False
    kept = txn.summary()
    assert kept == from_summary(kept, doubt_offset=3).summary()
    return True


def check_doubt_key(raw: bytes) -> bool:
    """A key on doubt: of a summary, of a content, or of a quarantined record."""
    parsed, aside = codec.parse_doubt_key(raw), codec.parse_quarantine_key(raw)
    assert parsed is None or aside is None
    if parsed is not None:
        key, index = parsed
        again = key.encode("ascii") if index is None else codec.content_key(key, index)
        assert parsed == codec.parse_doubt_key(again)
    if aside is not None:
        assert aside == codec.parse_quarantine_key(codec.quarantine_key(*aside))
    return parsed is not None or aside is not None


def check_origin(raw: bytes) -> bool:
    """The header `txl-origin`."""
    found = codec.decode_origin(raw)
    if isinstance(found, Undecodable):
        assert found.why
        return False
    partition, offset, index, count, born_ms = found
    again = codec.encode_origin(partition=partition, offset=offset, index=index, count=count, born_ms=born_ms)
    assert found == codec.decode_origin(again.encode())
    return True


def check_why(raw: bytes) -> bool:
    """The header `txl-why`."""
    reason, why = codec.decode_why(raw)
    json.dumps([reason, why])
    return bool(reason)


def check_content(raw: bytes) -> bool:
    """A content on doubt: pieces between blanks are key, value, then headers with arbitrary names."""
    key, value, *rest = [*raw.split(b" "), b"", b""]
    headers: list[tuple[str, bytes | None]] = [
        (part[:8].decode("utf-8", "replace"), part[8:] or None) for part in rest if part
    ]
    moved, kept = codec.encode_content(key=key or None, value=value or None, headers=headers)
    ours = (codec.KEY_HEADER, codec.NULL_HEADER, codec.CUT_HEADER)
    expected = [header for header in headers if header[0] not in ours]
    assert (key or None, value or None, expected) == codec.decode_content(value=moved, headers=kept)
    codec.decode_content(value=raw, headers=headers)
    return bool(expected)


def check_stored(raw: bytes) -> bool:
    """What stands beside the coordinators' stored offsets."""
    half = StoredOffset(5, "")
    try:
        found = decode_stored(half, StoredOffset(7, text_of(raw)), partition=1)
    except ConfigError:
        return False
    again = encode_stored(found.positions, writer=found.writer, topics=TOPICS, partition=1, time_ms=found.time_ms)
    assert found == decode_stored(*again.values(), partition=1)
    assert min(found.positions) >= 0
    return True


def check_dead_letter(raw: bytes) -> bool:
    """The header `txl-dlq`."""
    found = decode_dead_letter(raw)
    if isinstance(found, Undecodable):
        assert found.why
        return False
    assert found == decode_dead_letter(encode_dead_letter(found))
    return True


def check_replay(raw: bytes) -> bool:
    """The value of a record of a replay topic."""
    found = decode_replay(raw)
    if isinstance(found, Undecodable):
        assert found.why
        return False
    assert found == decode_replay(encode_replay(found))
    return True


# --- command lines and settings ---------------------------------------------------------------------------------------


def check_duration(raw: bytes) -> bool:
    """A length of time."""
    try:
        found = parse_duration("--older-than", text_of(raw))
    except ConfigError:
        return False
    assert found == parse_duration("x", f"{found.total_seconds():.6f}s") or found.days > 10_000
    milliseconds(found)
    assert 0 <= parse_instant("x", text_of(raw), now_ms=lambda: NOW_MS) <= NOW_MS
    return True


def check_place(raw: bytes) -> bool:
    """`PARTITION:OFFSET`, or a whole origin."""
    found = parse_position(text_of(raw))
    if found is None:
        return False
    assert found == parse_position(f"{found[0]}:{found[1]}")
    return True


def check_position(raw: bytes) -> bool:
    """Where coordinators are told to begin."""
    try:
        found = parse_start(text_of(raw))
    except ConfigError:
        return False
    assert found in ("earliest", "latest") or (isinstance(found, int) and found >= 0)
    return True


def check_letter(raw: bytes) -> bool:
    """The name of a dead letter on a command line."""
    try:
        found = parse_letter(text_of(raw), topics=["orders"])
    except UsageError as exc:
        str(exc)
        return False
    assert found == parse_letter(str(found), topics=[])
    return True


def check_time(raw: bytes) -> bool:
    """So long ago, or a time."""
    try:
        found = parse_instant("--since", text_of(raw), now_ms=lambda: NOW_MS)
    except ConfigError as exc:
        str(exc)
        return False
    assert found >= 0
    return True


def check_settings(raw: bytes) -> bool:
    """Settings for the Kafka client, `;` between."""
    try:
        found = parse_settings("--client-setting", text_of(raw).split(";"))
    except ConfigError as exc:
        refused = exc
    else:
        return _is_whole(found)
    assert "=" not in str(refused.fields["value"])  # behind it stands what may be a secret
    return False


def _is_whole(found: dict[str, str]) -> bool:
    assert found == parse_settings("x", [f"{name}={value}" for name, value in found.items()])
    return True


def check_bootstrap(raw: bytes) -> bool:
    """A list of brokers: what is let through without encryption is this machine."""
    text = text_of(raw)
    try:
        ClientConfig(bootstrap_servers=text)
    except ConfigError:
        return False
    for server in text.split(","):
        host = server.strip().lower()
        assert host.isascii()
        assert host.startswith(("localhost", "127.", "[::1]"))
    return True


def check_environment(raw: bytes) -> bool:
    """An environment: `NAME=VALUE`, a line feed between; short names are taken for the one at that place."""
    names = sorted(KNOWN_NAMES)
    environ = {}
    for number, line in enumerate(text_of(raw).split("\n")):
        name, _, value = line.partition("=")
        environ[name if name.startswith("TXLAYER_") else names[number % len(names)]] = value
    is_accepted = False
    for role in (ClientConfig, ProducerConfig, CoordinatorConfig):
        try:
            found = from_environ(role, environ)
        except ConfigError as exc:
            str(exc)
        else:
            is_accepted = found.bootstrap_servers != ""
    return is_accepted


def check_id(raw: bytes) -> bool:
    """A transaction id, and a producer group."""
    text, is_accepted = text_of(raw), False
    for check in (check_txn_id, check_group):
        try:
            assert text == check(text)
        except UsageError as exc:
            str(exc)
        else:
            is_accepted = True
    if is_accepted:
        header = HalfHeader(f"{text[:128]}/00000001", "g", "t", 0, 1, 5, NO_OPTIONS)
        assert header == codec.decode_half_header(codec.encode_half_header(header))
    return is_accepted


_COMMANDS: dict[tuple[str, ...], Any] = {}


def _commands_below(group: Any, *before: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that name it: one for those that stand alone, more for those of groups."""
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from _commands_below(command, *before, name)
        else:
            yield (*before, name), command


def check_command(raw: bytes) -> bool:
    """A whole command line, a line feed between its words; parsed and not run."""
    if not _COMMANDS:
        root = typer.main.get_command(build_app())
        _COMMANDS.update(_commands_below(root))
    words = text_of(raw).replace("\0", "").split("\n")
    commands = sorted(_COMMANDS)
    named = [names for n in range(1, 4) if (names := tuple(words[:n])) in _COMMANDS]
    names = named[0] if named else commands[len(raw) % len(commands)]
    try:
        with _COMMANDS[names].make_context("txlayer", words[len(names) :]):
            return True
    except (typer.Exit, typer.BadParameter):
        return False
    except Exception as exc:
        # Click's own usage errors, whose class typer does not name.
        if not (hasattr(exc, "exit_code") and hasattr(exc, "format_message")):
            raise
        return False


@dataclass(frozen=True)
class Order:
    """A body with every type that JSON holds as text or in another form."""

    id: UUID
    cents: int | None
    total: Decimal
    share: float
    at: datetime
    days: list[date]
    opens: time | str
    kind: Literal["new", "old"]
    tags: frozenset[str]
    place: tuple[int, bool]
    more: dict[str, Any]
    parent: Order | None = None


_ORDER, _PLAIN = Body(Order), Body(Any)


def check_body(raw: bytes) -> bool:
    """The body of a message, as a handler of orders and one of plain values want it."""
    is_accepted = False
    for body in (_ORDER, _PLAIN):
        try:
            found = body(raw, None)
        except ValueError:
            continue
        assert found == body(write_json(found), None)
        is_accepted = True
    return is_accepted


TARGETS: tuple[Target, ...] = (
    Target("half-header", check_half_header),
    Target("half-options", check_options),
    Target("op-record", check_op),
    Target("doubt-summary", check_summary),
    Target("doubt-key", check_doubt_key),
    Target("origin", check_origin),
    Target("why", check_why, 3),
    Target("doubt-content", check_content, 5),
    Target("stored", check_stored),
    Target("dead-letter", check_dead_letter),
    Target("replay", check_replay),
    Target("body", check_body),
    Target("duration", check_duration),
    Target("place", check_place, 5),
    Target("position", check_position, 5),
    Target("letter", check_letter, 5),
    Target("time", check_time, 5),
    Target("settings", check_settings, 5),
    Target("bootstrap", check_bootstrap, 5),
    Target("environment", check_environment, 3),
    Target("id", check_id, 5),
    Target("command", check_command, 1),
    Target("partition", check_partition, 3),
)
