"""Dead letters and answers to requests, with the offsets that account for them. Never which message is given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.consumer.dead_lettering import Answered, DeadLetterWriter, GivenUp
from txlayer.consumer.owned import Owned
from txlayer.core.handling import (
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
)
from txlayer.core.items import Item, Snapshots
from txlayer.core.messages import Origin
from txlayer.errors import InvariantError

END_COUNT_MAX = 500
"""Ends of one queue in one Kafka transaction: bounds how long the readers of the dead letters wait for it."""


class Ends:
    """Writes what is due. Used by the engine's thread."""

    def __init__(self, *, group: str, now_ms: Callable[[], int]) -> None:
        self._group = group
        self._now_ms = now_ms

    def write(self, queues: Iterable[Owned], writer: DeadLetterWriter, member: Any) -> None:
        """One Kafka transaction with everything that is due; nothing else may be stored of these queues meanwhile.

        Raises:
            TxLayerError: nobody knows whether it happened; these queues and the writer are of no more use.
        """
        due = [(owned, owned.queues.take_due(END_COUNT_MAX)) for owned in queues]
        due = [(owned, items) for owned, items in due if items]
        if not due:
            return
        letters: list[GivenUp] = []
        answers: list[Answered] = []
        for owned, items in due:
            for item in items:
                if isinstance(_end_of(item), DeadLetterReason):
                    letters.append(GivenUp(item.record, self._letter(owned, item)))
                else:
                    answers.append(_answer(owned, item))
        ended: list[tuple[Owned, list[Item[Any]], list[int], Snapshots]] = []

        def offsets(places: list[int]) -> Mapping[TopicPartition, StoredOffset]:
            ended.clear()
            rest = iter(places)
            stored = {}
            for owned, items in due:
                own = [
                    next(rest) if isinstance(_end_of(i), DeadLetterReason) else -1 for i in items
                ]
                snapshots = owned.queues.ending(items, own)
                ended.append((owned, items, own, snapshots))
                for place, taken in zip((owned.place, owned.replay_place), snapshots, strict=True):
                    stored[place] = StoredOffset(taken.offset, taken.metadata)
            return stored

        writer.write(letters, answers, offsets=offsets, member=member)
        for owned, items, own, snapshots in ended:
            owned.queues.written(items, own, snapshots)
            owned.tally.dead_lettered += sum(offset >= 0 for offset in own)

    def _letter(self, owned: Owned, item: Item[Any]) -> DeadLetter:
        more, reason = item.more, _end_of(item)
        assert more is not None
        assert isinstance(reason, DeadLetterReason)
        now_ms = self._now_ms()
        return DeadLetter(
            reason, Origin(*owned.place, item.offset), max(item.record.timestamp()[1], 0),
            more.attempt_count, more.first_ms or now_ms, more.last_ms or now_ms,
            more.error_type, more.error_message, self._group,
        )  # fmt: skip


def _end_of(item: Item[Any]) -> DeadLetterReason | ReplayOutcome:
    if item.more is None or item.more.end is None:
        raise InvariantError("an end is due, and nobody said which")
    return item.more.end


def _answer(owned: Owned, item: Item[Any]) -> Answered:
    more, outcome = item.more, _end_of(item)
    assert more is not None
    assert more.request is not None
    assert isinstance(outcome, ReplayOutcome)
    request = more.request
    detail = ""
    if outcome is ReplayOutcome.FAILED:
        detail = f"{more.attempt_count} attempts, {more.error_type}: {more.error_message}"
    result = ReplayRecord(
        ReplayKind.RESULT, request.request_id, request.dead_letter_offset, outcome, detail
    )
    return Answered(owned.topic, owned.partition, item.record.key(), result)
