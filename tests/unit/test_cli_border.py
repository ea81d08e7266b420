"""Where commands begin and end: shared options become settings, errors become one line and an exit code."""

import ast
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import txlayer
import txlayer.cli
import txlayer.testing
from tests.support.commands import run_txlayer
from tests.support.programs import run_program
from txlayer import errors
from txlayer.cli import output
from txlayer.cli.exits import INTERRUPTED, UNREAD, ExitCode, exit_code, guard
from txlayer.cli.main import GROUPS, SINGLE, build_app, needed
from txlayer.cli.options import client_config
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError, ConfigError, TxLayerError


def raising(error: BaseException) -> None:
    """A command that fails so."""
    raise error


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (errors.BrokerUnavailableError, 3),
        (errors.RetriableError, 3),
        (errors.ProducerFencedError, 4),
        (errors.NotAuthorisedError, 5),
        (errors.ConfigError, 2),
        (errors.LifecycleError, 2),
        (errors.InvalidTransitionError, 70),
        (errors.OutcomeUnknownError, 3),
        (errors.RefusedRecordError, 1),
        (errors.TxLayerError, 1),
    ],
)
def test_an_error_ends_the_program_with_what_a_supervisor_may_do(cls: type[TxLayerError], code: int) -> None:
    assert code == exit_code(cls())


def test_an_error_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = BrokerUnavailableError("no broker answered:\n refused", waited_ms=10_000)

    code = guard(lambda: raising(error))

    assert ExitCode.UNAVAILABLE == code
    assert ("", "error: no broker answered: refused (waited_ms=10000)\n") == capsys.readouterr()


def test_a_defect_is_told_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code = guard(lambda: raising(ZeroDivisionError("the defect")))

    assert ExitCode.BROKEN_INVARIANT == code
    assert "ZeroDivisionError: the defect\nerror: this is a defect" in capsys.readouterr().err


def test_a_good_end_an_interrupt_and_an_exit_code_of_ones_own() -> None:
    assert ExitCode.GOOD == guard(lambda: None)
    assert INTERRUPTED == guard(lambda: raising(KeyboardInterrupt()))
    with pytest.raises(SystemExit):
        guard(lambda: raising(SystemExit(7)))


