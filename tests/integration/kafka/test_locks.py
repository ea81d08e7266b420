"""Leases on a real broker, and `txlayer locks` on them."""

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conftest import Broker
from tests.support.broker import create_topic, unique_name
from tests.support.commands import run_command
from tests.support.programs import run_program
from tests.support.waiting import wait_until
from txlayer.adapters.connect import connect_consumer
from txlayer.cli import locks
from txlayer.config import ConsumerConfig, SystemTopics, milliseconds
from txlayer.consumer.lease_keeper import LockRegistry

pytestmark = pytest.mark.kafka

GROUP = "loyalty"
ORDERS = ("orders", 3)
NAME = f"{GROUP}/orders/3"
RENEWAL, EXPIRY = timedelta(seconds=1.5), timedelta(seconds=6)
WHY = ("--reason", "ticket 12", "--operator", "zoe@desk")


class Running:
    """A process's registry and what it holds."""

    def __init__(self, config: ConsumerConfig, holder: str) -> None:
        self.tokens: dict[tuple[str, int], int] = {}
        self._connections = connect_consumer(config)
        self.registry = LockRegistry(
            self._connections,
            group=GROUP,
            holder=holder,
            topics=config.topics,
            lease_renewal_ms=milliseconds(config.lease_renewal),
            lease_expiry_ms=milliseconds(config.lease_expiry),
        )
        self.registry.start()

    def turn(self) -> None:
        """What its engine does."""
        changes = self.registry.turn()
        self.tokens.update({q: token for q, token in changes.gained.items() if token is not None})
        for queue in changes.lost:
            del self.tokens[queue]

    def close(self) -> None:
        """End it."""
        self.registry.close()
        self._connections.close()


