"""Simulated client processes: one incarnation each, made of greenlets. Never: when they run (world.py)."""

from collections.abc import Callable

from greenlet import greenlet


class Process:
    """One incarnation of a client process."""

    __slots__ = (
        "actors",
        "frozen_until",
        "is_beating",
        "is_dead",
        "is_stopping",
        "name",
        "on_death",
        "rate",
        "slot",
        "wall_skew_s",
    )

    def __init__(self, slot: str, name: str, *, rate: float = 1.0, wall_skew_s: float = 0.0) -> None:
        self.slot = slot
        self.name = name
        self.rate = rate
        """Of its clock: seconds per second."""
        self.wall_skew_s = wall_skew_s
        self.is_dead = False
        self.is_stopping = False
        self.frozen_until = 0.0
        self.is_beating = False
        """While frozen: its heartbeats go on."""
        self.actors: list[Actor] = []
        self.on_death: Callable[[float], None] | None = None
        """Told how long the process shall be away."""


class Actor:
    """One greenlet of a process."""

    __slots__ = ("free_calls", "greenlet", "is_ready", "process", "token")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.token = 0
        """Grows with every reason to wake up: an older one means nothing any more."""
        self.free_calls = 0
        self.is_ready: Callable[[], bool] | None = None
        self.greenlet: greenlet = greenlet()
