"""A machine whose clock is ahead of the brokers', or behind: what its commands count from."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from tests.support.commands import run_command
from tests.support.console_letters import Group
from tests.support.core_records import op_line, txn_key
from tests.support.lock_stage import NAME, LockStage
from tests.support.still_coordinator import StillCoordinator, appear
from txlayer.adapters.connect import Clients, CoordinatorConnections
from txlayer.adapters.memory import memory_clients
from txlayer.cli import dlq, locks, tx
from txlayer.cli.verify import verify
from txlayer.config import ConsumerConfig, CoordinatorConfig
from txlayer.core.messages import HalfOptions, txn_id_of

MINUTE_MS = 60_000


def clients_of(stage: StillCoordinator, wall_clock: Callable[[], float]) -> Clients:
    return replace(memory_clients(stage.kafka._link("cli", "cli"), stage.config), wall_clock=wall_clock)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> StillCoordinator:
    """A namespace in 2023; commands run by the clock of today."""
    still = StillCoordinator()
    clients = clients_of(still, time.time)

    def connect(config: CoordinatorConfig, **_how: Any) -> CoordinatorConnections:
        return CoordinatorConnections(clients, config)

    monkeypatch.setattr("txlayer.adapters.connect.kafka_clients", lambda _config: clients)
    monkeypatch.setattr("txlayer.adapters.connect.connect_coordinator", connect)
    return still


def settled(still: StillCoordinator) -> str:
    """A committed and forwarded one; half an hour later comes another."""
    key = txn_key("a")
    still.commit(key, still.half(key))
    still.work(seconds=2)
    still.world.advance(ms=30 * MINUTE_MS)
    still.half(txn_key("b"))
    return key.partition("/")[0]


def test_a_settled_transaction_of_the_last_hour_is_found_and_its_history_shown(
    stage: StillCoordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    txn_id = settled(stage)

    code, out, err = run_command(tx.app, "commit", txn_id, "--reason", "ticket 12", capsys=capsys)
    shown_code, shown, _ = run_command(tx.app, "show", txn_id, capsys=capsys)

    assert (0, "", 0) == (code, err, shown_code)
    assert "was committed already at" in out
    assert "commit by producer" in shown


def test_what_is_on_doubt_for_days_is_shown_from_its_first_half_message_on(
    stage: StillCoordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    key = txn_key("a")
    stage.op(op_line("U", key, stage.half(key)))
    stage.work(seconds=70)
    stage.world.advance(ms=3 * 24 * 60 * MINUTE_MS)
    stage.half(txn_key("b"))

    code, out, _ = run_command(tx.app, "show", txn_id_of(key), capsys=capsys)

    assert 0 == code
    assert "message 1 of 1 stored, for orders" in out
    assert "unknown by producer" in out


def test_a_lease_that_seems_expired_and_is_held_is_released(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locks_of = LockStage()
    locks_of.assigned("host-1", generation=1)
    held = locks_of.holder()
    clients = replace(memory_clients(locks_of.kafka._link("cli", "cli"), ConsumerConfig()), wall_clock=time.time)
    monkeypatch.setattr("txlayer.cli.locks.kafka_clients", lambda _config: clients)

    code, out, err = run_command(locks.app, "release", NAME, "--reason", "ticket 12", capsys=capsys)

    assert held is not None
    assert (0, "") == (code, err)
    assert locks_of.holder() is None
    assert f"released {NAME}" in out


@pytest.mark.parametrize("behind_ms", [-MINUTE_MS, 0, MINUTE_MS // 2])
def test_a_clock_that_is_about_right_is_believed(behind_ms: int) -> None:
    still = StillCoordinator()
    still.half(txn_key("a"))
    now_ms = still.world.now_ms() + behind_ms

    assert now_ms == clients_of(still, lambda: now_ms / 1000).history().now_ms()


@pytest.mark.parametrize("ahead_ms", [2 * MINUTE_MS, 60 * MINUTE_MS, 100_000 * MINUTE_MS])
def test_of_one_that_is_ahead_the_newest_record_counts(ahead_ms: int) -> None:
    still = StillCoordinator()
    still.half(txn_key("a"))
    still.world.advance(ms=5_000)
    still.half(txn_key("b"))
    newest_ms = still.world.now_ms()

    found_ms = clients_of(still, lambda: (newest_ms + ahead_ms) / 1000).history().now_ms()

    assert newest_ms - MINUTE_MS <= found_ms <= newest_ms


def test_of_an_empty_log_everything_is_read() -> None:
    assert 0 == clients_of(StillCoordinator(), time.time).history().now_ms()


# --- the brokers' time itself -----------------------------------------------------------------------------------------

HOUR_MS = 60 * MINUTE_MS


def off(still: StillCoordinator, off_ms: int) -> Clients:
    """Of a machine whose clock goes on beside the brokers'."""
    return clients_of(still, lambda: (still.world.now_ms() + off_ms) / 1000)


