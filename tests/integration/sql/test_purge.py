"""Old rows go in bounded pieces, those that a check may need stay; the commands tell no secret."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, create_engine, event, text, update

from tests.support.commands import run_txlayer
from tests.support.shop import NONCE, Shop, new_id
from txlayer.adapters.sql import Doubtful, SqlBarrier
from txlayer.adapters.sql.tables import PAGE_COUNT_MAX, delete_old
from txlayer.cli.main import build_app
from txlayer.core.messages import ROLLBACK
from txlayer.errors import ConfigError, RetriableError, UsageError

pytestmark = [pytest.mark.sql]

each_database = pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)


def aged(shop: Shop, count: int, *, days: float) -> list[str]:
    """Rows that are so old by the database's clock."""
    ids = [new_id() for _ in range(count)]
    shop.barrier.resolve_many([Doubtful(txn_id, NONCE) for txn_id in ids], group="orders")
    made = datetime.now(UTC) - timedelta(days=days)
    table = shop.barrier.table
    with shop.engine.begin() as connection:
        if shop.kind == "mysql":
            connection.execute(text("SET time_zone = '+00:00'"))
        for txn_id in ids:
            connection.execute(update(table).where(table.c.txn_id == txn_id).values(created_at=made))
    return ids


def left(shop: Shop, ids: list[str]) -> int:
    """How many of them are there."""
    return sum(shop.barrier.read(txn_id, NONCE) is not None for txn_id in ids)


@each_database
def test_old_rows_go_and_young_ones_stay(shop: Shop) -> None:
    old, young = aged(shop, 4, days=15), aged(shop, 3, days=13)

    seen = shop.barrier.purge(timedelta(days=14), is_dry_run=True)
    assert (4, 3) == (left(shop, old), left(shop, young))
    done = shop.barrier.purge(timedelta(days=14))

    assert (4, 4) == (seen.purged_count, done.purged_count)
    assert (0, 3) == (left(shop, old), left(shop, young))
    assert 0 == shop.barrier.purge(timedelta(days=14)).purged_count
    assert 3 == shop.barrier.purge(timedelta(days=12)).purged_count


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_rows_that_a_check_may_need_stay(shop: Shop) -> None:
    ids = aged(shop, 2, days=11.5)

    with pytest.raises(UsageError, match="11 days"):
        shop.barrier.purge(timedelta(days=11) - timedelta(seconds=1))
    assert 2 == left(shop, ids)
    longer = SqlBarrier(shop.engine, transaction_age_max=timedelta(days=30))
    with pytest.raises(UsageError, match="38 days"):
        longer.purge(timedelta(days=20))

    assert 2 == left(shop, ids)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_purge_keeps_each_transaction_short(shop: Shop) -> None:
    values = [Doubtful(new_id(), NONCE) for _ in range(2 * PAGE_COUNT_MAX + 10)]
    shop.barrier.resolve_many(values, group="orders")
    with shop.engine.begin() as connection:
        connection.execute(text("UPDATE txlayer_barrier SET created_at = '2020-01-01 00:00:00'"))
    deleted: list[int] = []

    @event.listens_for(shop.engine, "after_cursor_execute")
    def count(_connection: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)  # type: ignore[attr-defined] # the driver's

    done = shop.barrier.purge(timedelta(days=14))

    assert [PAGE_COUNT_MAX, PAGE_COUNT_MAX, 10] == deleted
    assert (len(values), len(values)) == done


