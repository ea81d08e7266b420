"""What README says works is run here: its code, its commands; and every promise that it makes has marked tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import txlayer
from tests.support.marked_tests import marked
from tests.support.processes import CoordinatorProcess
from tests.support.programs import run_program
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROMISES = (ROOT / "docs/explanation/promises.md").read_text(encoding="utf-8")

LINE_COUNT_MAX = 100
SERVERS = "127.0.0.1:9092"
NAMESPACE = "txlayer"
"""The defaults: what README's commands use without saying so."""


def blocks(language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[list[str]]:
    """The command lines of one program, without their comments."""
    lines = [line.partition("#")[0].split() for block in blocks("sh") for line in block.splitlines()]
    return [words[1:] for words in lines if words[:1] == [program]]


def run(arguments: list[str], *, servers: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program of Python's, with `servers` as the default."""
    environ = os.environ | {"TXLAYER_BOOTSTRAP_SERVERS": servers, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", *arguments]
    return run_program(command, within=120, cwd=folder, env=environ)


def test_readme_stays_short() -> None:
    assert len(README.splitlines()) <= LINE_COUNT_MAX


@pytest.mark.kafka
def test_each_program_works_as_a_file_of_its_own_and_twice(local_config: LocalConfig, tmp_path: Path) -> None:
    # A cluster of its own: README uses the default names, which no other test may share.
    with LocalBroker(config=local_config) as broker:
        servers = broker.bootstrap_servers
        applied = run(["-m", "txlayer", "topics", "apply"], servers=servers, folder=tmp_path)
        assert (0, "") == (applied.returncode, applied.stderr)
        producing, consuming = (block.replace(SERVERS, servers) for block in blocks("python"))
        assert servers in producing
        assert servers in consuming
        sent, seen = [], []
        with CoordinatorProcess(servers, NAMESPACE, log_file=tmp_path / "log"):
            for _ in range(2):
                produced = run(["-c", producing], servers=servers, folder=tmp_path)
                assert (0, "") == (produced.returncode, produced.stderr)
                assert "Resolution.COMMIT: 'C'" in produced.stdout
                sent += re.findall(r"txn_id='(order-\w+)'", produced.stdout)
                consumed = run(["-c", consuming], servers=servers, folder=tmp_path)
                assert (0, "") == (consumed.returncode, consumed.stderr)
                seen += re.findall(r"""b'{"order": "(order-\w+)", "cents": 1999}'""", consumed.stdout)
        assert 2 == len(set(sent))
        assert sent == seen


def test_every_target_of_make_that_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {words[0] for words in commands("make")} | set(re.findall(r"`make (\w+)`", README))

    assert {"demo", "test"} <= named
    assert set() == {name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)}


def test_every_class_that_readme_imports_is_public() -> None:
    named = set(re.findall(r"^from txlayer import (\w+)$", README, re.MULTILINE))

    assert named
    assert set() == {name for name in named if name not in txlayer.__all__}


def test_every_promise_has_marked_tests() -> None:
    made = re.findall(r"^\| (P\d+) \|", PROMISES, re.MULTILINE)

    assert [f"P{number}" for number in range(1, 12)] == made
    assert [] == [promise for promise in made if promise not in marked("promise")]
