"""Writes the ends of queues: dead letters, and answers to requests, in Kafka transactions with the progress."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.adapters.telemetry import Log
from txlayer.consumer.dead_letters import Answered, DeadLetterWriter, GivenUpMessage, Truncation
from txlayer.consumer.offsets import FailedTries, OwnedPartition
from txlayer.core.dead_letters import (
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_topic,
)
from txlayer.core.key_queue import DUE_BYTES_MAX, Item, Snapshots, letter_bytes
from txlayer.core.ledger.batch import HALVINGS_MAX, BatchSize
from txlayer.core.messages import Origin
from txlayer.errors import InvariantError, RefusedRecordError, TxLayerError

logger = Log("txlayer.consumer")

END_COUNT_MAX = 500
"""Ends of one queue in one Kafka transaction; it limits how long readers of the dead letters wait.

After a Kafka transaction that took too long, the next one holds half as many of all queues together, or half the bytes, and
so on: with as many as before it would take too long again.
"""

CUT_COUNT_MAX = 10_000
"""Refused dead letters, and answers, that are remembered until they are written; a forgotten one is refused once more."""


class Completions:
    """Writes dead letters and answers that are due. The engine's thread uses it."""

    def __init__(
        self,
        *,
        group: str,
        now_ms: Callable[[], int],
        cut: Callable[[OwnedPartition], object],
        kafka_transaction_timeout_ms: int,
    ) -> None:
        self._group = group
        self._now_ms = now_ms
        self._cut_chunks = cut
        self._long_ms = kafka_transaction_timeout_ms // 2
        self._size = BatchSize()
        self._turn = 0
        self._turns: dict[TopicPartition, int] = {}  # when ends of that source were last written
        self._failed_tries = FailedTries(now_ms)  # of sources whose ends could not be written
        self._were_answers = False  # the kind of the last attempt
        self._cut: dict[Origin, Truncation] = {}  # refused as whole records, in order
        self._bare: set[tuple[object, ...]] = set()  # answers that were refused with key and details

    def not_before_ms(self, owned: OwnedPartition) -> int:
        """When this queue's due ends may be written."""
        found = [self._failed_tries.until_ms(tp) for tp in _due_sources(owned)]
        return min(found, default=0)

    def has_due(self, owned: OwnedPartition) -> bool:
        """True if ends of this queue are to be written now."""
        return owned.queue.has_due and self.not_before_ms(owned) <= self._now_ms()

    def write(self, queues: Iterable[OwnedPartition], writer: DeadLetterWriter, member: Any) -> None:
        """Write one Kafka transaction with due answers or due dead letters; no other store of these queues may run meanwhile.

        Answers and dead letters have different topics: if one accepts nothing, the other must not wait for it.

        A dead letter that is too large for its topic is written without its content at the next write, and then also without its
        key, and an answer without key and details; otherwise they would block their queue. What may have been refused as one batch is for the next writer, which makes none.
        Queues whose ends could not be written for another reason, or are refused even so, wait a while, and are then tried one by
        one, so that the others do not wait for them.

        Raises:
            TxLayerError: the writer must be dropped. Unless it `has_sent_nothing`, the outcome is unknown: these queues must
                be dropped, too. Otherwise the ends are due again.
        """
        due = self._due(list(queues))
        if not due:
            return
        letters, answers = self._records(due)
        ended: list[tuple[OwnedPartition, list[Item[Any]], list[int], Snapshots]] = []

        def offsets(written_at: list[int]) -> Mapping[TopicPartition, StoredOffset]:
            ended.clear()
            rest = iter(written_at)
            stored = {}
            for owned, items in due:
                own = [next(rest) if isinstance(_end_of(i), DeadLetterReason) else -1 for i in items]
                snapshots = owned.queue.ending(items, own)
                ended.append((owned, items, own, snapshots))
                for tp, taken in zip((owned.topic_partition, owned.replay_partition), snapshots, strict=True):
                    stored[tp] = StoredOffset(taken.offset, taken.metadata)
            return stored

        began_ms = self._now_ms()
        try:
            writer.write_letters(letters, answers, offsets=offsets, member=member)
        except TxLayerError as exc:
            for owned, items in due:
                owned.queue.not_written(items)
            is_refused = isinstance(exc, RefusedRecordError)
            too_large = writer.too_large if is_refused else []
            is_cut = self._cut_refused([letters[at] for at in too_large if at < len(letters)], exc)
            is_cut |= self._bare_refused([answers[at - len(letters)] for at in too_large if at >= len(letters)])
            if not (is_cut or (is_refused and writer.has_refused_batch)):
                self._failed(due, took_ms=self._now_ms() - began_ms)
            raise
        self._size.passed()
        for given_up in letters:
            self._cut.pop(given_up.letter.origin, None)
        self._bare.difference_update(map(_name_of, answers))
        for owned, items, own, snapshots in ended:
            self._failed_tries.passed(_source_of(owned, items))
            owned.queue.written(items, own, snapshots)
            owned.tally.dead_lettered += sum(offset >= 0 for offset in own)
        for owned, items, own, _ in ended:
            for item, offset in zip(items, own, strict=True):
                if offset >= 0:
                    self._log_letter(owned, item, offset)

    def drop(self, queues: Iterable[OwnedPartition]) -> None:
        """End what is due in queues without dead letters; it is logged, and its content stays in its topic alone."""
        for owned in queues:
            if items := owned.queue.take_due(END_COUNT_MAX):
                owned.queue.written(items, [-1] * len(items), None)
                owned.tally.dead_lettered += len(items)
                for item in items:
                    self._log_letter(owned, item, None)

    def _records(
        self, due: list[tuple[OwnedPartition, list[Item[Any]]]]
    ) -> tuple[list[GivenUpMessage], list[Answered]]:
        """Dead letters and answers, in order. Behind the answer to a pause no handler begins."""
        letters: list[GivenUpMessage] = []
        answers: list[Answered] = []
        for owned, items in due:
            for item in items:
                if isinstance(_end_of(item), DeadLetterReason):
                    letter = self._letter(owned, item)
                    cut = self._cut.get(letter.origin, Truncation.NOTHING)
                    letters.append(GivenUpMessage(item.record, letter, cut))
                else:
                    if item.more and item.more.request and item.more.request.kind is ReplayKind.PAUSE:
                        self._cut_chunks(owned)
                    answer = _answer(owned, item)
                    answers.append(_without_details(answer) if _name_of(answer) in self._bare else answer)
        return letters, answers

    def _due(self, queues: list[OwnedPartition]) -> list[tuple[OwnedPartition, list[Item[Any]]]]:
        """The due ends for one Kafka transaction, beginning with the queue that waits longest; answers and dead letters in turn."""
        now_ms = self._now_ms()
        found = [
            (owned, p) for owned in queues for p in _due_sources(owned) if self._failed_tries.until_ms(p) <= now_ms
        ]
        answers = [each for each in found if each[1] == each[0].replay_partition]
        letters = [each for each in found if each[1] == each[0].topic_partition]
        of_requests = bool(answers) and not (letters and self._were_answers)
        self._were_answers = of_requests
        count_max = self._size.of(END_COUNT_MAX * max(1, len(queues)))
        bytes_max = self._size.of(DUE_BYTES_MAX)
        due: list[tuple[OwnedPartition, list[Item[Any]]]] = []
        chosen = answers if of_requests else letters
        for owned, tp in sorted(chosen, key=lambda each: self._turns.get(each[1], 0)):
            is_alone = tp in self._failed_tries
            if is_alone and due:
                continue
            items = owned.queue.take_due(min(END_COUNT_MAX, count_max), bytes_max=bytes_max, of_requests=of_requests)
            if items:
                due.append((owned, items))
                self._turn += 1
                self._turns[tp] = self._turn
            count_max -= len(items)
            bytes_max -= sum(map(letter_bytes, items))
            if count_max <= 0 or bytes_max <= 0 or (is_alone and items):
                break
        return due

    def _failed(self, due: list[tuple[OwnedPartition, list[Item[Any]]]], *, took_ms: int) -> None:
        """Delay these queues, as their ends could not be written: by the time it took, longer if they cannot be fewer.

        If it took too long, the next Kafka transaction holds fewer ends, or fewer bytes.
        """
        for owned, items in due:
            tp = _source_of(owned, items)
            self._failed_tries.failed(tp, took_ms=took_ms, is_again=len(items) == 1)
        items = [item for _, found in due for item in found]
        size_bytes = sum(map(letter_bytes, items))
        # The broker aborts a Kafka transaction that lasts too long; its writer then gets a fencing error.
        if took_ms < self._long_ms or len(items) == 1:
            return
        for _ in range(HALVINGS_MAX):
            self._size.failed()
            if self._size.of(END_COUNT_MAX * len(due)) < len(items) or self._size.of(DUE_BYTES_MAX) < size_bytes:
                return

    def _cut_refused(self, refused: list[GivenUpMessage], reason: TxLayerError) -> bool:
        """Cut refused dead letters; returns False if there are none. One of which nothing is left to cut begins whole again."""
        is_any_cut = False
        for given_up in refused:
            origin = given_up.letter.origin
            which = {"group": self._group, **origin._asdict(), "size_bytes": len(given_up.record)}
            logger.error("dead_letter.refused", extra=which | {"reason": str(reason)})
            if given_up.cut is Truncation.KEY_TOO:
                self._cut.pop(origin, None)
                continue
            is_any_cut, is_first = True, given_up.cut is Truncation.NOTHING
            self._cut[origin] = Truncation.CONTENT if is_first else Truncation.KEY_TOO
            if len(self._cut) > CUT_COUNT_MAX:
                del self._cut[next(iter(self._cut))]
        return is_any_cut

    def _bare_refused(self, refused: list[Answered]) -> bool:
        """Leave out the details of refused answers; returns False if there is nothing to leave out."""
        names = {_name_of(answer) for answer in refused if answer != _without_details(answer)}
        if len(self._bare) > CUT_COUNT_MAX:
            self._bare.clear()
        self._bare |= names
        return bool(names)

    def _log_letter(self, owned: OwnedPartition, item: Item[Any], offset: int | None) -> None:
        """Log a dead letter as an error for an operator; those that follow a parked key's first one at a lower level."""
        reason, more = _end_of(item), item.more
        assert more is not None
        extra = owned.log_fields | {"offset": item.offset, "reason": reason.value}
        extra |= {"attempt_count": more.attempt_count, "error_type": more.error_type}
        if offset is not None:
            letters = dead_letter_topic(self._group, owned.topic)
            extra |= {"dead_letter_topic": letters, "dead_letter_offset": offset}
        level = logging.INFO if reason is DeadLetterReason.KEY_PARKED else logging.ERROR
        logger.log(level, "message.given_up" if offset is None else "message.dead_lettered", extra=extra)

    def _letter(self, owned: OwnedPartition, item: Item[Any]) -> DeadLetter:
        more, reason = item.more, _end_of(item)
        assert more is not None
        assert isinstance(reason, DeadLetterReason)
        origin, origin_ms = Origin(*owned.topic_partition, item.offset), max(item.record.timestamp()[1], 0)
        attempts, error = (more.attempt_count, more.first_ms, more.last_ms), (more.error_type, more.error_message)
        return DeadLetter(reason, origin, origin_ms, *attempts, *error, self._group)


