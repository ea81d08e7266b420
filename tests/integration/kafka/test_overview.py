"""The overview of what stands open agrees with the logs themselves, at whatever point the coordinators are."""

from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.load import Load
from tests.support.logs import header, read_log
from tests.support.processes import CoordinatorProcess
from tests.support.waiting import wait_until
from txlayer.adapters.connect import connect_coordinator
from txlayer.config import CoordinatorConfig
from txlayer.core.ledger.transitions import COMMITTING, TxnState
from txlayer.core.messages import Resolution, txn_id_of
from txlayer.operate.overview import SLICE_MAX, Overview

pytestmark = pytest.mark.kafka

SEED = 11


def standing(arena: Arena, *, slice_max: int = SLICE_MAX) -> dict[str, str]:
    """{key: state} of everything that is not settled; each once."""
    config = CoordinatorConfig(bootstrap_servers=arena.servers, namespace=arena.namespace)
    connections = connect_coordinator(config)
    try:
        found = list(Overview(connections, slice_max=slice_max).unsettled())
    finally:
        connections.close()
    states = {each.txn.key: each.state for each in found}
    assert len(states) == len(found)
    return states


def loaded(arena: Arena, *, count: int) -> Load:
    """A load of at least so many transactions, all resolved as far as they ever will be."""
    load = arena.load(rate=500, seed=SEED)
    load.start()
    wait_until(lambda: len(load.sent) >= count, within=60, what="the load")
    load.stop()
    assert [] == load.failures
    return load


def decisions(load: Load) -> dict[str, Resolution | None]:
    """{key: the first commit or rollback that was said}."""
    return {sent.key: next((r for r in sent.resolutions if r is not Resolution.UNKNOWN), None) for sent in load.sent}


def test_without_a_coordinator_everything_but_the_rolled_back_stands_open(broker: Broker) -> None:
    arena = make_arena(broker.bootstrap_servers)
    load = loaded(arena, count=1_000)
    expected = {
        key: TxnState.OPEN.value if decision is None else COMMITTING
        for key, decision in decisions(load).items()
        if decision is not Resolution.ROLLBACK
    }

    assert expected == standing(arena)
    # However the logs are cut: op lines that run ahead of their half records wait for them.
    assert expected == standing(arena, slice_max=7)


@pytest.mark.fault("coordinator: is killed at any step")
def test_after_a_coordinator_was_killed_it_is_what_is_neither_rolled_back_nor_visible(
    broker: Broker, tmp_path: Path
) -> None:
    arena = make_arena(broker.bootstrap_servers)
    load = arena.load(rate=500, seed=SEED)
    load.start()
    settings = {"session_timeout": "1.5s", "doubt_after": "1s"}
    with CoordinatorProcess(
        arena.servers, arena.namespace, log_file=tmp_path / "log", settings=settings
    ) as coordinator:
        wait_until(
            lambda: any(p.low_water and p.doubt_end for p in arena.status().partitions),
            within=60,
            what="something was forwarded and something moved to doubt",
        )
        coordinator.kill()
    wait_until(lambda: len(load.sent) >= 1_500, within=60, what="the load went on")
    load.stop()

    found = standing(arena)

    records = read_log(arena.servers, arena.targets)
    visible = {
        (header(record.headers, "txl-id") or b"").decode() for target in arena.targets for record in records[target]
    }
    expected = {
        key
        for key, decision in decisions(load).items()
        if decision is not Resolution.ROLLBACK and txn_id_of(key) not in visible
    }
    assert expected == set(found)
    assert visible
    assert {COMMITTING, TxnState.OPEN.value} <= set(found.values())
