"""Records of ours as bytes: the vectors of the protocol page, round trips, and whatever else may come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.protocol_page import page, vectors
from txlayer.core import codec
from txlayer.core.ids import check_txn_id
from txlayer.core.messages import (
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OpMessage,
    OrderMode,
    ParkReason,
    Resolution,
    Source,
    Undecodable,
)
from txlayer.core.partitions import partition_of_key_hash

WHOLE = st.integers(0, 2**63 - 1)
NAME_LETTERS = "azAZ09._-"
GROUP = st.text(NAME_LETTERS, min_size=1, max_size=12)
TOPIC = GROUP
# Printable ASCII but for what separates.
TXN_ID = st.text(
    [chr(c) for c in range(0x21, 0x7F) if chr(c) not in "|/"], min_size=1, max_size=128
)
NONCE = st.text("0123456789abcdef", min_size=8, max_size=8)
KEY = st.builds("{}/{}".format, TXN_ID, NONCE)
KEY_HASH = st.text("0123456789abcdef", min_size=16, max_size=16)
OPTIONS = st.builds(
    HalfOptions,
    key_hash=st.none() | KEY_HASH,
    order=st.sampled_from(OrderMode),
    immunity_ms=st.none() | WHOLE,
    partition=st.none() | st.integers(0, 2**31 - 1),
    timestamp_ms=st.none() | WHOLE,
    key_murmur=st.none() | st.integers(0, 2**31 - 1),
)
HEADERS = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=5)


@st.composite
def half_headers(draw: st.DrawFn) -> HalfHeader:
    count = draw(st.integers(1, 2**40))
    return HalfHeader(
        draw(KEY),
        draw(GROUP),
        draw(TOPIC),
        draw(st.integers(0, count - 1)),
        count,
        draw(WHOLE),
        draw(OPTIONS),
    )


@st.composite
def ops(draw: st.DrawFn) -> OpMessage:
    is_abandon = draw(st.booleans())
    return OpMessage(
        Resolution.ROLLBACK if is_abandon else draw(st.sampled_from(Resolution)),
        draw(KEY),
        draw(GROUP),
        draw(WHOLE),
        draw(WHOLE),
        draw(st.sampled_from(Source)),
        draw(st.none() | WHOLE),
        is_abandon,
        draw(st.text(st.characters(exclude_categories=["Cs"]))),
    )


SUMMARIES = st.builds(
    DoubtSummary,
    key=KEY,
    state=st.text("az-", min_size=1, max_size=20),
    reason=st.sampled_from(["", *(reason.value for reason in ParkReason)]),
    producer_group=GROUP,
    first_offset=st.integers(-1, 2**63 - 1),
    last_offset=st.integers(-1, 2**63 - 1),
    seen=WHOLE,
    count=WHOLE,
    appended_ms=WHOLE,
    born_ms=WHOLE,
    key_hash=st.none() | KEY_HASH,
    order=st.sampled_from(OrderMode),
    immunity_ms=st.none() | WHOLE,
    decided_at=st.none() | st.tuples(WHOLE, WHOLE),
    moved_ms=WHOLE,
    topics=st.lists(TOPIC, max_size=3).map(tuple),
    checked_count=WHOLE,
    answered_count=WHOLE,
)

# Bytes of any kind, and bytes that look like ours.
NEARLY_OURS = st.text(st.sampled_from("1|/:,0-9abkointmCRUA \n\x00é"), max_size=80).map(str.encode)
ANY_BYTES = st.binary(max_size=200) | NEARLY_OURS


# --- the page ---------------------------------------------------------------------------------------------------------


def with_enums(
    vector: dict[str, Any], **enums: type[OrderMode | Resolution | Source]
) -> dict[str, Any]:
    """A vector's fields with names turned into members; `bytes` and `line` taken out."""
    fields = {
        name: value for name, value in vector.items() if name not in ("bytes", "line", "text")
    }
    for name, enum in enums.items():
        if name in fields:
            fields[name] = enum[fields[name].upper()]
    return fields


def test_a_half_header_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("half"):
        options = HalfOptions(**with_enums(vector["options"], order=OrderMode))
        header = HalfHeader(**{**with_enums(vector), "options": options})

        assert vector["bytes"].encode() == codec.encode_half_header(header)
        assert header == codec.decode_half_header(vector["bytes"].encode())


def test_an_op_line_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("op"):
        op = OpMessage(**with_enums(vector, resolution=Resolution, source=Source))

        assert vector["line"] == codec.encode_op(op)
        assert op == codec.decode_op(vector["line"])


def test_a_doubt_summary_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("summary"):
        fields = with_enums(vector, order=OrderMode)
        if fields["decided_at"] is not None:
            fields["decided_at"] = tuple(fields["decided_at"])
        fields["topics"] = tuple(fields["topics"])
        summary = DoubtSummary(**fields)

        assert vector["bytes"].encode() == codec.encode_summary(summary)
        assert summary == codec.decode_summary(vector["key"], vector["bytes"].encode())


