"""What `txlayer tx` shows: places, ages, states, what one transaction went through, what filters let through; and nothing that a terminal would obey."""

import json
from typing import Any

import pytest
from rich.console import Console, RenderableType

from txlayer.adapters.telemetry import printable
from txlayer.cli import tx
from txlayer.cli.tx import ListedState, TransactionFilters
from txlayer.core import codec
from txlayer.core.history import HistoryFold, operator_reason
from txlayer.core.ledger.doubt import QuarantinedRecord
from txlayer.core.ledger.transaction import Transaction, from_summary
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, TxnState
from txlayer.core.messages import (
    CheckKind,
    CheckRecord,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OpMessage,
    OrderMode,
    Origin,
    ParkReason,
    Resolution,
    Source,
    UnresolvedAction,
)
from txlayer.operate import history as histories
from txlayer.operate import length_text, time_text, unsettled
from txlayer.operate.history import parse_position
from txlayer.operate.unsettled import PARKED, Filter, UnsettledTransaction


def folded(*, with_doubt: bool = False) -> HistoryFold:
    """Two half records, an unknown answer, a commit by a person."""
    fold = HistoryFold("order-4711")
    options = HalfOptions("028c7948712c936a", OrderMode.PREPARE, 60_000, unresolved=UnresolvedAction.ROLLBACK)
    for index, topic in enumerate(("shop", "loyalty")):
        header = codec.encode_half_header(
            HalfHeader(
                KEY, "orders", topic, index, 2, 900, options if index == 0 else options._replace(unresolved=None)
            )
        )
        fold.half(partition=0, offset=16 + index, appended_ms=1_000, headers=[("txl", header)])
    lines = [
        OpMessage(Resolution.UNKNOWN, KEY, "orders", 17, 900, Source.CHECK, 3),
        OpMessage(Resolution.COMMIT, KEY, "orders", 99, 900),
        OpMessage(Resolution.ROLLBACK, KEY, "strangers", 17, 900),
        OpMessage(Resolution.COMMIT, KEY, "orders", 17, 900, Source.OPERATOR, reason="ticket \x1b[7m 12"),
    ]
    fold.op(partition=0, offset=5, appended_ms=3_000, value=codec.encode_ops([codec.encode_op(n) for n in lines]))
    if with_doubt:
        fold.doubt(partition=0, appended_ms=4_000, key=KEY.encode(), value=codec.encode_summary(SUMMARY))
    return fold


def test_show_tells_who_said_what_and_which_line_counts() -> None:
    (history,) = folded().histories()

    row = histories.history_json(history, is_applied=False)
    text = drawn(tx.history_tables(row))

    assert ("committed", False, {"offset": 5, "line": 3}) == (row["state"], row["is_applied"], row["decided_at"])
    assert [
        ("UNKNOWN", "check", True),
        ("COMMIT", "producer", False),
        ("ROLLBACK", "producer", False),
        ("COMMIT", "operator", True),
    ] == [(n["resolution"], n["source"], n["is_counted"]) for n in row["op_lines"]]
    assert [3, None, None, None] == [n["check_number"] for n in row["op_lines"]]
    assert [(16, "shop", 0), (17, "loyalty", 1)] == [(r["offset"], r["topic"], r["index"]) for r in row["half_records"]]
    assert "committed (not carried out yet)" in text
    assert "does not count: it names half offset 99" in text
    assert "does not count: it names the group strangers" in text
    assert "ordering key 028c7948712c936a, in the order of prepare, immunity 1 min, rollback if no answer comes" in text
    assert ["rollback", None] == [r["unresolved"] for r in row["half_records"]]
    assert r"ticket \x1b[7m 12" in text
    assert "\x1b" not in text
    assert "\x1b" not in json.dumps(row)


