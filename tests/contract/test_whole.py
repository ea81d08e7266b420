"""The whole way of a message, with the real producer and the real coordinator: prepared, decided, forwarded, told."""

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.support.broker import unique_name
from tests.support.core_records import half_header, op_line, txn_key
from tests.support.lab import FaultyLab, Lab
from tests.support.waiting import wait_until
from tests.support.whole_stage import SESSION, Running, Shop
from txlayer.core import codec
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import Message, OpMessage, Resolution, user_headers


@pytest.fixture
def shop(lab: Lab) -> Shop:
    return Shop(lab)


@pytest.fixture
def coordinator(shop: Shop) -> Iterator[Running]:
    running = shop.coordinator()
    yield running
    running.stop()


@pytest.mark.usefixtures("coordinator")
def test_what_is_committed_is_forwarded_once_and_what_is_rolled_back_never(shop: Shop) -> None:
    with shop.producer() as producer:
        for name in ("order-1", "order-2"):
            with producer.transaction(name, ordering_key="customer") as tx:
                tx.send(shop.orders, key="customer", value=name)
                tx.prepare()
                if name == "order-1":
                    tx.rollback()
        shop.wait_for(1)

        (history,) = producer.status("order-1")
        assert TxnState.ROLLED_BACK is history.state
    assert [(b"order-2", b"order-2")] == shop.visible()


@pytest.mark.usefixtures("coordinator")
def test_a_message_is_forwarded_whole_alone_and_beside_another(shop: Shop) -> None:
    headers: list[list[tuple[str, bytes | None]]] = [[], [("a", b"1")], [("a", b"1"), ("b", None), ("a", b"")]]
    sent = [Message(shop.orders, b"k%d" % n, b"%d" % n, given) for n, given in enumerate(headers * 2)]
    with shop.producer() as producer:
        for message in sent[:3]:
            producer.publish(message)
        producer.publish(sent[3:])
        shop.wait_for(len(sent))

    found = sorted(shop.lab.read(shop.orders), key=lambda record: record.value or b"")
    assert [(m.key, m.value, m.headers) for m in sent] == [(r.key, r.value, user_headers(r.headers)) for r in found]


@pytest.mark.fault("data: an op line of another producer group")
@pytest.mark.usefixtures("coordinator")
def test_a_result_tells_what_was_decided_where_another_word_came_first(shop: Shop) -> None:
    said = {"order-1": Resolution.COMMIT, "order-2": Resolution.ROLLBACK}
    contrary = {"order-1": Resolution.ROLLBACK, "order-2": Resolution.COMMIT}
    with shop.producer() as producer:
        for name, word in said.items():
            with producer.transaction(name, ordering_key="customer") as tx:
                tx.send(shop.orders, key="customer", value=name)
                tx.send(shop.orders, key="customer", value=name)
                tx.prepare()
                (stored,) = producer.status(name)
                last = stored.half_records[-1].offset
                op = OpMessage(contrary[name], f"{name}/{stored.nonce}", stored.producer_group, last, 0)
                shop.lab.write(shop.topics.op, codec.encode_op(op).encode(), partition=stored.partition)
                tx.commit() if word is Resolution.COMMIT else tx.rollback()

            told = tx.result(30, with_decision=True)

            assert (word, contrary[name]) == (told.resolution, told.decision)
        with producer.transaction("order-3", ordering_key="customer") as tx:
            tx.send(shop.orders, key="customer", value="order-3")
            tx.prepare()
            tx.unknown()
        assert tx.result(30, with_decision=True).decision is None
        with producer.transaction("order-4", ordering_key="customer") as tx:
            tx.send(shop.orders, key="customer", value="order-4")
            tx.prepare()
        assert Resolution.COMMIT is tx.result(30, with_decision=True).decision
        assert tx.result(30).decision is None


@pytest.mark.usefixtures("coordinator")
def test_many_transactions_in_flight_all_arrive_in_order_of_their_key(shop: Shop) -> None:
    with shop.producer() as producer:
        futures = [producer.submit(Message(shop.orders, b"k", b"%d" % n), ordering_key="k") for n in range(200)]
        for future in futures:
            future.result(30)
    shop.wait_for(200)

    assert [b"%d" % n for n in range(200)] == [value for _, value in shop.visible()]


def test_a_coordinator_goes_on_where_the_one_before_stopped(shop: Shop) -> None:
    with shop.producer() as producer:
        for round_number in range(2):
            running = shop.coordinator()
            for n in range(10):
                producer.publish(Message(shop.orders, None, b"%d-%d" % (round_number, n)))
            shop.wait_for(10 * (round_number + 1))
            running.stop()

    assert 20 == len({txn_id for txn_id, _ in shop.visible()}) == len(shop.visible())


@pytest.mark.promise("P2")
def test_a_second_copy_behind_a_restart_is_not_forwarded_again(lab: Lab) -> None:
    shop = Shop(lab, partition_count=1)

    def write(*keys: str) -> None:
        shop.half(*((half_header(key, topic=shop.orders), key.encode()) for key in keys))

    running = shop.coordinator()
    write(txn_key("first"))
    shop.lab.write(shop.topics.op, op_line("C", txn_key("first"), 0).encode())
    shop.wait_for(1)
    running.stop()

    running = shop.coordinator()
    write(txn_key("first"), txn_key("second"))
    lines = [op_line("C", txn_key("first"), 1), op_line("C", txn_key("second"), 2)]
    shop.lab.write(shop.topics.op, *[line.encode() for line in lines])
    shop.wait_for(2)
    running.stop()

    assert [txn_key("first"), txn_key("second")] == sorted((value or b"").decode() for _, value in shop.visible())


