"""The fields of our records' lines: numbers, keys, hashes, and what is wrong with them. Never a whole record (codec.py)."""

from __future__ import annotations

import re

from txlayer.core.ids import NONCE_LENGTH, TXN_ID_LENGTH_MAX
from txlayer.core.messages import Undecodable

VERSION = "1"
"""Version of every record that this release writes."""

NEXT_VERSION = "2"
"""Version that the next release may write: what this one knows of, with further fields behind, which it passes over.

So old and new processes read each other while they are replaced one by one. A release that must change more than that
reads the new form first; only the one after it writes it.
"""

PARTITION_MAX = 2**31 - 1
"""Kafka's own number of a partition; the client refuses more by an exception."""

WHOLE_MAX = 2**63 - 1
"""The same for offsets and times."""

WHOLE_LENGTH_MAX = 19
KEY_LENGTH_MAX = TXN_ID_LENGTH_MAX + 1 + NONCE_LENGTH
KEY_HASH = re.compile(r"[0-9a-f]{16}")


def is_key(key: str) -> bool:
    """True when `key` has the form id/nonce."""
    return (
        NONCE_LENGTH + 1 < len(key) <= KEY_LENGTH_MAX
        and key[-NONCE_LENGTH - 1] == "/"
        and key.count("/") == 1
    )


def whole(text: str) -> int:
    """A whole number of at most 63 bits.

    Raises:
        ValueError: it is none.
    """
    # int() alone takes signs, blanks, underscores and digits of other scripts: none of them is ours.
    if not (text.isascii() and text.isdigit()) or len(text) > WHOLE_LENGTH_MAX:
        raise ValueError(f"{text[:20]!r} is no whole number")
    number = int(text)
    if number > WHOLE_MAX:
        raise ValueError(f"{text!r} is no whole number")
    return number


def key_hash(text: str) -> str:
    """The hash of an ordering key itself.

    Raises:
        ValueError: it is none.
    """
    if KEY_HASH.fullmatch(text) is None:
        raise ValueError(f"{text[:20]!r} is no key hash")
    return text


def known_fields(fields: list[str], count: int) -> list[str] | None:
    """The `count` fields of a record that this release knows; None: it is of no version that it reads, or out of form."""
    if fields[0] == VERSION:
        return fields if len(fields) == count else None
    return fields[:count] if fields[0] == NEXT_VERSION and len(fields) >= count else None


def wrong_form(what: str, fields: list[str], count: int) -> Undecodable:
    """What is wrong with `fields`, which are not `count` or of another version."""
    if fields[0] not in (VERSION, NEXT_VERSION):
        return Undecodable(f"{what}: unknown version {fields[0][:20]!r}")
    return Undecodable(f"{what}: {len(fields)} fields where {count} are due")
