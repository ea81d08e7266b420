"""P11, of a coordinator at work: content in memory, op ahead of half, what a restart reads, each within its named limit."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.core_records import half_header, op_line, txn_key
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from tests.support.whole_stage import Running, Shop
from txlayer.core.ledger.ledger import UNSETTLED_BYTES

COUNT = 60
KEYS = [txn_key(f"txn-{number}") for number in range(COUNT)]
VALUES = [b"%04d" % number * 500 for number in range(COUNT)]
FOR_EVER = timedelta(hours=1)


@pytest.fixture
def shop(lab: Lab) -> Shop:
    return Shop(lab, partition_count=1)


def prepare(shop: Shop) -> None:
    """Half records of them all, at the offsets 0, 1, 2, …"""
    shop.half(*((half_header(key, topic=shop.orders), value) for key, value in zip(KEYS, VALUES, strict=True)))


def commit(shop: Shop, numbers: Sequence[int]) -> None:
    """An op record for each."""
    lines = [op_line("C", KEYS[number], number).encode() for number in numbers]
    shop.lab.write(shop.topics.op, *lines)


def all_are_visible(shop: Shop) -> bool:
    """Each once, with every byte."""
    return sorted(VALUES) == sorted(value or b"" for _, value in shop.visible())


def open_count(running: Running) -> int:
    """Transactions that it knows of."""
    return sum(ledger.open_count for ledger in running.ledgers)


def content_bytes(running: Running) -> int:
    """What it holds of their messages."""
    return sum(ledger.content_bytes for ledger in running.ledgers)


def knows_them_all_within(running: Running, budget: int) -> bool:
    """Whether it knows all transactions, and holds no more than its budget of their messages."""
    return open_count(running) == COUNT and content_bytes(running) <= budget


@pytest.mark.promise("P11")
def test_content_stays_within_its_budget_and_what_was_dropped_arrives_whole(shop: Shop) -> None:
    budget = len(VALUES[0]) * COUNT // 6
    prepare(shop)
    for who in ("the first", "a successor, which reads all of half again"):
        running = shop.coordinator(content_bytes_max=budget)
        wait_until(partial(knows_them_all_within, running, budget), within=40, what=f"{who} keeps to it")
        assert 0 < content_bytes(running)
        running.stop()

    running = shop.coordinator(content_bytes_max=budget)
    commit(shop, range(COUNT))
    shop.wait_for(COUNT)
    running.stop()

    assert all_are_visible(shop)


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.promise("P3")
@OF_HANDLERS
def test_a_record_that_was_kept_aside_stays_there_when_content_is_read_again(shop: Shop) -> None:
    secrets = shop.lab.topic()
    shop.half(
        (half_header(KEYS[0], topic=shop.orders), b"v"),
        (half_header(KEYS[0], topic=secrets, index=3, count=7), b"v"),
        (half_header(KEYS[1], topic=shop.orders), b"v"),
    )
    running = shop.coordinator(content_bytes_max=1, target_topics=(shop.orders,))
    wait_until(lambda: 2 == open_count(running), within=40, what="it knows them")

    shop.lab.write(shop.topics.op, *[op_line("C", KEYS[n], 2 * n).encode() for n in range(2)])
    shop.wait_for(2)
    running.stop()

    assert ([], 2) == (shop.lab.read(secrets), len(shop.visible()))


@pytest.mark.promise("P11")
@OF_HANDLERS
def test_op_that_is_far_ahead_of_half_waits_in_its_topic(shop: Shop) -> None:
    commit(shop, range(COUNT // 2))
    running = shop.coordinator(ahead_lines_max=10, misplaced_after=FOR_EVER)
    wait_until(
        lambda: any(shard.is_op_paused for shard in running.coordinator.view().shards.values()),
        within=40,
        what="op is paused",
    )
    (ledger,) = running.ledgers
    ahead = ledger.ops.line_count
    assert 10 < ahead <= COUNT // 2

    commit(shop, range(COUNT // 2, COUNT))
    turned_at = running.coordinator.counts.turned_at or 0.0
    wait_until(
        lambda: (running.coordinator.counts.turned_at or 0.0) > turned_at + 1, within=40, what="it had time to read on"
    )
    assert ahead == ledger.ops.line_count

    prepare(shop)
    shop.wait_for(COUNT)
    running.stop()

    assert all_are_visible(shop)


@pytest.mark.promise("P11")
def test_a_restart_reads_nothing_of_half_again_that_is_older_than_doubt_after(shop: Shop) -> None:
    half = (shop.topics.half, 0)
    connections = shop.lab.coordinator(shop.topics.namespace)

    def low_water() -> int:
        stored = connections.stored_offsets(shop.topics.coordinator_group, [half], is_stable=True)[half]
        return -1 if stored is None else stored.offset

    prepare(shop)
    running = shop.coordinator(doubt_after=timedelta(seconds=1))
    wait_until(lambda: low_water() == COUNT, within=40, what="all of half lies behind")
    running.stop()

    successor = shop.coordinator()
    wait_until(lambda: open_count(successor) == COUNT, within=40, what="it knows them all")
    assert 0 == content_bytes(successor)
    commit(shop, range(COUNT))
    shop.wait_for(COUNT)
    successor.stop()
    connections.close()

    assert all_are_visible(shop)


@pytest.mark.fault(
    "coordinator: a flood of half records under invented names of producer groups exceeds the memory for transactions"
)
@pytest.mark.promise("P11")
@OF_HANDLERS
def test_half_waits_in_its_topic_while_there_is_no_memory_for_more_transactions(shop: Shop) -> None:
    prepare(shop)
    room = 30 * UNSETTLED_BYTES
    running = shop.coordinator(unsettled_bytes_max=room)
    wait_until(
        lambda: any(s.is_half_paused for s in running.coordinator.view().shards.values()),
        within=40,
        what="half is paused",
    )
    later = txn_key("later")
    shop.half((half_header(later, topic=shop.orders), b"later"))
    assert COUNT >= open_count(running)

    commit(shop, range(COUNT))
    shop.lab.write(shop.topics.op, op_line("C", later, COUNT).encode())
    shop.wait_for(COUNT + 1)
    running.stop()

    assert sorted([*VALUES, b"later"]) == sorted(value or b"" for _, value in shop.visible())
