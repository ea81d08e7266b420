"""The quick way of a plain commit through `Ledger.advance` does what the table says: the slow way's work, and no other."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_records import (
    BORN_MS,
    FAR_AWAY,
    PARTITION,
    PARTITION_COUNT,
    half_header,
    half_record,
    op_line,
    options,
    txn_key,
)
from tests.support.partition_driver import ACCEPTS, FORBIDDEN, MISSING, PartitionDriver
from txlayer.core.codec import PLAIN_TAILS_MAX, decode_half_header
from txlayer.core.ledger.misplaced_records import why_misplaced
from txlayer.core.ledger.transaction import accepting_target, held_bytes
from txlayer.core.ledger.transitions import TRANSITIONS, Effect, TxnEvent, TxnState
from txlayer.core.messages import NO_OPTIONS, HalfHeader, HalfOptions, OrderMode, ParkReason, Source

A, B = txn_key("a"), txn_key("b")


def test_the_table_says_what_the_quick_way_does() -> None:
    assert (TxnState.WAITING, Effect.DECIDE) == TRANSITIONS[TxnState.OPEN, TxnEvent.COMMIT]
    assert (TxnState.COMMITTED, Effect.FORWARD) == TRANSITIONS[TxnState.WAITING, TxnEvent.GO]


LINES = st.one_of(
    st.builds(
        op_line,
        st.sampled_from("CCCRUA"),
        st.sampled_from([A, B]),
        st.sampled_from([0, 1, FAR_AWAY]),
        group=st.sampled_from(["shop", "another"]),
        born_ms=st.sampled_from([BORN_MS, 5]),
        source=st.sampled_from([Source.PRODUCER, Source.OPERATOR]),
        reason=st.sampled_from(["", "because"]),
    ),
    st.just(""),
)
TAMPERED = st.tuples(LINES, st.integers(0, 100), st.sampled_from("|0+CR9 \x00~"), st.booleans()).map(
    lambda drawn: tampered(*drawn)
)


def tampered(line: str, place: int, letter: str, is_inserted: bool) -> str:
    """The line with one letter changed or put in."""
    place %= len(line) + 1
    return line[:place] + letter + line[place + (0 if is_inserted else 1) :]


def outcome(
    lines: list[str],
    *,
    is_slow: bool,
    is_dropped: bool = False,
    target: Any = ACCEPTS,
    refused: tuple[str, ...] = (),
    byte_count: int = 1 << 40,
    asked_for: tuple[HalfOptions, HalfOptions] = (NO_OPTIONS, NO_OPTIONS),
) -> Any:
    """All that is left behind by these lines about A and B."""
    driver = PartitionDriver(targets={"orders": target})
    driver.refusals.update(dict.fromkeys(refused, ParkReason.REFUSED))
    driver.half(A, value=b"x" * 40, options=asked_for[0])
    driver.half(B, value=None, options=asked_for[1])
    driver.read()
    if is_slow:
        for txn in driver.ledger.transactions.values():
            txn.ensure_extras()  # what only some have, and the quick way takes none of them
    if is_dropped:
        driver.ledger.drop_content(1)
    driver.op_lines(*lines)
    driver.read()
    batch = driver.advance(byte_count=byte_count)
    sizes = driver.ledger.content_bytes, driver.ledger.unsettled_bytes
    seen = (batch.line_count, batch.byte_count, sizes, dict(driver.ledger.settled.newer))
    waits = (driver.ledger.waits_for_half, driver.ledger.op_next)
    driver.publish()
    states = {t.key: t.summary() for t in driver.ledger.transactions.values()}
    return seen, waits, states, driver.reports, driver.log.appended, driver.log.kept_aside


RED, BLUE, RED_AS_PREPARED = (options("red"), options("blue"), options("red", order=OrderMode.PREPARE))
OPTIONS = st.sampled_from([NO_OPTIONS, RED, BLUE, RED_AS_PREPARED, options(immunity_ms=5)])


@given(st.lists(st.one_of(LINES, TAMPERED), min_size=1, max_size=6), st.booleans(), st.tuples(OPTIONS, OPTIONS))
def test_the_quick_way_does_what_the_slow_one_does(
    lines: list[str], is_dropped: bool, asked_for: tuple[HalfOptions, HalfOptions]
) -> None:
    assert outcome(lines, is_slow=True, is_dropped=is_dropped, asked_for=asked_for) == outcome(
        lines, is_slow=False, is_dropped=is_dropped, asked_for=asked_for
    )


@pytest.mark.parametrize("target", [MISSING, FORBIDDEN, accepting_target(500), accepting_target(1_200)])
@pytest.mark.parametrize("refused", [(), (A,)])
@pytest.mark.parametrize("asked_for", [(NO_OPTIONS, NO_OPTIONS), (RED, RED), (RED, RED_AS_PREPARED)])
def test_what_may_not_go_quickly_goes_slowly(
    target: Any, refused: tuple[str, ...], asked_for: tuple[HalfOptions, HalfOptions]
) -> None:
    lines = [op_line("C", A, 0), op_line("C", B, 1)]

    slow = outcome(lines, is_slow=True, target=target, refused=refused, asked_for=asked_for)

    assert slow == outcome(lines, is_slow=False, target=target, refused=refused, asked_for=asked_for)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("byte_count", [1, 40, 41])
def test_both_ways_end_a_batch_at_the_same_line(byte_count: int) -> None:
    lines = [op_line("C", B, 1), op_line("C", A, 0), op_line("C", A, 0)]

    slow = outcome(lines, is_slow=True, byte_count=byte_count)

    assert slow == outcome(lines, is_slow=False, byte_count=byte_count)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("asked_for", [NO_OPTIONS, RED, options(immunity_ms=5), HalfOptions(is_group_named=True)])
def test_what_is_settled_in_the_quick_way_takes_no_memory(asked_for: HalfOptions) -> None:
    driver = PartitionDriver()
    driver.say("C", A, driver.half(A, options=asked_for))

    assert [A] == driver.log.forwarded
    assert 0 == driver.ledger.unsettled_bytes


@pytest.mark.parametrize("asked_for", [NO_OPTIONS, RED], ids=["no order", "an ordering key"])
def test_the_quick_way_is_taken(asked_for: HalfOptions) -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A, options=asked_for))
    driver.read()
    txn = driver.ledger.transactions[A]

    driver.advance()
    driver.ledger.unknown_topics.clear()

    assert (TxnState.COMMITTED, None) == (txn.state, txn.extras)


def test_neighbours_of_one_known_topic_are_committed_together_and_in_order() -> None:
    driver = PartitionDriver()
    driver.say("C", A, driver.half(A))
    later = [txn_key(name) for name in ("c", "d", "e")]
    for offset in [driver.half(key) for key in later]:
        driver.op("C", later[offset - 1], offset)
    driver.read()
    topics = {id(driver.ledger.transactions[key].topic) for key in later}

    batch = driver.advance()

    assert 1 == len(topics), "the topic is looked up once for all of them"
    assert later == [txn.key for txn in batch.forwards]
    assert {} == driver.ledger.transactions


@pytest.mark.promise("P6")
def test_one_that_goes_quickly_lets_the_one_go_that_waited_for_it() -> None:
    driver = PartitionDriver()
    first = driver.half(A, options=RED)
    driver.say("C", B, driver.half(B, options=RED_AS_PREPARED))
    assert [] == driver.log.forwarded, "it was prepared behind the other"
    driver.op("C", A, first)

    driver.turn()

    assert [A, B] == driver.log.forwarded


@pytest.mark.promise("P6")
def test_one_prepared_behind_many_that_went_quickly_waits_for_those_that_did_not() -> None:
    driver = PartitionDriver()
    gone, open_one = driver.half(A, options=RED), txn_key("c")
    left = driver.half(open_one, options=RED)
    driver.say("C", A, gone)
    driver.say("C", B, driver.half(B, options=RED_AS_PREPARED))
    assert [A] == driver.log.forwarded
    driver.op("R", open_one, left)

    driver.turn()

    assert [A, B] == driver.log.forwarded


@pytest.mark.promise("P11")
def test_the_ordering_keys_remembered_for_the_quick_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.codec.PLAIN_OPTIONS_MAX", 3)
    driver = PartitionDriver(targets={"orders": ACCEPTS})
    keys = [txn_key(f"txn-{number}") for number in range(5)]
    for number, key in enumerate(keys):
        driver.half(key, options=options(f"key-{number}"))
    driver.read()

    assert 2 == len(driver.ledger.headers.options)
    assert set(keys) == set(driver.ledger.transactions)


@pytest.mark.fault("coordinator: is short of memory")
@pytest.mark.promise("P11")
def test_the_headers_remembered_for_the_quick_way_are_bounded() -> None:
    driver = PartitionDriver()
    driver.say("C", A, driver.half(A))
    keys = [txn_key(f"txn-{number}") for number in range(PLAIN_TAILS_MAX + 2)]
    for born_ms, key in enumerate(keys):
        driver.half_raw(half_header(key, born_ms=born_ms))
    driver.read()

    assert 2 == len(driver.ledger.headers.tails)
    assert set(keys) == set(driver.ledger.transactions)


HEADERS = st.builds(
    half_header,
    st.sampled_from([A, B, txn_key("elsewhere", is_home=False)]),
    index=st.sampled_from([0, 1]),
    count=st.sampled_from([1, 2]),
    born_ms=st.sampled_from([BORN_MS, 5]),
    options=st.sampled_from([NO_OPTIONS, options("a"), options("a", immunity_ms=5)]),
)
TAMPERED_HEADERS = st.tuples(HEADERS, st.integers(0, 100), st.sampled_from("|0+k9 \n/~"), st.booleans()).map(
    lambda drawn: tampered(drawn[0].decode(), *drawn[1:]).encode()
)


@given(raws=st.lists(st.one_of(HEADERS, TAMPERED_HEADERS), min_size=2, max_size=12))
def test_a_restart_recalls_of_known_headers_what_the_codec_reads_of_each(raws: list[bytes]) -> None:
    ledger, expected, size = PartitionDriver().ledger, set[str](), 0
    for raw in raws:
        record, header = half_record(raw), decode_half_header(raw)
        ledger.recall_half(raw, record)
        size += held_bytes(record)
        if isinstance(header, HalfHeader) and not header.index:
            is_home = why_misplaced(header, partition=PARTITION, partition_count=PARTITION_COUNT) is None
            expected |= {header.key} if is_home else set()

    assert expected == set(ledger.settled.older)
    assert size == ledger.half_bytes
