"""`txlayer top` and `txlayer tx list --watch` on a real broker: what is there, and what comes while they run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.commands import run_txlayer
from tests.support.raw import RawWriter
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

PROGRAM = (sys.executable, "-m", "txlayer")


@pytest.fixture
def arena(broker: Broker) -> Arena:
    """A namespace of its own for each test: they count what is open."""
    return make_arena(broker.bootstrap_servers)


def where(arena: Arena) -> list[str]:
    return ["-b", arena.servers, "-n", arena.namespace]


def bodies(log: Path) -> list[Any]:
    """The objects that a command has printed, without a line that is not whole yet."""
    return [json.loads(line) for line in log.read_text().split("\n")[:-1] if line.startswith("{")]


def test_the_overview_is_shown_once(arena: Arena, capsys: pytest.CaptureFixture[str]) -> None:
    RawWriter(arena).prepare((arena.targets[0], b"k", b"v"))

    code, out, err = run_txlayer("top", "--once", "--json", *where(arena), capsys=capsys)
    drawn = run_txlayer("top", "--once", *where(arena), capsys=capsys)

    assert (0, "") == (code, err)
    body = json.loads(out)
    assert [({"open": 1}, False)] == [(group["states"], group["is_answered"]) for group in body["groups"]]
    assert arena.partition_count == len(body["partitions"])
    assert "no coordinator runs" in drawn[1]
    assert (True, None) == (isinstance(body["consumers"], list), body["consumers_problem"])
    assert "consumers and leases: seen" in drawn[1]


def test_without_a_broker_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_txlayer("top", "--once", "-b", "127.0.0.1:1", capsys=capsys)

    assert 3 == code
    assert "127.0.0.1:1" in err


@pytest.mark.parametrize(
    ("command", "count_of"),
    [
        (["top", "--interval", "0.2s", "--json"], lambda body: sum(group["count"] for group in body["groups"])),
        (["tx", "list", "--watch", "--json"], lambda body: len(body["transactions"])),
    ],
    ids=["top", "tx list"],
)
def test_what_comes_is_shown_until_a_signal(arena: Arena, tmp_path: Path, command: list[str], count_of: Any) -> None:
    writer, log = RawWriter(arena), tmp_path / "log"

    with log.open("wb") as file:
        process = subprocess.Popen([*PROGRAM, *command, *where(arena)], stdout=file, stderr=file)
    try:
        wait_until(lambda: bodies(log), within=30, what="the first look")
        before = count_of(bodies(log)[0])
        writer.prepare((arena.targets[0], b"k", b"v"))
        wait_until(lambda: count_of(bodies(log)[-1]) == before + 1, within=30, what="the transaction")
        process.terminate()
        assert 0 == process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text()
