"""A check's short transactions on a connection of its own: read who was first, else be it. Never: the user's session."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from txlayer.adapters.sql.dialects import LocatedTable, Rules
from txlayer.adapters.sql.joined import OWN_WORK
from txlayer.core.ids import check_txn_id
from txlayer.core.messages import ROLLBACK, UNKNOWN, Resolution, Source

logger = logging.getLogger("txlayer.barrier")

BATCH_COUNT_MAX = 1_000
"""Rows of one database transaction of a check: bounds how long it keeps others waiting."""

READ_COUNT_MAX = 500
"""Ids of one query: every database takes so many parameters."""

BATCH_WAIT_SHARE = 10
"""A batch waits for locks so many times shorter than a single check: one open row must not delay the others."""

APART_WAITS_MAX = 20
"""So many waits of a batch may go into finding the rows that somebody holds; what is left then is UNKNOWN."""


T = TypeVar("T")


class Doubtful(NamedTuple):
    """A transaction that is not decided yet."""

    txn_id: str
    nonce: str
    born_at_ms: int | None = None
    """When it was made, if known: when a purge may have taken its row, that no row is there means nothing."""


class Row(NamedTuple):
    """What the first writer said."""

    nonce: str
    resolution: Resolution


class UnreadableError(Exception):
    """The database did not say; the cause tells why."""


class Checks:
    """Reads and writes rows on behalf of checks. Any thread may use it."""

    def __init__(
        self,
        engine: Engine,
        located: LocatedTable,
        rules: Rules,
        *,
        lock_wait_ms: int,
        absence_age_max_ms: int,
    ) -> None:
        self._engine = engine.execution_options(**OWN_WORK)
        self._located = located
        self._rules = rules
        self._lock_wait_ms = lock_wait_ms
        self._absence_age_max_ms = absence_age_max_ms

    def settle(self, doubtful: Sequence[Doubtful], *, group: str) -> list[Resolution]:
        """One resolution for each, in order: the first writer's, and ROLLBACK of ours where nobody came before.

        UNKNOWN for those whose row the other side holds, and for all that follow once the database does not answer.
        """
        for one in doubtful:
            check_txn_id(one.txn_id)
        resolutions: list[Resolution] = []
        for chunk in _chunks(doubtful, BATCH_COUNT_MAX):
            try:
                rows = self._settled_rows(chunk, group)
            except UnreadableError as exc:
                _tell(len(doubtful) - len(resolutions), exc.__cause__)
                break
            resolutions += [judge(one, rows.get(one.txn_id)) or UNKNOWN for one in chunk]
        return resolutions + [UNKNOWN] * (len(doubtful) - len(resolutions))

    def read(self, one: Doubtful) -> Resolution | None:
        """What the first writer said, UNKNOWN when the database does not answer, None when nobody wrote yet."""
        check_txn_id(one.txn_id)
        try:
            rows = self._read([one.txn_id])
        except UnreadableError as exc:
            _tell(1, exc.__cause__)
            return UNKNOWN
        return judge(one, rows.get(one.txn_id))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _settled_rows(self, chunk: Sequence[Doubtful], group: str) -> Mapping[str, Row]:
        rows = self._read([one.txn_id for one in chunk])
        now_ms = time.time_ns() // 1_000_000
        absent = {
            one.txn_id: one
            for one in reversed(chunk)
            if one.txn_id not in rows and not self._is_too_old(one, now_ms)
        }
        if not absent:
            return rows
        # In one order everywhere, so that two responders wait for each other one way only.
        values = [
            {
                "txn_id": one.txn_id,
                "nonce": one.nonce,
                "producer_group": group,
                "resolution": ROLLBACK.value,
                "source": Source.CHECK.value,
            }
            for _, one in sorted(absent.items())
        ]
        wait_ms = self._lock_wait_ms
        if len(values) > 1:
            wait_ms = max(wait_ms // BATCH_WAIT_SHARE, self._rules.wait_min_ms)
        give_up_at = time.monotonic() + APART_WAITS_MAX * wait_ms / 1000
        self._insert(values, wait_ms=wait_ms, give_up_at=give_up_at)
        # Only what a later transaction reads is durable, whoever wrote it, and whatever became of our insert.
        return {**rows, **self._read(list(absent))}

    def _is_too_old(self, one: Doubtful, now_ms: int) -> bool:
        return one.born_at_ms is not None and now_ms - one.born_at_ms > self._absence_age_max_ms

    def _insert(
        self, values: Sequence[Mapping[str, str]], *, wait_ms: int, give_up_at: float
    ) -> None:
        try:
            with self._transaction(wait_ms=wait_ms, is_writing=True) as connection:
                table, options = self._located.find()
                insert = self._rules.insert_absent(table)
                connection.execute(insert, values, execution_options=options)
        except UnreadableError as exc:
            _tell(len(values), exc.__cause__)
        else:
            return
        if len(values) == 1 or not self._rules.has_row_locks or time.monotonic() > give_up_at:
            return
        # Somebody holds one of the rows: the others need not wait for it.
        middle = len(values) // 2
        for part in (values[:middle], values[middle:]):
            self._insert(part, wait_ms=wait_ms, give_up_at=give_up_at)

    def _read(self, txn_ids: Sequence[str]) -> dict[str, Row]:
        rows = {}
        with self._transaction(wait_ms=self._lock_wait_ms, is_writing=False) as connection:
            table, options = self._located.find()
            columns = table.c
            for ids in _chunks(txn_ids, READ_COUNT_MAX):
                wanted = select(columns.txn_id, columns.nonce, columns.resolution)
                wanted = wanted.where(columns.txn_id.in_(ids))
                for txn_id, nonce, said in connection.execute(wanted, execution_options=options):
                    rows[txn_id] = Row(nonce, _resolution(said))
        return rows

    @contextmanager
    def _transaction(self, *, wait_ms: int, is_writing: bool) -> Iterator[Connection]:
        """A short transaction with bounded waits.

        Raises:
            UnreadableError: the database refused, or did not answer. What was written may be there or not.
        """
        try:
            with self._engine.connect() as connection:
                if self._rules.isolation is not None:
                    connection.execution_options(isolation_level=self._rules.isolation)
                with (
                    connection.begin(),
                    self._rules.bounded(connection, wait_ms=wait_ms, is_writing=is_writing),
                ):
                    yield connection
        except (SQLAlchemyError, OSError) as exc:
            # A deadlock, a serialisation failure, a lock time-out or a lost connection decides nothing.
            raise UnreadableError from exc


def judge(one: Doubtful, row: Row | None) -> Resolution | None:
    """What a row means for one attempt; None: nobody wrote."""
    if row is None:
        return None
    # The row belongs to another attempt of the same id: this one can never commit any more.
    return row.resolution if row.nonce == one.nonce else ROLLBACK


def told(error: BaseException | None) -> str:
    """An error by its kind and number: its text may hold addresses, statements or users' values."""
    below = error.orig if isinstance(error, DBAPIError) else error
    number = getattr(below, "sqlstate", None) or getattr(below, "sqlite_errorname", None)
    if number is None and below is not None and below.args and isinstance(below.args[0], int):
        number = below.args[0]
    return f"{type(below).__name__} {number}" if number else type(below).__name__


def _resolution(said: str) -> Resolution:
    try:
        return Resolution(said)
    except ValueError:
        logger.warning("barrier.garbage", extra={"found": said[:1]})
        return UNKNOWN


def _tell(txn_count: int, error: BaseException | None) -> None:
    logger.warning("barrier.unknown", extra={"txn_count": txn_count, "reason": told(error)})


def _chunks(items: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), count):
        yield items[start : start + count]
