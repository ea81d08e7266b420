"""The eight stages of a transaction, and who is killed at each: database and readers agree in the end (P7, P8)."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tests.conftest import Broker
from tests.e2e.conftest import Start
from tests.support.arena import Arena, make_arena
from tests.support.left_out import raise_if_marker_left_out, run_again_if_marker_left_out
from tests.support.processes import CoordinatorProcess
from tests.support.seed import say
from tests.support.shop import make_shop
from tests.support.staged_producer import Stage
from tests.support.waiting import TimedOutError, wait_until
from txlayer import TransactionalProducer
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.sql,
    pytest.mark.slow,
    pytest.mark.promise("P7"),
    pytest.mark.promise("P8"),
]

QUICK = {"check_immunity": "2s", "check_interval": "1s", "check_interval_max": "2s"}
PATIENCE_S = 60.0
RUN_COUNT_MAX = 3
"""One run in some hundred meets the broker's own fault."""
COMMITTED_BY_THEN = {Stage.LOCAL_COMMITTED, Stage.OP_WRITTEN, Stage.OP_ACKNOWLEDGED, Stage.FORWARDED}


class Staged:
    """One producer process that stops at its stage."""

    def __init__(self, arena: Arena, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.database = f"sqlite:///{folder / stage.value}.db"
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.staged_producer",
                arena.servers,
                arena.namespace,
                arena.targets[0],
                self.database,
                stage.value,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait_until_there(self) -> None:
        """Return when it is at its stage."""
        assert self.process.stdout is not None
        assert f"at {self.stage.value}\n" == self.process.stdout.readline()

    def go_on(self) -> None:
        """Let it do the rest."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL; nothing for one that is dead."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def has_row(self) -> bool:
        """What the database says."""
        shop = make_shop(create_engine(self.database))
        try:
            return shop.has_order(self.stage.value)
        finally:
            shop.engine.dispose()


@contextmanager
def eight(arena: Arena, folder: Path) -> Iterator[list[Staged]]:
    """A process at each of the eight stages."""
    with ExitStack() as stack:
        staged = []
        for stage in Stage:
            one = Staged(arena, stage, folder)
            stack.callback(one.kill)
            staged.append(one)
        for one in staged:
            one.wait_until_there()
        arena.wait_until_visible(Stage.FORWARDED.value, count=1)
        yield staged


def judge(arena: Arena, staged: list[Staged], who: str) -> dict[Stage, str]:
    """Wait until nothing is open; each transaction is in both or in neither. What became of each."""

    def is_settled() -> bool:
        counts = arena.verdict().counts
        return not counts["undecided"] and not counts["on doubt"]

    wait_until(is_settled, within=PATIENCE_S, what="everything is settled")
    arena.wait_until_applied(within=PATIENCE_S)
    outcomes = {}
    for one in staged:
        visible, has_row = len(arena.visible(one.stage.value)), one.has_row()
        outcomes[one.stage] = "forwarded" if visible else "not visible"
        assert (1 if has_row else 0) == visible, f"{who} killed at {one.stage.value}"
    for stage, outcome in outcomes.items():
        say(f"{who} killed at {stage.value}: {outcome}")
    assert [] == arena.verdict().findings
    return outcomes


def test_producers_killed_at_every_stage_are_answered_for_by_others(
    broker: Broker, start_coordinator: Start, tmp_path: Path
) -> None:
    arena = make_arena(broker.bootstrap_servers)
    start_coordinator(arena, settings=QUICK)
    with eight(arena, tmp_path) as staged, ExitStack() as stack:
        for one in staged:
            one.kill()
        for one in staged:
            shop = make_shop(create_engine(one.database))
            stack.callback(shop.engine.dispose)
            stack.enter_context(
                TransactionalProducer(
                    bootstrap_servers=arena.servers,
                    namespace=arena.namespace,
                    group=one.stage.value,
                    barrier=shop.barrier,
                )
            )
        outcomes = judge(arena, staged, "producer")

    forwarded = {stage for stage, outcome in outcomes.items() if outcome == "forwarded"}
    assert forwarded == COMMITTED_BY_THEN


@pytest.mark.parametrize("who", ["coordinator", pytest.param("broker", marks=pytest.mark.nightly)])
def test_whoever_else_is_killed_at_any_stage_database_and_readers_agree(
    local_config: LocalConfig, start_coordinator: Start, tmp_path: Path, who: str, request: pytest.FixtureRequest
) -> None:
    def one(run: int) -> None:
        folder = tmp_path / f"run-{run}"
        folder.mkdir()
        live_through(local_config, start_coordinator, folder, who)

    run_again_if_marker_left_out(request, one, run_count_max=RUN_COUNT_MAX)


def live_through(local_config: LocalConfig, start: Start, folder: Path, who: str) -> None:
    """Kill one of the two when a producer stands at each stage, and judge."""
    with LocalBroker(config=local_config, data=folder / "broker") as broker:
        arena = make_arena(broker.bootstrap_servers)
        coordinator = start(arena, settings=QUICK)
        with eight(arena, folder) as staged:
            kills: dict[str, Callable[[], None]] = {
                "coordinator": lambda: replace(coordinator, start, arena),
                "broker": lambda: restart(broker),
            }
            kills[who]()
            for one in staged:
                one.go_on()
            try:
                outcomes = judge(arena, staged, who)
            except TimedOutError as exc:
                coordinator.kill()
                raise_if_marker_left_out(broker, exc)
                raise

    assert COMMITTED_BY_THEN <= {s for s, outcome in outcomes.items() if outcome == "forwarded"}


def replace(coordinator: CoordinatorProcess, start: Start, arena: Arena) -> None:
    coordinator.kill()
    start(arena, settings=QUICK)


def restart(broker: LocalBroker) -> None:
    broker.kill()
    broker.start()
