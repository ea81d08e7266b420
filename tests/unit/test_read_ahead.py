"""A coordinator has the contents of scheduled messages before their time, whatever the order of their commits, and within bounds."""

from random import Random
from typing import Any

import pytest

from tests.support.core_records import GROUP, txn_key
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters.readers import RangeReader
from txlayer.coordinator.contents import Contents
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.read_ahead import AHEAD_MS, AHEAD_SHARE, LARGE_SHARE, RELEASING_MS, ReadAhead
from txlayer.core import codec
from txlayer.core.messages import HalfOptions, OpMessage, Resolution, Source, txn_id_of
from txlayer.errors import BrokerUnavailableError

A, B = txn_key("a"), txn_key("b")
COUNT = 60
LATE_MS = 1_000


class WatchedReadAhead(ReadAhead):
    """Notes how much it had at most."""

    most_bytes = most_count = 0

    def read_on(self, ledgers: Any) -> None:
        super().read_on(ledgers)
        WatchedReadAhead.most_bytes = max(WatchedReadAhead.most_bytes, self.byte_count)
        count = sum(len(ahead.kept) for ahead in self.partitions.values())
        WatchedReadAhead.most_count = max(WatchedReadAhead.most_count, count)


class WatchedCoordinator(Coordinator):
    """A coordinator of it."""

    make_read_ahead = WatchedReadAhead


