"""A person at a terminal who types a page's lines: commands of `txlayer` run in the test's process, services in their own."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.commands import run_at_terminal, run_txlayer
from tests.support.pages import PAGES, ROOT, blocks
from tests.support.programs import run_program
from tests.support.waiting import wait_until

ASSIGNMENT = re.compile(r"[A-Z_]+=.*", re.DOTALL)
DATABASE = re.compile(r"postgresql\+psycopg://\S+")
NOTHING: Mapping[str, Any] = {}
PATIENCE_S = 60
READY = {
    "coordinator": "partitions.taken_over",
    "consumer": "queues.taken_over",
    "responder": "responder.started",
    "faststream": "FastStream app started successfully",
}
"""What a service says when it has begun its work."""


class Block(NamedTuple):
    """One block of shell of a page."""

    page: str
    text: str

    @property
    def lines(self) -> list[str]:
        """What is typed, without the comments."""
        joined = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in joined if shlex.split(line, comments=True)]

    @property
    def name(self) -> tuple[str, str]:
        """By which the lists of the test know it: its page and its first command, without a comment."""
        return self.page, re.sub(r"\s+#.*", "", self.lines[0])


def shell_blocks() -> list[Block]:
    """Every block of shell of every page, in order."""
    return [Block(str(page.relative_to(ROOT)), text) for page in PAGES for text in blocks(page, "sh")]


class Service:
    """What runs until it is told to stop."""

    def __init__(self, line: str, *, folder: Path, log: Path, ready: str) -> None:
        self._log = log
        with log.open("wb") as opened:
            self._process = subprocess.Popen(
                ["bash", "-c", f"exec env {line}"], cwd=folder, stdin=subprocess.DEVNULL, stdout=opened, stderr=opened
            )
        self._ready = ready
        said = re.search(r"--workers (\d+)", line)
        self._worker_count = 1 if said is None else int(said[1])

    def wait_until_ready(self) -> None:
        """Wait until it said that it works, for each of its workers."""

        def is_ready() -> bool:
            assert self._process.poll() is None, self.said()
            return self.said().count(self._ready) >= self._worker_count

        wait_until(is_ready, within=PATIENCE_S, what=f"{self._ready}: {self._process.args!r}")

    def said(self) -> str:
        """Its log."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> None:
        """As a supervisor does; it must end by itself, with 0."""
        self._process.terminate()
        code = self._process.wait(PATIENCE_S)
        assert 0 == code, f"{self._process.args!r} ended with {code}: {self.said()[-3000:]}"

    def kill(self) -> None:
        """Whatever happened, it is gone."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_S)


class Terminal:
    """Settings, a folder, and one service at a time."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, words: Mapping[str, str]
    ) -> None:
        """`words` are those of the pages that are called otherwise here."""
        self.folder = folder
        self.words = dict(words)
        self._patch = patch
        self._capsys = capsys
        self._service: Service | None = None
        self._count = 0
        patch.chdir(folder)
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        paths = [str(folder), str(ROOT), str(ROOT / "spark")]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))

    def type_block(
        self, block: Block, *, codes: Mapping[str, int] = NOTHING, answers: Mapping[str, str] = NOTHING
    ) -> str:
        """What its lines print; `codes` and `answers` by words of their line: what is not 0, what a person says."""
        said = []
        for line in block.lines:
            code = next((code for words, code in codes.items() if words in line), 0)
            answer = next((answer for words, answer in answers.items() if words in line), None)
            said.append(self.type(line, code=code, answer=answer))
        return "".join(said)

    def type(self, line: str, *, code: int = 0, answer: str | None = None) -> str:
        """What a line prints, which ends with `code`; a service goes on, and has nothing said yet."""
        own = DATABASE.sub(f"sqlite:///{self.folder}/shop.db", line)
        for said, here in self.words.items():
            own = own.replace(said, here)
        typed = shlex.split(own, comments=True)
        if typed[0] == "pip":  # what it would bring is here; tests/integration/test_package.py installs the wheel
            return ""
        if "run" in typed[:6]:
            self.start(own, ready=next(text for word, text in READY.items() if word in typed))
            return ""
        while typed and (typed[0] == "export" or ASSIGNMENT.fullmatch(typed[0])):
            name, _, value = typed.pop(0).partition("=")
            if value:
                self._patch.setenv(name, value)
        if not typed:
            return ""
        ended, out = self._run(own, typed, answer=answer)
        assert code == ended, f"{own}\nended with {ended}: {out}"
        return out

    def start(self, line: str, *, ready: str) -> None:
        """A service in a terminal of its own; the one before is stopped."""
        self.stop()
        self._count += 1
        log = self.folder / f"service-{self._count}.log"
        self._service = Service(line, folder=self.folder, log=log, ready=ready)
        self._service.wait_until_ready()

    def stop(self) -> None:
        """Stop the service."""
        if self._service is not None:
            self._service.stop()
            self._service = None

    @contextmanager
    def closing(self) -> Iterator[Terminal]:
        """Nothing runs on behind it."""
        try:
            yield self
            self.stop()
        finally:
            if self._service is not None:
                self._service.kill()

    def _run(self, line: str, typed: list[str], *, answer: str | None) -> tuple[int, str]:
        program, *arguments = typed
        if program != "txlayer":
            ran = run_program(["bash", "-c", line], within=PATIENCE_S, cwd=self.folder)
            return ran.returncode, ran.stdout + ran.stderr
        if answer is not None:
            return run_at_terminal(*arguments, answer=answer)
        file = arguments.pop() if ">" in arguments else None
        code, out, err = run_txlayer(*(word for word in arguments if word != ">"), capsys=self._capsys)
        if file is not None:
            (self.folder / file).write_text(out, encoding="utf-8")
        return code, out + err
