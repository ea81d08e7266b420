"""Ports of workers, and the commands' one port."""

import pytest

from tests.support.commands import run_command
from txlayer.cli import coordinator, responder, services
from txlayer.cli.consumer import app as consumer_app
from txlayer.cli.exits import ExitCode
from txlayer.cli.services import worker_commands
from txlayer.config import MetricsConfig

COMMANDS = {
    "coordinator": (coordinator.app, ["run"]),
    "responder": (responder.app, ["run", "--group", "orders"]),
    "consumer": (consumer_app, ["run", "shop:consumer"]),
}


def test_each_worker_is_told_the_next_port() -> None:
    commands = worker_commands(["run"], MetricsConfig(metrics_port=9464), 3)

    assert [["run", "--metrics-port", str(9464 + n)] for n in range(3)] == commands


def test_without_a_port_workers_are_told_nothing() -> None:
    assert [["run"]] * 3 == worker_commands(["run"], MetricsConfig(), 3)


@pytest.mark.parametrize("role", COMMANDS)
def test_a_port_that_is_none_ends_the_command_in_one_line(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    app, words = COMMANDS[role]

    code, said, told = run_command(app, *words, "--metrics-port", "70000", capsys=capsys)

    assert (ExitCode.USAGE, "") == (code, said)
    assert [
        "error: not a port (name='metrics_port', value=70000, expected='0 (nothing listens) to 65535')"
    ] == told.splitlines()


@pytest.mark.parametrize("role", ["coordinator", "consumer"])
def test_workers_beyond_the_last_port_end_the_command_before_any_starts(
    role: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, words = COMMANDS[role]
    monkeypatch.setattr(services, "supervise", lambda *_, **__: pytest.fail("started"))
    monkeypatch.setattr(services.StopSignal, "install", lambda _: None)

    code, _, told = run_command(app, *words, "--workers", "2", "--metrics-port", "65535", capsys=capsys)

    assert ExitCode.USAGE == code
    assert "65536" in told
