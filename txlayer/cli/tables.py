"""What every table of the commands has in common: no cell is cut off, and nothing from the log is taken as markup.

Ids, groups, topics and reasons come from the log, where anybody may have put anything: control characters are shown, not
sent to the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from txlayer.adapters.telemetry import printable

_ENDLESS = 10_000
"""Columns of a terminal in which every table fits."""

WIDE = 240
"""Columns when nobody sees a terminal: a file or a pipe wants whole ids on one line."""


def console() -> Console:
    """Where tables go."""
    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)


def cell(text: object, style: str = "") -> Text:
    """A cell of a table that is taken as it is: no markup, no control characters."""
    return Text(printable(str(text)), style=style, overflow="fold")


def table(
    *headers: str, title: str | None = None, right: Container[str] = (), whole: Container[str] = ()
) -> Table:
    """An empty table whose cells and headers are folded where they do not fit, and never cut off.

    Columns of `right` are numbers; those of `whole` are not folded either: others get narrower.
    """
    made = Table(title=None if title is None else Text(printable(title), style="italic"))
    for name in headers:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        made.add_column(name, justify=justify, no_wrap=name in whole, overflow="fold")
    return made


class Parted:
    """One table where the terminal is wide enough; else several below each other, so that no header is folded inside a word.

    Args:
        columns: {header: cells}.
        parts: the headers of each narrower table; the first one says which row it is, and is the same in all.
        title: of the first.
        right: columns of numbers.
    """

    def __init__(
        self,
        columns: Mapping[str, Sequence[RenderableType]],
        *,
        parts: Sequence[Sequence[str]],
        title: str,
        right: Container[str] = (),
    ) -> None:
        self._columns = columns
        self._parts = parts
        self._title = title
        self._right = right

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        whole = self._table(tuple(self._columns), title=self._title)
        needed = Measurement.get(console, options.update(width=_ENDLESS), whole).maximum
        if needed <= options.max_width:
            yield whole
            return
        for number, names in enumerate(self._parts):
            yield self._table(names, title=None if number else self._title)

    def _table(self, names: Sequence[str], *, title: str | None) -> Table:
        made = table(*names, title=title, right=self._right)
        for cells in zip(*(self._columns[name] for name in names), strict=True):
            made.add_row(*cells)
        return made