@pytest.fixture(autouse=True)
def watched() -> None:
    WatchedReadAhead.most_bytes = WatchedReadAhead.most_count = 0


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The transactions whose contents batches had to read themselves."""
    keys: list[str] = []
    fetch = Contents._fetch

    def noted(self: Contents, batches: Any, ledgers: Any, wanted: Any, *rest: Any) -> Any:
        keys.extend(txn.key for _, txn, _ in wanted)
        return fetch(self, batches, ledgers, wanted, *rest)

    monkeypatch.setattr(Contents, "_fetch", noted)
    return keys


def schedule(still: StillCoordinator, key: str, *, after_ms: int, value: bytes = b"v") -> tuple[int, int]:
    """Commit a message that is due so much later; the offset of its half record, and its time."""
    at_ms = still.world.now_ms() + after_ms
    offset = still.half(key, options=HalfOptions(deliver_at_ms=at_ms), value=value)
    still.commit(key, offset)
    return offset, at_ms


def schedule_in_disorder(
    still: StillCoordinator, *, from_ms: int, gap_ms: int = 100, value: bytes = b"v"
) -> dict[str, int]:
    """Commit messages in another order than they are due; the time of each."""
    after_ms = [from_ms + number * gap_ms for number in range(COUNT)]
    Random(1).shuffle(after_ms)
    keys = [txn_key(f"t{number}") for number in range(COUNT)]
    return {
        txn_id_of(key): schedule(still, key, after_ms=ms, value=value)[1]
        for key, ms in zip(keys, after_ms, strict=True)
    }


def latest_ms(still: StillCoordinator, times: dict[str, int]) -> int:
    """How late the latest one became visible."""
    assert sorted(times) == sorted(still.visible())
    seen = zip(still.visible(), still.kafka.records("orders"), strict=True)
    late = [record.timestamp()[1] - times[txn_id] for txn_id, record in seen]
    assert min(late) >= 0
    return max(late)


@pytest.mark.parametrize("is_new_process", [False, True])
def test_no_batch_reads_what_is_due_although_it_was_committed_in_another_order(
    fetched: list[str], *, is_new_process: bool
) -> None:
    still = StillCoordinator()
    times = schedule_in_disorder(still, from_ms=10_000)
    if is_new_process:
        still.work(seconds=2)
    still.work(seconds=25)

    assert latest_ms(still, times) <= LATE_MS
    assert [] == fetched


def test_what_is_due_much_later_is_read_when_its_time_comes_near(fetched: list[str]) -> None:
    still = StillCoordinator(make=WatchedCoordinator)
    times = schedule_in_disorder(still, from_ms=2 * AHEAD_MS)
    still.work(seconds=AHEAD_MS / 2_000)
    assert 0 == WatchedReadAhead.most_count
    still.work(seconds=2 * AHEAD_MS / 1_000)

    assert latest_ms(still, times) <= LATE_MS
    assert [] == fetched


@pytest.mark.promise("P11")
def test_what_is_read_ahead_is_bounded_in_bytes_and_the_next_ones_come_first(fetched: list[str]) -> None:
    content_bytes_max, value = 200_000, b"v" * 1_000
    still = StillCoordinator(make=WatchedCoordinator, content_bytes_max=content_bytes_max)
    times = schedule_in_disorder(still, from_ms=20_000, gap_ms=1_000, value=value)
    still.work(seconds=2)
    still.work(seconds=100)

    assert latest_ms(still, times) <= LATE_MS
    assert 0 < WatchedReadAhead.most_bytes <= content_bytes_max // AHEAD_SHARE < COUNT * len(value)
    assert [] == fetched


@pytest.mark.promise("P11")
def test_what_is_read_ahead_is_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.coordinator.read_ahead.AHEAD_COUNT_MAX", 20)
    still = StillCoordinator(make=WatchedCoordinator)
    times = schedule_in_disorder(still, from_ms=20_000)
    still.work(seconds=2)
    still.work(seconds=40)

    assert latest_ms(still, times) <= LATE_MS
    assert 0 < WatchedReadAhead.most_count <= 20


@pytest.mark.promise("P11")
def test_a_large_transaction_takes_the_room_of_no_others(fetched: list[str]) -> None:
    content_bytes_max = 1_000_000
    large = content_bytes_max // AHEAD_SHARE // LARGE_SHARE
    still = StillCoordinator(content_bytes_max=content_bytes_max)
    large_keys = [txn_key(f"large{number}") for number in range(10)]
    for key in large_keys:
        schedule(still, key, after_ms=9_000, value=b"x" * large)
    schedule_in_disorder(still, from_ms=10_000)
    still.work(seconds=2)
    still.work(seconds=25)

    assert COUNT + len(large_keys) == len(still.visible())
    assert sorted(large_keys) == sorted(fetched)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_what_is_cancelled_or_moved_far_away_leaves_memory(*, is_cancelled: bool) -> None:
    still = StillCoordinator()
    offset, _ = schedule(still, A, after_ms=60_000)
    line = OpMessage(Resolution.ROLLBACK, A, GROUP, offset, 0, Source.PRODUCER, is_abandon=True)
    if not is_cancelled:
        far_ms = still.world.now_ms() + 10 * AHEAD_MS
        line = OpMessage(Resolution.UNKNOWN, A, GROUP, offset, 0, Source.PRODUCER, time_ms=far_ms)
    was_kept, coordinator = False, still.coordinator
    until_s = still.world.passed_s + 60 + AHEAD_MS / 500 + RELEASING_MS / 1_000

    def should_stop() -> bool:
        nonlocal was_kept
        if not was_kept and coordinator._ahead.byte_count:
            was_kept = True
            still.op(codec.encode_op(line))
        return still.world.passed_s >= until_s or (was_kept and not coordinator._ahead.byte_count)

    coordinator.run(should_stop=should_stop)

    assert was_kept
    assert still.world.passed_s < until_s


def test_what_is_given_an_earlier_time_is_read_for_that(fetched: list[str]) -> None:
    still = StillCoordinator()
    offsets = {key: schedule(still, key, after_ms=10 * AHEAD_MS)[0] for key in (A, B)}
    still.work(seconds=5)
    soon_ms = {A: still.world.now_ms() + 21_000, B: still.world.now_ms() + 20_000}
    for key, offset in offsets.items():
        line = OpMessage(Resolution.UNKNOWN, key, GROUP, offset, 0, Source.PRODUCER, time_ms=soon_ms[key])
        still.op(codec.encode_op(line))
    still.work(seconds=30)

    assert latest_ms(still, {txn_id_of(key): at_ms for key, at_ms in soon_ms.items()}) <= LATE_MS
    assert [] == fetched


def test_what_is_due_in_the_order_of_the_log_is_left_to_the_batches(fetched: list[str]) -> None:
    still = StillCoordinator(make=WatchedCoordinator)
    times = {}
    for number in range(COUNT):
        key = txn_key(f"t{number}")
        times[txn_id_of(key)] = schedule(still, key, after_ms=AHEAD_MS + 1_000 + 100 * number)[1]
    still.work(seconds=AHEAD_MS / 1_000 + 10)

    assert latest_ms(still, times) <= LATE_MS
    assert 0 == WatchedReadAhead.most_count
    assert sorted(times) == sorted(map(txn_id_of, fetched))


@pytest.mark.promise("P11")
@pytest.mark.parametrize("every", [20, 8])
def test_what_is_due_in_the_order_of_the_log_among_many_others_is_read_ahead(
    monkeypatch: pytest.MonkeyPatch, fetched: list[str], every: int
) -> None:
    """Batches would read all that is between: with times of whole minutes all that waits, for each minute."""
    monkeypatch.setattr("txlayer.coordinator.read_ahead.RELEASE_OFFSETS_MAX", 500)
    still = StillCoordinator()
    times: dict[str, int] = {}
    for number in range(every * COUNT):
        key, is_due = txn_key(f"t{number}"), number % every == 0
        _, at_ms = schedule(still, key, after_ms=AHEAD_MS + 10_000 if is_due else 100 * AHEAD_MS)
        times |= {txn_id_of(key): at_ms} if is_due else {}
    still.work(seconds=AHEAD_MS / 1_000 + 20)

    assert latest_ms(still, times) <= LATE_MS
    assert [] == fetched


@pytest.mark.promise("P11")
def test_what_is_overdue_after_a_restart_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is released before a sweep could read it ahead."""
    offsets_max, spans, fetch = 500, list[int](), Contents._fetch
    monkeypatch.setattr("txlayer.coordinator.loop.RELEASE_OFFSETS_MAX", offsets_max)

    def noted(self: Contents, batches: Any, ledgers: Any, wanted: Any, *rest: Any) -> Any:
        places = [txn.ensure_extras().doubt_offset for _, txn, _ in wanted]
        spans.append(max(places) - min(places))
        return fetch(self, batches, ledgers, wanted, *rest)

    still = StillCoordinator()
    for number in range(20 * COUNT):
        after_ms = AHEAD_MS + 10_000 if number % 20 == 0 else 100 * AHEAD_MS
        schedule(still, txn_key(f"t{number}"), after_ms=after_ms)
    still.work(seconds=5)
    still.world.advance(ms=AHEAD_MS + 20_000)
    monkeypatch.setattr(Contents, "_fetch", noted)
    still.work(seconds=20)

    assert COUNT == len(still.visible())
    assert 0 < max(spans) < offsets_max + 100