def test_show_tells_what_stands_on_doubt() -> None:
    (history,) = folded(with_doubt=True).histories()

    row = histories.history_json(history, is_applied=True)

    assert ("held", "topic-missing") == (row["state"], row["reason"])
    assert {
        "state": "held",
        "reason": "topic-missing",
        "moved_ms": 2_000,
        "seen_count": 2,
        "topics": ["shop", "loyalty"],
        "checked_count": 3,
        "answered_count": 1,
        "asked_ms": 1_500,
    } == row["doubt"]
    text = drawn(tx.history_tables(row))
    assert "held: topic-missing" in text
    assert "1 of 3 checks answered, the last asked 1970-01-01 00:00:01.500Z" in text


def test_show_of_something_settled_long_ago_says_that_it_does_not_know_how() -> None:
    fold = HistoryFold("order-4711")
    fold.doubt(partition=0, appended_ms=4_000, key=KEY.encode(), value=codec.encode_summary(SUMMARY))
    fold.doubt(partition=0, appended_ms=5_000, key=KEY.encode(), value=None)
    (history,) = fold.histories()

    row = histories.history_json(history, is_applied=None)
    text = drawn(tx.history_tables(row))

    assert (None, None, 5_000) == (row["state"], row["doubt"], row["left_doubt_ms"])
    assert "settled; what decided it is older than what was read" in text
    assert "until 1970-01-01 00:00:05.000Z" in text
    assert "no half record read" in text


def test_show_tells_what_was_asked_who_answered_and_what_came_too_late() -> None:
    fold = folded()
    for offset, kind, number, text in (
        (7, CheckKind.REFUSED, 0, "COMMIT by \x1b[7m producer"),
        (5, CheckKind.QUESTION, 3, "shop,loyalty"),
        (6, CheckKind.QUESTION, 4, "shop,loyalty"),
    ):
        check = CheckRecord(kind, KEY, "orders", 0, 17, 900, number, text)
        value = codec.encode_check(check)
        fold.check(partition=2, offset=offset, appended_ms=2_000 + offset, value=value)
    (history,) = fold.histories()

    row = histories.history_json(history, is_applied=False)
    text = drawn(tx.history_tables(row))

    assert [(3, 2_005, [("UNKNOWN", "check")]), (4, 2_006, [])] == [
        (q["number"], q["asked_ms"], [(n["resolution"], n["source"]) for n in q["answers"]]) for q in row["questions"]
    ]
    assert [(2_007, 2, 7)] == [(r["appended_ms"], r["partition"], r["offset"]) for r in row["refusals"]]
    assert "no answer yet" in text
    assert r"COMMIT by \x1b[7m producer" in text


def test_show_tells_which_operator_said_what() -> None:
    fold = folded()
    op = OpMessage(
        Resolution.ROLLBACK,
        KEY,
        "orders",
        17,
        900,
        Source.OPERATOR,
        reason=operator_reason("zoe@desk", "ticket 12: lost"),
    )
    value = codec.encode_ops([codec.encode_op(op)])
    fold.op(partition=0, offset=9, appended_ms=3_000, value=value)
    (history,) = fold.histories()

    row = histories.history_json(history, is_applied=True)

    assert (None, rb"ticket \x1b[7m 12".decode("unicode_escape")) == (
        row["op_lines"][3]["operator"],
        row["op_lines"][3]["reason"],
    )
    assert ("zoe@desk", "ticket 12: lost") == (row["op_lines"][4]["operator"], row["op_lines"][4]["reason"])
    assert "zoe@desk" in drawn(tx.history_tables(row))


NOW_MS = 10_000_000
HOUR_MS = 3_600_000


def standing(*, state: str = "open", age_ms: int = 5_000, reason: ParkReason | None = None) -> UnsettledTransaction:
    """One transaction of the group orders, for the topics shop and loyalty."""
    txn = Transaction("order-1/00000001", "orders", "shop", 7, NOW_MS - age_ms, "900", (0, 0), None)
    more = txn.ensure_extras()
    more.topics = ("shop", "loyalty")
    more.reason = reason
    return UnsettledTransaction(3, state, txn)


