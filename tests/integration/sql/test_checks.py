"""What a check reads, writes and leaves behind: one or many, of right and wrong attempts, with and without a database."""

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text, update
from sqlalchemy.orm import Session

from tests.support.shop import GROUP, LOCK_WAIT, NONCE, Shop, new_id
from txlayer.adapters.sql import Doubtful, SqlBarrier, tables
from txlayer.adapters.sql.barrier import BATCH_COUNT_MAX
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Resolution
from txlayer.errors import UsageError

pytestmark = [pytest.mark.sql]

OTHER = "ffffffff"

each_database = pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)


def committed(shop: Shop, txn_id: str, nonce: str = NONCE) -> str:
    """A local transaction that joined and committed."""
    with Session(shop.engine) as session, session.begin():
        shop.join(session, txn_id, nonce)
    return txn_id


@each_database
@pytest.mark.promise("P8")
def test_another_attempt_than_the_rows_is_rolled_back(shop: Shop) -> None:
    committed_id, refused_id = committed(shop, new_id()), new_id()
    shop.check(refused_id)

    assert ROLLBACK is shop.check(committed_id, OTHER)
    assert COMMIT is shop.check(committed_id)
    assert ROLLBACK is shop.check(refused_id, OTHER)
    assert ROLLBACK is shop.barrier.read(committed_id, OTHER)


@each_database
@pytest.mark.promise("P8")
def test_ids_that_differ_in_case_alone_are_two(shop: Shop) -> None:
    txn_id = f"order-{new_id()}"
    committed(shop, txn_id)

    assert ROLLBACK is shop.check(txn_id.upper())
    assert COMMIT is shop.check(txn_id)


@each_database
def test_a_read_writes_nothing(shop: Shop) -> None:
    txn_id = new_id()

    assert shop.barrier.read(txn_id, NONCE) is None
    assert COMMIT is shop.check(committed(shop, txn_id))
    assert COMMIT is shop.barrier.read(txn_id, NONCE)


