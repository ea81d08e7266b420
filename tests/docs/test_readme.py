"""What README says works is run here: its code, its commands; and every promise that it makes has marked tests."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import txlayer
from tests.support.processes import CoordinatorProcess
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

LINE_COUNT_MAX = 150
SERVERS = "127.0.0.1:9092"
NAMESPACE = "txlayer"
"""The defaults: what README's commands use without saying so."""


def blocks(language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands(program: str) -> list[list[str]]:
    """The command lines of one program, without their comments."""
    lines = [
        line.partition("#")[0].split() for block in blocks("sh") for line in block.splitlines()
    ]
    return [words[1:] for words in lines if words[:1] == [program]]


def run(arguments: list[str], *, servers: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program of Python's, with `servers` as the default."""
    environ = os.environ | {"TXLAYER_BOOTSTRAP_SERVERS": servers, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def test_readme_stays_short() -> None:
    assert len(README.splitlines()) <= LINE_COUNT_MAX


@pytest.mark.kafka
def test_what_readme_shows_works(local_config: LocalConfig, tmp_path: Path) -> None:
    # A cluster of its own: README uses the default names, which no other test may share.
    with LocalBroker(config=local_config) as broker:
        servers = broker.bootstrap_servers
        program = "\n".join(blocks("python")).replace(SERVERS, servers)
        assert servers in program

        applied = run(["-m", "txlayer", "topics", "apply"], servers=servers, folder=tmp_path)
        assert (0, "") == (applied.returncode, applied.stderr)
        with CoordinatorProcess(servers, NAMESPACE, log_file=tmp_path / "log"):
            ran = run(["-c", program], servers=servers, folder=tmp_path)
            assert (0, "") == (ran.returncode, ran.stderr)
            assert "Resolution.COMMIT" in ran.stdout
            assert """b'{"order": 1, "cents": 1999}'""" in ran.stdout
            assert "('txl-id', b'order-1')" in ran.stdout

        looks = [words for words in commands("txlayer") if words[0] == "tx"]
        assert 3 == len(looks)
        for words in looks:
            looked = run(["-m", "txlayer", *words], servers=servers, folder=tmp_path)
            assert (0, "") == (looked.returncode, looked.stderr), words


def test_every_target_of_make_that_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {words[0] for words in commands("make")} | set(re.findall(r"`make (\w+)`", README))

    assert {"demo", "test"} <= named
    assert set() == {name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)}


def test_every_class_that_readme_names_is_public() -> None:
    named = set(re.findall(r"`(\w*Producer)`", README))

    assert named
    assert set() == {name for name in named if name not in txlayer.__all__}


def marked_promises() -> set[str]:
    """Every P1 to P11 that some test is marked with."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
                found.update(ast.literal_eval(argument) for argument in node.args)
    return found


def test_every_promise_that_readme_makes_has_marked_tests() -> None:
    made = re.findall(r"^\| (P\d+) \|", README, re.MULTILINE)

    assert [f"P{number}" for number in range(1, 12)] == made
    assert [] == [promise for promise in made if promise not in marked_promises()]