@pytest.mark.slow
@pytest.mark.promise("P1", "P11")
def test_a_strangers_kafka_transaction_on_half_delays_and_loses_nothing(lab: Lab) -> None:
    shop = Shop(lab, partition_count=1)
    connections = lab.coordinator(shop.topics.namespace)
    stranger = connections.make_writer(unique_name("stranger"), batch_bytes_max=10_000)
    stranger.initialise(timeout_s=20)
    stranger.begin()
    stranger.produce(shop.topics.half, b"a stranger's", None, 0)
    assert 0 == stranger.flush(timeout_s=20)
    second = timedelta(seconds=1)

    running = shop.coordinator(misplaced_after=second)
    with shop.producer() as producer:
        producer.publish(Message(shop.orders, None, b"hidden"))
        wait_until(lambda: _waits(running), within=30, what="the line of a half record that nobody can read yet")
        patience_ends = time.monotonic() + 4
        wait_until(lambda: time.monotonic() > patience_ends, within=10, what="patience")
        assert _waits(running)
        with producer.transaction("open-1") as tx:
            tx.send(shop.orders, value=b"open")
            tx.prepare()
            stranger.commit(timeout_s=20)
            shop.wait_for(1)
            running.stop()

            # Half ends with the stranger's marker now, and a successor must see that it has read all.
            running = shop.coordinator(doubt_after=second)
            wait_until(
                lambda: any(t.is_in_doubt for x in running.ledgers for t in x.all_unsettled()),
                within=30,
                what="the open one on doubt",
            )
        shop.wait_for(2)
    running.stop()
    connections.close()
    assert [b"hidden", b"open"] == [value for _, value in sorted(shop.visible(), key=_value)]


def _waits(running: Running) -> bool:
    return any(ledger.waits_for_half is not None for ledger in running.ledgers)


def _value(visible: tuple[bytes | None, bytes | None]) -> bytes:
    return visible[1] or b""


def test_two_coordinators_share_the_work_and_double_nothing(shop: Shop) -> None:
    running = [shop.coordinator(), shop.coordinator()]
    with shop.producer() as producer:
        for n in range(50):
            producer.publish(Message(shop.orders, None, b"%d" % n))
    shop.wait_for(50)
    for each in running:
        each.stop()

    assert 50 == len({txn_id for txn_id, _ in shop.visible()}) == len(shop.visible())


@pytest.mark.fault("network: connections are cut")
@pytest.mark.slow
def test_a_coordinator_that_is_cut_off_is_replaced_and_nothing_is_lost_or_doubled(faulty_lab: FaultyLab) -> None:
    shop = Shop(faulty_lab)
    namespace = shop.topics.namespace
    distant = shop.coordinator(faulty_lab.distant(namespace, session_timeout=SESSION))
    with shop.producer() as producer:
        producer.publish(Message(shop.orders, None, b"before"))
        shop.wait_for(1)
        faulty_lab.cut_off()
        producer.publish(Message(shop.orders, None, b"meanwhile"))
        heir = shop.coordinator()
        shop.wait_for(2)
        faulty_lab.reconnect()
        producer.publish(Message(shop.orders, None, b"after"))
        shop.wait_for(3)
        heir.stop()
    distant.stop()

    assert {b"before", b"meanwhile", b"after"} == {value for _, value in shop.visible()}
    assert 3 == len(shop.visible())


@pytest.mark.fault("coordinator: the broker fences its writer while it is idle")
@pytest.mark.slow
@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_writer_that_was_fenced_while_it_was_idle_is_replaced_without_a_word(shop: Shop, letter: str) -> None:
    """A late request opens a Kafka transaction of it, and the broker gives that up after its time-out."""
    timeout = timedelta(seconds=2)
    running = shop.coordinator(kafka_transaction_timeout=timeout)
    producer = shop.producer()
    producer.publish(Message(shop.orders, b"k", b"before"))
    shop.wait_for(1)
    connections = shop.lab.coordinator(shop.topics.namespace)
    stored = connections.stored_offsets(shop.topics.coordinator_group, [(shop.topics.op, 0)], is_stable=True)[
        shop.topics.op, 0
    ]
    assert stored is not None
    name = stored.metadata.split("|")[1]
    turned_at = running.coordinator.counts.turned_at or 0.0
    wait_until(  # its last progress was stored a second after the last message, at most
        lambda: (running.coordinator.counts.turned_at or 0.0) > turned_at + 4,
        within=40,
        what="both of its writers were idle for longer than the time-out",
    )
    fence = connections.make_writer(f"{name}.{letter}", batch_bytes_max=16_384)
    fence.initialise(timeout_s=20)
    fence.close()

    for number in range(2):
        producer.publish(Message(shop.orders, b"k", b"%d" % number))
        shop.wait_for(2 + number)
    counts = running.coordinator.counts
    running.stop()
    producer.close()
    connections.close()

    assert [b"before", b"0", b"1"] == [value for _, value in shop.visible()]
    assert 0 == counts.rebuild_count
    # Once for the fence; on a busy machine a commit may take so long that the other writer is replaced, too.
    assert counts.publishing.replaced_count >= 1
