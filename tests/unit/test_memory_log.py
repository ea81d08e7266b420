"""A partition in memory: batches, repeats, cleaning."""

from typing import Any

import pytest

from txlayer.adapters.errors import Code
from txlayer.adapters.memory.log import CREATE_TIME, MemoryRecord, Partition, ProducerMark, TopicSettings
from txlayer.adapters.memory.world import RefusedError

NOW_MS = 1_000_000


def partition(**settings: str) -> Partition:
    told = {name.replace("_", "."): value for name, value in settings.items()}
    return Partition(TopicSettings.of(told))


def record(value: bytes | None = b"v", key: bytes | None = b"k", at_ms: int = 0) -> MemoryRecord:
    return MemoryRecord("orders", 0, key, value, None, (CREATE_TIME, at_ms))


def mark(sequence: int, *, epoch: int = 0, is_transactional: bool = False) -> ProducerMark:
    return ProducerMark(1, epoch, sequence, is_transactional)


def values(log: Partition, *, is_committed: bool = True) -> list[tuple[int, bytes | None]]:
    return [(r.offset(), r.value()) for r in log.visible(is_committed=is_committed)]


def refused(call: Any) -> Code:
    with pytest.raises(RefusedError) as raised:
        call()
    return raised.value.code


def test_the_same_batch_again_changes_nothing_and_has_the_same_offset() -> None:
    log = partition()
    batch = [record(b"0"), record(b"1")]

    assert 0 == log.append(batch, now_ms=NOW_MS, mark=mark(0))
    assert 0 == log.append(batch, now_ms=NOW_MS, mark=mark(0))

    assert [(0, b"0"), (1, b"1")] == values(log)
    assert 2 == log.append([record(b"2")], now_ms=NOW_MS, mark=mark(2))


@pytest.mark.parametrize(
    ("sequence", "code"), [(1, Code.DUPLICATE_SEQUENCE_NUMBER), (9, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)]
)
def test_a_batch_out_of_its_order_is_refused(sequence: int, code: Code) -> None:
    log = partition()
    log.append([record()], now_ms=NOW_MS, mark=mark(0))
    log.append([record()], now_ms=NOW_MS, mark=mark(1))
    log.append([record()], now_ms=NOW_MS, mark=mark(2))

    assert code is refused(lambda: log.append([record()], now_ms=NOW_MS, mark=mark(sequence)))


def test_a_batch_of_an_older_epoch_is_refused_and_a_newer_one_begins_anew() -> None:
    log = partition()
    log.append([record()], now_ms=NOW_MS, mark=mark(0))
    log.append([record(b"newer")], now_ms=NOW_MS, mark=mark(0, epoch=1))

    late = lambda: log.append([record()], now_ms=NOW_MS, mark=mark(1))  # noqa: E731 - said once
    assert Code.INVALID_PRODUCER_EPOCH is refused(late)
    assert [(0, b"v"), (1, b"newer")] == values(log)


def test_a_record_that_stands_in_the_log_already_is_stored_again_as_another_one() -> None:
    log, same = partition(), record()

    log.append([same], now_ms=NOW_MS)
    log.append([same], now_ms=NOW_MS)

    assert [0, 1] == [r.offset() for r in log.visible(is_committed=True)]


def test_a_refused_batch_leaves_nothing_behind() -> None:
    log = partition(max_message_bytes="200")

    whole = lambda: log.append([record(), record(b"x" * 200)], now_ms=NOW_MS)  # noqa: E731 - said once
    assert Code.MSG_SIZE_TOO_LARGE is refused(whole)

    assert ([], 0) == (values(log), log.next_offset)


def test_a_read_goes_on_behind_what_it_passed_over() -> None:
    log = partition()
    for n in range(5):
        log.append([record(b"%d" % n)], now_ms=NOW_MS, mark=mark(n, is_transactional=True))
    log.end_transaction(1, 0, is_commit=False)
    log.append([record(b"6")], now_ms=NOW_MS)

    first, position = log.read(0, count_max=3, is_committed=True)
    assert ([], 3) == (first, position)
    rest, position = log.read(position, count_max=3, is_committed=True)

    assert ([b"6"], 7) == ([r.value() for r in rest], position)


