"""Whose clock decides: each partition's own broker's, within what the coordinator's clock believes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from tests.simulation.unguarded import coordinator_with
from tests.support.core_records import BORN_MS, GROUP, half_header, op_line, txn_key
from tests.support.still_coordinator import StillCoordinator
from tests.support.still_world import START_MS
from txlayer.adapters.memory import memory_clients
from txlayer.adapters.ports import HistoryStart, StoredOffset
from txlayer.config import ProducerConfig
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.publish import Publisher
from txlayer.coordinator.targets import GroupPresence
from txlayer.core.codec import HALF_HEADER, decode_check
from txlayer.core.messages import CheckRecord, HalfOptions, Headers, Resolution, Source, txn_id_of
from txlayer.core.partitions import half_partition
from txlayer.errors import ConfigError, RetriableError, TopicMismatchError

HOUR_S = 3_600.0
A, B, C = (txn_key(name) for name in ("a", "b", "c"))
AWAY = txn_key("away", is_home=False)
UNRESOLVED: dict[str, Any] = {"unresolved": "rollback", "transaction_age_max": timedelta(hours=72)}


def test_the_keys_lie_in_two_partitions() -> None:
    homes = [half_partition(ordering_key=None, txn_id=k.partition("/")[0], partition_count=2) for k in (A, B, C, AWAY)]

    assert [0, 0, 0, 1] == homes


@pytest.mark.fault("clock: a broker's clock is hours ahead, for one record or for long")
@pytest.mark.promise("P4")
@pytest.mark.parametrize("ahead", [AWAY, B], ids=["elsewhere", "in the same partition"])
def test_one_record_from_the_future_rolls_nothing_back(ahead: str) -> None:
    stage = StillCoordinator(**UNRESOLVED)
    offset = stage.half(A)
    stage.work(seconds=1)
    stage.half(ahead, partition=int(ahead == AWAY), ahead_s=80 * HOUR_S)
    stage.work(seconds=5)

    stage.commit(A, offset)
    stage.work(seconds=5)

    assert [txn_id_of(A)] == stage.visible()
    assert [b"R"] not in [line.split(b"|")[1:2] for line in stage.said()]


@pytest.mark.promise("P4", "P7")
@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_broker_that_is_half_a_minute_ahead_ages_its_own_partition_alone(*, is_elsewhere: bool) -> None:
    """So little is believed: it is within what clocks may differ by."""
    stage = StillCoordinator(doubt_after=timedelta(seconds=20))
    stage.half(A)
    ahead, partition = (AWAY, 1) if is_elsewhere else (B, 0)
    stage.half(ahead, partition=partition, ahead_s=30)
    stage.work(seconds=5)

    assert (A in stage.on_doubt()) is not is_elsewhere


@pytest.mark.fault("clock: a broker's clock is hours ahead, for one record or for long")
@pytest.mark.promise("P7")
def test_one_record_from_the_future_holds_up_nobody_behind_it() -> None:
    stage = StillCoordinator(doubt_after=timedelta(seconds=20))
    stage.half(B, ahead_s=80 * HOUR_S)
    stage.half(A)
    stage.work(seconds=30)

    assert {A, B} == set(stage.on_doubt())
    stored = stage.kafka.admin().stored_offsets(stage.topics.coordinator_group, [(stage.topics.half, 0)])
    half = stored[stage.topics.half, 0]
    assert isinstance(half, StoredOffset)
    assert half.offset == 2


def test_what_comes_from_the_future_can_still_be_decided() -> None:
    stage = StillCoordinator()
    offset = stage.half(B, ahead_s=80 * HOUR_S)
    stage.work(seconds=5)

    stage.commit(B, offset)
    stage.work(seconds=5)

    assert ([txn_id_of(B)], {}) == (stage.visible(), stage.on_doubt())


@pytest.mark.fault("clock: a broker's clock is hours ahead, for one record or for long")
def test_records_from_the_future_are_counted() -> None:
    stage = StillCoordinator()
    stage.half(A)
    stage.half(B, ahead_s=80 * HOUR_S)
    coordinator = stage.coordinator

    stage.work(seconds=5)

    assert 1 == coordinator.counts.untimely_count


@pytest.mark.fault("clock: a coordinator's clock is wrong or jumps back")
@pytest.mark.parametrize("skew_s", [-80 * HOUR_S, 80 * HOUR_S])
def test_the_coordinators_own_wrong_clock_decides_nothing(skew_s: float) -> None:
    stage = StillCoordinator(wall_skew_s=skew_s, **UNRESOLVED)
    offset = stage.half(A)
    stage.work(seconds=5)
    stage.wall_skew_s = 0.0
    stage.work(seconds=5)

    stage.commit(A, offset)
    stage.work(seconds=5)

    assert [txn_id_of(A)] == stage.visible()


@pytest.mark.fault("clock: a coordinator's clock is wrong or jumps back")
def test_a_clock_that_was_set_right_is_believed_without_a_new_record() -> None:
    stage = StillCoordinator(wall_skew_s=-80 * HOUR_S, doubt_after=timedelta(seconds=20))
    stage.half(A)
    stage.work(seconds=30)
    assert {} == stage.on_doubt()

    stage.wall_skew_s = 0.0
    stage.work(seconds=30)

    assert {A} == set(stage.on_doubt())


@pytest.mark.promise("P7")
def test_what_stands_on_doubt_tells_the_time_when_a_clock_is_set_right() -> None:
    stage = StillCoordinator(
        doubt_after=timedelta(seconds=20), unresolved="rollback", transaction_age_max=timedelta(minutes=2)
    )
    stage.half(A)
    stage.work(seconds=30)
    assert {A} == set(stage.on_doubt())
    stage.wall_skew_s = -80 * HOUR_S
    stage.start()

    # It folds what was stored with the wrong clock; half and op have no record left that tells the time.
    set_right_at_s = stage.world.passed_s + 10

    def look() -> bool:
        if stage.world.passed_s >= set_right_at_s:
            stage.wall_skew_s = 0.0
        return stage.world.passed_s >= set_right_at_s + 180

    stage.run(look, seconds=190)

    assert [b"R"] == [line.split(b"|")[1] for line in stage.said()]


def test_a_partition_that_is_quiet_for_long_grows_old_by_itself() -> None:
    stage = StillCoordinator(doubt_after=timedelta(seconds=120))
    stage.half(A)
    stage.work(seconds=100)
    assert {} == stage.on_doubt()

    stage.work(seconds=130)

    assert {A} == set(stage.on_doubt())


@pytest.mark.slow
@pytest.mark.fault("coordinator: restarts again and again in a partition that gets no records")
@pytest.mark.promise("P7")
@pytest.mark.parametrize(
    ("hours", "period_s"),
    [
        (3, 3 * HOUR_S),
        (3, HOUR_S / 2),
        pytest.param(20, 20 * HOUR_S, marks=pytest.mark.nightly),
        pytest.param(20, HOUR_S / 2, marks=pytest.mark.nightly),
    ],
)
def test_a_quiet_partition_grows_old_however_often_its_coordinator_is_restarted(hours: float, period_s: float) -> None:
    stage = StillCoordinator(transaction_age_max=timedelta(seconds=HOUR_S))
    stage.half(A)  # its producer died, and nobody answers for the group

    while stage.world.passed_s < hours * HOUR_S:
        until_s = stage.world.passed_s + period_s
        coordinator = stage.coordinator

        def is_over(until_s: float = until_s) -> bool:
            stage.world.advance(ms=4_000)  # less than a session
            return stage.world.passed_s >= until_s

        coordinator.run(should_stop=is_over)
        assert (1, 0) == (coordinator.counts.rebalance_count, coordinator.counts.rebuild_count)
        stage.start()

    assert {A: "too-old"} == {key: on.reason for key, on in stage.on_doubt().items()}


@pytest.mark.fault("coordinator: restarts again and again in a partition that gets no records")
@pytest.mark.promise("P7")
def test_a_quiet_partition_grows_old_although_its_coordinator_rebuilds_every_half_minute() -> None:
    """The time is stored once a minute: none of these rebuilds finds a newer one."""

    class Stumbling(Coordinator):
        next_at_s = 30.0

        def _turn(self) -> None:
            if stage.world.passed_s >= self.next_at_s:
                self.next_at_s = stage.world.passed_s + 30
                raise RetriableError("a broker answered badly")
            super()._turn()

    age_max_s = HOUR_S / 6
    stage = StillCoordinator(make=Stumbling, transaction_age_max=timedelta(seconds=age_max_s))
    stage.half(A)  # its producer died, and nobody answers for the group

    stage.work(seconds=1.2 * age_max_s)

    assert {A: "too-old"} == {key: on.reason for key, on in stage.on_doubt().items()}


@pytest.mark.fault("coordinator: restarts again and again in a partition that gets no records")
def test_a_stored_time_that_no_clock_vouches_for_counts_when_it_comes() -> None:
    stage = StillCoordinator(transaction_age_max=timedelta(seconds=HOUR_S))
    stage.half(A)
    stage.work(seconds=70)  # A stands on doubt
    half, op = (stage.topics.half, 0), (stage.topics.op, 0)
    group = stage.topics.coordinator_group
    stored = stage.kafka.stored_offsets(group)
    start, writer = stored[half].offset, stored[half].metadata.split("|")[1]
    far = stage.world.now_ms() + round(2 * HOUR_S * 1000)
    given = {half: StoredOffset(start, f"1|{writer}|{start}|{far}"), op: stored[op]}
    stage.kafka.admin().store_offsets(group, given)

    stage.work(seconds=HOUR_S / 2)

    assert {A: ""} == {key: on.reason for key, on in stage.on_doubt().items()}


@pytest.mark.fault("clock: half or op have the timestamps of their producers")
@pytest.mark.parametrize("name", ["half", "op"])
def test_a_topic_whose_producers_stamp_its_records_is_refused_at_start(name: str) -> None:
    stage = StillCoordinator()
    topic = {"half": stage.topics.half, "op": stage.topics.op}[name]
    stage.kafka.cluster.alter_topic(topic, {"message.timestamp.type": "CreateTime"})

    with pytest.raises(TopicMismatchError, match="LogAppendTime"):
        stage.work(seconds=1)


@pytest.mark.fault("clock: half or op have the timestamps of their producers")
def test_records_that_their_producers_stamped_decide_nothing() -> None:
    stage = StillCoordinator(**UNRESOLVED)
    old_ms = stage.world.now_ms() - 80 * 3_600_000
    stage.kafka.cluster.alter_topic(stage.topics.half, {"message.timestamp.type": "CreateTime"})
    offset = stage.half(A, stamp_ms=old_ms)
    stage.kafka.cluster.alter_topic(stage.topics.half, {"message.timestamp.type": "LogAppendTime"})
    stage.half(B)
    stage.work(seconds=5)
    stage.work(seconds=5)

    stage.op(op_line("C", A, offset))
    stage.work(seconds=5)

    assert [txn_id_of(A)] == stage.visible()


def test_records_that_retention_took_before_a_restart_end_the_coordinator_with_the_way_on() -> None:
    stage = StillCoordinator()
    stage.half(A)
    stage.half(B)
    stage.work(seconds=5)
    stage.kafka.delete_records(stage.topics.half, 0, before=1)

    with pytest.raises(ConfigError, match="coordinator reset"):
        stage.work(seconds=200)


def test_what_is_held_while_no_time_is_believed_is_not_given_up_when_one_is() -> None:
    stage = StillCoordinator(wall_skew_s=-80 * HOUR_S, held_age_max=timedelta(hours=24))
    stage.commit(A, stage.half(A, topic="missing"))
    stage.work(seconds=10)
    stage.wall_skew_s = 0.0
    stage.half(B)
    stage.work(seconds=10)

    stage.kafka.create_topic("missing")
    stage.work(seconds=60)

    assert 1 == len(stage.kafka.records("missing"))


@pytest.mark.promise("P4")
@pytest.mark.parametrize("ahead_s", [0.0, 20.0])
def test_the_decision_that_a_producer_is_told_is_the_first_one_whatever_clock_is_ahead(ahead_s: float) -> None:
    """The leader of half is ahead of op's; a check-back was answered first, then the producer said commit."""
    still, key = StillCoordinator(), txn_key("late")
    offset = still.half(key, ahead_s=ahead_s)
    still.world.advance(ms=10_000)
    still.op(op_line("R", key, offset, source=Source.CHECK, check_number=1))
    still.world.advance(ms=15_000)
    still.op(op_line("C", key, offset))
    connections = still.kafka.connect_producer(ProducerConfig(), client="p")
    # As `Engine.decision` asks, for `result(with_decision=True)`.
    start = HistoryStart(BORN_MS - 3_600_000, (0, offset))

    (history,) = connections.history().read(key.partition("/")[0], start=start, partitions=[0])
    still.work(seconds=10)

    assert [] == still.visible()
    assert Resolution.ROLLBACK is history.decision


