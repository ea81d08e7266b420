"""Dead letters and the offsets that account for them: both or neither, over both logs (P1, P9)."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.clients import PATIENCE_S, join
from tests.contract.conftest import OF_HANDLERS
from tests.support.broker import unique_name
from tests.support.dead_letter_stage import Stage, make_stage
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.ports import StoredOffset, TopicPartition, TransactionalWriter
from txlayer.consumer.assignments import end_what_was_left
from txlayer.consumer.dead_letters import Answered, DeadLetterWriter
from txlayer.core.dead_letters import (
    DLQ_HEADER,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    decode_dead_letter,
    decode_replay,
)
from txlayer.errors import (
    FencedError,
    InvariantError,
    LifecycleError,
    MemberFencedError,
    RefusedRecordError,
    TxLayerError,
)


@pytest.fixture
def stage(lab: Lab) -> Iterator[Stage]:
    made = make_stage(lab, partitions=2)
    yield made
    made.reader.close()


@pytest.fixture
def writer(stage: Stage) -> Iterator[DeadLetterWriter]:
    made = stage.writer()
    yield made
    made.close()


class KilledError(Exception):
    """The process is gone at this very place."""


def killed(_places: list[int]) -> dict[TopicPartition, StoredOffset]:
    raise KilledError


# --- the plain case ---------------------------------------------------------------------------------------------------


def test_a_dead_letter_is_its_message_in_its_partition_with_one_header_more(
    stage: Stage, writer: DeadLetterWriter
) -> None:
    headers = [("tags", b"TagA"), ("txl-id", b"order-1"), ("odd", None)]
    given = stage.given_up(17, partition=1, key=b"customer-7", value=None, headers=headers)

    found = writer.write_letters([given], offsets=stage.behind(17, partition=1), member=stage.member)

    stage.wait_for(None)  # type: ignore[arg-type]  # the message's value is null
    (seen,) = stage.seen()
    assert (stage.dead_letters, 1, found[0]) == (seen.topic, seen.partition, seen.offset)
    assert (b"customer-7", None) == (seen.key, seen.value)
    assert headers == list(seen.headers[:-1])
    assert DLQ_HEADER == seen.headers[-1][0]
    assert given.letter == decode_dead_letter(seen.headers[-1][1] or b"")


def test_the_offsets_are_made_of_the_places_of_the_dead_letters(stage: Stage, writer: DeadLetterWriter) -> None:
    asked: list[list[int]] = []

    def offsets(places: list[int]) -> dict[TopicPartition, StoredOffset]:
        asked.append(places)
        return {(stage.topic, 0): StoredOffset(9, f"parked at {places[-1]}")}

    found = writer.write_letters([stage.given_up(7), stage.given_up(8)], offsets=offsets, member=stage.member)

    assert [found] == asked
    stage.wait_for(b"message 7", b"message 8")
    assert [r.offset for r in stage.seen()] == found
    assert StoredOffset(9, f"parked at {found[1]}") == stage.stored()


def test_a_result_is_written_in_the_same_kafka_transaction(stage: Stage, writer: DeadLetterWriter) -> None:
    result = ReplayRecord(ReplayKind.RESULT, "ticket-12", 3, ReplayOutcome.HANDLED)
    answer = Answered(stage.topic, 1, b"customer-7", result)

    found = writer.write_letters([], [answer], offsets=stage.behind(4), member=stage.member)

    assert [] == found
    assert StoredOffset(5, "") == stage.stored()
    # Markers are written behind the answer, each topic's in its turn.
    (seen,) = wait_until(lambda: stage.lab.read(stage.replays), within=PATIENCE_S, what="the result is visible")
    assert (1, b"customer-7", result) == (seen.partition, seen.key, decode_replay(seen.value))


def test_many_kafka_transactions_follow_each_other(stage: Stage, writer: DeadLetterWriter) -> None:
    for offset in range(5):
        writer.write_letters([stage.given_up(offset)], offsets=stage.behind(offset), member=stage.member)

    stage.wait_for(*(f"message {offset}".encode() for offset in range(5)))
    assert StoredOffset(5, "") == stage.stored()


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_dead_letter_that_is_refused_advances_no_offset(lab: Lab) -> None:
    stage = make_stage(lab, settings={"max.message.bytes": "20000"})
    incompressible = random.Random(1).randbytes(40_000)
    writer = stage.writer()
    writer.write_letters([stage.given_up(0)], offsets=stage.behind(0), member=stage.member)

    with pytest.raises(RefusedRecordError) as raised:
        writer.write_letters(
            [stage.given_up(1), stage.given_up(2, value=incompressible)], offsets=stage.behind(2), member=stage.member
        )

    assert stage.dead_letters == raised.value.topic
    end_what_was_left(stage.connections, [writer.name])
    assert StoredOffset(1, "") == stage.stored()
    stage.wait_for(b"message 0")
    writer.close()
    stage.reader.close()


@OF_HANDLERS
def test_a_dead_letter_topic_that_is_missing_advances_no_offset(lab: Lab) -> None:
    stage = make_stage(lab, with_dead_letters=False)
    writer = stage.writer()

    with pytest.raises(TxLayerError, match=stage.dead_letters):
        writer.write_letters([stage.given_up(1)], offsets=stage.behind(1), member=stage.member)

    end_what_was_left(stage.connections, [writer.name])
    assert stage.stored() is None
    writer.close()
    stage.reader.close()


def test_after_a_failure_the_writer_writes_nothing_any_more(stage: Stage, writer: DeadLetterWriter) -> None:
    with pytest.raises(KilledError):
        writer.write_letters([stage.given_up(1)], offsets=killed, member=stage.member)

    with pytest.raises(LifecycleError):
        writer.write_letters([stage.given_up(2)], offsets=stage.behind(2), member=stage.member)

    end_what_was_left(stage.connections, [writer.name])
    assert [] == stage.seen()
    assert stage.stored() is None


def test_dead_letters_without_an_offset_are_a_defect_of_ours_and_not_written(
    stage: Stage, writer: DeadLetterWriter
) -> None:
    with pytest.raises(InvariantError):
        writer.write_letters([stage.given_up(1)], offsets=lambda _places: {}, member=stage.member)

    end_what_was_left(stage.connections, [writer.name])
    assert [] == stage.seen()


def test_a_writer_that_was_closed_writes_nothing(stage: Stage, writer: DeadLetterWriter) -> None:
    writer.close()
    writer.close()

    with pytest.raises(LifecycleError):
        writer.write_letters([stage.given_up(1)], offsets=stage.behind(1), member=stage.member)


# --- owners that come and go ------------------------------------------------------------------------------------------


def test_one_killed_between_flush_and_commit_leaves_nothing_behind(stage: Stage, writer: DeadLetterWriter) -> None:
    writer.write_letters([stage.given_up(1)], offsets=stage.behind(1, metadata=writer.name), member=stage.member)
    with pytest.raises(KilledError):
        writer.write_letters([stage.given_up(2)], offsets=killed, member=stage.member)

    stored = stage.stored_after_fencing((stage.topic, 0), (stage.topic, 1))

    expected = {(stage.topic, 0): StoredOffset(2, writer.name), (stage.topic, 1): None}
    assert expected == stored
    # Nothing stays open that would hold readers back.
    stage.lab.write(stage.dead_letters, b"behind it")
    stage.wait_for(b"message 1", b"behind it")


def test_a_writer_whose_name_was_ended_is_fenced(stage: Stage, writer: DeadLetterWriter) -> None:
    writer.write_letters([stage.given_up(1)], offsets=stage.behind(1), member=stage.member)
    end_what_was_left(stage.connections, [writer.name])

    with pytest.raises(FencedError):
        writer.write_letters([stage.given_up(2)], offsets=stage.behind(2), member=stage.member)

    stage.wait_for(b"message 1")
    assert StoredOffset(2, "") == stage.stored()


def test_a_member_that_the_group_left_behind_stores_nothing_and_writes_nothing(
    stage: Stage, writer: DeadLetterWriter
) -> None:
    stage.reader.close()
    successor, _ = join(stage.connections, stage.topic)

    with pytest.raises(MemberFencedError):
        writer.write_letters([stage.given_up(1)], offsets=stage.behind(1), member=stage.member)

    end_what_was_left(stage.connections, [writer.name])
    assert stage.stored() is None
    assert [] == stage.seen()
    successor.close()


# --- an outcome that nobody knows -------------------------------------------------------------------------------------


class _Unanswered:
    """A writer whose commit is not answered; whether it happens is `is_done`."""

    def __init__(self, inner: TransactionalWriter, *, is_done: bool) -> None:
        self._inner = inner
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, *, timeout_s: float) -> None:
        if self._is_done:
            self._inner.commit(timeout_s=timeout_s)
        raise TxLayerError("nobody answered")


class _UnansweredConnections:
    def __init__(self, stage: Stage, *, is_done: bool) -> None:
        self._stage = stage
        self._is_done = is_done

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:
        inner = self._stage.connections.make_writer(transactional_id, batch_bytes_max=batch_bytes_max)
        return _Unanswered(inner, is_done=self._is_done)


@pytest.mark.parametrize("is_done", [True, False])
def test_starting_over_from_the_stable_offsets_settles_an_unknown_outcome(stage: Stage, *, is_done: bool) -> None:
    connections = _UnansweredConnections(stage, is_done=is_done)
    writer = DeadLetterWriter(connections, group=stage.group, name=unique_name("writer"))
    with pytest.raises(TxLayerError, match="nobody answered"):
        writer.write_letters([stage.given_up(0)], offsets=stage.behind(0), member=stage.member)

    place = (stage.topic, 0)
    stored = stage.stored_after_fencing(place, former_writers=[writer.name])[place]
    successor = stage.writer()
    if stored is None:
        successor.write_letters([stage.given_up(0)], offsets=stage.behind(0), member=stage.member)

    assert is_done == (stored is not None)
    stage.wait_for(b"message 0")
    assert StoredOffset(1, "") == stage.stored()
    successor.close()
    writer.close()
