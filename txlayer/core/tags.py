"""`"TagA || TagC"` → which messages a consumer wants. Never reading headers."""

from __future__ import annotations

from dataclasses import dataclass

from txlayer.errors import ConfigError

_OR = "||"
_EVERY = "*"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which tags a consumer wants. What it does not want counts as handled."""

    wanted: frozenset[bytes] | None = None
    """None: every message, also those without a tag."""

    def accepts(self, tag: bytes | None) -> bool:
        """True for a message with this tag; None: it has none."""
        return self.wanted is None or tag in self.wanted


def parse_tags(expression: str) -> TagFilter:
    """The filter that an expression says: tags with `||` between them, or `*` (or nothing) for every message.

    A message has one tag; blanks around a tag do not count; `*` stands alone.

    Raises:
        ConfigError: there is nothing on one side of a `||`, or a `*` or `|` among tags. Nothing happened.
    """
    if expression.strip() in ("", _EVERY):
        return TagFilter()
    tags = [tag.strip() for tag in expression.split(_OR)]
    if any(not tag or tag == _EVERY or "|" in tag for tag in tags):
        raise ConfigError(name="tags", value=expression, expected='"TagA || TagC", or "*"')
    return TagFilter(frozenset(tag.encode() for tag in tags))