@pytest.mark.parametrize("position", [-1, 1, 4])
def test_a_position_outside_of_the_log_is_refused(position: int) -> None:
    log = partition()
    log.append([record(), record(), record()], now_ms=NOW_MS)
    log.delete_before(2)

    read = lambda: log.read(position, count_max=1, is_committed=True)  # noqa: E731 - said once
    assert Code.OFFSET_OUT_OF_RANGE is refused(read)


def test_retention_removes_what_is_older_and_moves_the_start() -> None:
    log = partition(retention_ms="1000")
    log.append([record(b"old", at_ms=NOW_MS - 5_000)], now_ms=NOW_MS)
    log.append([record(b"young", at_ms=NOW_MS - 500)], now_ms=NOW_MS)

    log.clean(NOW_MS)

    assert ([(1, b"young")], 1) == (values(log), log.first_offset)
    log.clean(NOW_MS + 10_000)
    assert ([], 2, 2) == (values(log), log.first_offset, log.next_offset)


def test_retention_that_removes_no_record_leaves_the_start_at_a_marker() -> None:
    log = partition(retention_ms="1000")
    log.append([record()], now_ms=NOW_MS, mark=mark(0, is_transactional=True))
    log.end_transaction(1, 0, is_commit=True)
    log.append([record(b"young")], now_ms=NOW_MS)
    log.delete_before(1)

    log.clean(NOW_MS)

    assert 1 == log.first_offset


def test_retention_stops_before_an_open_transaction() -> None:
    log = partition(retention_ms="1000")
    log.append([record()], now_ms=NOW_MS, mark=mark(0, is_transactional=True))
    log.append([record()], now_ms=NOW_MS)

    log.clean(NOW_MS + 10_000)

    assert 0 == log.first_offset
    log.end_transaction(1, 0, is_commit=True)
    log.clean(NOW_MS + 10_000)
    assert 2 == log.first_offset


def test_compaction_keeps_the_newest_of_each_key_and_never_the_aborted() -> None:
    log = partition(cleanup_policy="compact")
    for n, key in enumerate((b"a", b"b", b"a", b"c")):
        log.append([record(b"%d" % n, key)], now_ms=NOW_MS)
    log.append([record(b"aborted", b"b")], now_ms=NOW_MS, mark=mark(0, is_transactional=True))
    log.end_transaction(1, 0, is_commit=False)
    log.append([record(b"newest", b"d")], now_ms=NOW_MS)

    log.clean(NOW_MS)

    assert [(1, b"1"), (2, b"2"), (3, b"3"), (6, b"newest")] == values(log, is_committed=False)


def test_compaction_leaves_what_is_young_and_what_is_not_stable() -> None:
    log = partition(cleanup_policy="compact", min_compaction_lag_ms="1000")
    log.append([record(b"0"), record(b"1")], now_ms=NOW_MS)
    log.clean(NOW_MS + 500)
    assert [(0, b"0"), (1, b"1")] == values(log)

    log.append([record(b"2")], now_ms=NOW_MS, mark=mark(0, is_transactional=True))
    log.append([record(b"3")], now_ms=NOW_MS)
    log.clean(NOW_MS + 5_000)

    assert [(1, b"1"), (2, b"2"), (3, b"3")] == values(log, is_committed=False)


def test_a_tombstone_goes_after_its_time() -> None:
    log = partition(cleanup_policy="compact", delete_retention_ms="1000")
    log.append([record(b"0"), record(None), record(b"other", b"x")], now_ms=NOW_MS)

    log.clean(NOW_MS + 500)
    assert [(1, None), (2, b"other")] == values(log)
    log.clean(NOW_MS + 5_000)

    assert [(2, b"other")] == values(log)