class StampingWriter:
    """A client's writer: it stamps what has no timestamp by the clock of its machine."""

    def __init__(self, writer: Any, wall_clock: Callable[[], float]) -> None:
        self._writer, self._wall_clock = writer, wall_clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def produce(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """As the client has it."""
        stamp = timestamp or int(self._wall_clock() * 1000)
        self._writer.produce(topic, value, key, partition, callback, on_delivery, stamp, headers)


class StampingPublisher(Publisher):
    """A publisher whose writers are such."""

    def _new_writer(self, transactional_id: str) -> Any:
        return StampingWriter(super()._new_writer(transactional_id), self._wall_clock)


STAMPING = coordinator_with(publisher=StampingPublisher)


@pytest.mark.promise("P1")
def test_a_coordinator_whose_clock_is_ahead_parks_nothing_for_its_time() -> None:
    still, key = StillCoordinator(wall_skew_s=2 * 3_600), txn_key("future")
    far = HalfOptions(timestamp_ms=START_MS + 24 * 3_600_000)  # becomes now
    still.commit(key, still.half(key, options=far))

    still.work(seconds=600)

    assert {} == {k: on.reason for k, on in still.on_doubt().items()}
    assert [key.partition("/")[0]] == still.visible()


@pytest.mark.promise("P3")
@pytest.mark.fault("clock: a coordinator's clock is wrong or jumps back")
def test_a_timestamp_that_half_was_appended_at_stays_although_the_coordinators_clock_is_behind() -> None:
    """A judge of the logs would call another one corrupt."""
    still, key = StillCoordinator(wall_skew_s=-HOUR_S), txn_key("now")
    still.commit(key, still.half(key, options=HalfOptions(timestamp_ms=START_MS)))

    still.work(seconds=5)

    (record,) = still.kafka.records("orders")
    assert START_MS == record.timestamp()[1]


@pytest.mark.promise("P1")
def test_a_message_with_the_timestamp_0_goes_although_the_coordinators_clock_is_ahead() -> None:
    """By the protocol it has the time of forwarding, as one without a timestamp."""
    still, key = StillCoordinator(wall_skew_s=2 * HOUR_S, make=STAMPING), txn_key("zero")
    still.commit(key, still.half(key, options=HalfOptions(timestamp_ms=0)))

    still.work(seconds=600)

    assert ({}, [txn_id_of(key)]) == (still.on_doubt(), still.visible())


@pytest.mark.promise("P1", "P7")
def test_a_coordinator_whose_clock_is_ahead_parks_nothing_and_asks_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GroupPresence, "of", lambda *_: frozenset({GROUP}))
    still = StillCoordinator(wall_skew_s=2 * HOUR_S, make=STAMPING)
    keys = [txn_key(f"t{number}") for number in range(20)]
    for key in keys:
        still.commit(key, still.half(key))
    still.half(A)

    still.work(seconds=600)

    assert {A: ""} == {k: on.reason for k, on in still.on_doubt().items()}
    assert sorted(txn_id_of(key) for key in keys) == sorted(still.visible())
    checks = [decode_check(record.value()) for record in still.kafka.records(still.topics.check)]
    assert A in [check.key for check in checks if isinstance(check, CheckRecord)]
    times = [record.timestamp()[1] for record in still.kafka.records("orders")]
    assert max(times) <= still.world.now_ms()


