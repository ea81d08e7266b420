"""Scheduled messages on a real broker: visible at their times, listed, cancelled and moved by a producer or a person."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.arena import Arena
from tests.support.operating import WHY, Tx, new_id
from tests.support.waiting import wait_until
from txlayer import COMMIT, AsyncTransactionMQProducer, Message, Resolution
from txlayer.core.ledger.transitions import TxnState
from txlayer.producer.producer import TransactionalProducer

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("coordinator")]

HOUR = timedelta(hours=1)


def scheduled(producer: TransactionalProducer, topic: str, *delays: timedelta | None) -> str:
    """A committed transaction with a message for each delay; its id."""
    txn_id = new_id()
    producer.publish([Message(topic, "k", f"{n}", delay=delay) for n, delay in enumerate(delays)], txn_id=txn_id)
    return txn_id


def state_of(producer: TransactionalProducer, txn_id: str) -> str:
    [history] = producer.status(txn_id)
    return "" if history.state is None else history.state.value


def wait_until_scheduled(producer: TransactionalProducer, txn_id: str) -> None:
    wait_until(lambda: state_of(producer, txn_id) == TxnState.SCHEDULED.value, within=20, what=f"{txn_id} is scheduled")


@pytest.mark.promise("P3", "P5")
def test_messages_become_visible_at_their_times(arena: Arena, producer: TransactionalProducer) -> None:
    topic, txn_id = arena.targets[0], new_id()
    at = datetime.now(UTC) + timedelta(seconds=3)
    with producer.transaction(txn_id) as tx:
        tx.send(topic, key="k", value="now")
        tx.send(topic, key="k", value="soon", deliver_at=at)
        tx.send(topic, key="k", value="soon too", deliver_at=at)
        tx.prepare()

    assert [b"now"] == [record.value for record in arena.wait_until_visible(txn_id)]
    seen = arena.wait_until_visible(txn_id, count=3)
    due_ms = round(at.timestamp() * 1000) - 1

    assert [b"now", b"soon", b"soon too"] == [record.value for record in seen]
    assert all(record.timestamp_ms >= due_ms for record in seen[1:])
    wait_until(lambda: state_of(producer, txn_id) == "committed", within=20, what="settled")


def test_a_person_lists_cancels_and_moves_them(arena: Arena, producer: TransactionalProducer, operator: Tx) -> None:
    cancelled, moved = (scheduled(producer, arena.targets[0], None, HOUR) for _ in range(2))
    for txn_id in (cancelled, moved):
        wait_until_scheduled(producer, txn_id)

    listed = {row["txn_id"]: row for row in operator.json("list", "--scheduled")}
    assert {cancelled, moved} <= listed.keys()
    assert all(row["due_ms"] > row["appended_ms"] + 3_000_000 for row in listed.values())

    (row,) = operator.json("cancel", cancelled, *WHY)
    assert ("done", "scheduled", "rolled-back") == (row["result"], row["state_before"], row["state"])
    (row,) = operator.json("reschedule", moved, "--to", "1s", *WHY)
    assert ("done", "scheduled") == (row["result"], row["state_before"])

    assert 2 == len(arena.wait_until_visible(moved, count=2))
    assert 1 == len(arena.visible(cancelled))
    code, out, err = operator.run("cancel", moved, *WHY)
    assert code == 1
    assert "nothing to cancel" in out + err
    assert 2 == len(arena.visible(moved))


def test_what_was_done_is_so_already_when_it_is_ordered_again(
    producer: TransactionalProducer, arena: Arena, operator: Tx
) -> None:
    orders = [
        (("cancel",), (HOUR,)),
        (("cancel",), (None, HOUR)),
        (("abandon",), (None, HOUR)),
        (("reschedule", "--to", "0s"), (HOUR,)),
        (("reschedule", "--to", "0s"), (None, HOUR)),
    ]
    given = [(scheduled(producer, arena.targets[0], *delays), words) for words, delays in orders]
    for txn_id, _ in given:
        wait_until_scheduled(producer, txn_id)

    first = [operator.json(action, txn_id, *more, *WHY) for txn_id, (action, *more) in given]
    for txn_id, _ in given:
        wait_until(lambda: state_of(producer, txn_id) in ("committed", "rolled-back"), within=20, what="it is settled")  # noqa: B023 - called at once
    again = [operator.run(action, txn_id, *more, *WHY) for txn_id, (action, *more) in given]

    assert ["done"] * len(orders) == [row["result"] for (row,) in first]
    assert [(0, "", True)] * len(orders) == [(code, err, " already" in out) for code, out, err in again]


def test_what_was_moved_to_a_time_is_so_already_when_that_is_ordered_again_behind_it(
    producer: TransactionalProducer, arena: Arena, operator: Tx
) -> None:
    txn_id, other = (scheduled(producer, arena.targets[0], HOUR) for _ in range(2))
    for each in (txn_id, other):
        wait_until_scheduled(producer, each)
    to = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()

    [first] = operator.json("reschedule", txn_id, "--to", to, *WHY)
    wait_until(lambda: state_of(producer, txn_id) == "committed", within=30, what="its time has come")
    code, out, err = operator.run("reschedule", txn_id, "--to", to, *WHY)
    refused = operator.run("reschedule", other, "--to", to, *WHY)

    assert ("done", 0, "") == (first["result"], code, err)
    assert " already" in out
    assert 2 == refused[0]
    assert "this time has passed" in refused[2]
    assert "scheduled" == state_of(producer, other)


def test_to_make_visible_at_once_what_is_cancelled_is_refused(
    producer: TransactionalProducer, arena: Arena, operator: Tx
) -> None:
    txn_id = scheduled(producer, arena.targets[0], HOUR)
    wait_until_scheduled(producer, txn_id)
    operator.json("cancel", txn_id, *WHY)

    code, _, err = operator.run("reschedule", txn_id, "--to", "0s", *WHY)

    assert 1 == code
    assert "nothing to reschedule" in err


@pytest.mark.promise("P4")
def test_a_producer_cancels_and_moves(arena: Arena, producer: TransactionalProducer) -> None:
    txn_id, other = (scheduled(producer, arena.targets[0], timedelta(seconds=2)) for _ in range(2))
    later = scheduled(producer, arena.targets[0], HOUR)

    assert producer.cancel(txn_id)
    wait_until_scheduled(producer, later)
    assert producer.reschedule(later, delay=timedelta(milliseconds=500))
    assert not producer.reschedule(txn_id, delay=HOUR)
    assert 1 == len(arena.wait_until_visible(later))
    assert not producer.reschedule(later, delay=HOUR)
    assert 1 == len(arena.wait_until_visible(other))
    assert [] == arena.visible(txn_id)
    assert not producer.cancel(other)
    assert not producer.cancel(new_id())


class Listener:
    """Commits whatever it is asked."""

    async def execute_local_transaction(self, _prepared: Any, _arg: Any) -> Resolution:
        return COMMIT

    async def check_local_transaction(self, _request: Any) -> Resolution:
        return COMMIT


@pytest.mark.promise("P4")
def test_a_task_schedules_cancels_and_moves(arena: Arena, producer: TransactionalProducer) -> None:
    topic, due = arena.targets[0], datetime.now(UTC) + HOUR
    cancelled, moved = new_id(), new_id()

    async def run() -> list[bool]:
        settings = {"bootstrap_servers": arena.servers, "namespace": arena.namespace, "group": producer.group}
        async with AsyncTransactionMQProducer(listener=Listener(), **settings) as tasks:
            await tasks.send_message_in_transaction(Message(topic, "k", "never"), txn_id=cancelled, delay_level=18)
            async with tasks.transaction(moved) as tx:
                tx.send(topic, key="k", value="moved", deliver_at=due)
                await tx.prepare()
            for txn_id in (cancelled, moved):
                await asyncio.to_thread(wait_until_scheduled, producer, txn_id)
            return [
                await tasks.cancel(cancelled),
                await tasks.reschedule(moved, delay=timedelta(milliseconds=500)),
                await tasks.reschedule(cancelled, delay=HOUR),
            ]

    assert [True, True, False] == asyncio.run(run())
    assert [b"moved"] == [record.value for record in arena.wait_until_visible(moved)]
    assert [] == arena.visible(cancelled)
