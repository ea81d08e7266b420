"""Records of ours as bytes: the vectors of the protocol page, round trips, and whatever else may come."""

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.codec_strategies import ANY_BYTES, CHECKS, HEADERS, KEY, SUMMARIES, TOPIC, WHOLE, half_headers, ops
from tests.support.core_records import plain_record
from tests.support.protocol_page import page, vectors, with_enums
from txlayer.core import codec
from txlayer.core.codec import PARTITION_MAX, is_key
from txlayer.core.messages import (
    CheckKind,
    CheckRecord,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    Headers,
    OpMessage,
    OrderMode,
    Origin,
    ParkReason,
    QuestionDetails,
    Resolution,
    Source,
    Undecodable,
    UnresolvedAction,
    check_txn_id,
)

# --- the page ---------------------------------------------------------------------------------------------------------


def test_a_half_header_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("half"):
        options = HalfOptions(**with_enums(vector["options"], order=OrderMode, unresolved=UnresolvedAction))
        header = HalfHeader(**{**with_enums(vector), "options": options})

        assert vector["bytes"].encode() == codec.encode_half_header(header)
        assert header == codec.decode_half_header(vector["bytes"].encode())


def test_an_op_line_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("op"):
        op = OpMessage(**with_enums(vector, resolution=Resolution, source=Source))

        assert vector["line"] == codec.encode_op(op)
        assert op == codec.decode_op(vector["line"])


def test_a_reader_accepts_what_the_protocol_page_says() -> None:
    for vector in vectors("accepted"):
        found = codec.decode_half_header(vector["half"].encode()) if "half" in vector else codec.decode_op(vector["op"])

        assert vector["is_accepted"] is not isinstance(found, Undecodable), vector
        assert isinstance(found, Undecodable) or vector["key"] == found.key


def test_a_check_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("check"):
        check = CheckRecord(**with_enums(vector, kind=CheckKind))

        assert vector["line"].encode() == codec.encode_check(check)
        assert check == codec.decode_check(vector["line"].encode())


