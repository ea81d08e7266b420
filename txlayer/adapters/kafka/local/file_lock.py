"""One process at a time, on this machine; and a folder for what the one at work has not finished."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, waiting for it; it ends with the process, so it is never stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def work_folder(parent: Path, *, prefix: str) -> Iterator[Path]:
    """A temporary folder for the holder of a lock; what a holder that was killed has left under the prefix goes first."""
    for left in parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder:
        yield Path(folder)