@pytest.mark.slow
@pytest.mark.promise("P7", "P11")
@pytest.mark.parametrize("limit", [{"batch_lines_max": 2}, {"batch_bytes_max": 200}])
def test_what_time_brings_goes_on_while_more_is_committed_than_one_batch_takes(limit: dict[str, Any]) -> None:
    """A peak of 150 s: each second 40 commits, of which 20 can be forwarded."""
    still, opened, number = StillCoordinator(**limit), txn_key("open"), 0
    still.half(opened)
    coordinator = still.coordinator

    def should_stop() -> bool:
        nonlocal number
        still.world.advance(ms=100)
        lines = []
        for _ in range(4):
            number += 1
            key = txn_key(f"t{number}")
            lines.append(op_line("C", key, still.half(key)))
        still.op(*lines)
        return still.world.passed_s >= 150

    coordinator.run(should_stop=should_stop)

    assert 2_500 < len(still.visible()) < 4_000
    assert opened in still.on_doubt()  # `doubt_after` is 60 s
    stored = still.kafka.stored_offsets(still.topics.coordinator_group)
    assert stored[still.topics.half, 0].offset > 0


@pytest.mark.parametrize(("count", "interval_ms", "waits"), [(100, 20, True), (99, 20, False), (100, 1, False)])
def test_after_a_large_batch_the_next_one_is_read_when_the_publish_interval_is_over(
    count: int, interval_ms: int, *, waits: bool
) -> None:
    stage = StillCoordinator(publish_interval=timedelta(milliseconds=interval_ms))
    slept: list[float] = []
    keys = [txn_key(f"t{number}") for number in range(count)]
    offsets = [stage.half(key) for key in keys]
    stage.op(*(op_line("C", key, offset) for key, offset in zip(keys, offsets, strict=True)))
    # A clock that stands still while a batch is published: all of the interval is left.
    stage.environment = replace(stage.environment, sleep=slept.append)
    stage.coordinator = Coordinator(
        stage.config, stage.kafka.connect_coordinator(stage.config, client="c"), environment=stage.environment
    )

    stage.work(seconds=1)

    assert len(stage.visible()) == count
    assert any(s > 0.01 for s in slept) is waits


