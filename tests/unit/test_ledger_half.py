"""One partition: how half records become transactions, and which are quarantined."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_records import half_bytes, half_header, half_record, op_line, options, ordering_key, txn_key
from tests.support.partition_driver import ACCEPTS, PartitionDriver
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.core import codec
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.remembered import RECENT_COUNT_MAX
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import HalfHeader, HalfOptions, OrderMode, Source, Undecodable
from txlayer.core.partitions import key_hash

A, B = txn_key("a"), txn_key("b")


def offsets_aside(driver: PartitionDriver) -> list[int]:
    """Half offsets of what was quarantined."""
    return [origin.offset for origin in driver.log.kept_aside if origin.topic == "txlayer.half"]


def not_home() -> bytes:
    """An ordering key of the other partition."""
    return txn_key("elsewhere", is_home=False).partition("/")[0].encode()


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"\xff\xfe",
        b"garbage",
        half_header(A).replace(b"1|", b"3|", 1),
        half_header(A).replace(b"1|", b"9|", 1),
        half_header(txn_key("elsewhere", is_home=False)),
        half_header(A, options=HalfOptions(key_hash(not_home()))),
        half_header(A) + b"isoon",
        half_header(A).replace(b"|0/1|", b"|1/1|"),
        half_header(A).replace(b"|1700000000000|", b"|soon|"),
        half_header(A).replace(b"|1700000000000|", b"|9999999999999999999|"),
        half_header(A).replace(b"|shop|", b"||"),
        half_header(A).replace(b"|shop|", b"|sh\nop|"),
        half_header(A).replace(b"/0000000a", b"/000/000a"),
        half_header(A).replace(b"/0000000a", b"0000000a"),
        half_header("y" * 129 + "/0000000a"),
        half_header("/0000000a"),
    ],
)
@pytest.mark.parametrize("is_topic_known", [False, True])
def test_a_half_record_that_is_none_is_kept_aside_and_the_rest_goes_on(
    raw: bytes | None, *, is_topic_known: bool
) -> None:
    driver = PartitionDriver()
    driver.book.update({"orders": ACCEPTS} if is_topic_known else {})
    driver.half_raw(raw)
    driver.op("C", B, driver.half(B))

    driver.turn()

    assert ([B], [0]) == (driver.log.forwarded, offsets_aside(driver))
    assert {} == driver.ledger.transactions


HEADERS = st.builds(
    half_header,
    st.sampled_from([A, B, txn_key("elsewhere", is_home=False)]),
    group=st.sampled_from(["shop", "g"]),
    topic=st.just("orders"),
    index=st.integers(0, 1),
    count=st.integers(1, 2),
    born_ms=st.sampled_from([0, 5, 1_700_000_000_000]),
    options=st.sampled_from([options(), options("red"), options(immunity_ms=1)]),
)


def tampered(raw: bytes, place: int, byte: int, *, is_inserted: bool) -> bytes:
    """The header with one byte changed or put in."""
    place %= len(raw)
    return raw[:place] + bytes([byte]) + raw[place + (0 if is_inserted else 1) :]


def folded(*headers: bytes, is_topic_known: bool) -> Any:
    """What a ledger makes of half records with these headers."""
    driver = PartitionDriver()
    driver.book.update({"orders": ACCEPTS} if is_topic_known else {})
    ledger: Ledger = driver.ledger
    for offset, raw in enumerate(headers):
        ledger.fold_half(offset, 5, raw, half_record(raw))
    found = [(t.summary(), type(t.content)) for t in ledger.transactions.values()]
    return found, len(ledger.batch.quarantined), ledger.content_bytes, len(ledger.in_half.immune)


@given(
    raw=HEADERS,
    place=st.integers(0, 200),
    byte=st.sampled_from(sorted(b"\x00\n |/,0-9akp\x7f\xff")),
    is_inserted=st.booleans(),
)
def test_the_quick_way_and_the_careful_way_make_the_same_of_a_half_record(
    raw: bytes, place: int, byte: int, *, is_inserted: bool
) -> None:
    # A topic that is not known yet takes the careful way.
    like_it = tampered(raw, place, byte, is_inserted=is_inserted)
    for headers in ((raw,), (like_it,), (raw, like_it), (like_it, raw)):
        assert folded(*headers, is_topic_known=False) == folded(*headers, is_topic_known=True)


class Counted(str):
    """A real topic that counts how often one of them is looked at."""

    __slots__ = ()
    looks = 0

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        Counted.looks += 1
        return str.__hash__(self)

    def __len__(self) -> int:
        Counted.looks += 1
        return str.__len__(self)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_on_doubt", [False, True])
def test_a_further_half_record_costs_the_same_however_many_real_topics_its_transaction_has(
    monkeypatch: pytest.MonkeyPatch, *, is_on_doubt: bool
) -> None:
    decode, count = codec.decode_half_header, 500

    def counted(raw: bytes) -> HalfHeader | Undecodable:
        half = decode(raw)
        return half._replace(topic=Counted(half.topic)) if isinstance(half, HalfHeader) else half

    monkeypatch.setattr(codec, "decode_half_header", counted)
    driver = PartitionDriver()
    driver.half(A, count=count)
    if is_on_doubt:
        driver.turn()
        driver.pass_time(after_ms=60_000)
    for index in range(1, count):
        driver.half(A, index=index, count=count, topic=f"topic-{index}")
    Counted.looks = 0

    driver.read()

    found = driver.ledger.look_at(A)
    assert found is not None
    assert found.topics[-1] == f"topic-{count - 1}"
    assert Counted.looks < 30 * count


@pytest.mark.promise("P11")
def test_lines_that_name_half_records_of_a_large_transaction_are_looked_up() -> None:
    class Offset(int):
        count = 0

        def __eq__(self, other: object) -> bool:
            Offset.count += 1
            return int.__eq__(self, other)

        __hash__ = int.__hash__

    txn = Transaction(A, "shop", "orders", 0, 0, "0", (0, 0), None)
    txn.ensure_extras().offsets = [Offset(offset) for offset in range(1_000)]
    txn.last_offset = 999

    assert all(txn.has_half_at(offset) for offset in range(1_000))
    assert not txn.has_half_at(1_000)
    assert Offset.count < 5_000


@pytest.mark.promise("P1")
def test_a_record_whose_first_one_never_came_is_kept_aside() -> None:
    driver = PartitionDriver()
    offset = driver.half(A, index=1, count=2)

    driver.turn()

    assert ([], [], [offset]) == (
        list(driver.ledger.transactions),
        driver.reported(ReportKind.LATE_HALF),
        offsets_aside(driver),
    )


def test_a_record_after_the_decision_is_skipped() -> None:
    driver = PartitionDriver()
    driver.say("R", A, driver.half(A, index=0, count=2))

    driver.half(A, index=1, count=2)
    driver.turn()

    assert ([], [A]) == (list(driver.ledger.transactions), driver.reported(ReportKind.LATE_HALF))


@pytest.mark.promise("P11")
def test_of_many_second_copies_of_one_record_in_half_the_newest_is_looked_at() -> None:
    driver = PartitionDriver()
    for _ in range(500):
        driver.half(A)
    driver.turn()

    assert 1 == len(driver.ledger._second_copies)
    driver.crash()
    assert 0 == driver.log.stored.low_water
    driver.say("C", A, 0)
    driver.crash()
    assert [A] == driver.log.forwarded


@pytest.mark.fault("data: a second copy of a half record, close to the first one or after its commit")
@pytest.mark.promise("P11")
def test_second_copies_between_which_others_begin_do_not_keep_half_readable_for_ever() -> None:
    driver = PartitionDriver()
    keys = [txn_key(f"linked-{number}") for number in range(40)]
    places: dict[str, int] = {}
    for before, key in pairwise(["", *keys]):
        places[key] = driver.half(key)
        if before:
            driver.half(before)
            driver.op("C", before, places[before])
        driver.turn()
        driver.pass_time(after_ms=10_000)

    assert keys[:-1] == driver.log.forwarded
    assert len(driver.log.half) - 2 * (2 * 60_000 // 10_000) <= driver.log.stored.low_water
    driver.crash(is_new_process=True)
    assert keys[-1:] == [txn.key for txn in driver.ledger.all_unsettled()]


@pytest.mark.fault("data: a second copy of a half record, close to the first one or after its commit")
def test_a_second_copy_of_one_that_waits_is_remembered() -> None:
    driver = PartitionDriver(targets={})
    driver.say("C", A, driver.half(A))
    assert TxnState.HELD is driver.state(A)

    copy = driver.half(A)
    driver.turn()

    assert TxnState.HELD is driver.state(A)
    assert (copy,) == driver.ledger.transactions[A].summary().twin_offsets
    driver.set_target("orders", ACCEPTS)
    driver.turn()
    driver.crash(is_new_process=True)
    assert ([A], []) == (driver.log.forwarded, list(driver.ledger.transactions))


@pytest.mark.parametrize(("index", "count"), [(2, 3), (1, 2), (0, 2)])
def test_a_record_out_of_place_is_kept_aside(index: int, count: int) -> None:
    driver = PartitionDriver()
    driver.half(A, index=0, count=3)
    driver.half(A, index=index, count=count)

    driver.turn()

    assert ([1], 1) == (offsets_aside(driver), driver.ledger.transactions[A].seen)


# --- records that the broker kept twice -------------------------------------------------------------------------------


@pytest.mark.fault("data: one id is used twice")
@pytest.mark.promise("P2")
@pytest.mark.parametrize("named", [0, 1])
def test_a_record_that_stands_there_twice_is_forwarded_once(named: int) -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.half(A)
    driver.op("C", A, named)

    driver.turn()
    driver.say("C", A, named)

    assert [(A, 0)] == [(m.txn_key, m.half_offset) for m in driver.log.visible]


@pytest.mark.promise("P2")
@pytest.mark.parametrize("settled_since", [0, RECENT_COUNT_MAX + 1])
def test_a_second_copy_that_is_read_after_the_end_is_nothing_new(settled_since: int) -> None:
    driver = PartitionDriver()
    driver.say("C", A, driver.half(A))
    driver.ledger.settled.newer.update({f"other-{n}": 0 for n in range(settled_since)})
    driver.say("C", B, driver.half(B))

    driver.half(A)
    driver.say("C", A, 2)

    assert ([A, B], []) == ([m.txn_key for m in driver.log.visible], list(driver.ledger.transactions))


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_early", [False, True])
def test_a_line_may_name_the_second_copy_of_what_is_on_doubt(is_early: bool, is_restarted: bool) -> None:
    driver = PartitionDriver()
    copy = driver.half(A)
    if is_early:
        copy = driver.half(A)
    driver.read()
    driver.pass_time(after_ms=60_000)
    if not is_early:
        copy = driver.half(A)
        driver.turn()
    if is_restarted:
        driver.crash(is_new_process=True)

    driver.say("C", A, copy)

    assert ([], [A]) == (driver.reported(ReportKind.WRONG_OFFSET), driver.log.forwarded)
    assert 2 == driver.log.stored.low_water


def test_a_line_that_names_what_was_the_last_half_record_on_doubt_has_no_effect_when_another_one_joined() -> None:
    driver = PartitionDriver()
    driver.half(A, count=3)
    last = driver.half(A, index=1, count=3)
    driver.read()
    driver.pass_time(after_ms=60_000)
    joined = driver.half(A, index=2, count=3)
    driver.turn()

    driver.op("R", A, last)
    driver.say("C", A, joined)

    assert ([A], [A]) == (driver.reported(ReportKind.WRONG_OFFSET), driver.log.forwarded)


@pytest.mark.parametrize("resolution", ["C", "R"])
def test_no_restart_takes_the_second_copy_of_what_was_settled_from_doubt_for_new(resolution: str) -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    driver.half(B)  # it keeps half readable from before the copy
    copy = driver.half(A)
    driver.turn()

    driver.say(resolution, A, copy)
    driver.crash(is_new_process=True)

    assert [B] == [txn.key for txn in driver.ledger.all_unsettled()]
    assert ([A] if resolution == "C" else []) == driver.log.forwarded


@pytest.mark.promise("P2")
@pytest.mark.parametrize("resolution", ["C", "R"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("is_on_doubt", [False, True])
def test_a_second_copy_that_comes_after_the_end_and_a_restart_is_nothing_new(
    resolution: str, count: int, *, is_on_doubt: bool
) -> None:
    driver = PartitionDriver()
    for index in range(count):
        last = driver.half(A, index=index, count=count)
    if is_on_doubt:
        driver.read()
        driver.pass_time(after_ms=60_000)
        assert [A] == list(driver.log.on_doubt())
    driver.say(resolution, A, last)
    before = len(driver.log.visible)

    driver.crash(is_new_process=True)
    for index in range(count):
        copy = driver.half(A, index=index, count=count)
    driver.say("C", A, copy)

    assert (before, []) == (len(driver.log.visible), list(driver.ledger.transactions))


@pytest.mark.promise("P2")
def test_a_replay_does_not_take_a_second_copy_for_new_whose_first_one_lies_before_it() -> None:
    driver = PartitionDriver()
    driver.say("C", A, driver.half(A))
    driver.half(B)
    copy = driver.half(A)
    driver.turn()
    assert 1 == driver.log.stored.low_water

    driver.crash(is_new_process=True)
    driver.say("C", A, copy)

    assert ([A], 1) == (driver.log.forwarded, len(driver.log.visible))


@pytest.mark.promise("P2")
def test_many_that_end_at_once_do_not_make_a_near_one_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.remembered.RECENT_COUNT_MAX", 10)
    driver = PartitionDriver()
    keys = [txn_key(f"old-{n}") for n in range(50)]
    places = [driver.half(key) for key in keys]
    driver.say("C", A, driver.half(A))
    for key, place in zip(keys, places, strict=True):
        driver.say("R", key, place)

    driver.say("C", A, driver.half(A))

    assert 1 == len(driver.log.visible)


@pytest.mark.fault("data: a second copy of a half record, close to the first one or after its commit")
@pytest.mark.promise("P2")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_many_that_end_after_a_restart_do_not_make_a_near_one_forgotten(
    monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool
) -> None:
    distance, recent = 8, 4
    monkeypatch.setattr("txlayer.core.ledger.remembered.RECENT_COUNT_MAX", recent)
    monkeypatch.setattr("txlayer.core.ledger.remembered.DISTANCE_MAX", distance)
    driver = PartitionDriver()
    old = [txn_key(f"old-{number}") for number in range(5 * recent)]
    driver.move_to_doubt(*old)
    first = driver.half(A)
    driver.turn()
    driver.say("C", A, first)
    if is_restarted:
        driver.crash(is_new_process=True)

    for number, answered in enumerate(old):
        driver.say("C", answered, number)
    copy = driver.half(A)
    driver.turn()
    driver.op("C", A, copy)  # the producer group was asked, and answered
    driver.turn()

    assert copy - first == 1
    assert 1 == [message.txn_key for message in driver.log.visible].count(A)


def test_a_record_out_of_turn_before_the_low_water_mark_hides_no_transaction() -> None:
    driver = PartitionDriver()
    driver.half(A, index=1, count=2)
    driver.half_raw(half_header(txn_key("elsewhere", is_home=False)))
    driver.half_raw(b"garbage")
    driver.turn()
    assert 3 == driver.log.stored.low_water

    driver.crash()
    driver.half(A, index=0, count=2)
    driver.say("C", A, driver.half(A, index=1, count=2))

    assert [A] == driver.log.forwarded


@pytest.mark.fault("data: a second copy of a half record, close to the first one or after its commit")
@pytest.mark.promise("P1", "P4")
def test_a_line_that_names_a_copy_behind_the_commit_has_one_effect_with_and_without_a_restart() -> None:
    as_prepared = options("key", order=OrderMode.PREPARE)
    outcomes = []
    for is_restarted in (False, True):
        driver = PartitionDriver()
        first = driver.half(A, options=as_prepared)
        second = driver.half(B, options=as_prepared)
        driver.turn()
        driver.op("C", B, second)  # waits for the first one
        driver.turn()
        copy = driver.half(B, options=as_prepared)  # librdkafka #4953
        driver.turn()
        driver.op_lines(op_line("A", B, copy, source=Source.OPERATOR))
        driver.turn()
        if is_restarted:
            driver.crash()
        driver.say("C", A, first)
        outcomes.append((driver.state(B), driver.log.forwarded))

    assert [(None, [A])] * 2 == outcomes  # the abandon counts: a copy of its half record stands there


# --- content ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("coordinator: is short of memory")
@pytest.mark.promise("P1")
def test_content_that_was_dropped_is_fetched_when_it_is_needed() -> None:
    driver = PartitionDriver()
    driver.half(A, value=b"first")
    driver.half(B, index=0, count=2, value=b"second")
    driver.read()

    driver.ledger.drop_content(1)
    left = half_bytes(B, value=b"second", count=2)
    assert (left, None) == (driver.ledger.content_bytes, driver.ledger.transactions[A].content)
    driver.ledger.drop_content(99)
    assert 0 == driver.ledger.content_bytes
    driver.half(B, index=1, count=2, value=b"third")
    driver.op_lines(op_line("C", A, 0), op_line("C", B, 2))
    driver.turn()

    assert [b"first", b"second", b"third"] == [message.value for message in driver.log.visible]
    assert 0 == driver.ledger.content_bytes


def test_dropping_content_spares_what_the_batch_needs() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.read()
    driver.tick(after_ms=60_000)

    driver.ledger.drop_content(99)

    assert isinstance(driver.ledger.transactions[A].content, MemoryRecord)


def test_what_is_over_holds_no_content() -> None:
    # Whoever still knows the transaction (one that is open for long stands before it) must not hold its bytes.
    driver = PartitionDriver()
    driver.half(txn_key("old"))
    driver.half(A)
    driver.half(B)
    driver.read()
    over = [driver.ledger.transactions[key] for key in (A, B)]
    driver.op_lines(op_line("C", A, 1), op_line("R", B, 2))

    driver.turn()

    assert [None, None] == [txn.content for txn in over]


@pytest.mark.fault("coordinator: is short of memory")
def test_settled_transactions_do_not_pile_up_behind_an_open_one() -> None:
    driver = PartitionDriver()
    driver.half(A)
    for n in range(3_000):
        key = txn_key(f"t{n}")
        driver.op("C", key, driver.half(key))

    driver.turn()

    assert 1_100 > len(driver.ledger.in_half.immune)
    assert 0 == driver.log.stored.low_water


def test_the_ordering_key_decides_where_a_record_belongs() -> None:
    elsewhere = txn_key("elsewhere", is_home=False)
    driver = PartitionDriver()
    driver.half(elsewhere, options=HalfOptions(key_hash(ordering_key("red"))))

    driver.turn()

    assert ([], [elsewhere]) == (offsets_aside(driver), list(driver.ledger.transactions))
