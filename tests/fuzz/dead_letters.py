"""Dead letters, requests about them, and how command lines name them, fed with arbitrary bytes."""

from txlayer.cli.options import parse_instant
from txlayer.core.dead_letters import decode_dead_letter, decode_replay, encode_dead_letter, encode_replay
from txlayer.core.messages import Undecodable
from txlayer.errors import ConfigError, UsageError
from txlayer.operate.dead_letters import parse_letter

NOW_MS = 1_700_000_000_000


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


def check_letter(raw: bytes) -> bool:
    """The name of a dead letter on a command line."""
    try:
        found = parse_letter(raw.decode("utf-8", "surrogateescape"), topics=["orders"])
    except UsageError as exc:
        str(exc)
        return False
    assert found == parse_letter(str(found), topics=[])
    return True


def check_time(raw: bytes) -> bool:
    """So long ago, or a time."""
    try:
        found = parse_instant("--since", raw.decode("utf-8", "surrogateescape"), now_ms=lambda: NOW_MS)
    except ConfigError as exc:
        str(exc)
        return False
    assert found >= 0
    return True
