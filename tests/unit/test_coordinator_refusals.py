"""What a coordinator does with real topics that refuse: who is suspected, and who must not wait for it."""

import logging
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.support.core_records import op_line, txn_key
from tests.support.still_coordinator import RefusedTopic, StillCoordinator, narrow, widen
from txlayer.adapters.errors import Code
from txlayer.adapters.memory.readers import MemoryAdmin
from txlayer.adapters.memory.world import FOR_EVER, Fault, RefusedError
from txlayer.adapters.namespace import START_OF_LOG, Namespace
from txlayer.adapters.ports import TopicLimits
from txlayer.config import SystemTopics
from txlayer.coordinator.refusals import UNKNOWN_COUNT, WATCH_COUNT, Refusals
from txlayer.coordinator.targets import Targets
from txlayer.core.ledger.batch import Batch, RecordToQuarantine
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.messages import HalfOptions, Origin, ParkReason, Source, Undecodable, txn_id_of
from txlayer.core.partitions import half_partition, key_hash, murmur2
from txlayer.errors import (
    BrokerUnavailableError,
    ConfigError,
    RefusedRecordError,
    RetriableError,
    TopicMismatchError,
    TxLayerError,
)

FRAGILE = "fragile"
SEALED = "sealed"
GROWING = "growing"
ORDERING_KEY = next(
    key
    for key in (f"customer-{number}".encode() for number in range(100))
    if half_partition(ordering_key=key, txn_id="", partition_count=2) == 0 and murmur2(key) % 2 == 1
)
OPTIONS = HalfOptions(key_hash(ORDERING_KEY), key_murmur=murmur2(ORDERING_KEY))
DAY_S = 24 * 3_600
POISON = b"poison"


def too_few_replicas(stage: StillCoordinator) -> RefusedTopic:
    """The topic FRAGILE, below `min.insync.replicas`: the client asks until its time-out."""
    stage.kafka.create_topic(FRAGILE)
    return RefusedTopic(stage, FRAGILE, Code.NOT_ENOUGH_REPLICAS)


def answer_unknown(stage: StillCoordinator, *, times: int) -> None:
    """The broker answers UNKNOWN_SERVER_ERROR to requests that hold POISON, so many times."""
    left = times

    def answer(topic: str, records: list[Any]) -> Code | None:
        nonlocal left
        is_poisoned = left > 0 and topic == "orders" and any(r.value() == POISON for r in records)
        left -= is_poisoned
        return Code.UNKNOWN if is_poisoned else None

    stage.refuse(answer)


