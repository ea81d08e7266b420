"""The shop's process as its parent sees it: opened, dying, opened again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from coordinators import environment

STOP_TIMEOUT_S = 30.0
TILL = Path(__file__).with_name("till.py")


class ShopTroubleError(Exception):
    """The shop ended though nobody killed it; its log says why."""


class SellingShop:
    """One `till.py` at a time. It ends when this process ends."""

    def __init__(
        self, *, bootstrap_servers: str, database_file: Path, log_folder: Path, purchase_count: int
    ) -> None:
        self._line = [
            sys.executable, str(TILL), f"--bootstrap-servers={bootstrap_servers}",
            f"--database={database_file}", f"--purchases={purchase_count}",
        ]  # fmt: skip
        self._log_file = log_folder / "shop.log"
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()
        self.opening_count = 0
        self.accepted_count = 0
        self.refused_count = 0
        self.took_ms: list[float] = []
        self.is_sold_out = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join()

    @property
    def sold_count(self) -> int:
        """Purchases that are over, as far as the shop told."""
        return self.accepted_count + self.refused_count

    @property
    def pid(self) -> int:
        """Of the shop that is open now, or died last."""
        if self._process is None:
            raise ShopTroubleError("the shop was never opened")
        return self._process.pid

    def open(self, *, dies_after: int | None) -> None:
        """Open it; with `dies_after` it is killed after so many local commits."""
        self.opening_count += 1
        mortal: Sequence[str] = () if dies_after is None else (f"--dies-after={dies_after}",)
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*self._line, f"--opening={self.opening_count}", *mortal],
                env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip
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
            raise ShopTroubleError(f"the shop ended with code {code}; see {self._log_file.name}")
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
            raise ShopTroubleError("the shop does not close") from exc
        if code:
            raise ShopTroubleError(f"the shop closed with code {code}")

    def _listen(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            if not line.endswith("\n"):
                return  # its last word, cut off
            told = json.loads(line)
            self.accepted_count, self.refused_count = told["accepted"], told["refused"]
            self.took_ms += told["took_ms"]
            self.is_sold_out = bool(told.get("is_sold_out"))
