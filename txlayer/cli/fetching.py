"""What a first start shows while it fetches jars and prepares them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from txlayer.adapters.kafka.local.jars import BROKER, JarPurpose, read_lock


class FetchBar:
    """A bar on standard error; it appears with the first report, so a start that fetches nothing shows nothing."""

    def __init__(self, purpose: JarPurpose = BROKER) -> None:
        self._lock = read_lock(purpose)
        self._console = Console(stderr=True)
        columns = (
            TextColumn(
                "{task.fields[title]} {task.fields[version]}: {task.fields[files]:>2}/{task.fields[of]} jars"
            ),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=self._console, auto_refresh=False)
        self._task = self._bar.add_task(
            "",
            total=self._lock.size_bytes,
            title=purpose.title,
            version=self._lock.version,
            files=0,
            of=len(self._lock.jars),
        )

    def fetched(self, file_count: int, size_bytes: int) -> None:
        """Show how far the jars are."""
        self._bar.start()
        self._bar.update(self._task, completed=size_bytes, files=file_count, refresh=True)

    def preparing(self) -> None:
        """Say why it still takes a moment."""
        self.close()
        self._console.print("Preparing Kafka's classes for quick starts, once: some 15 s")

    def close(self) -> None:
        """Leave the bar as it is."""
        # An unused bar would still end with an empty line.
        if self._bar.live.is_started:
            self._bar.stop()


@contextmanager
def fetch_progress(purpose: JarPurpose = BROKER) -> Iterator[FetchBar]:
    """A bar for the time of the block."""
    bar = FetchBar(purpose)
    try:
        yield bar
    finally:
        bar.close()
