"""The fast path for the `txl` header of a half record: a single message without options, or with an ordering key only.

What it lets through must be what the codec would: a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Container
from sys import intern

from txlayer.core.codec import KEY_HASH
from txlayer.core.messages import GROUP_LENGTH_MAX, HalfOptions

PlainTail = tuple[str, str, str]
"""(producer group, real topic, born) of the half header of a single message; strings that repeat are interned."""

PlainOptions = tuple[HalfOptions, int]
"""Options that contain only an ordering key, and the key's checksum, which determines the partition."""

PLAIN_TAILS_MAX = 1_000
"""Tails in the cache: under load, many transactions are born in one millisecond."""

PLAIN_OPTIONS_MAX = 10_000
"""Ordering keys whose options are in the cache."""

BORN_DIGITS_MAX = 19
"""Milliseconds with fewer digits fit into 64 bits."""

PLAIN_OPTIONS_LENGTH = 17
_OPTIONS = re.compile(f"k{KEY_HASH.pattern}")


class PlainHeaders:
    """Parsed ends of headers. All ledgers of a process may share it: what it holds depends on the known topics alone.

    Attributes:
        tails: by the text behind the key, without options. Hot paths read it.
        options: by their text. Hot paths read it.
    """

    __slots__ = ("_topics", "options", "tails")

    def __init__(self, topics: Container[str]) -> None:
        self._topics = topics
        self.tails: dict[str, PlainTail] = {}
        self.options: dict[str, PlainOptions] = {}

    def parse_tail(self, tail: str) -> PlainTail | None:
        """Parse the part of a header behind the key, for a single message without options and a known topic; else None."""
        try:
            _, group, topic, part, born, options = tail.split("|")
        except ValueError:
            return None
        if not (
            part == "0/1"
            and not options
            and topic in self._topics
            and 0 < len(group) <= GROUP_LENGTH_MAX
            and born.isdigit()
            and len(born) < BORN_DIGITS_MAX
            and "\n" not in tail
        ):
            return None
        if len(self.tails) >= PLAIN_TAILS_MAX:
            self.tails.clear()
        self.tails[tail] = plain = (intern(group), intern(topic), born)
        return plain

    def parse_options(self, asked: str) -> PlainOptions:
        """Parse options that contain only an ordering key, and return them with the key's checksum.

        Raises:
            ValueError: the options contain something else.
        """
        if _OPTIONS.fullmatch(asked) is None:
            raise ValueError("options that are not plain")
        if len(self.options) >= PLAIN_OPTIONS_MAX:
            self.options.clear()
        key_hash = asked[1:]
        self.options[asked] = plain = HalfOptions(key_hash), int(key_hash[:8], 16)
        return plain
