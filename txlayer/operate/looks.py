"""Looks at the cluster that are taken beside what shows them: a page of the console, or the screen of `txlayer top`."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from txlayer.operate import problem_of
from txlayer.runtime.environment import REAL, Environment

logger = logging.getLogger("txlayer.operate")

LOOK_SHARE = 19
"""A look is not repeated for so many times as long as it took: looks take one part in twenty of the time at most."""


class Look(NamedTuple):
    """What was seen of the cluster last."""

    at_ms: int = 0  # when reading began; 0: nothing was seen yet
    result: Any = None
    problem: str = ""  # why it could not be read again


@dataclass(slots=True)
class _Kept:
    look: Look = field(default_factory=Look)
    ended_at: float = float("-inf")
    took_s: float = 0.0
    is_reading: bool = False
    is_stale: bool = False


class Looks:
    """Keeps the newest look of each name; names are the program's own, and few. What was seen stays while it cannot be read again. Thread-safe."""

    def __init__(self, environment: Environment = REAL) -> None:
        self._environment = environment
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def newest(self, name: str, read: Callable[[], Any], *, age_s: float) -> Look:
        """What was seen last. If that is older than `age_s`, reading begins; what takes long to read is read less often."""
        kept = self._kept_of(name)
        with self._lock:
            is_old = self._environment.clock() - kept.ended_at > max(age_s, LOOK_SHARE * kept.took_s)
            begins = is_old and not kept.is_reading
            kept.is_reading |= begins
        if begins:
            self._environment.background.start(partial(self.read, name, read), name=f"txlayer-{name}")
        return kept.look

    def forget(self, name: str) -> None:
        """Something was changed: what was seen is old, and so is what is being read."""
        kept = self._kept_of(name)
        with self._lock:
            kept.ended_at, kept.is_stale = float("-inf"), True

    def read(self, name: str, read: Callable[[], Any]) -> None:
        """Read it in the caller's thread."""
        kept, environment = self._kept_of(name), self._environment
        kept.is_stale = False
        began, at_ms = environment.clock(), int(environment.wall_clock() * 1000)
        try:
            kept.look = Look(at_ms, read())
        except Exception as exc:  # noqa: BLE001 - border of a thread
            kept.look = kept.look._replace(problem=problem_of(exc, logger, "look.failed", look=name))
        with self._lock:
            kept.took_s = environment.clock() - began
            kept.ended_at = float("-inf") if kept.is_stale else began + kept.took_s
            kept.is_reading = False

    def _kept_of(self, name: str) -> _Kept:
        with self._lock:
            return self._kept.setdefault(name, _Kept())