def made(**given: Any) -> Filter:
    """A filter out of options, the others not given."""
    return TransactionFilters(**given).read()


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        (Filter(), True),
        (Filter(group="orders"), True),
        (Filter(group="order"), False),
        (Filter(topic="loyalty"), True),
        (Filter(topic="shop"), True),
        (Filter(topic="sho"), False),
        (Filter(states=frozenset({"held", "parked"})), True),
        (Filter(states=frozenset({"open"})), False),
        (Filter(reasons=frozenset({ParkReason.TOO_OLD, ParkReason.LIMIT})), True),
        (Filter(reasons=frozenset({ParkReason.CHECKS_EXHAUSTED})), False),
        (Filter(older_ms=5_000), True),
        (Filter(older_ms=5_001), False),
        (Filter(group="orders", topic="other"), False),
    ],
)
def test_a_filter_lets_through_what_has_all_of_it(wanted: Filter, *, is_meant: bool) -> None:
    found = standing(state="parked", reason=ParkReason.TOO_OLD)

    assert is_meant == wanted.lets_through(found, now_ms=NOW_MS)


def test_a_plain_one_has_no_reason_and_its_one_topic() -> None:
    txn = Transaction("order-1/00000001", "orders", "shop", 7, NOW_MS, "900", (0, 0), None)
    found = UnsettledTransaction(3, "open", txn)

    assert Filter(topic="shop").lets_through(found, now_ms=NOW_MS)
    assert not Filter(reasons=frozenset(ParkReason)).lets_through(found, now_ms=NOW_MS)


def test_without_options_everything_is_meant() -> None:
    assert made().is_empty
    assert not made(group="orders").is_empty


def test_states_add_up_and_everything_else_narrows() -> None:
    wanted = made(
        state=[ListedState["WAITING"]],
        is_open=True,
        is_parked=True,
        is_held=True,
        older_than="1h",
        reason_code=[ParkReason.TOO_LARGE],
        group="orders",
        topic="shop",
    )

    states = frozenset({"waiting", "open", "held"}) | PARKED
    reasons = frozenset({ParkReason.TOO_LARGE})
    assert Filter("orders", "shop", states, reasons, HOUR_MS) == wanted


def test_parked_means_before_and_after_the_decision() -> None:
    expected = frozenset({TxnState.PARKED.value, TxnState.PARKED_COMMITTED.value})

    assert expected == made(is_parked=True).states


KEY = "order-4711/5f3a90c2"
SUMMARY = DoubtSummary(
    key=KEY,
    state="held",
    reason="topic-missing",
    producer_group="orders",
    first_offset=16,
    last_offset=17,
    seen=2,
    count=2,
    appended_ms=1_000,
    born_ms=900,
    key_hash="028c7948712c936a",
    order=OrderMode.PREPARE,
    immunity_ms=60_000,
    decided_at=(9, 4),
    moved_ms=2_000,
    topics=("shop", "loyalty"),
    checked_count=3,
    answered_count=1,
    asked_ms=1_500,
)


def drawn(table: RenderableType, *, width: int = 200) -> str:
    """What a terminal would get."""
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def young(*, state: TxnState = TxnState.OPEN, group: str = "orders") -> Transaction:
    """A plain single message in half."""
    txn = Transaction(KEY, group, "shop", 7, 1_000, "900", (0, 0), None)
    txn.state = state
    return txn


@pytest.mark.parametrize("width", [40, 80])
def test_a_list_shows_each_field_whole_where_the_terminal_is_narrow(width: int) -> None:
    row = unsettled.unsettled_json(UnsettledTransaction(0, "open", young()), now_ms=9_000)
    text = drawn(tx.list_table([row]), width=width)

    assert all(f"{name} " in text for name in ("id", "nonce", "group", "checks", "last asked"))
    assert all(f" {value}" in text for value in ("order-4711", "orders", "open", "8 s"))


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("7:16", (7, 16)),
        ("0:0", (0, 0)),
        ("7:16|0/2|1700000000000", (7, 16)),
        ("order-4711", None),
        ("7:16x", None),
        ("7:-16", None),
        ("7:", None),
        (":16", None),
        ("\u0667:\u0661", None),
        ("017f22e2-79b0-7cc3-98c4-dc0c0c07398f", None),
    ],
)
def test_a_place_is_told_from_an_id(text: str, place: tuple[int, int] | None) -> None:
    assert place == parse_position(text)


