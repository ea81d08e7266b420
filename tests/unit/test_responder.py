"""A producer that answers: over a log in memory, with a member whose records the test says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support.answering_producer import ORDER, PATIENCE_S, answers, commit, member, quick_log, stats_of
from tests.support.fake_barrier import FakeBarrier
from tests.support.fake_log import ProducerLog
from tests.support.fake_member import limit, question, refusal
from tests.support.waiting import wait_until
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Resolution, Source
from txlayer.errors import OpenTransactionLimitError, OutcomeUnknownError
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.questions import RefusedResolution


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProducerLog]:
    yield from quick_log(monkeypatch)


# --- answering --------------------------------------------------------------------------------------------------------


def test_a_producer_that_never_sends_answers_from_its_start_on(log: ProducerLog) -> None:
    producer = log.producer(check=commit)
    assert producer.responder_stats() is None
    producer.start()

    member(log).say(question("a", number=3, partition=2))

    (answer,) = answers(log, count=1)
    assert (COMMIT, "a/0000000a", 17, Source.CHECK, 3) == (
        answer.resolution,
        answer.key,
        answer.last_offset,
        answer.source,
        answer.check_number,
    )
    assert [2] == [record.partition for record in log.writer.of("txlayer.op")]
    assert "g" == member(log).group


def test_without_a_handler_and_a_barrier_nobody_joins_a_group(log: ProducerLog) -> None:
    producer = log.producer()
    producer.publish(ORDER)

    assert [] == log.connections.members
    assert producer.responder_stats() is None


def test_answers_of_one_partition_travel_together(log: ProducerLog) -> None:
    producer = log.producer(barrier=FakeBarrier(row=ROLLBACK))
    producer.start()

    member(log).say(*(question(str(n), partition=n % 2) for n in range(600)))

    found = answers(log, count=600)
    assert {(ROLLBACK, Source.BARRIER)} == {(a.resolution, a.source) for a in found}
    assert len(log.writer.of("txlayer.op")) <= 4


def test_a_barrier_is_asked_for_many_at_once(log: ProducerLog) -> None:
    barrier = FakeBarrier(row=COMMIT)
    log.producer(barrier=barrier).start()

    member(log).say(*(question(str(n)) for n in range(10)))

    answers(log, count=10)
    assert [("resolve_many", 10, "g")] == barrier.calls


@pytest.mark.parametrize("said", [None, "COMMIT", 1, "raises", "slow"])
def test_no_clear_word_is_unknown_and_counted_by_its_cause(log: ProducerLog, said: Any) -> None:
    may_end = threading.Event()

    def check(_: CheckRequest) -> Any:
        if said == "raises":
            raise ValueError("COMMIT")
        if said == "slow":
            may_end.wait(PATIENCE_S)
            return COMMIT
        return said

    # Who is not slow has the time of a busy machine.
    timeout = timedelta(milliseconds=50) if said == "slow" else timedelta(seconds=PATIENCE_S)
    producer = log.producer(check=check, check_timeout=timeout)
    producer.start()
    member(log).say(question())

    (answer,) = answers(log, count=1)
    may_end.set()
    causes = {
        None: "returned NoneType",
        "COMMIT": "returned str",
        1: "returned int",
        "raises": "ValueError",
        "slow": "TimeoutError",
    }
    assert (UNKNOWN, f"handler: {causes[said]}") == (answer.resolution, answer.reason)
    assert {causes[said]: 1} == stats_of(producer).unknown


def test_a_barrier_that_raises_is_unknown(log: ProducerLog) -> None:
    log.producer(barrier=FakeBarrier(row=ConnectionError("down"))).start()

    member(log).say(question("a"), question("b"))

    assert ["barrier: ConnectionError"] * 2 == [a.reason for a in answers(log, count=2)]


def test_one_slow_call_does_not_hold_up_the_others(log: ProducerLog) -> None:
    may_end = threading.Event()

    def check(request: CheckRequest) -> Resolution:
        if request.txn_id == "slow":
            may_end.wait(PATIENCE_S)
        return COMMIT

    producer = log.producer(check=check)
    producer.start()
    member(log).say(question("slow"), question("a"), question("b"))

    assert {"a/0000000a", "b/0000000a"} == {a.key for a in answers(log, count=2)}
    may_end.set()
    answers(log, count=3)


def test_an_instance_whose_handler_hangs_for_good_lets_others_answer(
    log: ProducerLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.producer.check_handlers.LOST_COUNT_MAX", 0)
    may_end = threading.Event()

    def check(_: CheckRequest) -> Resolution:
        may_end.wait(PATIENCE_S)
        return COMMIT

    # So long that the answer to the second question, which does not hang, is not late on a busy machine.
    settings = {"check_timeout": timedelta(milliseconds=500), "check_workers": 1}
    log.producer(check=check, **settings).start()
    first = member(log)
    first.say(question("a"))
    wait_until(lambda: first.is_closed, within=PATIENCE_S, what="it left the group")
    assert 1 == len(log.connections.members)

    may_end.set()
    member(log, 1).say(question("b"))

    assert [UNKNOWN, COMMIT] == [a.resolution for a in answers(log, count=2)]


def test_a_late_result_is_dropped(log: ProducerLog) -> None:
    may_end = threading.Event()

    def check(_: CheckRequest) -> Resolution:
        may_end.wait(PATIENCE_S)
        return COMMIT

    producer = log.producer(check=check, check_timeout=timedelta(milliseconds=50))
    producer.start()
    member(log).say(question())
    answers(log, count=1)

    may_end.set()
    wait_until(lambda: stats_of(producer).late == 1, within=PATIENCE_S, what="the late result")

    assert [UNKNOWN] == log.resolutions()


def test_a_full_client_keeps_answers_for_later(log: ProducerLog) -> None:
    log.producer(check=commit).start()
    log.writer.room = 0
    member(log).say(question())
    wait_until(lambda: not member(log)._said, within=PATIENCE_S, what="it was read")

    log.writer.room = 10

    assert [COMMIT] == [a.resolution for a in answers(log, count=1)]


def test_an_answer_that_is_not_stored_is_counted_as_lost(log: ProducerLog) -> None:
    log.writer.refuse = lambda _: OutcomeUnknownError("timed out")
    producer = log.producer(check=commit)
    producer.start()

    member(log).say(question())

    wait_until(lambda: stats_of(producer).lost == 1, within=PATIENCE_S, what="the loss")
    assert 0 == stats_of(producer).stored


# --- limits and refusals ----------------------------------------------------------------------------------------------


def entries(producer: TransactionalProducer) -> list[Callable[[], Any]]:
    return [
        producer.transaction,
        lambda: producer.submit(ORDER),
        lambda: producer.submit([ORDER, ORDER], txn_id="mine"),
        lambda: producer.publish(ORDER),
    ]


def test_a_limit_stops_those_who_enter_until_it_ends(log: ProducerLog) -> None:
    producer = log.producer(check=commit)
    with producer.transaction() as entered:
        member(log).say(limit("on", partition=2, count=7), partition=1)

        def is_limited() -> bool:
            try:
                with producer.transaction() as tx:
                    tx.rollback()
            except OpenTransactionLimitError:
                return True
            return False

        wait_until(is_limited, within=PATIENCE_S, what="the limit")
        for enter in entries(producer):
            with pytest.raises(OpenTransactionLimitError) as raised:
                enter()
            assert ("g", (2,), 7) == (raised.value.producer_group, raised.value.partitions, raised.value.open_count)
        entered.send("orders", value=b"v")
        entered.prepare()  # who is in may go on

    member(log).say(limit("off", partition=2), partition=1)
    wait_until(lambda: not is_limited(), within=PATIENCE_S, what="the end of the limit")
    producer.publish(ORDER)


def test_limits_of_other_groups_stop_nobody(log: ProducerLog) -> None:
    producer = log.producer(check=commit)
    producer.start()
    member(log).say(limit("on", group="other"), question())
    answers(log, count=1)

    producer.publish(ORDER)


def test_a_refusal_is_told_and_logged_and_a_callback_that_raises_harms_nobody(
    log: ProducerLog, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[RefusedResolution] = []

    def on_refused(refused: RefusedResolution) -> None:
        told.append(refused)
        raise KeyError(refused.txn_id)

    producer = log.producer(check=commit, on_refused=on_refused)
    producer.start()
    with caplog.at_level(logging.WARNING, "txlayer.responder"):
        member(log).say(refusal("late"), question())
        answers(log, count=1)

    assert [RefusedResolution("late", "0000000a", "g", 3, "COMMIT by producer")] == told
    assert "resolution.refused" in [r.getMessage() for r in caplog.records]
    assert 1 == stats_of(producer).refused
