"""Whatever bytes come, no reader of records stops: it gets a value that says what was wrong."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.codec_strategies import ANY_BYTES, HEADERS, KEY, SUMMARIES, half_headers
from txlayer.core import codec
from txlayer.core.codec import is_key
from txlayer.core.ids import check_txn_id
from txlayer.core.messages import (
    CheckRecord,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OpMessage,
    ParkReason,
    Resolution,
    Source,
    Undecodable,
)
from txlayer.core.partitions import partition_of_key_hash


@given(ANY_BYTES)
@example(b"1|a/12345678|g|t|0/1|5|kx")
@example(b"1|a/12345678|g|t|0/1|5|k1234567_12345678")
@example(b"1|a/12345678|g|t|0/1|5|n99999999999")
@example(b"1|a/12345678|g|t|0/1|9999999999999999999|")
@example(b"1|a\nb/12345678|g|t|0/1|5|")
def test_no_bytes_stop_the_reader_of_half_headers(raw: bytes) -> None:
    decoded = codec.decode_half_header(raw)

    if isinstance(decoded, HalfHeader):
        assert (
            decoded.options.key_hash is None or partition_of_key_hash(decoded.options.key_hash, partition_count=8) < 8
        )
        assert decoded == codec.decode_half_header(codec.encode_half_header(decoded))
    else:
        assert decoded.why


@given(st.none() | ANY_BYTES)
@example(b"1|Q||orders|3|17|5|1|")
@example(b"1|Q|a/12345678|orders|4294967296|17|5|1|")
def test_no_bytes_stop_the_reader_of_checks(raw: bytes | None) -> None:
    decoded = codec.decode_check(raw)

    if isinstance(decoded, CheckRecord):
        assert decoded == codec.decode_check(codec.encode_check(decoded))
    else:
        assert decoded.why


@given(st.none() | ANY_BYTES)
def test_no_bytes_stop_the_reader_of_op_records(raw: bytes | None) -> None:
    lines = codec.split_ops(raw)

    for line in [] if isinstance(lines, Undecodable) else lines:
        decoded = codec.decode_op(line)
        if isinstance(decoded, OpMessage):
            assert decoded == codec.decode_op(codec.encode_op(decoded))


@given(st.text(max_size=80))
def test_no_text_stops_the_reader_of_op_lines(line: str) -> None:
    assert isinstance(codec.decode_op(line), OpMessage | Undecodable)


@given(KEY, ANY_BYTES)
def test_no_bytes_stop_the_reader_of_doubt_summaries(key: str, raw: bytes) -> None:
    assert isinstance(codec.decode_summary(key, raw), DoubtSummary | Undecodable)


@given(SUMMARIES.map(codec.encode_summary), st.data())
def test_a_damaged_summary_stops_nobody(raw: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(raw) - 1))
    damaged = raw[:at] + data.draw(st.binary(max_size=2)) + raw[at + 1 :]

    assert isinstance(codec.decode_summary("a/12345678", damaged), DoubtSummary | Undecodable)


@given(half_headers().map(codec.encode_half_header), st.data())
def test_a_damaged_half_header_stops_nobody(raw: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(raw) - 1))
    damaged = raw[:at] + data.draw(st.binary(max_size=2)) + raw[at + 1 :]

    assert isinstance(codec.decode_half_header(damaged), HalfHeader | Undecodable)


@given(st.none() | ANY_BYTES)
def test_no_bytes_stop_the_reader_of_doubt_keys(raw: bytes | None) -> None:
    parsed = codec.parse_doubt_key(raw)

    if parsed is not None:
        key, index = parsed
        assert is_key(key)
        assert index is None or index >= 0


@given(st.none() | ANY_BYTES, st.none() | HEADERS)
def test_no_bytes_stop_the_reader_of_doubt_contents(
    value: bytes | None, headers: list[tuple[str, bytes | None]] | None
) -> None:
    _, _, kept = codec.decode_content(value=value, headers=headers)

    assert len(kept) <= len(headers or [])


@given(ANY_BYTES)
def test_no_bytes_stop_the_reader_of_origins(raw: bytes) -> None:
    decoded = codec.decode_origin(raw)

    assert isinstance(decoded, Undecodable) or 5 == len(decoded)


@given(st.none() | HEADERS)
def test_the_last_header_of_ours_is_the_one_that_counts(headers: list[tuple[str, bytes | None]] | None) -> None:
    assert codec.half_header_of(headers) is None
    assert b"2" == codec.half_header_of([(codec.HALF_HEADER, b"1"), *(headers or []), (codec.HALF_HEADER, b"2")])


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "unknown version ''"),
        (b"3|a/12345678|g|t|0/1|5|", "unknown version '3'"),
        (b"1|a/12345678|g|t|0/1|5", "6 fields where 7 are due"),
        (b"1|a/12345678|g|t|0/1|5||", "8 fields where 7 are due"),
        (b"1|a/1234567|g|t|0/1|5|", "out of form"),
        (b"1|a/b/12345678|g|t|0/1|5|", "out of form"),
        (b"1|" + b"a" * 129 + b"/12345678|g|t|0/1|5|", "out of form"),
        (b"1|a/12345678||t|0/1|5|", "out of form"),
        (b"1|a/12345678|g||0/1|5|", "out of form"),
        (b"1|a/12345678|g|t,u|0/1|5|", "out of form"),
        (b"1|a/12345678|g|t|1/1|5|", "out of form"),
        (b"1|a/12345678|g|t|0/0|5|", "out of form"),
        (b"1|a/12345678|g|t|-1/1|5|", "no whole number"),
        (b"1|a/12345678|g|t|0/1|+5|", "no whole number"),
        (b"1|a/12345678|g|t|0/1|1_0|", "no whole number"),
        (b"1|a/12345678|g|t|0/1|5|k0x12345678901234", "no key hash"),
        (b"1|a/12345678|g|t|0/1|5|n2147483648", "no such partition"),
        (b"1|a\n/12345678|g|t|0/1|5|", "line feed"),
        ("1|ä/12345678|g|t|0/1|5|".encode(), "ascii"),
    ],
)
def test_a_half_header_out_of_form_says_why(raw: bytes, why: str) -> None:
    decoded = codec.decode_half_header(raw)

    assert isinstance(decoded, Undecodable)
    assert why in decoded.why


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


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "unknown version ''"),
        ("1|C|a/12345678|g|1|2|producer|", "8 fields where 9 are due"),
        ("1|X|a/12345678|g|1|2|producer||", "out of form"),
        ("1|C|a/12345678|g|1|2|stranger||", "out of form"),
        ("1|C|a12345678|g|1|2|producer||", "out of form"),
        ("1|C|a/12345678||1|2|producer||", "out of form"),
        ("1|C|a/12345678|g|-1|2|producer||", "no whole number"),
        ("1|C|a/12345678|g|1|2|check|x|", "no whole number"),
    ],
)
def test_an_op_line_out_of_form_says_why(line: str, why: str) -> None:
    decoded = codec.decode_op(line)

    assert isinstance(decoded, Undecodable)
    assert why in decoded.why
