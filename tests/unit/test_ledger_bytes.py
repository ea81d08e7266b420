"""One partition: batches and moves are bounded by bytes, whether or not the content is in memory."""

import pytest

from tests.support.core_records import half_bytes, half_header, half_record, options, txn_key
from tests.support.partition_driver import ACCEPTS, MISSING, PartitionDriver
from txlayer.core import codec
from txlayer.core.codec import HALF_HEADER
from txlayer.core.ledger.transaction import accepting_target
from txlayer.core.messages import OrderMode

KEYS = [txn_key(f"t{number}") for number in range(12)]
LARGE = b"x" * 1_000
ROOM = 4_000
"""Room for three and a bit; the one that fills it goes along."""

DROP_ALL = 1 << 40


def per_append(driver: PartitionDriver) -> list[int]:
    """How many messages each Kafka transaction forwarded."""
    return [len(appended.messages) for appended in driver.log.appended if appended.messages]


def prepare(driver: PartitionDriver, *, value: bytes = LARGE) -> list[int]:
    return [driver.half(key, value=value) for key in KEYS]


def commit(driver: PartitionDriver, places: list[int]) -> None:
    for key, place in zip(KEYS, places, strict=True):
        driver.op("C", key, place)


def work_off(driver: PartitionDriver, *, room: int = ROOM) -> None:
    driver.ledger.batch_bytes_max = room
    for _ in KEYS:
        driver.turn(byte_count=room)


@pytest.mark.promise("P11")
@pytest.mark.promise("P7")
@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_batch_is_bounded_whether_or_not_content_is_in_memory(*, is_dropped: bool, is_keyed: bool) -> None:
    driver = PartitionDriver()
    of = options("red" if is_keyed else None)
    commit(driver, [driver.half(key, value=LARGE, options=of) for key in KEYS])
    driver.read()
    if is_dropped:
        driver.ledger.drop_content(DROP_ALL)

    work_off(driver)

    assert [4, 4, 4] == per_append(driver)


def large_heads(driver: PartitionDriver) -> list[int]:
    """A half record of each key: with a large key and a large header, and without a value."""
    places = []
    for key in KEYS:
        raw = [("big", LARGE), (HALF_HEADER, half_header(key))]
        record = half_record(None, key=LARGE, value=None, headers=raw)
        places.append(driver.log.add_half(record, appended_ms=driver.now_ms))
    return places


@pytest.mark.promise("P11")
def test_keys_and_headers_count() -> None:
    driver = PartitionDriver(targets={"orders": accepting_target(100_000)})
    places = large_heads(driver)
    commit(driver, places)

    work_off(driver, room=2 * ROOM)

    assert [4, 4, 4] == per_append(driver)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("is_present", [False, True])
def test_moves_are_bounded(*, is_dropped: bool, is_present: bool) -> None:
    """`is_present`: by questions, which move what they ask about."""
    driver = PartitionDriver()
    prepare(driver)
    driver.read()
    driver.ledger.batch_bytes_max = ROOM
    if is_dropped:
        driver.ledger.drop_content(DROP_ALL)
    driver.now_ms += 10_000 if is_present else 60_000

    moved = []
    for _ in KEYS:
        driver.advance(byte_count=ROOM)
        driver.tick(is_present=is_present)
        moved.append(len(driver.ledger.batch.to_doubt))
        driver.publish()
        driver.now_ms += 1_000 if is_present else 0

    assert [4, 4, 4] == [count for count in moved if count]
    assert set(KEYS) == set(driver.log.on_doubt())


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_is_released_from_doubt_is_bounded(*, is_restarted: bool) -> None:
    driver = PartitionDriver(targets={"orders": MISSING})
    commit(driver, prepare(driver))
    driver.turn()
    if is_restarted:
        driver.crash(is_new_process=True)
        driver.turn()  # the first one asks about the topics
    driver.ledger.batch_bytes_max = ROOM

    driver.set_target("orders", ACCEPTS)
    for _ in KEYS:
        driver.publish()
        driver.advance(byte_count=ROOM)

    assert [4, 4, 4] == per_append(driver)


@pytest.mark.promise("P11")
def test_lines_about_doubt_are_bounded_after_a_restart() -> None:
    driver = PartitionDriver()
    places = prepare(driver)
    driver.turn()
    driver.tick(after_ms=60_000)
    driver.publish()
    driver.crash(is_new_process=True)
    commit(driver, places)

    work_off(driver)

    assert [4, 4, 4] == per_append(driver)


@pytest.mark.promise("P11")
def test_no_more_of_one_key_waits_in_half_than_one_kafka_transaction_takes() -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "stock": MISSING})
    driver.ledger.batch_bytes_max = ROOM
    first = txn_key("first")
    size = half_bytes(KEYS[0], value=LARGE)
    assert 3 * size < ROOM < 4 * size
    driver.half(first, options=options("red"))
    of = options("red", order=OrderMode.PREPARE)
    places = [driver.half(key, value=LARGE, options=of) for key in KEYS]
    commit(driver, places)

    driver.turn()

    assert set(KEYS) == set(driver.log.on_doubt())


