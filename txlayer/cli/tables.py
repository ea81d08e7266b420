"""What every table of the commands has in common: no cell is cut off, and nothing from the log is taken as markup.

Ids, groups, topics and reasons come from the log, where anybody may have put anything: control characters are shown, not
sent to the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Literal

from rich.console import Console
from rich.table import Table
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


def table(
    *headers: str, title: str | None = None, right: Container[str] = (), whole: Container[str] = ()
) -> Table:
    """An empty table whose cells and headers are folded where they do not fit, and never cut off.

    Columns of `right` are numbers; those of `whole` are not folded either: others get narrower.
    """
    made = Table(title=None if title is None else Text(plain(title), style="italic"))
    for name in headers:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        made.add_column(name, justify=justify, no_wrap=name in whole, overflow="fold")
    return made
