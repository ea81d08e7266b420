"""A namespace one of whose topics somebody deleted: commands name the topic, and what makes it."""

from collections.abc import Callable
from typing import Any

import pytest
import typer

from tests.support.commands import run_command
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.memory import memory_clients
from txlayer.cli import tx
from txlayer.cli.exits import ExitCode
from txlayer.cli.verify import verify
from txlayer.config import CoordinatorConfig

VERIFY = typer.Typer()
VERIFY.command()(verify)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Commands find a namespace without this topic."""

    def give(topic: str) -> None:
        still = StillCoordinator()
        still.kafka.delete_topic(topic)
        clients = memory_clients(still.kafka._link("cli", "cli"), still.config)

        def connect(config: CoordinatorConfig, **_how: Any) -> CoordinatorConnections:
            return CoordinatorConnections(clients, config)

        for name in ("adapters.connect", "cli.verify"):
            monkeypatch.setattr(f"txlayer.{name}.kafka_clients", lambda _config: clients)
        monkeypatch.setattr("txlayer.adapters.connect.connect_coordinator", connect)

    return give


@pytest.mark.parametrize("topic", ["txlayer.half", "txlayer.op", "txlayer.doubt"])
@pytest.mark.parametrize(
    ("app", "words"),
    [(tx.app, ["show", "order-1"]), (tx.app, ["show", "0:0"]), (tx.app, ["list"]), (tx.app, ["stats"]), (VERIFY, [])],
)
def test_the_topic_is_named_and_what_makes_it(
    without: Callable[[str], None], capsys: pytest.CaptureFixture[str], app: typer.Typer, words: list[str], topic: str
) -> None:
    without(topic)

    code, out, err = run_command(app, *words, capsys=capsys)

    assert (ExitCode.USAGE, "") == (code, out)
    assert topic in err
    assert "`txlayer topics apply`" in err
    assert 1 == err.count("\n")
