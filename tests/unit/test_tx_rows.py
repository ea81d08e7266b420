"""What `txlayer tx` shows: places, ages, states, and nothing that a terminal would obey."""

import json
from typing import Any

import pytest

from tests.support.commands import run_command
from tests.support.tx_samples import KEY, SUMMARY, drawn
from txlayer.adapters.telemetry import printable
from txlayer.cli import tx
from txlayer.core.ledger.doubt import QuarantinedRecord
from txlayer.core.ledger.transaction import Transaction, from_summary
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, TxnState
from txlayer.core.messages import Origin
from txlayer.operate import length_text, time_text, unsettled
from txlayer.operate.history import parse_position
from txlayer.operate.overview import UnsettledTransaction


def young(*, state: TxnState = TxnState.OPEN, group: str = "orders") -> Transaction:
    """A plain single message in half."""
    txn = Transaction(KEY, group, "shop", 7, 1_000, "900", (0, 0), None)
    txn.state = state
    return txn


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--state", "settled"], "parked-committed"),
        (["list", "--older-than", "an hour"], "error: not a length of time"),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--kept-aside", "--group", "orders"], "error: --kept-aside"),
        (["list", "--kept-aside", "--state", "open"], "error: --kept-aside"),
        (["list", "--kept-aside", "--reason-code", "too-old"], "error: --kept-aside"),
        (["list", "--reason-code", "bad-luck"], "checks-exhausted"),
        (["list", "--younger-than", "soon"], "error: not a length of time"),
        (["show", "two words"], "error: transaction id 'two words'"),
        (["show", "x" * 129], "error: transaction id"),
        (["show", "order-4711", "--since", "yesterday"], "error: not a time"),
        (["stats", "-b", "example.invalid:9092"], "error: plain text to another machine"),
    ],
)
def test_a_wrong_option_ends_with_2_before_a_broker_is_asked(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(tx.app, *arguments, capsys=capsys)

    assert (2, "") == (code, out)
    assert said in err


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

    assert all(part in text for part in ("ns: 12,345 not settled, 1,006 kept aside", "orders", "held", "12,345", "3 s"))


@pytest.mark.parametrize(("quarantined_count", "said"), [(0, "nothing is open"), (2, "nothing is open, 2 kept aside")])
def test_stats_of_an_empty_namespace(quarantined_count: int, said: str) -> None:
    body = {"namespace": "ns", "transaction_count": 0, "kept_aside_count": quarantined_count, "states": []}

    assert said == tx.stats_table(body)


# --- kept aside -------------------------------------------------------------------------------------------------------


def aside(*, line: int | None = None, key: str = KEY, why: str = "0 fields", **more: Any) -> QuarantinedRecord:
    """A record that was kept aside."""
    return QuarantinedRecord(
        Origin("ns.op", 2, 17),
        line,
        "undecodable",
        why,
        key,
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