def test_every_state_that_is_not_settled_may_be_asked_for() -> None:
    expected = {state.value for state in TxnState if state not in SETTLED} | {COMMITTING}

    assert expected == {state.value for state in tx.ListedState}


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (-5, "0 ms"),
        (850, "850 ms"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (18_120_000, "5 h 2 min"),
        (273_600_000, "3 d 4 h"),
    ],
)
def test_an_age_has_its_two_largest_units(length_ms: int, text: str) -> None:
    assert text == length_text(length_ms)


@pytest.mark.fault("clock: a coordinator's clock is wrong or jumps back")
def test_a_time_is_said_in_utc_and_a_broken_clock_breaks_nothing() -> None:
    assert "2023-11-14 22:13:20.007Z" == time_text(1_700_000_000_007)
    assert "" == time_text(None)
    assert f"{2**63 - 1} ms" == time_text(2**63 - 1)


def test_what_cannot_be_printed_is_shown_and_not_obeyed() -> None:
    assert r"a\x1b[31mb\x07\r\n c" == printable("a\x1b[31mb\x07\r\n c")
    assert "Zoë, 7 €" == printable("Zoë, 7 €")
    assert r"\u202egnp" == printable("\u202egnp")


# --- list -------------------------------------------------------------------------------------------------------------


def test_a_young_transaction_shows_where_its_half_message_stands() -> None:
    row = unsettled.unsettled_json(UnsettledTransaction(3, "open", young()), now_ms=61_000)

    assert ("order-4711", "5f3a90c2") == (row["txn_id"], row["nonce"])
    assert (3, 7, 7, "half") == tuple(
        row[n] for n in ("partition", "first_half_offset", "last_half_offset", "stands_in")
    )
    assert ("open", None, 60_000) == (row["state"], row["reason"], row["age_ms"])
    assert "1 min" in drawn(tx.list_table([row]))
    assert "3:7" in drawn(tx.list_table([row]))


def test_a_transaction_on_doubt_shows_its_reason_its_messages_and_its_checks() -> None:
    txn = from_summary(SUMMARY, doubt_offset=40)

    row = unsettled.unsettled_json(UnsettledTransaction(0, txn.state.value, txn), now_ms=2_000)

    assert {
        "txn_id": "order-4711",
        "nonce": "5f3a90c2",
        "query_id": None,
        "producer_group": "orders",
        "state": "held",
        "reason": "topic-missing",
        "appended_ms": 1_000,
        "age_ms": 1_000,
        "seen_count": 2,
        "message_count": 2,
        "topics": ["shop", "loyalty"],
        "partition": 0,
        "first_half_offset": 16,
        "last_half_offset": 17,
        "stands_in": "doubt",
        "checked_count": 3,
        "answered_count": 1,
        "asked_ms": 1_500,
        "due_ms": None,
        "key_hash": "028c7948712c936a",
        "order": "prepare",
        "immunity_ms": 60_000,
        "unresolved": None,
    } == row
    text = drawn(tx.list_table([row]))
    assert all(part in text for part in ("held", "topic-missing", "2/2", "shop", "loyalty", "1/3", "1970-01-01"))


def test_a_transaction_of_which_no_half_message_was_read_has_no_offset() -> None:
    txn = Transaction(KEY, "orders", "", -1, 1_000, "900", (0, 0), [])

    row = unsettled.unsettled_json(UnsettledTransaction(2, "parked", txn), now_ms=1_000)

    assert (None, []) == (row["first_half_offset"], row["topics"])
    assert "2:none" in drawn(tx.list_table([row]))


