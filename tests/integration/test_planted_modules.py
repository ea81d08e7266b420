"""A module that somebody put into the working directory runs in no Python that txlayer starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_program

PROGRAM = str(Path(sys.executable).with_name("txlayer"))
PLANTED = """
import os, pathlib
pathlib.Path(os.environ["MARK"]).write_text("a planted module ran")
raise SystemExit(2)
"""
CONSUMER = "import pathlib; pathlib.Path('consumer-was-imported').touch()\n"
POOL = """
from txlayer.consumer.pools import Caller, Chunk
from txlayer.consumer.context import Lease
from txlayer.consumer.handlers import HandlerSet
from txlayer.consumer.process_pool import ProcessPool, SentRecord
from txlayer.core.key_queue import Item
import os, subprocess, sys, time

def act(message, context):
    assert "PYTHONSAFEPATH" not in os.environ
    subprocess.run([sys.executable, "-m", "own_module"], check=True)

if __name__ == "__main__":
    handlers = HandlerSet(is_async=False)
    handlers.add(act, topics=(), tags="*", retry=None, batch_count_max=0)
    pool = ProcessPool(Caller(handlers.routes(("orders",)), attempt_timeout_s=60), worker_count=1)
    record = SentRecord(("orders", 0, 0), None, b"", None, (1, 0))
    pool.submit(Chunk(None, Lease("g", "orders", 0, token=1), [Item(record, 0, None, 1)]))
    while not (ended := pool.take()):
        pass
    pool.close(10)
    assert not ended[0].failed, ended[0].failed
    assert "PYTHONSAFEPATH" not in os.environ
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with modules that are called as those that every command imports."""
    for name in ("typer", "rich", "multiprocessing", "confluent_kafka"):
        (tmp_path / f"{name}.py").write_text(PLANTED, "utf-8")
    return tmp_path


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program in that working directory; the settings of this environment do not reach it."""
    environ = {n: v for n, v in os.environ.items() if not n.startswith(("TXLAYER_", "PYTHON"))}
    return run_program(command, within=120, cwd=folder, env={**environ, "MARK": str(folder / "mark")})


@pytest.mark.threat("write to the working directory of a service or an operator")
@pytest.mark.parametrize(
    "command",
    [
        ("barrier", "create", "--url", "postgresql+psycopg://shop:geheim@127.0.0.1:1/shop"),
        ("inbox", "create", "--url", "postgresql+psycopg://shop:geheim@127.0.0.1:1/shop"),
        ("responder", "run", "-g", "shop", "--barrier-url", "postgresql+psycopg://shop:geheim@127.0.0.1:1/shop"),
        # The address of these metrics is nobody's: each worker ends with 2.
        (
            "coordinator",
            "run",
            "--workers",
            "2",
            "-b",
            "127.0.0.1:1",
            "--metrics-host",
            "192.0.2.1",
            "--metrics-port",
            "9464",
        ),
    ],
    ids=lambda command: command[0],
)
def test_a_command_runs_no_module_of_the_working_directory(command: tuple[str, ...], folder: Path) -> None:
    ran = run(PROGRAM, *command, folder=folder)

    assert not (folder / "mark").exists(), ran.stderr
    assert 2 == ran.returncode, ran.stderr
    assert "geheim" not in ran.stdout + ran.stderr


@pytest.mark.threat("write to the working directory of a service or an operator")
def test_workers_of_a_consumer_import_its_module_and_no_other(folder: Path) -> None:
    (folder / "shop.py").write_text(CONSUMER, "utf-8")

    ran = run(PROGRAM, "consumer", "run", "shop:consumer", "--workers", "2", folder=folder)

    assert not (folder / "mark").exists(), ran.stderr
    assert (2, True) == (ran.returncode, (folder / "consumer-was-imported").exists()), ran.stderr


def test_processes_for_handlers_run_no_module_of_the_working_directory_and_leave_the_choice_to_handlers(
    folder: Path,
) -> None:
    (folder / "own_module.py").touch()
    elsewhere = folder / "program"
    elsewhere.mkdir()
    (elsewhere / "shop.py").write_text(POOL, "utf-8")

    ran = run(sys.executable, str(elsewhere / "shop.py"), folder=folder)

    assert not (folder / "mark").exists(), ran.stderr
    assert 0 == ran.returncode, ran.stderr
