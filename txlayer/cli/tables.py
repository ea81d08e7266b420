"""What every table of the commands has in common: no cell is cut off, and nothing from the log is taken as markup.

Ids, groups, topics and reasons come from the log, where anybody may have put anything: control characters are shown, not
sent to the terminal.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

WIDE = 240
"""Columns when nobody sees a terminal: a file or a pipe wants whole ids on one line."""


def console() -> Console:
    """Where tables go."""
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def plain(text: str) -> str:
    """Text in which nothing moves a cursor or rings a bell: what cannot be printed is shown as Python escapes it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cell(text: object, style: str = "") -> Text:
    """A cell of a table that is taken as it is: no markup, no control characters."""
    return Text(plain(str(text)), style=style, overflow="fold")