@pytest.mark.fault("data: null values, control characters, or impossible topic names")
def test_a_group_with_control_characters_and_markup_moves_no_cursor() -> None:
    txn = young(group="\x1b[2J[red]x[/red]")
    row = unsettled.unsettled_json(UnsettledTransaction(0, "open", txn), now_ms=1_000)

    assert "\x1b" not in json.dumps([row])
    assert r"\x1b[2J[red]x[/red]" in drawn(tx.list_table([row]))
    assert "\x1b[2J" not in drawn(tx.list_table([row]))


# --- stats ------------------------------------------------------------------------------------------------------------


def test_stats_count_by_group_and_state_and_what_was_kept_aside() -> None:
    state = {"producer_group": "orders", "state": "held", "count": 12_345, "oldest_age_ms": 3_000}
    body = {"namespace": "ns", "transaction_count": 12_345, "kept_aside_count": 1_006, "states": [state]}

    text = drawn(tx.stats_table(body))

    assert all(
        part in text for part in ("ns: 12,345 not settled, 1,006 quarantined", "orders", "held", "12,345", "3 s")
    )


@pytest.mark.parametrize(("quarantined_count", "said"), [(0, "nothing is open"), (2, "nothing is open, 2 quarantined")])
def test_stats_of_an_empty_namespace(quarantined_count: int, said: str) -> None:
    body = {"namespace": "ns", "transaction_count": 0, "kept_aside_count": quarantined_count, "states": []}

    assert said == tx.stats_table(body)


# --- quarantined -------------------------------------------------------------------------------------------------------


def aside(*, line: int | None = None, key: str = KEY, why: str = "0 fields", **more: Any) -> QuarantinedRecord:
    """A record that was quarantined."""
    return QuarantinedRecord(
        Origin("ns.op", 2, 17),
        line,
        "undecodable",
        why,
        key,
        "shop" if key else "",
        1_000,
        Origin("ns.doubt", 2, 40),
        **{"key_bytes": None, "value_bytes": 1_234, "header_names": ("a", "b"), **more},
    )


def test_a_record_kept_aside_shows_its_origin_and_what_is_wrong_and_how_large_it_is() -> None:
    row = unsettled.quarantined_json(aside(), now_ms=61_000)

    assert {
        "state": "kept-aside",
        "name": "origin/ns.op/2/17",
        "topic": "ns.op",
        "partition": 2,
        "offset": 17,
        "line": None,
        "reason": "undecodable",
        "why": "0 fields",
        "txn_id": "order-4711",
        "nonce": "5f3a90c2",
        "producer_group": "shop",
        "kept_ms": 1_000,
        "age_ms": 60_000,
        "key_bytes": None,
        "value_bytes": 1_234,
        "header_names": ["a", "b"],
        "doubt_partition": 2,
        "doubt_offset": 40,
    } == row
    listed = drawn(tx.quarantined_list([row]))
    assert all(part in listed for part in (row["name"], "undecodable", "order-4711", "1 min"))
    shown = drawn(tx.quarantined_table(row))
    assert all(part in shown for part in ("record ns.op-2@17", "1,234 bytes", "null", "a, b"))


def test_a_line_kept_aside_has_the_name_that_show_finds_it_by() -> None:
    row = unsettled.quarantined_json(aside(line=3, key=""), now_ms=0)

    assert ("origin/ns.op/2/17:3", None, None) == (row["name"], row["txn_id"], row["nonce"])
    assert "line 3 of the record ns.op-2@17" in drawn(tx.quarantined_table(row))
    assert "it names none" in drawn(tx.quarantined_table(row))


def test_what_is_wrong_with_a_record_moves_no_cursor() -> None:
    row = unsettled.quarantined_json(aside(why="\x1b[2J", header_names=("\x07",)), now_ms=0)

    for table in (tx.quarantined_list([row]), tx.quarantined_table(row)):
        assert r"\x1b[2J" in drawn(table)
        assert not {"\x1b", "\x07"} & set(drawn(table))
