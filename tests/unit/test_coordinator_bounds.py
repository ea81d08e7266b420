"""The coordinator's loop keeps to its bounds: batches shrink after a time-out, and topics that nobody needs are forgotten."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from weakref import WeakSet

import pytest

from tests.simulation.unguarded import coordinator_with
from tests.support.core_records import FAR_AWAY, GROUP, half_header, op_line, txn_key
from tests.support.still_coordinator import StillCoordinator, seen_by, slow_for
from tests.support.still_world import StillWorld
from txlayer.adapters.memory.readers import MemoryAdmin
from txlayer.adapters.ports import TopicLimits
from txlayer.config import ProducerConfig
from txlayer.coordinator.loop import QUICK_REBUILD_COUNT
from txlayer.coordinator.publish import Publisher
from txlayer.coordinator.targets import LOOK_TIME_S, TARGETS_MAX, GroupPresence
from txlayer.core.codec import HALF_HEADER, WHY_HEADER, encode_check, encode_summary, quarantine_key
from txlayer.core.ledger.batch import Batch
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.transaction import contents_of, held_bytes
from txlayer.core.messages import HEADERS_READ_MAX, NONCE_LENGTH, Message, Origin, Source
from txlayer.core.partitions import half_partition
from txlayer.producer.encoding import Encoder
from txlayer.producer.identity import ANYWHERE
from txlayer.runtime.environment import REBUILD_WAIT_MAX_S, keep_for_long

KEYS = [txn_key(f"t-{number}") for number in range(40)]


@pytest.mark.promise("P7", "P11")
def test_what_a_slow_broker_does_not_take_at_once_goes_in_pieces() -> None:
    still = StillCoordinator(make=slow_for(lambda batch: len(batch.forwards)))
    still.op(*(op_line("C", key, still.half(key)) for key in KEYS))

    still.work(seconds=60)

    assert [key.partition("/")[0] for key in KEYS] == still.visible()


@pytest.mark.promise("P1")
@pytest.mark.parametrize("role", ["half", "op", "doubt"])
def test_a_coordinator_that_takes_over_waits_for_the_leader_of_its_only_partitions_and_then_goes_on(role: str) -> None:
    still = StillCoordinator()
    away = txn_key("away", is_home=False)
    still.commit(away, still.half(away, partition=1), partition=1)
    visible_before = without_leaders(still, role, partitions=(0, 1))

    assert ([], [away.partition("/")[0]]) == (visible_before, still.visible())


@pytest.mark.fault("broker: a partition of half, op or doubt has no leader, or too few replicas in sync")
@pytest.mark.promise("P1", "P11")
@pytest.mark.parametrize("role", ["half", "op", "doubt"])
def test_a_partition_without_a_leader_at_take_over_stops_no_other(role: str) -> None:
    still = StillCoordinator()
    home, away = txn_key("home"), txn_key("away", is_home=False)
    still.commit(home, still.half(home))
    still.commit(away, still.half(away, partition=1), partition=1)
    visible_before = without_leaders(still, role, partitions=(0,))

    assert ([id_of(away)], [id_of(away), id_of(home)]) == (visible_before, still.visible())


@pytest.mark.fault("broker: a partition of half, op or doubt has no leader, or too few replicas in sync")
@pytest.mark.promise("P1", "P11")
@pytest.mark.parametrize("role", ["op", "doubt"])
def test_a_partition_that_loses_its_leader_before_it_is_written_stops_no_other(role: str) -> None:
    still = StillCoordinator(
        doubt_after=timedelta(seconds=10),
        check_immunity=timedelta(seconds=10),
        transaction_age_max=timedelta(seconds=30),
        unresolved="rollback",
    )
    home, away = txn_key("home"), txn_key("away", is_home=False)
    still.half(home)  # nobody decides it: it is moved to doubt, then a line on op rolls it back
    partition = still.kafka.cluster.topics[f"txlayer.{role}"].partitions[0]
    visible_before: list[str] = []

    def is_over() -> bool:
        passed_s = still.world.passed_s
        partition.is_led = not 5 < passed_s < 200
        if passed_s > 100 and still.kafka.cluster.partitions[still.topics.half, 1].end(is_committed=False) == 0:
            still.commit(away, still.half(away, partition=1), partition=1)
        if passed_s < 200:
            visible_before[:] = still.visible()
        return passed_s >= 300

    still.run(is_over, seconds=300)

    assert [id_of(away)] == visible_before
    assert 1 == sum(line.startswith(f"1|R|{home}|".encode()) for line in still.said())


def id_of(key: str) -> str:
    return key.partition("/")[0]


def without_leaders(still: StillCoordinator, role: str, *, partitions: Sequence[int]) -> list[str]:
    """A coordinator works for a minute while partitions of this topic have no leader, then for some seconds; what was visible before."""
    away = [still.kafka.cluster.topics[f"txlayer.{role}"].partitions[number] for number in partitions]
    for partition in away:
        partition.is_led = False
    visible_before: list[str] = []

    def is_over() -> bool:
        if still.world.passed_s < 60:
            visible_before[:] = still.visible()
        else:
            for partition in away:
                partition.is_led = True
        return still.world.passed_s >= 70

    still.run(is_over, seconds=70)
    return visible_before


@pytest.mark.promise("P7")
def test_a_full_queue_of_the_client_delays_a_batch_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.adapters.memory.writers.QUEUE_MAX", 10)
    still = StillCoordinator()
    still.op(*(op_line("C", key, still.half(key)) for key in KEYS))

    still.work(seconds=5)

    assert [key.partition("/")[0] for key in KEYS] == still.visible()
    assert 0 == still.coordinator.counts.rebuild_count


@pytest.mark.promise("P11")
def test_invented_topics_are_forgotten_by_a_coordinator_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.coordinator.targets.TARGETS_MAX", 8)
    still = StillCoordinator()
    for number, key in enumerate(KEYS):
        still.half(key, topic=f"invented-{number}")
    coordinator = still.coordinator

    still.work(seconds=5)

    assert len(coordinator.view().targets) <= 8


@pytest.mark.slow
@pytest.mark.fault("data: an op without its half record, a half record without op, or an op that is read first")
@pytest.mark.promise("P7", "P11")
def test_lines_that_name_nothing_stop_nothing_that_time_brings_and_hold_no_commit_for_long() -> None:
    still = StillCoordinator()
    opened = txn_key("open")
    still.half(opened)
    written, committed_s, latest_s = 0, dict[str, float](), 0.0

    def goes_on() -> bool:
        nonlocal written, latest_s
        now = still.world.passed_s
        if now >= written * 9:  # less than `misplaced_after`
            written += 1
            still.op(op_line("C", txn_key(f"bad-{written}"), FAR_AWAY))
            if written % 10 == 0 and now < 800:
                key = txn_key(f"good-{written}")
                still.commit(key, still.half(key))
                committed_s[key.partition("/")[0]] = now
        for seen in set(still.visible()) & set(committed_s):
            latest_s = max(latest_s, now - committed_s.pop(seen))
        return now >= 900

    still.coordinator.run(should_stop=goes_on)

    # `doubt_after` is 60 s, and so nothing of a quarter of an hour ago is in half alone.
    assert opened in still.on_doubt()
    stored = still.kafka.stored_offsets(still.topics.coordinator_group)
    assert stored[still.topics.half, 0].offset > 0
    # Its own line and the one before it come at the same time: it waits for that one.
    assert not committed_s
    assert latest_s < 12


@pytest.mark.slow
@pytest.mark.fault("data: half records invent very many names of real topics")
@pytest.mark.promise("P11")
def test_names_that_half_records_invent_do_not_keep_a_real_topic_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    still, per_turn, turn_count = StillCoordinator(), 100, 60
    look = MemoryAdmin.topic_limits

    def slow(self: MemoryAdmin, topic: str) -> TopicLimits | None:
        still.world.advance(ms=10)
        return look(self, topic)

    monkeypatch.setattr(MemoryAdmin, "topic_limits", slow)
    coordinator, turn, most, good = still.coordinator, 0, 0, txn_key("good")
    committed_s = seen_s = 0.0

    def goes_on() -> bool:
        nonlocal turn, most, committed_s, seen_s
        turn += 1
        if turn <= turn_count:
            keys = [txn_key(f"bad-{turn}-{number}") for number in range(per_turn)]
            lines = [op_line("R", k, still.half(k, topic=f"invented-{turn}-{n}")) for n, k in enumerate(keys)]
            still.op(*lines)
        if turn == 5:
            committed_s = still.world.passed_s
            still.commit(good, still.half(good))  # "orders" exists, and comes behind "invented-"
        waiting = sum(len(s.ledger.unknown_topics) for s in coordinator._shards.values())
        most = max(most, waiting)
        if still.visible() and not seen_s:
            seen_s = still.world.passed_s
        return bool(seen_s) or turn > 10 * turn_count

    coordinator.run(should_stop=goes_on)

    assert most <= TARGETS_MAX, "TARGETS_MAX in memory"
    assert seen_s - committed_s < 10


@pytest.mark.slow
@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_turn_asks_about_topics_for_one_time_however_many_partitions_name_them(
    monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    monkeypatch.setattr("tests.support.still_coordinator.PARTITION_COUNT", 16)
    world, good, ask_ms = StillWorld(), "t-3", 10
    look, asked_count = MemoryAdmin.topic_limits, 0

    def slow(self: MemoryAdmin, topic: str) -> TopicLimits | None:
        nonlocal asked_count
        asked_count += 1
        world.advance(ms=ask_ms)
        return look(self, topic)

    monkeypatch.setattr(MemoryAdmin, "topic_limits", slow)
    still = StillCoordinator(world=world)
    for number in range(800):
        txn_id = f"t-{number}"
        key, home = (
            f"{txn_id}/{'a' * NONCE_LENGTH}",
            half_partition(ordering_key=None, txn_id=txn_id, partition_count=16),
        )
        topic = "orders" if txn_id == good else f"invented-{number}"
        offset = still.half(key, partition=home, topic=topic)
        if is_committed or txn_id == good:
            still.commit(key, offset, partition=home)
    most = begun = 0

    def goes_on() -> bool:
        nonlocal most, begun, asked_count
        if still.coordinator._shards:  # what a take-over asks does not count
            most = max(most, asked_count if begun else 0)
            begun += 1
        asked_count = 0
        return begun > 200

    still.coordinator.run(should_stop=goes_on)

    # Twice: once about names that are new, and once about topics that refuse.
    assert 0 < most <= 2 * (LOOK_TIME_S * 1000 / ask_ms + 1)
    assert [good] == still.visible()


@pytest.mark.promise("P11")
def test_rebuilds_become_seldom_while_nothing_goes_through_although_each_take_over_succeeds() -> None:
    """Each one draws two transactional ids, which brokers remember for a week."""
    count = closed_count = 0

    class Counted(Publisher):
        def start(self) -> None:
            nonlocal count
            count += 1
            super().start()

        def close(self) -> None:
            nonlocal closed_count
            closed_count += 1
            super().close()

    still = StillCoordinator(make=coordinator_with(publisher=Counted), doubt_after=timedelta(seconds=1))
    still.half(txn_key("open"))
    too_small, mended = {"max.message.bytes": "10"}, {"max.message.bytes": "1000000"}
    still.kafka.do(lambda: still.kafka.cluster.alter_topic(still.topics.doubt, too_small))

    still.work(seconds=600)
    assert QUICK_REBUILD_COUNT < count <= QUICK_REBUILD_COUNT + 10 + 600 / REBUILD_WAIT_MAX_S

    still.kafka.do(lambda: still.kafka.cluster.alter_topic(still.topics.doubt, mended))
    still.work(seconds=20)
    assert [txn_key("open")] == list(still.on_doubt())
    assert count == closed_count


@pytest.mark.slow
@pytest.mark.fault("coordinator: is short of memory")
@pytest.mark.promise("P11")
def test_the_ledgers_of_before_are_freed_before_a_rebuild_makes_others() -> None:
    alive = WeakSet[Ledger]()
    counts: list[int] = []

    class Counted(Ledger):
        def __init__(self, *args: Any, **named: Any) -> None:
            counts.append(len(alive))
            alive.add(self)
            super().__init__(*args, **named)

    still = StillCoordinator(make=coordinator_with(ledger=Counted), doubt_after=timedelta(seconds=1))
    still.coordinator._environment = replace(still.environment, keep_for_long=keep_for_long)
    still.half(txn_key("open"))
    still.kafka.do(lambda: still.kafka.cluster.alter_topic(still.topics.doubt, {"max.message.bytes": "10"}))

    still.run(lambda: len(counts) == 4, seconds=60)

    assert [0, 1, 0, 1] == counts


@pytest.mark.fault("data: a message that its topic refuses, or that its headers make too large")
@pytest.mark.promise("P1")
def test_the_largest_message_that_a_producer_takes_is_forwarded() -> None:
    still = StillCoordinator()
    still.kafka.create_topic("small", settings={"max.message.bytes": "100000"})
    limits = still.kafka.admin().topic_limits("small")
    encoder = Encoder(ProducerConfig(), half_bytes_max=1_048_588, serialize=None)
    encoder.learn("small", limits)
    largest = encoder._known["small"].message_bytes_max
    records = encoder.records([Message("small", None, b"x" * largest)], ANYWHERE)
    assert records is not None
    [(_, _, value, _, _)] = records
    assert value is not None

    key = txn_key("largest")
    still.commit(key, still.half(key, topic="small", value=value))
    still.work(seconds=20)

    assert ({}, [largest]) == (
        still.on_doubt(),
        [len(record.value() or b"") for record in still.kafka.records("small")],
    )


class Measured(StillCoordinator):
    """Tells how many bytes one Kafka transaction needed at most."""

    def __init__(self, size_of: Callable[[Batch], int], **settings: Any) -> None:
        self.most_bytes = 0

        def look(batches: list[Batch]) -> None:
            self.most_bytes = max(self.most_bytes, sum(map(size_of, batches)))

        super().__init__(make=seen_by(look), **settings)


def content_bytes(batch: Batch) -> int:
    """How much content it needs in memory."""
    needed = (*batch.forwards, *(k.txn for k in batch.to_doubt.values() if k.is_whole))
    return sum(held_bytes(content.record) for txn in needed for content in contents_of(txn))


@pytest.mark.fault("coordinator: a foreign producer stores a transaction larger than the limit")
@pytest.mark.promise("P11")
@pytest.mark.parametrize("content_bytes_max", [256 * 1024, 256 * 1024 * 1024])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_beyond_the_limit_is_never_in_memory_whole(*, is_committed: bool, content_bytes_max: int) -> None:
    """Its producer was not ours, or had a larger limit."""
    limit, count, size = 256 * 1024, 400, 10_000
    settings: dict[str, Any] = {"content_bytes_max": content_bytes_max, "transaction_bytes_max": limit}
    still = Measured(content_bytes, **settings)
    key, offset = txn_key("large"), 0
    for index in range(count):
        offset = still.half(key, index=index, count=count, value=b"x" * size)
    if is_committed:
        still.commit(key, offset)
    still.work(seconds=200)
    assert still.most_bytes <= limit
    if not is_committed:
        assert {key: ""} == {k: on.reason for k, on in still.on_doubt().items()}
        still.commit(key, offset)
        still.work(seconds=20)
    assert {key: "limit"} == {k: on.reason for k, on in still.on_doubt().items()}
    assert still.most_bytes <= limit

    still.config = replace(still.config, transaction_bytes_max=2 * count * size)
    still.start()
    still.op(op_line("C", key, offset, source=Source.OPERATOR, reason="zoe: the limit is raised"))
    still.work(seconds=20)

    assert [size] * count == [len(r.value() or b"") for r in still.kafka.records("orders")]
    assert {} == still.on_doubt()


@pytest.mark.promise("P11")
@pytest.mark.parametrize("letter", ["C", "R"])
def test_nothing_of_a_transaction_stays_on_doubt_when_it_is_settled(letter: str) -> None:
    still = StillCoordinator(doubt_after=timedelta(seconds=10), check_immunity=timedelta(seconds=10))
    (key, *_) = KEYS
    *_, last = (still.half(key, index=index, count=3) for index in range(3))
    still.work(seconds=30)
    left_before = left_on_doubt(still)

    still.op(op_line(letter, key, last))
    still.work(seconds=30)

    assert (4, set(), [id_of(key)] * (3 if letter == "C" else 0)) == (
        len(left_before),
        left_on_doubt(still),
        still.visible(),
    )


def left_on_doubt(still: StillCoordinator) -> set[bytes | None]:
    """What compaction leaves there."""
    newest = {record.key(): record.value() for record in still.kafka.records(still.topics.doubt)}
    return {key for key, value in newest.items() if value is not None}


@pytest.mark.promise("P1")
@pytest.mark.parametrize("is_late", [False, True])
def test_what_doubt_did_not_take_whole_is_forwarded_as_long_as_half_has_it(*, is_late: bool) -> None:
    still, size = StillCoordinator(), 20_000
    small = {"max.message.bytes": "10000"}
    still.kafka.create_topic("small", settings=small)
    # What half took because it was compressed doubt may refuse uncompressed.
    still.kafka.do(lambda: still.kafka.cluster.alter_topic(still.topics.doubt, small))
    key = txn_key("large")
    offset = still.half(key, topic="small", value=b"x" * size)
    still.commit(key, offset)
    still.work(seconds=20)
    assert {key: "too-large"} == {k: on.reason for k, on in still.on_doubt().items()}
    if is_late:
        still.kafka.delete_records(still.topics.half, 0, before=offset + 1)

    mended = {"max.message.bytes": "1000000"}
    still.kafka.do(lambda: still.kafka.cluster.alter_topic("small", mended))
    still.start()  # it knows the topic's limit
    still.op(op_line("C", key, offset, source=Source.OPERATOR, reason="zoe: the topic is mended"))
    still.work(seconds=60)

    left = {key: "refused"} if is_late else {}
    assert left == {k: on.reason for k, on in still.on_doubt().items()}
    sizes = [len(record.value() or b"") for record in still.kafka.records("small")]
    assert ([] if is_late else [size]) == sizes


@pytest.mark.promise("P1", "P11")
def test_headers_that_could_not_be_read_on_doubt_are_read_in_half() -> None:
    """Kafka's client shows no header at all of a record that has more, and doubt adds some of its own."""
    still, key = StillCoordinator(doubt_after=timedelta(seconds=1)), txn_key("many")
    many = [("h", b"")] * (HEADERS_READ_MAX - 1)
    offset = still.kafka.append(
        still.topics.half, b"v", key=b"k", partition=0, headers=[*many, (HALF_HEADER, half_header(key))]
    )
    malformed = still.kafka.append(still.topics.half, b"v", partition=0, headers=[*many, *many[:1]])
    still.work(seconds=20)
    assert {key: ""} == {k: on.reason for k, on in still.on_doubt().items()}

    still.commit(key, offset)
    still.work(seconds=20)

    assert [b"v"] == [record.value() for record in still.kafka.records("orders")]
    kept = {record.key(): record.headers() for record in still.kafka.records(still.topics.doubt)}
    whys = [name for name, _ in kept[quarantine_key(Origin(still.topics.half, 0, malformed))] or ()]
    assert [WHY_HEADER] == whys


