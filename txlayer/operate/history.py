"""What the topics say about one transaction, found by the position of a half message, and whether it is carried out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from txlayer.adapters.administration import Administration
from txlayer.adapters.history import HalfPlace, LogHistoryReader
from txlayer.adapters.history_port import HistoryStart
from txlayer.config import SystemTopics
from txlayer.coordinator.stored import decode_stored
from txlayer.core.history import TransactionHistory
from txlayer.errors import ConfigError

PREPARE_TIME_MS = 10 * 60 * 1000
"""Half records of one transaction lie closer together than this: a producer gives up after `prepare_timeout`."""


def histories_at(
    reader: LogHistoryReader, partition: int, offset: int
) -> tuple[list[TransactionHistory], str]:
    """The transaction whose half message is there; without one, a sentence that says what is there instead."""
    found = reader.half_at(partition, offset)
    if not isinstance(found, HalfPlace):
        return [], found
    start = HistoryStart(found.appended_ms, position=(partition, offset))
    if found.index:
        start = HistoryStart(found.appended_ms - PREPARE_TIME_MS)
    histories = reader.read(found.txn_id, start=start, partitions=[partition], with_checks=True)
    return [h for h in histories if h.nonce == found.nonce], ""


def are_applied(
    admin: Administration, topics: SystemTopics, histories: Sequence[TransactionHistory]
) -> Iterator[bool | None]:
    """For each: whether the stored offsets are beyond its decision; None without one, or where nothing is stored."""
    partitions = {h.partition for h in histories}
    wanted = [(topic, p) for p in partitions for topic in (topics.half, topics.op)]
    stored = admin.stored_offsets(topics.coordinator_group, wanted)
    for history in histories:
        half, op = (stored[topic, history.partition] for topic in (topics.half, topics.op))
        if history.decided_at is None or half is None or op is None:
            yield None
            continue
        try:
            positions = decode_stored(half, op, partition=history.partition).positions
        except ConfigError:
            yield None  # stored by somebody else: nobody knows what it means
        else:
            yield history.decided_at < (positions.op_offset, positions.op_line)
