"""Records of the next release are read, and what only a later one can read is kept."""

from typing import Any

import pytest

from tests.support.next_release import next_form
from txlayer.adapters.ports import StoredOffset
from txlayer.coordinator.recovery import decode_stored
from txlayer.core import codec, dead_letters, leases, progress
from txlayer.core.ledger.batch import Positions
from txlayer.core.ledger.doubt import DoubtFold, DoubtIndex
from txlayer.core.ledger.ledger import Ledger, LedgerSettings
from txlayer.core.messages import (
    CheckKind,
    CheckRecord,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OpMessage,
    OrderMode,
    Resolution,
    Undecodable,
)

KEY = "a/00000001"
HALF = codec.encode_half_header(HalfHeader(KEY, "g", "orders", 0, 1, 5, HalfOptions())).decode()
OP = codec.encode_op(OpMessage(Resolution.COMMIT, KEY, "g", 3, 5, reason="zoe: x"))
CHECK = codec.encode_check(CheckRecord(CheckKind.QUESTION, KEY, "g", 0, 3, 5, 1, "orders")).decode()
SUMMARY = DoubtSummary(
    KEY, "open", "", "g", 3, 3, 1, 1, 10, 5, None, OrderMode.COMMIT, None, None, 11, ("orders",), 0, 0, 0, 0
)
DOUBT = codec.encode_summary(SUMMARY).decode()
DECODERS: dict[str, tuple[str, Any]] = {
    "half": (HALF, lambda text: codec.decode_half_header(text.encode())),
    "op": (OP, codec.decode_op),
    "check": (CHECK, lambda text: codec.decode_check(text.encode())),
    "doubt": (DOUBT, lambda text: codec.decode_summary(KEY, text.encode())),
    "lock": ("1|C|5|h|||", lambda text: leases.decode_lock(b"g/t/0", text.encode())),
    "replay": ("1|R|r|3|x", None),
    "progress": ("1|||||", lambda text: progress.decode(0, text)),
    "dead letter": ("1|rejected|t|0|1|2|3|4|5|E|m|g", lambda text: dead_letters.decode_dead_letter(text.encode())),
}


@pytest.mark.parametrize("name", sorted(DECODERS.keys() - {"replay"}))
def test_what_the_next_release_writes_says_the_same_here(name: str) -> None:
    text, decode = DECODERS[name]
    known = decode(text)

    assert not isinstance(known, Undecodable)
    assert known == decode(next_form(text))


def test_a_replay_record_of_the_next_release_is_read() -> None:
    assert dead_letters.decode_replay(b"1|R|r|3|x") == dead_letters.decode_replay(b"2|R|r|3|x|more")


def test_offsets_that_the_next_release_stored_are_taken_over() -> None:
    half = StoredOffset(40, next_form("1|ns.w|33|8"))
    op = StoredOffset(31, next_form("1|ns.w|57|2|29:0|5"))

    found = decode_stored(half, op, partition=0)

    assert (Positions(40, 57, 31, 2, 29, 0, 5, 33), "ns.w", 8) == found


@pytest.mark.parametrize("name", sorted(DECODERS.keys() - {"progress", "replay"}))
def test_a_record_of_a_release_still_later_is_no_record_of_ours(name: str) -> None:
    text, decode = DECODERS[name]

    found = decode("3" + text[1:])

    assert isinstance(found, Undecodable)
    assert "unknown version '3'" in found.why


def test_the_next_release_may_not_leave_fields_out() -> None:
    assert isinstance(codec.decode_op("2|C|a/00000001|g|3"), Undecodable)


def test_a_summary_that_only_a_later_release_can_read_stays_where_it_will_be_read_again() -> None:
    fold = DoubtFold()
    fold.fold(7, codec.content_key(KEY, 0), b"value")
    fold.fold(8, KEY.encode(), b"3|what nobody knows")

    shelf = DoubtIndex(lambda _key: -1)
    shelf.next_offset = 100
    shelf.kept_readable_from = min(fold.unreadable.values())

    assert ({KEY: 7}, 7) == (fold.unreadable, shelf.low)


def test_a_ledger_stores_a_low_water_before_what_it_cannot_read() -> None:
    fold = DoubtFold()
    fold.fold(7, codec.content_key(KEY, 0), b"value")
    fold.fold(8, KEY.encode(), b"3|what nobody knows")
    ledger = Ledger(0, settings=LedgerSettings("h", "o", 1, 60_000, 60_000, 100), targets={})
    positions = Positions(0, 0, 0, 0, 0, 0, 7)

    ledger.start_replay(positions, fold, doubt_next=100)
    ledger.end_replay(positions)

    assert 7 == ledger.positions().doubt_low


@pytest.mark.parametrize(("value", "places"), [(None, []), (next_form(DOUBT).encode(), [7])], ids=["over", "read"])
def test_once_it_is_over_or_can_be_read_again_it_keeps_nothing_back(value: bytes | None, places: list[int]) -> None:
    """What can be read again stands where its content is."""
    fold = DoubtFold()
    fold.fold(7, codec.content_key(KEY, 0), b"value")
    fold.fold(8, KEY.encode(), b"3|what nobody knows")

    fold.fold(9, KEY.encode(), value)

    found = [txn.ensure_extras().doubt_offset for txn in fold.all_unsettled().values()]
    assert ({}, places) == (fold.unreadable, found)
