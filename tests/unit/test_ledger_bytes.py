"""One partition: what bounds its bytes and its number of open transactions; content leaves memory oldest first."""

import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.support.core_records import GROUP, half_bytes, half_header, half_record, op_line, options, txn_key
from tests.support.partition_driver import ACCEPTS, MISSING, PartitionDriver
from tests.support.partition_log import SETTINGS
from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.codec import HALF_HEADER
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.remembered import UnsettledInHalf
from txlayer.core.ledger.transaction import Transaction, accepting_target
from txlayer.core.messages import HEADERS_MAX, CheckKind, HalfOptions, OrderMode, Source

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


@pytest.mark.promise("P7", "P11")
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


@pytest.mark.fault("coordinator: is short of memory")
@pytest.mark.promise("P11")
def test_what_is_read_for_questions_counts() -> None:
    driver = PartitionDriver()
    for key in KEYS:
        driver.half(key, value=50 * LARGE, options=HalfOptions(check_with="k"))
    driver.turn()
    driver.pass_time(after_ms=60_000)
    driver.ledger.batch_bytes_max = 100_000

    asked = []
    for _ in range(len(KEYS) // 2):
        driver.tick(after_ms=1_000, is_present=True)
        asked.append(len(driver.ledger.batch.checks))
        driver.publish()

    assert [2] * len(asked) == asked


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
    driver.pass_time(after_ms=60_000)
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
    monkeypatch.setattr("txlayer.core.ledger.remembered.DISTANCE_MAX", 1)  # no key is remembered
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
    driver.pass_time(after_ms=60_000)
    driver.crash(is_new_process=True)
    commit(driver, places)

    work_off(driver, room=2 * ROOM)

    assert [4, 4, 4] == per_append(driver)


@pytest.mark.fault("coordinator: many second copies arrive of half records whose transactions are on doubt")
@pytest.mark.promise("P1", "P11")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_joins_transactions_on_doubt_is_bounded(*, is_restarted: bool) -> None:
    driver = PartitionDriver()
    for key in KEYS:
        driver.half(key, index=0, count=2, value=LARGE)
    driver.turn()
    driver.pass_time(after_ms=60_000)
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
        driver.say("C", keys[number], driver.half(keys[number], options=prepare, value=value))
    driver.op("C", keys[0], blocker)
    driver.read()

    sizes = []
    while driver.ledger.has_more:
        batch = driver.advance(byte_count=bytes_max)
        sizes.append(sum(txn.size for txn in batch.forwards))
        driver.publish()

    assert max(sizes) <= 2 * bytes_max
    assert keys == driver.log.forwarded


A_HUNDRED = [txn_key(f"txn-{number}") for number in range(100)]


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places in half of those that were looked at."""
    seen: list[int] = []
    may_hold_content = UnsettledInHalf._may_hold_content

    def look(in_half: UnsettledInHalf, txn: Transaction) -> bool:
        seen.append(txn.first_offset)
        return may_hold_content(in_half, txn)

    monkeypatch.setattr(UnsettledInHalf, "_may_hold_content", look)
    return seen


def bare(driver: PartitionDriver) -> list[int]:
    """The places in half of those without content."""
    return [t.first_offset for t in driver.ledger.transactions.values() if t.content is None]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_old", [False, True])
def test_a_drop_looks_at_nobody_whose_content_was_dropped_before(looked_at: list[int], *, is_old: bool) -> None:
    driver = PartitionDriver()
    for key in A_HUNDRED[:50]:
        driver.half(key, value=b"v")
    driver.read()
    if is_old:  # past their immunity they are kept apart from the young ones
        driver.now_ms += 10_000
        driver.ledger.in_half.end_immunity(driver.now_ms, newest_ms=driver.ledger.times.newest_ms)
        assert [] == list(driver.ledger.in_half.immune)
    driver.ledger.drop_content(sum(map(half_bytes, A_HUNDRED[:40])))
    assert list(range(40)) == bare(driver)

    for place in range(50, 100):
        driver.half(A_HUNDRED[place], value=b"v")
        driver.read()
        looked_at.clear()
        driver.ledger.drop_content(1)
        assert list(range(place, place - 12, -1)) == looked_at

    assert list(range(90)) == bare(driver)
    assert sum(map(half_bytes, A_HUNDRED[90:])) == driver.ledger.content_bytes


def test_what_was_dropped_beside_what_the_batch_needs_arrives_all_the_same() -> None:
    driver = PartitionDriver()
    places = [driver.half(key, value=key.encode()) for key in A_HUNDRED]
    driver.read()
    driver.tick(after_ms=60_000, moves=30)

    driver.ledger.drop_content(1 << 30)
    assert 30 == len(A_HUNDRED) - len(bare(driver)), "those that go to doubt are not dropped"
    driver.publish()
    assert 0 == driver.ledger.content_bytes
    driver.op_lines(*(op_line("C", key, place) for key, place in zip(A_HUNDRED, places, strict=True)))
    driver.turn()

    assert sorted(key.encode() for key in A_HUNDRED) == sorted(m.value or b"" for m in driver.log.visible)
    assert 0 == driver.ledger.content_bytes


def test_what_is_about_to_be_forwarded_is_not_dropped() -> None:
    driver = PartitionDriver()
    place = driver.half(A_HUNDRED[0], value=b"first")
    driver.half(A_HUNDRED[1], value=b"second")
    driver.op("C", A_HUNDRED[0], place)
    driver.read()
    (forward,) = driver.advance().forwards
    assert half_bytes(A_HUNDRED[1], value=b"second") == driver.ledger.content_bytes

    driver.ledger.drop_content(99)

    assert (True, 0) == (forward.content is not None, driver.ledger.content_bytes)


@pytest.mark.promise("P11")
def test_many_headers_count_what_python_needs_for_them() -> None:
    """One of 99,000 empty headers takes half a megabyte of half, and 17 of memory."""
    driver, count = PartitionDriver(), HEADERS_MAX
    headers = [(f"h{number % 9}", str(number).encode()) for number in range(count)]
    driver.log.add_half(half_record(half_header(A_HUNDRED[0]), headers=headers), appended_ms=driver.now_ms)
    driver.read()

    objects = sum(sys.getsizeof(each) + sum(map(sys.getsizeof, each)) for each in headers)
    assert objects < driver.ledger.content_bytes < 1.5 * objects
    driver.ledger.drop_content(1)
    assert 0 == driver.ledger.content_bytes


# --- what is fetched again --------------------------------------------------------------------------------------------

A, B = A_HUNDRED[0], A_HUNDRED[1]


@pytest.mark.promise("P3")
@pytest.mark.parametrize(
    "stranger",
    [
        {"index": 3, "count": 4, "topic": "secrets"},  # quarantined: out of turn
        {"index": 2, "count": 4, "topic": "secrets"},  # quarantined: another count
        {"index": 1, "count": 3, "topic": "secrets"},  # a copy by its numbers, to another topic
        {"index": 1, "count": 3, "value": b"second copy"},
    ],
)
@pytest.mark.parametrize("is_dropped", [False, True])
def test_what_did_not_join_is_not_forwarded_with_fetched_content(stranger: dict[str, Any], *, is_dropped: bool) -> None:
    driver = PartitionDriver()
    driver.half(A, index=0, count=3, value=b"first")
    driver.half(A, index=1, count=3, value=b"second")
    driver.half(A, **stranger)
    last = driver.half(A, index=2, count=3, value=b"third")
    driver.read()
    if is_dropped:
        driver.ledger.drop_content(1 << 30)

    driver.say("C", A, last)

    assert [("orders", b"first"), ("orders", b"second"), ("orders", b"third")] == [
        (m.topic, m.value) for m in driver.log.visible
    ]


@pytest.mark.promise("P3")
def test_a_strange_record_behind_a_single_message_is_not_fetched_for_it() -> None:
    driver = PartitionDriver()
    place = driver.half(A, value=b"mine")
    driver.half(A, index=3, count=7, topic="secrets", value=b"stranger")
    driver.half(B, value=b"other")
    driver.read()
    driver.ledger.drop_content(1 << 30)

    driver.op_lines(op_line("C", A, place), op_line("C", B, 2))
    driver.turn()

    assert [b"mine", b"other"] == [m.value for m in driver.log.visible]


@pytest.mark.promise("P3")
def test_a_strange_record_goes_to_doubt_with_nobody() -> None:
    driver = PartitionDriver()
    driver.half(A, value=b"mine")
    driver.half(A, index=3, count=7, topic="secrets", value=b"stranger")
    driver.half(B)
    driver.read()
    driver.ledger.drop_content(1 << 30)

    driver.pass_time(after_ms=60_000)

    assert [b"mine"] == [r.value() for r in driver.log.contents_on_doubt(A).values()]


@pytest.mark.promise("P3")
def test_a_forged_place_of_origin_does_not_come_back_from_doubt() -> None:
    driver = PartitionDriver()
    forged = [("txl-origin", b"7:4711|0/1|5")]
    raw = half_header(A)
    driver.log.add_half(half_record(raw, headers=forged), appended_ms=driver.now_ms)
    driver.read()
    driver.pass_time(after_ms=60_000)

    driver.say("C", A, 0)

    assert [0] == [m.half_offset for m in driver.log.visible]


TWENTY = CheckPolicy(open_count_max=20, check_interval_ms=10_000, check_interval_max_ms=10_000)


def driver_of(policy: CheckPolicy) -> PartitionDriver:
    return PartitionDriver(settings=replace(SETTINGS, checks=CheckPolicies(policy)))


def limits(
    driver: PartitionDriver, *, is_present: bool = True, answer: str = "", after_ms: int = 10_000
) -> list[tuple[str, str, int]]:
    """Time passes; the limits that are told. `answer`: what the group's members say to each question."""
    driver.tick(after_ms=after_ms, is_present=is_present)
    checks = list(driver.ledger.batch.checks.values())
    driver.publish()
    lines = [
        op_line(answer, check.key, check.last_offset, source=Source.CHECK, check_number=check.number)
        for check in checks
        if answer and check.kind is CheckKind.QUESTION
    ]
    if lines:
        driver.op_lines(*lines)
        driver.turn()
    return [(c.producer_group, c.text, c.number) for c in checks if c.kind is CheckKind.LIMIT]


@pytest.mark.promise("P11")
def test_a_group_that_answers_nothing_is_told_until_a_tenth_is_free() -> None:
    driver = driver_of(TWENTY)
    keys = [txn_key(f"t{n}") for n in range(20)]
    offsets = [driver.half(key) for key in keys[:19]]
    driver.half(txn_key("a"), group="others")
    driver.turn()
    assert [[], [], []] == [limits(driver) for _ in range(3)]

    offsets.append(driver.half(keys[19]))
    driver.turn()
    assert [] == limits(driver)  # its last one was asked about just now
    assert [(GROUP, "on", 20)] == limits(driver)
    assert [(GROUP, "on", 20)] == limits(driver)  # said again, for those who came later

    for key, offset in zip(keys[:2], offsets[:2], strict=True):
        driver.op_lines(op_line("R", key, offset))
    driver.turn()
    assert [(GROUP, "on", 18)] == limits(driver)
    driver.op_lines(op_line("R", keys[2], offsets[2]))
    driver.turn()
    assert [(GROUP, "off", 0)] == limits(driver)
    assert [] == limits(driver)
    assert [f"{GROUP}: 20 are open", f"{GROUP}: not any more"] == [
        report.detail for report in driver.reports if report.kind is ReportKind.LIMITED
    ]


@pytest.mark.promise("P11")
def test_a_group_whose_checks_know_nothing_is_told() -> None:
    driver = driver_of(TWENTY)
    for number in range(20):
        driver.half(txn_key(f"t{number}"))
    driver.turn()

    told = [limits(driver, answer="U") for _ in range(2)]

    assert [[], [(GROUP, "on", 20)]] == told


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.fault("coordinator: a stranger writes half records under the name of a group")
@pytest.mark.promise("P7", "P11")
def test_records_that_a_stranger_invents_do_not_lock_a_group_out_that_answers() -> None:
    driver = driver_of(replace(TWENTY, check_rate_max=30))
    for number in range(300):
        driver.half(txn_key(f"invented{number}"))
    driver.turn()

    told = [limits(driver, answer="R") for _ in range(11)]

    assert [] == [each for each in told if each]
    assert 0 == driver.ledger.open_count


@pytest.mark.promise("P11")
def test_records_that_a_stranger_invents_do_not_lock_out_a_group_without_a_member() -> None:
    driver = driver_of(TWENTY)
    for number in range(300):
        driver.half(txn_key(f"invented{number}"))
    driver.turn()

    assert [[], [], []] == [limits(driver, is_present=False) for _ in range(3)]


@pytest.mark.promise("P11")
def test_a_group_whose_checks_do_not_work_is_told_although_no_rate_asks_about_all_of_them() -> None:
    # Two a second, asked again every ten seconds: never more than some twenty of the sixty are asked about.
    driver = driver_of(replace(TWENTY, check_rate_max=2, open_count_max=60))
    for number in range(60):
        driver.half(txn_key(f"t{number}"))
    driver.turn()

    told = [limits(driver, after_ms=1_000) for _ in range(60)]

    undecided = [t for t in driver.ledger.all_unsettled() if t.extras and t.extras.checked_count]
    assert len(undecided) < 30
    assert [(GROUP, "on", 60)] in told


@pytest.mark.promise("P11")
@pytest.mark.parametrize("answer", ["", "U"])
def test_a_restart_forgets_neither_who_is_over_nor_who_was_never_asked(answer: str) -> None:
    driver = driver_of(TWENTY)
    for number in range(20):
        driver.half(txn_key(f"t{number}"))
        driver.half(txn_key(f"n{number}"), group="never")
    driver.turn()
    for _ in range(7):  # until the others stand on doubt as well
        limits(driver, answer=answer)

    driver.crash(is_new_process=True)

    assert 40 == driver.ledger.open_count
    assert len(driver.ledger.dormant)
    assert [(GROUP, "on", 20)] == limits(driver)
