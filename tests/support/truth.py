"""A shop's database under chaos: its barrier's table, which says of each transaction what became of it. Never an op line.

The rule of the barrier holds: the first row of an id is the truth, whether the shop's own commit or a responder's rollback.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from txlayer.adapters.sql import SqlBarrier
from txlayer.core.messages import COMMIT, Resolution

GROUP = "shop"
_COMMIT = """
INSERT INTO txlayer_barrier (txn_id, nonce, producer_group, resolution, source) VALUES (?, ?, ?, ?, 'producer')
"""
_SAID = "SELECT txn_id, nonce, resolution FROM txlayer_barrier"


class Truth:
    """One file. One thread of this process writes; responders have it by its `url`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        SqlBarrier(create_engine(f"sqlite:///{file}", poolclass=NullPool)).create_table()
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")

    @property
    def url(self) -> str:
        """For `--barrier-url`."""
        return f"sqlite:///{self._file}?check_same_thread=false"

    def commit(self, key: str) -> bool | None:
        """Commit a local transaction: False when somebody said ROLLBACK before; None when the database is locked."""
        txn_id, _, nonce = key.partition("/")
        with closing(sqlite3.connect(self._file, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute(_COMMIT, (txn_id, nonce, GROUP, COMMIT.value))
            except sqlite3.IntegrityError:
                return False
            except sqlite3.OperationalError:  # a responder has it, and may be frozen
                return None
        return True

    def said(self) -> dict[str, Resolution]:
        """{"id/nonce": the first word}."""
        with closing(sqlite3.connect(self._file)) as connection:
            rows = connection.execute(_SAID).fetchall()
        return {f"{txn_id}/{nonce}": Resolution(said) for txn_id, nonce, said in rows}
