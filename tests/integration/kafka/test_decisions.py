"""P3 and P4 at their plainest: what a reader sees of transactions that are undecided, rolled back, decided twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.crafted import Crafted
from tests.support.logs import header, read_log
from tests.support.processes import CoordinatorProcess
from tests.support.waiting import wait_until
from txlayer.core.messages import Resolution, Source

pytestmark = pytest.mark.kafka

COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN
QUICK = {"session_timeout": "1.5s", "doubt_after": "1s"}


@pytest.fixture
def arena(broker: Broker) -> Arena:
    return make_arena(broker.bootstrap_servers)


@pytest.fixture
def crafted(arena: Arena) -> Crafted:
    return Crafted(arena.servers, arena.topics, partition_count=arena.partition_count)


@pytest.fixture
def coordinator(arena: Arena, tmp_path: Path) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(arena.servers, arena.namespace, log_file=tmp_path / "first", settings=QUICK) as started:
        started.wait_for("partitions.taken_over")
        yield started


def visible(arena: Arena) -> list[str]:
    """The ids of all that a `read_committed` reader sees on the first real topic."""
    target = arena.targets[0]
    records = read_log(arena.servers, [target])[target]
    return sorted((header(r.headers, "txl-id") or b"").decode() for r in records)


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.promise("P3")
def test_nothing_is_visible_that_is_undecided_or_rolled_back(
    arena: Arena, crafted: Crafted, coordinator: CoordinatorProcess
) -> None:
    target = arena.targets[0]
    late = crafted.half("late/00000001", target)
    crafted.half("never/00000001", target)
    crafted.op(crafted.half("unknown/00000001", target), UNKNOWN)
    crafted.op(crafted.half("rolled-back/00000001", target), ROLLBACK)
    wait_until(
        lambda: sum(p.doubt_end for p in arena.status().partitions),
        within=30,
        what="those without a decision are moved to doubt",
    )
    assert [] == visible(arena)

    crafted.op(late, COMMIT)

    wait_until(lambda: visible(arena) == ["late"], within=30, what="the committed one is visible")
    arena.wait_until_applied(within=30)
    assert ["late"] == visible(arena)
    coordinator.terminate()
    assert 0 == coordinator.wait()
    assert ["late"] == visible(arena)


@pytest.mark.promise("P3")
@pytest.mark.usefixtures("coordinator")
def test_nothing_is_visible_before_its_decision_is_in_the_log(arena: Arena, crafted: Crafted) -> None:
    for number in range(20):
        crafted.op(crafted.half(f"txn-{number}/00000001", arena.targets[0]), COMMIT)
    wait_until(lambda: len(visible(arena)) == 20, within=30, what="all are visible")

    read = read_log(arena.servers, [arena.topics.op, arena.targets[0]])
    decided_ms = {
        line.split("|")[2].partition("/")[0]: record.timestamp_ms
        for record in read[arena.topics.op]
        for line in (record.value or b"").decode().splitlines()
    }
    # Both times are the broker's own.
    early = [
        record
        for record in read[arena.targets[0]]
        if record.timestamp_ms < decided_ms[(header(record.headers, "txl-id") or b"").decode()]
    ]

    assert 20 == len(decided_ms)
    assert [] == early


@pytest.mark.threat("write `<ns>.op`")
@pytest.mark.fault("producer: commits and rolls back one transaction")
@pytest.mark.promise("P4")
def test_the_first_decision_wins_whoever_wrote_it_and_across_a_restart(
    arena: Arena, crafted: Crafted, coordinator: CoordinatorProcess, tmp_path: Path
) -> None:
    target = arena.targets[0]
    committed = crafted.half("committed/00000001", target)
    rolled_back = crafted.half("rolled-back/00000001", target)
    crafted.op(committed, COMMIT)
    crafted.op(committed, ROLLBACK, source=Source.OPERATOR)
    crafted.op(rolled_back, ROLLBACK, source=Source.CHECK)
    crafted.op(rolled_back, COMMIT)
    wait_until(lambda: visible(arena) == ["committed"], within=30, what="one of them is visible")
    arena.wait_until_applied(within=30)
    conflicts = coordinator.wait_for("transaction.conflict", count=2)
    coordinator.kill()

    crafted.op(committed, ROLLBACK)
    crafted.op(rolled_back, COMMIT)
    with CoordinatorProcess(arena.servers, arena.namespace, log_file=tmp_path / "second", settings=QUICK) as successor:
        successor.wait_for("partitions.taken_over")
        arena.wait_until_applied(within=30)

    assert {committed.key, rolled_back.key} == {event["txn_key"] for event in conflicts}
    assert ["committed"] == visible(arena)
