"""Messages of one key that are handed out together: one after the other, or as batches."""

import gc
import random
import weakref
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tests.support.queue_stage import FAILED, REJECTED, REPLAY, TOPIC, QueueStage
from txlayer.consumer.context import Context, Lease, ReceivedMessage
from txlayer.consumer.dispatch import Dispatcher
from txlayer.consumer.handlers import HandlerSet
from txlayer.consumer.metrics import TopicCounts
from txlayer.consumer.offsets import OwnedPartition
from txlayer.consumer.pools import Caller, Chunk, ThreadPool, items_of, take_apart
from txlayer.consumer.process_pool import SentRecord
from txlayer.core.key_queue import Item, PartitionQueue, QueueOrder, QueueSettings, Start
from txlayer.core.retry import AfterExhausted, RetryPolicy

A, B = b"a", b"b"
AT_ONCE = RetryPolicy(attempt_count_max=1_000, backoff_first_ms=0, backoff_max_ms=0)


def test_every_key_has_a_turn_before_one_has_its_next() -> None:
    stage = QueueStage([A, A, A, B, B])

    taken, lasts = stage.queue.take_runs(4, now_ms=0)

    assert ["0", "3", "1", "4"] == [item.record for item in taken]
    assert ["1", "4"] == [item.record for item in lasts]
    assert 4 == stage.queue.in_flight_count
    stage.queue.handled(taken, lasts)
    assert ["2"] == stage.taken()


def test_when_the_metadata_are_full_nothing_goes_along() -> None:
    settings = QueueSettings(metadata_bytes_max=1_000, parked_keys_max=1)
    stage = QueueStage([A, *(b"%d" % n for n in range(8_000)), A], settings)
    _, *items = stage.take(8_001)
    stage.queue.handled(random.Random(7).sample(items, 4_000))
    stage.store()
    stage.restart()
    stage.store()
    assert stage.queue.is_full

    taken, lasts = stage.queue.take_runs(10, now_ms=stage.now_ms)

    assert ["0"] == [item.record for item in taken] == [item.record for item in lasts]


class OneWorker:
    """A pool of which the test says when its chunk is run."""

    chunk_s = ThreadPool.chunk_s
    has_runs = ThreadPool.has_runs
    busy_count = 10
    hung_count = 0

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._begun: list[Chunk] = []
        self._running: Chunk | None = None
        self._parts: list[Any] = []
        self.is_free = True

    def start(self) -> None:
        """Nothing."""

    def free_count(self) -> int:
        return int(self.is_free) - len(self._begun)

    def submit(self, chunk: Chunk) -> None:
        self._begun.append(chunk)

    def take(self) -> list[Any]:
        begun, self._begun = self._begun, []
        ended = []
        for chunk in begun:
            self._running = chunk
            ended.append(self._caller.run(chunk))
        parts, self._parts = self._parts, []
        return parts + ended

    def take_apart(self) -> None:
        """What can be told of the running chunk is told next."""
        assert self._running is not None
        if not self._running.told and (part := take_apart(self._running, 0.1)) is not None:
            self._parts.append(part)

    def wait(self, timeout_s: float) -> None:
        """Nothing runs."""

    def close(self, timeout_s: float) -> None:
        """Nothing runs."""


class Handling:
    """One queue, and a handler that fails at some offsets."""

    def __init__(self, keys: list[bytes], *, failing: set[int], lost_at: int = -1) -> None:
        self.seen: list[int] = []
        self._failing, self._lost_at = failing, lost_at
        handlers = HandlerSet(is_async=False)
        handlers.add(self._handle, topics=(), tags="*", retry=None)
        routes = handlers.routes(["orders"])
        ticks = count(1)
        self.during: dict[int, Callable[[], None]] = {}
        """What happens while the message at this offset is handled."""
        self.lease = Lease("loyalty", "orders", 0)
        self.pool = pool = OneWorker(Caller(routes, attempt_timeout_s=60.0, clock=lambda: next(ticks) / 1e6))
        self.queues: PartitionQueue[Any] = PartitionQueue(
            topic=Start(0), replays=Start(0), settings=QueueSettings(policy=AT_ONCE), now_ms=0
        )
        records = [SentRecord(("orders", 0, n), k, b"", None, (1, 0)) for n, k in enumerate(keys)]
        self.queues.add(records, offsets=range(len(keys)), keys=keys, sizes=[1] * len(keys), now_ms=0)
        self.owned = OwnedPartition(
            self.lease, self.queues, route=routes["orders"], tally=TopicCounts(), chunk_s=pool.chunk_s, next_offsets={}
        )
        self.owned.chunk_size.count = 100
        self.dispatcher = Dispatcher(pool, in_flight_max=100, clock=lambda: 0.0, now_ms=lambda: 0, draw=lambda: 0.0)

    def _handle(self, message: ReceivedMessage, _context: Context) -> None:
        self.seen.append(message.offset)
        self.during.get(message.offset, list)()
        if message.offset == self._lost_at:
            self.lease.valid_until = 0.0
        if message.offset in self._failing:
            raise ValueError("no")

    def turn(self) -> None:
        self.dispatcher.begin([self.owned])
        self.dispatcher.take()


