"""Stores of offsets that are under way while their consumer goes on, as a client's with a thread of its own. Never: faults."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.simulation.unguarded import Through
from tests.simulation.world import SimulatedWorld
from txlayer.adapters.ports import OnRevoke, StoredOffset, TopicPartition

DELAYS_S = (0.0, 0.0, 0.002, 0.02, 0.1)


class Unhurried(Through):
    """Connections whose group reader sends what was begun a little later, and may never say that it came to an end."""

    def __init__(self, connections: Any, world: SimulatedWorld, *, tells_end: bool) -> None:
        super().__init__(connections)
        self._world = world
        self._tells_end = tells_end

    def make_group_reader(self, group: str) -> Any:
        """A member of the consumer group, not started yet."""
        reader = self._connections.make_group_reader(group)
        if not self._tells_end:
            reader._reading.tells_end = False
        return UnhurriedReader(reader, self._world)


class UnhurriedReader(Through):
    """The cluster's own sends a store with the next read, and waits for the answer then."""

    def __init__(self, reader: Any, world: SimulatedWorld) -> None:
        super().__init__(reader)
        self._world = world
        self._held: dict[TopicPartition, StoredOffset] = {}
        self._send_at = 0.0

    def start(self, topics: Sequence[str], *, on_revoke: OnRevoke | None = None) -> None:
        """Join the group."""

        def revoke(is_lost: bool) -> None:
            self._send(is_late=is_lost)
            if on_revoke is not None:
                on_revoke(is_lost)

        self._connections.start(topics, on_revoke=revoke)

    def begin_store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """It is under way from now on."""
        assert not self._held, "the one before has not been told yet"
        self._held = dict(offsets)
        self._send_at = self._world.now + self._world.random.choice(DELAYS_S)

    def take_stored(self) -> bool:
        """True once after it was acknowledged."""
        return not self._held and bool(self._connections.take_stored())

    def store_offsets(self, offsets: Mapping[TopicPartition, StoredOffset], *, timeout_s: float) -> None:
        """What was begun lands first."""
        if self._held:
            held, self._held = self._held, {}
            self._connections.store_offsets(held, timeout_s=timeout_s)
        self._connections.store_offsets(offsets, timeout_s=timeout_s)

    def read(self, *, record_count_max: int, timeout_s: float) -> Any:
        """As every member reads."""
        if self._held:
            # Who waits for records is woken by the acknowledgement.
            timeout_s = min(timeout_s, max(self._send_at - self._world.now, 0.0))
            self._send()
        return self._connections.read(record_count_max=record_count_max, timeout_s=timeout_s)

    def _send(self, *, is_late: bool = False) -> None:
        if self._held and (is_late or self._world.now >= self._send_at):
            held, self._held = self._held, {}
            if not is_late:
                self._connections.begin_store(held)
