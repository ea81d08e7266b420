"""Runs N coordinator processes: signals, restarts, exit codes. The processes share no state; they meet in the consumer group."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

logger = logging.getLogger("txlayer.coordinator")

PROGRAM = (sys.executable, "-P", "-m", "txlayer")
"""This program. -P: without it, Python would run a `typer.py` of the working directory, with every secret of the environment."""

FINAL_CODES = frozenset({2, 5, 70})
"""Exit codes that a restart would repeat: settings, permissions, a broken invariant."""

RESTART_WAIT_S = 0.5
RESTART_WAIT_MAX_S = 15.0
"""A worker that died restarts after 0.5 s, then with growing intervals. After a minute of work the count begins anew."""
HEALTHY_AFTER_S = 60.0
STOP_PATIENCE_S = 30.0
"""Time for a worker to finish its Kafka transaction and leave the group; after it, the worker is killed."""


class StopSignal:
    """Set by SIGTERM and SIGINT. The second one ends the process with the signal's default action."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def install(self) -> None:
        """Install the signal handlers. Only the main thread may call this."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def watch(self, stream: IO[bytes]) -> None:
        """Stop when `stream` ends: the parent holds its other end, and it closes even if the parent is killed with -9."""

        def wait_for_end() -> None:
            # Not stream.read: its lock would be held when the interpreter ends, and would end it with SIGABRT.
            while os.read(stream.fileno(), 1):
                pass
            self._event.set()

        threading.Thread(target=wait_for_end, name="txlayer-parent", daemon=True).start()

    def is_set(self) -> bool:
        """True after a signal."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a signal. Returns True if there was one."""
        return self._event.wait(timeout_s)

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._event.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._event.set()


class _Worker:
    """One process and the times of its restarts."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self._command = command
        self._started_at = 0.0
        self._failure_count = 0
        self._start_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._started_at = time.monotonic()
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE)  # noqa: S603 - our own program
        logger.info("worker.started", extra={"worker": self.number, "pid": self.process.pid})

    def look(self) -> int | None:
        """Restart it if it died and its time has come. Returns an exit code that must end all workers, else None."""
        now = time.monotonic()
        if self.process is None:
            if now >= self._start_at:
                self.start()
            return None
        code = self.process.poll()
        if code is None:
            return None
        if code in FINAL_CODES:
            return code
        if now - self._started_at > HEALTHY_AFTER_S:
            self._failure_count = 0
        wait_s = min(RESTART_WAIT_S * 2**self._failure_count, RESTART_WAIT_MAX_S)
        self._failure_count += 1
        self._start_at = now + wait_s
        self.process = None
        logger.error("worker.died", extra={"worker": self.number, "exit_code": code, "restart_in_s": wait_s})
        return None

    def end(self) -> None:
        if self.process is None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            logger.error("worker.killed", extra={"worker": self.number, "pid": self.process.pid})  # noqa: TRY400 - no traceback helps
            self.process.kill()
            self.process.wait()


def supervise(
    command: Sequence[str],
    *,
    worker_count: int,
    wait: Callable[[float], bool],
    own_arguments: Callable[[int], Sequence[str]] | None = None,
) -> int:
    """Run `worker_count` processes of `command` until `wait` returns True. Returns 0, or the exit code that a restart would repeat.

    `own_arguments` returns additional arguments for a worker, by its number.

    A worker that dies otherwise is restarted, with growing intervals. Workers end when this process ends: they watch
    their standard input.
    """
    workers = [
        _Worker(number, [*command, *(own_arguments(number) if own_arguments is not None else ())])
        for number in range(worker_count)
    ]
    try:
        for worker in workers:
            worker.start()
        while not wait(0.2):
            for worker in workers:
                code = worker.look()
                if code is not None:
                    return code
        return 0
    finally:
        threads = [threading.Thread(target=worker.end) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
