"""What a publisher counts and waits for, how the one bad line of a Kafka transaction is found, and how a batch that took too long shrinks."""

from __future__ import annotations

from datetime import timedelta
from math import ceil, log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_records import GROUP, op_line, options, plain_record, txn_key
from tests.support.still_coordinator import AT_ONCE_MAX, AtOnce, StillCoordinator, seen_by, slow_for
from txlayer.config import CoordinatorConfig, milliseconds
from txlayer.coordinator.publish import Publisher
from txlayer.core.ledger.batch import PASSES_TO_GROW, Batch, BatchSize, Bisection, MoveToDoubt, RecordToQuarantine
from txlayer.core.ledger.transaction import Content, Transaction
from txlayer.core.messages import NO_OPTIONS, OrderMode, Origin, Undecodable
from txlayer.errors import BrokerUnavailableError, ProducerFencedError
from txlayer.runtime.environment import Environment


class Writer:
    """Takes everything; its acknowledgements may stay away."""

    batch_bytes_max = 1

    def __init__(self, transactional_id: str, world: World) -> None:
        self.transactional_id = transactional_id
        self._world = world

    def initialise(self, *, timeout_s: float) -> None:
        """Nothing."""

    def begin(self) -> None:
        """Nothing."""

    def produce(self, *_: Any) -> None:
        """Takes a second."""
        self._world.now += 1

    def flush(self, *, timeout_s: float) -> int:
        """How many are not acknowledged; takes two seconds."""
        del timeout_s
        self._world.now += 2
        return self._world.lost_count

    def send_offsets(self, *_: Any, timeout_s: float) -> None:
        """Takes three seconds."""
        del timeout_s
        self._world.now += 3

    def commit(self, *, timeout_s: float) -> None:
        """Takes four seconds."""
        del timeout_s
        self._world.now += 4

    def close(self) -> None:
        """Hangs if the world lets clients hang."""
        if self._world.do_closes_hang:
            raise HangsError


class HangsError(Exception):
    """Whoever called waits for ever."""


class World:
    """A clock and what becomes of records."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.lost_count = 0
        self.do_closes_hang = False
        book: Any = self
        self.publisher = Publisher(
            CoordinatorConfig(**settings),
            name="w",
            make_writer=self._make_writer,
            targets=book,
            environment=Environment(clock=lambda: self.now, background=AtOnce()),
        )
        self.batch_bytes_max = 1
        self.publisher.start()

    def check_allowed(self, topic: str, *, txn_key: str) -> None:
        """Everything may be forwarded here."""

    def partition_count_of(self, topic: str) -> int:
        """Each topic has one partition."""
        del topic
        return 1

    def _make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:
        del batch_bytes_max
        return Writer(transactional_id, self)


def batch() -> Batch:
    """A transaction of one message and one of three."""
    record = plain_record(key=b"k", value=b"v", headers=[("txl", b"")])
    plain = Transaction("a/0000000a", "g", "orders", 0, 0, "0", (0, 0), record)
    several = Transaction("b/0000000a", "g", "orders", 1, 0, "0", (0, 0), None)
    several.count = 3
    several.content = [Content(i, "orders", 1 + i, NO_OPTIONS, "0", record) for i in range(3)]
    return Batch(forwards=[plain, several])


def test_transactions_and_their_messages_are_counted() -> None:
    publisher = World().publisher

    publisher.publish([(0, batch())], {}, None)

    stats = publisher.stats
    assert (1, 2, 4) == (stats.kafka_transaction_count, stats.forwarded_count, stats.forwarded_record_count)


def test_what_was_not_acknowledged_is_counted_nowhere() -> None:
    world = World()
    world.lost_count = 1

    with pytest.raises(BrokerUnavailableError):
        world.publisher.publish([(0, batch())], {}, None)

    stats = world.publisher.stats
    assert (0, 0, 0, None) == (
        stats.kafka_transaction_count,
        stats.forwarded_count,
        stats.forwarded_record_count,
        stats.ended_at,
    )


def test_each_stage_of_a_kafka_transaction_is_timed() -> None:
    publisher = World().publisher

    publisher.publish([(0, batch())], {}, None)

    totals = {name: found.view().total for name, found in publisher.stats.stage_seconds.items()}
    assert {"write": 4.0, "flush": 2.0, "offsets": 3.0, "commit": 4.0} == totals
    assert (13.0, 13.0) == (publisher.stats.seconds.view().total, publisher.stats.ended_at)


def test_no_one_waits_for_the_close_of_a_producer_that_was_replaced() -> None:
    world = World()
    world.do_closes_hang = True

    for _ in range(4):  # each commit takes so long that the producer is replaced before its next turn
        world.publisher.publish([(0, batch())], {}, None)

    assert 2 == world.publisher.stats.replaced_count


def test_a_producer_that_was_answered_in_time_is_kept() -> None:
    world = World(recycle_after=timedelta(hours=1))
    world.now = 10_000.0  # later than that

    for _ in range(4):
        world.publisher.publish([(0, batch())], {}, None)

    assert 0 == world.publisher.stats.replaced_count


TXN = Transaction(txn_key("a"), GROUP, "orders", 0, 0, "0", (0, 0), plain_record())
ASIDE = RecordToQuarantine(Origin("txlayer.half", 0, 0), plain_record(), None, 0, Undecodable("garbage"))


@pytest.mark.parametrize(
    "batch",
    [
        Batch(forwards=[TXN]),
        Batch(to_doubt={TXN.key: MoveToDoubt(TXN, is_whole=True)}),
        Batch(ends=[TXN]),
        Batch(quarantined=[ASIDE]),
    ],
)
def test_a_batch_with_something_to_write_is_not_empty(batch: Batch) -> None:
    assert not batch.is_empty


class Line:
    """Runs of op lines through a broker that refuses one of them, as the coordinator makes them."""

    def __init__(self, *, count: int, bad: int, line_count_max: int) -> None:
        self.count, self.bad, self.line_count_max = count, bad, line_count_max
        self.bisection = Bisection()
        self.done = 0
        self.failure_count = 0

    def run(self) -> int | None:
        """One Kafka transaction; the bad line's place once it is alone."""
        limit = self.line_count_max
        if self.bisection.is_active:
            limit = min(limit, self.bisection.line_count_max)
        taken = range(self.done, min(self.done + limit, self.count))
        if self.bad not in taken:
            self.bisection.passed(len(taken))
            self.done = taken.stop
            return None
        self.failure_count += 1
        return self.bad if self.bisection.failed(len(taken)) else None


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P11")
@given(st.data(), st.integers(1, 5_000), st.integers(1, 3_000))
def test_a_bad_line_is_found_within_log2_of_the_run_whatever_its_place(
    data: st.DataObject, count: int, line_count_max: int
) -> None:
    line = Line(count=count, bad=data.draw(st.integers(0, count - 1)), line_count_max=line_count_max)

    found = None
    while found is None:
        found = line.run()

    assert line.bad == found
    # The first failure says that there is one; each further one halves the run.
    assert line.failure_count <= 1 + ceil(log2(min(count, line_count_max)))