@each_database
def test_many_are_answered_in_the_order_asked(shop: Shop) -> None:
    here = [committed(shop, new_id()) for _ in range(3)]
    doubtful = [Doubtful(new_id(), NONCE) for _ in range(BATCH_COUNT_MAX + 10)]
    for place, txn_id in zip((0, 700, BATCH_COUNT_MAX + 5), here, strict=True):
        doubtful[place] = Doubtful(txn_id, NONCE)
    doubtful[1] = Doubtful(here[0], OTHER)
    doubtful[2] = doubtful[3]  # asked twice

    said = shop.barrier.resolve_many(doubtful, group=GROUP)

    assert [COMMIT if d.txn_id in here and d.nonce == NONCE else ROLLBACK for d in doubtful] == said
    assert said == shop.barrier.resolve_many(doubtful, group=GROUP)
    assert [] == shop.barrier.resolve_many([], group=GROUP)


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_an_open_row_keeps_no_other_from_its_answer(shop: Shop) -> None:
    doubtful = [Doubtful(new_id(), NONCE) for _ in range(8)]
    with Session(shop.engine) as session:
        shop.join(session, doubtful[5].txn_id)
        said = shop.barrier.resolve_many(doubtful, group=GROUP)
        session.commit()

    assert [UNKNOWN if n == 5 else ROLLBACK for n in range(8)] == said
    assert COMMIT is shop.check(doubtful[5].txn_id)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_one_open_transaction_of_sqlite_leaves_many_unknown_without_waiting_for_each(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    doubtful = [Doubtful(new_id(), NONCE) for _ in range(100)]
    with Session(shop.engine) as session:
        shop.join(session, new_id())
        said = shop.barrier.resolve_many(doubtful, group=GROUP)

    assert [UNKNOWN] * 100 == said
    assert ["barrier.unknown"] == caplog.messages


@pytest.mark.fault(
    "producer: uses an id again whose barrier row was purged, and the first transaction of that id is checked"
)
@each_database
@pytest.mark.promise("P8")
def test_the_absence_of_a_row_that_a_purge_may_have_taken_means_nothing(shop: Shop) -> None:
    now_ms = time.time_ns() // 1_000_000
    day_ms = 24 * 3600 * 1000
    old, young, kept = new_id(), new_id(), committed(shop, new_id())
    asked = [
        Doubtful(old, NONCE, now_ms - 10 * day_ms - 1),
        Doubtful(young, NONCE, now_ms - 9 * day_ms),
        Doubtful(kept, NONCE, now_ms - 100 * day_ms),
    ]

    assert [UNKNOWN, ROLLBACK, COMMIT] == shop.barrier.resolve_many(asked, group=GROUP)
    assert shop.barrier.read(old, NONCE) is None
    assert UNKNOWN is shop.barrier.resolve(old, NONCE, group=GROUP, born_at_ms=asked[0].born_at_ms)


@pytest.mark.fault(
    "producer: uses an id again whose barrier row was purged, and the first transaction of that id is checked"
)
@each_database
@pytest.mark.promise("P8")
def test_a_later_attempt_of_an_id_does_not_roll_back_one_whose_row_a_purge_has_taken(shop: Shop) -> None:
    born_at_ms = time.time_ns() // 1_000_000 - 15 * 24 * 3600 * 1000
    txn_id, table = committed(shop, new_id()), shop.barrier.table
    with shop.engine.begin() as connection:
        made = datetime.now(UTC) - timedelta(days=15)
        connection.execute(update(table).where(table.c.txn_id == txn_id).values(created_at=made))
    assert COMMIT is shop.barrier.resolve(txn_id, NONCE, group=GROUP, born_at_ms=born_at_ms)
    shop.barrier.purge(timedelta(days=14))
    committed(shop, txn_id, OTHER)

    asked = [Doubtful(txn_id, NONCE, born_at_ms), Doubtful(txn_id, OTHER, born_at_ms), Doubtful(txn_id, "00000000")]
    said = shop.barrier.resolve_many(asked, group=GROUP)

    assert [UNKNOWN, COMMIT, ROLLBACK] == said


@each_database
def test_a_missing_table_is_unknown_and_said(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    barrier = SqlBarrier(shop.engine, table="not_there")

    with caplog.at_level(logging.WARNING, logger="txlayer.barrier"):
        said = barrier.resolve(new_id(), NONCE, group=GROUP)

    assert UNKNOWN is said
    assert "barrier.unknown" in caplog.messages


@pytest.mark.parametrize("url", ["postgresql+psycopg", "mysql+pymysql"])
def test_a_database_that_is_away_is_unknown_and_its_password_is_not_told(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    barrier = SqlBarrier(create_engine(f"{url}://user:geheim@127.0.0.1:1/shop"))

    with caplog.at_level(logging.DEBUG):
        said = barrier.resolve_many([Doubtful(new_id(), NONCE)] * 3, group=GROUP)

    assert [UNKNOWN] * 3 == said
    assert UNKNOWN is barrier.read(new_id(), NONCE)
    told = [str(record.__dict__) for record in caplog.records]
    assert told
    assert not [line for line in told if "geheim" in line]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_check_whose_pooled_connection_was_lost_is_unknown_and_the_next_one_answered(shop: Shop) -> None:
    # Some drivers tell the server the isolation level before the transaction begins.
    shop.check(new_id())
    name, end = {
        "postgresql": ("pg_backend_pid()", "SELECT pg_terminate_backend({})"),
        "mysql": ("CONNECTION_ID()", "KILL {}"),
    }[shop.kind]
    with shop.engine.connect() as pooled:
        number = pooled.execute(text(f"SELECT {name}")).scalar_one()
    with tables.fresh_connection(shop.engine) as other:
        other.execute(text(end.format(number)))

    assert UNKNOWN is shop.check(new_id())
    assert ROLLBACK is shop.check(new_id())


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_row_that_says_nonsense_is_unknown(shop: Shop) -> None:
    txn_id = committed(shop, new_id())
    with shop.engine.begin() as connection:
        connection.execute(text("UPDATE txlayer_barrier SET resolution = '?'"))

    assert UNKNOWN is shop.check(txn_id)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_ids_and_groups_that_cannot_be_are_refused(shop: Shop) -> None:
    for txn_id, group in (("a b", GROUP), ("x" * 129, GROUP), ("1", "a b")):
        with pytest.raises(UsageError):
            shop.barrier.resolve(txn_id, NONCE, group=group)
    assert 0 == shop.row_count()


@each_database
def test_a_check_leaves_the_pools_connections_as_they_were(shop: Shop) -> None:
    queries = {
        "sqlite": "PRAGMA busy_timeout",
        "postgresql": "SELECT current_setting('lock_timeout') || current_setting('default_transaction_isolation')",
        "mysql": "SELECT concat(@@innodb_lock_wait_timeout, ' ', @@lock_wait_timeout, @@{isolation})",
    }
    isolation = "tx_isolation" if getattr(shop.engine.dialect, "is_mariadb", False) else "transaction_isolation"
    look = text(queries[shop.kind].format(isolation=isolation))
    seen: set[Any] = set()
    engine = create_engine(shop.engine.url, pool_size=1, max_overflow=0)
    barrier = SqlBarrier(engine, lock_wait=timedelta(milliseconds=200))
    for _ in range(3):
        with engine.connect() as connection:
            seen.add(connection.execute(look).scalar_one())
        barrier.resolve_many([Doubtful(new_id(), NONCE), Doubtful(new_id(), NONCE)], group=GROUP)
        with pytest.raises(UsageError):
            barrier.resolve("a b", NONCE, group=GROUP)
        barrier.read(new_id(), NONCE)

    assert 1 == len(seen)
    engine.dispose()


@each_database
def test_an_engine_that_reads_what_is_not_committed_is_answered_rightly(shop: Shop) -> None:
    if shop.kind == "sqlite":
        engine = shop.engine
    else:
        engine = create_engine(shop.engine.url, isolation_level="READ UNCOMMITTED")
    barrier = SqlBarrier(engine, lock_wait=LOCK_WAIT)
    txn_id = new_id()
    with Session(shop.engine) as session:
        shop.join(session, txn_id)
        assert barrier.read(txn_id, NONCE) is None
        assert UNKNOWN is barrier.resolve(txn_id, NONCE, group=GROUP)

    assert ROLLBACK is barrier.resolve(txn_id, NONCE, group=GROUP)
    engine.dispose()


@each_database
def test_an_engine_in_autocommit_can_check(shop: Shop) -> None:
    engine = create_engine(shop.engine.url, isolation_level="AUTOCOMMIT")
    barrier = SqlBarrier(engine, lock_wait=LOCK_WAIT)
    txn_id = committed(shop, new_id())

    assert COMMIT is barrier.resolve(txn_id, NONCE, group=GROUP)
    assert ROLLBACK is barrier.resolve(new_id(), NONCE, group=GROUP)
    with Session(shop.engine) as session:
        txn_id = new_id()
        shop.join(session, txn_id)
        assert UNKNOWN is barrier.resolve(txn_id, NONCE, group=GROUP)  # its wait has an end
    engine.dispose()


@each_database
def test_a_check_whose_own_commit_is_lost_believes_only_what_it_reads(shop: Shop) -> None:
    engine = create_engine(shop.engine.url)
    barrier = SqlBarrier(engine, lock_wait=LOCK_WAIT)
    dialect = engine.dialect
    do_commit = dialect.do_commit
    lost: list[str] = []

    def lose(connection: Any) -> None:
        if lost:
            how = lost.pop()
            if how == "after":
                do_commit(connection)
            raise dialect.loaded_dbapi.OperationalError("server closed the connection")
        do_commit(connection)

    def say(how: str) -> Resolution:
        txn_id = new_id()

        # The insert's commit is the one behind the insert.
        @event.listens_for(engine, "before_cursor_execute", once=True)
        def first(*_: Any) -> None:
            return None

        def at_insert(_c: Any, _k: Any, statement: str, *_rest: Any) -> None:
            if statement.startswith("INSERT"):
                lost.append(how)

        event.listen(engine, "before_cursor_execute", at_insert)
        try:
            said = barrier.resolve(txn_id, NONCE, group=GROUP)
        finally:
            event.remove(engine, "before_cursor_execute", at_insert)
        expected = shop.barrier.read(txn_id, NONCE)
        assert said is (UNKNOWN if expected is None else expected)
        return said

    dialect.do_commit = lose  # type: ignore[method-assign,assignment] # the driver's answer is what gets lost
    try:
        assert ROLLBACK is say("after")
        assert UNKNOWN is say("before")
    finally:
        del dialect.do_commit
        engine.dispose()


@each_database
def test_the_table_is_created_once(shop: Shop) -> None:
    shop.barrier.create_table()
    shop.barrier.create_table()

    assert COMMIT is shop.check(committed(shop, new_id()))


@each_database
@pytest.mark.promise("P11")
def test_an_id_that_only_another_client_can_have_written_leaves_the_others_their_answers(shop: Shop) -> None:
    ids = [new_id(), "order 4711", "a\0b", new_id()]
    asked = [Doubtful(txn_id, NONCE) for txn_id in ids]

    assert [ROLLBACK, UNKNOWN, UNKNOWN, ROLLBACK] == shop.barrier.resolve_many(asked, group=GROUP)
    with pytest.raises(UsageError):
        shop.barrier.resolve("order 4711", NONCE, group=GROUP)
