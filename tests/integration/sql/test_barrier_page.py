"""The code of docs/howto/barrier.md runs as it stands, on real databases and Kafka in memory."""

import os
import re
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, make_url, text

from tests.support.programs import run_program
from tests.support.shop import new_id
from txlayer.adapters.sql import SqlBarrier
from txlayer.adapters.sql.tables import barrier_table
from txlayer.core.messages import COMMIT, ROLLBACK

pytestmark = [pytest.mark.sql]

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "howto" / "barrier.md").read_text(encoding="utf-8")
USE, ANSWER, ALEMBIC, PSYCOPG = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
(DDL,) = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

KAFKA = """
from txlayer.adapters.memory import MemoryKafka
kafka = MemoryKafka()
kafka.create_topic("orders")
kafka.create_namespace("txlayer")
"""

RUN_PSYCOPG = """
import sys
with psycopg.connect(sys.argv[1]) as opened:
    print(buy(opened, "customer-7"))
    try:
        buy(opened, None)
    except psycopg.errors.NotNullViolation:
        print("refused")
    opened.execute("SELECT 1")  # from here on `transaction()` would be a savepoint
    try:
        print(buy(opened, "customer-8"))
    except RuntimeError:
        print("not the outermost")
    opened.rollback()
producer.close()
print(sum(record.value().count(b"1|C|") for record in kafka.records("txlayer.op")), "commit")
"""


def run(program: str, *arguments: str) -> list[str]:
    """A program of the page in a process of its own; its lines."""
    own = program.replace(
        'bootstrap_servers="127.0.0.1:9092"',
        "bootstrap_servers=kafka.bootstrap_servers, connect=kafka.connect_producer",
    )
    assert own != program
    ran = run_program(
        [sys.executable, "-W", "error", "-c", KAFKA + own, *arguments],
        within=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert (0, "") == (ran.returncode, ran.stderr)
    return ran.stdout.splitlines()


def make_tables(url: str, *, with_barrier: bool = True) -> None:
    """What the page takes for granted."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS purchase"))
        connection.execute(text("CREATE TABLE purchase (customer VARCHAR(40) NOT NULL)"))
        if with_barrier:
            barrier_table().create(connection, checkfirst=True)
    engine.dispose()


def customers(url: str) -> list[str]:
    """Who bought."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [row[0] for row in connection.execute(text("SELECT customer FROM purchase"))]
    engine.dispose()
    return found


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_the_first_program_and_the_answers_run(database_url: str) -> None:
    make_tables(database_url, with_barrier=False)
    program = (USE + ANSWER).replace("postgresql+psycopg://shop@127.0.0.1/shop", database_url)

    said = run(f"{program}\nproducer.close()\nengine.dispose()\n")

    assert "Resolution.COMMIT" == said[0]
    assert said[1].startswith("Resolution.ROLLBACK [<Resolution.ROLLBACK: 'R'>")
    assert ["customer-7"] == customers(database_url)


def test_the_psycopg_example_runs(postgresql_url: str) -> None:
    make_tables(postgresql_url)
    plain = make_url(postgresql_url).set(drivername="postgresql").render_as_string()

    txn_id, refused, nested, commits = run(PSYCOPG + RUN_PSYCOPG, plain)

    assert ("refused", "not the outermost", "1 commit") == (refused, nested, commits)
    assert ["customer-7"] == customers(postgresql_url)
    engine = create_engine(postgresql_url)
    with engine.connect() as connection:
        table = barrier_table()
        nonce = connection.execute(
            table.select().with_only_columns(table.c.nonce).where(table.c.txn_id == txn_id)
        ).scalar_one()
    assert COMMIT is SqlBarrier(engine).resolve(txn_id, nonce, group="orders")
    engine.dispose()


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_the_migration_runs(database_url: str) -> None:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    engine = create_engine(database_url)
    migration: dict[str, object] = {}
    exec(ALEMBIC, migration)  # the page's own code

    def migrate(connection: Connection, *names: str) -> None:
        with Operations.context(MigrationContext.configure(connection)):
            for name in names:
                migration[name]()  # type: ignore[operator] # a function of the page

    with engine.begin() as connection:
        barrier_table().drop(connection, checkfirst=True)
        migrate(connection, "upgrade", "downgrade", "upgrade")

    assert ROLLBACK is SqlBarrier(engine).resolve(new_id(), "0a1b2c3d", group="orders")
    engine.dispose()


def test_the_statement_makes_the_table(postgresql_url: str) -> None:
    engine = create_engine(postgresql_url)
    with engine.begin() as connection:
        barrier_table().drop(connection, checkfirst=True)
        connection.execute(text(DDL))

    assert ROLLBACK is SqlBarrier(engine).resolve(new_id(), "0a1b2c3d", group="orders")
    engine.dispose()
