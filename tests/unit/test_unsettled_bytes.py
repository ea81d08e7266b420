"""What unsettled transactions take in memory is bounded: half waits in its topic, the rest goes on, and nothing is lost."""

import gc
import itertools
import sys
import tracemalloc

import pytest

from tests.support.core_records import half_header, half_record, op_line, options, summary, txn_key
from tests.support.partition_driver import PartitionDriver
from tests.support.partition_log import SETTINGS
from tests.support.still_coordinator import StillCoordinator
from txlayer.coordinator.shard import Shard
from txlayer.core.codec import content_key, encode_summary
from txlayer.core.ledger.batch import Positions
from txlayer.core.ledger.doubt import DoubtFold
from txlayer.core.ledger.ledger import DORMANT_BYTES, FURTHER_BYTES, GROUP_BYTES, KEYED_BYTES, UNSETTLED_BYTES, Ledger
from txlayer.core.ledger.transaction import accepting_target
from txlayer.core.messages import NO_OPTIONS, NONCE_LENGTH, HalfOptions, OrderMode, UnresolvedAction
from txlayer.core.partitions import half_partition, key_hash

flooded = pytest.mark.fault(
    "coordinator: a flood of half records under invented names of producer groups exceeds the memory for transactions"
)
READ_COUNT = 5
COUNT = 200


def keys(count: int, *, partition: int = 0, name: str = "t") -> list[str]:
    """Transactions whose home is this partition."""
    ids = (f"{name}-{number}" for number in range(10 * count))
    home = [i for i in ids if half_partition(ordering_key=None, txn_id=i, partition_count=2) == partition]
    return [f"{txn_id}/{'a' * NONCE_LENGTH}" for txn_id in home[:count]]


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> StillCoordinator:
    """A coordinator that reads little at a time, with room for forty transactions."""
    monkeypatch.setattr("txlayer.coordinator.loop.READ_COUNT_MAX", READ_COUNT)
    # Each scheduled one is an object from its line on; usually that is little beside those that are in the short form.
    monkeypatch.setattr("txlayer.coordinator.loop.RELEASE_LINES_MAX", READ_COUNT)
    return StillCoordinator(unsettled_bytes_max=40 * UNSETTLED_BYTES)


def work(still: StillCoordinator, *, seconds: float = 5) -> dict[int, Shard]:
    """The shards as they were while it worked."""
    found: dict[int, Shard] = {}
    coordinator, until_s = still.coordinator, still.world.passed_s + seconds

    def should_stop() -> bool:
        found.update(coordinator.view().shards)
        return still.world.passed_s >= until_s

    still.run(should_stop, seconds=seconds)
    still.start()
    return found


@pytest.mark.threat("write `<ns>.half`")
@flooded
@pytest.mark.promise("P11")
def test_a_flood_of_invented_records_is_read_no_further_than_there_is_memory(still: StillCoordinator) -> None:
    for number, key in enumerate(keys(COUNT)):
        still.half(key, group=f"invented-{number}")

    shards = work(still)

    assert shards[0].is_half_paused
    assert shards[0].ledger.open_count <= 40 + READ_COUNT


@pytest.mark.threat("write `<ns>.half`")
@flooded
@pytest.mark.promise("P7", "P11")
def test_another_partition_goes_on_beside_a_flooded_one(still: StillCoordinator) -> None:
    for key in keys(COUNT):
        still.half(key)
    (other,) = keys(1, partition=1, name="other")
    last = still.half(other, partition=1)
    still.op(op_line("C", other, last), partition=1)

    shards = work(still)

    assert [other.partition("/")[0]] == still.visible()
    assert (True, False) == (shards[0].is_half_paused, shards[1].is_half_paused)


@pytest.mark.promise("P7")
def test_half_is_read_on_when_those_in_memory_are_decided(still: StillCoordinator) -> None:
    flood = keys(COUNT)
    offsets = [still.half(key) for key in flood]
    shards = work(still)
    assert shards[0].is_half_paused

    still.op(*(op_line("C", k, o) for k, o in zip(flood, offsets, strict=True)))
    shards = work(still, seconds=60)

    assert sorted(key.partition("/")[0] for key in flood) == sorted(still.visible())
    assert not shards[0].is_half_paused


@pytest.mark.promise("P7")
def test_time_goes_on_for_those_in_memory_while_half_waits(still: StillCoordinator) -> None:
    for key in keys(COUNT):
        still.half(key)

    shards = work(still, seconds=120)  # a start, with half never read to its end

    assert shards[0].is_half_paused
    assert shards[0].ledger.doubt_index.count == shards[0].ledger.open_count
    assert not shards[0].is_caught_up


@flooded
@pytest.mark.promise("P1", "P11")
def test_a_full_partition_keeps_to_its_bound_although_op_waits_and_more_memory_ends_it(still: StillCoordinator) -> None:
    flood = keys(COUNT)
    offsets = [still.half(key) for key in flood]
    still.op(op_line("C", flood[-1], offsets[-1]))

    shards = work(still)
    assert shards[0].ledger.open_count <= 40 + READ_COUNT
    assert [] == still.visible()

    still.config = still.config.__class__(unsettled_bytes_max=1 << 30)
    still.start()
    work(still)
    assert [flood[-1].partition("/")[0]] == still.visible()


