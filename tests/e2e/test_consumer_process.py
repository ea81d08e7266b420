"""`txlayer consumer run` as a process: killed, stopped, misconfigured; what it did stands in a file."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.consumers import Stage
from tests.support.lab_kafka import KafkaLab
from tests.support.processes import TxlayerProcess
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.core.progress import Foreign, decode

pytestmark = pytest.mark.kafka

PROGRAM = """
import json, os, time
from datetime import timedelta
from txlayer import OrderedConsumer, RetryPolicy

consumer = OrderedConsumer(
    bootstrap_servers={servers!r}, group={group!r}, topics=[{topic!r}], namespace={namespace!r},
    start_at="earliest", retry=RetryPolicy(attempt_count_max=4, backoff_first_ms=200, backoff_max_ms=200),
    start_timeout=timedelta(seconds={start_timeout_s}),
)

@consumer.handler
def handle(message, context):
    with open({journal!r}, "a") as file:
        file.write(json.dumps([message.value.decode(), context.attempt, context.token]) + "\\n")
    if message.value == b"bad":
        raise ValueError("always")
    if message.value == b"slow":
        time.sleep(4)
"""


PROGRAM_PATIENCE_S = 90.0
"""Python and its imports come first, with --workers twice: half a minute where the machine does much else."""


class Program:
    """A program with a consumer, and what its handler was called with."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self._folder = folder
        self._journal = folder / "journal"
        self._count = 0
        self.write(servers=stage.lab.servers)

    def write(self, *, servers: str, start_timeout_s: float = PROGRAM_PATIENCE_S) -> None:
        """Write it down."""
        stage = self.stage
        (self._folder / "loyalty.py").write_text(
            PROGRAM.format(
                servers=servers,
                group=stage.group,
                topic=stage.topic,
                namespace=stage.namespace,
                journal=str(self._journal),
                start_timeout_s=start_timeout_s,
            )
        )

    def run(self, place: str = "loyalty:consumer", *arguments: str) -> TxlayerProcess:
        """Start it."""
        self._count += 1
        log_file = self._folder / f"log-{self._count}"
        command = ["consumer", "run", place, *arguments]
        return TxlayerProcess(command, log_file=log_file, folder=self._folder)

    def calls(self) -> list[tuple[str, int, int]]:
        """(value, attempt, token) of every call."""
        lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def wait_for(self, *calls: tuple[str, int]) -> None:
        """Until these calls were made, and perhaps others."""
        wait_until(
            lambda: set(calls) <= {call[:2] for call in self.calls()}, within=PROGRAM_PATIENCE_S, what=f"{calls}"
        )


@pytest.fixture
def program(broker: Broker, tmp_path: Path) -> Iterator[Program]:
    stage = Stage(KafkaLab(broker.bootstrap_servers))
    yield Program(stage, tmp_path)
    stage.close()


def values(calls: Sequence[tuple[Any, ...]]) -> list[str]:
    """Their values."""
    return [call[0] for call in calls]


@pytest.mark.fault("consumer: is killed while it handles a message")
@pytest.mark.promise("P9")
def test_attempts_survive_kill_9_and_the_last_one_makes_a_dead_letter(program: Program) -> None:
    program.stage.write(b"bad")
    with program.run():
        program.wait_for(("bad", 2))
    before = program.calls()

    with program.run():
        program.stage.wait_for_letters([b"bad"], within=PROGRAM_PATIENCE_S)

    after = program.calls()[len(before) :]
    # The attempt that was cut off counts when its end was stored; none before it is forgotten.
    assert after[0][1] in (before[-1][1], before[-1][1] + 1)
    assert 4 == after[-1][1]
    assert len(before) + len(after) <= 5


@pytest.mark.fault("consumer: is killed while it handles a message")
def test_what_was_stored_is_not_handled_again_after_kill_9(program: Program) -> None:
    stage = program.stage
    stage.write(b"bad", key=b"stuck")
    for n in range(300):
        stage.lab.write(stage.topic, b"%d" % n, key=b"k%d" % (n % 7))

    place, connections = (stage.topic, 0), stage.lab.consumer()

    def is_all_stored() -> bool:
        found = connections.stored_offsets(stage.group, [place], is_stable=True)[place]
        progress = None if found is None else decode(found.offset, found.metadata)
        if found is None or progress is None or isinstance(progress, Foreign):
            return False
        return found.offset == 301 or progress.finished == ((1, 301),)

    with program.run():
        wait_until(is_all_stored, within=PROGRAM_PATIENCE_S, what="everything above it is stored")
    with program.run():
        stage.wait_for_letters([b"bad"], within=PROGRAM_PATIENCE_S)

    others = [value for value in values(program.calls()) if value != "bad"]
    assert sorted(map(str, range(300))) == sorted(others)


def test_sigterm_lets_the_handler_end_and_stores_it(program: Program) -> None:
    program.stage.write(b"slow", b"next")
    with program.run() as process:
        program.wait_for(("slow", 1))
        process.terminate()
        assert 0 == process.wait()

    assert ["slow"] == values(program.calls())
    assert 1 == program.stage.stored()


def test_workers_share_the_partitions_and_end_together(broker: Broker, tmp_path: Path) -> None:
    stage = Stage(KafkaLab(broker.bootstrap_servers), partitions=4)
    program = Program(stage, tmp_path)
    for n in range(40):
        stage.write(b"%d" % n, key=b"%d" % n, partition=n % 4)

    with program.run("loyalty:consumer", "--workers", "2") as process:
        program.wait_for(*[(str(n), 1) for n in range(40)])
        for partition in range(4):
            stage.wait_stored(10, partition=partition)
        process.terminate()
        assert 0 == process.wait(within=60)

    assert sorted(map(str, range(40))) == sorted(values(program.calls()))
    stage.close()


@pytest.mark.parametrize(("place", "code"), [("loyalty:nobody", 2), ("nowhere:consumer", 2), ("json:dumps", 2)])
def test_a_consumer_that_is_none_is_code_2(program: Program, place: str, code: int) -> None:
    with program.run(place) as process:
        assert code == process.wait(within=PROGRAM_PATIENCE_S)


def test_no_broker_is_code_3(program: Program) -> None:
    (port,) = free_ports(1)
    program.write(servers=f"127.0.0.1:{port}", start_timeout_s=4)

    with program.run() as process:
        assert 3 == process.wait(within=PROGRAM_PATIENCE_S)
