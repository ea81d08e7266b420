"""The inbox on real databases: a message's effects once, whoever comes at the same time and whatever fails."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, func, insert, make_url, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from tests.support.handled import HandledMessage, forwarded
from tests.support.shop import Order, Tables, beside, is_waiting, new_id
from tests.support.waiting import wait_until
from txlayer.adapters.sql import AsyncInbox, Inbox, message_key
from txlayer.adapters.sql.inbox import KEY_LENGTH_MAX
from txlayer.cli.main import build_app
from txlayer.errors import UsageError

pytestmark = [pytest.mark.sql]

GROUP = "loyalty"
ASYNC_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+aiomysql",
}

each_database = pytest.mark.parametrize(
    "database_url", ["sqlite", "postgresql", "mariadb"], indirect=True
)
each_server = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    if made.dialect.name == "sqlite":

        @event.listens_for(made, "connect")
        def patience(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA busy_timeout = 300")

    Tables.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def inbox(engine: Engine) -> Inbox:
    made = Inbox(engine, group=GROUP)
    made.create_table()
    return made


def row_count(inbox: Inbox) -> int:
    with inbox._engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(inbox.table)).scalar_one()


def has_order(engine: Engine, order_id: str) -> bool:
    with Session(engine) as session:
        return session.get(Order, order_id) is not None


def handle(inbox: Inbox, message: HandledMessage, *, order_id: str | None = None) -> bool:
    """What a handler does."""
    with Session(inbox._engine) as session, session.begin():
        with inbox.once(session, message) as is_new:
            if is_new:
                session.add(Order(txn_id=order_id or new_id()))
        return is_new


@each_database
def test_a_message_that_comes_again_is_known(inbox: Inbox) -> None:
    message = forwarded(new_id(), 0)

    assert [True, False, False] == [handle(inbox, message) for _ in range(3)]


@each_database
def test_a_message_counts_as_handled_when_its_effects_are_durable(
    engine: Engine, inbox: Inbox
) -> None:
    message, order_id = forwarded(new_id(), 0), new_id()
    with Session(engine) as session, inbox.once(session, message) as is_new:
        assert is_new
        session.add(Order(txn_id=order_id))
        session.rollback()

    assert not has_order(engine, order_id)
    assert handle(inbox, message, order_id=order_id)
    assert has_order(engine, order_id)


@each_database
def test_a_message_whose_handler_failed_is_new_again(engine: Engine, inbox: Inbox) -> None:
    message, order_id = forwarded(new_id(), 0), new_id()

    def fail() -> None:
        with Session(engine) as session, session.begin(), inbox.once(session, message):
            session.add(Order(txn_id=order_id))
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert not has_order(engine, order_id)
    assert handle(inbox, message)


@each_database
def test_a_block_that_failed_does_not_count_although_somebody_commits(
    engine: Engine, inbox: Inbox
) -> None:
    message = forwarded(new_id(), 0)
    with Session(engine) as session, session.begin(), pytest.raises(ZeroDivisionError):  # noqa: SIM117 - caught inside the local transaction
        with inbox.once(session, message):
            raise ZeroDivisionError

    assert handle(inbox, message)


@each_database
def test_a_known_message_stays_known_when_its_block_fails(engine: Engine, inbox: Inbox) -> None:
    message = forwarded(new_id(), 0)
    handle(inbox, message)
    with Session(engine) as session, session.begin(), pytest.raises(ZeroDivisionError):  # noqa: SIM117 - caught inside the local transaction
        with inbox.once(session, message):
            raise ZeroDivisionError

    assert not handle(inbox, message)


@each_database
def test_the_error_of_the_block_is_told_also_when_the_database_gave_up(
    engine: Engine, inbox: Inbox
) -> None:
    message = forwarded(new_id(), 0)
    with (
        pytest.raises(SQLAlchemyError, match="nowhere"),
        Session(engine) as session,
        session.begin(),
        inbox.once(session, message),
    ):
        session.execute(text("INSERT INTO nowhere VALUES (1)"))

    assert handle(inbox, message)


@each_server
@pytest.mark.parametrize("is_committed", [True, False])
def test_who_comes_at_the_same_time_waits_for_the_first(
    engine: Engine, inbox: Inbox, *, is_committed: bool
) -> None:
    message = forwarded(new_id(), 0)
    with beside() as pool:
        with Session(engine) as session:
            with inbox.once(session, message) as is_new:
                assert is_new
                second = pool.submit(handle, inbox, message)
                wait_until(lambda: is_waiting(second), within=5, what="the second waits")
            (session.commit if is_committed else session.rollback)()
        assert is_committed is not second.result(20)


@each_database
def test_groups_that_share_a_table_do_not_see_each_other(engine: Engine, inbox: Inbox) -> None:
    message = forwarded(new_id(), 0)

    assert handle(inbox, message)
    assert handle(Inbox(engine, group="billing"), message)


@each_database
def test_keys_differ_by_every_letter_and_long_ones_are_hashed(engine: Engine, inbox: Inbox) -> None:
    assert inbox.table.name == "txlayer_inbox"
    unique = new_id()
    words = [
        f"{unique}a",
        f"{unique}A",
        f"{unique}Zürich",
        f"{unique}Zurich",
        unique * 20,
        unique * 21,
    ]
    keyed = [Inbox(engine, group=GROUP, key=lambda _, word=word: word) for word in words]  # type: ignore[misc]  # one each

    assert [True] * 6 == [handle(each, HandledMessage()) for each in keyed]
    assert [False] * 6 == [handle(each, HandledMessage()) for each in keyed]


@on_sqlite
def test_an_id_that_was_prepared_and_committed_twice_is_two_messages(inbox: Inbox) -> None:
    origins = (b"3:1027|0/1|1700000000000", b"3:2051|0/1|1700000003500")
    first, second = (
        HandledMessage(headers=[("txl-id", b"order-1"), ("txl-origin", origin)])
        for origin in origins
    )

    assert [True, True] == [handle(inbox, first), handle(inbox, second)]
    assert [False, False] == [handle(inbox, first), handle(inbox, second)]


@on_sqlite
def test_a_key_is_the_transaction_and_index_else_the_place(inbox: Inbox) -> None:
    assert "txn:order-1/1700000000000/2" == message_key(forwarded("order-1", 2))
    assert "at:orders/3/17" == message_key(HandledMessage())
    broken = HandledMessage(headers=[("txl-id", b"order-1"), ("txl-origin", b"?")])
    assert "at:orders/3/17" == message_key(broken)
    longest = message_key(HandledMessage(topic="t" * 249))
    assert KEY_LENGTH_MAX >= len(inbox.key_of(HandledMessage(topic="t" * 249)))
    assert longest != inbox.key_of(HandledMessage(topic="t" * 249))


def test_a_purge_on_a_pool_that_lends_one_connection_twice_is_refused(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", poolclass=StaticPool)
    Tables.metadata.create_all(engine)
    inbox, order_id = Inbox(engine, group=GROUP), new_id()
    inbox.create_table()
    with Session(engine) as session:
        session.add(Order(txn_id=order_id))
        session.flush()
        with pytest.raises(UsageError, match="connection of its own"):
            inbox.purge(timedelta(days=60))
        session.rollback()

    assert not has_order(engine, order_id)
    engine.dispose()


@each_database
def test_a_connection_and_a_scoped_session_serve_too(engine: Engine, inbox: Inbox) -> None:
    first, second = forwarded(new_id(), 0), forwarded(new_id(), 0)
    with engine.connect() as connection:
        with inbox.once(connection, first) as is_new:
            assert is_new
        connection.commit()
    scoped = scoped_session(sessionmaker(engine))
    with inbox.once(scoped, second) as is_new:
        assert is_new
    scoped.commit()
    scoped.remove()

    assert [False, False] == [handle(inbox, first), handle(inbox, second)]


@on_sqlite
def test_what_cannot_be_a_local_transaction_is_refused(engine: Engine, inbox: Inbox) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    other = create_engine("sqlite://")
    with Session(other) as session, pytest.raises(UsageError, match="another database"):
        inbox.once(session, HandledMessage()).__enter__()
    other.dispose()
    with pytest.raises(UsageError, match="Session or Connection"):
        inbox.once("session", HandledMessage()).__enter__()
    with pytest.raises(UsageError, match="Engine"):
        Inbox("engine", group=GROUP)  # type: ignore[arg-type]  # the subject
    with pytest.raises(UsageError, match="group"):
        Inbox(engine, group="no group")
    with Session(autocommit) as session, pytest.raises(UsageError, match="autocommit"):
        inbox.once(session, HandledMessage()).__enter__()
    assert 0 == row_count(inbox)


# --- purge ------------------------------------------------------------------------------------------------------------


def aged(inbox: Inbox, count: int, *, days: float) -> list[HandledMessage]:
    """Messages that were handled so long ago."""
    messages = [forwarded(new_id(), 0) for _ in range(count)]
    made = datetime.now(UTC) - timedelta(days=days)
    for message in messages:
        handle(inbox, message)
    columns = inbox.table.c
    with inbox._engine.begin() as connection:
        if inbox._engine.dialect.name == "mysql":
            connection.execute(text("SET time_zone = '+00:00'"))
        for message in messages:
            key = columns.message_key == inbox.key_of(message)
            connection.execute(update(inbox.table).where(key).values(seen_at=made))
    return messages


@each_database
def test_old_rows_of_this_group_go(engine: Engine) -> None:
    inbox, other = Inbox(engine, group=new_id()), Inbox(engine, group=new_id())
    inbox.create_table()
    old, young, others = aged(inbox, 4, days=15), aged(inbox, 3, days=13), aged(other, 2, days=15)

    seen = inbox.purge(timedelta(days=14), is_dry_run=True)
    done = inbox.purge(timedelta(days=14))

    assert ((7, 4), (7, 4)) == (seen, done)
    assert [True] * 4 == [handle(inbox, message) for message in old]
    assert [False] * 3 == [handle(inbox, message) for message in young]
    assert [False] * 2 == [handle(other, message) for message in others]
    with pytest.raises(UsageError, match="age"):
        inbox.purge(timedelta(0))


def run(*words: str) -> None:
    """`txlayer inbox …`."""
    build_app()(["inbox", *words], standalone_mode=False)


@each_database
def test_the_commands_create_and_purge(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A command line takes no password.
    url = engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("TXLAYER_INBOX_URL", url)
    run("create")
    inbox = Inbox(engine, group=new_id())
    aged(inbox, 2, days=40)
    group = ("--group", inbox._group)

    run("purge", *group, "--older-than", "30d", "--dry-run", "--json")
    seen = json.loads(capsys.readouterr().out.splitlines()[-1])
    run("purge", *group, "--older-than", "30d")

    assert {"row_count": 2, "purged_count": 2, "is_dry_run": True} == seen
    assert "2 of 2 rows purged" in capsys.readouterr().out
    assert 0 == inbox.purge(timedelta(days=1)).row_count


# --- asyncio ----------------------------------------------------------------------------------------------------------


def in_loop(inbox: Inbox, use: Callable[[AsyncInbox, Any], Any]) -> None:
    url = make_url(inbox._engine.url)
    url = url.set(drivername=ASYNC_DRIVERS[url.get_backend_name()])

    async def main() -> None:
        engine = create_async_engine(url)
        try:
            await use(AsyncInbox(engine, group=GROUP), engine)
        finally:
            await engine.dispose()

    asyncio.run(main())


@each_database
def test_a_message_is_handled_once_in_the_loop(inbox: Inbox) -> None:
    async def use(twin: AsyncInbox, engine: Any) -> None:
        await twin.create_table()
        message = forwarded(new_id(), 0)
        said = []
        for is_failing in (True, False, False):
            async with AsyncSession(engine) as session, session.begin():
                try:
                    async with twin.once(session, message) as is_new:
                        said.append(is_new)
                        if is_new:
                            await session.execute(insert(Order).values(txn_id=new_id()))
                        if is_failing:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    continue
        assert [True, True, False] == said
        assert 0 == (await twin.purge(timedelta(days=1), is_dry_run=True)).purged_count
        with pytest.raises(UsageError, match="AsyncSession"):
            await twin.once("session", message).__aenter__()

    in_loop(inbox, use)


@on_sqlite
def test_both_inboxes_have_the_same_words(engine: Engine) -> None:
    def words(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(kind).items()
            if callable(member) and (not name.startswith("_") or name == "__init__")
        }

    steps = {"key_of", "connection_of", "see", "forget"}
    plain = {name: found for name, found in words(Inbox).items() if name not in steps}
    assert plain == words(AsyncInbox)
    with pytest.raises(UsageError, match="AsyncEngine"):
        AsyncInbox(engine, group=GROUP)  # type: ignore[arg-type]  # the subject
