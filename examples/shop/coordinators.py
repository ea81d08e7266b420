"""Two real coordinator processes, and what happens to them on a bad day."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shop import LOYALTY, ORDERS

PROGRAM = [sys.executable, "-P", "-m", "txlayer"]
COORDINATOR_COUNT = 2

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
LOOK_EVERY_S = 0.2


class CoordinatorTroubleError(Exception):
    """The coordinators did not do what they must; their logs say why."""


class Coordinators:
    """`txlayer coordinator run`, twice; they share the partitions. They end when this process ends, however it does."""

    def __init__(self, *, bootstrap_servers: str, log_folder: Path) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._log_folder = log_folder
        self._running: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()

    def __enter__(self) -> Self:
        self._running = [self._launch(number) for number in range(COORDINATOR_COUNT)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running:
            process.kill()  # nothing for those that were stopped
            process.wait()

    def wait_until_ready(self) -> None:
        """Return when each of them holds partitions.

        Raises:
            CoordinatorTroubleError: that takes more than 30 s, or one has ended.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self._sharing_count() < COORDINATOR_COUNT:
            self.check_alive()
            if time.monotonic() > deadline:
                raise CoordinatorTroubleError(f"the coordinators are not ready after {READY_TIMEOUT_S:g} s")
            time.sleep(LOOK_EVERY_S)

    def check_alive(self) -> None:
        """Nothing when both are running.

        Raises:
            CoordinatorTroubleError: one has ended that nobody here has killed.
        """
        for number, process in enumerate(self._running):
            if number not in self._killed and process.poll() is not None:
                raise CoordinatorTroubleError(f"coordinator {number + 1} ended with code {process.returncode}")

    def have_settled(self) -> bool:
        """True when everything that was said has been carried out, and nothing is undecided any more."""
        with ThreadPoolExecutor() as threads:
            listed = threads.submit(self._answer, "tx", "list", "--json")
            return not self._status()["op_lag"] and not listed.result()

    def kill(self, number: int) -> int:
        """SIGKILL, which no process can answer; returns the id of the one that is dead now.

        Raises:
            CoordinatorTroubleError: one was dead already.
        """
        self.check_alive()
        self._killed.add(number)
        process = self._running[number]
        process.kill()
        code = process.wait()
        if code != -signal.SIGKILL:
            raise CoordinatorTroubleError(f"coordinator {number + 1} had ended with code {code}")
        return process.pid

    def restart(self, number: int) -> int:
        """Start one again, as a supervisor would; its process id."""
        self._running[number] = self._launch(number)
        self._killed.discard(number)
        return self._running[number].pid

    def stop(self) -> None:
        """SIGTERM: each finishes its Kafka transaction and leaves the group.

        Raises:
            CoordinatorTroubleError: one ended otherwise, or not within 20 s.
        """
        for process in self._running:
            process.terminate()
        try:
            codes = [process.wait(STOP_TIMEOUT_S) for process in self._running]
        except subprocess.TimeoutExpired as exc:
            raise CoordinatorTroubleError(f"a coordinator has not stopped {STOP_TIMEOUT_S:g} s after SIGTERM") from exc
        if any(codes):
            raise CoordinatorTroubleError(f"the coordinators stopped with codes {codes}")

    def _launch(self, number: int) -> subprocess.Popen[bytes]:
        with (self._log_folder / f"coordinator-{number + 1}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own program
                # It watches the pipe: its end is this process's end.
                [
                    *self._command("coordinator", "run"),
                    "--watch-parent",
                    f"--target-topic={ORDERS}",
                    f"--target-topic={LOYALTY}",
                ],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo alone, which then ends the others in order
            )

    def _sharing_count(self) -> int:
        return sum(bool(member["partitions"]) for member in self._status()["members"])

    def _status(self) -> dict[str, Any]:
        """What `txlayer coordinator status` says, from this machine or any other."""
        status: dict[str, Any] = self._answer("coordinator", "status", "--json")
        return status

    def _answer(self, *words: str) -> Any:
        answer = subprocess.run(  # noqa: S603 - our own program
            self._command(*words), env=environment(), capture_output=True, check=False
        )
        if not answer.stdout:
            raise CoordinatorTroubleError(answer.stderr.decode())
        return json.loads(answer.stdout)

    def _command(self, *words: str) -> list[str]:
        return [*PROGRAM, *words, f"--bootstrap-servers={self._bootstrap_servers}"]


def apply_topics(bootstrap_servers: str) -> None:
    """Create txlayer's own topics: half, op and the others.

    Raises:
        CoordinatorTroubleError: they cannot be created.
    """
    answer = subprocess.run(  # noqa: S603 - our own program
        [*PROGRAM, "topics", "apply", f"--bootstrap-servers={bootstrap_servers}"],
        env=environment(),
        capture_output=True,
        check=False,
    )
    if answer.returncode != 0:
        raise CoordinatorTroubleError(answer.stderr.decode())


class Console:
    """`txlayer console`, if it is opened. It ends with the block."""

    def __init__(self, *, bootstrap_servers: str, log_folder: Path) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._log_file = log_folder / "console.log"
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def open(self) -> str:
        """Open it; its address.

        Raises:
            CoordinatorTroubleError: it ended at once; its log says why.
        """
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*PROGRAM, "console", "--port", "0", "--bootstrap-servers", self._bootstrap_servers],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        if self._process.stdout is not None:
            self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise CoordinatorTroubleError(f"the console did not open: {self._log_file}")
        return self.address


def environment() -> dict[str, str]:
    """For the processes of this demo."""
    # Somebody's own settings for txlayer are not meant for this demo.
    return {name: value for name, value in os.environ.items() if not name.startswith("TXLAYER_")}