def test_behind_a_message_that_fails_none_of_its_key_is_begun_and_all_come_in_order() -> None:
    handling = Handling([A, B, A, B, A], failing={0})

    handling.turn()
    assert [0, 1, 3] == handling.seen
    assert (0, 0) == (handling.queues.in_flight_count, handling.dispatcher.in_flight_count)

    handling._failing.clear()
    handling.turn()
    assert [0, 1, 3] == handling.seen, "its count is not stored yet"
    handling.queues.stored(TOPIC, handling.queues.snapshot(TOPIC).version)
    for _ in range(3):
        handling.turn()

    assert [0, 1, 3, 0, 2, 4] == handling.seen
    assert (0, 0) == (handling.queues.in_flight_count, handling.queues.count)


def test_what_a_lost_lease_cuts_short_waits_in_order() -> None:
    handling = Handling([A, B, A, B, A], failing=set(), lost_at=1)

    handling.turn()
    assert [0, 1] == handling.seen
    assert 0 == handling.queues.in_flight_count

    handling.lease.valid_until = float("inf")
    handling._lost_at = -1
    for _ in range(3):
        handling.turn()

    assert [0, 1, 2, 3, 4] == handling.seen
    assert (0, 0) == (handling.queues.in_flight_count, handling.queues.count)


@pytest.mark.promise("P11")
def test_a_message_whose_handler_hangs_holds_none_of_those_behind_it_when_its_queue_is_lost() -> None:
    handling, begun = Handling([A, A, A], failing=set()), list[Chunk]()
    handling.owned.chunk_size.count = 1

    def lose() -> None:
        begun.extend(handling.dispatcher._begun)
        handling.owned.end()
        handling.dispatcher.forget(handling.owned)

    handling.during[0] = lose
    handling.turn()

    assert [[None]] == [[item.follower for job in chunk.jobs for item in items_of(job)] for chunk in begun]


def test_what_a_drain_cuts_short_is_not_begun_and_waits_in_order() -> None:
    handling = Handling([A, B, A, B, A], failing=set())
    cut: list[int] = []
    handling.during[1] = lambda: cut.append(handling.dispatcher.cut())

    handling.turn()
    assert [0, 1] == handling.seen
    assert [5] == cut
    assert (0, 0) == (handling.queues.in_flight_count, handling.dispatcher.in_flight_count)

    for _ in range(3):
        handling.turn()

    assert [0, 1, 2, 3, 4] == handling.seen
    assert (0, 0) == (handling.queues.in_flight_count, handling.queues.count)


def test_a_chunk_that_began_long_ago_is_waited_for_when_its_job_has_just_begun() -> None:
    handling = Handling([A, A, A], failing=set())
    found: list[bool] = []

    def lose() -> None:
        handling.owned.end()
        handling.dispatcher.forget(handling.owned)
        # The first message began at 1 us, this one at 2 us.
        found.extend(handling.dispatcher.is_clear(("orders", 0), since=us * 1e-6) for us in (1.5, 2.5))

    handling.during[1] = lose
    handling.turn()

    assert [0, 1] == handling.seen
    assert [False, True] == found
    assert handling.dispatcher.is_clear(("orders", 0), since=0.0)


def test_of_a_chunk_that_is_taken_apart_other_keys_go_on_and_the_running_one_waits() -> None:
    handling = Handling([A, B, A, b"c", A, B], failing=set())
    meanwhile: list[Any] = []

    def look() -> None:
        handling.pool.take_apart()
        handling.dispatcher.take()
        meanwhile.append((handling.queues.snapshot(TOPIC).offset, handling.queues.in_flight_count))
        meanwhile.append(handling.queues.ready_count)

    handling.during[1] = look
    handling.turn()

    assert [0, 1] == handling.seen[:2]
    assert [(1, 2), 2] == meanwhile, "the first is stored, B and what is behind it wait, A and c go on"
    for _ in range(3):
        handling.turn()
    assert [0, 1] == handling.seen[:2]
    assert [[0, 2, 4], [1, 5], [3]] == [[n for n in handling.seen if n in k] for k in ({0, 2, 4}, {1, 5}, {3})]
    assert (0, 0) == (handling.queues.in_flight_count, handling.queues.count)


