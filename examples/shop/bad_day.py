"""A bad day: SIGKILL for coordinators, the shop and the loyalty service in the middle of the work, at moments that nobody chose."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from child import Child
from coordinators import COORDINATOR_COUNT, Coordinators
from rewarding import RewardingService
from selling import SellingShop

KILL_MOMENTS = ((0.15, 0.40), (0.55, 0.80))
"""Between which parts of all purchases a coordinator is killed."""
DEATHS = ((0.05, 0.25), (0.35, 0.55), (0.65, 0.85))
"""The same for the shop: it dies between a local commit and its resolution."""
LOYALTY_DEATH = (0.40, 0.60)
"""And for the loyalty service: between a local commit and its stored offset."""
RESTART_AFTER_S = 0.1
"""A supervisor's pause: systemd's default."""
ACCEPTED_PART = 0.9
"""So much of what the shop sells it accepts, roughly: it dies after so many local commits, not after so many purchases."""


@dataclass(frozen=True)
class Kill:
    """A process's death, and how much had happened by then."""

    who: str
    pid: int
    sold_count: int
    visible_count: int


class BadDay:
    """Kills and restarts as the purchases go on."""

    def __init__(
        self,
        coordinators: Coordinators,
        shop: SellingShop,
        loyalty: RewardingService,
        *,
        purchase_count: int,
        seed: int,
        tell: Callable[[str], None],
    ) -> None:
        dice = random.Random(seed)
        self._coordinators = coordinators
        self._shop = shop
        self._loyalty = loyalty
        self._tell = tell
        # Each of them once: the second one to die is the one that had taken over from the first.
        victims = dice.sample(range(COORDINATOR_COUNT), len(KILL_MOMENTS))
        moments = [round(purchase_count * dice.uniform(*between)) for between in KILL_MOMENTS]
        self._to_kill = list(zip(moments, victims, strict=True))
        self._to_restart: list[tuple[float, int]] = []
        self._deaths = [round(purchase_count * dice.uniform(*between)) for between in DEATHS]
        self._loyalty_death = max(1, round(purchase_count * dice.uniform(*LOYALTY_DEATH) * ACCEPTED_PART))
        self._to_reopen: dict[Child, float] = {}
        self.kills: list[Kill] = []

    def open_loyalty(self) -> None:
        """Start the loyalty service, and say when it will die."""
        self._loyalty.open(dies_after=self._loyalty_death)

    def open_shop(self) -> None:
        """Open the shop, and say when it will die next."""
        dies_after = None
        if self._deaths:
            left = max(1, self._deaths.pop(0) - self._shop.sold_count)
            dies_after = max(1, round(left * ACCEPTED_PART))
        self._shop.open(dies_after=dies_after)

    def go_on(self, *, visible_count: int) -> None:
        """Do what is due.

        Raises:
            CoordinatorTroubleError, ShopTroubleError: one died by itself.
        """
        self._coordinators.check_alive()
        sold_count = self._shop.sold_count
        while self._to_kill and self._to_kill[0][0] <= sold_count:
            _, number = self._to_kill.pop(0)
            pid = self._coordinators.kill(number)
            self._note(f"coordinator {number + 1}", pid, visible_count)
            self._to_restart.append((time.monotonic() + RESTART_AFTER_S, number))
        for child in (self._shop, self._loyalty):
            if child not in self._to_reopen and child.has_died():
                self._note(child.name, child.pid, visible_count)
                self._to_reopen[child] = time.monotonic() + RESTART_AFTER_S
        while self._to_restart and self._to_restart[0][0] <= time.monotonic():
            self._restart()
        for child, reopen_at in list(self._to_reopen.items()):
            if reopen_at <= time.monotonic():
                del self._to_reopen[child]
                self._reopen(child)

    def _note(self, who: str, pid: int, visible_count: int) -> None:
        sold_count = self._shop.sold_count
        self.kills.append(Kill(who, pid, sold_count, visible_count))
        self._tell(f"killed {who} (pid {pid}, SIGKILL) after {sold_count:,} purchases")

    def _restart(self) -> None:
        _, number = self._to_restart.pop(0)
        pid = self._coordinators.restart(number)
        self._tell(f"started coordinator {number + 1} again (pid {pid})")

    def _reopen(self, child: Child) -> None:
        if child is self._shop:
            self.open_shop()
        else:
            child.open(dies_after=None)
        self._tell(f"started {child.name} again (pid {child.pid})")
