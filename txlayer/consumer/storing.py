"""Stores progress: one store of offsets outstanding at a time. Never what is finished (core/progress.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txlayer.adapters.consumer_ports import StoringGroupReader
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.consumer.owned import Owned
from txlayer.core.items import ItemSource
from txlayer.errors import BrokerUnavailableError, TxLayerError

Told = list[tuple[Owned, ItemSource, int]]
"""What an acknowledgement means: snapshots by their versions."""


class Storer:
    """Used by the engine's thread."""

    def __init__(
        self,
        reader: StoringGroupReader,
        *,
        interval_s: float,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._begun: Told = []
        self._begun_at = 0.0
        self.is_under_way = False
        """True until the store that was begun is acknowledged, also when its acknowledgement says nothing any more."""

    @property
    def next_at(self) -> float:
        """When the next store may begin."""
        return self._begun_at + self._interval_s

    def look(self) -> None:
        """Take the acknowledgement: whose attempts are counted now may go on.

        Raises:
            TxLayerError: the store failed, or nobody answered; it is not known what is stored.
        """
        if not self.is_under_way:
            return
        try:
            is_stored = self._reader.take_stored()
        except TxLayerError:
            self.is_under_way = False
            raise
        if is_stored:
            self.is_under_way = False
            begun, self._begun = self._begun, []
            tell(begun)
        elif self._clock() - self._begun_at > self._timeout_s:
            self.is_under_way = False
            raise BrokerUnavailableError(
                "offsets were not stored in time", waited_ms=int(self._timeout_s * 1000)
            )

    def wait(self, serve: Callable[[], None]) -> None:
        """Until nothing is under way: who asked meanwhile what is stored would be told what is older than that.

        `serve` is called again and again; it waits a little, and may raise.

        Raises:
            TxLayerError: as `look`.
        """
        while self.is_under_way:
            serve()
            self.look()

    def begin(self, queues: Iterable[Owned]) -> None:
        """Begin to store what changed, when it is time and nothing is under way."""
        now = self._clock()
        if self.is_under_way or now < self._begun_at + self._interval_s:
            return
        offsets, told = snapshots(queues, only_changed=True)
        if offsets:
            self._begun, self._begun_at = told, now
            self._reader.begin_store(offsets)
            self.is_under_way = True

    def store_now(self, queues: Iterable[Owned], *, timeout_s: float) -> None:
        """Store everything of these queues, and wait; what was begun before is older, and lands before.

        Raises:
            TxLayerError: it is not known what is stored.
        """
        self._begun = []
        offsets, told = snapshots(queues, only_changed=False)
        if offsets:
            self.is_under_way = False
            self._reader.store_offsets(offsets, timeout_s=timeout_s)
            tell(told)

    def forget(self) -> None:
        """The queues are gone; an acknowledgement says nothing any more, but is waited for."""
        self._begun = []

    def end(self) -> None:
        """The group took everything back: its generation fences what is under way."""
        self.forget()
        self.is_under_way = False


def snapshots(
    queues: Iterable[Owned], *, only_changed: bool
) -> tuple[dict[TopicPartition, StoredOffset], Told]:
    """What is to be stored of both sources of each queue, and what its acknowledgement means."""
    offsets: dict[TopicPartition, StoredOffset] = {}
    told: Told = []
    for owned in queues:
        for source, place in (
            (ItemSource.TOPIC, owned.place),
            (ItemSource.REPLAY, owned.replay_place),
        ):
            if only_changed and not owned.queues.is_changed(source):
                continue
            snapshot = owned.queues.snapshot(source)
            offsets[place] = StoredOffset(snapshot.offset, snapshot.metadata)
            told.append((owned, source, snapshot.version))
    return offsets, told


def tell(told: Told) -> None:
    """These snapshots are stored."""
    for owned, source, version in told:
        owned.queues.stored(source, version)
