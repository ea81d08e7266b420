"""A bad day for the coordinators: SIGKILL in the middle of the work, twice, at moments that nobody chose."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from coordinators import COORDINATOR_COUNT, Coordinators

KILL_MOMENTS = ((0.15, 0.40), (0.55, 0.80))
"""Between which parts of all purchases each kill falls."""
RESTART_AFTER_S = 1.0
"""A supervisor's pause."""


@dataclass(frozen=True)
class Kill:
    """A coordinator's death, and how much had happened by then."""

    coordinator: int
    pid: int
    sold_count: int
    visible_count: int


class BadDay:
    """Kills and restarts coordinators as the purchases go on."""

    def __init__(
        self,
        coordinators: Coordinators,
        *,
        purchase_count: int,
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        dice = random.Random(seed)
        self._coordinators = coordinators
        self._tell = tell
        # Each of them once: the second one to die is the one that had taken over from the first.
        victims = dice.sample(range(COORDINATOR_COUNT), len(KILL_MOMENTS))
        moments = [round(purchase_count * dice.uniform(*between)) for between in KILL_MOMENTS]
        self._to_kill = list(zip(moments, victims, strict=True))
        self._to_restart: list[tuple[float, int]] = []
        self.kills: list[Kill] = []

    def go_on(self, *, sold_count: int, visible_count: int) -> None:
        """Do what is due.

        Raises:
            CoordinatorTroubleError: a coordinator died by itself.
        """
        self._coordinators.check_alive()
        while self._to_kill and self._to_kill[0][0] <= sold_count:
            _, number = self._to_kill.pop(0)
            pid = self._coordinators.kill(number)
            self.kills.append(Kill(number + 1, pid, sold_count, visible_count))
            self._to_restart.append((time.monotonic() + RESTART_AFTER_S, number))
            self._tell(
                f"killed coordinator {number + 1} (pid {pid}, SIGKILL) after {sold_count:,} purchases"
            )
        while self._to_restart and self._to_restart[0][0] <= time.monotonic():
            self._restart()

    def end(self) -> None:
        """Restart whoever still waits for it."""
        while self._to_restart:
            self._restart()

    def _restart(self) -> None:
        _, number = self._to_restart.pop(0)
        pid = self._coordinators.restart(number)
        self._tell(f"started coordinator {number + 1} again (pid {pid})")
