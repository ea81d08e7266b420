"""What a coordinator does with what may stand in half and op, in whatever order and however wrong; one for all tests."""

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.support.arena import Arena
from tests.support.raw import Prepared, RawWriter
from tests.support.waiting import wait_until
from txlayer.core import codec
from txlayer.core.messages import HalfHeader, HalfOptions, Resolution
from txlayer.testing.stage import RunningCoordinator

pytestmark = pytest.mark.kafka

COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN
DAY_MS = 86_400_000
SESSION = timedelta(seconds=10)
"""Longer than a busy machine stands still: who loses its session rebuilds, and here nobody may."""


@pytest.fixture(scope="module")
def coordinator(arena: Arena) -> Iterator[RunningCoordinator]:
    """It runs while all tests of the file do: whatever one of them wrote must not stop it."""
    with arena.coordinator(misplaced_after=timedelta(seconds=1), session_timeout=SESSION) as running:
        yield running
        assert 0 == running.coordinator.counts.rebuild_count


def one(arena: Arena, raw: RawWriter, **more: object) -> Prepared:
    """A transaction of one message."""
    return raw.prepare((arena.targets[0], b"key", b"value"), **more)  # type: ignore[arg-type]  # passed through


def settle(arena: Arena, raw: RawWriter, partition: int) -> None:
    """Everything written so far to this partition was applied: a later transaction has come through."""
    last = one(arena, raw, key=raw.key_in(partition))
    raw.commit(last)
    arena.wait_until_visible(last.txn_id)


# --- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.fault("data: null values, control characters, or impossible topic names")
def test_a_commit_forwards_key_value_and_headers_as_they_are(arena: Arena, raw: RawWriter) -> None:
    mine = one(arena, raw, headers=[("trace", b"1"), ("trace", b"2"), ("empty", None)])
    null = raw.prepare((arena.targets[0], None, None))

    raw.commit(mine)
    raw.commit(null)

    (record,) = arena.wait_until_visible(mine.txn_id)
    assert (b"key", b"value") == (record.key, record.value)
    assert [("trace", b"1"), ("trace", b"2"), ("empty", None)] == record.headers[:3]
    assert [codec.ID_HEADER, codec.ORIGIN_HEADER] == [name for name, _ in record.headers[3:]]
    (record,) = arena.wait_until_visible(null.txn_id)
    assert (None, None) == (record.key, record.value)


@pytest.mark.promise("P5")
def test_a_transaction_of_ten_thousand_messages_is_forwarded_whole(arena: Arena, raw: RawWriter) -> None:
    messages = [(arena.targets[n % 2], b"key", str(n).encode()) for n in range(10_000)]
    mine = raw.prepare(*messages)

    raw.commit(mine)

    visible = arena.wait_until_visible(mine.txn_id, count=10_000)
    assert [str(n).encode() for n in range(10_000)] == sorted((record.value or b"" for record in visible), key=int)


# --- incomplete and misplaced -----------------------------------------------------------------------------------------


@pytest.mark.fault("data: an op without its half record, a half record without op, or an op that is read first")
def test_an_op_beyond_the_end_of_half_is_given_up_and_stops_nobody(arena: Arena, raw: RawWriter) -> None:
    key = raw.key()
    partition = raw.home_of(key)
    lost = Prepared(key, partition, (raw.half_end(partition) + 1_000,))

    offset = raw.commit(lost)
    settle(arena, raw, partition)

    shelf = arena.doubt()
    aside = f"origin/{arena.topics.op}/{partition}/{offset}:0"
    assert "misplaced" == shelf.why(aside).partition(" ")[0]
    assert ("parked", "misplaced") == (shelf.summaries[key].state, shelf.summaries[key].reason)
    # Its half record may still come, and then a resolution that names it.
    late = one(arena, raw, key=key)
    raw.commit(late)
    assert 1 == len(arena.wait_until_visible(late.txn_id))