@pytest.mark.fault("coordinator: is short of memory")
@pytest.mark.promise("P11")
def test_what_a_second_copy_drives_out_of_half_is_bounded() -> None:
    driver = PartitionDriver()
    first = txn_key("first")
    driver.move_to_doubt(first)
    places = prepare(driver)
    copy = driver.half(first)
    commit(driver, places)
    driver.op("C", first, copy)
    driver.read(half=len(KEYS))
    driver.ledger.drop_content(DROP_ALL)
    driver.ledger.batch_bytes_max = ROOM
    driver.read()

    moved = []
    while driver.ledger.has_more:
        driver.advance(byte_count=ROOM)
        moved.append(sum(keep.is_whole for keep in driver.ledger.batch.to_doubt.values()))
        driver.publish()

    assert [4, 4, 4] == [count for count in moved if count]
    assert sorted([first, *KEYS]) == sorted(driver.log.forwarded)


@pytest.mark.fault("coordinator: many second copies arrive of half records whose transactions are on doubt")
@pytest.mark.promise("P2")
@pytest.mark.parametrize("publish_count", [1, 2, 3, 4])
def test_a_crash_while_half_is_left_takes_no_second_copy_for_new(
    monkeypatch: pytest.MonkeyPatch, publish_count: int
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.second_copies.DISTANCE_MAX", 1)  # no key is remembered
    driver = PartitionDriver()
    first = txn_key("first")
    driver.move_to_doubt(first)
    prepare(driver)
    driver.half(first)
    driver.op("C", first, 0)
    driver.ledger.batch_bytes_max = ROOM
    driver.read()

    for _ in range(publish_count):
        driver.advance(byte_count=ROOM)
        driver.publish()
    driver.crash(is_new_process=True)
    driver.ledger.batch_bytes_max = ROOM
    driver.turn()
    driver.crash(is_new_process=True)
    while driver.ledger.has_more or not driver.log.forwarded:
        driver.turn()

    assert [first] == driver.log.forwarded
    assert driver.state(first) is None


@pytest.mark.fault("coordinator: is short of memory")
@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_cut", [False, True])
def test_what_stands_on_doubt_counts_whole_after_a_restart(*, is_cut: bool) -> None:
    driver = PartitionDriver(targets={"orders": accepting_target(100_000)})
    places = large_heads(driver)
    driver.turn()
    if is_cut:
        driver.log.refusals.doubt_keys.update(codec.content_key(key, 0) for key in KEYS)
    driver.tick(after_ms=60_000)
    driver.publish()
    driver.crash(is_new_process=True)
    commit(driver, places)

    work_off(driver, room=2 * ROOM)

    assert [4, 4, 4] == per_append(driver)


@pytest.mark.fault("coordinator: many second copies arrive of half records whose transactions are on doubt")
@pytest.mark.promise("P11")
@pytest.mark.promise("P1")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_joins_transactions_on_doubt_is_bounded(*, is_restarted: bool) -> None:
    driver = PartitionDriver()
    for key in KEYS:
        driver.half(key, index=0, count=2, value=LARGE)
    driver.turn()
    driver.tick(after_ms=60_000)
    driver.publish()
    last = [driver.half(key, index=1, count=2, value=LARGE) for key in KEYS]
    fresh = txn_key("fresh")
    place = driver.half(fresh)
    commit(driver, last)
    driver.op("C", fresh, place)
    driver.ledger.batch_bytes_max = ROOM

    driver.read()
    for turn in range(3 * len(KEYS)):
        batch = driver.advance(byte_count=ROOM)
        assert batch.byte_count < ROOM + 2 * (len(LARGE) + 200)
        driver.give_up()  # no line waits in vain: what it names was read
        driver.publish()
        if is_restarted and turn == 1:
            driver.crash()
            driver.ledger.batch_bytes_max = ROOM
            driver.read()

    assert [] == driver.log.kept_aside
    assert [*KEYS, fresh] == driver.log.forwarded
    assert 2 * len(KEYS) + 1 == len(driver.log.visible)


@pytest.mark.promise("P11")
def test_what_one_decision_releases_in_half_fits_into_one_batch() -> None:
    """Those that wait become smaller and smaller: each was measured as if all were as large as itself."""
    bytes_max = 500_000
    driver = PartitionDriver(targets={"orders": accepting_target(10**6)})
    driver.ledger.batch_bytes_max = bytes_max
    prepare = options("k", order=OrderMode.PREPARE)
    keys = [txn_key(f"t{number}") for number in range(500)]
    blocker = driver.half(keys[0], options=prepare)
    for number in range(1, 500):
        value = b"x" * (bytes_max // (number + 2) - 300)
        driver.op("C", keys[number], driver.half(keys[number], options=prepare, value=value))
        driver.turn()
    driver.op("C", keys[0], blocker)
    driver.read()

    sizes = []
    while driver.ledger.has_more:
        batch = driver.advance(byte_count=bytes_max)
        sizes.append(sum(txn.size for txn in batch.forwards))
        driver.publish()

    assert max(sizes) <= 2 * bytes_max
    assert keys == driver.log.forwarded
