"""Transaction ids and attempt nonces: their form, and UUIDv7 from a given time and given bits. Pure: callers pass time and bits."""

from __future__ import annotations

import re
from typing import NewType

from txlayer.errors import UsageError

TxnId = NewType("TxnId", str)

TXN_ID_LENGTH_MAX = 128
"""Longest id. It is part of every key and header of a transaction."""

NONCE_LENGTH = 8
"""Length of a nonce in hexadecimal digits: enough to distinguish the attempts of one id."""

UUID_LENGTH = 36
"""Characters of a generated id."""

_TAIL_FORM = b"xxx-xxxx-xxxxxxxxxxxx/xxxxxxxx "
_TAIL_PLACES = tuple(place for place, byte in enumerate(_TAIL_FORM) if byte == ord("x"))
_VARIANT_PLACE = 4
# Two of the four bits of that digit are the variant of RFC 9562, the other two are random.
_VARIANTS = bytes.maketrans(b"0123456789abcdef", b"89ab89ab89ab89ab")

TAIL_DIGITS = len(_TAIL_PLACES)
"""Random hexadecimal digits per key tail in `key_tails`."""

# `|` separates fields, and `/` separates id, nonce and index in keys; a blank would have to be quoted on a command line.
_TXN_ID = re.compile(r"[!-.0-{}~]{1,128}")
GROUP_LENGTH_MAX = 200
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""The form of topic names that Kafka accepts."""


def is_topic_name(name: str) -> bool:
    """True if Kafka accepts `name` as the name of a topic."""
    return TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def uuid7(*, at_ms: int, random_bits: int) -> str:
    """A UUID of version 7 as 36 characters: 48 bits of `at_ms`, 74 bits of `random_bits` (the rest is ignored).

    Source: RFC 9562, section 5.7.
    """
    time_bits = at_ms & 0xFFFF_FFFF_FFFF
    return (
        f"{time_bits >> 16:08x}-{time_bits & 0xFFFF:04x}-7{random_bits & 0xFFF:03x}-"
        f"{0x8000 | (random_bits >> 12) & 0x3FFF:04x}-{(random_bits >> 26) & 0xFFFF_FFFF_FFFF:012x}"
    )


def uuid7_head(at_ms: int) -> str:
    """The first 15 characters of `uuid7`: the time and the version."""
    time_bits = at_ms & 0xFFFF_FFFF_FFFF
    return f"{time_bits >> 16:08x}-{time_bits & 0xFFFF:04x}-7"


def key_tails(random_hex: str) -> list[str]:
    """The part behind `uuid7_head` in "id/nonce", one for every 27 hexadecimal digits: 74 random bits, `/`, nonce.

    Makes many at once, column by column: a producer needs one per transaction, and this takes a fifth of the
    time of making them one by one.
    """
    count = len(random_hex) // TAIL_DIGITS
    digits = random_hex[: count * TAIL_DIGITS].encode("ascii")
    table = bytearray(_TAIL_FORM * count)
    for column, place in enumerate(_TAIL_PLACES):
        table[place :: len(_TAIL_FORM)] = digits[column::TAIL_DIGITS]
    variants = slice(_VARIANT_PLACE, None, len(_TAIL_FORM))
    table[variants] = table[variants].translate(_VARIANTS)
    return table.decode("ascii").split()


def check_txn_id(txn_id: str) -> TxnId:
    """Return the id if it is 1 to 128 printable ASCII characters without blank, `|` and `/`.

    Raises:
        UsageError: it is not. Nothing was sent.
    """
    if not isinstance(txn_id, str) or _TXN_ID.fullmatch(txn_id) is None:
        raise UsageError(
            f"transaction id {str(txn_id)[:140]!r}: 1 to {TXN_ID_LENGTH_MAX} printable ASCII characters "
            "without blank, '|' and '/' are allowed"
        )
    return TxnId(txn_id)


def check_group(group: str) -> str:
    """Return the producer group if Kafka would accept it as part of a group name.

    Raises:
        UsageError: it is not 1 to 200 letters, digits, `.`, `_` or `-`.
    """
    if not isinstance(group, str) or _GROUP.fullmatch(group) is None:
        raise UsageError(f"producer group {str(group)[:210]!r}: 1 to 200 letters, digits, '.', '_' or '-' are allowed")
    return group
