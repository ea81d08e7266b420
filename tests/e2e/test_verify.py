"""`txlayer verify` after coordinators were killed: P1 to P6 are proved, by readers that know nothing of the coordinators."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.conftest import Broker
from tests.e2e.conftest import Start
from tests.support.arena import Arena, make_arena
from tests.support.commands import run_command
from tests.support.seed import SEED
from tests.support.waiting import pause, wait_until
from txlayer.cli.main import build_app

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def has_more_than(arena: Arena, count: int) -> bool:
    return len(arena.logs().real) > count


def test_a_run_with_killed_coordinators_is_proved(
    broker: Broker, start_coordinator: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    arena = make_arena(broker.bootstrap_servers)
    load = arena.load(rate=200, seed=SEED)
    load.start()
    killed = 0
    running = start_coordinator(arena, "--doubt-after", "1s")
    while killed < 3 or (killed < 12 and not arena.aborted_count()):
        running.wait_for("partitions.taken_over")
        wait_until(partial(has_more_than, arena, len(arena.logs().real)), within=30, what="forwarded")
        pause(0.1)
        running.kill()
        killed += 1
        running = start_coordinator(arena, "--doubt-after", "1s")
    load.stop()
    arena.wait_until_applied(within=60)

    code, out, err = run_command(
        build_app(),
        "verify",
        "-b",
        arena.servers,
        "-n",
        arena.namespace,
        "--since",
        "10m",
        "--grace",
        "0ms",
        "--json",
        capsys=capsys,
    )

    said = json.loads(out)
    assert (0, "", []) == (code, err, [f for f in said["findings"] if f["breaks"]])
    assert {"proved"} == {said["promises"][name]["status"] for name in ("P1", "P2", "P3", "P4", "P5")}
    assert said["transaction_count"] > 100
    assert killed >= 3
