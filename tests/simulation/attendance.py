"""Who was there to be asked, and when: the membership of the groups that answer check-backs. Never the answers."""

from collections.abc import Sequence

from tests.simulation.world import START_MS, SimulatedWorld
from tests.support.history import Absence
from txlayer.adapters.memory import MemoryKafka
from txlayer.config import SystemTopics

MARGIN_S = 17.0
"""So long after a group was seen last it may be asked: coordinators believe an answer for 10 s, and may freeze for 4."""


class Attendance:
    """Exact about who comes, late about who goes: what it calls an absence is one."""

    def __init__(self, world: SimulatedWorld, kafka: MemoryKafka, groups: Sequence[str], topics: SystemTopics) -> None:
        self._world = world
        self._kafka = kafka
        self._names = {group: topics.check_group(group) for group in groups}
        self._away_since = dict.fromkeys(groups, -MARGIN_S)  # nobody was ever there
        self._found: list[Absence] = []
        world.on_join = self.look

    def look(self) -> None:
        """Somebody may have come or gone."""
        for group, name in self._names.items():
            is_there = bool(self._kafka.cluster.group(name).members)
            if is_there and group in self._away_since:
                self._end(group, self._away_since.pop(group))
            elif not is_there:
                self._away_since.setdefault(group, self._world.now)

    def absences(self) -> list[Absence]:
        """Until now."""
        found, self._found = self._found, []
        for group, since_s in self._away_since.items():
            self._end(group, since_s)
        self._found, found = found, found + self._found
        return found

    def _end(self, group: str, since_s: float) -> None:
        from_s = since_s + MARGIN_S
        if from_s < self._world.now:
            from_ms, until_ms = (START_MS + int(s * 1000) for s in (from_s, self._world.now))
            self._found.append(Absence(group, from_ms, until_ms))
