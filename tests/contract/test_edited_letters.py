"""A dead letter whose value a person edits: its group's consumers handle the copy in its place, over both logs."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.waiting import wait_until
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import DeadLetterState, ReplayKind, ReplayRecord, encode_replay
from txlayer.core.retry import AfterExhausted, RetryPolicy
from txlayer.errors import UsageError
from txlayer.operate.dead_letters import DeadLetterLog
from txlayer.operate.replay import author_of, replace_value

PARKING = RetryPolicy(attempt_count_max=1, after_exhausted=AfterExhausted.PARK)


def act(message: ReceivedMessage, _context: Context) -> None:
    if message.value == b"bad":
        raise ValueError("no total")


def log_of(stage: Stage, admin: Any, connections: Any) -> DeadLetterLog:
    return DeadLetterLog(
        admin, group=stage.group, topic=stage.topic, make_reader=lambda: connections.make_reader("read_committed")
    )


def edit(stage: Stage, offset: int, value: bytes, expected: DeadLetterState = DeadLetterState.HANDLED) -> int:
    with closing(stage.lab.consumer()) as connections, closing(stage.lab.admin()) as admin:
        log = log_of(stage, admin, connections)
        found = log.at(0, offset)
        assert found is not None
        author = author_of("a test", operator="zoe", reason="no total", request_id=f"r{offset}")
        copy = replace_value(log, found, value, author=author, connections=connections)

        def states() -> list[DeadLetterState]:
            log.follow()
            return [log.history(found.position._replace(offset=at)).state for at in (offset, copy)]

        wait_until(
            lambda: states() == [DeadLetterState.DROPPED, expected],
            within=PATIENCE_S,
            what=f"dropped and {expected}, not {states()}",
        )
        assert (expected is DeadLetterState.FAILED) == bool(log.queues()[0].parked), "parked until it is handled"
    return copy


@pytest.mark.promise("P9")
def test_the_copy_is_tried_behind_one_that_failed_and_that_retention_took(stage: Stage) -> None:
    stage.write(b"bad", b"behind", key=b"a")
    with stage.consumer(act, retry=PARKING):
        stage.wait_for_letters([b"bad", b"behind"])
        first, second = (each.offset for each in stage.lab.read(stage.letters))
        stage.lab.write(stage.requests, encode_replay(ReplayRecord(ReplayKind.REPLAY, "r1", first)), key=b"a")
        wait_until(lambda: len(stage.lab.read(stage.requests)) == 2, within=PATIENCE_S, what="it failed again")
        stage.lab.delete_records(stage.letters, before=second)
        edit(stage, second, b"mended")

    assert [b"bad", b"bad", b"mended"] == stage.journal.values(b"a")


@pytest.mark.promise("P9")
def test_the_copy_is_handled_with_the_key_and_the_first_one_never_again(stage: Stage) -> None:
    stage.write(b"bad", key=b"a")
    with stage.consumer(act, retry=PARKING):
        stage.wait_for_letters([b"bad"])
        copy = edit(stage, stage.lab.read(stage.letters)[0].offset, b"bad", DeadLetterState.FAILED)
        edit(stage, copy, b"mended")
        stage.write(b"later", key=b"a")
        stage.wait_stored(2)

    assert [b"bad", b"bad", b"mended", b"later"] == stage.journal.values(b"a")
    assert [b"bad", b"bad", b"mended"] == stage.letter_values()


def test_the_same_form_once_more_with_another_value_is_refused(stage: Stage) -> None:
    """A person who goes back in the browser must not believe that the second value counts."""
    stage.write(b"bad", key=b"a")
    with stage.consumer(act, retry=PARKING):
        stage.wait_for_letters([b"bad"])
        first = stage.lab.read(stage.letters)[0].offset
        copy = edit(stage, first, b"mended")

        assert copy == edit(stage, first, b"mended")
        with pytest.raises(UsageError, match="another value"):
            edit(stage, first, b"mended better")

    assert [b"bad", b"mended"] == stage.journal.values(b"a")


@pytest.mark.promise("P11")
@pytest.mark.parametrize("policy", [RetryPolicy(attempt_count_max=1), PARKING])
@pytest.mark.parametrize("key", [b"a", None])
@OF_HANDLERS
def test_while_its_kafka_transaction_is_open_an_edit_reads_only_what_came_since(
    stage: Stage, policy: RetryPolicy, key: bytes | None
) -> None:
    """Of a long topic it would hold up the readers, and be aborted in the end. What is not read again counts all the same."""
    stage.write(b"bad", key=key)
    stage.write(*[b"bad"] * 20, key=b"b")
    with stage.consumer(act, retry=policy):
        stage.wait_stored(21)

    read: list[int] = []
    is_open = False
    with closing(stage.lab.consumer()) as connections, closing(stage.lab.admin()) as admin:
        log = log_of(stage, admin, connections)
        letters, make = log.letters, connections.make_writer

        def letters_read(**which: Any) -> Iterator[Any]:
            for each in letters(**which):
                if is_open:
                    read.append(each.position.offset)
                yield each

        def make_writer(transactional_id: str, **settings: Any) -> Any:
            writer = make(transactional_id, **settings)
            begin = writer.begin

            def begin_and_tell() -> None:
                nonlocal is_open
                is_open = True
                begin()

            writer.begin = begin_and_tell  # type: ignore[method-assign]  # to see it
            return writer

        log.letters = letters_read  # type: ignore[method-assign]  # likewise
        connections.make_writer = make_writer  # type: ignore[method-assign]  # likewise
        found = next(each for each in letters() if each.key == key)
        replace_value(
            log,
            found,
            b"mended",
            author=author_of("a test", operator="zoe", reason="no total", request_id="r1"),
            connections=connections,
        )

    assert is_open
    assert [] == read
    assert b"mended" in stage.letter_values()