class Desk:
    """One namespace's lock log, processes on it, and an operator."""

    def __init__(self, servers: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.topics = SystemTopics(unique_name("ns"))
        create_topic(servers, self.topics.locks, partitions=4, config={"message.timestamp.type": "LogAppendTime"})
        self._config = ConsumerConfig(
            bootstrap_servers=servers, namespace=self.topics.namespace, lease_renewal=RENEWAL, lease_expiry=EXPIRY
        )
        self._where = ("-b", servers, "-n", self.topics.namespace, "--lease-expiry", "6s")
        self._capsys = capsys
        self.running: list[Running] = []

    def process(self, holder: str) -> Running:
        """A started one."""
        made = Running(self._config, holder)
        self.running.append(made)
        return made

    def wait(self, condition: Any, what: str) -> None:
        """Let everybody turn until it is so."""

        def is_so() -> bool:
            for process in self.running:
                process.turn()
            return bool(condition())

        wait_until(is_so, within=20, what=what)

    def assign(self, process: Running, generation: int) -> int:
        """The group gives the queue to a process; its token."""
        process.registry.assigned([ORDERS], generation=generation)
        self.wait(lambda: ORDERS in process.tokens, "a lease")
        return process.tokens[ORDERS]

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of `txlayer locks`."""
        return run_command(locks.app, *arguments, *self._where, capsys=self._capsys)

    def json(self, *arguments: str, code: int = 0) -> Any:
        """What it answers with --json."""
        left, out, err = self.run(*arguments, "--json")
        assert code == left, f"{out} {err}"
        return json.loads(out)


@pytest.fixture
def desk(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    made = Desk(broker.bootstrap_servers, capsys)
    yield made
    for process in made.running:
        process.close()


# --- the commands -----------------------------------------------------------------------------------------------------


def test_nothing_is_held_in_a_namespace_where_nobody_was(desk: Desk) -> None:
    code, out, err = desk.run("list")

    assert (0, "") == (code, err)
    assert "no consumer holds a queue in ns-" in out
    assert [] == desk.json("list", "--all")


def test_a_record_that_cannot_be_read_is_told_with_its_place(broker: Broker, desk: Desk) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(40):
        producer.produce(desk.topics.locks, b"not ours", b"key", 1)
    assert not producer.flush(30)

    words = ["locks", "list", "-b", broker.bootstrap_servers, "-n", desk.topics.namespace]
    ran = run_program([sys.executable, "-m", "txlayer", *words], within=60)

    assert (0, True) == (ran.returncode, "WARNING locks.unreadable partition=1 offset=0 reason=" in ran.stderr)
    assert (21, f"40 records of {desk.topics.locks} cannot be read") == (
        ran.stderr.count("locks.unreadable"),
        ran.stderr.splitlines()[-1],
    )


def test_list_tells_who_holds_what_and_filters(desk: Desk) -> None:
    token = desk.assign(desk.process("host-1/4711"), 5)

    (row,) = desk.json("list")
    assert (NAME, GROUP, "orders", 3, "held", "host-1/4711", 5, token) == tuple(
        row[name] for name in ("queue", "group", "topic", "partition", "state", "holder", "generation", "token")
    )
    assert 0 < row["expires_in_ms"] <= 6_000
    assert 1 == len(desk.json("list", "--group", GROUP, "--topic", "orders"))
    assert [] == desk.json("list", "--group", "another")
    assert [] == desk.json("list", "--topic", "another")
    code, out, _ = desk.run("list")
    assert 0 == code
    assert NAME in "".join(out.split())


def test_show_tells_what_each_record_changed(desk: Desk) -> None:
    a, b = desk.process("a"), desk.process("b")
    desk.assign(a, 5)
    desk.assign(b, 6)

    row = desk.json("show", NAME)
    code, out, _ = desk.run("show", NAME)

    assert ("b", "held") == (row["holder"], row["state"])
    claims = [r for r in row["records"] if r["kind"] == "claim"]
    assert [("a", "won"), ("b", "won")] == [(r["holder"], r["effect"]) for r in claims]
    assert (0, True) == (code, "newest records" in out)


def test_a_held_lease_is_not_released_silently(desk: Desk) -> None:
    desk.assign(desk.process("a"), 5)

    code, out, err = desk.run("release", NAME, *WHY)

    assert (2, "") == (code, out)
    assert "is held by a (generation 5, token 0)" in err
    assert "--yes" in err
    assert "held" == desk.json("show", NAME)["state"]


def test_a_released_lease_is_lost_by_its_holder_and_won_by_who_waits(desk: Desk) -> None:
    a, b = desk.process("a"), desk.process("b")
    desk.assign(a, 5)
    b.registry.assigned([ORDERS], generation=4)
    desk.wait(lambda: a.tokens[ORDERS] > 0, "the void claim is answered")

    row = desk.json("release", NAME, *WHY, "--yes")
    assert ("released", "zoe@desk: ticket 12", True) == (row["state"], row["reason"], row["is_written"])
    desk.wait(lambda: b.tokens and not a.tokens, "the other has it")

    code, out, _ = desk.run("release", NAME, *WHY, "--yes")
    assert 0 == code
    assert f"released {NAME}" in out


def test_what_nobody_holds_is_not_released_again(desk: Desk) -> None:
    a = desk.process("a")
    desk.assign(a, 5)
    desk.running.remove(a)
    a.close()

    code, out, err = desk.run("release", NAME, *WHY)

    assert (0, "") == (code, err)
    assert "its lease is released; nothing was written" in out
    assert [] == desk.json("list")
    (row,) = desk.json("list", "--all")
    assert "released" == row["state"]


@pytest.mark.parametrize("command", [("show",), ("release", *WHY)])
def test_a_queue_that_the_log_does_not_tell_of_is_a_finding(desk: Desk, command: tuple[str, ...]) -> None:
    code, out, err = desk.run(*command[:1], "loyalty/orders/9", *command[1:])

    assert (1, "") == (code, out)
    assert "does not name loyalty/orders/9" in err
    assert desk.json(*command[:1], "loyalty/orders/9", *command[1:], code=1) is None


def test_a_namespace_without_a_lock_topic_is_told_what_to_do(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run_command(
        locks.app, "list", "-b", broker.bootstrap_servers, "-n", unique_name("ns"), capsys=capsys
    )

    assert 2 == code
    assert "topics apply" in err
