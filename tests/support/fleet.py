"""Processes of one kind under chaos: there are always so many of them, whichever is killed or frozen. Never what they do."""

import random
from collections.abc import Callable

from tests.support.processes import TxlayerProcess
from tests.support.waiting import pause


class Fleet:
    """One thread uses it. Whoever started the processes ends them."""

    def __init__(self, kind: str, start: Callable[[], TxlayerProcess], *, count: int, frozen_s_max: float) -> None:
        """Start `count` of them."""
        self.kind = kind
        self.processes = [start() for _ in range(count)]
        self._start = start
        self._frozen_s_max = frozen_s_max
        self._killed: set[int] = set()

    def kill(self, rng: random.Random) -> str:
        """SIGKILL, and another one begins."""
        process = self._any(rng)
        self._killed.add(process.pid)
        process.kill()
        self.processes.append(self._start())
        return f"pid {process.pid}"

    def freeze(self, rng: random.Random) -> str:
        """SIGSTOP for a while: sometimes shorter than its session, sometimes until others have long gone on."""
        process = self._any(rng)
        seconds = rng.uniform(0.3, self._frozen_s_max)
        process.freeze()
        try:
            pause(seconds)
        finally:
            process.thaw()
        return f"pid {process.pid}"

    def heal(self) -> None:
        """All that are there run."""
        for process in self.processes:
            if process.is_running:
                process.thaw()

    def ended_wrongly(self) -> list[str]:
        """Those that nobody ended, and their last words."""
        return [
            f"{self.kind} pid {process.pid} ended with {process.exit_code}: {process.output()[-3000:]}"
            for process in self.processes
            if not process.is_running and process.pid not in self._killed
        ]

    def _any(self, rng: random.Random) -> TxlayerProcess:
        running = [process for process in self.processes if process.is_running]
        assert running, f"no {self.kind} runs: {self.ended_wrongly()}"
        return rng.choice(running)
