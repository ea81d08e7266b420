"""Transactions that are not settled, as rows of a table in memory: found, counted, sorted and paged without looking at each.

SQLite holds them, outside of Python's objects: a row takes about 250 bytes, a transaction three times that.
One thread writes; any thread asks.
"""

import base64
import json
import sqlite3
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from txlayer.core import codec
from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.core.ledger.transaction import NOT_IN_DOUBT, OpPosition, Transaction, from_summary
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, TxnState
from txlayer.core.messages import DoubtSummary, OrderMode, ParkReason, Undecodable
from txlayer.errors import UsageError
from txlayer.operate.unsettled import Filter, UnsettledTransaction

ROW_COUNT_MAX = 500_000  # Rows that are kept, about 150 MB. Of what comes above that only the number is known.

UNREADABLE = "unreadable"  # the state of a transaction whose summary on doubt this release cannot read; a later one may

ROLLED_BACK: Final = TxnState.ROLLED_BACK.value

SHAPE_COUNT_MAX = 10_000  # shapes above which those that no row has any more are forgotten

_SCHEMA = """
PRAGMA journal_mode = off;
CREATE TABLE shape (shape INTEGER PRIMARY KEY, producer_group TEXT, state TEXT, reason TEXT, topics TEXT);
CREATE TABLE txn (
    key TEXT, partition INTEGER, is_on_doubt INTEGER, shape INTEGER, key_hash TEXT, appended_ms INTEGER, summary BLOB,
    query_id TEXT, decided TEXT, op_offset INTEGER, op_line INTEGER,
    PRIMARY KEY (key, partition)
) WITHOUT ROWID;
CREATE INDEX by_ordering_key ON txn (key_hash) WHERE key_hash IS NOT NULL;
CREATE INDEX by_query_id ON txn (query_id) WHERE query_id IS NOT NULL;
CREATE INDEX by_decision ON txn (partition) WHERE decided IS NOT NULL;
"""
# Nothing is ever rolled back: a journal took a third of the time of an insert, and 13 MB beside 100,000 rows.
# A shape is what many transactions have in common; its topics are each between commas. To bind and to copy it for each row took half
# of the time of an insert. CROSS JOIN: otherwise SQLite may begin with the shapes, and index every row for one question.
_FROM = "txn CROSS JOIN shape USING (shape)"

# `decided`: what op lines say that no coordinator has carried out yet; the newest picture of a transaction on doubt keeps it.
# What most rows of doubt have none of is not bound: with eight values instead of five, an insert took half as long again.
_COLUMNS_OF_ALL = "key, partition, shape, appended_ms, summary, is_on_doubt"
_BARE_LENGTH = 5
_CONFLICT = """ ON CONFLICT (key, partition) DO UPDATE SET
    is_on_doubt = excluded.is_on_doubt, shape = excluded.shape, key_hash = excluded.key_hash,
    appended_ms = excluded.appended_ms, summary = excluded.summary, query_id = coalesce(excluded.query_id, query_id)
"""
_PUT = f"INSERT INTO txn ({_COLUMNS_OF_ALL}) VALUES {{rows}}{_CONFLICT}", "(?, ?, ?, ?, ?, 1)"
_PUT_NAMED = (
    f"INSERT INTO txn ({_COLUMNS_OF_ALL}, key_hash, query_id) VALUES {{rows}}{_CONFLICT}",
    "(?, ?, ?, ?, ?, 1, ?, ?)",
)
_PUT_YOUNG = (
    f"""INSERT INTO txn ({_COLUMNS_OF_ALL}, key_hash, query_id, decided, op_offset, op_line) VALUES {{rows}}{_CONFLICT},
    decided = excluded.decided, op_offset = excluded.op_offset, op_line = excluded.op_line
WHERE NOT is_on_doubt
""",
    "(?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)",
)
_ROWS_AT_ONCE = 50
"""Of one statement: after each, SQLite waits for Python's lock, which a page that is being made may hold for milliseconds."""
_STATE = "coalesce(decided, state)"
_COLUMNS = f"partition, {_STATE}, key, summary, is_on_doubt, appended_ms, query_id"
_IS_SHOWN = f"decided IS NOT '{ROLLED_BACK}'"
_IS_BEFORE = "partition = ? AND decided IS NOT NULL AND (op_offset, op_line) < (?, ?)"