@flooded
@pytest.mark.promise("P11")
def test_the_bound_holds_when_those_in_memory_go_to_doubt_while_half_waits(still: StillCoordinator) -> None:
    flood = keys(COUNT)
    offsets = [still.half(key) for key in flood]
    still.op(op_line("C", flood[-1], offsets[-1]))  # a line that waits lets half go furthest

    shards = work(still, seconds=120)

    ledger = shards[0].ledger
    assert ledger.open_count == ledger.doubt_index.count > 20
    assert ledger.unsettled_bytes <= still.config.unsettled_bytes_max


@pytest.mark.promise("P11")
def test_a_partition_full_of_scheduled_transactions_releases_those_that_are_due(still: StillCoordinator) -> None:
    due_ms = still.world.now_ms() + 100_000
    scheduled = keys(86)
    for key in scheduled:
        still.op(op_line("C", key, still.half(key, options=HalfOptions(deliver_at_ms=due_ms))))
    shards = work(still, seconds=50)
    ledger = shards[0].ledger
    assert shards[0].is_half_paused
    assert ledger.open_count < len(scheduled)
    assert ledger.waits_for_half is not None

    work(still, seconds=100)

    assert sorted(key.partition("/")[0] for key in scheduled) == sorted(still.visible())


@pytest.mark.promise("P11")
@pytest.mark.parametrize("does_sleep", [True, False])
def test_each_half_record_of_a_transaction_counts_until_it_is_settled(does_sleep: bool) -> None:
    driver = PartitionDriver()
    options = NO_OPTIONS if does_sleep else HalfOptions(immunity_ms=3_600_000)
    last = {}
    for name in ("a", "b"):
        for index in range(5):
            last[name] = driver.half(txn_key(name), index=index, count=5, options=options)
    driver.turn()
    assert 2 * UNSETTLED_BYTES + 8 * FURTHER_BYTES == driver.ledger.unsettled_bytes

    driver.say("R", txn_key("a"), last["a"])
    assert UNSETTLED_BYTES + 4 * FURTHER_BYTES == driver.ledger.unsettled_bytes

    driver.pass_time(after_ms=driver.log.settings.doubt_after_ms)
    driver.crash(is_new_process=True)
    assert does_sleep is bool(len(driver.ledger.dormant))
    assert driver.ledger.unsettled_bytes > DORMANT_BYTES
    assert driver.ledger.find(txn_key("b"))
    groups = driver.ledger.schedule.group_count + 2 * driver.ledger.dormant.group_count
    assert driver.ledger.unsettled_bytes == UNSETTLED_BYTES + 4 * FURTHER_BYTES + groups * GROUP_BYTES

    driver.say("R", txn_key("b"), last["b"])
    assert driver.ledger.unsettled_bytes == groups * GROUP_BYTES


@pytest.mark.promise("P7", "P11")
def test_half_does_not_wait_for_groups_whose_transactions_are_all_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.checks.IDLE_GROUPS_MAX", 10)
    still, count = StillCoordinator(unsettled_bytes_max=40 * UNSETTLED_BYTES), 100
    good, number, wait_until_s = txn_key("good"), 0, 0.0
    said: list[tuple[str, int]] = []

    def should_stop() -> bool:
        nonlocal number, wait_until_s
        if still.world.passed_s >= wait_until_s:
            wait_until_s = still.world.passed_s + 10  # the immunity is 6 s
            for key, offset in said:
                still.op(op_line("R", key, offset, group=f"invented-{number}"))
            said.clear()
            number += 1
            if number < count:
                key = txn_key(f"t{number}")
                said.append((key, still.half(key, group=f"invented-{number}")))
            elif number == count:
                still.commit(good, still.half(good))
        return number > count + 30

    still.run(should_stop, seconds=1_300)

    assert [good.partition("/")[0]] == still.visible()


