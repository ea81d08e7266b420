"""The options of `txlayer console` that say who may use it, and the command that makes a line of the file of users."""

import io
from pathlib import Path

import pytest
import typer

from tests.support.certificates import Authority
from tests.support.commands import run_command, run_txlayer
from txlayer.adapters.ports import TopicLimits
from txlayer.cli.console import AccessOptions, user
from txlayer.config import SystemTopics
from txlayer.console.people import Passwords, Person, Role, parse_users
from txlayer.errors import ConfigError, NotAuthorisedError, TopicMismatchError, UsageError
from txlayer.operate.operators import check_operator_rights, this_user

PASSWORD = "correct horse battery"


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(user)
    return made


def test_a_line_is_made_of_a_password_on_standard_input(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\nmore\n"))

    code, line, err = run_command(app, "alice", "--role", "settle", capsys=capsys)

    assert (0, "") == (code, err)
    assert Person("alice", Role.SETTLE) == Passwords(parse_users(line, name="--users")).person("alice", PASSWORD)


def test_a_password_that_cannot_be_used_is_not_shown(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("too-short\n"))

    code, out, err = run_command(app, "alice", capsys=capsys)

    assert (2, "") == (code, out)
    assert "too-short" not in err


def test_no_option_takes_a_password(app: typer.Typer) -> None:
    found = typer.main.get_command(app)

    assert not [name for p in found.params for name in p.opts if "pass" in name]


@pytest.mark.parametrize("option", ["--trace-address", "--report-address"])
def test_a_link_that_is_no_address_of_a_page_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_txlayer("console", option, "javascript:alert(1)", capsys=capsys)

    assert (2, "") == (code, out)
    assert option in err


def test_without_options_a_request_is_of_the_user_of_this_process() -> None:
    rules = AccessOptions().rules("127.0.0.1")

    assert (this_user(), False, {}) == (rules.local_name, rules.is_writable, AccessOptions().tls())


def test_a_name_of_the_console_counts_in_any_case() -> None:
    rules = AccessOptions(public_name=["Console.Example.ORG"]).rules("127.0.0.1")

    assert {"console.example.org"} == rules.public_names


@pytest.mark.parametrize(
    "name", ["a b", "", "https://console.example.org", "console.example.org:8480", "a..b", "a%b", "ü.example"]
)
def test_a_name_that_no_browser_says_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--public-name"):
        AccessOptions(public_name=[name]).rules("127.0.0.1")


def test_the_files_of_tls_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    first, second = (Authority(tmp_path / n, n).sign("console") for n in ("a", "b"))
    good = AccessOptions(tls_cert=str(first.certificate), tls_key=str(first.key))

    assert {"ssl_certfile", "ssl_keyfile"} == good.tls().keys()
    for cert, key in (
        (first.certificate, None),
        (None, first.key),
        (first.certificate, second.key),
        (first.key, first.certificate),
        (tmp_path / "missing.pem", first.key),
    ):
        options = AccessOptions(tls_cert=None if cert is None else str(cert), tls_key=None if key is None else str(key))
        with pytest.raises(ConfigError, match="cannot be used"):
            options.tls()


def test_an_empty_file_of_users_is_no_console_for_everybody(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("# none yet\n")

    with pytest.raises(UsageError):
        AccessOptions(users=str(tmp_path / "users")).rules("127.0.0.1")
    with pytest.raises(UsageError):
        AccessOptions(users="").rules("127.0.0.1")


# --- the operator's rights --------------------------------------------------------------------------------------------


def limits_of(**is_writable: bool) -> dict[str, TopicLimits]:
    whole = TopicLimits(1, None)
    return {f"shop.{name}": whole._replace(is_writable=value) for name, value in is_writable.items()}


@pytest.mark.parametrize("missing", ["op", "locks"])
def test_acting_needs_the_rights_of_an_operator(missing: str) -> None:
    topics = SystemTopics("shop")
    check_operator_rights(limits_of(op=True, locks=True).get, topics)

    with pytest.raises(NotAuthorisedError, match="operator") as raised:
        check_operator_rights(limits_of(**{"op": True, "locks": True, missing: False}).get, topics)
    with pytest.raises(TopicMismatchError, match="no such topic"):
        check_operator_rights(limits_of(**{name: True for name in ("op", "locks") if name != missing}).get, topics)

    assert f"shop.{missing}" == raised.value.resource
