"""A process of the shop as its parent sees it: opened, dying, opened again, telling how it goes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coordinators import environment

STOP_TIMEOUT_S = 30.0


class ShopTroubleError(Exception):
    """A process of the shop ended though nobody killed it; its log says why."""


class Child:
    """One process of a program at a time; it writes one JSON line for each `told`. It ends when this process ends."""

    name = "a process"

    def __init__(self, line: Sequence[str], *, log_file: Path) -> None:
        self._line = [sys.executable, *line]
        self._log_file = log_file
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()
        self.opening_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()

    @property
    def pid(self) -> int:
        """Of the one that runs now, or died last."""
        if self._process is None:
            raise ShopTroubleError(f"{self.name} was never opened")
        return self._process.pid

    def open(self, *, dies_after: int | None) -> None:
        """Open it; with `dies_after` it is killed after so many local commits."""
        self.opening_count += 1
        mortal: Sequence[str] = () if dies_after is None else (f"--dies-after={dies_after}",)
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*self._line, f"--opening={self.opening_count}", *mortal],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._reader.start()

    def has_died(self) -> bool:
        """True when it was killed.

        Raises:
            ShopTroubleError: it ended in another way.
        """
        code = None if self._process is None else self._process.poll()
        if code is None:
            return False
        self._reader.join()
        if code != -signal.SIGKILL:
            raise ShopTroubleError(f"{self.name} ended with code {code}; see {self._log_file.name}")
        return True

    def close(self) -> None:
        """Let it end: nobody has a question any more.

        Raises:
            ShopTroubleError: it does not.
        """
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as exc:
            raise ShopTroubleError(f"{self.name} does not close") from exc
        if code:
            raise ShopTroubleError(f"{self.name} closed with code {code}")

    def take(self, told: dict[str, Any]) -> None:
        """One line of it."""
        raise NotImplementedError

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            if not line.endswith("\n"):
                return  # its last word, cut off
            self.take(json.loads(line))