@pytest.mark.promise("P11")
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(NO_OPTIONS, marks=pytest.mark.slow),
        pytest.param(HalfOptions(check_with="k+q+horder-id", query_id="invoice"), marks=pytest.mark.slow),
        pytest.param(HalfOptions(timestamp_ms=1_700_000_000_000), marks=pytest.mark.slow),
        pytest.param(HalfOptions(immunity_ms=60_000), marks=pytest.mark.slow),
        pytest.param(HalfOptions(unresolved=UnresolvedAction.ROLLBACK, is_group_named=True), marks=pytest.mark.slow),
        pytest.param(HalfOptions("", OrderMode.COMMIT), marks=pytest.mark.slow),
        HalfOptions("", OrderMode.PREPARE),
    ],
)
def test_unsettled_transactions_take_no_more_memory_than_is_counted(shape: HalfOptions) -> None:
    """Each of another customer: the key of the message is its ordering key, unless the user names one."""
    count, ids = 1_500, (f"019012ab-1234-7abc-89ab-{n:012x}" for n in itertools.count())
    hashes = (key_hash(f"customer-{n}".encode()) for n in itertools.count())
    homes = list(itertools.islice((h for h in hashes if int(h[:8], 16) % 2 == 0), count))
    names = (i for i in ids if not half_partition(ordering_key=None, txn_id=i, partition_count=2))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ledger = Ledger(0, settings=SETTINGS, targets={"orders": accepting_target(10**6)})
        ledger.times.believe_until(1 << 62)
        for offset, (hashed, txn_id) in enumerate(zip(homes, names, strict=False)):
            given = shape if shape.key_hash is None else shape._replace(key_hash=hashed)
            if given.query_id is not None:
                given = given._replace(query_id=f"invoice {offset}")
            if given.timestamp_ms is not None:
                given = given._replace(timestamp_ms=given.timestamp_ms + offset)
            raw = half_header(f"{txn_id}/0000000a", options=given)
            ledger.fold_half(offset, 1_800_000_000_000, raw, half_record(raw, value=b""))
        for round_ in range(4):
            ledger.let_time_pass(now_ms=1_800_000_000_000 + 61_000 + round_, move_count_max=1_000)
            keys = ledger.batch.to_doubt
            ledger.published({k: ledger.doubt_index.next_offset + n for n, k in enumerate(keys)})
            ledger.positions()
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert (count, count) == (ledger.open_count, ledger.doubt_index.count)
    assert used <= 1.1 * ledger.unsettled_bytes


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.promise("P11")
@pytest.mark.parametrize("way", ["in half", "on doubt", "after a restart"])
def test_second_copies_take_no_more_memory_than_is_counted(way: str) -> None:
    driver, key = PartitionDriver(), txn_key("t")
    if way == "in half":
        last = driver.half(key)
    else:
        driver.move_to_doubt(key)
        last = 0
    driver.turn()
    gc.collect()
    counted = driver.ledger.unsettled_bytes
    for _ in range(200):
        driver.half(key)
    driver.turn()
    if way == "after a restart":
        driver.crash(is_new_process=True)

    (txn,) = driver.ledger.all_unsettled()
    copies = txn.summary().twin_offsets
    taken = sys.getsizeof(list(copies)) + sum(map(sys.getsizeof, copies))
    assert 128 == len(copies)
    assert taken <= driver.ledger.unsettled_bytes - counted <= 2 * taken

    driver.say("R", key, last)

    assert [] == list(driver.ledger.all_unsettled())
    assert driver.ledger.unsettled_bytes < counted


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_keyed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_scheduled_transactions_take_no_more_memory_than_is_counted(is_keyed: bool) -> None:
    count, at_ms = 1_000, 1_800_000_000_000
    fold = DoubtFold()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            hashed = key_hash(f"customer-{number}".encode()) if is_keyed else None
            key = f"019012ab-1234-7abc-89ab-{number:012x}/0000000a"
            said = summary(
                key,
                state="scheduled",
                first_offset=number,
                last_offset=number,
                appended_ms=at_ms,
                born_ms=at_ms,
                key_hash=hashed,
                decided_at=(number, 0),
                committed_at=(number, 0),
                moved_ms=at_ms,
                times=(at_ms + 3_600_000 + number,),
            )
            fold.fold(2 * number, content_key(key, 0), b"v")
            fold.fold(2 * number + 1, key.encode(), encode_summary(said))
        ledger = Ledger(0, settings=SETTINGS, targets={"orders": accepting_target(10**6)})
        ledger.start_replay(Positions(count, count, count, 0, count, 0, 0, count), fold, doubt_next=2 * count)
        ledger.end_replay(Positions(count, count, count, 0, count, 0, 0, count))
        del fold, said
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert (count, []) == (ledger.open_count, list(ledger.transactions))
    assert used <= 1.1 * ledger.unsettled_bytes
    assert ledger.unsettled_bytes <= 300 * count
    assert used <= 250 * count


@pytest.mark.promise("P11")
@pytest.mark.parametrize("order", OrderMode)
@pytest.mark.parametrize("way", ["at once", "from doubt", "after a restart"])
def test_an_ordering_key_counts_until_its_transaction_is_settled(order: OrderMode, way: str) -> None:
    driver = PartitionDriver()
    key, ordering = keys(1)[0], options("red", order=order)
    offset = driver.half(key, options=ordering)
    driver.turn()
    if way != "at once":
        driver.pass_time(after_ms=driver.log.settings.doubt_after_ms)
    if way == "after a restart":
        driver.crash()
        driver.turn()
    assert UNSETTLED_BYTES + KEYED_BYTES == without_groups(driver)

    driver.say("C", key, offset)

    assert 0 == without_groups(driver)


def without_groups(driver: PartitionDriver) -> int:
    """What the transactions count, without their producer groups."""
    ledger = driver.ledger
    return ledger.unsettled_bytes - GROUP_BYTES * ledger.schedule.group_count
