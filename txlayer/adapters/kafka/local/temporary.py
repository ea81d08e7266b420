"""Folders of temporary clusters: each belongs to one process, and the next such process removes what a dead one left.

::

    <temporary folder>/txlayer-broker-…/.owner     locked as long as the process lives that made the folder
    <temporary folder>/txlayer-broker-…/cluster/   the cluster's data folder

The system gives up the lock with the process, by whatever signal, so an owner needs no number that could be reused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from txlayer.adapters.kafka.local.cluster_folder import ClusterFolder
from txlayer.errors import ConfigError

PREFIX = "txlayer-broker-"
_OWNER_NAME = ".owner"


class TemporaryFolder:
    """A folder of this process's own; `remove` ends it, else it goes with a later process's start."""

    def __init__(self) -> None:
        self._path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        # Locked before it has its name: nobody can meet it without its owner.
        draft = self._path / f"{_OWNER_NAME}.draft"
        self._lock: int | None = os.open(draft, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.replace(self._path / _OWNER_NAME)

    @property
    def cluster(self) -> Path:
        """Where a cluster may be put; it does not exist yet."""
        return self._path / "cluster"

    def remove(self) -> None:
        """Remove everything; may be repeated."""
        if self._lock is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def remove_orphans() -> list[Path]:
    """Remove the folders of processes that have died and whose brokers have ended too; those that were removed.

    Never: a folder of another user, of a living process, with a living broker, or that this module did not make.
    """
    return [
        path
        for path in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*")
        if _is_ours(path) and _remove_if_orphaned(path)
    ]


def _is_ours(path: Path) -> bool:
    # It may vanish meanwhile: its owner, or another start, removes it.
    with contextlib.suppress(FileNotFoundError):
        return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
    return False


def _remove_if_orphaned(path: Path) -> bool:
    try:
        lock = os.open(path / _OWNER_NAME, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False  # no owner was ever named there
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Brokers are killed with their owner, a moment later; then the next start finds them ended.
        if _has_living_broker(ClusterFolder(path / "cluster")):
            return False
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return not path.exists()


def _has_living_broker(folder: ClusterFolder) -> bool:
    try:
        cluster = folder.load()
    except ConfigError:
        return False  # killed before its record was written, and so before any broker
    return cluster is not None and any(
        folder.living_pid(node) is not None for node in cluster.nodes
    )