def test_sigterm_ends_a_command_as_ctrl_c_does_and_leaves_no_half_a_file(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal, sys
from txlayer.cli import main, tx

def export():
    with tx._opened(pathlib.Path(sys.argv[1])) as file:
        file.write("half")
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

main.build_app = lambda _names: export
main.main()
"""

    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "parked.jsonl")], capture_output=True, check=False, timeout=60
    )

    assert (-signal.SIGTERM, b"", b"") == (ended.returncode, ended.stdout, ended.stderr)
    assert [] == list(tmp_path.iterdir())


def test_ctrl_c_while_modules_are_loaded_ends_a_command_as_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txlayer.cli, "import_module", lambda _: raising(KeyboardInterrupt()))

    with pytest.raises(SystemExit) as ended:
        txlayer.cli.run()

    assert INTERRUPTED == ended.value.code


def test_options_win_over_the_environment_and_client_settings_are_added() -> None:
    environ = {"TXLAYER_NAMESPACE": "shop", "TXLAYER_CLIENT_SETTINGS": "security.protocol=SASL_SSL;sasl.username=u"}

    config = client_config(
        ClientConfig,
        bootstrap_servers="broker:9093",
        client_setting=["sasl.username=other", "client.id=p"],
        environ=environ,
    )

    assert ("broker:9093", "shop") == (config.bootstrap_servers, config.namespace)
    assert {"security.protocol": "SASL_SSL", "sasl.username": "other", "client.id": "p"} == config.client_settings


def test_without_options_the_environment_counts() -> None:
    environ = {"TXLAYER_CLIENT_SETTINGS": "client.id=me", "TXLAYER_IS_INSECURE_ALLOWED": "true"}

    config = client_config(ClientConfig, client_setting=[], environ=environ)

    assert {"client.id": "me"} == config.client_settings
    assert config.is_insecure_allowed


def test_a_client_setting_of_the_wrong_form_is_refused_without_its_value() -> None:
    with pytest.raises(ConfigError) as refused:
        client_config(ClientConfig, client_setting=["=secret"], environ={})

    assert "secret" not in str(refused.value)


def command_names(group: Any, *before: str) -> Iterator[list[str]]:
    """The words of every command below a group."""
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from command_names(command, *before, name)
        else:
            yield [*before, name]


@pytest.mark.parametrize("words", list(command_names(typer.main.get_command(build_app()))), ids=" ".join)
def test_no_command_begins_with_an_unknown_setting_in_the_environment(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXLAYER_NAMESPAC", "secret")

    code, out, err = run_txlayer(*words, capsys=capsys)

    assert (2, "") == (code, out)
    assert "error: unknown setting in the environment" in err
    assert "name='TXLAYER_NAMESPAC'" in err
    assert "secret" not in err


def test_there_are_commands_in_every_group_and_those_that_stand_alone() -> None:
    found = [words[0] for words in command_names(typer.main.get_command(build_app()))]

    assert set(GROUPS) | set(SINGLE) == set(found)
    assert len(found) > 12


def bare_nouns(path: Path) -> list[str]:
    """Sentences of settings' errors that only name the thing: `error: a role` tells nobody what is wrong with it."""
    text = path.read_text("utf-8")
    tree = ast.parse(text if "ConfigError(" in text else "")
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    said = [
        str(n.args[0].value)
        for n in calls
        if isinstance(n.func, ast.Name)
        and n.func.id == "ConfigError"
        and n.args
        and isinstance(n.args[0], ast.Constant)
    ]
    return [s for s in said if re.match(r"(an?|one|what|where) ", s) and not _HAS_VERB.search(s)]


_HAS_VERB = re.compile(r" (is|are|has|would|rests|needs) ")


def test_an_error_says_what_is_wrong_and_not_only_with_what() -> None:
    package = Path(txlayer.__file__).parent

    found = {p.name: nouns for p in package.rglob("*.py") if (nouns := bare_nouns(p))}

    assert {} == found


@pytest.mark.parametrize("command", [["--version"], ["tx", "list", "--help"]], ids=["typer", "rich"])
def test_a_reader_that_has_gone_is_no_finding(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [sys.executable, "-u", "-m", "txlayer", *command],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)

    assert (UNREAD, "") == (ran.returncode, ran.stderr)


def test_an_output_that_is_full_is_no_defect() -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "txlayer", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )

    said = "error: the output could not be written: No space left on device; what the command did stands\n"
    assert (ExitCode.USAGE, said) == (ran.returncode, ran.stderr)


@pytest.mark.parametrize("command", ["tx list --namespace .", "nothing"])
def test_a_full_standard_error_makes_no_finding_of_an_error(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "txlayer", *command.split()]
        ran = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, check=False, timeout=60)

    assert (ExitCode.USAGE, b"") == (ran.returncode, ran.stdout)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("--version >&-", 0, ""),
        ("tx commit 2>&-", 2, ""),
        pytest.param("nothing 2>&-", 2, "", marks=pytest.mark.slow),
        ("console user zoe <&-", 2, "error: a password has 12 "),
    ],
)
def test_a_stream_that_is_closed_changes_no_exit_code(command: str, code: int, said: str) -> None:
    ran = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m txlayer {command}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (code, "", said) == (ran.returncode, ran.stdout, ran.stderr[: len(said)] if said else ran.stderr)


@pytest.mark.parametrize("command", ["apply", "widen"])
def test_a_number_of_partitions_that_the_client_refuses_is_a_wrong_argument(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_txlayer("topics", command, "--partitions", "100001", capsys=capsys)

    assert (2, "", True) == (code, out, "1<=x<=100000" in err)


def test_what_a_user_typed_is_printable_where_nothing_was_found(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    output.show([], lambda _: "", as_json=False, nothing=os.fsdecode(b"no topic \xff"))

    assert b"no topic \\udcff\n" == capsysbinary.readouterr().out


def test_where_nobody_answers_the_error_says_how_to_do_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())

    code = guard(lambda: output.ask("Store these offsets?"))

    assert ExitCode.USAGE == code
    assert (
        "error: the question got no answer, and nothing was changed; with --yes the command does not ask\n"
        in capsys.readouterr().err
    )


def test_a_question_stands_beside_the_output_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))

    output.ask("Store these offsets?")

    out, err = capsys.readouterr()
    assert ("", True) == (out.strip(), "Store these offsets?" in err)


