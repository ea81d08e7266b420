"""The programs of the pages on frameworks, on outboxes and on personal data run as they stand, over Kafka in memory."""

import json
import os
import re
import sqlite3
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "howto"

STAGE = """
import asyncio, json
from contextlib import ExitStack, closing
from txlayer.adapters.memory import MemoryKafka
from txlayer.testing import wait_until
from txlayer.config import CoordinatorConfig
from txlayer.testing.stage import RunningCoordinator

kafka = MemoryKafka()
for name in ("orders", "points", "customers"):
    kafka.create_topic(name)
kafka.create_namespace("txlayer")
opened = ExitStack()
config = CoordinatorConfig(bootstrap_servers=kafka.bootstrap_servers)
connections = opened.enter_context(closing(kafka.connect_coordinator(config)))
opened.enter_context(RunningCoordinator(config, connections))

def visible(topic, count):
    wait_until(lambda: len(kafka.records(topic)) == count, within=30, what="all are visible")
    return [(record.key().decode(), record.value().decode()) for record in kafka.records(topic)]
"""

ASK_FASTAPI = """
from httpx import ASGITransport, AsyncClient

async def ask():
    async with app.router.lifespan_context(app), AsyncClient(transport=ASGITransport(app), base_url="http://shop") as client:
        order = {"reference": "a-1", "customer": "customer-7", "cents": 42}
        return [(await client.post("/orders", json=order)).status_code for _ in range(2)]

print(json.dumps(asyncio.run(ask())))
print(json.dumps(visible("orders", 1)))
opened.close()
"""

ASK_FASTSTREAM = """
from faststream import TestApp
from faststream.confluent import TestKafkaBroker

async def hear():
    async with TestKafkaBroker(broker), TestApp(app):  # calls `lifespan` as `faststream run` does
        for _ in range(2):
            await broker.publish(
                {"customer": "customer-7", "cents": 42},
                "orders",
                headers={"txl-id": "order-1", "txl-origin": "3:17|0/1|1700000000000"},
            )

asyncio.run(hear())
print(json.dumps(visible("points", 1)))
prepared = [record for record in kafka.records("txlayer.half")]
decided = [record.value().decode().split("|")[1] for record in kafka.records("txlayer.op")]
print(json.dumps([len(prepared), decided]))
opened.close()
"""

ASK_DJANGO = """
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db", "ATOMIC_REQUESTS": True}},
    INSTALLED_APPS=["shop"],
    ROOT_URLCONF="urls",
    ALLOWED_HOSTS=["testserver"],
)
django.setup()
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.test import Client
from shop import views

call_command("migrate", verbosity=0)
asked = Client().post("/purchases", {"customer": "customer-7"}, content_type="application/json")
with transaction.atomic():
    views.buy("customer-8")
try:
    with transaction.atomic():
        views.buy("customer-9")
        views.buy(None)
except IntegrityError as exc:
    refused = str(exc)
try:
    with views.join(views.producer):
        pass
except views.UsageError as exc:
    outside = str(exc)
print(json.dumps([asked.status_code, refused, outside]))
print(json.dumps(visible("orders", 2)))
views.producer.close()
call_command("migrate", "shop", "0001", verbosity=0)
connection.close()
opened.close()
"""

SHOW_ORDERS = """
print(json.dumps(visible("orders", 1)))
opened.close()
"""

SHOW_TOMBSTONES = """
wait_until(lambda: len(kafka.records("customers")) == 1, within=30, what="it is visible")
print(json.dumps([(record.key().decode(), record.value()) for record in kafka.records("customers")]))
opened.close()
"""


def programs(page: str) -> list[str]:
    """The page's blocks of Python."""
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def statements(page: str) -> str:
    """The page's one block of SQL: what its program takes for granted."""
    text = (PAGES / page).read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sql\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return str(block)


def in_memory(program: str) -> str:
    """The program, with a cluster in its own process."""
    own = program.replace(
        'bootstrap_servers="127.0.0.1:9092"',
        "bootstrap_servers=kafka.bootstrap_servers, connect=kafka.connect_producer",
    )
    assert own != program
    return own


