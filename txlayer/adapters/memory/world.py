"""Where a cluster in memory runs: its time, its dice, its network, and how its clients wait. Never: a rule of Kafka.

Everything in this package that would wait, ask the time, draw a number or talk to the cluster does it here, so that a
world with threads and one under a seed can run the same clients.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from txlayer.adapters.memory.faults import FaultPlan

T = TypeVar("T")

LOOK_S = 0.02
"""How often a wait looks at what only the clock changes."""


class World(Protocol):
    """What clients and cluster need of the world around them.

    `exchange` and `wait` are the only places where another actor may run in between.
    """

    random: random.Random
    """The only dice."""

    def now_ms(self) -> int:
        """The brokers' clock, in milliseconds since 1970: append times, time-outs, retention. It never goes back."""
        ...

    def monotonic(self) -> float:
        """The clients' clock, in seconds: deadlines and pauses."""
        ...

    def wait(self, is_ready: Callable[[], bool], *, timeout_s: float) -> bool:
        """Let others run until `is_ready()` or until `timeout_s` are over; the last answer of `is_ready`.

        `is_ready` asks nobody, takes no time and may be called any number of times, from any thread. What it says
        changes with exchanges, with `change` and with the brokers' clock, never with the clients' clock alone.
        """
        ...

    def exchange(self, client: str, request: str, act: Callable[[], T]) -> T:
        """One request of `client` to the cluster, and its answer; `act` is what the cluster does.

        `request` is Kafka's name of it ("Produce", "EndTxn"). The world may call `act` late, twice or never, but no two
        acts at the same time; an act that nobody waits for any more may raise `RefusedError`, which goes nowhere.

        Raises:
            NoAnswerError: the request or its answer was lost, before or after the act.
            RefusedError: the cluster's answer is no.
        """
        ...

    def change(self, act: Callable[[], T]) -> T:
        """Do `act` at once and alone, without a network; others may wait for what it changes. It is no place to switch."""
        ...

    def is_running(self, client: str) -> bool:
        """True while the background threads of `client` run and reach the cluster: while its heartbeats arrive."""
        ...


class ThreadWorld:
    """Real threads and the real clock. Thread-safe: one lock for the cluster, one condition for those who wait."""

    def __init__(self, *, faults: FaultPlan | None = None, seed: int | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311 - delays and partitions, no secret
        self.faults = FaultPlan() if faults is None else faults
        self._changed = threading.Condition(threading.RLock())
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """The wall clock, and what `advance` added."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def monotonic(self) -> float:
        """The monotonic clock."""
        return time.monotonic()

    def advance(self, *, ms: int) -> None:
        """Let the brokers' clock jump: transactions time out, records expire, sessions of crashed clients end."""
        with self._changed:
            self._ahead_ms += ms
            self._changed.notify_all()

    def wait(self, is_ready: Callable[[], bool], *, timeout_s: float) -> bool:
        """Sleep until `is_ready()` or until `timeout_s` are over."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not is_ready():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(min(left_s, LOOK_S))
            return True

    def exchange(self, client: str, request: str, act: Callable[[], T]) -> T:
        """One request, with the faults that are planned for it."""
        return self.faults.pass_on(client, request, partial(self.change, act), pause=self._pause)

    def change(self, act: Callable[[], T]) -> T:
        """Do it, and let those who wait look."""
        with self._changed:
            try:
                return act()
            finally:
                self._changed.notify_all()

    def is_running(self, client: str) -> bool:
        """True until a fault crashed it or cut it off."""
        return self.faults.is_connected(client)

    def _pause(self, seconds: float) -> None:
        self.wait(_never, timeout_s=seconds)


def _never() -> bool:
    return False
