"""Dead letters and answers to requests, with the offsets that account for them. Never which message is given up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.consumer.dead_lettering import Answered, Cut, DeadLetterWriter, GivenUp
from txlayer.consumer.owned import Owned
from txlayer.core.batch import HALVINGS_MAX, BatchSize
from txlayer.core.chains import letter_bytes
from txlayer.core.dead_letters import dead_letter_topic
from txlayer.core.handling import (
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
)
from txlayer.core.items import Item, Snapshots
from txlayer.core.key_queues import DUE_BYTES_MAX
from txlayer.core.messages import Origin
from txlayer.errors import ConfigError, InvariantError, RefusedRecordError, TxLayerError

logger = logging.getLogger("txlayer.consumer")

END_COUNT_MAX = 500
"""Ends of one queue in one Kafka transaction: bounds how long the readers of the dead letters wait for it.

After a Kafka transaction that took too long the next one has half as many of all queues together, or half the bytes, and so
on: with as many as before it would take too long for ever.
"""

HOLD_FIRST_MS = 100
"""How long a queue's ends wait at least after they could not be written."""
HOLD_MAX_MS = 60_000
"""And at most: with `kafka_transaction_timeout` for each try, other keys wait for a seventh of the time."""

CUT_COUNT_MAX = 10_000
"""Refused dead letters that are remembered until they are written; one that is forgotten is refused once more."""


class _Hold(NamedTuple):
    """How long ends of one topic and partition wait."""

    until_ms: int
    wait_ms: int


