"""A consumer that was frozen in the middle of a handler, past the expiry of its lease: the database refuses what it writes."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import unique_name
from tests.support.processes import TxlayerProcess
from tests.support.records import write
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig
from txlayer.operate.topics import GroupTopics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

EXPIRY_S = 3.0

PROGRAM = """
import json
import os
import threading
from datetime import timedelta
from pathlib import Path

from sqlalchemy import BigInteger, Column, MetaData, String, Table, create_engine, update

from txlayer import OrderedConsumer
from txlayer.adapters.sql import execute_fenced
from txlayer.errors import LeaseLostError

GIVEN = json.loads(Path("given.json").read_text())
engine = create_engine("sqlite:///shop.db")
account = Table(
    "account", MetaData(), Column("customer", String(40), primary_key=True),
    Column("points", BigInteger), Column("fence", BigInteger),
)
consumer = OrderedConsumer(
    bootstrap_servers=GIVEN["servers"], namespace=GIVEN["namespace"], group=GIVEN["group"],
    topics=[GIVEN["topic"]], start_at="earliest", session_timeout=timedelta(seconds=1.5),
    lease_renewal=timedelta(seconds=1), lease_expiry=timedelta(seconds=GIVEN["expiry_s"]),
)


def say(**line):
    with Path(f"said-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\\n")


@consumer.handler
def add_points(message, context):
    say(event="began", token=context.token)
    waits = threading.Event()
    while not Path(f"go-{os.getpid()}").exists():
        waits.wait(0.02)
    change = update(account).where(account.c.customer == "customer-7")
    try:
        with engine.begin() as connection:
            execute_fenced(
                connection, change.values(points=account.c.points + 1),
                fence=account.c.fence, token=context.token,
            )
    except LeaseLostError as exc:
        say(event="refused", token=exc.token, current_token=exc.current_token,
            is_told=context.lease_lost.wait(10))
        raise
    say(event="wrote", token=context.token)
"""


class Shop:
    """A folder with the program and its database, and processes that run it."""

    def __init__(self, folder: Path, arena: Arena, stack: ExitStack) -> None:
        self.folder = folder
        self.topic = arena.targets[0]
        self._stack = stack
        self._count = 0
        group = unique_name("loyalty")
        with KafkaAdmin(ClientConfig(bootstrap_servers=arena.servers)) as admin:
            GroupTopics(admin, group=group, topics=[self.topic]).apply()
        given = {
            "servers": arena.servers,
            "namespace": arena.namespace,
            "group": group,
            "topic": self.topic,
            "expiry_s": EXPIRY_S,
        }
        (folder / "given.json").write_text(json.dumps(given))
        (folder / "shop.py").write_text(PROGRAM)
        self._engine = create_engine(f"sqlite:///{folder / 'shop.db'}")
        with self._engine.begin() as connection:
            connection.execute(text("CREATE TABLE account (customer VARCHAR(40), points INTEGER, fence INTEGER)"))
            connection.execute(text("INSERT INTO account VALUES ('customer-7', 0, 0)"))
        stack.callback(self._engine.dispose)

    def start(self) -> TxlayerProcess:
        """One more process."""
        self._count += 1
        return self._stack.enter_context(
            TxlayerProcess(
                ["consumer", "run", "shop:consumer"], log_file=self.folder / f"log-{self._count}", folder=self.folder
            )
        )

    def wait_for(self, process: TxlayerProcess, event: str) -> dict[str, Any]:
        """What a process says of its handler."""

        def said() -> list[dict[str, Any]]:
            assert process.is_running, process.output()[-3000:]
            path = self.folder / f"said-{process.pid}.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
            return [line for line in map(json.loads, lines) if line["event"] == event]

        return wait_until(said, within=60, what=f"{event}: {process.output()[-2000:]}")[0]

    def let_write(self, process: TxlayerProcess) -> None:
        """Its handler goes on."""
        (self.folder / f"go-{process.pid}").touch()

    def account(self) -> tuple[int, int]:
        """(points, fence)."""
        with self._engine.connect() as connection:
            points, fence = connection.execute(text("SELECT points, fence FROM account")).one()
        return points, fence


@pytest.fixture
def shop(broker: Broker, tmp_path: Path) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(tmp_path, make_arena(broker.bootstrap_servers), stack)


@pytest.mark.fault("consumer: is frozen for longer than its session or its lease, then goes on")
@pytest.mark.promise("P10")
def test_what_a_consumer_writes_that_slept_past_its_lease_is_refused(broker: Broker, shop: Shop) -> None:
    frozen = shop.start()
    write(broker.bootstrap_servers, shop.topic, b"42 cents")
    old = shop.wait_for(frozen, "began")["token"]
    frozen.freeze()
    frozen_at = time.monotonic()

    successor = shop.start()
    new = shop.wait_for(successor, "began")["token"]
    shop.let_write(successor)
    shop.wait_for(successor, "wrote")
    wait_until(lambda: time.monotonic() - frozen_at > EXPIRY_S + 1, within=30, what="the lease is over")
    frozen.thaw()
    shop.let_write(frozen)
    refused = shop.wait_for(frozen, "refused")

    assert old < new
    assert (old, new, True) == (refused["token"], refused["current_token"], refused["is_told"])
    assert (1, new) == shop.account()