def test_a_doubt_key_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("doubt-key"):
        expected = None if vector["key"] is None else (vector["key"], vector["index"])

        assert expected == codec.parse_doubt_key(vector["bytes"].encode())


def test_an_origin_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("origin"):
        fields = with_enums(vector)

        assert vector["text"] == codec.encode_origin(**fields)
        assert tuple(fields.values()) == codec.decode_origin(vector["text"].encode())


def test_the_protocol_page_names_every_header_and_every_reason() -> None:
    text = page()
    headers = [value for name, value in vars(codec).items() if name.endswith("_HEADER")]

    assert 6 == len(headers)
    assert [] == [name for name in headers if f"`{name}`" not in text]
    assert [] == [reason.value for reason in ParkReason if f"`{reason.value}`" not in text]


# --- round trips ------------------------------------------------------------------------------------------------------


@given(half_headers())
def test_a_half_header_survives_the_wire(header: HalfHeader) -> None:
    assert header == codec.decode_half_header(codec.encode_half_header(header))


@given(st.lists(ops(), min_size=1, max_size=5))
def test_op_lines_survive_the_wire_in_their_order(written: list[OpMessage]) -> None:
    raw = codec.encode_ops([codec.encode_op(op) for op in written])

    lines = codec.split_ops(raw)

    assert isinstance(lines, list)
    assert written == [codec.decode_op(line) for line in lines]


@given(SUMMARIES)
def test_a_doubt_summary_survives_the_wire(summary: DoubtSummary) -> None:
    assert summary == codec.decode_summary(summary.key, codec.encode_summary(summary))


@given(KEY, st.integers(0, 9_999))
def test_a_content_key_names_its_transaction_and_index(key: str, index: int) -> None:
    assert (key, index) == codec.parse_doubt_key(codec.content_key(key, index))
    assert (key, None) == codec.parse_doubt_key(key.encode())


@given(TOPIC, st.integers(0, 2**31 - 1), WHOLE)
def test_the_key_of_a_record_kept_aside_is_no_transactions(
    topic: str, partition: int, offset: int
) -> None:
    raw = codec.kept_aside_key(topic=topic, partition=partition, offset=offset)

    assert codec.parse_doubt_key(raw) is None


@given(st.none() | st.binary(), st.none() | st.binary(), HEADERS)
def test_a_half_record_survives_its_move_to_doubt(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    moved_value, moved_headers = codec.encode_content(key=key, value=value, headers=headers)

    assert isinstance(moved_value, bytes), "a null value would be a tombstone"
    assert (key, value, headers) == codec.decode_content(value=moved_value, headers=moved_headers)


def test_a_content_takes_no_strangers_header_for_its_own() -> None:
    strange: list[tuple[str, bytes | None]] = [
        ("txl-key", b"stranger"),
        ("txl-null", b"1"),
        ("a", b"1"),
    ]

    value, headers = codec.encode_content(key=None, value=b"v", headers=strange)

    assert (None, b"v", [("a", b"1")]) == codec.decode_content(value=value, headers=headers)


@given(st.integers(0, 2**31 - 1), WHOLE, WHOLE, WHOLE, WHOLE)
def test_an_origin_survives_the_wire(
    partition: int, offset: int, index: int, count: int, born_ms: int
) -> None:
    text = codec.encode_origin(
        partition=partition, offset=offset, index=index, count=count, born_ms=born_ms
    )

    assert (partition, offset, index, count, born_ms) == codec.decode_origin(text.encode())


# --- whatever else may come -------------------------------------------------------------------------------------------


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
            decoded.options.key_hash is None
            or partition_of_key_hash(decoded.options.key_hash, partition_count=8) < 8
        )
        assert decoded == codec.decode_half_header(codec.encode_half_header(decoded))
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
        assert codec.is_key(key)
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
def test_the_last_header_of_ours_is_the_one_that_counts(
    headers: list[tuple[str, bytes | None]] | None,
) -> None:
    assert codec.half_header_of(headers) is None
    assert b"2" == codec.half_header_of(
        [(codec.HALF_HEADER, b"1"), *(headers or []), (codec.HALF_HEADER, b"2")]
    )


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "unknown version ''"),
        (b"2|a/12345678|g|t|0/1|5|", "unknown version '2'"),
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
        (b"1|a\n/12345678|g|t|0/1|5|", "control characters"),
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
    assert codec.is_key(f"{check_txn_id('a' * 128)}/12345678")


@given(st.text(max_size=600), st.sampled_from(ParkReason))
def test_the_reason_of_a_record_kept_aside_begins_its_header(why: str, reason: ParkReason) -> None:
    raw = codec.encode_why(Undecodable(why, reason))

    assert reason.value == raw.decode().partition(" ")[0]


def test_a_reason_typed_in_another_encoding_is_still_one_line() -> None:
    op = OpMessage(
        Resolution.ROLLBACK, "a/12345678", "g", 1, 2, Source.OPERATOR, reason="caf\udce9\n|"
    )

    assert "1|R|a/12345678|g|1|2|operator||caf%3F%0A%7C" == codec.encode_op(op)
