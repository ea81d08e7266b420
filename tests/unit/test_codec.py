"""Records of ours as bytes: the vectors of the protocol page, and round trips."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.codec_strategies import CHECKS, HEADERS, KEY, SUMMARIES, TOPIC, WHOLE, half_headers, ops
from tests.support.core_records import plain_record
from tests.support.protocol_page import page, vectors, with_enums
from txlayer.core import codec
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