class Ends:
    """Writes what is due. Used by the engine's thread."""

    def __init__(
        self, *, group: str, now_ms: Callable[[], int], kafka_transaction_timeout_ms: int
    ) -> None:
        self._group = group
        self._now_ms = now_ms
        self._long_ms = kafka_transaction_timeout_ms // 2
        self._size = BatchSize()
        self._turn = 0
        self._turns: dict[TopicPartition, int] = {}  # when ends of that source were written last
        self._held: dict[TopicPartition, _Hold] = {}  # sources whose ends could not be written
        self._were_answers = False  # what was tried last
        self._cut: dict[Origin, Cut] = {}  # those that their topic refused whole, in order

    def not_before_ms(self, owned: Owned) -> int:
        """When something that is due of this queue may be written."""
        found = [self._until_ms(place) for place in _places(owned)]
        return min(found, default=0)

    def has_due(self, owned: Owned) -> bool:
        """True when something of this queue is to be written now."""
        return owned.queues.has_due and self.not_before_ms(owned) <= self._now_ms()

    def _until_ms(self, place: TopicPartition) -> int:
        held = self._held.get(place)
        return 0 if held is None else held.until_ms

    def write(self, queues: Iterable[Owned], writer: DeadLetterWriter, member: Any) -> None:
        """One Kafka transaction with all answers or all dead letters that are due; nothing else may be stored of these queues meanwhile.

        Answers and dead letters stand in topics of their own: where one takes nothing, the other must not wait for it.

        A dead letter that its topic refuses goes there without its content at the next write, and then without its key: with them,
        it would stop its queue.
        Queues whose ends could not be written wait a while, and are tried each alone: the others must not wait for them.

        Raises:
            ConfigError: its topic refuses it even so.
            TxLayerError: nobody knows whether it happened; these queues and the writer are of no more use.
        """
        due = self._due(list(queues))
        if not due:
            return
        letters: list[GivenUp] = []
        answers: list[Answered] = []
        for owned, items in due:
            for item in items:
                if isinstance(_end_of(item), DeadLetterReason):
                    letter = self._letter(owned, item)
                    cut = self._cut.get(letter.origin, Cut.NOTHING)
                    letters.append(GivenUp(item.record, letter, cut))
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

        began_ms = self._now_ms()
        try:
            writer.write(letters, answers, offsets=offsets, member=member)
        except RefusedRecordError as exc:
            self._cut_refused([letters[at] for at in writer.refused if at < len(letters)], exc)
            raise
        except TxLayerError:
            self._failed(due, took_ms=self._now_ms() - began_ms)
            raise
        self._size.passed()
        for given_up in letters:
            self._cut.pop(given_up.letter.origin, None)
        for owned, items, own, snapshots in ended:
            self._held.pop(_place_of(owned, items), None)
            owned.queues.written(items, own, snapshots)
            owned.tally.dead_lettered += sum(offset >= 0 for offset in own)
            for item, offset in zip(items, own, strict=True):
                if offset >= 0:
                    self._log_letter(owned, item, offset)

    def _due(self, queues: list[Owned]) -> list[tuple[Owned, list[Item[Any]]]]:
        """What one Kafka transaction may take of what is due, from the queue on that waits longest: answers, else dead letters, in turn."""
        now_ms = self._now_ms()
        found = [
            (owned, p) for owned in queues for p in _places(owned) if self._until_ms(p) <= now_ms
        ]
        answers = [each for each in found if each[1] == each[0].replay_place]
        letters = [each for each in found if each[1] == each[0].place]
        of_requests = bool(answers) and not (letters and self._were_answers)
        self._were_answers = of_requests
        count_max = self._size.of(END_COUNT_MAX * max(1, len(queues)))
        bytes_max = self._size.of(DUE_BYTES_MAX)
        due: list[tuple[Owned, list[Item[Any]]]] = []
        chosen = answers if of_requests else letters
        for owned, place in sorted(chosen, key=lambda each: self._turns.get(each[1], 0)):
            is_alone = place in self._held
            if is_alone and due:
                continue
            items = owned.queues.take_due(
                min(END_COUNT_MAX, count_max), bytes_max=bytes_max, of_requests=of_requests
            )
            if items:
                due.append((owned, items))
                self._turn += 1
                self._turns[place] = self._turn
            count_max -= len(items)
            bytes_max -= sum(map(letter_bytes, items))
            if count_max <= 0 or bytes_max <= 0 or (is_alone and items):
                break
        return due

    def _failed(self, due: list[tuple[Owned, list[Item[Any]]]], *, took_ms: int) -> None:
        """These could not be written: each queue waits as long as that took, and ever longer if its ends cannot be fewer.

        If it took too long, the next Kafka transaction holds fewer of them, or fewer bytes.
        """
        for owned, items in due:
            wait_ms = max(took_ms, HOLD_FIRST_MS)
            place = _place_of(owned, items)
            held = self._held.get(place)
            if held is not None and len(items) == 1:
                wait_ms = max(wait_ms, min(2 * held.wait_ms, HOLD_MAX_MS))
            self._held[place] = _Hold(self._now_ms() + wait_ms, wait_ms)
        items = [item for _, found in due for item in found]
        size_bytes = sum(map(letter_bytes, items))
        # The broker ends a Kafka transaction that lasts too long; its writer is told of a fence then.
        if took_ms < self._long_ms or len(items) == 1:
            return
        for _ in range(HALVINGS_MAX):
            self._size.failed()
            if (
                self._size.of(END_COUNT_MAX * len(due)) < len(items)
                or self._size.of(DUE_BYTES_MAX) < size_bytes
            ):
                return

    def _cut_refused(self, refused: list[GivenUp], reason: RefusedRecordError) -> None:
        for given_up in refused:
            origin = given_up.letter.origin
            if given_up.cut is Cut.KEY_TOO:
                raise ConfigError(
                    f"the dead-letter topic refuses {origin.topic}-{origin.partition}@{origin.offset} even without its "
                    f"key and content: {reason}",
                    name="dead-letter topic", value=dead_letter_topic(self._group, origin.topic),
                    expected="one that takes two short headers",
                ) from reason  # fmt: skip
            is_first = given_up.cut is Cut.NOTHING
            self._cut[origin] = Cut.CONTENT if is_first else Cut.KEY_TOO
            if len(self._cut) > CUT_COUNT_MAX:
                del self._cut[next(iter(self._cut))]
            logger.error(
                "dead_letter.refused",
                extra={
                    "group": self._group, "topic": origin.topic, "partition": origin.partition, "offset": origin.offset,
                    "size_bytes": len(given_up.record), "reason": str(reason),
                },
            )  # fmt: skip

    def _log_letter(self, owned: Owned, item: Item[Any], offset: int) -> None:
        """A dead letter is for a person; those that follow a parked key's first one are named, and wake nobody."""
        reason, more = _end_of(item), item.more
        assert more is not None
        is_follower = reason is DeadLetterReason.KEY_PARKED
        logger.log(
            logging.INFO if is_follower else logging.ERROR,
            "message.dead_lettered",
            extra={
                "group": self._group, "topic": owned.topic, "partition": owned.partition, "offset": item.offset,
                "reason": reason.value, "attempt_count": more.attempt_count, "error_type": more.error_type,
                "dead_letter_topic": dead_letter_topic(self._group, owned.topic), "dead_letter_offset": offset,
            },
        )  # fmt: skip

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


def _places(owned: Owned) -> list[TopicPartition]:
    """The sources of a queue of which something is due: each has its ends written by itself."""
    queues = owned.queues
    return [owned.replay_place] * queues.has_answers + [owned.place] * queues.has_letters


def _place_of(owned: Owned, items: list[Item[Any]]) -> TopicPartition:
    return owned.replay_place if items[0].is_replay else owned.place


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
