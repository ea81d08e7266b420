"""Which offsets are finished, what of it is stored, and what is known after a restart."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txlayer.core import progress as progress_module
from txlayer.core.progress import Progress, Snapshot, StoredProgress, attempt_records_max, decode, hash_of_key
from txlayer.errors import ConfigError, InvariantError


def restarted(snapshot: Snapshot, *, metadata_bytes_max: int = 4096) -> Progress:
    """A fresh one from what was stored."""
    found = decode(snapshot.offset, snapshot.metadata)
    assert isinstance(found, StoredProgress)
    return Progress(snapshot.offset, found, metadata_bytes_max=metadata_bytes_max)


def test_offsets_that_no_record_has_count_as_finished() -> None:
    progress = Progress(10)
    progress.read([12, 15])
    assert 12 == progress.lowest
    progress.finish([12])
    assert 15 == progress.lowest
    progress.finish([15])

    progress.reach(20)

    assert 20 == progress.snapshot().offset


def test_a_restart_within_what_was_finished_ends_behind_it() -> None:
    progress = Progress(0)
    progress.read(range(10))
    progress.finish(range(1, 10))
    after = restarted(progress.snapshot())

    after.read([0])
    after.finish([0])

    assert (10, "1|||||") == after.snapshot()[:2]
    assert [] == after.read([5, 9])
    assert 10 == after.position


def test_a_record_that_vanished_after_a_restart_is_a_gap() -> None:
    progress = Progress(0)
    progress.read(range(4))
    progress.failed(1, started_ms=0)
    progress.finish([3])
    after = restarted(progress.snapshot())

    assert [0, 2] == after.read([0, 2, 3])
    after.finish([0, 2])

    assert (4, "1|||||") == after.snapshot()[:2]


def test_the_attempts_of_what_has_ended_are_forgotten() -> None:
    progress = Progress(0)
    progress.read([0])
    progress.failed(0, started_ms=0)
    version = progress.snapshot().version
    progress.finish([0])

    assert [] == progress.stored(version)
    assert None is progress.attempts(0)
    assert "1|||||" == progress.snapshot().metadata


@pytest.mark.promise("P11")
def test_whatever_fails_and_is_parked_fits() -> None:
    room = attempt_records_max(metadata_bytes_max=4096, parked_keys_max=64)
    progress = Progress(0, parked_keys_max=64)
    offsets = [n * 2**21 for n in range(room)]
    progress.read(offsets)
    for n, offset in enumerate(offsets):
        progress.failed(offset, started_ms=n * 1_000_000)
    parked = {n.to_bytes(8, "big"): 2**41 + n for n in range(64)}

    snapshot = progress.snapshot(StoredProgress("w" * 249, is_paused=True, parked=parked))

    assert len(snapshot.metadata) < 4096 * 3 // 4 + 100
    assert list(offsets) == progress.stored(snapshot.version)


@pytest.mark.slow
@pytest.mark.promise("P11")
def test_the_partition_is_full_before_runs_have_no_room() -> None:
    progress = Progress(0)
    progress.read(range(200_000))
    state, finished, sizes = 1, [], []
    is_full = False
    while not is_full:
        for _ in range(50):
            state = state * 48_271 % 2_147_483_647  # a sequence without a pattern (Park and Miller)
            finished.append(1 + state % 150_000)
        fresh = set(finished[-50:]) - set(finished[:-50])
        progress.finish(sorted(fresh))
        snapshot = progress.snapshot()
        is_full = snapshot.is_full
        sizes.append(len(snapshot.metadata))

    assert 4096 * 7 // 8 < sizes[-1] <= 4096
    assert len(range(200_000)) - len(set(finished)) == len(restarted(snapshot).read(range(200_000)))


def test_ends_that_have_no_room_are_not_stored_and_the_partition_is_full() -> None:
    progress = Progress(0, metadata_bytes_max=600)
    progress.read(range(50_000))
    state, chosen = 1, set()
    for _ in range(3_000):
        state = state * 48_271 % 2_147_483_647
        chosen.add(1 + state % 49_000)
    progress.finish(sorted(chosen))

    snapshot = progress.snapshot()

    assert snapshot.is_full
    assert len(snapshot.metadata) <= 600
    again = set(restarted(snapshot, metadata_bytes_max=600).read(range(50_000)))
    assert set(range(50_000)) - chosen < again


def test_an_offset_ends_once() -> None:
    progress = Progress(0)
    progress.read([0])
    progress.finish([0])

    with pytest.raises(InvariantError):
        progress.finish([0])
    with pytest.raises(InvariantError):
        progress.failed(0, started_ms=0)


def test_a_limit_lower_than_what_is_stored_is_refused() -> None:
    progress = Progress(0)
    progress.read(range(200))
    for offset in range(200):
        progress.failed(offset, started_ms=offset * 1_000_000)
    stored = progress.snapshot()

    after = restarted(stored, metadata_bytes_max=400)
    with pytest.raises(ConfigError):
        after.snapshot()


def test_it_is_changed_by_what_a_snapshot_would_say() -> None:
    progress = Progress(0)
    progress.read([0, 1])
    told = [progress.is_changed]
    for change in (lambda: progress.failed(0, started_ms=0), lambda: progress.finish([0]), lambda: progress.reach(9)):
        change()
        told.append(progress.is_changed)
        progress.snapshot()
        told.append(progress.is_changed)

    assert [False, *[True, False] * 3] == told


# --- a naive model ----------------------------------------------------------------------------------------------------


@dataclass
class NaiveProgress:
    """The same with sets, and nothing left out."""

    log: list[int]  # offsets that a record has
    read: int = 0  # how many of them were read since the last restart
    ended: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)

    def unfinished(self) -> list[int]:
        """Read and not ended."""
        return [offset for offset in self.log[: self.read] if offset not in self.ended]


STEP = st.tuples(st.sampled_from(["read", "finish", "fail", "restart", "store"]), st.integers(0, 40))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=120), st.lists(STEP, max_size=60), st.booleans())
def test_it_is_a_naive_model(gaps: list[int], steps: list[tuple[str, int]], has_room: bool) -> None:
    log = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    naive = NaiveProgress(log)
    limit = 4096 if has_room else 420
    progress = Progress(0, metadata_bytes_max=limit)
    stored = progress.snapshot()
    kept, counted = set(naive.ended), dict(naive.counts)
    for step, number in steps:
        if step == "read":
            batch = log[naive.read : naive.read + number]
            assert [o for o in batch if o not in naive.ended] == list(progress.read(batch))
            naive.read += len(batch)
        elif step == "finish":
            chosen = naive.unfinished()[number % 7 :: 1 + number % 3]
            progress.finish(chosen)
            naive.ended.update(chosen)
        elif step == "fail" and naive.unfinished():
            offset = naive.unfinished()[number % len(naive.unfinished())]
            naive.counts[offset] = naive.counts.get(offset, 0) + 1
            assert naive.counts[offset] == progress.failed(offset, started_ms=0).ended_count
        elif step == "store":
            stored = progress.snapshot()
            again = set(restarted(stored, metadata_bytes_max=limit).read(log))
            kept = set(log) - again
            assert kept <= naive.ended
            assert stored.is_full or kept == naive.ended
            counted.update({o: naive.counts[o] for o in progress.stored(stored.version)})
        elif step == "restart":
            progress = restarted(stored, metadata_bytes_max=limit)
            naive.read = sum(offset < stored.offset for offset in log)
            naive.ended = set(kept)
            naive.counts = {o: n for o, n in counted.items() if o not in kept}
            assert all(n == getattr(progress.attempts(o), "ended_count", 0) for o, n in naive.counts.items())
        assert min(naive.unfinished(), default=progress.lowest) == progress.lowest
        assert len(naive.unfinished()) == progress.unfinished_count


# --- the same, where records of one key end in their order ------------------------------------------------------------

KEYED_STEP = st.tuples(
    st.sampled_from(["read", "finish", "finish", "fail", "end", "restart", "store"]), st.integers(0, 40)
)
AB = [b"a", b"b", b"a", b"b"]


@given(
    st.lists(st.sampled_from([b"a", b"a", b"b", b"c", b"d", None]), min_size=1, max_size=120),
    st.lists(KEYED_STEP, max_size=60),
    st.booleans(),
    st.booleans(),
)
@example([None] * 6, [("read", 6), ("finish", 1), ("store", 0)], False, True)
@example(
    AB, [("read", 4), ("finish", 1), ("store", 0), ("restart", 0), ("read", 1), ("finish", 0), ("store", 0)], True, True
)
@example(AB, [("read", 4), ("finish", 1), ("end", 0)], True, True)
@example(AB, [("read", 4), ("finish", 1), ("store", 0), ("restart", 0), ("read", 3), ("end", 0)], True, True)
def test_with_keys_it_is_a_naive_model(
    keys: list[bytes | None], steps: list[tuple[str, int]], orders_null_keys: bool, names_keys: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if names_keys:
            patch.setattr(progress_module, "_NEARLY_FULL", 0.0)  # as if the runs had no room
        _follow(keys, steps, orders_null_keys=orders_null_keys)


def _follow(keys: list[bytes | None], steps: list[tuple[str, int]], *, orders_null_keys: bool) -> None:
    limit = 420 if orders_null_keys else 800  # room for two keys; for five, or three records without a key

    def begun(stored: Snapshot, *, orders_null_keys: bool = orders_null_keys) -> Progress:
        found = decode(stored.offset, stored.metadata)
        assert isinstance(found, StoredProgress)
        return Progress(
            stored.offset, found, metadata_bytes_max=limit, ends_by_key=True, orders_null_keys=orders_null_keys
        )

    log = range(len(keys))
    naive = NaiveProgress(list(log))
    progress = begun(Snapshot(0, "", is_full=False, version=0))
    stored = progress.snapshot()
    kept: set[int] = set()
    for step, number in steps:
        unfinished = naive.unfinished()
        if step == "read":
            batch = log[naive.read : naive.read + number]
            fresh = progress.read(batch, keys[batch.start : batch.stop])
            assert [o for o in batch if o not in naive.ended] == list(fresh)
            naive.read += len(batch)
        elif step == "finish":
            key = keys[unfinished[number % len(unfinished)]] if unfinished else b""
            mine = [offset for offset in unfinished if keys[offset] == key]
            chosen = mine[: 1 + number % 5]
            if key is None and not orders_null_keys:
                chosen = mine[number % 7 :: 1 + number % 3]
            progress.finish(chosen)
            naive.ended.update(chosen)
        elif step == "fail" and unfinished:
            progress.failed(unfinished[number % len(unfinished)], started_ms=0)
        elif step in ("store", "end"):
            ended = set(unfinished[:1]) if step == "end" else set()  # with it, as a dead letter
            stored = progress.snapshot(ended=ended)
            progress.finish(sorted(ended))
            naive.ended |= ended
            again = begun(stored).read(log, keys)
            kept = set(log) - set(again)
            assert kept == naive.ended
            assert again == begun(stored, orders_null_keys=not orders_null_keys).read(log, keys), "in another mode"
            assert set(again) <= set(_read_by_hash_alone(stored, keys)), (
                "a release that does not know names of one record"
            )
        elif step == "restart":
            progress = begun(stored)
            naive.read, naive.ended = stored.offset, set(kept)
        assert min(naive.unfinished(), default=progress.lowest) == progress.lowest
        assert len(naive.unfinished()) == progress.unfinished_count


def _read_by_hash_alone(stored: Snapshot, keys: list[bytes | None]) -> list[int]:
    found = decode(stored.offset, stored.metadata)
    assert isinstance(found, StoredProgress)
    until, firsts = found.waiting or (0, {})
    return [
        at
        for at, key in enumerate(keys)
        if at >= stored.offset
        and (
            firsts.get(hash_of_key(key), until) <= at
            if at < until
            else not any(first <= at < end for first, end in found.finished)
        )
    ]


def test_keys_have_no_room_where_runs_have_and_nothing_that_was_stored_is_missing() -> None:
    dice, limit = random.Random(1), 540
    by_runs = Progress(0, metadata_bytes_max=limit)
    by_key = Progress(0, metadata_bytes_max=limit, ends_by_key=True)
    finished: list[int] = []
    snapshot = by_runs.snapshot()
    while len(snapshot.metadata) < limit - 20:
        offset = by_runs.position
        key = dice.choice([b"a", b"b", b"c", b"d", b"e", b"f", *[b"x"] * 6])
        for progress in (by_runs, by_key):
            progress.read([offset], [key])
            if key == b"x":
                progress.finish([offset])
        finished += [offset] * (key == b"x")
        if offset % 10 == 0:
            snapshot = by_runs.snapshot()

    assert snapshot.metadata == by_key.snapshot().metadata
    again = restarted(snapshot, metadata_bytes_max=limit).read(range(by_runs.position))
    assert set(range(by_runs.position)) - set(finished) == set(again)