@pytest.mark.promise("P11")
def test_a_coordinator_that_is_behind_moves_nothing_whose_decision_it_has_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would write all of its backlog to doubt, ask about it, and fall further behind."""
    monkeypatch.setattr("txlayer.coordinator.loop.READ_COUNT_MAX", 3)
    stage = StillCoordinator(doubt_after=timedelta(seconds=2))
    keys, turns = [txn_key(f"t{number}") for number in range(30)], count()

    def stands_still() -> bool:
        if next(turns) == 50:
            for key in keys:
                stage.commit(key, stage.half(key))
            stage.world.advance(ms=4_000)
        stage.world.advance(ms=200)
        return stage.world.passed_s >= 60

    stage.coordinator.run(should_stop=stands_still)

    assert {txn_id_of(key) for key in keys} == set(stage.visible())
    assert [] == list(stage.kafka.records(stage.topics.doubt))


def hide(stage: StillCoordinator, topic: str, value: bytes, headers: Headers = ()) -> None:
    """A record of a stranger's Kafka transaction that stays open."""
    clients = memory_clients(stage.kafka._link("stranger", "stranger"), stage.config)
    stranger = clients.writer(transactional_id="stranger", timeout_ms=600_000, batch_bytes_max=16_384)
    stranger.initialise(timeout_s=1.0)
    stranger.begin()
    stranger.produce(topic, value, None, 0, None, None, 0, list(headers))
    stranger.flush(timeout_s=1.0)


def work_beside(stage: StillCoordinator, *, is_busy: bool, seconds: float) -> None:
    """A coordinator works for so long; `is_busy`: another partition brings a record at every turn."""
    numbers = count()

    def is_over() -> bool:
        if is_busy:
            key = txn_key(f"busy{next(numbers)}", is_home=False)
            stage.commit(key, stage.half(key, partition=1), partition=1)
            stage.world.advance(ms=400)
        return stage.world.passed_s >= seconds

    stage.run(is_over, seconds=seconds)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("hidden", ["lines", "the half record that a line names"])
def test_time_goes_on_while_an_open_kafka_transaction_hides(hidden: str, *, is_busy: bool) -> None:
    """Else half's retention could take what is not on doubt. Behind a line that waits for half, op is read to its end."""
    stage = StillCoordinator(doubt_after=timedelta(seconds=20))
    stage.half(A)
    if hidden == "lines":
        hide(stage, stage.topics.op, b"hidden")
    else:
        hide(stage, stage.topics.half, b"v", [(HALF_HEADER, half_header(txn_key("hidden")))])
        stage.commit(txn_key("hidden"), 1)

    work_beside(stage, is_busy=is_busy, seconds=60)

    assert {A} == set(stage.on_doubt())
