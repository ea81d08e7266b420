"""What commands print: tables, bars, ages and times.

No cell of a table is cut off, and nothing from the log is taken as markup. Ids, groups, topics and reasons come from the
log, where any client may have written anything: control characters are shown, not sent to the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from txlayer.adapters.telemetry import printable
from txlayer.cli.exits import ExitCode
from txlayer.errors import UsageError
from txlayer.operate import Json, length_text, time_text

if TYPE_CHECKING:
    from rich.progress import TaskID

T = TypeVar("T")

_ENDLESS = 10_000  # columns of a terminal in which every table fits

WIDE = 240  # columns without a terminal: a file or a pipe wants whole ids on one line


def console(*, err: bool = False) -> Console:
    stream = sys.stderr if err else sys.stdout
    return Console(width=None if stream.isatty() else WIDE, highlight=False, stderr=err)


def cell(text: object, style: str = "") -> Text:
    """A cell of a table that is taken as it is: no markup, no control characters."""
    return Text(printable(str(text)), style=style, overflow="fold")


CELL_WIDTH_MIN = 4  # an id in narrower cells is unreadable, and rich leaves out columns that have no room


class RowsTable(Table):
    """A row a line; on a terminal that is too narrow for that, a field a line."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        of_columns = [list(column.cells) for column in self.columns]
        widths = (
            max((cell_len(str(cell)) for cell in cells), default=0) if column.no_wrap else CELL_WIDTH_MIN
            for column, cells in zip(self.columns, of_columns, strict=True)
        )
        if sum(widths) + 3 * len(self.columns) < options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield self.title
        for row in zip(*of_columns, strict=True):
            yield grid(zip((str(column.header) for column in self.columns), row, strict=True))
            yield ""


Columns = Mapping[str, str | Callable[[Any], object]]
"""{header: the name of a row's field (then it is JSON), or what makes the cell of the row}; no text in a cell for None."""


def rows_table(
    rows: Iterable[Any],
    columns: Columns,
    *,
    title: str | None = None,
    right: Container[str] = (),
    whole: Container[str] = (),
) -> Table:
    """A row a line. Cells and headers are folded, never cut off; columns of `right` are numbers, those of `whole` are not folded."""
    made = RowsTable(title=None if title is None else Text(printable(title), style="italic"))
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        made.add_column(name, justify=justify, no_wrap=name in whole, overflow="fold")
    for row in rows:
        values = (row[take] if isinstance(take, str) else take(row) for take in columns.values())
        made.add_row(*map(_cell_of, values))
    return made


def _cell_of(value: object) -> Text:
    return value if isinstance(value, Text) else cell("" if value is None else value)


def ages(name: str) -> Callable[[Json], str]:
    return lambda row: length_text(row[name])


def times(name: str) -> Callable[[Json], str]:
    return lambda row: time_text(row[name])


def number_or_none(name: str) -> Callable[[Json], str]:
    return lambda row: "none" if row[name] is None else str(row[name])


def parted(
    rows: Sequence[Json], columns: Columns, *, parts: Sequence[Sequence[str]], title: str, right: Container[str] = ()
) -> RenderableType:
    """One table where the terminal is wide enough; else a table for the headers of each part."""
    whole, target = rows_table(rows, columns, title=title, right=right), console()
    if Measurement.get(target, target.options.update(width=_ENDLESS), whole).maximum <= target.width:
        return whole
    chosen = [{name: columns[name] for name in names} for names in parts]
    return Group(*(rows_table(rows, part, title=None if n else title, right=right) for n, part in enumerate(chosen)))


def grid(rows: Iterable[tuple[str, object]]) -> Table:
    made = Table.grid(padding=(0, 2))
    for name, value in rows:
        made.add_row(cell(name, "bold"), _cell_of(value))
    return made


def print_json(value: object) -> None:
    typer.echo(json.dumps(value))


Drawn = RenderableType | list[RenderableType]


def show(value: Any, draw: Callable[[Any], Drawn], *, as_json: bool, nothing: str = "") -> None:
    """Print a value for a program, or draw it for a person: a text as it is, without markup; `nothing` where there are no rows."""
    if as_json:
        print_json(value)
        return
    drawn = draw(value) if value else printable(nothing)
    for part in drawn if isinstance(drawn, list) else [drawn]:
        if isinstance(part, str):
            typer.echo(part)
        else:
            console().print(part)


def note_counts(*counts: tuple[int, str], err: bool = True) -> None:
    """Print how many there are of each kind, where there are any."""
    for count, said in counts:
        if count:
            typer.echo(f"{count:,} {said}", err=err)


SAMPLE_COUNT = 10  # rows shown before a bulk is confirmed

SENTENCE_COUNT_MAX = 100  # good outcomes printed one by one, a page or two of a terminal; more are counted


def has_person() -> bool:
    """Whether somebody at a terminal can answer."""
    return sys.stdin.isatty()


def ask(question: str) -> None:
    """Ask, beside what is printed for a program; a program may give the answer. UsageError, typer.Abort: none, or no. Nothing was changed."""
    try:
        is_said = typer.confirm(question, err=True)
    except typer.Abort:
        if has_person():
            raise
        why = "the question got no answer, and nothing was changed; with --yes the command does not ask"
        raise UsageError(why) from None
    if not is_said:
        raise typer.Abort


def confirm(what: str, question: str, *, sample: Table | None = None, more_count: int = 0) -> None:
    """Show what would happen, and ask; `what` begins with the command. UsageError: there is no terminal; typer.Abort: the answer was no."""
    if not has_person():
        look = "" if sample is None else ", or look first with --dry-run"
        raise UsageError(f"{what} and no terminal to ask; say --yes{look}")
    if sample is not None:
        Console(stderr=True, highlight=False).print(sample)
    if more_count > 0:
        typer.echo(f"and {more_count:,} more", err=True)
    typer.confirm(question, abort=True, err=True)


def report(
    outcomes: Sequence[T],
    *,
    is_good: Callable[[T], bool],
    sentence: Callable[[T], str],
    to_json: Callable[[T], Json],
    nothing: str,
    as_json: bool,
) -> None:
    """Print what became of each: the good ones on standard output, the others on standard error; typer.Exit: not all are good."""
    good = [outcome for outcome in outcomes if is_good(outcome)]
    if as_json:
        print_json([to_json(outcome) for outcome in outcomes])
    else:
        for outcome in good[:SENTENCE_COUNT_MAX]:
            typer.echo(sentence(outcome))
        if len(good) > SENTENCE_COUNT_MAX:
            typer.echo(f"and {len(good) - SENTENCE_COUNT_MAX:,} more alike; --json shows all")
        for outcome in outcomes:
            if not is_good(outcome):
                typer.echo(sentence(outcome), err=True)
        if not outcomes:
            typer.echo(nothing)
    if len(good) < len(outcomes):
        raise typer.Exit(ExitCode.FINDING)


Step = Callable[..., None]  # moves the bar of one step: so many are done, of so many; the total may come later


@contextmanager
def two_step_progress(first: str, second: str) -> Iterator[tuple[Step, Step]]:
    """Bars on standard error for two steps, one after the other; none without a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = (bars.add_task(first, total=None), bars.add_task(second, total=None, visible=False))

        def step_of(task: TaskID) -> Step:
            return lambda count, total=None: bars.update(task, completed=count, total=total, visible=True)

        yield step_of(tasks[0]), step_of(tasks[1])
