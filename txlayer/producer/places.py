"""Looks half messages up that are stored, and nobody told where. Never: what follows from the place.

librdkafka takes records for stored when a later batch of their partition is acknowledged, for example after a broker was
cut off between two answers. An op line names a place, and only reading half tells it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from txlayer.errors import TxLayerError
from txlayer.producer.flight import UNSTORED, Flight
from txlayer.producer.ops import NAMED_MAX

logger = logging.getLogger("txlayer.producer")

MARGIN_MS = 60_000
"""By so much a producer's clock may be ahead of the broker's until half is read from its start."""
AGAIN_S = 0.5


class HalfPlaces(Protocol):
    """`HistoryReader.half_places`."""

    def __call__(self, partition: int, keys: Collection[str], *, at_ms: int) -> Mapping[str, int]:
        """Key → offset of the last half record."""
        ...


def in_a_thread(look: Callable[[], None]) -> None:
    """Run it in a thread of its own."""
    threading.Thread(target=look, name="txlayer-places", daemon=True).start()


class Finder:
    """Looks in threads of its own; what it finds is told on the producer's thread, through `post`."""

    def __init__(
        self,
        make_look: Callable[[], HalfPlaces],
        *,
        post: Callable[[Callable[[], None]], None],
        patience_s: float,
        start: Callable[[Callable[[], None]], None] = in_a_thread,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_look = make_look
        self._post = post
        self._patience_s = patience_s
        self._start = start
        self._clock = clock
        self._is_over = threading.Event()
        self._sought: set[Flight] = set()

    # --- on the producer's thread -------------------------------------------------------------------------------------

    def find(self, flights: Sequence[Flight]) -> None:
        """Have the flights told where they stand, or that nobody found out within the patience."""
        named = " ".join(flight.txn_id for flight in flights[:NAMED_MAX])
        logger.warning("half.placeless", extra={"txn_count": len(flights), "txn_id": named})
        self._sought.update(flights)
        of_partition: dict[int, list[Flight]] = {}
        for flight in flights:
            of_partition.setdefault(flight.half_partition, []).append(flight)
        for partition, sought in of_partition.items():
            self._start(partial(self._look_up, partition, sought))

    def end(self) -> None:
        """The producer ends: whoever is still sought is told that nobody found out."""
        self._is_over.set()
        for flight in list(self._sought):
            self._told(flight, UNSTORED)

    def _told(self, flight: Flight, offset: int) -> None:
        try:
            self._sought.remove(flight)
        except KeyError:
            return  # it was told already: the producer has ended meanwhile
        flight.placed(offset)

    # --- the finder's threads -----------------------------------------------------------------------------------------

    def _look_up(self, partition: int, sought: Sequence[Flight]) -> None:
        keys = {flight.key for flight in sought}
        at_ms = min(flight.born_ms for flight in sought) - MARGIN_MS
        found: Mapping[str, int] = {}
        give_up_at = self._clock() + self._patience_s
        while not self._is_over.is_set():
            try:
                found = self._make_look()(partition, keys, at_ms=at_ms)
                break
            except TxLayerError as exc:
                reason = str(exc)
            if self._clock() > give_up_at:
                logger.error(
                    "half.not_found",
                    extra={"partition": partition, "txn_count": len(keys), "reason": reason},
                )
                break
            self._is_over.wait(AGAIN_S)
        for flight in sought:
            self._post(partial(self._told, flight, found.get(flight.key, UNSTORED)))
