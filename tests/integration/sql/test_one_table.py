"""One table for writers and checks, whatever a session or a pool's connection takes an unqualified name for."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.orm import Session

from tests.support.handled import forwarded
from tests.support.shop import GROUP, NONCE, Order, Shop, make_shop, new_id
from txlayer.adapters.sql import Inbox, SqlBarrier
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN

pytestmark = [pytest.mark.sql]

on_servers = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def tenant(shop: Shop) -> Iterator[str]:
    """A second schema with tables of the same names; the statement that leads a session there."""
    name = f"tenant_{new_id()[:8]}"
    with shop.engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    SqlBarrier(shop.engine, schema=name).create_table()
    Inbox(shop.engine, group=GROUP, schema=name).create_table()
    yield f"SET search_path TO {name}, public" if shop.kind == "postgresql" else f"USE {name}"
    with shop.engine.begin() as connection:
        is_cascading = "CASCADE" if shop.kind == "postgresql" else ""
        connection.execute(text(f"DROP SCHEMA {name} {is_cascading}"))


@on_servers
@pytest.mark.promise("P8")
def test_a_session_with_another_search_path_writes_where_checks_look(shop: Shop, tenant: str) -> None:
    txn_id = new_id()
    with Session(shop.engine) as session, session.begin():
        session.execute(text(tenant))
        shop.join(session, txn_id)

    fresh = create_engine(shop.engine.url)
    assert COMMIT is SqlBarrier(fresh).read(txn_id, NONCE)
    fresh.dispose()


@on_servers
@pytest.mark.promise("P8")
def test_a_check_on_a_connection_that_was_led_elsewhere_finds_the_row(shop: Shop, tenant: str) -> None:
    engine = create_engine(shop.engine.url, pool_size=1, max_overflow=0)
    txn_id, unseen = new_id(), new_id()
    with Session(shop.engine) as session, session.begin():
        shop.join(session, txn_id)
    lead(engine, tenant)
    barrier = SqlBarrier(engine)

    assert COMMIT is barrier.resolve(txn_id, NONCE, group=GROUP)
    assert ROLLBACK is barrier.resolve(unseen, NONCE, group=GROUP)
    assert ROLLBACK is shop.barrier.read(unseen, NONCE)
    engine.dispose()


@on_servers
def test_an_inbox_knows_a_message_on_a_connection_that_was_led_elsewhere(shop: Shop, tenant: str) -> None:
    engine = create_engine(shop.engine.url, pool_size=1, max_overflow=0)
    inbox, message = Inbox(engine, group=GROUP), forwarded(new_id(), 0)
    inbox.create_table()
    with Session(engine) as session, session.begin(), inbox.once(session, message) as is_new:
        assert is_new
    lead(engine, tenant)

    with Session(engine) as session, session.begin(), inbox.once(session, message) as is_new:
        assert not is_new
    engine.dispose()


@on_postgresql
@pytest.mark.promise("P8")
def test_a_translated_schema_is_the_one_of_both_sides(shop: Shop, tenant: str) -> None:
    name = tenant.split()[-2].rstrip(",")
    translated = shop.engine.execution_options(schema_translate_map={None: name})
    barrier, txn_id = SqlBarrier(translated), new_id()
    with Session(translated) as session, session.begin():
        barrier.check_session(session)
        barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP)

    assert COMMIT is barrier.resolve(txn_id, NONCE, group=GROUP)
    assert COMMIT is SqlBarrier(shop.engine, schema=name).read(txn_id, NONCE)


@on_postgresql
@pytest.mark.promise("P8")
def test_no_session_joins_a_table_that_only_its_own_search_path_finds(shop: Shop, tenant: str) -> None:
    """Checks do not find it, and a table that is created later where they look would say that no row was written."""
    name, schema = f"barrier_{new_id()[:8]}", tenant.split()[-2].rstrip(",")
    SqlBarrier(shop.engine, table=name, schema=schema).create_table()
    barrier, txn_id = SqlBarrier(shop.engine, table=name), new_id()

    told = f"{name}: create it, or name its schema with schema="
    with Session(shop.engine) as session, pytest.raises(NoSuchTableError, match=told):  # noqa: PT012 - the block is the subject
        session.execute(text(tenant))
        barrier.check_session(session)
        barrier.write(session, txn_id=txn_id, nonce=NONCE, group=GROUP)
        session.commit()

    assert UNKNOWN is barrier.resolve(txn_id, NONCE, group=GROUP)
    barrier.create_table()
    assert ROLLBACK is barrier.resolve(txn_id, NONCE, group=GROUP)


@on_postgresql
def test_no_inbox_uses_a_table_that_only_the_sessions_search_path_finds(shop: Shop, tenant: str) -> None:
    name, schema = f"inbox_{new_id()[:8]}", tenant.split()[-2].rstrip(",")
    Inbox(shop.engine, group=GROUP, table=name, schema=schema).create_table()
    inbox = Inbox(shop.engine, group=GROUP, table=name)

    with Session(shop.engine) as session, pytest.raises(NoSuchTableError, match=name):  # noqa: PT012 - the block is the subject
        session.execute(text(tenant))
        inbox.see(session, forwarded(new_id(), 0))


@on_postgresql
def test_a_table_that_is_not_committed_is_used_only_by_the_name_of_its_schema(shop: Shop) -> None:
    """Another consumer would not find it, and might find another table of that name."""
    name, message = f"inbox_{new_id()[:8]}", forwarded(new_id(), 0)
    inbox = Inbox(shop.engine, group=GROUP, table=name)
    named = Inbox(shop.engine, group=GROUP, table=name, schema="public")

    with Session(shop.engine) as session, session.begin():
        inbox.table.create(session.connection())
        with pytest.raises(NoSuchTableError, match=f"{name}: create it, or name its schema with schema="):
            inbox.see(session, message)
        with named.once(session, message) as is_new:
            assert is_new
    with Session(shop.engine) as session, session.begin(), inbox.once(session, message) as is_new:
        assert not is_new


@on_sqlite
@pytest.mark.promise("P8")
def test_a_temporary_table_of_the_same_name_is_not_the_barrier(shop: Shop) -> None:
    txn_id = new_id()
    with Session(shop.engine) as session, session.begin():
        session.execute(text("CREATE TEMP TABLE txlayer_barrier AS SELECT * FROM main.txlayer_barrier"))
        shop.join(session, txn_id)

    fresh = create_engine(shop.engine.url)
    assert COMMIT is SqlBarrier(fresh).read(txn_id, NONCE)
    fresh.dispose()


@on_sqlite
@pytest.mark.promise("P8")
def test_a_shared_cache_shows_no_check_a_row_that_is_not_committed(shop: Shop) -> None:
    path = shop.engine.url.database
    engine = create_engine(f"sqlite:///file:{path}?cache=shared&uri=true", isolation_level="READ UNCOMMITTED")
    shared, txn_id = make_shop(engine), new_id()
    with Session(engine) as session:
        shared.join(session, txn_id)
        session.add(Order(txn_id=txn_id))
        session.flush()
        said = shared.check(txn_id)
        session.rollback()

    assert said is not COMMIT
    assert not shared.has_order(txn_id)
    engine.dispose()


def lead(engine: Engine, tenant: str) -> None:
    """Leave the pool's one connection with another idea of unqualified names."""
    with engine.begin() as connection:
        connection.execute(text(tenant))


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_a_table_that_another_process_creates_in_the_same_moment_is_there_for_both(shop: Shop) -> None:
    name = f"made_{new_id()[:8]}"
    one, other = (SqlBarrier(shop.engine, table=name) for _ in range(2))
    event.listen(one.table, "before_create", lambda *_, **__: other.create_table())

    one.create_table()

    one.check_table()