def test_a_half_record_in_the_wrong_partition_is_kept_aside(arena: Arena, raw: RawWriter) -> None:
    key = raw.key_in(0)
    head = HalfHeader(key, "tests", arena.targets[0], 0, 1, 0, HalfOptions())
    packed = codec.encode_half_header(head)

    offset = raw.half(1, b"lost", headers=[(codec.HALF_HEADER, packed)], key=b"key")
    settle(arena, raw, 1)

    aside = f"origin/{arena.topics.half}/1/{offset}"
    wait_until(lambda: arena.doubt().why(aside), within=30, what="the record is quarantined")
    shelf = arena.doubt()
    assert "misplaced belongs into partition 0" == shelf.why(aside)
    kept = shelf.quarantined[aside]
    assert (b"key", b"lost") == codec.decode_content(value=kept.value, headers=kept.headers)[:2]


NO_HALF_RECORDS: list[list[tuple[str, bytes | None]]] = [
    [],
    [("txl", None)],
    [("txl", b"")],
    [("txl", b"\xff\xfe")],
    [("txl", b"9|later|version|of|0/1|0|")],
    [("txl", b"1|id/00000000|g|t|x/y|0|")],
    [("other", b"header")],
]


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.threat("write `<ns>.op`")
@pytest.mark.fault("data: garbage: no header, an unknown version, not UTF-8, no id, a thousand headers")
@pytest.mark.promise("P11")
def test_garbage_on_half_and_op_is_kept_aside_with_its_bytes(arena: Arena, raw: RawWriter) -> None:
    half, op = arena.topics.half, arena.topics.op
    offsets = [raw.half(2, b"\x00garbage", headers=headers) for headers in NO_HALF_RECORDS]
    on_half = [f"origin/{half}/2/{offset}" for offset in offsets]
    on_op = [f"origin/{op}/2/{raw.op(2, value)}" for value in (None, b"", b"\xff\x00\xfe")]

    settle(arena, raw, 2)

    wait_until(
        lambda: {*on_half, *on_op} <= arena.doubt().quarantined.keys(), within=20, what="the record is quarantined"
    )
    shelf = arena.doubt()
    assert {"undecodable"} == {shelf.why(name).partition(" ")[0] for name in (*on_half, *on_op)}
    contents = [shelf.quarantined[name] for name in on_half]
    assert {b"\x00garbage"} == {codec.decode_content(value=c.value, headers=c.headers)[1] for c in contents}


@pytest.mark.fault("data: garbage: no header, an unknown version, not UTF-8, no id, a thousand headers")
@pytest.mark.promise("P11")
def test_a_wrong_line_among_right_ones_is_kept_aside_alone(arena: Arena, raw: RawWriter) -> None:
    first = one(arena, raw)
    second = one(arena, raw, key=raw.key_in(first.partition))
    lines = [first.line(COMMIT), "1|C|nonsense|0", second.line(COMMIT)]

    offset = raw.op(first.partition, codec.encode_ops(lines))

    arena.wait_until_visible(first.txn_id)
    arena.wait_until_visible(second.txn_id)
    shelf = arena.doubt()
    assert shelf.why(f"origin/{arena.topics.op}/{first.partition}/{offset}:1")
    assert b"1|C|nonsense|0" == shelf.quarantined[f"origin/{arena.topics.op}/{first.partition}/{offset}:1"].value


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("producer: its clock is a day off")
def test_a_producer_whose_clock_is_wrong_by_a_day_changes_nothing(arena: Arena, raw: RawWriter) -> None:
    now_ms = int(time.time() * 1000)
    by_time = {born_ms: one(arena, raw, born_ms=born_ms) for born_ms in (now_ms - DAY_MS, now_ms + DAY_MS)}
    for mine in by_time.values():
        settle(arena, raw, mine.partition)
    shelf = arena.doubt()

    for born_ms, mine in by_time.items():
        raw.commit(mine)

        (record,) = arena.wait_until_visible(mine.txn_id)
        assert mine.key not in shelf.summaries, "its age counts by the broker's clock alone"
        origin = codec.decode_origin(dict(record.headers)[codec.ORIGIN_HEADER] or b"")
        assert isinstance(origin, tuple)
        assert born_ms == origin[4]


@pytest.mark.fault("producer: its clock is a day off")
def test_a_message_from_the_future_is_forwarded_with_the_time_of_now(arena: Arena, raw: RawWriter) -> None:
    in_a_day = int(time.time() * 1000) + DAY_MS
    mine = one(arena, raw, options=HalfOptions(timestamp_ms=in_a_day))

    raw.commit(mine)

    (record,) = arena.wait_until_visible(mine.txn_id)
    assert record.timestamp_ms < in_a_day
