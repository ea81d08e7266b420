"""A machine whose clock is years ahead of the brokers': what its commands count back from."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.commands import run_command
from tests.support.core_records import txn_key
from tests.support.lock_stage import NAME, LockStage
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters.connect import Clients, CoordinatorConnections
from txlayer.adapters.memory.kafka import memory_clients
from txlayer.cli import locks, tx
from txlayer.config import ConsumerConfig, CoordinatorConfig

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


def test_a_settled_transaction_of_the_last_hour_is_found(
    stage: StillCoordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    txn_id = settled(stage)

    code, out, err = run_command(tx.app, "commit", txn_id, "--reason", "ticket 12", capsys=capsys)

    assert (0, "") == (code, err)
    assert "was committed already at" in out


def test_its_history_is_shown(stage: StillCoordinator, capsys: pytest.CaptureFixture[str]) -> None:
    txn_id = settled(stage)

    code, out, _ = run_command(tx.app, "show", txn_id, capsys=capsys)

    assert 0 == code
    assert "commit by producer" in out


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