def run(program: str, folder: Path) -> list[Any]:
    """Run it; what it printed."""
    file = folder / "service.py"  # FastStream's test broker reads the source of its caller
    file.write_text(program, encoding="utf-8")
    ran = run_program(
        [sys.executable, "-W", "error", str(file)],
        within=120,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])},
    )
    assert 0 == ran.returncode, ran.stderr[-4000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def make_table(database: Path, statement: str) -> None:
    """What the page takes for granted."""
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.executescript(statement)


def rows(database: Path, query: str) -> list[Any]:
    """What is in the database afterwards."""
    with closing(sqlite3.connect(database)) as opened:
        return opened.execute(query).fetchall()


def test_an_order_is_taken_once_and_told_once(tmp_path: Path) -> None:
    make_table(tmp_path / "shop.db", statements("fastapi.md"))
    (program,) = programs("fastapi.md")

    statuses, told = run(STAGE + in_memory(program) + ASK_FASTAPI, tmp_path)

    assert [201, 409] == statuses
    ((key, value),) = told
    assert "customer-7" == key
    assert {"reference": "a-1", "customer": "customer-7", "cents": 42} == json.loads(value)
    assert [("a-1", 42)] == rows(tmp_path / "shop.db", "SELECT reference, cents FROM orders")


def test_a_message_that_is_read_twice_gives_its_points_once(tmp_path: Path) -> None:
    make_table(tmp_path / "loyalty.db", statements("faststream.md"))
    (program,) = programs("faststream.md")

    told, (prepared_count, decisions) = run(STAGE + in_memory(program) + ASK_FASTSTREAM, tmp_path)

    assert [["customer-7", "42"]] == told
    assert 2 == prepared_count
    assert ["C", "R"] == decisions
    assert [(42,)] == rows(tmp_path / "loyalty.db", "SELECT points FROM account")


def test_purchases_through_django_are_told_with_its_own_commits(tmp_path: Path) -> None:
    view, migration = programs("django.md")
    shop = tmp_path / "shop"
    (shop / "migrations").mkdir(parents=True)
    initial = (
        "from django.db import migrations\n\n\nclass Migration(migrations.Migration):\n"
        "    operations = [migrations.RunSQL('CREATE TABLE purchase (customer TEXT NOT NULL)', 'DROP TABLE purchase')]\n"
    )
    for name, text in {
        "__init__.py": "",
        "views.py": in_memory(view).replace(
            "producer =", "from __main__ import kafka\nfrom txlayer import UsageError\nproducer =", 1
        ),
        "migrations/__init__.py": "",
        "migrations/0001_initial.py": initial,
        "migrations/0002_barrier.py": migration,
    }.items():
        (shop / name).write_text(text, encoding="utf-8")
    (tmp_path / "urls.py").write_text(
        "from django.urls import path\nfrom shop import views\nurlpatterns = [path('purchases', views.purchases)]\n",
        encoding="utf-8",
    )

    (status, refused, outside), told = run(STAGE + ASK_DJANGO, tmp_path)

    assert 201 == status
    assert "NOT NULL" in refused
    assert "needs an open transaction.atomic()" in outside
    assert [["customer-7", "42 cents"], ["customer-8", "42 cents"]] == sorted(told)
    assert [("customer-7",), ("customer-8",)] == rows(tmp_path / "shop.db", "SELECT customer FROM purchase")
    assert [] == rows(tmp_path / "shop.db", "SELECT name FROM sqlite_master WHERE name = 'txlayer_barrier'")


def test_a_purchase_goes_either_by_the_outbox_or_by_txlayer(tmp_path: Path) -> None:
    make_table(
        tmp_path / "shop.db",
        "CREATE TABLE purchase (customer TEXT); CREATE TABLE outbox (topic TEXT, key TEXT, value TEXT)",
    )
    (program,) = programs("from-outbox.md")

    (told,) = run(STAGE + in_memory(program) + SHOW_ORDERS, tmp_path)

    assert [["customer-8", "17 cents"]] == told
    assert [("customer-7",)] == rows(tmp_path / "shop.db", "SELECT key FROM outbox")
    assert [("customer-7",), ("customer-8",)] == rows(tmp_path / "shop.db", "SELECT customer FROM purchase")


def test_a_tombstone_goes_through_txlayer(tmp_path: Path) -> None:
    (block,) = re.findall(
        r"^   ```python\n(.*?)^   ```$",
        (PAGES / "personal-data.md").read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )

    (told,) = run(STAGE + in_memory(textwrap.dedent(block)) + SHOW_TOMBSTONES, tmp_path)

    assert [["customer-7", None]] == told


@pytest.mark.parametrize("page", ["fastapi.md", "django.md", "faststream.md"])
def test_the_page_says_how_to_read(page: str) -> None:
    assert "read_committed" in (PAGES / page).read_text(encoding="utf-8")
