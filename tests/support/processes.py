"""Real txlayer processes: started, killed, frozen, stopped; each by its own pid, and what they logged."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import wait_until

END_PATIENCE_S = 30.0
PATIENCE_S = 90.0
"""How long a process may take to say a thing: a busy machine needs a minute until a coordinator has begun its work."""
ROOT = Path(__file__).resolve().parents[2]


class TxlayerProcess:
    """One `txlayer …` that runs until it is told to stop; its log lines go to a file of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_file: Path,
        settings: Mapping[str, str] | None = None,
        folder: Path | None = None,
        module: str = "txlayer",
        root: Path = ROOT,
    ) -> None:
        """`settings` are TXLAYER_ names without the prefix, such as `session_timeout`; it runs in `folder`, else here.

        `root` has its code. The folder that it runs in comes before that: name one if the code is not this one.
        """
        environ = {n: v for n, v in os.environ.items() if not n.startswith("TXLAYER_")}
        environ["PYTHONFAULTHANDLER"] = "1"
        paths = [str(root), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environ.update({f"TXLAYER_{n.upper()}": v for n, v in (settings or {}).items()})
        self._log_file = log_file
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *command, "--log-format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=folder,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until it ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None until it ended."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; a frozen process dies of it too."""
        if self.is_running:
            self._process.kill()
        self._process.wait(END_PATIENCE_S)

    def stacks(self) -> str:
        """End it with SIGABRT, and where every thread of it stood: for tests that see it hang."""
        self._process.send_signal(signal.SIGABRT)
        self._process.wait(END_PATIENCE_S)
        return self.output()[-6000:]

    def freeze(self) -> None:
        """SIGSTOP: it stays a member until its session ends, and wakes up with everything that it knew."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: the clean stop."""
        self._process.terminate()

    def wait(self, *, within: float = END_PATIENCE_S) -> int:
        """Its exit code."""
        return self._process.wait(within)

    def output(self) -> str:
        """Everything that it said."""
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Its log lines, all or those of one name; a last half line is left out."""
        found = []
        for line in self.output().splitlines():
            if line.startswith("{") and line.endswith("}"):
                event: dict[str, Any] = json.loads(line)
                if name is None or event["event"] == name:
                    found.append(event)
        return found

    def wait_for_any(self, names: Sequence[str], *, after: int, within: float = PATIENCE_S) -> None:
        """Wait until it logged one of `names` behind its first `after` lines."""

        def logged() -> bool:
            assert self.is_running, self.output()[-3000:]
            return any(event["event"] in names for event in self.events()[after:])

        wait_until(logged, within=within, what=f"one of {names}")

    def wait_for(self, name: str, *, count: int = 1, within: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Wait until it logged `name` so often."""

        def logged() -> list[dict[str, Any]]:
            found = self.events(name)
            if len(found) < count and not self.is_running:
                raise AssertionError(f"ended before {name}: {self.output()[-3000:]}")
            return found if len(found) >= count else []

        return wait_until(logged, within=within, what=f"{count} times {name}")


class CoordinatorProcess(TxlayerProcess):
    """One `txlayer coordinator run`."""

    def __init__(
        self, servers: str, namespace: str, *, log_file: Path, arguments: Sequence[str] = (), **given: Any
    ) -> None:
        """`given` as in `TxlayerProcess`."""
        command = ["coordinator", "run", "-b", servers, "-n", namespace, *arguments]
        super().__init__(command, log_file=log_file, **given)

    def wait_until_listening(self) -> None:
        """Wait until it handles signals; before that a SIGTERM ends it as it would end any program."""
        wait_until(lambda: "--target-topic" in self.output(), within=30, what="it has begun")


class ConsoleProcess(TxlayerProcess):
    """One `txlayer console`."""

    def __init__(
        self,
        servers: str,
        namespace: str,
        *,
        log_file: Path,
        arguments: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` as in `TxlayerProcess`."""
        command = ["console", "--port", "0", "-b", servers, "-n", namespace, *arguments]
        super().__init__(command, log_file=log_file, settings=settings)

    @property
    def address(self) -> str:
        """Where it listens; waits until it does."""

        def said() -> str:
            assert self.is_running, self.output()
            found = re.search(r"https?://127\.0\.0\.1:\d+", self.output())
            return "" if found is None else found[0]

        return wait_until(said, within=30, what="the console's address")
