"""The commands of docs/howto/doctor.md and docs/howto/verify.md run, and their tables name what the code has."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import create_topic
from tests.support.commands import run_txlayer
from txlayer.core.verification import Severity, Verdict, broken_promises, severity

ROOT = Path(__file__).resolve().parents[2]
DOCTOR, VERIFY = (ROOT / "docs" / "howto" / name for name in ("doctor.md", "verify.md"))


def commands(page: Path) -> list[str]:
    """The command lines of the page's blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def named_checks() -> set[str]:
    """The names of checks that stand in the rules as text."""
    found = set()
    for path in (ROOT / "txlayer" / "operate").glob("doctor.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(
                    re.findall(r"^(?:broker|topics|partitions|targets|coordinator|half|clock)\.[a-z-]+$", node.value)
                )
    return found - {"coordinator.py"}


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = page.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def arena(broker: Broker) -> Arena:
    arena = make_arena(broker.bootstrap_servers, partition_count=2, target_partitions=(1,))
    create_topic(arena.servers, f"{arena.namespace}-orders")
    return arena


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("page", "line"), [(p, c) for p in (DOCTOR, VERIFY) for c in commands(p)], ids=lambda v: getattr(v, "stem", None)
)
def test_a_command_of_the_page_runs(arena: Arena, capsys: pytest.CaptureFixture[str], page: Path, line: str) -> None:
    words = {"127.0.0.1:9092": arena.servers, "txlayer": arena.namespace, "orders": f"{arena.namespace}-orders"}
    program, *arguments = shlex.split(line, comments=True)

    code, out, err = run_txlayer(*(words.get(w, w) for w in arguments), capsys=capsys)

    # A namespace without coordinators is ill, and an empty one refutes nothing.
    assert ("txlayer", 1 if page is DOCTOR else 0, "") == (program, code, err)
    assert out


def test_every_check_stands_on_the_page() -> None:
    on_page = {row[0].strip("`") for row in rows(DOCTOR, "Every check")}

    assert named_checks() <= on_page
    assert {"acl.coordinator", "acl.producer", "untold"} == on_page - named_checks()


def test_every_fault_stands_on_the_page_with_the_promises_that_it_breaks() -> None:
    on_page = {
        name: set(re.findall(r"P\d", breaks))
        for names, breaks, _ in rows(VERIFY, "Findings, and what to do")
        for name in re.findall(r"`(\w+)`", names)
    }
    looked_at = {v for v in Verdict if severity(v) is not Severity.GOOD} - {Verdict.OUT_OF_WINDOW}

    assert on_page == {v.value: {p.name for p in broken_promises(v, is_rolled_back=True)} for v in looked_at}
