"""Copies of dead letters in another topic, each with the record that says so, in Kafka transactions. Never which ones.

A copy and the replay topic's record of it are one: a command that is killed and run again with the same request id
publishes what is missing, and nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from txlayer.adapters.ports import Record
from txlayer.consumer.dead_letter_log import Place
from txlayer.consumer.kafka_transaction import Entry, KafkaTransactions
from txlayer.core.dead_letters import (
    REPLAY_HEADER,
    ReplayMark,
    encode_replay_mark,
    original_headers,
    replay_topic,
    writer_name,
)
from txlayer.core.handling import ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.replays import encode_replay

BATCH_COUNT_MAX = 500
"""Copies in one Kafka transaction: it stays short, and a command that was killed does little again."""


class Copy(NamedTuple):
    """A dead letter to publish elsewhere."""

    place: Place
    record: Record


def transactional_id(group: str, request_id: str) -> str:
    """One for each request, so that the same command, run again, ends what its killed run left open."""
    return writer_name(group, f"republish.{request_id}")


class Republisher:
    """Publishes copies of one request. One thread uses it."""

    def __init__(
        self,
        transactions: KafkaTransactions,
        *,
        group: str,
        request_id: str,
        to: str,
        text: str,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transactions = transactions
        self._group = group
        self._request_id = request_id
        self._to = to
        self._text = text
        self._clock = clock
        self._pause = pause

    def start(self) -> None:
        """End what an earlier run of the request left open; read what it did only after this.

        Raises:
            TxLayerError: the broker refused or did not answer; nothing was written.
        """
        self._transactions.start()

    def publish(
        self,
        copies: Iterable[Copy],
        *,
        rate_max: float | None = None,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """Publish in this order, at most `rate_max` a second, those of one key in one partition.

        Raises:
            TxLayerError: those that `on_progress` was told of are published; of the batch under way nobody knows. The
                same request id, started again, tells by the replay topic.
        """
        done_count, due = 0, self._clock()
        for batch in _batches(copies, rate_max):
            while (left_s := due - self._clock()) > 0:
                self._pause(left_s)
            self._transactions.write([entry for copy in batch for entry in self._entries(copy)])
            done_count += len(batch)
            on_progress(done_count)
            if rate_max is not None:
                due += len(batch) / rate_max

    def _entries(self, copy: Copy) -> tuple[Entry, Entry]:
        place, record = copy
        mark = encode_replay_mark(ReplayMark(self._request_id, place.partition, place.offset))
        headers = [h for h in original_headers(record.headers()) if h[0] != REPLAY_HEADER]
        said = ReplayRecord(
            ReplayKind.RESULT, self._request_id, place.offset, ReplayOutcome.REPUBLISHED, f"{self._to}: {self._text}"
        )  # fmt: skip
        return (
            Entry(self._to, -1, record.key(), record.value(), [*headers, (REPLAY_HEADER, mark)]),
            Entry(
                replay_topic(self._group, place.topic), place.partition, record.key(), encode_replay(said)
            ),
        )  # fmt: skip


def _batches(copies: Iterable[Copy], rate_max: float | None) -> Iterator[list[Copy]]:
    """At a low rate small ones: a second's worth at most."""
    size = BATCH_COUNT_MAX if rate_max is None else min(max(int(rate_max), 1), BATCH_COUNT_MAX)
    rest = iter(copies)
    while batch := list(islice(rest, size)):
        yield batch
