"""Records that are stored while nobody tells their client where: what each of us does then."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.support.memory_stage import Stage
from tests.support.waiting import wait_until
from txlayer import TransactionalProducer
from txlayer.adapters import readers
from txlayer.adapters.connect import ConnectProducer, ProducerConnections
from txlayer.adapters.memory import Fault, MemoryKafka
from txlayer.adapters.memory.world import FaultPlan
from txlayer.adapters.readers import LogHistoryReader
from txlayer.config import CoordinatorConfig, ProducerConfig
from txlayer.coordinator.loop import Coordinator
from txlayer.core import codec
from txlayer.core.history import operator_reason
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.messages import COMMIT, ROLLBACK, HalfHeader, Message, OpMessage
from txlayer.errors import BrokerUnavailableError, OutcomeUnknownError, RetriableError
from txlayer.operate.settle import ManualSettlement, OperatorAction, line_of
from txlayer.operate.unsettled import UnsettledTransaction
from txlayer.runtime.kafka_transactions import Entry, KafkaTransactions
from txlayer.testing.stage import IN_TESTS

ORDER = Message("orders", b"k", b"v")


def make_kafka() -> MemoryKafka:
    kafka = MemoryKafka()
    kafka.create_topic("orders", partitions=1)
    kafka.create_namespace("txlayer", partitions=1)
    return kafka


@pytest.fixture
def kafka() -> MemoryKafka:
    return make_kafka()


def faults(kafka: MemoryKafka) -> FaultPlan:
    world: Any = kafka.world  # both worlds of tests have them
    found: FaultPlan = world.faults
    return found


def tell_no_place(kafka: MemoryKafka, *, client: str | None = None) -> None:
    """The next batch is stored, its answer is lost, and what comes instead of it names no place."""
    faults(kafka).plan(Fault.LOSE_ANSWER, "Produce", client=client)
    faults(kafka).refuse("Produce", "DUPLICATE_SEQUENCE_NUMBER", client=client)


@contextmanager
def started(
    kafka: MemoryKafka, connect: ConnectProducer | None = None, **settings: Any
) -> Iterator[TransactionalProducer]:
    with TransactionalProducer(
        bootstrap_servers=kafka.bootstrap_servers, group="shop", connect=connect or kafka.connect_producer, **settings
    ) as producer:
        yield producer


def halves(kafka: MemoryKafka) -> dict[str, int]:
    """Key → offset of the last half record."""
    found: dict[str, int] = {}
    for record in kafka.records("txlayer.half"):
        header = codec.decode_half_header(codec.half_header_of(record.headers()) or b"")
        assert isinstance(header, HalfHeader)
        found[header.key] = record.offset()
    return found


def ops(kafka: MemoryKafka) -> list[OpMessage]:
    lines = [
        codec.decode_op(line)
        for record in kafka.records("txlayer.op")
        for line in (record.value() or b"").decode().split("\n")
    ]
    assert all(isinstance(line, OpMessage) for line in lines)
    return lines  # type: ignore[return-value]  # the line above


@pytest.mark.fault(
    "producer: the answer to a batch is lost, and the answer to a later one shows that it was stored, but not where"
)
def test_an_op_line_names_the_place_that_was_looked_up(kafka: MemoryKafka) -> None:
    with started(kafka) as producer:
        producer.publish(ORDER, txn_id="before")
        tell_no_place(kafka)

        result = producer.publish([ORDER, ORDER], txn_id="order-1")

    key = f"order-1/{result.nonce}"
    assert {(Fault.LOSE_ANSWER, "Produce"): 1, (Fault.REFUSE, "Produce"): 1} == faults(kafka).seen
    assert 2 == halves(kafka)[key] == result.last_half_offset
    assert [(key, 2, COMMIT)] == [(op.key, op.last_offset, op.resolution) for op in ops(kafka) if op.key == key]


@pytest.mark.parametrize("kind", ["plain", "with a local transaction", "several messages"])
def test_what_was_submitted_goes_on_when_it_is_found(kafka: MemoryKafka, kind: str) -> None:
    ran: list[str] = []

    def local_transaction(tx: Any) -> Any:
        ran.append(tx.txn_id)
        return ROLLBACK

    with started(kafka) as producer:
        tell_no_place(kafka)
        if kind == "plain":
            future = producer.submit(ORDER)
        elif kind == "several messages":
            future = producer.submit([ORDER, ORDER])
        else:
            future = producer.submit(ORDER, local_transaction)
        result = future.result(30)

    (op,) = ops(kafka)
    assert [result.txn_id] * (kind == "with a local transaction") == ran
    assert (ROLLBACK if ran else COMMIT) == op.resolution == result.resolution
    assert halves(kafka) == {op.key: op.last_offset}


def test_who_prepares_waits_until_the_place_is_known(kafka: MemoryKafka) -> None:
    with started(kafka) as producer:
        tell_no_place(kafka)
        with producer.transaction("order-1") as tx:
            tx.send("orders", key=b"k", value=b"v")
            tx.prepare()
            assert [] == ops(kafka)
        assert 0 == tx.result(30).last_half_offset

    assert [0] == [op.last_offset for op in ops(kafka)]


def test_a_clock_that_is_ahead_costs_a_longer_look(kafka: MemoryKafka) -> None:
    kafka.append("txlayer.half", b"long ago")
    with started(kafka) as producer:
        result = producer.publish(ORDER, txn_id="order-1")
    history = kafka.connect_producer(ProducerConfig(), client="p").history()
    key = f"order-1/{result.nonce}"

    far_ahead = kafka.world.now_ms() + 3_600_000

    assert {key: 1} == history.half_offsets(0, {key, "nobody/00000000"}, at_ms=far_ahead)


@pytest.mark.promise("P1", "P5")
def test_the_place_of_a_half_record_that_is_not_the_last_is_not_taken_for_that_of_the_last(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "HIDDEN_S", -1)
    stranger = kafka.connect_coordinator(CoordinatorConfig()).make_writer("stranger", batch_bytes_max=100_000)
    stranger.initialise(timeout_s=5)
    history = kafka.connect_producer(ProducerConfig(), client="p").history()
    key = "order-1/5f3a90c2"

    def store(index: int) -> None:
        header = codec.half_header(key, "shop", "orders", index, 2, 0, "")
        kafka.append("txlayer.half", b"v", headers=[(codec.HALF_HEADER, header)])

    store(0)
    stranger.begin()
    stranger.produce("txlayer.half", b"theirs", None, 0)
    stranger.flush(timeout_s=5)
    store(1)
    with pytest.raises(BrokerUnavailableError, match="hides what there is"):
        history.half_offsets(0, {key}, at_ms=0)
    stranger.commit(timeout_s=5)

    assert {key: 2} == history.half_offsets(0, {key}, at_ms=0)


class Blind:
    """Connections whose history nobody can read."""

    def __init__(self, real: ProducerConnections) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def history(self) -> LogHistoryReader:
        return cast("LogHistoryReader", BlindReader())


class BlindReader:
    """Never reads anything."""

    def half_offsets(self, *_: Any, at_ms: int) -> Any:
        raise BrokerUnavailableError(f"nothing from {at_ms} on")


def blindly(kafka: MemoryKafka) -> ConnectProducer:
    def connect(config: ProducerConfig) -> Any:
        return Blind(kafka.connect_producer(config))

    return connect


def test_where_nobody_finds_out_nothing_is_decided_and_places_in_flight_come_back(kafka: MemoryKafka) -> None:
    with started(kafka, blindly(kafka), in_flight_max=1, resolution_timeout=timedelta(milliseconds=1)) as producer:
        for _ in range(2):
            tell_no_place(kafka)
            with pytest.raises(OutcomeUnknownError, match="at an offset that was not found"):
                producer.publish(ORDER)

    assert [] == kafka.records("txlayer.op")


@pytest.mark.fault("producer: the machine cannot start a thread")
def test_a_producer_goes_on_if_no_thread_can_be_started_that_looks_a_place_up(
    kafka: MemoryKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with started(kafka) as producer:
        producer.publish(ORDER, txn_id="before")
        tell_no_place(kafka)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(OutcomeUnknownError, match="at an offset that was not found"):
                producer.publish(ORDER, txn_id="order-1")

        assert COMMIT is producer.publish(ORDER, txn_id="order-2").resolution


def test_a_producer_that_ends_meanwhile_tells_those_who_wait(kafka: MemoryKafka) -> None:
    with started(kafka, blindly(kafka), resolution_timeout=timedelta(minutes=5)) as producer:
        tell_no_place(kafka)
        future = producer.submit(ORDER)
        wait_until(lambda: faults(kafka).seen[Fault.REFUSE, "Produce"], within=30, what="the report")
        with pytest.raises(OutcomeUnknownError, match="1 transactions were still in flight"):
            producer.close(0.05)

    with pytest.raises(OutcomeUnknownError, match="at an offset that was not found"):
        future.result(30)


def test_an_op_record_without_a_place_is_acknowledged_all_the_same(kafka: MemoryKafka) -> None:
    with started(kafka, in_flight_max=1) as producer:
        with producer.transaction("order-1") as tx:
            tx.send("orders", key=b"k", value=b"v")
            tx.prepare()
            tell_no_place(kafka)
        assert -1 == tx.result(30).op_offset
        assert 0 <= producer.publish(ORDER).op_offset

    assert 2 == len(ops(kafka)) == len(halves(kafka))


# --- coordinators -----------------------------------------------------------------------------------------------------


@pytest.mark.fault(
    "producer: the answer to a batch is lost, and the answer to a later one shows that it was stored, but not where"
)
def test_a_coordinator_rebuilds_and_keeps_a_transaction_on_doubt_once(kafka: MemoryKafka) -> None:
    with started(kafka) as producer:
        abandoned = producer.transaction("order-1")
        with abandoned as tx:
            tx.send("orders", key=b"k", value=b"v")
            tx.prepare()
            tx.unknown()
    tell_no_place(kafka, client="coordinator")
    config = CoordinatorConfig(bootstrap_servers=kafka.bootstrap_servers, doubt_after=timedelta(seconds=1))
    coordinator = Coordinator(config, kafka.connect_coordinator(config, client="coordinator"), environment=IN_TESTS)
    is_stopping = threading.Event()
    thread = threading.Thread(target=coordinator.run, kwargs={"should_stop": is_stopping.is_set})
    thread.start()
    try:
        wait_until(lambda: kafka.records("txlayer.doubt"), within=60, what="it is on doubt")
    finally:
        is_stopping.set()
        thread.join()

    assert 1 == faults(kafka).seen[Fault.REFUSE, "Produce"]
    summaries = [r for r in kafka.records("txlayer.doubt") if not (r.key() or b"").endswith(b"/0")]
    assert 1 == len(summaries)


def test_an_operators_lines_without_a_place_are_stored_and_unknown(kafka: MemoryKafka) -> None:
    txn = Transaction("order-1/00000001", "orders", "shop", 1, 1_000, "900", (0, 0), None)
    found = UnsettledTransaction(0, "parked", txn)
    line = line_of(OperatorAction.COMMIT, found, operator_reason("zoe", "ticket 12"))
    hands = ManualSettlement(kafka.connect_coordinator(CoordinatorConfig()))
    tell_no_place(kafka)

    with pytest.raises(OutcomeUnknownError, match="1 lines are stored"):
        hands.write([line])

    assert ["order-1/00000001"] == [op.key for op in ops(kafka)]


# --- consumers --------------------------------------------------------------------------------------------------------


@pytest.mark.fault(
    "producer: the answer to a batch is lost, and the answer to a later one shows that it was stored, but not where"
)
def test_a_dead_letter_without_a_place_is_not_committed() -> None:
    stage = Stage()
    writer = KafkaTransactions(stage.connections(), name="dead", timeout_s=10.0)
    writer.start()
    tell_no_place(stage.kafka)

    with pytest.raises(RetriableError, match="did not say at which offsets"):
        writer.write([Entry("orders", 0, b"k", b"v", None)])

    assert [] == stage.values()