SORTS: Final = {
    "age": "appended_ms",
    "id": "key",
    "group": "producer_group",
    "state": _STATE,
    "reason": "reason",
    "topic": "substr(topics, 1, 250)",
}
"""What a list may be sorted by; with "-" before it, the other way round."""

_KNOWN = frozenset(
    (state.value, reason)
    for state in TxnState
    if state not in SETTLED
    for reason in ("", *(reason.value for reason in ParkReason))
)
"""(state, reason) of every summary that this release writes."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows, in which order, and behind which."""

    filter: Filter = field(default_factory=Filter)
    txn_id: str = ""
    key_hash: str | None = None
    sort: str = "age"
    after: str = ""
    limit: int = 100

    def __post_init__(self) -> None:
        if self.sort.removeprefix("-") not in SORTS:
            raise UsageError(f"a list is sorted by {', '.join(SORTS)}; not by {self.sort[:40]!r}")


class Page(NamedTuple):
    """A part of a list."""

    rows: list[UnsettledTransaction]
    count: int  # type: ignore[assignment]  # of the whole list; hides tuple.count, which has no caller
    after: str  # what `Wanted.after` takes for the next page; "": this is the last one


class GroupCount(NamedTuple):
    """Transactions of one producer group in one state."""

    producer_group: str
    state: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no caller
    oldest_ms: int  # append time of the oldest one's first half record


