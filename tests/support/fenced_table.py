"""A user's table whose rows compare fencing tokens, shared by processes; what it took and refused stands beside it."""

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from tests.support.consumer_history import Effect

Row = tuple[str, int, bytes | None]
PATIENCE_S = 60.0
"""A process that is frozen may hold the lock of the database."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS account (
    topic TEXT, partition INTEGER, key BLOB, fence INTEGER, PRIMARY KEY (topic, partition, key));
CREATE TABLE IF NOT EXISTS effect (
    number INTEGER PRIMARY KEY, at_ms REAL, process TEXT, topic TEXT, partition INTEGER, key BLOB,
    message INTEGER, token INTEGER, is_accepted INTEGER, is_replay INTEGER);
"""
_WRITE = """
INSERT INTO account VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET fence = excluded.fence WHERE fence <= excluded.fence
"""


class FencedTable:
    """Any number of threads and processes use one file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._local = threading.local()

    def create(self) -> None:
        """Before anybody uses it."""
        with closing(self._connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_SCHEMA)

    def write(self, row: Row, token: int, *, process: str, offset: int, is_replay: bool) -> bool:
        """False when the row was written under a newer lease. Either is one transaction with its line in `effect`."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
        connection.execute("BEGIN IMMEDIATE")
        topic, partition, key = row
        is_accepted = connection.execute(_WRITE, (topic, partition, key or b"", token)).rowcount > 0
        connection.execute(
            "INSERT INTO effect VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (time.time() * 1000, process, topic, partition, key, offset, token, is_accepted, is_replay),
        )
        connection.execute("COMMIT")
        return is_accepted

    def effects(self) -> list[Effect]:
        """All writes in their order."""
        with closing(self._connect()) as connection:
            rows = connection.execute("SELECT * FROM effect ORDER BY number").fetchall()
        return [
            Effect(
                at_ms,
                process,
                (topic, partition, key),
                message,
                token,
                is_accepted=bool(is_accepted),
                is_replay=bool(is_replay),
            )
            for _, at_ms, process, topic, partition, key, message, token, is_accepted, is_replay in rows
        ]

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._file, timeout=PATIENCE_S, isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")  # processes are killed here, not machines
        return connection