@each_database
def test_of_two_purges_at_once_each_counts_what_it_deleted(shop: Shop) -> None:
    aged(shop, 4, days=15)
    others: list[int] = []

    @event.listens_for(shop.engine, "begin")
    def refuse_what_changed(connection: Connection) -> None:
        if getattr(connection.dialect, "is_mariadb", False):  # the default from MariaDB 11.6 on
            connection.exec_driver_sql("SET SESSION innodb_snapshot_isolation = ON")

    @event.listens_for(shop.engine, "before_cursor_execute")
    def purge_first(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE") and not others:
            others.append(0)
            others[0] = shop.barrier.purge(timedelta(days=14)).purged_count

    own = shop.barrier.purge(timedelta(days=14)).purged_count

    assert ([4], 0) == (others, own)


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_an_age_does_not_depend_on_a_sessions_time_zone(shop: Shop) -> None:
    far_west = create_engine(shop.engine.url, connect_args={"init_command": "SET time_zone='-12:00'"})
    txn_id = new_id()
    SqlBarrier(far_west).resolve(txn_id, NONCE, group="orders")

    table = shop.barrier.table
    hour = timedelta(hours=1)
    delete_old(shop.engine, table, key=table.c.txn_id, made_at=table.c.created_at, older_than=hour, is_dry_run=False)

    assert 1 == left(shop, [txn_id])
    far_west.dispose()


# --- the commands -----------------------------------------------------------------------------------------------------


def name_database(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say in the environment where it is: a command line takes no password."""
    url = shop.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("TXLAYER_BARRIER_URL", url)


def run(*words: str) -> None:
    """`txlayer barrier …`."""
    build_app()(["barrier", *words], standalone_mode=False)


@each_database
def test_the_commands_create_and_purge(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name_database(shop, monkeypatch)
    run("create")
    aged(shop, 2, days=20)

    run("purge", "--older-than", "12d", "--dry-run", "--json")
    seen = json.loads(capsys.readouterr().out.splitlines()[-1])
    run("purge", "--older-than", "12d")

    assert 2 == seen["purged_count"]
    assert seen["is_dry_run"]
    assert "2 of" in capsys.readouterr().out


@each_database
@pytest.mark.parametrize(("command", "lacks"), [("barrier", "txn_id, nonce"), ("inbox", "consumer_group, message_key")])
def test_a_table_of_others_is_not_said_to_be_ours(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, lacks: str
) -> None:
    name, url = f"others_{new_id()[:8]}", shop.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv(f"TXLAYER_{command.upper()}_URL", url)
    with shop.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {name} (source CHAR(1), seen_at CHAR(1))"))

    code, out, err = run_txlayer(command, "create", "--table", name, capsys=capsys)

    assert (2, "") == (code, out)
    assert f"another table has the name {name}: it lacks {lacks}" in err


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_address_may_stand_in_the_environment(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TXLAYER_BARRIER_URL", str(shop.engine.url))
    run("purge", "--json")

    assert '"purged_count": 0' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("postgresql+psycopg://user:geheim@127.0.0.1:1/shop", RetriableError, "did not answer"),
        ("mysql+pymysql://user:geheim@127.0.0.1:1/shop", RetriableError, "2003"),
        ("postgresql+nodriver://user:geheim@h/shop", ConfigError, "address"),
        ("oracle+oracledb://user:geheim@h/shop", ConfigError, "driver"),
        ("user:geheim@h", ConfigError, "address"),
        ("", ConfigError, "no database named"),
        ("sqlite:////no/such/folder/geheim.db", ConfigError, "SQLITE_CANTOPEN"),
        (f"sqlite:///{__file__}", ConfigError, "SQLITE_NOTADB"),
    ],
)
def test_no_error_tells_the_password(
    url: str, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXLAYER_BARRIER_URL", url)
    with pytest.raises(error, match=said) as caught:
        run("create")

    assert "geheim" not in f"{caught.value!s}{caught.value!r}{caught.value.__cause__!r}"


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_a_missing_table_names_the_command_that_makes_it(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    name_database(shop, monkeypatch)
    with pytest.raises(UsageError, match="barrier create"):
        run("purge", "--table", "not_there")

    run("create", "--table", "a_second_one")
    other = SqlBarrier(shop.engine, table="a_second_one")
    assert ROLLBACK is other.resolve(new_id(), NONCE, group="orders")
