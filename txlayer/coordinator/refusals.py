"""Finds, over several tries, which record a broker refuses; it outlives the rebuilds between them.

The rule of halving is `core.batch.Bisection`; here is one per partition, and what an error says.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from txlayer.adapters.error_codes import REFUSED_RECORD_CODES
from txlayer.coordinator.publish import NO_LIMIT
from txlayer.coordinator.reports import trace_of
from txlayer.coordinator.targets import TargetBook
from txlayer.core import codec
from txlayer.core.batch import Batch, Bisection
from txlayer.core.messages import ParkReason, txn_id_of
from txlayer.errors import (
    BrokerUnavailableError,
    ForbiddenTopicError,
    RefusedRecordError,
    TxLayerError,
)

logger = logging.getLogger("txlayer.coordinator")

UNKNOWN_COUNT = 5
"""Failures of a partition in turn that nothing explains, after which one of its records is suspected."""

QUIET_S = 10.0
"""After so long without anything to do a partition is not suspected any more: what time brings again has come by then."""

WATCH_COUNT = 100
"""Batches after a time-out of which every record is watched: the quick path asks for no reports."""


class Refusals:
    """What is suspected and what is known. One thread uses it."""

    def __init__(self) -> None:
        self.reasons: dict[str, ParkReason] = {}
        self.doubt_keys: set[bytes] = set()
        """Records that doubt does not take whole; each is cut to its origin, its reason and its size."""
        self.question_bytes_max = NO_LIMIT
        """The check topic refused a question of one byte more; larger ones name no topics."""
        self._bisections: dict[int, Bisection] = {}
        self._quiet_since: dict[int, float] = {}  # suspected partitions with nothing to do
        self._unexplained: dict[int, int] = {}  # partition → failures in turn
        self._watch_count = 0

    @property
    def is_watchful(self) -> bool:
        """True when a time-out should tell which topics left records without an answer."""
        return self._watch_count > 0

    def is_careful(self, partitions: Collection[int]) -> bool:
        """True when a Kafka transaction for these partitions must tell which transaction is refused."""
        return any(
            b.is_active and b.line_count_max == 1 and p in partitions
            for p, b in self._bisections.items()
        )

    def line_count_max(self, partition: int, default: int) -> int:
        """How many op lines of a partition the next Kafka transaction may take."""
        bisection = self._bisections.get(partition)
        return (
            min(default, bisection.line_count_max)
            if bisection is not None and bisection.is_active
            else default
        )

    def count_max(self, default: int) -> int:
        """How many records a read, and how many moves a batch, may take while somebody is suspected."""
        active = [b.line_count_max for b in self._bisections.values() if b.is_active]
        return min([default, *active])

    def partition_in_turn(self, busy: Collection[int]) -> int | None:
        """Which of the partitions that have something to do goes alone now, because it is suspected; None: all go.

        One that has nothing to do keeps its suspicion, and nobody waiting.
        """
        return next((p for p, b in self._bisections.items() if b.is_active and p in busy), None)

    def passed(self, partition: int, batch: Batch) -> None:
        """A batch went through."""
        self._watch_count = max(0, self._watch_count - 1)
        self._unexplained.pop(partition, None)
        self._quiet_since.pop(partition, None)
        bisection = self._bisections.get(partition)
        if bisection is not None:
            bisection.passed(max(batch.suspect_count, 1))
            if not bisection.is_active:
                del self._bisections[partition]
        for keep in batch.keeps.values():
            self.reasons.pop(keep.txn.key, None)
        if self.doubt_keys:
            self.doubt_keys -= _doubt_keys_of(batch)

    def keep_only(self, partitions: Collection[int]) -> None:
        """What is suspected of others goes with them: they belong to another coordinator, and nothing here clears it."""
        for partition in {*self._bisections, *self._unexplained} - {*partitions}:
            self._bisections.pop(partition, None)
            self._quiet_since.pop(partition, None)
            self._unexplained.pop(partition, None)

    def is_quiet(self, partition: int, now: float) -> None:
        """All was applied there, and nothing is left to write: lines that lead to nothing are never counted as passed."""
        if partition not in self._bisections:
            return
        if now - self._quiet_since.setdefault(partition, now) >= QUIET_S:
            del self._bisections[partition], self._quiet_since[partition]

    def learn(
        self,
        error: TxLayerError,
        batches: Mapping[int, Batch],
        book: TargetBook,
        *,
        unanswered: Collection[str] = (),
    ) -> None:
        """A Kafka transaction failed: what does the error say about its content?

        `unanswered` names the topics that left records without an answer, as far as that was watched.
        """
        busy = {p: b for p, b in batches.items() if not b.is_empty}
        if not self._is_certain(error, busy):
            return
        if isinstance(error, BrokerUnavailableError):
            self._watch_count = WATCH_COUNT
            self._ask_about_targets(busy, book)
            book.unanswered(unanswered)
        elif isinstance(error, RefusedRecordError) and error.doubt_key is not None:
            self.doubt_keys.add(error.doubt_key)
            self._bisections.clear()
            logger.error(
                "doubt.refused",
                extra={"doubt_key": error.doubt_key.decode("ascii"), "reason": error.detail},
            )
        elif isinstance(error, RefusedRecordError) and error.size_bytes is not None:
            self.question_bytes_max = error.size_bytes - 1
            self._bisections.clear()
            logger.error(
                "question.refused",
                extra={"size_bytes": error.size_bytes, "reason": error.detail},
            )
        elif isinstance(error, RefusedRecordError) and error.txn_key is not None:
            self.reasons[error.txn_key] = ParkReason.REFUSED
            self._bisections.clear()
            logger.error(
                "transaction.refused",
                extra={
                    "txn_key": error.txn_key,
                    **_ids_of_forward(error.txn_key, busy),
                    "reason": error.detail,
                },
            )
        elif isinstance(error, ForbiddenTopicError) and error.topic is not None:
            book.refused(error.topic)
            self._bisections.clear()
        elif isinstance(error, RefusedRecordError | ForbiddenTopicError) or not _is_explained(
            error
        ):
            self._ask_about_targets(busy, book)
            for partition, batch in busy.items():
                self._bisections.setdefault(partition, Bisection()).failed(batch.suspect_count)
                self._quiet_since.pop(partition, None)

    def _is_certain(self, error: TxLayerError, busy: Collection[int]) -> bool:
        """False for an answer that txlayer does not know: once it means nothing, several times in a row it is a refusal."""
        if _is_explained(error):
            return True
        for partition in busy:
            self._unexplained[partition] = self._unexplained.get(partition, 0) + 1
        return any(self._unexplained[partition] >= UNKNOWN_COUNT for partition in busy)

    def _ask_about_targets(self, batches: Mapping[int, Batch], book: TargetBook) -> None:
        topics = {
            topic
            for batch in batches.values()
            for txn in batch.forwards
            for topic in txn.topics
            if topic
        }
        try:
            book.look_again_at(topics)
        except BrokerUnavailableError as exc:
            logger.info("targets.unknown", extra={"reason": str(exc)})


def _is_explained(error: TxLayerError) -> bool:
    """False when the client failed, or a record was refused, with a code that txlayer does not know."""
    if isinstance(error, RefusedRecordError) and error.reason is not None:
        return error.reason in {code.kafka_name for code in REFUSED_RECORD_CODES}
    return type(error) is not TxLayerError


def _ids_of_forward(key: str, batches: Mapping[int, Batch]) -> dict[str, str]:
    found = next((t for b in batches.values() for t in b.forwards if t.key == key), None)
    context = None if found is None else trace_of(found)
    return {"txn_id": txn_id_of(key), **({} if context is None else {"trace_id": context.trace_id})}


def _doubt_keys_of(batch: Batch) -> set[bytes]:
    """Under which keys a batch wrote what doubt may refuse."""
    asides = {
        codec.kept_aside_key(aside.origin, None if aside.line is None else aside.number)
        for aside in batch.asides
    }
    kept = [keep.txn for keep in batch.keeps.values() if keep.is_whole]
    return asides | {codec.content_key(t.key, index) for t in kept for index in range(t.seen)}
