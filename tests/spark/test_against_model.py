"""The ledger against the reference model: every case that was ever judged wrongly, and random histories."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from tests.reference.cases import CASES
from tests.reference.histories import make, seeds
from tests.reference.steps import DOUBT, HASH, Log
from tests.reference.test_times import random_history
from tests.reference.wire import History, Settings
from tests.support.seed import say
from tests.support.spark_histories import CUT_AFTER_MS, Judged, TogetherJudged, readable, row_of
from txlayer.operate.verify import WantedWindow
from txlayer_spark.events import Names, events, hashed
from txlayer_spark.jobs.ledger import LedgerSettings, read_ledger, update_ledger
from txlayer_spark.parse import BRONZE
from txlayer_spark.verdicts import Judging

SEEDS = (
    770004,
    770010,
    770029,
    770035,
    770042,
    770048,
    880019,
    880149,
    990047,
    990057,
    990104,
    990137,
    990139,
    1200261,
    1200362,
    1200450,
    1200655,
    1200682,
    1300081,
    1300091,
    77400852,
    330001034,
    4624968335,
    4624969019,
    4624969131,
    4739967361,
    4739967529,
    5545067539,
    5554969513,
    6127300479,
    1320002207,
    5614967637,
    5614968517,
    6494967605,
    6494967695,
    2700000062,
    7094967847,
)
"""Random histories that the two once judged otherwise."""


Together = tuple[TogetherJudged, list[Row]]


@pytest.fixture(scope="module")
def together(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Together:
    """All cases, and what one run of the ledger says of them."""
    histories = {name: each.history() for name, each in CASES.items()}
    histories |= {f"seed {seed}": make(seed).history for seed in (*SEEDS, *seeds(0, EACH_TIME))}
    histories |= {f"timed {seed}": random_history(seed) for seed in range(TIMED)}
    cut_ms = CUT_AFTER_MS + max(r.timestamp_ms for each in histories.values() for r in readable(each).records)
    overdue_ms = Judging(cut_ms=0).overdue_ms
    histories |= {LATE: scheduled(cut_ms - 2 * overdue_ms), IN_TIME: scheduled(cut_ms - overdue_ms // 2)}
    return judge_together(spark, histories, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def judged(together: Together) -> dict[str, list[Judged]]:
    """All cases under both judges."""
    found: dict[str, list[Judged]] = {}
    for each in together[0].compare(together[1]):
        found.setdefault(each.name, []).append(each)
    return found


def judge_together(
    spark: SparkSession, histories: dict[str, History], root: Path, *, is_doubt_whole: bool = False
) -> Together:
    """Histories, and the rows of the ledger about them."""
    together = TogetherJudged(histories, is_doubt_whole=is_doubt_whole)
    return together, ledger_of(spark, together, root)


def ledger_of(spark: SparkSession, together: TogetherJudged, root: Path, **given: Any) -> list[Row]:
    """The rows of one run."""
    together.write(spark, str(root / "bronze"))
    settings = LedgerSettings(bronze=str(root / "bronze"), root=str(root / "ledger"), clock_error_ms=0, **given)
    update_ledger(spark, settings)
    return read_ledger(spark, str(root / "ledger")).collect()


@pytest.mark.fault(
    "Spark: a history that was once judged wrongly, or any random one",
    "Spark: wrong clocks, times and counts of any size, values and keys that are swapped",
)
@pytest.mark.parametrize("name", CASES)
def test_the_ledger_gives_a_case_its_right_verdict_and_says_what_the_model_says(
    name: str, judged: dict[str, list[Judged]], together: Together
) -> None:
    case, (both, rows) = CASES[name], together

    assert [] == [str(each) for each in judged[name] if each.expected != each.found]
    # A transaction whose half records are gone may have no row; what is visible of none is an orphan of its own.
    # Nor does Spark have a partitioner of producers: it cannot know in which partition a key belongs.
    words = {case.word} | (
        {"ok"} if name in ("partition_of_the_key_not_kept", "partition_of_the_ordering_key_not_kept") else set()
    )
    assert words >= {each.found for each in judged[name] if each.txn_key == case.txn_key}
    ours = [row for row in rows if row.txn_id.startswith(f"{both.renamed[name].number}~")]
    assert case.has_orphan == any("orphan" == row.verdict for row in ours)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("line_of_another_producer_group")])
def test_a_row_says_what_lines_of_the_producer_group_decided(name: str, together: Together) -> None:
    both, rows = together
    new_id = both.renamed[name].ids[CASES[name].txn_key.split("/")[0].encode()].decode()

    (row,) = (row for row in rows if row.txn_id == new_id)
    wanted = "ROLLBACK" if "contrary" in name else "COMMIT"
    assert wanted == row.resolution


def test_over_hashes_of_what_users_sent_the_same_happened(spark: SparkSession, together: Together) -> None:
    """All cases and random histories: contents that were changed, cut, or kept on doubt are among them."""
    both, rows = together
    bronze = spark.createDataFrame([row_of(record, cut_ms=both.cut_ms) for record in both.records], BRONZE)
    groups, topics = (list(dict.fromkeys(each)) for each in both.named())
    names = Names(spark, groups=groups, topics=topics)

    full, found = (sorted(map(str, events(each, names).collect())) for each in (bronze, hashed(bronze)))

    assert {"ok", "corrupt", "lost", "parked"} <= {row.verdict for row in rows}
    assert full == found
    assert len(full) > len(rows)


@pytest.mark.nightly
@pytest.mark.parametrize(("doubt_ends_ms", "expected"), [(1 << 40, "out_of_order"), (0, "ok")])
# A real topic keeps the producer's times (Kafka's default), and the user set that at which it was prepared, or one of long ago.
@pytest.mark.parametrize("users_ms", [0, 5, 1_700_000_000_010])
def test_one_that_may_have_been_parked_is_in_no_order_where_doubt_has_forgotten_it(
    users_ms: int, doubt_ends_ms: int, expected: str, spark: SparkSession, tmp_path: Path
) -> None:
    log = Log(settings=Settings(compacted_topics=frozenset({DOUBT})))
    options = f"t{users_ms},k{HASH}" if users_ms else f"k{HASH}"
    users: dict[str, Any] = {"timestamp_ms": users_ms, "is_append_time": False} if users_ms else {}
    parked, next_one = log.half(options=options), log.half("next/0000000c", options=options)
    log.op(("C", parked))
    log.op(("C", next_one), key="next/0000000c")
    shown = [log.show(next_one)]
    log.now_ms += 120_000
    log.op(("C", parked))
    shown.append(log.show(parked))
    log.records = [replace(each, **users) if each in shown else each for each in log.records]
    together = TogetherJudged({"forgotten": log.history()}, doubt_ends_ms=doubt_ends_ms)

    rows = ledger_of(spark, together, tmp_path)

    assert {expected, "ok"} == {row.verdict for row in rows}


def scheduled(due_ms: int) -> History:
    """One that doubt keeps until then."""
    log = Log()
    half = log.half(options=f"d{due_ms}")
    log.op(("C", half))
    log.summary("scheduled", half, due=f"1/1/{due_ms}/0:0")
    log.content(half)
    return log.history()


LATE, IN_TIME = "a scheduled one that is late", "a scheduled one that is in time"


def test_a_scheduled_message_is_late_by_its_time_and_not_by_the_age_of_its_transaction(together: Together) -> None:
    both, rows = together
    ids = {both.renamed[name].ids[b"order-1"].decode(): name for name in (LATE, IN_TIME)}

    assert {LATE: "overdue", IN_TIME: "open"} == {ids[row.txn_id]: row.verdict for row in rows if row.txn_id in ids}


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("malformed_half_record")])
def test_a_malformed_half_record_has_no_row(name: str, together: Together) -> None:
    both, rows = together

    assert [] == [row for row in rows if row.txn_id == both.renamed[name].ids[b"malformed"].decode()]


def test_the_two_judges_allow_the_clocks_of_brokers_the_same() -> None:
    allowed = WantedWindow(since_ms=0).clock_error_ms

    assert allowed == LedgerSettings(bronze="", root="").clock_error_ms
    assert allowed == Judging(cut_ms=0).clock_error_ms


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_that_was_judged_otherwise_is_judged_alike(seed: int, judged: dict[str, list[Judged]]) -> None:
    assert [] == [str(each) for each in judged[f"seed {seed}"] if each.expected != each.found]


HISTORIES = 60
EACH_TIME = 20
"""Of them as many are judged with the cases, whenever these are."""
TIMED = 60
# Read when the file is: while a test runs nothing of TXLAYER_ is set.
FIRST = int(os.environ.get("TXLAYER_DIFFERENTIAL_SEED", "0"))
COUNT = int(os.environ.get("TXLAYER_DIFFERENTIAL_COUNT", str(HISTORIES)))
AT_ONCE = 240
"""Histories of one run: each has topics of its own, and names are looked up by a literal list."""


def test_some_random_histories_are_judged_alike(judged: dict[str, list[Judged]]) -> None:
    assert [] == [str(a) for seed in seeds(0, EACH_TIME) for a in judged[f"seed {seed}"] if a.expected != a.found]


def test_random_histories_with_times_are_judged_alike(judged: dict[str, list[Judged]]) -> None:
    assert [] == [str(a) for seed in range(TIMED) for a in judged[f"timed {seed}"] if a.expected != a.found]


@pytest.mark.fault("Spark: a history that was once judged wrongly, or any random one")
@pytest.mark.nightly
def test_random_histories_are_judged_alike(spark: SparkSession, tmp_path: Path) -> None:
    first, count = FIRST, COUNT
    wrong: list[str] = []
    judged_count = 0
    for start in range(first, first + count, AT_ONCE):
        some = seeds(start, min(AT_ONCE, first + count - start))
        histories = {f"seed {seed}": make(seed).history for seed in some}
        whole = {name: each for name, each in histories.items() if DOUBT not in each.settings.compacted_topics}
        others = {name: each for name, each in histories.items() if name not in whole}
        for is_whole, those in ((True, whole), (False, others)):
            if not those:
                continue
            root = tmp_path / f"{start}-{is_whole}"
            together, rows = judge_together(spark, those, root, is_doubt_whole=is_whole)
            found = together.compare(rows)
            judged_count += len(found)
            wrong += [str(each) for each in found if each.expected != each.found]
    say(f"{judged_count} verdicts of {count} histories from seed {first}")

    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} of {judged_count} verdicts differ:", *wrong]), pytrace=False)
