"""What a live view counts beside its rows: rates and latencies of the last minutes, and records kept aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from txlayer.core import codec

BUCKET_MS = 10_000
BUCKET_COUNT = 90
"""A quarter of an hour."""


class Minute(NamedTuple):
    """What happened in `BUCKET_MS`, by the brokers' clocks."""

    at_ms: int
    prepared: int
    committed: int
    rolled_back: int
    latency_ms: Mapping[int, int]  # {upper bound: decisions that came so long after the first half record}


class Minutes:
    """Rings of counts; one thread writes, any thread takes a `snapshot`."""

    def __init__(self) -> None:
        self._buckets: dict[int, list[Any]] = {}

    def prepared(self, at_ms: int) -> None:
        """A transaction was prepared."""
        self._at(at_ms)[0] += 1

    def committed(self, at_ms: int, latency_ms: int) -> None:
        """A commit came so long after the first half record."""
        bucket = self._at(at_ms)
        bucket[1] += 1
        bound = 1 << max(latency_ms, 0).bit_length()
        bucket[3][bound] = bucket[3].get(bound, 0) + 1

    def rolled_back(self, at_ms: int, count: int) -> None:
        """So many were rolled back."""
        self._at(at_ms)[2] += count

    def snapshot(self) -> tuple[Minute, ...]:
        """The last quarter of an hour, the oldest first."""
        found = ((at, *bucket) for at, bucket in sorted(self._buckets.items()))
        return tuple(Minute(at, new, yes, no, dict(latency_ms)) for at, new, yes, no, latency_ms in found)

    def _at(self, at_ms: int) -> list[Any]:
        start = at_ms - at_ms % BUCKET_MS
        bucket = self._buckets.get(start)
        if bucket is None:
            bucket = self._buckets[start] = [0, 0, 0, {}]
            if len(self._buckets) > BUCKET_COUNT:
                del self._buckets[min(self._buckets)]
        return bucket


class Rates(NamedTuple):
    """The last full minute, by the brokers' clocks: transactions a second, and times to a decision, rounded up."""

    prepared: float
    committed: float
    rolled_back: float
    median_ms: int | None  # from the first half record to a commit; None: there was none
    p99_ms: int | None


def rates_of(minutes: Sequence[Minute], *, since_ms: int, now_ms: int) -> Rates | None:
    """Those of the six full buckets before now; None: they were not counted whole, for counting began at `since_ms`."""
    end = now_ms - now_ms % BUCKET_MS
    if not since_ms or since_ms > end - 60_000:
        return None
    recent = [each for each in minutes if end - 60_000 <= each.at_ms < end]
    bins: Counter[int] = Counter()
    for each in recent:
        bins.update(each.latency_ms)
    return Rates(
        sum(each.prepared for each in recent) / 60,
        sum(each.committed for each in recent) / 60,
        sum(each.rolled_back for each in recent) / 60,
        quantile(bins, 0.5) if bins else None,
        quantile(bins, 0.99) if bins else None,
    )


def quantile(bins: Mapping[int, int], share: float) -> int:
    """The upper bound of the bin at which so large a share of all is reached."""
    left = share * sum(bins.values())
    for bound, number in sorted(bins.items()):
        left -= number
        if left <= 0:
            return bound
    return max(bins)


QUARANTINED_MAX = 10_000
"""Records kept aside that are counted."""


class Quarantine:
    """Which records are kept aside on doubt, by key. One thread follows, another reads what was there before."""

    def __init__(self) -> None:
        self._is_there: dict[bytes, bool] = {}
        self._is_whole = False

    @property
    def count(self) -> int | None:
        """How many there are, up to `QUARANTINED_MAX`; None: not known yet."""
        return sum(list(self._is_there.values())) if self._is_whole else None

    def note(self, raw_key: bytes | None, *, is_there: bool) -> None:
        """A record of doubt, in the order of the log; those of transactions are none of ours."""
        if raw_key is None or codec.parse_quarantine_key(raw_key) is None:
            return
        if raw_key in self._is_there or len(self._is_there) < QUARANTINED_MAX:
            self._is_there[raw_key] = is_there

    def add_earlier(self, earlier: Quarantine) -> None:
        """Add what was there before this one began; what was noted since counts."""
        for raw_key, is_there in earlier._is_there.items():
            self._is_there.setdefault(raw_key, is_there)
        self._is_whole = True
