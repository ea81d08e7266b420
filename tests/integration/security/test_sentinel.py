"""A password that nobody should see is given to every command; nobody sees it."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.support.broker import unique_name
from tests.support.commands import run_txlayer
from tests.support.processes import ROOT
from tests.support.programs import run_program
from tests.support.tls_broker import TlsBroker, User
from txlayer.cli.main import build_app

pytestmark = pytest.mark.kafka

SENTINEL = "s3ntinel-nobody-sees"
VALUES = {
    "--group": "group",
    "--topic": "orders",
    "--to": "earliest",
    "--role": "reader",
    "--principal": "User:somebody",
    "--handler": "json:loads",
    "--reason": "none",
    "--operator": "zoe@desk",
    "place": "nowhere:consumer",
}
"""What a required option or argument gets; others get a word."""

NO_CLUSTER = {"broker"}
"""Commands about this machine's own broker: they take no client settings, and some would start one."""


def commands(group: Any, *before: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of every command."""
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from commands(command, *before, name)
        else:
            yield (*before, name), command


def arguments(command: Any) -> list[str]:
    """What it needs to begin its work."""
    found: list[str] = []
    for parameter in command.params:
        option = next((o for o in parameter.opts if o.startswith("--")), "")
        value = VALUES.get(option or parameter.name, "word")
        if parameter.required:
            found += [option, value] if option else [value]
        elif option in ("--yes", "--json"):
            found.append(option)
    return found


EVERY = [
    pytest.param(words, command, id=" ".join(words))
    for words, command in commands(typer.main.get_command(build_app()))
    if words[0] not in NO_CLUSTER
]


@pytest.fixture(scope="module")
def sentinel(guarded: TlsBroker) -> User:
    """Somebody who may do everything, with that password."""
    user = guarded.add_user(SENTINEL)
    guarded.allow_everything(user.principal)
    return user


@pytest.fixture
def environ(guarded: TlsBroker, sentinel: User, tmp_path: Path) -> dict[str, str]:
    """How commands connect; the client tells everything that it has to tell."""
    settings = {**guarded.scram(sentinel), "debug": "conf,security"}
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{n}={v}\n" for n, v in settings.items()), "utf-8")
    database = f"postgresql+psycopg://shop:{SENTINEL}@127.0.0.1:1/shop"
    return {
        "TXLAYER_BOOTSTRAP_SERVERS": guarded.sasl_servers,
        "TXLAYER_NAMESPACE": unique_name("nobody"),
        "TXLAYER_CLIENT_SETTINGS_FILE": str(file),
        "TXLAYER_START_TIMEOUT": "5s",
        "TXLAYER_BARRIER_URL": database,
        "TXLAYER_INBOX_URL": database,
    }


@pytest.mark.threat("log in to the machine of a service")
@pytest.mark.parametrize(("words", "command"), EVERY)
def test_no_command_shows_a_password(
    words: tuple[str, ...],
    command: Any,
    environ: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = [*words, *arguments(command)]
    if words[-1] == "run":
        # It takes the process for itself: signals, the log.
        done = run_program(
            [sys.executable, "-m", "txlayer", *line, "--log-level", "DEBUG"],
            within=60,
            env={**os.environ, **environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )
        said = done.stdout + done.stderr
    else:
        caplog.set_level(logging.DEBUG)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        _, out, err = run_txlayer(*line, capsys=capsys)
        said = out + err + caplog.text

    assert said
    assert SENTINEL not in said


def test_a_password_on_a_command_line_ends_the_command_before_anybody_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (("topics", "check"), ("coordinator", "run"), ("tx", "list")):
        code, out, err = run_txlayer(*words, "-X", f"sasl.password={SENTINEL}", capsys=capsys)

        assert 2 == code
        assert "sasl.password.file=PATH" in err
        assert SENTINEL not in out + err