class UnsettledRows:
    """The table."""

    def __init__(self, *, row_count_max: int = ROW_COUNT_MAX) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.executescript(_SCHEMA)
        self._lock = threading.Lock()
        self._row_count_max = row_count_max
        self._shapes: dict[tuple[str, str, str, str], int] = {}
        self._shape_count_max = SHAPE_COUNT_MAX
        self._waiting: dict[tuple[str, int], tuple[Any, ...]] = {}
        self._query_ids: dict[tuple[str, int], str] = {}
        self._count = 0
        self._version = 0
        self._counts: tuple[int, list[GroupCount]] = (-1, [])
        self.has_more = False  # true once there were more than it keeps: since then some are missing

    # --- the follower's thread ----------------------------------------------------------------------------------------

    def note_query_id(self, named: tuple[str, str] | None, partition: int) -> None:
        """("id/nonce", the user's own id) of a content on doubt; its summary follows in the same Kafka transaction."""
        if named is not None:
            self._query_ids[named[0], partition] = named[1]

    def put_on_doubt(self, key: str, raw: bytes, *, partition: int, at_ms: int) -> int:
        """The newest summary that doubt has of a transaction; it may wait for `flush`. Returns the first half offset that it names.

        `at_ms` is the transaction's time if the summary says none that is readable.
        """
        glance = codec.glance_at_summary(raw) or (UNREADABLE, "", "", 0, at_ms, None, "")
        state, reason, group, first_offset, appended_ms, key_hash, topics = glance
        shape = self._shapes.get((group, state, reason, topics))
        if shape is None:
            self._forget_shapes()
            shape = self._add_shape(group, state, reason, topics)
        row, place, waiting = (key, partition, shape, appended_ms, raw), (key, partition), self._waiting
        query_id = waiting[place][-1] if len(waiting.get(place, ())) > _BARE_LENGTH else None
        if self._query_ids:
            query_id = self._query_ids.pop(place, query_id)
        waiting[place] = row if key_hash is None and query_id is None else (*row, key_hash, query_id)
        if len(waiting) >= 2_000:
            self.flush()
        return first_offset

    def end_on_doubt(self, key: str, partition: int) -> None:
        self._waiting.pop((key, partition), None)
        self._change("DELETE FROM txn WHERE key = ? AND partition = ?", (key, partition))

    def flush(self) -> None:
        if self._waiting:
            rows = sorted(self._waiting.values())  # in the order of the table, an insert takes a fifth less
            self._put(*_PUT, [row for row in rows if len(row) == _BARE_LENGTH])
            self._put(*_PUT_NAMED, [row for row in rows if len(row) > _BARE_LENGTH])
            self._waiting.clear()

    def put_young(
        self, transactions: Iterable[Transaction], partition: int, *, committed_at: OpPosition | None = None
    ) -> None:
        """Transactions that are not on doubt; a row from doubt stays as it is.

        `committed_at`: an op line there has committed them, and no coordinator has carried it out.
        """
        decided = (None, None, None) if committed_at is None else (COMMITTING, *committed_at)
        self._forget_shapes()
        rows = []
        for txn in transactions:
            s = txn.summary()
            place = s.producer_group, s.state, s.reason, ",".join(s.topics)
            shape = self._shapes.get(place) or self._add_shape(*place)
            raw, query_id = codec.encode_summary(s), txn.options.query_id
            rows.append((s.key, partition, shape, s.appended_ms, raw, s.key_hash, query_id, *decided))
        self._put(*_PUT_YOUNG, rows)

    def _add_shape(self, group: str, state: str, reason: str, topics: str) -> int:
        shown = state if (state, reason) in _KNOWN else UNREADABLE
        with self._lock:
            insert = "INSERT INTO shape (producer_group, state, reason, topics) VALUES (?, ?, ?, ?)"
            shape = self._connection.execute(insert, (group, shown, reason, f",{topics},")).lastrowid
        assert shape is not None
        self._shapes[group, state, reason, topics] = shape
        return shape

    def _forget_shapes(self) -> None:
        """Forget those that no row has, if there are many; what waits is written before."""
        if len(self._shapes) < self._shape_count_max:
            return
        self.flush()
        self._change("DELETE FROM shape WHERE shape NOT IN (SELECT shape FROM txn)", ())
        used = {shape for (shape,) in self._ask("SELECT shape FROM shape", ())}
        self._shapes = {place: shape for place, shape in self._shapes.items() if shape in used}
        self._shape_count_max = max(SHAPE_COUNT_MAX, 2 * len(self._shapes))

    def remove_young(self, keys: Collection[str], partition: int) -> None:
        """Half and op have settled these; a row from doubt, or one that is committing, stays."""
        if not keys:
            return
        with self._lock:
            statement = "DELETE FROM txn WHERE key = ? AND partition = ? AND NOT is_on_doubt AND decided IS NULL"
            self._connection.executemany(statement, [(key, partition) for key in keys])
            self._version += 1

    def decide(self, key: str, partition: int, state: str, at: OpPosition) -> None:
        """An op line decided a transaction on doubt, and no coordinator has carried it out."""
        self._change(
            "UPDATE txn SET decided = ?, op_offset = ?, op_line = ? WHERE key = ? AND partition = ?",
            (state, *at, key, partition),
        )

    def carried_out(self, partition: int, before: OpPosition) -> None:
        """Coordinators have carried out every op line before this position: doubt says now what became of them."""
        at = (partition, *before)
        self._change(f"DELETE FROM txn WHERE {_IS_BEFORE} AND NOT is_on_doubt", at)
        self._change(f"UPDATE txn SET decided = NULL WHERE {_IS_BEFORE}", at)

    def on_doubt(self, key: str, partition: int) -> UnsettledTransaction | None:
        """The transaction if it is on doubt; its state is what the newest op line made of it."""
        self.flush()
        where = "key = ? AND partition = ? AND is_on_doubt"
        found = self._ask(f"SELECT {_COLUMNS} FROM {_FROM} WHERE {where}", (key, partition))
        return _transaction(found[0]) if found else None

    def clear(self, partition: int | None = None) -> None:
        """Forget the rows of a partition, or all."""
        self.flush()
        where, values = ("", ()) if partition is None else (" WHERE partition = ?", (partition,))
        self._change(f"DELETE FROM txn{where}", values)
        self.has_more &= partition is not None

    def _put(self, statement: str, places: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        with self._lock:
            if len(rows) > self._row_count_max - self._count:
                self._count = self._connection.execute("SELECT count(*) FROM txn").fetchone()[0]
            room = max(self._row_count_max - self._count, 0)
            if len(rows) > room:  # those that are there already count twice: the bound is not exact
                self.has_more = True
                rows = rows[:room]
            if not rows:
                return
            single = len(rows) % _ROWS_AT_ONCE  # each length would be a statement of its own that SQLite keeps
            self._connection.executemany(statement.format(rows=places), rows[:single])
            many = statement.format(rows=", ".join([places] * _ROWS_AT_ONCE))
            for start in range(single, len(rows), _ROWS_AT_ONCE):
                part = rows[start : start + _ROWS_AT_ONCE]
                self._connection.execute(many, list(chain.from_iterable(part)))
            self._count += len(rows)
            self._version += 1

    def _change(self, statement: str, values: Sequence[Any]) -> None:
        with self._lock:
            self._version += self._connection.execute(statement, values).rowcount != 0

    def _ask(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    # --- any thread ---------------------------------------------------------------------------------------------------

    def counts(self) -> list[GroupCount]:
        """How many there are, by producer group and state; counted again only after a change."""
        version, counts = self._counts
        if version == self._version:
            return counts
        version = self._version
        by_shape = (
            "SELECT shape, decided, count(*) AS number, min(appended_ms) AS oldest_ms "
            f"FROM txn WHERE {_IS_SHOWN} GROUP BY shape, decided"
        )
        query = (
            f"SELECT producer_group, {_STATE}, sum(number), min(oldest_ms) FROM ({by_shape}) JOIN shape USING (shape) "
            "GROUP BY 1, 2 ORDER BY 1, 2"
        )
        counts = [GroupCount(*row) for row in self._ask(query, ())]
        self._counts = version, counts
        return counts

    def groups(self, limit: int) -> list[str]:
        """The producer groups with the most transactions."""
        by_shape = "SELECT shape, count(*) AS number FROM txn GROUP BY shape"
        query = (
            f"SELECT producer_group FROM ({by_shape}) JOIN shape USING (shape) "
            "GROUP BY 1 ORDER BY sum(number) DESC LIMIT ?"
        )
        return [group for (group,) in self._ask(query, (limit,)) if group]

    def states(self, wanted: Wanted, *, now_ms: int) -> dict[str, int]:
        """{state: how many of the whole list}."""
        where, values = _where(wanted, now_ms)
        return dict(self._ask(f"SELECT {_STATE}, count(*) FROM {_FROM} WHERE {where} GROUP BY 1 ORDER BY 1", values))

    def last(self, wanted: Wanted, *, now_ms: int) -> tuple[int, dict[int, int]]:
        """(append time of the youngest of the whole list, or 0; {partition, whose brokers' clocks may differ: its highest first half offset})."""
        where, values = _where(wanted, now_ms)
        newest = (
            f"SELECT partition AS number, max(appended_ms) AS newest_ms FROM {_FROM} WHERE {where} GROUP BY partition"
        )
        query = (
            f"SELECT partition, newest_ms, summary FROM {_FROM} JOIN ({newest}) ON partition = number "
            f"WHERE {where} AND appended_ms >= newest_ms - {CLOCK_ERROR_MS}"
        )
        last_ms, last = 0, dict[int, int]()
        for partition, newest_ms, raw in self._ask(query, (*values, *values)):
            glance = codec.glance_at_summary(raw)
            last_ms, offset = max(newest_ms, last_ms), -1 if glance is None else glance[3]
            last[partition] = max(offset, last.get(partition, -1))
        return last_ms, last

    def page(self, wanted: Wanted, *, now_ms: int) -> Page:
        """The next rows of a list; ages count from the append time of the first half record. UsageError: `after` is none that a page gave."""
        where, values = _where(wanted, now_ms)
        column = SORTS[wanted.sort.removeprefix("-")]
        is_down = wanted.sort.startswith("-")
        count = self._ask(f"SELECT count(*) FROM {_FROM} WHERE {where}", values)[0][0]
        if wanted.after:
            where += f" AND ({column}, key, partition) {'<' if is_down else '>'} (?, ?, ?)"
            values += _decoded(wanted.after)
        way = "DESC" if is_down else "ASC"
        query = (
            f"SELECT {_COLUMNS}, {column} FROM {_FROM} WHERE {where} "
            f"ORDER BY {column} {way}, key {way}, partition {way} LIMIT ?"
        )
        found = self._ask(query, (*values, wanted.limit + 1))
        rows = found[: wanted.limit]
        after = "" if len(found) <= wanted.limit else _encoded(rows[-1][7], rows[-1][2], rows[-1][0])
        return Page([_transaction(row) for row in rows], count, after)


def _where(wanted: Wanted, now_ms: int) -> tuple[str, tuple[Any, ...]]:
    f = wanted.filter
    parts: list[tuple[str, Sequence[Any]]] = [(_IS_SHOWN, ())]
    if f.group is not None:
        parts.append(("producer_group = ?", (f.group,)))
    if f.query_id is not None:
        parts.append(("query_id = ?", (f.query_id,)))
    if f.topic is not None:
        parts.append(("instr(topics, ?)", (f",{f.topic},",)))
    if f.states:
        parts.append((f"{_STATE} IN ({_marks(f.states)})", sorted(f.states)))
    if f.reasons:
        parts.append((f"reason IN ({_marks(f.reasons)})", sorted(reason.value for reason in f.reasons)))
    if f.older_ms is not None:
        parts.append(("appended_ms <= ?", (now_ms - f.older_ms,)))
    if wanted.txn_id:
        parts.append(("key >= ? AND key < ?", (f"{wanted.txn_id}/", f"{wanted.txn_id}0")))  # "0" follows "/"
    if wanted.key_hash is not None:
        parts.append(("key_hash = ?", (wanted.key_hash,)))
    return " AND ".join(part for part, _ in parts), tuple(value for _, values in parts for value in values)


def _marks(values: Iterable[object]) -> str:
    return ", ".join("?" for _ in values)


def _encoded(*where: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(where).encode()).decode().rstrip("=")


def _decoded(after: str) -> tuple[Any, ...]:
    try:
        value, key, partition = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    except (ValueError, TypeError, RecursionError):
        raise UsageError("no page begins there") from None
    is_place = isinstance(key, str) and isinstance(partition, int) and isinstance(value, str | int)
    # Texts of the log are ASCII, its numbers have 63 bits.
    if not is_place or not f"{value}{key}".isascii() or len(f"{value}") > 1_000 or abs(partition) >= 1 << 31:
        raise UsageError("no page begins there")
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise UsageError("no page begins there")
    return value, key, partition


def _transaction(row: Sequence[Any]) -> UnsettledTransaction:
    partition, state, key, raw, is_on_doubt, appended_ms, query_id = row[:7]
    summary = codec.decode_summary(key, raw)
    if isinstance(summary, Undecodable):
        summary = DoubtSummary(key, "open", "", "", 0, 0, 0, 0, appended_ms, 0, None, OrderMode.COMMIT, None, None, 0)
        state = UNREADABLE
    doubt_offset = 0 if is_on_doubt else NOT_IN_DOUBT
    try:
        txn = from_summary(summary, doubt_offset=doubt_offset)
    except ValueError:  # it is committing, or has a state or reason that only a later release knows
        txn = from_summary(summary._replace(state=TxnState.OPEN.value, reason=""), doubt_offset=doubt_offset)
    return UnsettledTransaction(partition, state, txn, query_id)