def test_what_a_question_carries_is_what_the_protocol_page_says() -> None:
    def raw(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    for vector in vectors("question-details"):
        ours = f"1|order-4711/5f3a90c2|orders|shop.orders|0/1|1700000000000|{vector['options']}"
        headers = [(name, raw(value)) for name, value in (*vector["headers"], ("txl", ours))]
        record = plain_record(key=raw(vector["key"]), value=raw(vector["value"]), headers=headers)

        assert [(name, raw(value)) for name, value in vector["carried"]] == codec.encode_details(record)


def test_parts_that_do_not_fit_into_a_question_are_named() -> None:
    wanted = ("key", "tags", "headers:a|b", "query_id", "content")
    options = codec.encode_options(HalfOptions(check_with=codec.encode_check_with(wanted), query_id="7"))
    txl = codec.half_header("order-4711/5f3a90c2", "orders", "shop", 0, 1, 5, options)
    headers = [("tags", b"big"), ("a|b", b"x" * 4_000), ("txl", txl)]

    carried = codec.encode_details(plain_record(key=b"k" * 4_000, value=b"v" * 16_384, headers=headers))
    too_large = codec.encode_details(plain_record(key=b"k", value=b"v" * 16_385, headers=headers))

    found, other = codec.decode_details(carried), codec.decode_details(too_large)
    assert QuestionDetails(b"k" * 4_000, "big", (), "7", b"v" * 16_384, ("headers:a|b",)) == found
    assert QuestionDetails(b"k", "big", (("a|b", b"x" * 4_000),), "7", None, ("content",)) == other
    sizes = [sum(len(name) + len(value or b"") for name, value in each) for each in (carried, too_large)]
    assert max(sizes) <= codec.details_bytes_max("k+c") + 64


@given(st.lists(st.sampled_from(["key", "tags", "query_id", "content", "headers:x", "headers:ä b,|+"])), HEADERS)
def test_a_question_carries_at_most_what_is_counted_for_it(wanted: list[str], headers: Headers) -> None:
    options = codec.encode_options(HalfOptions(check_with=codec.encode_check_with(wanted), query_id="7"))
    txl = codec.half_header("order-4711/5f3a90c2", "orders", "shop", 0, 1, 5, options)

    found = codec.decode_details(codec.encode_details(plain_record(key=b"k", headers=[*headers, ("txl", txl)])))

    assert (b"k" if "key" in wanted else None) == found.key
    assert ("7" if "query_id" in wanted else None) == found.query_id
    assert (b"v" if "content" in wanted else None) == found.content
    assert () == found.left_out


def test_a_check_is_kept_under_its_transaction_id_or_its_group() -> None:
    question = CheckRecord(CheckKind.QUESTION, "order-4711/5f3a90c2", "orders", 3)
    limit = CheckRecord(CheckKind.LIMIT, "", "orders", 3, text="on")

    assert b"order-4711" == codec.check_key(question)
    assert b"orders" == codec.check_key(limit)


def test_a_doubt_summary_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("summary"):
        fields = with_enums(vector, order=OrderMode, unresolved=UnresolvedAction)
        if fields["decided_at"] is not None:
            fields["decided_at"] = tuple(fields["decided_at"])
        if "committed_at" in fields:
            fields["committed_at"] = tuple(fields["committed_at"])
        fields["times"] = tuple(fields.get("times", ()))
        fields["topics"] = tuple(fields["topics"])
        fields["twin_offsets"] = tuple(fields["twin_offsets"])
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
        text = fields.pop("text")

        assert text == codec.encode_origin(**fields)
        assert tuple(fields.values()) == codec.decode_origin(text.encode())


def test_the_protocol_page_names_every_header_and_every_reason() -> None:
    text = page()
    headers = [value for name, value in vars(codec).items() if name.endswith("_HEADER")]

    assert 14 == len(headers)
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


@given(CHECKS)
def test_a_check_survives_the_wire(check: CheckRecord) -> None:
    assert check == codec.decode_check(codec.encode_check(check))


@given(SUMMARIES)
def test_a_doubt_summary_survives_the_wire(summary: DoubtSummary) -> None:
    assert summary == codec.decode_summary(summary.key, codec.encode_summary(summary))


@given(KEY, st.integers(0, 9_999))
def test_a_content_key_names_its_transaction_and_index(key: str, index: int) -> None:
    assert (key, index) == codec.parse_doubt_key(codec.content_key(key, index))
    assert (key, None) == codec.parse_doubt_key(key.encode())


@given(TOPIC, st.integers(0, 2**31 - 1), WHOLE)
def test_the_key_of_a_record_kept_aside_is_no_transactions(topic: str, partition: int, offset: int) -> None:
    raw = codec.quarantine_key(Origin(topic, partition, offset))

    assert [None, None] == [codec.parse_doubt_key(each) for each in (raw, None)]


@given(st.none() | st.binary(), st.none() | st.binary(), HEADERS)
def test_a_half_record_survives_its_move_to_doubt(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    moved_value, moved_headers = codec.encode_content(key=key, value=value, headers=headers)

    assert isinstance(moved_value, bytes), "a null value would be a tombstone"
    assert (key, value, headers) == codec.decode_content(value=moved_value, headers=moved_headers)


def test_a_content_takes_no_strangers_header_for_its_own() -> None:
    strange: list[tuple[str, bytes | None]] = [("txl-key", b"stranger"), ("txl-null", b"1"), ("a", b"1")]

    value, headers = codec.encode_content(key=None, value=b"v", headers=strange)

    assert (None, b"v", [("a", b"1")]) == codec.decode_content(value=value, headers=headers)


@given(st.integers(0, 2**31 - 1), WHOLE, WHOLE, WHOLE, WHOLE)
def test_an_origin_survives_the_wire(partition: int, offset: int, index: int, count: int, born_ms: int) -> None:
    text = codec.encode_origin(partition=partition, offset=offset, index=index, count=count, born_ms=born_ms)

    assert (partition, offset, index, count, born_ms) == codec.decode_origin(text.encode())


@given(half_headers())
def test_the_producers_short_way_writes_the_same_half_header(header: HalfHeader) -> None:
    options = codec.encode_options(header.options)
    fields = header._replace(options=options)  # type: ignore[arg-type]  # encoded here

    assert codec.encode_half_header(header) == codec.half_header(*fields)  # type: ignore[arg-type]  # the same


@given(ops())
def test_the_producers_short_way_writes_the_same_op_line(op: OpMessage) -> None:
    own = OpMessage(op.resolution, op.key, op.producer_group, op.last_offset, op.born_ms)

    short = codec.producer_op(op.resolution.value, op.key, op.producer_group, op.last_offset, op.born_ms)

    assert codec.encode_op(own) == short


@given(SUMMARIES)
def test_a_glance_at_a_summary_sees_what_its_decoder_sees(summary: DoubtSummary) -> None:
    raw, s = codec.encode_summary(summary), summary

    seen = codec.glance_at_summary(raw)

    expected = (s.state, s.reason, s.producer_group, s.first_offset, s.appended_ms, s.key_hash, ",".join(s.topics))
    assert expected == seen


def test_a_summary_of_another_form_is_not_glanced_at() -> None:
    assert [None, None] == [codec.glance_at_summary(raw) for raw in (b"9|held", b"\xff")]


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