@pytest.mark.promise("P7")
def test_a_broker_that_does_not_answer_ends_the_sweep_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, fetched: list[str]
) -> None:
    still, read = StillCoordinator(), RangeReader.read
    times = schedule_in_disorder(still, from_ms=10_000)
    still.work(seconds=2)
    failure_count = 0

    def refuse(self: RangeReader, ranges: Any) -> Any:
        nonlocal failure_count
        if self is not still.coordinator._ahead._reader:
            return read(self, ranges)
        failure_count += 1
        raise BrokerUnavailableError("no answer", waited_ms=1_000)

    monkeypatch.setattr(RangeReader, "read", refuse)
    coordinator = still.coordinator
    still.work(seconds=25)

    assert failure_count > 0
    assert 0 == coordinator.counts.rebuild_count
    assert latest_ms(still, times) <= LATE_MS
    assert sorted(times) == sorted(map(txn_id_of, fetched))


@pytest.mark.promise("P1")
def test_what_doubt_did_not_take_whole_is_forwarded_whole(fetched: list[str]) -> None:
    still, size = StillCoordinator(), 20_000
    # What half took because it was compressed doubt may refuse uncompressed.
    still.kafka.do(lambda: still.kafka.cluster.alter_topic(still.topics.doubt, {"max.message.bytes": "10000"}))
    _, large_ms = schedule(still, A, after_ms=21_000, value=b"x" * size)
    _, small_ms = schedule(still, B, after_ms=20_000)
    still.work(seconds=10)
    assert [] == still.visible()
    still.work(seconds=20)

    assert latest_ms(still, {txn_id_of(A): large_ms, txn_id_of(B): small_ms}) <= LATE_MS
    assert [1, size] == sorted(len(record.value() or b"") for record in still.kafka.records("orders"))
    assert [A] == fetched
