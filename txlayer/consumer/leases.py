"""What a consumer's engine expects of whoever says that it may work off a queue. Never how that is found out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from txlayer.adapters.ports import TopicPartition
from txlayer.consumer.context import FOR_EVER

NO_TOKEN = -1
"""Of a queue that is held without a lease."""


class LeaseChanges(NamedTuple):
    """What happened since the last look."""

    gained: Mapping[TopicPartition, int]
    """Queues that may be worked off now, each with its fencing token."""
    lost: Collection[TopicPartition]
    """Queues that may not any more."""


class Leases(Protocol):
    """The lock registry, driven by the engine's thread; no call but `start` and `close` takes longer than some milliseconds."""

    def start(self) -> None:
        """Get to know who holds what."""
        ...

    def assigned(self, queues: Collection[TopicPartition], *, generation: int) -> None:
        """The group gave these to this member."""
        ...

    def revoked(self, queues: Collection[TopicPartition]) -> None:
        """They are given back."""
        ...

    def turn(self) -> LeaseChanges:
        """What is to be done now, and what changed."""
        ...

    def valid_until(self, queue: TopicPartition) -> float | None:
        """Monotonic seconds: no handler may start after it. None: it is not held."""
        ...

    def close(self) -> None:
        """End."""
        ...


class NoLeases:
    """For consumers that keep no order: what the group assigned may be worked off at once."""

    def __init__(self) -> None:
        self._gained: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()

    def start(self) -> None:
        """Nothing."""

    def assigned(self, queues: Collection[TopicPartition], *, generation: int) -> None:  # noqa: ARG002 - the port's
        """They are held from now on."""
        self._gained.update(dict.fromkeys(queues, NO_TOKEN))
        self._held.update(queues)

    def revoked(self, queues: Collection[TopicPartition]) -> None:
        """They are not held any more."""
        self._held.difference_update(queues)
        for queue in queues:
            self._gained.pop(queue, None)

    def turn(self) -> LeaseChanges:
        """What was assigned since the last call."""
        gained, self._gained = self._gained, {}
        return LeaseChanges(gained, ())

    def valid_until(self, queue: TopicPartition) -> float | None:
        """For ever."""
        return FOR_EVER if queue in self._held else None

    def close(self) -> None:
        """Nothing."""
