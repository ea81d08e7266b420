"""Whatever bytes come, no reader of records stops: it gets a value that says what was wrong."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.codec_strategies import ANY_BYTES, HEADERS
from txlayer.core import codec
from txlayer.core.codec import PARTITION_MAX, is_key
from txlayer.core.messages import (
    CheckKind,
    CheckRecord,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OpMessage,
    OrderMode,
    ParkReason,
    Resolution,
    Source,
    Undecodable,
    check_txn_id,
)


@given(st.none() | ANY_BYTES)
@example(b"1|Q||orders|3|17|5|1|")
@example(b"1|Q|a/12345678|orders|4294967296|17|5|1|")
def test_no_bytes_stop_the_reader_of_checks(raw: bytes | None) -> None:
    decoded = codec.decode_check(raw)

    if isinstance(decoded, CheckRecord):
        assert decoded == codec.decode_check(codec.encode_check(decoded))
    else:
        assert decoded.why


@given(st.none() | HEADERS)
def test_the_last_header_of_ours_is_the_one_that_counts(headers: list[tuple[str, bytes | None]] | None) -> None:
    assert codec.half_header_of(headers) is None
    assert b"2" == codec.half_header_of([(codec.HALF_HEADER, b"1"), *(headers or []), (codec.HALF_HEADER, b"2")])


LONG = "x" * 30
GOOD = "1|open||g|5|5|1|1|6|7||commit|||8|orders|0/0/0/0"
CHECK = "1|Q|a/00000001|g|5|6|7|8|why"
HALF_FORM = "half header: id, group, topic or index out of form"
OP_FORM = "op line: resolution, source, id or group out of form"
CHECK_FORM = "check: kind, id or group out of form"
NO_NUMBER = "is no whole number"

# People read these words in `txlayer tx list --kept-aside`.
OUT_OF_FORM: dict[Callable[[bytes], object], list[tuple[str, str]]] = {
    codec.decode_half_header: [
        ("", "half: unknown version ''"),
        ("3|a/12345678|g|t|0/1|5|", "half: unknown version '3'"),
        (LONG, f"half: unknown version '{LONG[:20]}'"),
        ("1|a", "half: 2 fields where 7 are due"),
        ("1|a/12345678|g|t|0/1|5||", "half: 8 fields where 7 are due"),
        ("1|a/1234567|g|t|0/1|5|", HALF_FORM),
        ("1|ab/1234567|g|t|0/1|5|", HALF_FORM),
        ("1|/12345678|g|t|0/1|5|", HALF_FORM),
        ("1|a/b/12345678|g|t|0/1|5|", HALF_FORM),
        ("1|" + "a" * 129 + "/12345678|g|t|0/1|5|", HALF_FORM),
        ("1|a/12345678||t|0/1|5|", HALF_FORM),
        ("1|a/12345678|g||0/1|5|", HALF_FORM),
        ("1|a/12345678|g|t,u|0/1|5|", HALF_FORM),
        ("1|a/12345678|g|two words|0/1|5|", HALF_FORM),
        ("1|a/12345678|g|..|0/1|5|", HALF_FORM),
        ("1|a/12345678|g|t|1/1|5|", HALF_FORM),
        ("1|a/12345678|g|t|0/0|5|", HALF_FORM),
        ("1|a/12345678|g|t|-1/1|5|", f"half header: '-1' {NO_NUMBER}"),
        ("1|a/12345678|g|t|0/1|+5|", f"half header: '+5' {NO_NUMBER}"),
        ("1|a/12345678|g|t|0/1|1_0|", f"half header: '1_0' {NO_NUMBER}"),
        (f"1|a/12345678|g|t|0/1|{LONG}|", f"half header: '{LONG[:20]}' {NO_NUMBER}"),
        ("1|a/12345678|g|t|0/1|9223372036854775808|", f"half header: '9223372036854775808' {NO_NUMBER}"),
        ("1|a/12345678|g|t|0/1|5|k0x12345678901234", "half header: '0x12345678901234' is no key hash"),
        (f"1|a/12345678|g|t|0/1|5|k{LONG}", f"half header: '{LONG[:20]}' is no key hash"),
        ("1|a/12345678|g|t|0/1|5|n2147483648", "half header: no such partition"),
        ("1|a\n/12345678|g|t|0/1|5|", "half header: line feed"),
        (f"1|a/12345678|g|t|0/1|5|{'z' * 2_026}", "half header: 2049 bytes, more than 2048"),
    ],
    lambda raw: codec.decode_op(raw.decode()): [
        ("", "op: unknown version ''"),
        (LONG, f"op: unknown version '{LONG[:20]}'"),
        ("1|C", "op: 2 fields where 9 are due"),
        ("1|C|a/12345678|g|1|2|producer|", "op: 8 fields where 9 are due"),
        ("1|X|a/12345678|g|1|2|producer||", OP_FORM),
        ("1|C|a/12345678|g|1|2|stranger||", OP_FORM),
        ("1|C|a12345678|g|1|2|producer||", OP_FORM),
        ("1|C|a/12345678||1|2|producer||", OP_FORM),
        (f"1|C|a/12345678|{'g' * 201}|1|2|producer||", OP_FORM),
        ("1|C|a/12345678|g|-1|2|producer||", f"op line: '-1' {NO_NUMBER}"),
        ("1|C|a/12345678|g|1|2|check|x|", f"op line: 'x' {NO_NUMBER}"),
    ],
    lambda raw: codec.decode_summary("a/00000001", raw): [
        ("1|open", "doubt: 2 fields where 17 are due"),
        (GOOD.replace("1|open", "3|open"), "doubt: unknown version '3'"),
        (GOOD.replace("|7|", "|x|"), f"doubt summary: 'x' {NO_NUMBER}"),
        (GOOD.replace("|g|5|", "|g|-5|"), f"doubt summary: '-5' {NO_NUMBER}"),
    ],
    codec.decode_check: [
        ("", "check: unknown version ''"),
        (LONG, f"check: unknown version '{LONG[:20]}'"),
        ("1|Q", "check: 2 fields where 9 are due"),
        (CHECK.replace("Q", "Y"), CHECK_FORM),
        (CHECK.replace("|g|", "||"), CHECK_FORM),
        (CHECK.replace("|g|", f"|{'g' * 201}|"), CHECK_FORM),
        (CHECK.replace("a/00000001", ""), CHECK_FORM),
        (CHECK.replace("|5|", "|2147483648|"), "check: no such partition"),
        (CHECK.replace("|7|", "|x|"), f"check: 'x' {NO_NUMBER}"),
    ],
    codec.split_ops: [("", "op record without a value")],
    codec.decode_origin: [("0:0|0/1|x", f"origin: 'x' {NO_NUMBER}")],
}


@pytest.mark.fault("data: garbage: no header, an unknown version, not UTF-8, no id, a thousand headers")
@pytest.mark.parametrize(
    ("decode", "raw", "why"), [(decode, raw, why) for decode, rows in OUT_OF_FORM.items() for raw, why in rows]
)
def test_what_is_out_of_form_says_why_word_for_word(decode: Callable[[bytes], object], raw: str, why: str) -> None:
    assert Undecodable(why) == decode(raw.encode())


def test_bytes_that_are_no_ascii_or_not_there_say_so() -> None:
    no_ascii = "'ascii' codec can't decode byte 0xff in position 0: ordinal not in range(128)"

    assert Undecodable(f"op record: {no_ascii}") == codec.split_ops(b"\xff")
    assert Undecodable("check: unknown version ''") == codec.decode_check(None)
    decoded = codec.decode_half_header("1|ä/12345678|g|t|0/1|5|".encode())
    assert isinstance(decoded, Undecodable)
    assert "ascii" in decoded.why
    assert isinstance(codec.decode_summary("a/00000001", GOOD.encode()), DoubtSummary)


@pytest.mark.fault("operation: two versions in one group, a wrong setting, or a return to an older version")
def test_options_of_later_versions_are_passed_over() -> None:
    decoded = codec.decode_half_header(b"1|a/12345678|g|t|0/1|5|i7,z9,,n3")

    assert isinstance(decoded, HalfHeader)
    assert HalfOptions(immunity_ms=7, partition=3) == decoded.options


def test_every_transaction_id_that_is_allowed_fits_into_a_key() -> None:
    assert is_key(f"{check_txn_id('a' * 128)}/12345678")


@given(st.text(max_size=600), st.sampled_from(ParkReason))
def test_the_reason_of_a_record_kept_aside_begins_its_header(why: str, reason: ParkReason) -> None:
    raw = codec.encode_why(Undecodable(why, reason))

    assert reason.value == raw.decode().partition(" ")[0]


def test_a_reason_typed_in_another_encoding_is_still_one_line() -> None:
    op = OpMessage(Resolution.ROLLBACK, "a/12345678", "g", 1, 2, Source.OPERATOR, reason="caf\udce9\n|")

    assert "1|R|a/12345678|g|1|2|operator||caf%3F%0A%7C" == codec.encode_op(op)


def test_the_reason_of_a_record_kept_aside_is_shown_whatever_its_bytes() -> None:
    assert ("odd", "\ufffdwords") == codec.decode_why(b"odd \xffwords")


def test_a_null_value_is_marked_as_the_protocol_page_says() -> None:
    assert (b"", [(codec.NULL_HEADER, b"1")]) == codec.encode_content(key=None, value=None, headers=None)


def test_an_order_of_a_later_version_is_the_order_of_commits() -> None:
    assert OrderMode.COMMIT is codec.decode_options("oz").order
    assert OrderMode.PREPARE is codec.decode_options("op").order


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
