"""Quarantined records, as the doubt topic gives them back to one who looks in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.codec_strategies import TOPIC, WHOLE
from tests.support.protocol_page import vectors
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.core import codec
from txlayer.core.ledger.doubt import QuarantinedRecord, QuarantineFold
from txlayer.core.messages import (
    HalfHeader,
    HalfOptions,
    Headers,
    OpMessage,
    Origin,
    ParkReason,
    Resolution,
    Undecodable,
)

TXN = "order-4711/5f3a90c2"
NAME = b"origin/txlayer.half/3/1027"
PLACE = Origin("txlayer.doubt", 3, 40)
HALF = codec.encode_half_header(HalfHeader(TXN, "orders", "shop", 0, 1, 900, HalfOptions()))
LINE = codec.encode_op(OpMessage(Resolution.COMMIT, TXN, "orders", 17, 900))
WHY = codec.encode_why(Undecodable("belongs into partition 0", ParkReason.MISPLACED))


def doubt_entry(key: bytes | None, value: bytes | None, headers: Headers | None = None) -> MemoryRecord:
    """A record of the doubt topic."""
    return MemoryRecord(*PLACE[:2], key, value, headers, (2, 5_000), log_offset=PLACE.offset)


def kept(
    *, key: bytes | None = None, value: bytes | None = None, headers: Headers = (), name: bytes = NAME
) -> MemoryRecord:
    """A record as a coordinator quarantines it."""
    moved_value, moved_headers = codec.encode_content(key=key, value=value, headers=headers)
    return doubt_entry(name, moved_value, [*moved_headers, (codec.WHY_HEADER, WHY)])


def folded(*entries: MemoryRecord) -> list[QuarantinedRecord]:
    """What is quarantined after these."""
    fold = QuarantineFold()
    for entry in entries:
        fold.fold(entry)
    return fold.quarantined()


@given(TOPIC, st.integers(0, 2**31 - 1), WHOLE, st.none() | WHOLE)
def test_the_name_of_a_record_kept_aside_tells_where_it_stood(
    topic: str, partition: int, offset: int, line: int | None
) -> None:
    name = codec.quarantine_key(Origin(topic, partition, offset), line)

    assert (Origin(topic, partition, offset), line) == codec.parse_quarantine_key(name)


def test_a_doubt_key_of_the_protocol_page_is_of_a_transaction_or_of_a_record_kept_aside() -> None:
    for vector in vectors("doubt-key"):
        is_aside = codec.parse_quarantine_key(vector["bytes"].encode()) is not None

        assert (vector["key"] is None) == is_aside


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        TXN.encode(),
        b"origin/5f3a90c2/0",
        b"origin/t/0/x",
        b"origin/t/0/1:",
        b"origin//0/1",
        b"origin/t/-1/1",
        b"origin/t/0/1/2",
        b"other/t/0/1",
        b"origin/\xff/0/1",
    ],
)
def test_any_other_key_names_no_record_kept_aside(raw: bytes | None) -> None:
    assert codec.parse_quarantine_key(raw) is None
    assert [] == folded(doubt_entry(raw, b"value"))


def test_a_half_record_kept_aside_tells_its_origin_its_reason_and_its_sizes() -> None:
    entry = kept(key=b"key", value=b"secret", headers=[("tags", b"A"), (codec.HALF_HEADER, HALF)])

    (aside,) = folded(entry)

    assert (
        QuarantinedRecord(
            Origin("txlayer.half", 3, 1027),
            None,
            "misplaced",
            "belongs into partition 0",
            key=TXN,
            producer_group="orders",
            kept_ms=5_000,
            doubt_origin=PLACE,
            key_bytes=3,
            value_bytes=6,
            header_names=("tags", "txl"),
        )
        == aside
    )


def test_a_null_key_and_value_and_a_header_of_our_name_are_told_as_they_were() -> None:
    (aside,) = folded(kept(headers=[(codec.WHY_HEADER, b"too-old a stranger's word")]))

    assert (None, None, "") == (aside.key_bytes, aside.value_bytes, aside.key)
    assert ("misplaced", (codec.WHY_HEADER,)) == (aside.reason, aside.header_names)


def test_a_line_kept_aside_names_its_transaction_where_it_can_be_read() -> None:
    why = [(codec.WHY_HEADER, WHY)]

    readable, garbage = folded(
        doubt_entry(b"origin/txlayer.op/3/9:0", LINE.encode(), why),
        doubt_entry(b"origin/txlayer.op/3/9:1", b"1|C|nonsense|0\xff", why),
    )

    assert (0, TXN) == (readable.line, readable.key)
    assert (1, "") == (garbage.line, garbage.key)


def test_a_record_without_a_reason_is_shown_without_one() -> None:
    for headers in (None, [("other", b"1")]):
        (aside,) = folded(doubt_entry(NAME, b"value", headers))

        assert ("", "") == (aside.reason, aside.why)


def test_the_newest_word_counts_and_a_null_value_ends_it() -> None:
    other = b"origin/txlayer.half/3/1028"
    first, again = kept(value=b"1"), kept(value=b"again")

    assert [5] == [aside.value_bytes for aside in folded(first, again)]
    assert [1028] == [aside.origin.offset for aside in folded(first, kept(name=other), doubt_entry(NAME, None))]


@given(st.none() | st.binary(), st.lists(st.tuples(st.text(), st.none() | st.binary())))
def test_no_bytes_under_such_a_name_raise(value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    for name in (NAME, b"origin/txlayer.op/3/9:0"):
        assert (value is not None) == bool(folded(doubt_entry(name, value, headers)))
