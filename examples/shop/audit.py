"""What Spark says of the day: every record of every topic is read again, and each transaction gets a verdict.

It knows neither the shop nor its database: what it judges is whether txlayer kept its promises. Its process starts in the
evening, while the last orders are handled: to start Java, and to read what is there, takes some ten seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from coordinators import environment

PROGRAM = Path(__file__).with_name("auditor.py")
JUDGED = (0, 1)
"""Its exit codes for a judgement: all is well, or a promise is broken."""
PAGE_FILE = "report.html"
LOG_FILE = "auditor.log"


class AuditTroubleError(Exception):
    """Spark could not judge; what it said."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The judgement, and where to read more of it."""

    verdicts: dict[str, int]
    """Transactions by verdict."""
    is_good: bool
    """No promise is broken."""
    page: str
    took_s: float
    """From when nothing was under way any more to the page."""


class Auditor:
    """One `auditor.py`, which reads into `folder` and writes the page there. It ends when this process ends."""

    def __init__(self, *, bootstrap_servers: str, folder: Path) -> None:
        self._line = [sys.executable, str(PROGRAM), f"--bootstrap-servers={bootstrap_servers}", f"--folder={folder}"]
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # Java too, which it started
            self._process.communicate()

    @property
    def is_open(self) -> bool:
        """Whether it was started."""
        return self._process is not None

    def open(self) -> subprocess.Popen[str]:
        """Let it start and read what is there; others may go on."""
        with (self._folder / LOG_FILE).open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                self._line,
                env=_environment(),
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self._process

    def begin(self) -> subprocess.Popen[str]:
        """Have the rest read and judged: nothing is under way any more. It does not wait for that."""
        process = self._process or self.open()
        self._began = time.monotonic()
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended: `judge` says why
                process.stdin.write("judge\n")
                process.stdin.flush()
        return process

    def judge(self) -> Audit:
        """The judgement, when the page is written; it begins now, unless it has.

        Raises:
            AuditTroubleError: it could not run to its end.
        """
        process = self._process if self._process and self._began else self.begin()
        told, _ = process.communicate()
        if process.returncode not in JUDGED or not told:
            said = (self._folder / LOG_FILE).read_text("utf-8", "replace")
            raise AuditTroubleError(said.strip() or f"{PROGRAM.name}: {process.returncode}")
        answer = json.loads(told)
        return Audit(
            verdicts=answer["verdicts"],
            is_good=process.returncode == 0,
            page=answer["page"],
            took_s=time.monotonic() - self._began,
        )


def _environment() -> dict[str, str]:
    """As for the others, and where Java and jars are on this machine."""
    machine = ("HOME", "JAVA_HOME", "KAFKA_HOME", "MAVEN_URL")
    named = {name: os.environ.get(name) for name in map("TXLAYER_{}".format, machine)}
    return {**environment(), **{name: value for name, value in named.items() if value}}
