"""Guards of the coordinator that a seed hardly ever meets: each test shows the promise kept with the guard and broken without it.

The coordinator is the real one on the cluster in memory; without a guard one part of it is replaced (tests/simulation/unguarded.py).
"""

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from tests.simulation import unguarded as un
from tests.support.core_records import op_line, txn_key
from tests.support.still_coordinator import StillCoordinator
from tests.support.still_world import StillWorld
from txlayer.adapters.memory import NoAnswerError, RefusedError
from txlayer.adapters.memory.cluster import MemberMetadata
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.publish import Publisher
from txlayer.coordinator.recovery import Recovery, empty_ledgers, encode_stored, ledger_settings
from txlayer.core import codec
from txlayer.core.ledger.batch import Positions
from txlayer.core.messages import txn_id_of

T = TypeVar("T")

COUNT = 2
"""Partitions of half and op."""


class KilledError(Exception):
    """The process is gone."""


# --- the time of send_offsets -----------------------------------------------------------------------------------------


class EchoingWorld(StillWorld):
    """The answer to one request for offsets is lost, and a copy of it arrives in a later Kafka transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.is_armed = False
        self.copy: Callable[[], Any] | None = None
        self.ends_to_come = 0
        self.arrived: list[str] = []

    def exchange(self, client: str, request: str, act: Callable[[], T]) -> T:
        if request == "TxnOffsetCommit" and self.is_armed:
            self.is_armed, self.copy, self.ends_to_come = False, act, 3
            act()
            raise NoAnswerError("answer lost")
        if request == "EndTxn" and self.copy is not None:
            self.ends_to_come -= 1
            if not self.ends_to_come:
                self._arrive(self.copy)
        return super().exchange(client, request, act)

    def _arrive(self, copy: Callable[[], Any]) -> None:
        self.copy = None
        try:
            copy()
        except RefusedError as exc:
            self.arrived.append(exc.code.kafka_name)
        else:
            self.arrived.append("")


def visible_after_an_echo(publisher: type[Publisher]) -> tuple[list[str], list[str]]:
    """What is visible when a copy of stored offsets came late and the coordinator died then; how the copy fared."""
    world = EchoingWorld()
    stage = StillCoordinator(world=world, make=un.coordinator_with(publisher=publisher))
    keys = [txn_key(name) for name in "abc"]

    def next_step() -> bool:
        done = len(stage.visible())
        if done == len(keys):
            raise KilledError
        if stage.coordinator._shards and len(stage.kafka.records(stage.topics.half)) == done:
            world.is_armed = done == 0
            stage.commit(keys[done], stage.half(keys[done]))
        return False

    with pytest.raises(KilledError):
        stage.coordinator.run(should_stop=next_step)
    stage.start()
    stage.work(seconds=5)
    return stage.visible(), world.arrived


@pytest.mark.promise("P2")
def test_offsets_that_are_stored_late_once_more_forward_nothing_twice() -> None:
    ids = [txn_id_of(txn_key(name)) for name in "abc"]

    assert (ids, ["INVALID_PRODUCER_EPOCH"]) == visible_after_an_echo(Publisher)
    assert ([*ids, *ids[1:]], [""]) == visible_after_an_echo(un.CommitWatchingPublisher)


# --- a partition whose batch stays behind -----------------------------------------------------------------------------


def kept_aside_beside_a_suspect(make: type[Coordinator]) -> list[tuple[int, int]]:
    """Where the garbage stood that is on doubt: it came while another partition went alone, because it was suspected."""
    stage = StillCoordinator(make=make)
    first = txn_key("first")
    stage.commit(first, stage.half(first))
    garbage: list[int] = []

    def look() -> bool:
        halves = len(stage.kafka.records(stage.topics.half))
        if 1 == halves == len(stage.visible()):
            # The coordinator knows the topic, and now it takes less.
            stage.kafka.cluster.alter_topic("orders", {"max.message.bytes": "900"})
            keys = [txn_key(name) for name in "abcdefgh"]
            stage.op(*(op_line("C", key, stage.half(key, value=b"x" * 2_000)) for key in keys))
        is_busy = any(shard.ledger.has_more for shard in stage.coordinator._shards.values())
        if not garbage and is_busy and stage.coordinator._refusals.partition_in_turn([0]) == 0:
            garbage.append(stage.kafka.append(stage.topics.half, b"garbage", partition=1))
        return stage.world.passed_s > 60

    stage.coordinator.run(should_stop=look)
    assert [0] == garbage
    parsed = (codec.parse_quarantine_key(r.key()) for r in stage.kafka.records(stage.topics.doubt))
    return [(origin.partition, origin.offset) for origin, _ in filter(None, parsed)]


@pytest.mark.promise("P3")
def test_what_came_while_another_partition_was_suspected_is_kept_aside() -> None:
    assert [(1, 0)] == kept_aside_beside_a_suspect(Coordinator)
    assert [] == kept_aside_beside_a_suspect(un.RashCoordinator)


# --- the writers' names are asked again -------------------------------------------------------------------------------


class LateCommit(un.Through):
    """Between the two questions for stored offsets a writer commits its first Kafka transaction and begins the next."""

    def __init__(self, connections: Any, happen: Callable[[], None]) -> None:
        super().__init__(connections)
        self._happen: Callable[[], None] | None = happen

    def stored_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, is_stable: bool = False
    ) -> dict[TopicPartition, StoredOffset | None]:
        if is_stable and self._happen is not None:
            happen, self._happen = self._happen, None
            happen()
        found: dict[TopicPartition, StoredOffset | None] = self._connections.stored_offsets(
            group, partitions, is_stable=is_stable
        )
        return found


def read_behind_a_late_writer(recovery: type[Recovery]) -> list[bytes | None]:
    """What a `read_committed` reader sees of a topic in which a former owner left a Kafka transaction open."""
    stage = StillCoordinator(kafka_transaction_timeout=timedelta(minutes=10))
    connections = stage.kafka.connect_coordinator(stage.config, client="successor")
    former = stage.kafka.connect_coordinator(stage.config, client="former")
    name = stage.topics.transactional_id("former")
    first, second = (former.make_writer(f"{name}.{x}", batch_bytes_max=10_000) for x in "ab")
    for writer in (first, second):
        writer.initialise(timeout_s=1)
    first.begin()
    offsets: dict[TopicPartition, StoredOffset] = {}
    for partition in range(COUNT):
        offsets.update(
            encode_stored(Positions(0, 0, 0, 0, 0, 0, 0), writer=name, topics=stage.topics, partition=partition)
        )
    member = MemberMetadata(stage.topics.coordinator_group)
    first.send_offsets(offsets, member, timeout_s=1)

    def commit_and_go_on() -> None:
        first.commit(timeout_s=1)
        second.begin()
        second.produce("orders", b"never committed")
        assert 0 == second.flush(timeout_s=1)

    ledgers = empty_ledgers(
        range(COUNT), settings=ledger_settings(stage.config, partition_count=COUNT), targets={}, refusals={}
    )
    late: Any = LateCommit(connections, commit_and_go_on)
    recovery(stage.config, late, is_still_ours=lambda: None, environment=stage.environment).rebuild(ledgers)
    stage.world.advance(ms=60_000)
    stage.kafka.append("orders", b"of another transaction")
    return [record.value() for record in stage.kafka.records("orders")]


@pytest.mark.promise("P11")
def test_a_writer_whose_name_was_stored_during_the_recovery_holds_no_reader_up() -> None:
    assert [b"of another transaction"] == read_behind_a_late_writer(Recovery)
    assert [] == read_behind_a_late_writer(un.OnceAskingRecovery)


# --- the end of doubt -------------------------------------------------------------------------------------------------


def taken_over_before_a_marker(wrap: Callable[[Any], Any]) -> list[str]:
    """What is visible of one that went to doubt, whose commit comes while the marker there is late."""
    late_s, key = 40.0, txn_key("moved")
    stage = StillCoordinator(doubt_after=timedelta(seconds=10))
    offset = stage.half(key)
    cluster: Any = stage.kafka.cluster
    write, late = cluster._write_marker, (stage.topics.doubt, 0)

    def write_later(transaction: Any, participant: Any) -> None:
        if participant == late and not cluster.markers and stage.world.passed_s < late_s:
            cluster.markers.append((stage.world.now_ms() + 1_000 * late_s, transaction, participant))
            cluster.due_at(cluster.markers[0][0])
        else:
            write(transaction, participant)

    cluster._write_marker = write_later
    stage.run(lambda: bool(cluster.markers), seconds=60)
    stage.start()
    stage.commit(key, offset)
    connect = stage.kafka.connect_coordinator
    stage.coordinator = Coordinator(
        stage.config, wrap(connect(stage.config, client="successor")), environment=stage.environment
    )
    stage.work(seconds=120)
    return stage.visible()


@pytest.mark.promise("P1")
def test_a_successor_reads_doubt_to_its_end_while_a_marker_is_late() -> None:
    """The stored position of half is behind what was moved there: if doubt were not read to its end, the commit would find nothing."""
    assert [txn_id_of(txn_key("moved"))] == taken_over_before_a_marker(lambda connections: connections)
    assert [] == taken_over_before_a_marker(un.UpToTheMarkers)


# --- a client that hangs when it is closed ----------------------------------------------------------------------------


@pytest.mark.promise("P7")
def test_a_successor_does_not_wait_for_the_close_of_the_producers_that_fence() -> None:
    stage = StillCoordinator()
    stage.work(seconds=2)  # its name stands in the stored offsets
    connections: Any = stage.coordinator._connections
    make_writer = connections.make_writer

    def hang() -> None:
        raise KilledError

    def make(*arguments: Any, **named: Any) -> Any:
        writer = make_writer(*arguments, **named)
        writer.close = hang
        return writer

    connections.make_writer = make
    key = txn_key("a")
    stage.commit(key, stage.half(key))

    def stop_when_visible() -> bool:
        if stage.visible() or stage.world.passed_s > 60:
            raise KilledError  # a clean end would wait for a close
        return False

    with pytest.raises(KilledError):
        stage.coordinator.run(should_stop=stop_when_visible)

    assert [txn_id_of(key)] == stage.visible()


# --- a transaction marker at the end of op ----------------------------------------------------------------------------


@pytest.mark.promise("P7")
def test_time_goes_on_behind_a_marker_in_op_while_another_partition_is_never_idle() -> None:
    stage = StillCoordinator(doubt_after=timedelta(seconds=2))
    decided, left = txn_key("decided"), txn_key("left")
    line = op_line("C", decided, stage.half(decided))
    stranger = stage.kafka.connect_coordinator(stage.config, client="stranger")
    writer = stranger.make_writer("stranger", batch_bytes_max=10_000)
    writer.initialise(timeout_s=5)
    writer.begin()
    writer.produce(stage.topics.op, line.encode(), None, 0)
    writer.flush(timeout_s=5)
    writer.commit(timeout_s=5)
    stage.half(left)

    def brings_more() -> bool:
        stage.half(txn_key(f"{stage.world.passed_s}", is_home=False), partition=1)
        stage.world.advance(ms=100)
        return stage.world.passed_s > 20

    stage.coordinator.run(should_stop=brings_more)

    assert left in stage.on_doubt()


# --- a record of op that is applied in part ---------------------------------------------------------------------------


@pytest.mark.promise("P2")
def test_a_restart_within_a_record_of_op_forwards_nothing_twice() -> None:
    """An older transaction is open, so half is read again from there: what the record's first line committed must not be open, too."""
    still, (old, first, second) = StillCoordinator(batch_lines_max=1), map(txn_key, ("x", "a", "b"))
    still.half(old)
    offsets = still.half(first), still.half(second)
    still.op(op_line("C", first, offsets[0]), op_line("C", second, offsets[1]))
    still.run(lambda: len(still.kafka.records("orders")) == 1, seconds=5)

    still.start()
    still.commit(first, offsets[0])  # its producer says so again
    still.work(seconds=5)

    headers = [dict(record.headers() or ()) for record in still.kafka.records("orders")]
    assert [txn_id_of(first), txn_id_of(second)] == [(found[codec.ID_HEADER] or b"").decode() for found in headers]
