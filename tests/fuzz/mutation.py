"""The corpus, and mutations of it: bytes that are nearly right, made by the hundred thousand. Never: what is read of them."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

CORPUS = Path(__file__).with_name("corpus")

MUTATIONS_MAX = 5
LENGTH_MAX = 4_000
"""Longer ones tell nothing new and cost more."""

TOKENS = (
    b"",
    b"0",
    b"-1",
    b"1",
    b"+1",
    b"1_0",
    b" 1",
    b"01",
    b"9223372036854775807",
    b"9223372036854775808",
    b"2147483648",
    b"99999999999999999999",
    b"|",
    b"||",
    b"/",
    b":",
    b",",
    b"=",
    b";",
    b"\n",
    b"\r",
    b"\t",
    b"\0",
    b" ",
    b"\x1b[2J",
    b"\xff",
    b"\xc3\xa4",
    "\u0661".encode(),
    "\uff11".encode(),
    b"\xed\xb3\xa9",
    b"%0A",
    b"%",
    b"a/00000001",
    b"C",
    b"R",
    b"U",
    b"A",
    b"producer",
    b"operator",
    b"commit",
    b"prepare",
    b"open",
    b"held",
    b"parked",
    b"committed",
    b"orders",
    b"txl",
    b"origin",
    b"0/1",
    b"1/2",
    b"k0123456789abcdef",
    b"op",
    b"n3",
    b"t5",
    b"ms",
    b"inf",
    b"nan",
    b"1e9",
    b"{x}",
    b"{0}",
    b"{",
    b"..",
)


def corpus_of(name: str) -> list[bytes]:
    """The inputs of one target: real encodings, and whatever once found something."""
    found = [path.read_bytes() for path in sorted((CORPUS / name).glob("*.bin"))]
    assert found, f"no corpus for {name}"
    return found


def mutated(corpus: Sequence[bytes], dice: Random) -> bytes:
    """One of the corpus, changed in a few places."""
    found = dice.choice(corpus)
    for _ in range(dice.randint(1, MUTATIONS_MAX)):
        found = _once(found, corpus, dice)
    return found[:LENGTH_MAX]


def _once(raw: bytes, corpus: Sequence[bytes], dice: Random) -> bytes:
    at = dice.randrange(len(raw) + 1)
    until = min(len(raw), at + dice.choice((0, 1, 1, 2, 4, 16)))
    kind = dice.randrange(6)
    if kind == 0:
        return raw[:at] + bytes([dice.randrange(256)]) + raw[until:]
    if kind == 1:
        return raw[:at] + dice.choice(TOKENS) + raw[until:]
    if kind == 2:
        return raw[:at] + raw[until:]
    if kind == 3:  # twice
        return raw[:until] + raw[at:]
    if kind == 4:  # the beginning of one, the end of another
        other = dice.choice(corpus)
        return raw[:at] + other[dice.randrange(len(other) + 1) :]
    separator = dice.choice((b"|", b"\n", b"/", b","))  # another field in the place of one
    fields = raw.split(separator)
    fields[dice.randrange(len(fields))] = dice.choice((*TOKENS, *fields))
    return separator.join(fields)
