"""What a decoder says of bytes out of form, word for word: people read it in `txlayer tx list --kept-aside`."""

from __future__ import annotations

import pytest

from txlayer.core import codec
from txlayer.core.codec import PARTITION_MAX
from txlayer.core.messages import CheckKind, CheckRecord, HalfHeader, OpMessage, OrderMode, Undecodable

LONG = "x" * 30
GOOD = "1|open||g|5|5|1|1|6|7||commit|||8|orders|0/0/0/0"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("1|a", "half: 2 fields where 7 are due"),
        (LONG, f"half: unknown version '{LONG[:20]}'"),
        ("1|a\nb/00000001|g|t|0/1|5|", "half header: line feed"),
        (f"1|a/00000001|g|t|0/1|5|{'z' * 2_026}", "half header: 2049 bytes, more than 2048"),
        ("1|a/00000001|g|t|0/1|5|n2147483648", "half header: no such partition"),
        ("1|a/00000001|g|t|1/1|5|", "half header: id, group, topic or index out of form"),
        ("1|a/00000001|g|two words|0/1|5|", "half header: id, group, topic or index out of form"),
        ("1|a/00000001|g|..|0/1|5|", "half header: id, group, topic or index out of form"),
        (f"1|a/00000001|g|t|0/1|{LONG}|", f"half header: '{LONG[:20]}' is no whole number"),
        (f"1|a/00000001|g|t|0/1|5|k{LONG}", f"half header: '{LONG[:20]}' is no key hash"),
        ("1|a/00000001|g|t|0/1|9223372036854775808|", "half header: '9223372036854775808' is no whole number"),
    ],
)
def test_a_half_header(raw: str, why: str) -> None:
    assert Undecodable(why) == codec.decode_half_header(raw.encode())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1|C", "op: 2 fields where 9 are due"),
        (LONG, f"op: unknown version '{LONG[:20]}'"),
        ("1|X|a/00000001|g|1|2|producer||", "op line: resolution, source, id or group out of form"),
        (f"1|C|a/00000001|{'g' * 201}|1|2|producer||", "op line: resolution, source, id or group out of form"),
    ],
)
def test_an_op_line(line: str, why: str) -> None:
    assert Undecodable(why) == codec.decode_op(line)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("1|open", "doubt: 2 fields where 17 are due"),
        (GOOD.replace("1|open", "3|open"), "doubt: unknown version '3'"),
        (GOOD.replace("|7|", "|x|"), "doubt summary: 'x' is no whole number"),
        (GOOD.replace("|g|5|", "|g|-5|"), "doubt summary: '-5' is no whole number"),
    ],
)
def test_a_doubt_summary(raw: str, why: str) -> None:
    assert not isinstance(codec.decode_summary("a/00000001", GOOD.encode()), Undecodable)
    assert Undecodable(why) == codec.decode_summary("a/00000001", raw.encode())


def test_an_op_record() -> None:
    assert Undecodable("op record without a value") == codec.split_ops(b"")
    assert Undecodable(
        "op record: 'ascii' codec can't decode byte 0xff in position 0: ordinal not in range(128)"
    ) == codec.split_ops(b"\xff")


def test_an_origin() -> None:
    assert Undecodable("origin: 'x' is no whole number") == codec.decode_origin(b"0:0|0/1|x")


def test_the_reason_of_a_record_kept_aside_is_shown_whatever_its_bytes() -> None:
    assert ("odd", "\ufffdwords") == codec.decode_why(b"odd \xffwords")


def test_a_null_value_is_marked_as_the_protocol_page_says() -> None:
    assert (b"", [(codec.NULL_HEADER, b"1")]) == codec.encode_content(key=None, value=None, headers=None)


def test_an_order_of_a_later_version_is_the_order_of_commits() -> None:
    assert OrderMode.COMMIT is codec.decode_options("oz").order
    assert OrderMode.PREPARE is codec.decode_options("op").order


CHECK = "1|Q|a/00000001|g|5|6|7|8|why"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (None, "check: unknown version ''"),
        (b"1|Q", "check: 2 fields where 9 are due"),
        (LONG.encode(), f"check: unknown version '{LONG[:20]}'"),
        (CHECK.replace("Q", "Y").encode(), "check: kind, id or group out of form"),
        (CHECK.replace("|g|", "||").encode(), "check: kind, id or group out of form"),
        (CHECK.replace("|g|", f"|{'g' * 201}|").encode(), "check: kind, id or group out of form"),
        (CHECK.replace("a/00000001", "").encode(), "check: kind, id or group out of form"),
        (CHECK.replace("|5|", "|2147483648|").encode(), "check: no such partition"),
        (CHECK.replace("|7|", "|x|").encode(), "check: 'x' is no whole number"),
    ],
)
def test_a_check(raw: bytes | None, why: str) -> None:
    assert Undecodable(why) == codec.decode_check(raw)


def test_a_check_of_the_last_partition_and_with_any_text() -> None:
    check = CheckRecord(CheckKind.QUESTION, "a/00000001", "g", PARTITION_MAX, 6, 7, 8, "a, b|\ud800X")

    raw = codec.encode_check(check)

    assert f"1|Q|a/00000001|g|{PARTITION_MAX}|6|7|8|a, b%7C%3FX".encode() == raw
    assert check._replace(text="a, b|?X") == codec.decode_check(raw)


def test_a_half_header_of_the_greatest_length_and_the_longest_group_are_in_form() -> None:
    header = codec.decode_half_header(f"1|a/00000001|{'g' * 200}|t|0/1|5|".ljust(2_048, "z").encode())

    assert isinstance(header, HalfHeader)
    for raw in (f"1|C|a/00000001|{'g' * 200}|1|2|producer||", f"1|C|a/00000001|g|1|2|producer||{'z' * 5_000}"):
        assert isinstance(codec.decode_op(raw), OpMessage)
