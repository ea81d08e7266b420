"""Requests about dead letters: written once each, and followed on the replay topic to their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from txlayer.adapters.ports import HalfWriter
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, encode_replay, replay_topic
from txlayer.core.progress import NO_KEY, hash_of_key
from txlayer.operate.dead_letters import DeadLetterLog, DeadLetterPosition, FoundLetter
from txlayer.operate.operators import OperatorWriter
from txlayer.runtime.kafka_transactions import SMALL_BATCH_BYTES


class Request(NamedTuple):
    """A request for the replay topic of `topic`."""

    topic: str
    partition: int
    key: bytes | None  # the dead letter's
    record: ReplayRecord


class WrittenRequest(NamedTuple):
    """An acknowledged request."""

    request: Request
    offset: int


class RequestWriter:
    """Writes requests of one group. One thread uses it."""

    def __init__(
        self,
        make_log_writer: Callable[[int], HalfWriter],
        *,
        group: str,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._make_log_writer = make_log_writer
        self._group = group
        self._clock = clock
        self._pause = pause

    def write(
        self,
        requests: Iterable[Request],
        *,
        rate_max: float | None = None,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> list[WrittenRequest]:
        """Write them, and raise, as `OperatorWriter.write`; those that came through must not be written again."""
        writer = OperatorWriter(
            self._make_log_writer(SMALL_BATCH_BYTES),
            what="requests",
            step="request",
            clock=self._clock,
            pause=self._pause,
        )
        records = (
            (each, replay_topic(self._group, each.topic), each.partition, each.key, encode_replay(each.record))
            for each in requests
        )
        written = writer.write(records, rate_max=rate_max, on_progress=on_progress)
        return [WrittenRequest(request, offset) for request, offset in written]


def requests_for(
    chosen: Iterable[FoundLetter], logs: Mapping[str, DeadLetterLog], *, kind: ReplayKind, request_id: str, text: str
) -> Iterator[Request]:
    """One request for each of these dead letters, in this order.

    Where a key is stuck at a dead letter that retention took, that one is asked for first: its answer, `missing`, lets the
    later ones go.
    """
    queues = {topic: log.queues() for topic, log in logs.items()}
    looked_up: set[DeadLetterPosition] = set()
    for each in chosen:
        topic, partition, _ = each.position
        stuck = queues[topic][partition].stuck if kind is ReplayKind.REPLAY else {}
        found = {DeadLetterPosition(topic, partition, stuck[h]) for h in {NO_KEY, hash_of_key(each.key)} & stuck.keys()}
        gone = [p for p in sorted(found - looked_up) if logs[topic].at(partition, p.offset) is None]
        looked_up |= found
        for position in (*gone, each.position):
            yield Request(topic, partition, each.key, ReplayRecord(kind, request_id, position.offset, text=text))
