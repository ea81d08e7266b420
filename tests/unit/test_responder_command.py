"""`txlayer responder run`: what it refuses, in one line, and what it never shows."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import run_command
from txlayer.cli import responder
from txlayer.cli.exits import ExitCode
from txlayer.cli.services import load
from txlayer.errors import ConfigError

URL = "postgresql+psycopg://shop:s3cret@127.0.0.1:1/shop"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; what is imported from there is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("orders", "MODULE:FUNCTION"),
        (":check", "MODULE:FUNCTION"),
        ("no_such_module_here:check", "no module named no_such_module_here"),
        ("json:check", "json has no check"),
        ("json:__name__", "str is not callable"),
    ],
)
def test_a_handler_that_is_not_there_is_a_line_and_the_code_of_usage(
    handler: str, words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del here
    code, _, err = run_command(responder.app, "run", "--group", "g", "--handler", handler, capsys=capsys)

    assert ExitCode.USAGE == code
    assert words in err
    assert 1 == len(err.strip().splitlines())


def test_a_module_that_raises_is_told_by_kind_and_place_and_not_by_its_words(here: Path) -> None:
    (here / "broken_shop.py").write_text("import os\nraise RuntimeError('s3cret')\n")

    with pytest.raises(ConfigError, match=r"RuntimeError at .*broken_shop\.py:2") as raised:
        load("broken_shop:check", folder=str(here), name="--handler", kind="function")
    assert "s3cret" not in str(raised.value)


def test_a_handler_is_found_where_one_stands(here: Path) -> None:
    (here / "my_shop.py").write_text(
        "class Orders:\n    @staticmethod\n    def check(request):\n        return request\n"
    )

    assert 7 == load("my_shop:Orders.check", folder=str(here), name="--handler", kind="function")(7)


def test_nobody_to_ask_and_two_to_ask_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_command(responder.app, "run", "--group", "g", capsys=capsys)
    assert (ExitCode.USAGE, True) == (code, "TXLAYER_BARRIER_URL" in err)

    arguments = ("--handler", "json:loads", "--on-parked", "json:no_such")
    code, _, err = run_command(responder.app, "run", "--group", "g", *arguments, capsys=capsys)
    assert (ExitCode.USAGE, True, True) == (code, "--on-parked" in err, "json has no no_such" in err)

    arguments = ("--handler", "json:loads", "--barrier-url", "sqlite:///x")
    code, _, err = run_command(responder.app, "run", "--group", "g", *arguments, capsys=capsys)
    assert (ExitCode.USAGE, True) == (code, "one of them" in err)


@pytest.mark.parametrize(
    ("is_in_environment", "code", "said"),
    [(True, ExitCode.UNAVAILABLE, "database"), (False, ExitCode.USAGE, "TXLAYER_BARRIER_URL_FILE")],
)
def test_a_database_that_is_down_is_code_3_and_its_address_stays_hidden(
    is_in_environment: bool,
    code: ExitCode,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["--barrier-url", URL]
    if is_in_environment:
        arguments = []
        monkeypatch.setenv("TXLAYER_BARRIER_URL", URL)
    ended, out, err = run_command(responder.app, "run", "--group", "g", *arguments, capsys=capsys)

    assert code == ended
    assert said in err
    for secret in ("s3cret", "shop", "127.0.0.1"):
        assert secret not in out + err


def test_a_database_without_the_table_names_what_creates_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{here}/shop.db"
    code, _, err = run_command(responder.app, "run", "--group", "g", "--barrier-url", url, capsys=capsys)

    assert (ExitCode.USAGE, True) == (code, "txlayer barrier create" in err)


def test_no_broker_is_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--handler", "json:loads", "-b", "127.0.0.1:1", "--start-timeout", "300ms")
    code, _, err = run_command(responder.app, "run", "--group", "g", *arguments, capsys=capsys)

    assert (ExitCode.UNAVAILABLE, True) == (code, "no broker" in err)