def test_suspicion_ends_when_all_suspects_went_through() -> None:
    bisection = Bisection()
    bisection.failed(8)

    for _ in range(2):
        assert 4 >= bisection.line_count_max
        bisection.passed(4)

    assert not bisection.is_active


@pytest.mark.promise("P11")
def test_the_run_shrinks_even_when_one_line_brings_more_records_than_lines_were_allowed() -> None:
    # make simulate SEED=656917073739: two lines released two waiting transactions more, and were tried for ever.
    bisection = Bisection()

    allowed = [bisection.line_count_max for _ in range(3) if not bisection.failed(4)]

    assert [2, 1] == allowed[:2]
    assert bisection.failed(4)


def test_batches_shrink_until_they_go_through_and_grow_slowly() -> None:
    size = BatchSize()
    for _ in range(3):
        size.failed()
    assert (2, 1) == (size.of(16), size.of(1))

    for _ in range(PASSES_TO_GROW - 1):
        size.passed()
    assert 2 == size.of(16)
    size.passed()
    assert 4 == size.of(16)
    size.failed()
    assert 2 == size.of(16)
    for _ in range(3 * PASSES_TO_GROW):
        size.passed()
    assert 16 == size.of(16)


COUNT = 40
PREPARE = options("k", order=OrderMode.PREPARE)


@pytest.mark.fault("coordinator: a slow network makes a Kafka transaction exceed its time-out")
@pytest.mark.promise("P1", "P11")
def test_after_a_kafka_transaction_that_the_broker_ended_for_its_length_fewer_go_at_once() -> None:
    def look(batches: list[Batch]) -> None:
        """More than three messages take longer than a Kafka transaction may; its writer is told of a fence then."""
        if sum(len(batch.forwards) for batch in batches) > AT_ONCE_MAX:
            stage.world.advance(ms=milliseconds(stage.config.kafka_transaction_timeout) + 1)
            raise ProducerFencedError("its Kafka transaction was ended", transactional_id="w")

    stage = StillCoordinator(make=seen_by(look))
    keys = [txn_key(f"txn-{number}") for number in range(COUNT)]
    for key in keys:
        stage.commit(key, stage.half(key))

    stage.work(seconds=600)

    assert COUNT == len(stage.visible())


def in_one_order(still: StillCoordinator) -> tuple[list[str], list[str]]:
    """Ten that wait for the first of them: their keys and the lines that commit them."""
    keys = [txn_key(f"t{number}") for number in range(10)]
    lines = [op_line("C", key, still.half(key, options=PREPARE)) for key in keys]
    still.op(*lines[1:])
    return keys, lines


@pytest.mark.promise("P7", "P11")
def test_what_one_decision_releases_goes_in_pieces_to_a_slow_broker() -> None:
    still = StillCoordinator(make=slow_for(lambda batch: len(batch.forwards)))
    keys, lines = in_one_order(still)
    still.work(seconds=5)
    still.op(lines[0])

    still.work(seconds=900)

    assert [key.partition("/")[0] for key in keys] == still.visible()


@pytest.mark.promise("P7", "P11")
def test_those_who_wait_for_one_that_grows_old_go_to_doubt_in_pieces() -> None:
    still = StillCoordinator(make=slow_for(lambda batch: sum(keep.is_whole for keep in batch.to_doubt.values())))
    keys, _ = in_one_order(still)  # nobody decides the first one
    still.work(seconds=90)  # `doubt_after` is 60 s

    good = txn_key("good")
    still.commit(good, still.half(good))
    still.work(seconds=600)

    assert set(keys) == set(still.on_doubt())
    assert [good.partition("/")[0]] == still.visible()


@pytest.mark.promise("P7", "P11")
@pytest.mark.parametrize("topic", ["half", "op"])
def test_garbage_that_a_slow_broker_does_not_take_at_once_goes_in_pieces(topic: str) -> None:
    still, good = StillCoordinator(make=slow_for(lambda batch: len(batch.quarantined))), txn_key("good")
    for _ in range(40):
        still.kafka.append(getattr(still.topics, topic), b"\xff", partition=0)
    still.commit(good, still.half(good))

    still.work(seconds=600)

    assert [good.partition("/")[0]] == still.visible()
