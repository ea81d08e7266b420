"""Histories that bronze reads in several calls, each with a cut of its own, and a run of the ledger behind each of them."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from tests.reference import steps
from tests.reference.steps import Log
from tests.reference.wire import History, Record
from tests.support.spark_histories import NAMESPACE, TogetherJudged, is_system, row_of
from txlayer_spark.catalog import BatchFolder, Catalog, Gap, Reader
from txlayer_spark.jobs.ledger import LedgerSettings, read_ledger, update_ledger
from txlayer_spark.parse import BRONZE

Place = tuple[str, int, int]
Word = tuple[str, str, str]
"""id, nonce, verdict."""
HOUR_MS = 3_600_000
READ_AFTER_MS = 120_000
"""How long after the newest record of an increment it is read: longer than the usual grace."""


@dataclass
class Steps(Log):
    """A history with cuts in it, and an hour after each."""

    cuts: list[int] = field(default_factory=list)
    taken: set[Place] = field(default_factory=set)

    def cut(self) -> None:
        """What is added from here on is read by a later call of bronze."""
        self.cuts.append(len(self.records))
        self.now_ms += HOUR_MS

    def numbers(self) -> dict[Place, int]:
        """The increment of each record."""
        return {
            (r.topic, r.partition, r.offset): sum(at >= cut for cut in self.cuts) for at, r in enumerate(self.records)
        }

    def play(self, script: str) -> "Steps":
        """Add what a script says, in the steps of tests/reference/steps.py and those of `Cut`; the history itself."""
        Cut(self).write(script)
        return self


class Cut(steps.Steps):
    """Further steps: `cut`; `days 5`, which pass; `taken`: retention takes the record before this step, and bronze never reads it."""

    log: Steps

    def cut(self) -> None:
        self.log.cut()

    def days(self, count: int) -> None:
        self.log.now_ms += count * 24 * HOUR_MS

    def taken(self) -> None:
        record = self.log.records[-1]
        self.log.taken.add((record.topic, record.partition, record.offset))


class Increments:
    """Histories by name with, for each of their records, the number of the increment that reads it; without one it is the first."""

    def __init__(
        self,
        histories: Mapping[str, History],
        numbers: Mapping[str, Mapping[Place, int]],
        *,
        cuts_ms: Sequence[int] = (),
        taken: Mapping[str, Collection[Place]] = MappingProxyType({}),
    ) -> None:
        """Nothing is written yet. `taken`: records that are gone before they are read."""
        self._together = TogetherJudged(histories)
        self._number: dict[Place, int] = {}
        self._gaps: list[Gap] = []
        for name, renamed in self._together.renamed.items():
            for (topic, partition, offset), number in numbers[name].items():
                place = (renamed.topic(topic), renamed.partition(topic, partition), offset)
                self._number[place] = number
                if (topic, partition, offset) in taken.get(name, ()):
                    self._gaps.append(Gap(*place, offset + 1))
        records = self._together.records
        count = 1 + max(self._number.values(), default=0)
        self._cuts_ms = cuts_ms or [
            READ_AFTER_MS + max(r.timestamp_ms for r in records if self._of(r) <= n) for n in range(count)
        ]

    def _of(self, record: Record) -> int:
        return self._number.get((record.topic, record.partition, record.offset), 0)

    def run(
        self, spark: SparkSession, root: str, *, behind: Callable[[int], None] = lambda _: None, **settings: int
    ) -> list[list[Any]]:
        """The rows of the ledger after each increment, and in the end those of one run over everything.

        `behind` is called with the number of each run when it has ended.
        """
        catalog = Catalog(spark, f"{root}/bronze")
        catalog.claim(NAMESPACE)
        found = []
        for number, cut_ms in enumerate(self._cuts_ms):
            self._write(spark, catalog, number, cut_ms)
            found.append(judged(spark, root, "run-by-run", **settings))
            behind(number)
        return [*found, judged(spark, root, "at-once", **settings)]

    def _write(self, spark: SparkSession, catalog: Catalog, number: int, cut_ms: int) -> None:
        gone = {gap[:3] for gap in self._gaps}
        records = [r for r in self._together.records if self._of(r) == number]
        records = [r for r in records if (r.topic, r.partition, r.offset) not in gone]
        for reader in (0, 1):
            rows = [row_of(r, cut_ms=cut_ms, batch=number) for r in records if is_system(r.topic) is (reader == 0)]
            frame = spark.createDataFrame(rows, BRONZE).drop("folder").coalesce(1)
            folder = BatchFolder(reader, number, number)
            frame.write.partitionBy("kind", "day").parquet(catalog.path_of(folder))
        state = self._together.state(*self._together.named())
        readers = tuple(Reader(**{**asdict(r), "at_ms": cut_ms, "last_batch": number}) for r in state.readers)
        gaps = [gap for gap in self._gaps if self._number[gap[:3]] <= number]
        noted_ms = {gap.name: self._cuts_ms[self._number[gap[:3]]] for gap in gaps}
        gaps += state.gaps
        catalog.store(
            replace(state, readers=readers, number=catalog.state().number, gaps=tuple(sorted(gaps)), noted_ms=noted_ms)
        )

    def of(self, name: str, rows: Sequence[Any]) -> list[Word]:
        """What rows say of one history, its ids as they were."""
        renamed = self._together.renamed[name]
        old = {new.decode(): was.decode() for was, new in renamed.ids.items()}
        return sorted(
            (old.get(r.txn_id, r.txn_id), r.nonce or "", r.verdict)
            for r in rows
            if r.txn_id in old or r.txn_id.startswith(f"{renamed.number}~")
        )


def judged(spark: SparkSession, root: str, name: str, **settings: int) -> list[Any]:
    """The rows of a ledger after one more run."""
    chosen = {"clock_error_ms": 0, **settings}
    place = f"{root}/{name}"
    update_ledger(spark, LedgerSettings(bronze=f"{root}/bronze", root=place, **chosen))
    return read_ledger(spark, place).collect()


def difference(one: Sequence[Word], other: Sequence[Word]) -> str:
    """What only one of two lists has."""
    left, right = Counter(one), Counter(other)
    only_left, only_right = sorted((left - right).elements()), sorted((right - left).elements())
    return f"only run by run: {only_left}; only at once: {only_right}"


def by_time(history: History, cuts_ms: Sequence[int], *, seed: int, lag_ms: int) -> dict[Place, int]:
    """Increments as bronze makes them: real topics are read first, each partition a little later than the others."""
    draw = random.Random(seed)
    lags: dict[tuple[str, int], list[int]] = {}
    numbers: dict[Place, int] = {}
    now_ms = 0
    for record in history.records:
        if record.is_append_time:
            now_ms = max(now_ms, record.timestamp_ms)
        place = (record.topic, record.partition)
        if record.topic.startswith(f"{history.settings.namespace}."):
            ends = [cut + lag_ms for cut in cuts_ms]
        else:
            if place not in lags:
                lags[place] = [draw.randrange(lag_ms) for _ in cuts_ms]
            ends = [cut + lag for cut, lag in zip(cuts_ms, lags[place], strict=True)]
        numbers[(*place, record.offset)] = sum(now_ms > end for end in ends)
    return numbers