@pytest.mark.slow
@pytest.mark.promise("P1", "P11")
@pytest.mark.parametrize("is_shortened", [False, True])
def test_a_transaction_that_grows_beyond_the_limit_on_doubt_is_never_in_memory_whole(*, is_shortened: bool) -> None:
    """Its producer is not ours, and prepares for longer than `doubt_after`."""
    limit, count, size = 256 * 1024, 100, 10_000
    still = Measured(content_bytes, transaction_bytes_max=limit)
    key = txn_key("large")
    for index in range(count // 10):
        offset = still.half(key, index=index, count=count, value=b"x" * size)
    still.work(seconds=90)
    assert key in still.on_doubt()
    if is_shortened:  # what doubt has is all that there is
        still.kafka.delete_records(still.topics.half, 0, before=offset + 1)
    for index in range(count // 10, count):
        offset = still.half(key, index=index, count=count, value=b"x" * size)
        still.work(seconds=0.3)

    assert still.on_doubt()[key].seen == count
    assert still.most_bytes <= (2 * limit if is_shortened else limit)

    still.config = replace(still.config, transaction_bytes_max=2 * count * size)
    still.start()
    still.commit(key, offset)
    still.work(seconds=20)

    assert [size] * count == [len(r.value() or b"") for r in still.kafka.records("orders")]


@pytest.mark.promise("P11")
def test_garbage_on_op_behind_a_line_that_waits_is_not_read_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.coordinator.loop.READ_COUNT_MAX", 50)
    still = StillCoordinator(ahead_lines_max=100)
    still.op(op_line("C", txn_key("early"), FAR_AWAY))
    for _ in range(2_000):
        still.kafka.append(still.topics.op, b"\xff" * 1_000, partition=0)
    coordinator, most, until_s = still.coordinator, 0, still.world.passed_s + 5

    def should_stop() -> bool:
        nonlocal most
        held = [s.ledger for s in coordinator.view().shards.values()]
        most = max([most, *(len(ledger.ops._unreadable) for ledger in held)])
        return still.world.passed_s >= until_s

    coordinator.run(should_stop=should_stop)

    assert most <= 100 + 50


@pytest.mark.promise("P11")
@pytest.mark.parametrize("topic", ["half", "op", "lines"])
def test_what_is_kept_aside_in_one_kafka_transaction_is_bounded_in_bytes(topic: str) -> None:
    def size_of(batch: Batch) -> int:
        return sum(len(a.line) if a.line is not None else len(a.record) for a in batch.quarantined)

    bytes_max = 20_000
    still = Measured(size_of, batch_bytes_max=bytes_max)
    if topic == "lines":
        still.op(*["x" * 1_000] * 400)
    else:
        for _ in range(400):
            still.kafka.append(getattr(still.topics, topic), b"\xff" * 1_000, partition=0)

    still.work(seconds=30)

    assert bytes_max // 2 < still.most_bytes < 2 * bytes_max


@pytest.mark.promise("P11")
def test_summaries_and_questions_count_in_a_kafka_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction names a hundred topics: its summary and its question name them, too."""
    monkeypatch.setattr(GroupPresence, "of", lambda *_: frozenset({GROUP}))

    def size_of(batch: Batch) -> int:
        summaries = sum(len(encode_summary(keep.txn.summary())) for keep in batch.to_doubt.values())
        return summaries + sum(len(encode_check(check)) for check in batch.checks.values())

    bytes_max = 100_000
    still = Measured(size_of, batch_bytes_max=bytes_max)
    for number in range(40):
        key = txn_key(f"t{number}")
        for index in range(100):
            still.half(key, index=index, count=100, topic=f"{'x' * 200}-{index}")

    still.work(seconds=100)

    assert still.most_bytes < 2 * bytes_max
