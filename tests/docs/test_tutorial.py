"""docs/tutorial.md is followed from top to bottom, as a reader would: its files written, its commands run by bash."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.support.programs import run_program
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.server import free_ports

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")

PORT = "9092"
INSTALL = 'pip install "txlayer[local,sql]"'
STEP_S = 180


class Block(NamedTuple):
    """One block of code of the page."""

    language: str
    file: str
    content: str


BLOCKS = [
    Block(*found) for found in re.findall(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE)
]


class Reader:
    """Somebody with a folder of their own, a port that is free, and bash."""

    def __init__(self, folder: Path) -> None:
        self._port = str(free_ports(1)[0])
        self._folder = folder
        command = folder / "bin" / "txlayer"  # what pip would have made, of this checkout
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m txlayer "$@"\n')
        command.chmod(0o755)
        programs = [str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        paths = [str(ROOT), str(ROOT / "spark")]
        kept = {n: v for n, v in os.environ.items() if not n.startswith("TXLAYER_")}
        self._environ = kept | {
            "PATH": os.pathsep.join(programs),
            "PYTHONPATH": os.pathsep.join(paths),
            "TXLAYER_BOOTSTRAP_SERVERS": f"127.0.0.1:{self._port}",
        }

    def write(self, block: Block) -> None:
        """A file of the page."""
        text = block.content.replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self._port}")
        (self._folder / block.file).write_text(text, encoding="utf-8")

    def run(self, commands: str) -> str:
        """What a block of commands printed; the broker has a port and a folder that nobody else uses."""
        own = commands.replace("txlayer broker start", f"txlayer broker start --port {self._port}")
        own = own.replace("topics drain", "topics drain --timeout 150s")  # a machine full of tests
        own = re.sub(r"^(txlayer broker .*)$", r"\1 --data broker", own, flags=re.MULTILINE)
        ran = run_program(
            ["bash", "-e", "-c", own], within=STEP_S, cwd=self._folder, env=self._environ, stdin=subprocess.DEVNULL
        )
        assert 0 == ran.returncode, f"{own}\n{ran.stdout}{ran.stderr}\n{self._logs()}"
        return ran.stdout

    def sees(self, expected: str, *, commands: str) -> bool:
        """True when a block of commands prints the lines that the page shows, with anything for `…`."""
        printed = "\n".join(line.rstrip() for line in self.run(commands).splitlines())
        shown = re.escape(expected.rstrip()).replace("…", ".*")
        return re.search(f"^{shown}$", printed, re.MULTILINE) is not None

    def leave_nothing(self) -> None:
        """End what a page that failed half-way left running."""
        for file in self._folder.glob("*.pid"):
            with suppress(psutil.NoSuchProcess):  # it ended, as the page says
                process = psutil.Process(int(file.read_text()))
                if process.cwd() == str(self._folder):  # not a stranger with its number
                    process.kill()
        if (self._folder / "broker").exists():
            self.run("txlayer broker wipe --yes")

    def _logs(self) -> str:
        return "\n".join(file.read_text()[-2000:] for file in self._folder.glob("*.log"))


@pytest.fixture
def reader(tmp_path: Path, local_config: LocalConfig) -> Iterator[Reader]:  # noqa: ARG001 - jars and Java are there
    """Whatever happens, no process is left."""
    made = Reader(tmp_path)
    yield made
    made.leave_nothing()


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.promise("P1", "P2", "P8")
def test_who_follows_the_tutorial_sees_what_it_shows(reader: Reader) -> None:
    install, *blocks = BLOCKS
    assert INSTALL == install.content.splitlines()[-1]  # installed already, by those who test

    shown = 0
    for number, block in enumerate(blocks):
        if block.language == "python":
            reader.write(block)
        elif block.language == "sh":
            following = blocks[number + 1] if number + 1 < len(blocks) else None
            if following is None or following.language != "text":
                reader.run(block.content)
                continue
            # The page says it: the loyalty service may be a moment behind; then compare again.
            wait_until(
                partial(reader.sees, following.content, commands=block.content),
                within=120,
                what=f"the page's {following.content!r}",
            )
            shown += 1
    assert 7 == shown


def test_the_tutorial_kills_everything_after_and_before_the_local_commit() -> None:
    killed = re.findall(r"^python shop.py 50 (\w+) .*\nuntil grep -q paused .*\nkill -9 (.+)$", PAGE, re.MULTILINE)
    everything = "$(cat shop.pid) $(cat coordinator.pid) $(cat loyalty.pid)"

    assert [("after", everything), ("before", everything)] == killed
