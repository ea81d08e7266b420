"""Real `txlayer responder run` processes: started, killed, stopped; each by its own pid, and what they logged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import wait_until

END_PATIENCE_S = 30.0


class ResponderProcess:
    """One of them; it is killed where its block ends."""

    def __init__(
        self,
        servers: str,
        namespace: str,
        group: str,
        *,
        folder: Path,
        name: str,
        arguments: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """It runs in `folder`, where its handlers are; `settings` are TXLAYER_ names without the prefix."""
        environ = {n: v for n, v in os.environ.items() if not n.startswith("TXLAYER_")}
        environ.update({f"TXLAYER_{n.upper()}": v for n, v in (settings or {}).items()})
        here = str(Path(__file__).resolve().parents[2])
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, environ.get("PYTHONPATH", "")]))
        self._log_file = folder / f"{name}.log"
        command = [
            sys.executable, "-m", "txlayer", "responder", "run", "-b", servers, "-n", namespace,
            "--group", group, "--log-format", "json", *arguments,
        ]  # fmt: skip
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, cwd=folder
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.is_running:
            self._process.kill()
        self._process.wait(END_PATIENCE_S)

    def terminate(self) -> None:
        """SIGTERM: the clean stop."""
        self._process.terminate()

    def wait(self, *, within: float = END_PATIENCE_S) -> int:
        """Its exit code."""
        return self._process.wait(within)

    def output(self) -> str:
        """Everything that it said."""
        return self._log_file.read_text(encoding="utf-8", errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines of one name."""
        lines = [line for line in self.output().splitlines() if line.startswith("{")]
        found: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if event["event"] == name]

    def wait_for(self, name: str, *, within: float = 60) -> dict[str, Any]:
        """Wait until it logged `name`."""

        def logged() -> list[dict[str, Any]]:
            assert self.is_running or self.events(name), self.output()[-3000:]
            return self.events(name)

        return wait_until(logged, within=within, what=name)[-1]