def calls(node: ast.If) -> Iterator[ast.Call]:
    return (at for statement in node.body for at in ast.walk(statement) if isinstance(at, ast.Call))


def test_no_command_that_asks_takes_json_for_a_yes() -> None:
    asking = {"ask", "confirm", "_confirm"}
    found = [
        ast.unparse(node.test)
        for path in sorted(Path(output.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.If) and any(ast.unparse(at.func).split(".")[-1] in asking for at in calls(node))
    ]

    assert [] == [test for test in found if "json" in test]


def test_ctrl_c_instead_of_an_answer_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    person: Any = Terminal()
    person.readline = lambda *_: raising(KeyboardInterrupt())
    monkeypatch.setattr("sys.stdin", person)
    app = typer.Typer()
    app.command()(lambda: output.ask("Store these offsets?"))

    assert INTERRUPTED == guard(lambda: app([]))


def test_a_program_may_give_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\nn\n"))

    output.ask("Store these offsets?")
    with pytest.raises(typer.Abort):
        output.ask("Store these offsets?")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--version"], []),
        (["tx", "list", "--help"], ["tx"]),
        (["--log-format", "json", "coordinator", "run"], ["coordinator"]),
        (["topics", "apply", "--group", "dlq"], ["topics", "dlq"]),
        (["--help"], [*GROUPS, *SINGLE]),
        (["no-such-command"], [*GROUPS, *SINGLE]),
    ],
)
def test_only_the_commands_that_a_command_line_names_are_needed(words: list[str], names: list[str]) -> None:
    assert names == list(needed(words))


@pytest.mark.parametrize(
    ("module", "words", "never"),
    [
        ("main", ["--version"], ["confluent_kafka", "rich", "txlayer.adapters.ports", "txlayer.cli.tx"]),
        (
            "main",
            ["tx", "list", "--help"],
            ["confluent_kafka", "txlayer.operate.unsettled", "txlayer.cli.dlq", "txlayer.adapters.ports", "pydantic"],
        ),
        pytest.param("spark", ["--version"], ["matplotlib", "numpy"], marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_command_that_answers_at_once_imports_little(module: str, words: list[str], never: list[str]) -> None:
    program = (
        f"import atexit, sys; from txlayer.cli.{module} import main; "
        f"sys.argv = ['txlayer', *{words!r}]; "
        f"atexit.register(lambda: print(sorted(set({never!r}) & set(sys.modules)), file=sys.stderr)); main()"
    )

    ran = run_program([sys.executable, "-c", program], within=60, check=True)

    assert "[]" == ran.stderr.strip()


SERVICE = "coordinator.py"


def calls_without_patience(path: Path) -> list[str]:
    """Places where a coordinator's connections are made to be asked again and again."""
    return [
        f"{path.name}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "connect_coordinator"
        and "is_one_shot" not in {keyword.arg for keyword in node.keywords}
    ]


def test_every_command_but_the_coordinator_waits_as_long_as_a_person() -> None:
    folder = Path(txlayer.cli.__path__[0])
    found = {path.name: calls_without_patience(path) for path in folder.rglob("*.py")}

    assert 1 == len(found.pop(SERVICE))
    assert {} == {name: calls for name, calls in found.items() if calls}


def test_the_command_says_its_version_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_txlayer("--version", capsys=capsys)

    assert (0, f"txlayer {txlayer.__version__}\n", "") == answer


@pytest.mark.parametrize("name", txlayer.testing.__all__)
def test_every_public_name_of_testing_is_there(name: str) -> None:
    assert getattr(txlayer.testing, name) is not None
    assert name in dir(txlayer.testing)


def test_an_unknown_name_of_testing_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        txlayer.testing.nonsense  # noqa: B018 - the access is the subject
