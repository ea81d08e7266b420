"""Asks in the background where op ends, before scheduled messages are released.

For example: of one key, a message is due at 10:00 and another at 10:01. At 10:01 the commit of the first is in op, and was not read yet. So the
coordinator asks where op ends, and releases the second one when it has read op up to there. Nothing is asked while nothing is due.
"""

import logging
from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.telemetry import Log
from txlayer.config import SystemTopics
from txlayer.coordinator.shard import OpEnd, Shard
from txlayer.errors import RetriableError, TxLayerError
from txlayer.runtime.environment import Environment

logger = Log("txlayer.coordinator")

ASK_S = 0.1  # the shortest time from one question to the next
ASK_AGAIN_S = (
    1.0  # so long an end may wait until it is read; then another one is asked for: a new leader may have lost it
)
LOOK_FOR_S = 0.5  # so long the loop looks for an answer in short intervals
GIVE_UP_S = 30.0  # a question that takes longer hangs; the next one is asked beside it


class _Answer(NamedTuple):
    number: int
    ends: list[tuple[Shard, OpEnd]]
    failure: Exception | None = None
    are_missing: bool = False  # partitions of op that were asked about are not available


class OpEnds:
    """Where op of some partitions ends; one question at a time is for all of them. One thread uses it."""

    def __init__(
        self, connections: CoordinatorConnections, topics: SystemTopics, *, environment: Environment, patience_s: float
    ) -> None:
        self._connections, self._topics = connections, topics
        self._clock, self._background = environment.clock, environment.background
        self._patience_s = patience_s
        self._number = 0  # of the newest question
        self._asked_at = float("-inf")
        self._is_asking = False
        self._failing_since: float | None = None
        self._answers: deque[_Answer] = deque()

    @property
    def is_awaited(self) -> bool:
        """True if an answer may come any moment."""
        return self._is_asking and self._clock() - self._asked_at < LOOK_FOR_S

    @property
    def has_answer(self) -> bool:
        """True if `take` has something to tell."""
        return bool(self._answers)

    def forget(self) -> None:
        """The partitions are given up: an answer that comes later counts for nothing."""
        self._number += 1
        self._answers.clear()  # they would keep the ledgers in memory
        self._is_asking, self._failing_since = False, None

    def ask(self, shards: Iterable[Shard], *, wall_ms: int) -> None:
        """Ask about these partitions, but those that have not read to the last end that was asked for."""
        now = self._clock()
        wanted = [shard for shard in shards if (end := shard.asked_end) is None or now - end.asked_at >= ASK_AGAIN_S]
        pause_s = GIVE_UP_S if self._is_asking else ASK_S if self._failing_since is None else ASK_AGAIN_S
        if not wanted or now - self._asked_at < pause_s:
            return
        self._number += 1
        self._asked_at, self._is_asking = now, True
        # Their times before the question: the ends are those of then, or later ones.
        asked = [(shard, shard.time.peek_ms()) for shard in wanted]
        self._background.start(partial(self._ask, asked, wall_ms, now, self._number), name="txlayer-op-ends")

    def _ask(self, asked: list[tuple[Shard, int]], wall_ms: int, asked_at: float, number: int) -> None:
        op, partitions = self._topics.op, {shard.ledger.partition for shard, _ in asked}
        try:
            # Also what an open Kafka transaction hides: a commit behind it was appended before the line that releases another one.
            found = self._connections.end_offsets_in_background([(op, p) for p in partitions], is_committed=False)
            ends = [(s, OpEnd(found[op, s.ledger.partition], now_ms, wall_ms, asked_at)) for s, now_ms in asked]
            self._answers.append(_Answer(number, ends))
        except TxLayerError as exc:
            self._answers.append(_Answer(number, [], exc, self._are_missing(partitions)))
        except Exception as exc:  # noqa: BLE001 - border of a thread whose result is not read: `take` logs it
            self._answers.append(_Answer(number, [], exc))

    def _are_missing(self, partitions: AbstractSet[int]) -> bool:
        try:
            limits = self._connections.topic_limits_in_background(self._topics.op)
        except TxLayerError:
            return False
        return limits is not None and not limits.unavailable.isdisjoint(partitions)

    def take(self) -> None:
        """Tell the partitions what was answered.

        Raises:
            RetriableError: for the patience, no question was answered, because a partition of op is not available. Start over
                without it: the others wait for it.
        """
        while self._answers:
            number, ends, failure, are_missing = self._answers.popleft()
            if number != self._number:
                continue
            self._is_asking = False
            for shard, end in ends:
                shard.asked_end = end
            if failure is None:
                self._failing_since = None
                continue
            if self._failing_since is None:
                is_known = isinstance(failure, TxLayerError)
                level, exc_info = (logging.INFO, None) if is_known else (logging.ERROR, failure)
                logger.log(level, "op_ends.unknown", extra={"reason": str(failure)}, exc_info=exc_info)
                self._failing_since = self._asked_at
            if are_missing and self._clock() - self._failing_since >= self._patience_s:
                raise RetriableError(
                    f"scheduled messages are due, and the end of op is not known: {failure}"
                ) from failure
