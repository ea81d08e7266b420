"""A bar on standard error for a person who waits for more than a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` are done, as the function that it gives is told; nothing where nobody sees a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())  # fmt: skip
    console = Console(stderr=True)
    is_shown = console.is_terminal and total > 0
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.update(task, completed=count)
