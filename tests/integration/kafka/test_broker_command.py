"""`txlayer broker` as people use it: commands that end, a broker that stays, and one line for every trouble."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import create_topic
from tests.support.class_archive import quick_java
from tests.support.commands import run_txlayer
from tests.support.programs import run_program
from tests.support.records import read_all, write
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.server import BackgroundBroker, free_ports, is_broker
from txlayer.errors import ConfigError

pytestmark = pytest.mark.kafka


@dataclass(frozen=True, slots=True)
class Terminal:
    """Somebody's terminal: a data folder, a port, and the settings of this machine."""

    data: Path
    port: int
    environment: dict[str, str]
    capsys: pytest.CaptureFixture[str] | None = None

    def command(self, *words: str) -> list[str]:
        """A `txlayer broker` command about this data folder."""
        return [sys.executable, "-m", "txlayer", "broker", *words, "--data", str(self.data)]

    def run(self, *words: str, answer: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return run_program(self.command(*words), within=120, input=answer, env={**self.environment, **settings})

    def try_here(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run in the test's process what leaves nothing running."""
        assert self.capsys is not None
        with pytest.MonkeyPatch.context() as patched:
            for name, value in {**self.environment, **settings}.items():
                patched.setenv(name, value)
            code, out, err = run_txlayer("broker", *words, "--data", str(self.data), capsys=self.capsys)
        return subprocess.CompletedProcess(words, code, out, err)

    def start(self, *words: str) -> dict[str, Any]:
        """Start on the terminal's port; what it says as JSON."""
        answer = self.run("start", "--port", str(self.port), "--json", *words)
        assert (0, "") == (answer.returncode, answer.stderr)
        return dict(json.loads(answer.stdout))

    def is_running(self, pid: int) -> bool:
        """Whether the first broker of the folder is this process."""
        return is_broker(pid, properties_file=self.data / "node-1" / "server.properties")


def open_terminal(config: LocalConfig, folder: Path) -> Terminal:
    """One with a port of its own; its data folder is not there yet."""
    environment = {**os.environ, "TXLAYER_HOME": str(config.home), "JDK_JAVA_OPTIONS": quick_java(config)}
    return Terminal(folder / "données", free_ports(1)[0], environment)


@pytest.fixture
def terminal(local_config: LocalConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    """A terminal whose broker is gone afterwards."""
    opened = replace(open_terminal(local_config, tmp_path), capsys=capsys)
    yield opened
    # A folder that some test made unreadable has no broker.
    with suppress(ConfigError):
        BackgroundBroker(opened.data).stop()


@pytest.fixture(scope="module")
def old_data(local_config: LocalConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a broker that was started and stopped."""
    opened = open_terminal(local_config, tmp_path_factory.mktemp("old"))
    opened.start()
    assert 0 == opened.run("stop").returncode
    return opened.data


@pytest.fixture
def after_a_stop(terminal: Terminal, old_data: Path) -> Terminal:
    """A terminal whose broker was stopped."""
    shutil.copytree(old_data, terminal.data)
    return terminal


def complaint(answer: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error; nothing else was said."""
    assert "" == answer.stdout
    (line,) = answer.stderr.splitlines()
    return line


def test_a_broker_outlives_its_command_and_its_data_the_broker_until_both_are_wiped(terminal: Terminal) -> None:
    started = terminal.start()
    servers, pid = started["bootstrap_servers"], started["brokers"][0]["pid"]
    create_topic(servers, "orders")
    write(servers, "orders", b"first")

    again = terminal.start()
    moved = terminal.run("start", "--port", str(terminal.port + 1))
    running = terminal.run("status")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not terminal.is_running(pid), within=10, what="the kill")
    killed = terminal.run("status", "--json")
    restarted = terminal.start()
    after_kill = read_all(servers, "orders")
    stopped = terminal.run("stop")
    absent = terminal.run("stop")
    pid_at_last = terminal.start()["brokers"][0]["pid"]
    after_stop = read_all(servers, "orders")
    (terminal.data / "notes.txt").write_text("mine", "utf-8")
    unsure = terminal.run("wipe", answer="n\n")
    is_left = terminal.is_running(pid_at_last)
    wiped = terminal.run("wipe", "--yes")

    assert f"127.0.0.1:{terminal.port}" == servers
    assert started == again
    assert (2, True) == (moved.returncode, "running on another port" in complaint(moved))
    assert (0, True) == (running.returncode, "running: 127.0.0.1:" in running.stdout)
    assert (1, "not running") == (killed.returncode, json.loads(killed.stdout)["state"])
    assert pid != restarted["brokers"][0]["pid"]
    assert started["cluster_id"] == restarted["cluster_id"]
    assert [b"first"] == after_kill
    assert (0, "stopped 1\n") == (stopped.returncode, stopped.stdout)
    assert (0, "was not running\n") == (absent.returncode, absent.stdout)
    assert [b"first"] == after_stop
    assert (1, True) == (unsure.returncode, is_left)
    assert (0, False) == (wiped.returncode, terminal.is_running(pid_at_last))
    assert ["notes.txt"] == [path.name for path in terminal.data.iterdir()]


def test_status_of_nothing_is_a_finding(terminal: Terminal) -> None:
    answer = terminal.try_here("status")

    assert (1, f"not running: no data in {terminal.data}\n") == (answer.returncode, answer.stdout)
    assert not terminal.data.exists()


def test_a_port_in_use_is_one_line_that_names_the_way_out(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", terminal.port)):
        answer = terminal.try_here("start", "--port", str(terminal.port))

    assert 2 == answer.returncode
    assert f"another with --port (name='port', value={terminal.port}" in complaint(answer)


def test_a_pid_file_that_names_a_stranger_is_replaced_and_the_stranger_left_alone(after_a_stop: Terminal) -> None:
    terminal = after_a_stop
    with subprocess.Popen(["/bin/sleep", "600"]) as stranger:
        pid_file = terminal.data / "node-1" / "broker.pid"
        pid_file.write_text(f"{stranger.pid}\n", "utf-8")

        status = terminal.run("status")
        stop = terminal.run("stop")
        pid_file.write_text(f"{stranger.pid}\n", "utf-8")
        started = terminal.start()
        is_unharmed = stranger.poll() is None
        stranger.kill()

    assert 1 == status.returncode
    assert "was not running\n" == stop.stdout
    assert is_unharmed
    assert started["brokers"][0]["pid"] != stranger.pid


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(terminal: Terminal) -> None:
    terminal.data.mkdir()
    (terminal.data / "thesis.txt").write_text("mine", "utf-8")

    for words in (("start",), ("stop",), ("wipe", "--yes"), ("status",)):
        answer = terminal.try_here(*words)
        assert 2 == answer.returncode
        assert "name an empty or a new one with --data" in complaint(answer)

    assert ["thesis.txt"] == [path.name for path in terminal.data.iterdir()]


def test_a_folder_that_cannot_be_made_is_one_line(terminal: Terminal) -> None:
    terminal.data.parent.joinpath("file").write_text("mine", "utf-8")

    answer = replace(terminal, data=terminal.data.with_name("file") / "data").try_here("start")

    assert (2, True) == (answer.returncode, "this folder cannot be written: Not a directory" in complaint(answer))


def test_a_folder_that_kafka_would_take_for_two_is_refused(terminal: Terminal) -> None:
    answer = replace(terminal, data=terminal.data.with_name("a,b")).try_here("start")

    assert (2, True) == (answer.returncode, "a path without a comma" in complaint(answer))


def test_data_that_do_not_fit_are_refused(after_a_stop: Terminal) -> None:
    terminal = after_a_stop
    damages = [
        ("cluster.json", '"4.', '"9.', "written by a later Kafka"),
        ("cluster.json", '"format": 1', '"format": 99', "cannot be read by this txlayer"),
        ("cluster.json", '"nodes": [', '"nodes": [{}, ', "cannot be read by this txlayer"),
        ("node-1/data/meta.properties", "cluster.id=", "cluster.id=x", "data of another cluster"),
    ]

    for file, old, new, says in damages:
        path = terminal.data / file
        sound = path.read_text("utf-8")
        path.write_text(sound.replace(old, new), "utf-8")
        answer = terminal.try_here("start")
        path.write_text(sound, "utf-8")

        assert 2 == answer.returncode
        assert says in complaint(answer)
        assert "--data" in complaint(answer) or "txlayer broker wipe" in complaint(answer)


def test_a_missing_kafka_is_one_line(terminal: Terminal, tmp_path: Path) -> None:
    answer = terminal.try_here("start", TXLAYER_KAFKA_HOME=str(tmp_path / "nowhere"))

    assert 2 == answer.returncode
    assert "no Kafka 3.9 or later there" in complaint(answer)
    assert "TXLAYER_KAFKA_HOME" in complaint(answer)


def test_an_unreachable_repository_is_one_line_after_the_progress(terminal: Terminal, tmp_path: Path) -> None:
    (port,) = free_ports(1)

    answer = terminal.try_here("start", TXLAYER_HOME=str(tmp_path), TXLAYER_MAVEN_URL=f"http://127.0.0.1:{port}")

    assert 3 == answer.returncode
    *_, line = answer.stderr.splitlines()
    assert "could not be fetched" in line
    assert "TXLAYER_MAVEN_URL" in line


def test_a_setting_that_kafka_refuses_is_told_in_kafkas_own_words(terminal: Terminal, old_data: Path) -> None:
    at_first_start = terminal.try_here("start", "--property", "num.io.threads=0")
    shutil.rmtree(terminal.data)
    shutil.copytree(old_data, terminal.data)
    at_a_later_start = terminal.try_here("start", "--property", "num.io.threads=0")

    assert (2, 3) == (at_first_start.returncode, at_a_later_start.returncode)
    assert "num.io.threads" in complaint(at_first_start)
    assert "num.io.threads" in complaint(at_a_later_start)
    assert "broker.log" in complaint(at_a_later_start)
