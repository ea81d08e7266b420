"""What messages that wait keep in memory besides keys and values (P11)."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.consumers import Stage
from tests.support.lab_memory import MemoryLab
from tests.support.waiting import pause, wait_until
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import MESSAGE_LENGTH_MAX
from txlayer.core.retry import RetryPolicy

LIMIT = 1_000_000
SIZE = 100_000


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(MemoryLab())
    yield made
    made.close()


def items_of(consumer: Any) -> list[Any]:
    """Every item in memory."""
    owned = list(consumer._engine._assignments.owned.values())
    return [item for each in owned for item in list(each.queue._chains.tails.values())]


@pytest.mark.promise("P11")
def test_errors_of_messages_that_wait_for_their_next_attempt_stay_within_the_limit(stage: Stage) -> None:
    """As an error of a database that quotes its statement and parameters."""
    count = 200
    for n in range(count):
        stage.write(b"x", key=b"k%d" % n)

    def act(message: ReceivedMessage, _context: Context) -> None:
        raise ValueError(f"{message.offset}" + "x" * SIZE)

    policy = RetryPolicy(backoff_first_ms=600_000, backoff_max_ms=600_000)
    with stage.consumer(act, retry=policy, record_bytes_max=LIMIT) as consumer:
        stage.journal.wait_for(count)
        wait_until(lambda: sum(i.attempt_count for i in items_of(consumer)) == count, within=20, what="all have failed")
        kept = sum(len(i.more.error_message) for i in items_of(consumer))

    assert kept <= max(LIMIT, count * MESSAGE_LENGTH_MAX)


@pytest.mark.promise("P11")
def test_headers_of_messages_that_wait_stay_within_the_limit(stage: Stage) -> None:
    lab = stage.lab
    assert isinstance(lab, MemoryLab)

    def write(count: int) -> None:
        for n in range(count):
            lab.kafka.append(stage.topic, b"x", partition=0, key=b"k", headers=[("h", b"%d" % n + b"x" * SIZE)])

    write(10)  # as many as the limit allows; one read may exceed it
    gate = threading.Event()

    def act(_message: ReceivedMessage, _context: Context) -> None:
        gate.wait(20)

    with stage.consumer(act, record_bytes_max=LIMIT) as consumer:
        stage.journal.wait_for(1)
        wait_until(lambda: consumer.stats().topics[stage.topic].waiting > 0, within=20, what="some wait")
        write(190)
        pause(0.5)
        figures = consumer.stats().topics[stage.topic]
        in_memory = (figures.waiting + figures.in_flight) * SIZE
        gate.set()

    assert in_memory <= 2 * LIMIT
