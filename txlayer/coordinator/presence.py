"""Tracks which producer groups have live responders; asks the broker in the background, so that a slow answer delays nothing."""

import logging
from collections.abc import Callable, Iterable

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.config import SystemTopics
from txlayer.core.checks import CheckSchedule
from txlayer.errors import TxLayerError
from txlayer.runtime.environment import Environment

logger = logging.getLogger("txlayer.coordinator")

LOOK_S = 2.0
"""Interval for asking about the groups with due check-backs."""
BELIEVE_S = 10.0
"""Maximum age of an answer."""
GIVE_UP_S = 30.0
"""A request that takes longer hangs (clients have been seen to: docs/explanation/kafka.md); the next one starts in parallel."""


class GroupPresence:
    """Knows which of the groups with due check-backs have members. Not thread-safe."""

    def __init__(self, connections: CoordinatorConnections, topics: SystemTopics, *, environment: Environment) -> None:
        self._connections = connections
        self._topics = topics
        self._clock: Callable[[], float] = environment.clock
        self._background = environment.background
        self._present: frozenset[str] = frozenset()
        self._known_at = 0.0
        self._asked_at = float("-inf")
        self._look_number = 0
        self._is_looking = False

    def of(self, schedules: Iterable[CheckSchedule]) -> frozenset[str]:
        """Groups with due check-backs that had members at the last answer. Asks again, in the background, if that is old."""
        now = self._clock()
        is_time = now - self._asked_at >= (GIVE_UP_S if self._is_looking else LOOK_S)
        # Collected only when it is time to ask: half records may name very many groups.
        groups = {g for s in schedules for g in s.groups_due()} if is_time else None
        if groups:
            if self._is_looking:
                logger.warning("groups.unknown", extra={"reason": f"no answer in {GIVE_UP_S:g} s"})
            self._asked_at = now
            self._is_looking = True
            self._look_number = number = self._look_number + 1
            names = {self._topics.check_group(group): group for group in groups}
            self._background.start(lambda: self._look(names, now, number), name="txlayer-presence")
        # Without an answer no group counts as present: due check-backs stay due.
        return self._present if now - self._known_at < BELIEVE_S else frozenset()

    def _look(self, names: dict[str, str], asked_at: float, number: int) -> None:
        try:
            found = self._connections.groups_with_members(names)
        except TxLayerError as exc:
            logger.warning("groups.unknown", extra={"reason": str(exc)})
        except Exception:
            # Border of a thread whose result is not read: the error is logged here or lost.
            logger.exception("groups.unknown")
        else:
            if number == self._look_number:
                self._present = frozenset(names[name] for name in found)
                self._known_at = asked_at
        finally:
            if number == self._look_number:
                self._is_looking = False