def describe_denied(stage: StillCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients describe the topics that they may not write."""
    look = MemoryAdmin.topic_limits

    def describe(self: MemoryAdmin, topic: str) -> TopicLimits | None:
        denied = stage.kafka.cluster.denied
        before = set(denied)
        denied.clear()
        try:
            return look(self, topic)
        finally:
            denied.update(before)

    monkeypatch.setattr(MemoryAdmin, "topic_limits", describe)
    stage.start()  # its clients are made anew


@pytest.mark.fault("broker: a topic has too few replicas in sync")
@pytest.mark.promise("P7", "P11")
def test_a_topic_with_too_few_replicas_in_sync_is_held_and_the_others_go_on() -> None:
    stage = StillCoordinator()
    too_few_replicas(stage)
    stuck, good = txn_key("stuck"), txn_key("good", is_home=False)
    stage.commit(stuck, stage.half(stuck, topic=FRAGILE))
    stage.commit(good, stage.half(good, partition=1), partition=1)
    coordinator = stage.coordinator

    stage.work(seconds=1_800)  # `hold_after` is 30 s

    assert [good.partition("/")[0]] == stage.visible()
    assert {stuck: "held"} == {key: summary.state for key, summary in stage.on_doubt().items()}
    # Each try makes all partitions wait for a time-out: the pauses between them grow to five minutes.
    assert coordinator.counts.rebuild_count < 20


@pytest.mark.fault("broker: a topic has too few replicas in sync")
@pytest.mark.promise("P7")
def test_what_was_held_for_time_outs_is_tried_again_and_forwarded_in_order() -> None:
    stage = StillCoordinator()
    topic = too_few_replicas(stage)
    first, second = txn_key("first"), txn_key("second")
    stage.commit(first, stage.half(first, topic=FRAGILE, value=b"1"))

    def goes_on() -> bool:
        if topic.is_refused and stage.world.passed_s > 600:
            stage.commit(second, stage.half(second, topic=FRAGILE, value=b"2"))
            topic.is_refused = False
        return stage.world.passed_s > 1_000

    stage.run(goes_on, seconds=1_000)

    assert {} == stage.on_doubt()
    assert [b"1", b"2"] == [record.value() for record in stage.kafka.records(FRAGILE)]


@pytest.mark.fault("rights: the coordinator may not write to a topic")
@pytest.mark.promise("P7", "P11")
def test_a_topic_that_may_be_described_and_not_written_is_held_and_seldom_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = StillCoordinator()
    stage.kafka.create_topic(SEALED)
    stage.kafka.deny(SEALED)
    describe_denied(stage, monkeypatch)
    held, good = txn_key("held"), txn_key("good")
    stage.commit(held, stage.half(held, topic=SEALED))
    stage.commit(good, stage.half(good))
    coordinator = stage.coordinator

    stage.work(seconds=600)

    assert {held: "topic-denied"} == {k: s.reason for k, s in stage.on_doubt().items()}
    assert [good.partition("/")[0]] == stage.visible()
    # "A refusing topic is looked at after 1 s, then ever more seldom, at least every 30 s": some 25 looks.
    assert coordinator.counts.rebuild_count < 60


@pytest.mark.fault("broker: all brokers are down")
@pytest.mark.promise("P7")
@pytest.mark.parametrize("error", [BrokerUnavailableError, RetriableError, TxLayerError])
def test_a_coordinator_goes_on_if_no_broker_says_why_a_topic_refused(
    error: type[TxLayerError], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = StillCoordinator()
    stage.kafka.create_topic(SEALED)
    stage.kafka.deny(SEALED)
    describe_denied(stage, monkeypatch)
    learn, describe = Refusals.learn, MemoryAdmin.topic_limits
    is_learning, failure_count = False, 0

    def learn_without_brokers(self: Refusals, *given: Any, **named: Any) -> None:
        nonlocal is_learning
        is_learning = True
        try:
            learn(self, *given, **named)
        finally:
            is_learning = False

    def no_answer(self: MemoryAdmin, topic: str) -> TopicLimits | None:
        nonlocal failure_count
        if is_learning and failure_count < 5:
            failure_count += 1
            raise error("no answer just then")
        return describe(self, topic)

    monkeypatch.setattr(Refusals, "learn", learn_without_brokers)
    monkeypatch.setattr(MemoryAdmin, "topic_limits", no_answer)
    stage.start()
    held, good = txn_key("held"), txn_key("good")
    stage.commit(held, stage.half(held, topic=SEALED))
    stage.commit(good, stage.half(good))

    stage.work(seconds=60)

    assert 5 == failure_count
    assert {held: "topic-denied"} == {k: s.reason for k, s in stage.on_doubt().items()}
    assert [good.partition("/")[0]] == stage.visible()


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P11")
def test_a_record_that_is_refused_with_an_unlisted_code_is_found_and_the_rest_goes_on() -> None:
    stage = StillCoordinator()
    answer_unknown(stage, times=1 << 30)
    poison, good = txn_key("poison"), txn_key("good")
    stage.commit(poison, stage.half(poison, value=POISON))
    stage.commit(good, stage.half(good))  # behind it, in the same partition

    stage.work(seconds=600)

    assert [good.partition("/")[0]] == stage.visible()
    assert {poison: "refused"} == {k: s.reason for k, s in stage.on_doubt().items()}


@pytest.mark.promise("P1")
def test_a_refusal_is_forgotten_with_the_assignment_and_the_next_commit_is_a_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another coordinator parked the transaction; its topic takes the record by now, and a person commits it."""
    stage = StillCoordinator()
    broker: Any = stage.kafka.cluster
    accept = broker.produce
    answer_unknown(stage, times=1 << 30)
    poison, is_moved = txn_key("poison"), False
    offset = stage.half(poison, value=POISON)
    stage.commit(poison, offset)
    coordinator = stage.coordinator

    def goes_on() -> bool:
        nonlocal is_moved
        if not is_moved and "transaction.refused" in caplog.messages:
            is_moved = True
            # It knows, and the group takes its partitions before it has parked: another coordinator does.
            stage.start()
            stage.coordinator.run(should_stop=lambda: poison in stage.on_doubt())
            broker.produce = accept
            stage.op(op_line("C", poison, offset, source=Source.OPERATOR))
        return stage.world.passed_s > 600

    stage.run(goes_on, seconds=600)

    assert is_moved
    assert 2 == coordinator.counts.rebalance_count
    assert ([poison.partition("/")[0]], {}) == (stage.visible(), stage.on_doubt())


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
def test_an_answer_that_nobody_knows_parks_nothing_when_it_passes() -> None:
    stage = StillCoordinator()
    answer_unknown(stage, times=UNKNOWN_COUNT)
    keys = [txn_key(f"t-{number}") for number in range(20)]
    for key in keys:
        stage.commit(key, stage.half(key, value=POISON))

    stage.work(seconds=60)

    assert {} == stage.on_doubt()
    assert [key.partition("/")[0] for key in keys] == stage.visible()


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_taken_over", [False, True], ids=["becomes quiet", "goes to another coordinator"])
def test_a_suspected_partition_that_has_nothing_more_to_do_here_slows_no_other_down(*, is_taken_over: bool) -> None:
    stage, count = StillCoordinator(), 200
    stage.kafka.create_topic(SEALED)
    coordinator, began, turns = stage.coordinator, -1.0, 0
    newcomer = stage.kafka.connect_coordinator(stage.config, client="newcomer").make_group_reader()
    first, second = txn_key("a"), txn_key("b")
    first_offset = stage.half(first, topic=SEALED)
    stage.commit(first, first_offset)

    def goes_on() -> bool:
        nonlocal began, turns
        now = stage.world.passed_s
        if began == -1 and now > 5:
            began = now
            stage.kafka.delete_topic(SEALED)
            # A repeat, from which nothing follows, and a commit that is held: two lines, of which one is ever "passed".
            repeat = op_line("C", first, first_offset)
            stage.op(repeat, op_line("C", second, stage.half(second, topic=SEALED)))
        if is_taken_over:
            if began > 0 and coordinator.counts.rebuild_count == 1:
                newcomer.start([stage.topics.half, stage.topics.op])
            newcomer.read(record_count_max=1, timeout_s=0)
        if turns:
            turns += 1
        elif began > 0 and now > began + 600:
            if is_taken_over:
                assert {1} == set(coordinator.view().shards)
            else:
                assert {second: "held"} == {k: s.state for k, s in stage.on_doubt().items()}
            keys = [txn_key(f"c-{number}", is_home=False) for number in range(count)]
            lines = [op_line("C", key, stage.half(key, partition=1)) for key in keys]
            stage.op(*lines, partition=1)
            turns = 1
        return len(stage.visible()) >= count or now > 10_000

    stage.run(goes_on, seconds=600)

    assert count == len(stage.visible())
    assert turns < count / 10, "every turn reads one single record, ten minutes after it was suspected"


@pytest.mark.fault("broker: a topic has too few replicas in sync")
@pytest.mark.promise("P7")
def test_a_former_kafka_transaction_that_cannot_end_yet_stops_no_successor() -> None:
    """Its markers wait for a topic below `min.insync.replicas`, for as long as that lasts."""
    stage = StillCoordinator()
    first, second = txn_key("first"), txn_key("second")
    stage.commit(first, stage.half(first))
    stage.work(seconds=10)
    broker: Any = stage.kafka.cluster
    initialise = broker.init_producer_id

    def is_ending(transactional_id: str, *arguments: Any) -> Any:
        if transactional_id.startswith("txlayer/name-1-"):
            raise RefusedError(Code.CONCURRENT_TRANSACTIONS)
        return initialise(transactional_id, *arguments)

    broker.init_producer_id = is_ending
    stage.commit(second, stage.half(second))

    stage.work(seconds=60)

    assert [key.partition("/")[0] for key in (first, second)] == stage.visible()


def run_and_grow(
    stage: StillCoordinator, topic: str, send: Callable[[], None], *, until_s: float, seconds: int
) -> None:
    """Let it run until then. After 10 s the topic takes larger messages, and `send` is called."""
    is_grown = False

    def goes_on() -> bool:
        nonlocal is_grown
        if not is_grown and stage.world.passed_s > 10:
            is_grown = True
            grown = {"max.message.bytes": "100000"}
            stage.kafka.do(lambda: stage.kafka.cluster.alter_topic(topic, grown))
            send()
        return stage.world.passed_s > until_s

    stage.run(goes_on, seconds=seconds)


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P1")
def test_a_message_that_its_topic_takes_by_now_is_not_parked_as_too_large() -> None:
    stage = StillCoordinator()
    stage.kafka.create_topic(GROWING, settings={"max.message.bytes": "10000"})
    early, late = txn_key("early"), txn_key("late")
    stage.commit(early, stage.half(early, topic=GROWING))

    def send() -> None:
        # An hour later: a producer of ours asks the cluster again before it refuses such a message.
        stage.world.advance(ms=3_600_000)
        stage.commit(late, stage.half(late, topic=GROWING, value=b"x" * 20_000))

    run_and_grow(stage, GROWING, send, until_s=3_700, seconds=100)

    assert {} == {k: (s.state, s.reason) for k, s in stage.on_doubt().items()}
    assert [1, 20_000] == [len(r.value() or b"") for r in stage.kafka.records(GROWING)]


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P1")
def test_none_is_parked_as_too_large_before_its_topic_was_asked_about_although_answers_are_slow() -> None:
    stage, topics = StillCoordinator(), [f"growing-{number}" for number in range(5)]
    for topic in topics:
        stage.kafka.create_topic(topic, settings={"max.message.bytes": "10000"})
        early = txn_key(f"early-{topic}")
        stage.commit(early, stage.half(early, topic=topic))

    def send() -> None:
        stage.world.faults.plan(Fault.DELAY, "Metadata", times=1_000_000, seconds=0.06)
        lines = []
        for topic in topics:
            late = txn_key(f"late-{topic}")
            lines.append(op_line("C", late, stage.half(late, topic=topic, value=b"x" * 20_000)))
        stage.op(*lines)

    run_and_grow(stage, topics[-1], send, until_s=60, seconds=60)

    parked = {k for k, s in stage.on_doubt().items() if s.state == "parked-committed"}
    assert {txn_key(f"late-{topic}") for topic in topics[:-1]} == parked
    assert [1, 20_000] == [len(r.value() or b"") for r in stage.kafka.records(topics[-1])]


def together(stage: StillCoordinator, *topics: str, value: bytes) -> str:
    """The line that commits a message to each topic, of one transaction."""
    key, offset = txn_key("together"), 0
    for index, topic in enumerate(topics):
        offset = stage.half(key, topic=topic, index=index, count=len(topics), value=value)
    return op_line("C", key, offset)


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P1")
def test_messages_are_sent_one_by_one_before_any_is_parked_for_the_size_of_their_batch() -> None:
    """The topic takes smaller batches by now, which the coordinator does not know: there was time to ask about another topic alone."""
    stage, topics = StillCoordinator(), ("orders", GROWING)
    stage.kafka.create_topic(GROWING)
    for topic in topics:
        early = txn_key(f"early-{topic}")
        stage.commit(early, stage.half(early, topic=topic))

    def send() -> None:
        stage.kafka.do(lambda: stage.kafka.cluster.alter_topic(GROWING, {"max.message.bytes": "6000"}))
        stage.world.faults.plan(Fault.DELAY, "Metadata", times=1_000_000, seconds=0.06)
        stage.op(together(stage, "orders", *[GROWING] * 4, value=b"x" * 3_000))

    run_and_grow(stage, GROWING, send, until_s=60, seconds=60)

    assert {} == {k: (s.state, s.reason) for k, s in stage.on_doubt().items()}
    assert 1 + 4 == len(stage.kafka.records(GROWING))


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P1")
@pytest.mark.parametrize(("bytes_max", "size"), [(6_000, 3_000), (60_000, 10_000), (2_000_000, 1_200_000)])
def test_no_message_is_parked_for_a_limit_that_is_not_known(
    bytes_max: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator without the right to read its topic's settings, which takes less than usual, or more."""
    describe = MemoryAdmin.topic_limits

    def describe_without_settings(self: MemoryAdmin, topic: str) -> TopicLimits | None:
        found = describe(self, topic)
        return found if found is None or topic != GROWING else found._replace(message_bytes_max=None)

    monkeypatch.setattr(MemoryAdmin, "topic_limits", describe_without_settings)
    stage = StillCoordinator()
    stage.kafka.create_topic(GROWING, settings={"max.message.bytes": str(bytes_max)})
    stage.kafka.do(lambda: stage.kafka.cluster.alter_topic(stage.topics.half, {"max.message.bytes": "20000000"}))
    stage.op(together(stage, *[GROWING] * 9, value=b"x" * size))
    large = txn_key("large")
    stage.half(large, topic=GROWING, count=2)
    stage.commit(large, stage.half(large, topic=GROWING, index=1, count=2, value=b"x" * (bytes_max + 1)))

    stage.work(seconds=120)

    assert {large: ("parked-committed", "refused")} == {k: (s.state, s.reason) for k, s in stage.on_doubt().items()}
    assert 9 == len(stage.kafka.records(GROWING))


@pytest.mark.promise("P1")
def test_a_coordinator_that_began_with_fewer_partitions_takes_none_of_the_new_ones_over() -> None:
    """By its number of partitions the records there would be misplaced, and be quarantined although they are committed."""
    stage, other = StillCoordinator(), list[Any]()
    cluster, topics = stage.kafka.cluster, stage.topics

    def give_one_more() -> None:
        widen(stage.kafka, (topics.doubt, topics.op, topics.half), 3)
        places = {(name, 2): START_OF_LOG for name in (topics.half, topics.op)}
        cluster._append(places, cluster.groups[topics.coordinator_group].stored)

    def goes_on() -> bool:
        if stage.world.passed_s > 5 and not other:
            give_one_more()
            stage.commit("t0/0000000a", stage.half("t0/0000000a", partition=2), partition=2)
            # A member comes and goes, so that the group assigns anew.
            other.append(stage.kafka.connect_coordinator(stage.config, client="other").make_group_reader())
            other[0].start([topics.half, topics.op])
        if other and stage.world.passed_s < 30:
            other[0].read(record_count_max=1, timeout_s=0.0)
        elif other:
            other[0].close()
        return stage.world.passed_s > 120

    assert 2 == half_partition(ordering_key=None, txn_id="t0", partition_count=3)
    with pytest.raises(TopicMismatchError, match="more partitions while this coordinator ran"):
        stage.run(goes_on, seconds=120)

    assert {} == stage.on_doubt()


@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
@pytest.mark.promise("P1")
def test_a_coordinator_that_began_with_fewer_partitions_keeps_nothing_aside_that_is_in_the_right_one_by_now() -> None:
    """One that was frozen while its topics were widened has partitions of the former number alone: others of its group have the new ones."""
    stage, key = StillCoordinator(), "t8/0000000a"
    topics, is_widened = stage.topics, False

    def goes_on() -> bool:
        nonlocal is_widened
        if stage.world.passed_s > 5 and not is_widened:
            is_widened = True
            widen(stage.kafka, (topics.doubt, topics.op, topics.half), 3)
            stage.commit(key, stage.half(key))
        return stage.world.passed_s > 60

    counts = [half_partition(ordering_key=None, txn_id="t8", partition_count=count) for count in (2, 3)]
    assert [1, 0] == counts
    with pytest.raises(TopicMismatchError, match="more partitions while this coordinator ran"):
        stage.run(goes_on, seconds=60)

    assert {} == stage.on_doubt()
    assert [] == stage.kafka.records(topics.doubt)
    places = {(name, 2): START_OF_LOG for name in (topics.half, topics.op)}
    stage.kafka.cluster._append(places, stage.kafka.cluster.groups[topics.coordinator_group].stored)
    stage.start()
    stage.work(seconds=20)
    assert 1 == len(stage.kafka.records("orders"))


@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
@pytest.mark.promise("P1", "P7")
def test_a_coordinator_ends_when_its_doubt_topic_was_made_anew_under_it() -> None:
    """A restart would read the new one from the place of a transaction that was on the old one, and pass over those before it."""
    stage = StillCoordinator(doubt_after=timedelta(seconds=3))
    topics, is_remade = stage.topics, False
    for name in ("settled", "open"):
        key = txn_key(name)
        offset = stage.half(key)
        stage.work(seconds=20)
        if name == "settled":
            stage.commit(key, offset)
    began = stage.world.passed_s

    def goes_on() -> bool:
        nonlocal is_remade
        if stage.world.passed_s > began + 20 and not is_remade:
            is_remade = True
            stage.kafka.delete_topic(topics.doubt)
            Namespace(stage.kafka.admin(), topics=topics).apply(partition_count=2, replication_factor=1)
            stage.half(txn_key("later"))
        return stage.world.passed_s > began + 60

    with pytest.raises(TopicMismatchError, match=r"doubt was made anew .* `txlayer coordinator reset"):
        stage.run(goes_on, seconds=60)

    stage.start()
    with pytest.raises(ConfigError, match="made anew, or brokers lost its end"):
        stage.work(seconds=10)


@pytest.mark.fault("broker: a real topic gets more partitions while a coordinator runs")
@pytest.mark.promise("P6")
def test_messages_of_one_ordering_key_meet_in_one_partition_a_day_after_the_topic_was_widened() -> None:
    stage = StillCoordinator()
    step = 0

    def send(name: str) -> None:
        key = txn_key(name)
        stage.commit(key, stage.half(key, options=OPTIONS))

    def goes_on() -> bool:
        nonlocal step
        if step == 0 and stage.world.passed_s > 10:
            step = 1
            widen(stage.kafka, ["orders"], 2)
            stage.world.advance(ms=DAY_S * 1_000)
            send("a-day-later")
        return stage.world.passed_s > DAY_S + 60

    send("before")
    stage.run(goes_on, seconds=70)
    stage.start()  # a successor, or another coordinator of the group
    send("after-a-restart")
    stage.work(seconds=20)

    found = {dict(r.headers() or ())["txl-id"]: r.partition() for r in stage.kafka.records("orders")}
    later = [partition for txn_id, partition in found.items() if txn_id != b"before"]
    # The topic did not change between these two.
    assert [1, 1] == later


@pytest.mark.promise("P1")
@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
@pytest.mark.parametrize(("options", "state"), [(OPTIONS, None), (HalfOptions(partition=1), "parked-committed")])
def test_a_message_reaches_a_topic_that_was_made_anew_with_fewer_partitions_if_it_has_a_place_there(
    options: HalfOptions, state: str | None
) -> None:
    stage = StillCoordinator()
    for topic in ("loyalty", "parcels"):
        stage.kafka.create_topic(topic, partitions=2)
    coordinator, is_narrow = stage.coordinator, False

    def send(key: str) -> None:
        stage.half(key, topic="loyalty", count=2)
        stage.commit(key, stage.half(key, topic="parcels", index=1, count=2, options=options))

    def goes_on() -> bool:
        nonlocal is_narrow
        if not is_narrow and stage.world.passed_s > 10:
            is_narrow = True
            narrow(stage.kafka, "parcels", 1)
            # So slow that after a failure there is time for one topic only, and it is the other one.
            stage.world.faults.plan(Fault.DELAY, "Metadata", times=FOR_EVER, seconds=0.2)
            send(txn_key("b"))
        return stage.world.passed_s > 60

    send(txn_key("a"))
    coordinator.run(should_stop=goes_on)

    summary = stage.on_doubt().get(txn_key("b"))
    assert state == (summary and summary.state)
    assert (state is None) is any(dict(r.headers() or ())["txl-id"] == b"b-4" for r in stage.kafka.records("parcels"))


class _Book:
    def look_again_at(self, topics: Any) -> None:
        del topics

    def unanswered(self, topics: Any, **large: Any) -> None:
        del topics, large


def new_refusals() -> Refusals:
    """Of a process that just started."""
    return Refusals(SystemTopics("txlayer"), clock=lambda: 0.0)


def suspicious(partition: int, *, line_count: int) -> Refusals:
    """A Kafka transaction of this partition was refused."""
    refusals = new_refusals()
    txn = Transaction("order-1/00000001", "g", "orders", 0, 0, "0", (0, 0), None)
    batch = Batch(forwards=[txn], line_count=line_count)
    refusals.learn(RefusedRecordError("too large"), {partition: batch}, cast("Targets", _Book()))
    return refusals


def test_a_suspected_partition_goes_alone_while_it_has_something_to_do() -> None:
    refusals = suspicious(0, line_count=8)

    assert 0 == refusals.partition_in_turn([0, 1])
    assert 4 == refusals.line_count_max(0, 10_000)


def test_a_suspected_partition_without_anything_to_do_holds_nobody_up() -> None:
    # Seen in a simulated world: its last lines led to nothing, and every other partition waited for its next one.
    refusals = suspicious(0, line_count=8)

    assert refusals.partition_in_turn([1]) is None


def is_careful(refusals: Refusals, partitions: Collection[int]) -> bool:
    return refusals.precautions(partitions, is_watched=False, times={}).is_careful


def test_records_that_no_op_line_brought_are_suspected_as_lines_are() -> None:
    refusals, book = new_refusals(), cast("Targets", _Book())
    why = Undecodable("half record without a header txl")
    quarantined = [RecordToQuarantine(Origin("half", 0, n), None, None, 0, why) for n in range(9)]
    refusals.learn(RefusedRecordError("too large"), {0: Batch(quarantined=quarantined)}, book)
    assert 4 == refusals.count_max(10_000)

    refusals.learn(RefusedRecordError("too large"), {0: Batch(quarantined=quarantined[:1])}, book)
    assert 1 == refusals.count_max(10_000)
    assert is_careful(refusals, {0})

    refusals.learn(RefusedRecordError("too large", doubt_key=b"origin/half/0/0"), {}, book)
    assert {b"origin/half/0/0"} == refusals.doubt_keys
    assert 10_000 == refusals.count_max(10_000)

    refusals.passed(0, Batch(quarantined=quarantined))
    assert not refusals.doubt_keys


def test_only_kafka_transactions_of_the_suspected_partition_are_careful() -> None:
    refusals = suspicious(0, line_count=1)

    assert is_careful(refusals, {0, 1})
    assert not is_careful(refusals, {1})


def test_what_doubt_refuses_is_remembered_until_it_was_written() -> None:
    """Another partition's batch goes first: forgotten then, it would be looked for again and again."""
    refusals, book = new_refusals(), cast("Targets", _Book())
    why = Undecodable("half record without a header txl")
    refused, other = (RecordToQuarantine(Origin("half", p, 0), None, None, 0, why) for p in (1, 0))
    refusals.learn(RefusedRecordError("too large", doubt_key=b"origin/half/1/0"), {}, book)

    refusals.passed(0, Batch(quarantined=[other]))
    assert {b"origin/half/1/0"} == refusals.doubt_keys

    refusals.passed(1, Batch(quarantined=[refused]))
    assert not refusals.doubt_keys


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
def test_a_code_that_nobody_knows_cuts_nothing_on_doubt_before_it_came_again_and_again() -> None:
    refusals, book = new_refusals(), cast("Targets", _Book())
    why = Undecodable("half record without a header txl")
    aside = RecordToQuarantine(Origin("half", 0, 0), None, None, 0, why)
    error = RefusedRecordError("?", reason="UNKNOWN", doubt_key=b"origin/half/0/0")

    for _ in range(UNKNOWN_COUNT - 1):
        refusals.learn(error, {0: Batch(quarantined=[aside])}, book)
    assert not refusals.doubt_keys

    refusals.learn(error, {0: Batch(quarantined=[aside])}, book)
    assert {b"origin/half/0/0"} == refusals.doubt_keys


def test_nothing_that_is_known_of_transactions_outlives_the_assignment() -> None:
    """Another coordinator may have parked them, or doubt may take them whole by now."""
    book = cast("Targets", _Book())
    refusals = suspicious(0, line_count=8)
    unknown = RefusedRecordError("?", reason="UNKNOWN")
    for _ in range(UNKNOWN_COUNT - 1):
        refusals.learn(unknown, {1: Batch(policy_lines={"a": "a"})}, book)

    refusals.forget_transactions()
    assert refusals.partition_in_turn([0, 1]) is None
    refusals.learn(unknown, {1: Batch(policy_lines={"a": "a"})}, book)
    assert refusals.partition_in_turn([0, 1]) is None

    refusals.learn(RefusedRecordError("too large", doubt_key=b"a/00000001/0"), {}, book)
    refusals.learn(RefusedRecordError("too large", txn_key="a/00000001"), {}, book)
    assert ({b"a/00000001/0"}, ["a/00000001"]) == (refusals.doubt_keys, [*refusals.reasons])

    refusals.forget_transactions()
    assert (set(), {}) == (refusals.doubt_keys, refusals.reasons)


def test_answers_that_nobody_knows_count_only_in_turn() -> None:
    refusals, book = new_refusals(), cast("Targets", _Book())
    unknown = RefusedRecordError("?", reason="UNKNOWN", txn_key="a/00000001")
    batch = Batch(policy_lines={"a": "a"})
    for _ in range(UNKNOWN_COUNT - 1):
        refusals.learn(unknown, {0: batch}, book)

    refusals.passed(0, batch)
    refusals.learn(unknown, {0: batch}, book)
    assert not refusals.reasons


def test_after_a_time_out_very_many_batches_are_watched() -> None:
    refusals, batch = new_refusals(), Batch(policy_lines={"a": "a"})
    refusals.learn(BrokerUnavailableError("away"), {0: batch}, cast("Targets", _Book()))

    for _ in range(WATCH_COUNT):
        assert refusals.precautions({0}, is_watched=False, times={}).is_watched
        refusals.passed(0, batch)
    assert not refusals.precautions({0}, is_watched=False, times={}).is_watched


def test_a_transaction_is_parked_for_its_time_only_when_the_partitions_own_clock_is_refused() -> None:
    refusals, book = new_refusals(), cast("Targets", _Book())
    txn = Transaction("order-1/00000001", "g", "orders", 0, 0, "0", (0, 0), None)
    batches = {0: Batch(forwards=[txn], line_count=1)}
    error = RefusedRecordError("too far ahead", reason="INVALID_TIMESTAMP", txn_key=txn.key)

    refusals.learn(error, batches, book)
    assert ({}, True) == (refusals.reasons, refusals.is_clock_doubted)

    refusals.learn(error, batches, book)
    assert {txn.key: ParkReason.REFUSED} == refusals.reasons

    refusals.forget_transactions()
    assert not refusals.is_clock_doubted


@pytest.mark.promise("P1")
def test_a_log_handler_that_raises_ends_no_coordinator() -> None:
    class FullDisk(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space left on device", record.getMessage())

    logger, key = logging.getLogger("txlayer"), txn_key("a")
    logger.addHandler(FullDisk())
    logger.setLevel(logging.DEBUG)
    stage = StillCoordinator()

    stage.commit(key, stage.half(key))
    stage.work(seconds=5)

    assert [txn_id_of(key)] == stage.visible()
