"""Traces of a window on disk, in a file that is gone at the end: kept as they come, given back by transaction id.

SQLite sorts them in its own temporary files, so what is kept takes no memory that grows. Never a rule of what they mean.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from txlayer.core.judging import (
    AsideTrace,
    ContentTrace,
    DoubtTrace,
    ForwardTrace,
    HalfTrace,
    OpTrace,
    OrderMark,
    Traces,
)
from txlayer.core.messages import Origin
from txlayer.core.verdicts import Verdict

CACHE_BYTES = 16 * 1024 * 1024
"""What SQLite may keep in memory; beyond it, it writes to disk."""
BATCH_COUNT = 10_000
"""Traces that are kept together."""

HALF, OP, DOUBT, CONTENT, FORWARD, ASIDE = range(6)
_WIDTH = len(HalfTrace._fields)
"""The widest trace."""
_SCHEMA = f"""
CREATE TABLE traces (txn_id TEXT, kind INTEGER, {", ".join(f"c{n}" for n in range(_WIDTH))});
CREATE TABLE marks (key_hash TEXT, topic TEXT, partition INTEGER, offset INTEGER, decided INTEGER, line INTEGER,
    half_offset INTEGER, is_prepare INTEGER, is_in_half_order INTEGER, role INTEGER, txn_id TEXT, nonce TEXT, verdict TEXT);
"""
_INSERT = "INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_MARK = "INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PADDING = [(None,) * (_WIDTH - n) for n in range(_WIDTH + 1)]

OrderedMark = tuple[OrderMark, str, str, Verdict]
"""(mark, txn_id, nonce, verdict so far)."""


class TraceShelf:
    """For one thread; `with` removes the file at its end."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = TemporaryDirectory(prefix="txlayer-verify-", dir=folder)
        path = Path(self._folder.name) / "traces.sqlite"
        # Written once and thrown away: nothing of it has to survive a crash.
        self._connection = sqlite3.connect(path, isolation_level=None)
        for setting in (
            "journal_mode = OFF",
            "synchronous = OFF",
            "temp_store = FILE",
            f"cache_size = -{CACHE_BYTES // 1024}",
        ):
            self._connection.execute(f"PRAGMA {setting}")
        self._connection.executescript(_SCHEMA)
        self._waiting: list[tuple[Any, ...]] = []
        self._waiting_marks: list[tuple[Any, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()
        self._folder.cleanup()

    def keep(self, txn_id: str, kind: int, trace: tuple[Any, ...]) -> None:
        """One trace."""
        self._waiting.append((txn_id, kind, *trace, *_PADDING[len(trace)]))
        if len(self._waiting) >= BATCH_COUNT:
            self._write(_INSERT, self._waiting)

    def each(self) -> Iterator[Traces]:
        """Everything that was kept, id by id; memory holds one id at a time."""
        self._write(_INSERT, self._waiting)
        with closing(self._connection.execute("SELECT * FROM traces ORDER BY txn_id")) as rows:
            for txn_id, group in groupby(rows, key=itemgetter(0)):
                yield _traces(txn_id, group)

    def mark(self, mark: OrderMark, *, txn_id: str, nonce: str, verdict: Verdict) -> None:
        """One visible message of a transaction with an ordering key."""
        decided, line = mark.decided_at or (None, None)
        place = mark.place
        self._waiting_marks.append(
            (
                mark.key_hash, place.topic, place.partition, place.offset, decided, line, mark.half_offset,
                mark.is_prepare, mark.is_in_half_order, mark.role, txn_id, nonce, verdict.value,
            )
        )  # fmt: skip
        if len(self._waiting_marks) >= BATCH_COUNT:
            self._write(_MARK, self._waiting_marks)

    def marks(self) -> Iterator[OrderedMark]:
        """All marks by key, topic, partition and offset; those without an offset yet by their decision."""
        self._write(_MARK, self._waiting_marks)
        query = "SELECT * FROM marks ORDER BY key_hash, topic, partition, offset, decided, line"
        with closing(self._connection.execute(query)) as rows:
            for (
                key,
                topic,
                partition,
                offset,
                decided,
                line,
                half,
                *how,
                txn_id,
                nonce,
                verdict,
            ) in rows:
                decided_at = None if decided is None else (decided, line)
                mark = OrderMark(key, Origin(topic, partition, offset), decided_at, half, *how)
                yield mark, txn_id, nonce, Verdict(verdict)

    def _write(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")
        rows.clear()


def _traces(txn_id: str, rows: Iterable[tuple[Any, ...]]) -> Traces:
    found = Traces(txn_id)
    for row in rows:
        kind = row[1]
        if kind == HALF:
            found.halves.append(HalfTrace._make(row[2:]))
        elif kind == OP:
            found.ops.append(OpTrace._make(row[2 : 2 + len(OpTrace._fields)]))
        elif kind == DOUBT:
            found.doubts.append(DoubtTrace._make(row[2 : 2 + len(DoubtTrace._fields)]))
        elif kind == CONTENT:
            found.contents.append(ContentTrace._make(row[2 : 2 + len(ContentTrace._fields)]))
        elif kind == ASIDE:
            found.asides.append(AsideTrace._make(row[2 : 2 + len(AsideTrace._fields)]))
        else:
            found.forwards.append(ForwardTrace._make(row[2 : 2 + len(ForwardTrace._fields)]))
    return found
