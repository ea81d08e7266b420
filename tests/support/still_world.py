"""A world for the cluster in memory in which nothing happens by itself: one thread, a clock that tests and waits move."""

import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from txlayer.adapters.memory import FaultPlan

T = TypeVar("T")

START_MS = 1_700_000_000_000


class StillWorld:
    """Time passes only by `advance` and by waiting in vain."""

    def __init__(self) -> None:
        self.random = random.Random(7)
        self.faults = FaultPlan()
        self.passed_s = 0.0
        self.requests: list[str] = []
        self.idle_wait_s = 0.0
        """A wait in vain lasts at least so long: hours pass in fewer turns of who waits."""

    def advance(self, *, ms: int) -> None:
        self.passed_s += ms / 1000

    def now_ms(self) -> int:
        return START_MS + round(self.passed_s * 1000)

    def monotonic(self) -> float:
        return self.passed_s

    def wait(self, is_ready: Callable[[], bool], *, timeout_s: float) -> bool:
        if is_ready():
            return True
        # A shorter time may be lost in rounding: then a loop that waits for the rest of a time-out never ends.
        self.passed_s += timeout_s and max(timeout_s, self.idle_wait_s, 1e-6)
        return is_ready()

    def exchange(self, client: str, request: str, act: Callable[[], T]) -> T:
        self.requests.append(request)
        return self.faults.pass_on(client, request, act, pause=self._pass)

    def change(self, act: Callable[[], T]) -> T:
        return act()

    def is_running(self, client: str) -> bool:
        return self.faults.is_connected(client)

    def _pass(self, seconds: float) -> None:
        self.wait(partial(bool), timeout_s=seconds)
