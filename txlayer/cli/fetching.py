"""The progress bar of fetching Kafka's jars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from txlayer.adapters.kafka.local.fetch import Progress as FetchProgress
from txlayer.adapters.kafka.local.jars import read_lock


@contextmanager
def fetch_progress() -> Iterator[FetchProgress]:
    """A callable that shows how far the jars are, on standard error; nothing is shown when none is fetched."""
    lock = read_lock()
    columns = (
        TextColumn("Kafka {task.fields[version]}: {task.fields[files]:>2}/{task.fields[of]} jars"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), auto_refresh=False)
    task = bar.add_task(
        "", total=lock.size_bytes, version=lock.kafka_version, files=0, of=len(lock.jars)
    )

    def report(files: int, size_bytes: int) -> None:
        bar.start()
        bar.update(task, completed=size_bytes, files=files, refresh=True)

    try:
        yield report
    finally:
        # An unused bar would still end with an empty line.
        if bar.live.is_started:
            bar.stop()