def _due_sources(owned: OwnedPartition) -> list[TopicPartition]:
    """The sources of a queue that have due ends; the ends of each are written separately."""
    return [owned.partition_of(source) for source in owned.queue.due_sources]


def _source_of(owned: OwnedPartition, items: list[Item[Any]]) -> TopicPartition:
    return owned.partition_of(items[0].source)


def _end_of(item: Item[Any]) -> DeadLetterReason | ReplayOutcome:
    if item.more is None or item.more.end is None:
        raise InvariantError("an end is due, and it is not known which")
    return item.more.end


def _name_of(answer: Answered) -> tuple[object, ...]:
    return answer.topic, answer.partition, answer.result.request_id, answer.result.dead_letter_offset


def _without_details(answer: Answered) -> Answered:
    return answer._replace(key=None, result=answer.result._replace(text=""))


def _answer(owned: OwnedPartition, item: Item[Any]) -> Answered:
    more, outcome = item.more, _end_of(item)
    assert more is not None
    assert more.request is not None
    assert isinstance(outcome, ReplayOutcome)
    request = more.request
    detail = ""
    if outcome is ReplayOutcome.FAILED:
        # Behind one that failed it is not attempted, and there is no error of a handler.
        error = f"{more.attempt_count} attempts, {more.error_type}: " if more.error_type else ""
        detail = f"{error}{more.error_message}"
    result = ReplayRecord(ReplayKind.RESULT, request.request_id, request.dead_letter_offset, outcome, detail)
    return Answered(owned.topic, owned.partition, item.record.key(), result)
