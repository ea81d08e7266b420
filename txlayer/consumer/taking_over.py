"""Taking queues over from whoever had them before: what is open is ended first, then the stored offsets tell. Never a queue's state.

The steps are the coordinator's (docs/explanation/protocol.md, "Recovery", 1 and 2).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.consumer.kafka_transaction import (
    BATCH_BYTES,
    TIMEOUT_S,
    WriterConnections,
    close_quietly,
)
from txlayer.errors import BrokerUnavailableError, RetriableError

logger = logging.getLogger("txlayer.consumer")

HARMLESS_S = 2.0
"""How long it is tried to end what stores nothing: four times what that takes when its partitions take a marker."""
PATIENCE_S = 60.0
"""How long offsets may stay pending after their writers were fenced: longer than any Kafka transaction's time-out."""


def end_what_was_left(
    connections: WriterConnections, names: Iterable[str], *, timeout_s: float = TIMEOUT_S
) -> None:
    """Fence the writers of these names, and abort what they left open; returns when all of it is ended.

    It takes 0.06 s each, with an open Kafka transaction 0.56 s. Without it the dead-letter partition's readers, and
    who wants the stable offsets, would wait for the broker's time-out.

    Raises:
        TxLayerError: a name could not be initialised; nothing is known of it and of those behind it.
    """
    for name in names:
        writer = connections.make_writer(name, batch_bytes_max=BATCH_BYTES)
        try:
            writer.initialise(timeout_s=timeout_s)
        finally:
            close_quietly(writer)
        logger.info("dead_letters.fenced", extra={"transactional_id": name})


class TakeOverConnections(WriterConnections, Protocol):
    """What taking queues over asks of a cluster."""

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        """What a group stored; with `is_stable` the answer waits for pending transactional offsets."""
        ...


def stable_offsets(
    connections: TakeOverConnections,
    group: str,
    partitions: Sequence[TopicPartition],
    *,
    writer_of: Callable[[StoredOffset], str],
    former_writers: Mapping[str, bool] = MappingProxyType({}),
    is_still_ours: Callable[[], None] = lambda: None,
    patience_s: float = PATIENCE_S,
    timeout_s: float = TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> dict[TopicPartition, StoredOffset | None]:
    """End what the former owners' dead-letter writers left open, then tell what is stored for good.

    `writer_of` reads a writer's name from stored metadata ("" for none); `former_writers` are ended whatever is stored. Those with
    True left nothing open that stores an offset: they are ended if that is quick. Else the broker's time-out ends them, and
    only the readers of those dead letters wait for it: a partition that takes no record takes no marker either.
    `is_still_ours` is called while it waits and may raise.

    Raises:
        BrokerUnavailableError: offsets stayed pending for `patience_s`, longer than any Kafka transaction's time-out.
        TxLayerError: as `end_what_was_left`.
    """
    ended: set[str] = set()

    def end(names: Iterable[str]) -> None:
        fresh = sorted(set(names) - ended - {""})
        end_what_was_left(connections, fresh, timeout_s=timeout_s)
        ended.update(fresh)

    def ask(*, is_stable: bool) -> dict[TopicPartition, StoredOffset | None]:
        give_up_at = clock() + patience_s
        while True:
            is_still_ours()
            try:
                return connections.stored_offsets(group, partitions, is_stable=is_stable)
            except BrokerUnavailableError:
                if clock() > give_up_at:
                    raise  # else: pending offsets answer as a time-out

    def writers(found: Mapping[TopicPartition, StoredOffset | None]) -> set[str]:
        return {writer_of(stored) for stored in found.values() if stored is not None} - {""}

    end(name for name, is_harmless in former_writers.items() if not is_harmless)
    for name in sorted(name for name, is_harmless in former_writers.items() if is_harmless):
        try:
            end_what_was_left(connections, [name], timeout_s=min(timeout_s, HARMLESS_S))
        except RetriableError as exc:
            reason = {"transactional_id": name, "reason": str(exc)}
            logger.warning("dead_letters.left_open", extra=reason)
        ended.add(name)
    while True:
        # Pending offsets do not hold this answer back: the names of those who wrote are there at once.
        end(writers(ask(is_stable=False)))
        stored = ask(is_stable=True)
        if writers(stored) <= ended:
            return stored