@pytest.mark.promise("P11")
def test_a_chunk_that_was_taken_apart_does_not_keep_its_queue_until_the_collector_of_garbage_comes() -> None:
    handling = Handling([A, B, A, b"c", A, B], failing=set())

    def look() -> None:
        handling.pool.take_apart()
        handling.dispatcher.take()

    handling.during[1] = look
    left = weakref.ref(handling.owned)
    gc.disable()
    try:
        for _ in range(4):
            handling.turn()
        handling.pool._running = None
        del handling.owned
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 100))])
def test_wherever_a_chunk_is_taken_apart_each_key_is_handled_in_order_and_once(seed: int) -> None:
    draw = random.Random(seed)
    keys = [draw.choice([A, B, b"c", b"d"]) for _ in range(20)]
    handling = Handling(keys, failing={n for n in range(20) if draw.random() < 0.2})

    def look() -> None:
        handling.pool.take_apart()
        handling.dispatcher.take()

    handling.during = {n: look for n in range(20) if draw.random() < 0.2}
    failing, handling._failing = handling._failing, set()
    done: list[int] = []
    for n in failing:  # once each
        before = handling.during.get(n, list)

        def fail_once(n: int = n, before: Callable[[], object] = before) -> None:
            before()
            if handling.seen.count(n) == 1:
                raise ValueError("once")

        handling.during[n] = fail_once
    for _ in range(200):
        handling.turn()
        handling.queues.stored(TOPIC, handling.queues.snapshot(TOPIC).version)
    done = [n for n in handling.seen if n not in failing]

    assert sorted(done) == [n for n in range(20) if n not in failing]
    for key in (A, B, b"c", b"d"):
        of_key = [n for n in dict.fromkeys(handling.seen) if keys[n] == key]
        assert of_key == sorted(of_key)
    assert all(handling.seen.count(n) == 2 for n in failing)
    assert (0, 0, 0) == (handling.queues.in_flight_count, handling.queues.count, handling.dispatcher.in_flight_count)


ONE = b"a"


def test_a_batch_that_failed_comes_back_one_by_one_each_with_its_attempt() -> None:
    stage = QueueStage([ONE, ONE, ONE], QueueSettings(policy=AT_ONCE))
    (batch,) = stage.queue.take_batches(5, records_max=2, now_ms=0)
    stage.queue.failed(batch, FAILED, now_ms=0, draw=0.0)
    stage.store()

    told = []
    for _ in range(3):
        ((item,),) = stage.queue.take_batches(5, records_max=2, now_ms=stage.now_ms)
        told.append((item.record, item.attempt_count))
        stage.queue.handled([item])

    assert [("0", 1), ("1", 1), ("2", 0)] == told


def test_a_rejected_batch_is_written_in_one_kafka_transaction() -> None:
    stage = QueueStage([ONE, ONE, ONE])
    (batch,) = stage.queue.take_batches(5, records_max=2, now_ms=0)
    stage.queue.failed(batch, REJECTED, now_ms=0, draw=0.0)
    stage.store()

    assert ["0", "1"] == stage.write_due()
    assert ["2"] == stage.taken()


def test_only_the_part_of_a_batch_that_is_begun_is_in_flight() -> None:
    stage = QueueStage([ONE, ONE, ONE])
    (batch,) = stage.queue.take_batches(5, records_max=3, now_ms=0)

    begun = stage.queue.shorten(batch, 2)
    assert 2 == stage.queue.in_flight_count
    stage.queue.handled(begun)

    assert ["2"] == stage.taken()


def test_without_an_order_one_call_in_ten_is_a_retry_and_the_others_have_whole_batches() -> None:
    stage = QueueStage([ONE] * 2_001, QueueSettings(policy=AT_ONCE, order=QueueOrder.NONE))
    failing = stage.take(1)
    stage.queue.failed(failing, FAILED, now_ms=0, draw=0.0)
    stage.store()

    counts = []
    for _ in range(20):
        (batch,) = stage.queue.take_batches(1, records_max=100, now_ms=stage.now_ms)
        counts.append(len(batch))
        if batch == failing:
            stage.queue.failed(batch, FAILED, now_ms=0, draw=0.0)
            stage.store()
        else:
            stage.queue.handled(batch)

    assert ([100] * 9 + [1]) * 2 == counts


def test_without_an_order_the_rest_of_a_batch_waits_again() -> None:
    stage = QueueStage([ONE] * 4, QueueSettings(order=QueueOrder.NONE))
    (batch,) = stage.queue.take_batches(1, records_max=4, now_ms=0)

    unread = stage.queue.end_before(batch, 1)
    stage.queue.undecodable(unread, FAILED, now_ms=0)
    assert ["1"] == stage.write_due()
    assert 0 == stage.queue.in_flight_count
    assert ["2", "3"] == stage.taken()


def test_the_writers_name_and_markers_reach_the_stored_offset() -> None:
    stage = QueueStage([ONE])
    stage.queue.writer = "loyalty.dlq.7"
    stage.queue.handled(stage.take())
    stage.queue.reach(TOPIC, 3)
    assert stage.queue.is_changed(TOPIC)
    assert not stage.queue.is_changed(REPLAY)
    stage.store()

    assert {TOPIC: (3, "1|loyalty.dlq.7||||"), REPLAY: (0, "1|||||")} == stage.stored
    assert "loyalty.dlq.7" == stage.queue.writer
    assert "Item(topic 0, chain b'a', None)" == repr(Item("0", 0, ONE, 1))
    assert AfterExhausted.GO_ON is QueueSettings().policy.after_exhausted
