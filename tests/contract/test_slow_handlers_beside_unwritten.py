"""A dead letter that cannot be written, and handlers that are slower than the pause between two tries (P9).

All times are a fortieth of the defaults: tries of 0.25 s (10 s), 1.5 s apart (a minute), 0.125 s for running handlers (5 s).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from tests.contract.test_unwritten_dead_letters import StuckPartition, at_once
from tests.support.consumers import Stage
from tests.support.lab_memory import MemoryLab
from tests.support.waiting import pause, wait_until
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.retry import HandlerResult, Reject, RetryPolicy

pytestmark = pytest.mark.promise("P9")

REVOKE = timedelta(milliseconds=125)
EITHER = pytest.mark.parametrize("partition", [0, 1], ids=["same-partition", "other-partition"])


class Scene:
    """A consumer that rejects the key `bad`, and whose key `slow` waits for a gate; partition 0 of the dead letters takes nothing."""

    def __init__(self) -> None:
        self.stage = Stage(MemoryLab(), partitions=2)
        inner = self.stage.lab.consumer(namespace=self.stage.namespace)
        self.cluster = StuckPartition(inner, (self.stage.letters, 0))
        self.gate = threading.Event()
        self.slow_s = 40.0
        self.slow_count = 0

    def act(self, message: ReceivedMessage, _context: Context) -> HandlerResult:
        """The handler."""
        if message.key == b"slow":
            self.slow_count += 1
            self.gate.wait(self.slow_s)
        return Reject("as planned") if message.key == b"bad" else None

    @contextmanager
    def consumer(self) -> Iterator[OrderedConsumer]:
        """It runs, and everything goes on at the end."""
        with self.stage.consumer(
            self.act,
            connect=lambda _: self.cluster,
            retry=RetryPolicy(attempt_count_max=1),
            kafka_transaction_timeout=timedelta(seconds=0.25),
            revoke_timeout=REVOKE,
        ) as consumer:
            try:
                yield consumer
            finally:
                self.gate.set()
                self.cluster.place = None


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    at_once(monkeypatch, pause_max_ms=1_500)
    made = Scene()
    yield made
    made.stage.close()


def fail_a_try(stage: Stage, consumer: OrderedConsumer) -> None:
    """Reject a message whose dead letter cannot be written, and wait until that was tried."""
    stage.write(b"bad", key=b"bad", partition=0)
    wait_until(lambda: consumer.stats().replaced_count >= 1, within=20, what="a failed try")


@pytest.mark.slow
@EITHER
def test_a_handler_that_takes_longer_than_the_pause_between_two_tries_ends(scene: Scene, partition: int) -> None:
    stage, scene.slow_s = scene.stage, 2.0
    with scene.consumer() as consumer:
        fail_a_try(stage, consumer)
        stage.write(b"slow", key=b"slow", partition=partition)
        wait_until(
            lambda: consumer.stats().topics[stage.topic].handled >= 1, within=30, what="the slow message has ended"
        )
        count = scene.slow_count
    assert count <= 2


@EITHER
def test_other_keys_go_on_beside_a_running_handler_when_a_dead_letter_cannot_be_written(
    scene: Scene, partition: int
) -> None:
    """The handler is within its `attempt_timeout` (5 min); nobody but its own key should wait for it."""
    stage = scene.stage
    with scene.consumer() as consumer:
        stage.write(b"slow", key=b"slow", partition=partition)
        stage.journal.wait_for(1)
        fail_a_try(stage, consumer)
        stage.write(b"good", key=b"good", partition=partition)
        wait_until(lambda: stage.journal.values(b"good"), within=15, what="the other key")


def test_other_keys_go_on_beside_a_running_handler_when_a_dead_letter_is_refused(scene: Scene) -> None:
    """One dead letter is too large for its topic; the handler of another key runs for minutes."""
    stage, scene.cluster.place = scene.stage, None
    stage.lab.delete_topic(stage.letters)
    stage.lab.create(stage.letters, partitions=2, settings={"max.message.bytes": "2000"})
    with scene.consumer() as consumer:
        stage.write(b"slow", key=b"slow")
        stage.journal.wait_for(1)
        stage.write(b"x" * 5_000, key=b"bad")
        wait_until(lambda: consumer.stats().replaced_count >= 1, within=20, what="a failed try")
        stage.write(b"good", key=b"good")
        wait_until(lambda: stage.journal.values(b"good"), within=10, what="the other key")


@EITHER
def test_everything_goes_on_when_a_handler_that_ran_during_a_failed_try_has_ended(scene: Scene, partition: int) -> None:
    """Its queue is taken over behind the others: what is stored for it names the writer whose Kafka transaction nobody can end."""
    stage = scene.stage
    with scene.consumer() as consumer:
        stage.write(b"slow", key=b"slow", partition=partition)
        stage.journal.wait_for(1)
        fail_a_try(stage, consumer)
        pause(1.0)  # the queues without a running handler are taken over meanwhile
        scene.gate.set()
        for number in range(2):
            stage.write(b"good", key=b"good-%d" % number, partition=number)
        wait_until(
            lambda: stage.journal.values(b"good-0") and stage.journal.values(b"good-1"),
            within=30,
            what="the other keys",
        )
