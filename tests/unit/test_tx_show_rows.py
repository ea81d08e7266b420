"""What `txlayer tx show` tells of one transaction."""

import json

from tests.support.tx_samples import KEY, SUMMARY, drawn
from txlayer.cli import tx
from txlayer.core import codec
from txlayer.core.history import HistoryFold, operator_reason
from txlayer.core.messages import (
    CheckKind,
    CheckRecord,
    HalfHeader,
    HalfOptions,
    OpMessage,
    OrderMode,
    Resolution,
    Source,
    UnresolvedAction,
)
from txlayer.operate import history as histories


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
