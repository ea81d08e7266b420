"""The commands of docs/howto/secure.md, run one after the other on a broker that trusts nobody."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.support.broker import create_topic, unique_name
from tests.support.commands import run_command, run_txlayer
from tests.support.tls_broker import TlsBroker
from txlayer.cli.main import build_app

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "secure.md"


def command_lines() -> list[list[str]]:
    """Every `txlayer` line of the page's shell blocks but those that run until they are told to stop."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["txlayer"] and "run" not in words]


def settings_of_page(guarded: TlsBroker, user: str, folder: Path, password: str) -> str:
    """The page's settings file with this broker's names in it."""
    (secret := folder / "password").write_text(password + "\n", "utf-8")
    text = re.search(r"```text\n(security\.protocol.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert text is not None
    return (
        text[1]
        .replace("/etc/txlayer/ca.pem", str(guarded.authority.root))
        .replace("/run/secrets/kafka-password", str(secret))
        .replace("=admin", f"={user}")
    )


def test_every_step_of_the_page_works_and_may_be_repeated(
    guarded: TlsBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = guarded.add_user()
    guarded.allow_everything(admin.principal)
    file = tmp_path / "client.properties"
    file.write_text(settings_of_page(guarded, admin.name, tmp_path, admin.password), "utf-8")
    monkeypatch.setenv("TXLAYER_BOOTSTRAP_SERVERS", guarded.sasl_servers)
    monkeypatch.setenv("TXLAYER_CLIENT_SETTINGS_FILE", str(file))
    namespace, suffix = unique_name("shop"), unique_name("")
    create_topic(guarded.open_servers, f"orders{suffix}")
    seen: dict[str, int] = {}

    for words in [*command_lines(), *command_lines()]:
        line = [w.replace("User:", f"User:{namespace}-") for w in words]
        line = [namespace if w == "shop" else f"orders{suffix}" if w == "orders" else w for w in line]
        code, _, err = run_txlayer(*line, capsys=capsys)
        seen[" ".join(words)] = code
        assert "" == err
    # The default namespace of the first step was never made; everything else is in order.
    checked, *others = seen
    assert ("topics check", 1) == (checked, seen[checked])
    assert {0} == {seen[words] for words in others}


def test_what_is_more_or_missing_is_shown_and_nothing_is_taken_away(
    guarded: TlsBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace, name = unique_name("shop"), unique_name("user")
    role = ["--principal", f"User:{name}", "-n", namespace, "-b", guarded.open_servers, "--json"]

    def run(command: str, *roles: str) -> tuple[int, list[str]]:
        given = [word for each in roles for word in ("--role", each)]
        code, out, _ = run_txlayer("topics", "acls", command, *given, *role, capsys=capsys)
        return code, [change["change"] for change in json.loads(out)["changes"]]

    assert (1, ["CreateAcl"] * 7) == run("check", "reader")
    assert (0, ["CreateAcl"] * 7) == run("apply", "reader")
    assert (0, []) == run("check", "reader")
    assert (0, []) == run("apply", "reader")
    assert 0 == run("apply", "operator", "reader")[0]
    assert (1, ["OtherAcl"] * 3) == run("check", "reader")
    assert (1, ["OtherAcl"] * 3) == run("apply", "reader")
    assert (0, []) == run("check", "operator", "reader")


def test_rights_on_a_cluster_without_an_authorizer_are_refused(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = broker.bootstrap_servers
    code, out, err = run_command(
        build_app(),
        "topics",
        "acls",
        "apply",
        "--role",
        "reader",
        "--principal",
        "User:a",
        "-b",
        servers,
        capsys=capsys,
    )

    assert (2, True) == (code, "no authorizer" in err), out + err