@pytest.mark.parametrize("off_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "behind"])
def test_where_a_coordinator_runs_the_brokers_time_is_known(off_ms: int) -> None:
    still = StillCoordinator()
    still.half(txn_key("a"))
    still.world.advance(ms=10 * MINUTE_MS)
    appear(still)

    earliest_ms, latest_ms = off(still, off_ms).history().time()

    assert earliest_ms == latest_ms
    assert still.world.now_ms() - 1_000 <= latest_ms <= still.world.now_ms()


def test_a_clock_that_is_right_is_believed_where_nothing_happens() -> None:
    still = StillCoordinator()
    still.half(txn_key("a"))
    half_ms = still.world.now_ms()
    still.world.advance(ms=HOUR_MS)

    earliest_ms, latest_ms = off(still, 0).history().time()

    assert half_ms - 1_000 <= earliest_ms <= half_ms
    assert still.world.now_ms() == latest_ms


class Machine:
    """Commands of one whose clock is off by so much."""

    def __init__(self, off_ms: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.still = StillCoordinator()
        self._capsys = capsys
        clients = off(self.still, off_ms)

        def connect(config: CoordinatorConfig, **_how: Any) -> CoordinatorConnections:
            return CoordinatorConnections(clients, config)

        for name in ("adapters.connect", "cli.dlq", "cli.verify"):
            monkeypatch.setattr(f"txlayer.{name}.kafka_clients", lambda _config: clients)
        monkeypatch.setattr("txlayer.adapters.connect.connect_coordinator", connect)
        monkeypatch.setattr("txlayer.cli.options.current_ms", lambda: self.still.world.now_ms() + off_ms)
        monkeypatch.setattr("txlayer.cli.tx.current_ms", lambda: self.still.world.now_ms() + off_ms)

    def run(self, app: typer.Typer, *words: str) -> tuple[int, str, str]:
        return run_command(app, *words, capsys=self._capsys)


@pytest.fixture(params=[HOUR_MS, -HOUR_MS], ids=["ahead", "behind"])
def machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Machine:
    return Machine(request.param, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("asked", "found"), [(["--since", "30m"], ["1"]), (["--until", "30m"], ["0"]), (["--since", "3h"], ["0", "1"])]
)
def test_dead_letters_since_and_until_are_told_by_the_brokers_time(
    machine: Machine, asked: list[str], found: list[str]
) -> None:
    group = Group(SimpleNamespace(stage=machine.still))  # type: ignore[arg-type]  # its stage is all that is used
    group.letter()
    machine.still.world.advance(ms=2 * HOUR_MS)
    group.letter()
    machine.still.world.advance(ms=10 * MINUTE_MS)
    appear(machine.still)

    code, out, err = machine.run(dlq.app, "list", "--group", "loyalty", *asked, "--json")
    drop = ["drop", "--group", "loyalty", "--all", *asked, "--dry-run", "--json", "--reason", "ticket 12"]
    _, dropped, _ = machine.run(dlq.app, *drop)

    assert (0, "") == (code, err)
    for rows in (json.loads(out), json.loads(dropped)):
        assert [f"orders/0:{offset}" for offset in found] == [row["letter"] for row in rows]


def test_what_is_on_its_way_is_not_lost_and_what_is_old_is_judged(machine: Machine) -> None:
    for name, later_ms in (("old", 10 * MINUTE_MS), ("young", 1_000)):
        machine.still.commit(txn_key(name), machine.still.half(txn_key(name)))
        machine.still.world.advance(ms=later_ms)
    appear(machine.still)
    app = typer.Typer()
    app.command()(verify)

    code, out, _ = machine.run(app, "--since", "30m", "--until", "0s", "--json")

    findings = json.loads(out)["findings"]
    assert 1 == code
    assert [("lost", txn_id_of(txn_key("old")))] == [(each["verdict"], each["txn_id"]) for each in findings]


def test_a_new_time_of_scheduled_messages_counts_from_the_brokers_time(machine: Machine) -> None:
    still, key = machine.still, txn_key("a")
    due_ms = still.world.now_ms() + 24 * HOUR_MS
    still.commit(key, still.half(key, options=HalfOptions(deliver_at_ms=due_ms)))
    still.work(seconds=2)
    appear(still)

    words = ["reschedule", txn_id_of(key), "--to", "2h", "--reason", "ticket 12", "--wait", "0s"]
    code, _, err = machine.run(tx.app, *words)

    time_ms = int(still.said()[-1].rpartition(b"|")[2])
    assert (0, "") == (code, err)
    assert still.world.now_ms() - 1_000 <= time_ms - 2 * HOUR_MS <= still.world.now_ms()


def test_ages_of_transactions_are_told_by_the_brokers_time(machine: Machine) -> None:
    for name, later_ms in (("old", HOUR_MS), ("young", 2 * MINUTE_MS)):
        machine.still.half(txn_key(name))
        machine.still.world.advance(ms=later_ms)
    appear(machine.still)
    shown = ["--open", "--older-than", "30m", "--json"]

    _, listed, _ = machine.run(tx.app, "list", *shown)
    _, settled, _ = machine.run(tx.app, "rollback", "--all", *shown, "--reason", "ticket 12", "--dry-run")

    for rows in (json.loads(listed), json.loads(settled)):
        assert [txn_id_of(txn_key("old"))] == [row["txn_id"] for row in rows]
