"""The ledger → the few numbers that a report shows. Every result is small, whatever the ledger's size."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from txlayer.core.verification import Severity
from txlayer_spark.catalog import Gap
from txlayer_spark.schemas import TopicKind
from txlayer_spark.verdicts import SEVERITIES

BUCKETS_MAX = 120  # points of a curve: more are not told apart on a page
FINDINGS_MAX = 500
"""Findings that JSON lists, the worst first and of each verdict some; it says how many there are, and the ledger has them all."""
HOT_MAX = 15
QUERIES_AT_ONCE = 3  # beside the curve's: the driver plans them on few cores
AGES_MS = (60_000, 600_000, 3_600_000, 21_600_000, 86_400_000, 259_200_000)
"""Ends of the classes of age: a minute, ten, an hour, six, a day, three."""
STAGES = ("decide_ms", "forward_ms", "total_ms")
PERCENTILES = (0.5, 0.95, 0.99)
_STEPS_S = (1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a report shows; `JSON` but for its times, which are ISO 8601."""

    namespace: str
    cut_ms: int
    verdicts: dict[str, int]
    step_s: int
    curve: list[dict[str, Any]]
    """Per step: stored, committed, rolled back, messages visible, and percentiles of each stage."""
    ages: list[dict[str, Any]]
    checks: list[dict[str, Any]]  # transactions by the number of check-backs, with who decided them
    hot_keys: list[dict[str, Any]]
    partitions: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    finding_count: int
    gaps: list[dict[str, Any]] = field(default_factory=list)
    """What was gone before it was read: `topic`, `partition`, and offsets from `start` to before `end`; none of them where a
    topic was not there when bronze ran before."""
    hidden_topics: list[str] = field(default_factory=list)
    """Real topics whose end is behind a Kafka transaction that stays open."""
    unread_topics: list[str] = field(default_factory=list)
    """Real topics that half records name and bronze could not read."""
    earlier: list[dict[str, Any]] = field(default_factory=list)
    """What earlier reports said, the oldest first: `cut_ms` and `verdicts`."""


def summarise(
    ledger: DataFrame,
    bronze: DataFrame,
    *,
    namespace: str,
    cut_ms: int,
    gaps: Sequence[Gap] = (),
    hidden_topics: Sequence[str] = (),
    unread_topics: Sequence[str] = (),
) -> Summary:
    """The numbers of a ledger and of the dead letters in bronze, and what bronze could not read."""
    bad = ledger.where(F.col("verdict").isin(*_not_good()))
    checked = ledger.withColumn("checked", F.least("checked_count", F.lit(3)))
    keyed = ledger.where(F.isnotnull("key_hash"))
    dead = bronze.where(F.col("kind").isin(TopicKind.DLQ.value, TopicKind.REPLAY.value))
    # Each is planned and compiled for longer than it runs, and one alone leaves the other cores idle meanwhile.
    with ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
        found = {
            name: pool.submit(_rows, frame)
            for name, frame in {
                "verdicts": _count(ledger, "verdict"),
                "findings": _findings(bad),
                "hot_keys": _count(keyed, "key_hash").orderBy(F.desc("n"), "key_hash").limit(HOT_MAX),
                "checks": _count(checked, "checked", "decided_by").orderBy("checked", "decided_by"),
                "partitions": _count(ledger, "half_partition").orderBy("half_partition"),
                "dead_letters": _count(dead, "topic", "kind").orderBy("topic"),
            }.items()
        }
        ages = pool.submit(_ages, ledger, cut_ms)
        step_s = _step_s(ledger)
        curve = _rows(_curve(ledger, step_s))
        rows = {name: future.result() for name, future in found.items()}
    verdicts = {row["verdict"]: row["n"] for row in rows.pop("verdicts")}
    return Summary(
        namespace=namespace,
        cut_ms=cut_ms,
        verdicts=verdicts,
        step_s=step_s,
        curve=curve,
        ages=ages.result(),
        finding_count=sum(n for verdict, n in verdicts.items() if verdict in _not_good()),
        gaps=[gap._asdict() for gap in gaps],
        hidden_topics=list(hidden_topics),
        unread_topics=list(unread_topics),
        **rows,
    )


def _not_good() -> list[str]:
    return [name for name, severity in SEVERITIES.items() if severity is not Severity.GOOD]


def _count(frame: DataFrame, *by: str) -> DataFrame:
    return frame.groupBy(*by).agg(F.count("*").alias("n"))


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows with times in UTC: Spark gives them in the time of this machine, and does not say so."""
    return [
        {
            name: value.astimezone(UTC) if isinstance(value, datetime) else value
            for name, value in row.asDict(recursive=True).items()
        }
        for row in frame.collect()
    ]


def _step_s(ledger: DataFrame) -> int:
    span = ledger.agg((F.max(F.unix_seconds("stored_at")) - F.min(F.unix_seconds("stored_at"))).alias("s")).head()
    seconds = (span.s if span is not None else None) or 0
    return next((step for step in _STEPS_S if seconds <= step * BUCKETS_MAX), _STEPS_S[-1])


def _curve(ledger: DataFrame, step_s: int) -> DataFrame:
    begin = F.timestamp_seconds(F.floor(F.unix_seconds("stored_at") / step_s) * step_s)
    committed = F.col("resolution") == "COMMIT"
    stages = [
        # `greatest` passes over null: what never happened would count as 0 ms.
        F.percentile_approx(
            F.when(F.isnotnull(stage), F.greatest(F.col(stage), F.lit(0))), list(PERCENTILES), 1000
        ).alias(stage)
        for stage in STAGES
    ]
    return (
        ledger.where(F.isnotnull("stored_at"))
        .groupBy(begin.alias("at"))
        .agg(
            F.count("*").alias("stored"),
            F.count_if(committed).alias("committed"),
            F.count_if(F.col("resolution") == "ROLLBACK").alias("rolled_back"),
            F.sum("visible_count").alias("visible"),
            *stages,
        )
        .orderBy("at")
    )


def _ages(ledger: DataFrame, cut_ms: int) -> list[dict[str, Any]]:
    waiting = ledger.where(F.col("verdict").isin("open", "overdue", "parked"))
    age = F.lit(cut_ms) - F.unix_millis(F.coalesce("stored_at", "born_at"))
    found = {
        (row.verdict, row.age): row.n
        for row in _count(waiting.select("verdict", _class(age, AGES_MS).alias("age")), "verdict", "age").collect()
    }
    return [
        {"age": number, "verdict": verdict, "n": found.get((verdict, number), 0)}
        for number in range(len(AGES_MS) + 1)
        for verdict in ("open", "overdue", "parked")
    ]


def _class(value: Column, ends: Sequence[int]) -> Column:
    chosen = F.when(value <= ends[0], 0)
    for number, end in enumerate(ends[1:], start=1):
        chosen = chosen.when(value <= end, number)
    return chosen.otherwise(len(ends))


def _findings(bad: DataFrame) -> DataFrame:
    rank = F.when(F.col("verdict").isin(*(n for n, s in SEVERITIES.items() if s is Severity.FAULT)), 0).otherwise(1)
    # Many of one verdict hide no other one.
    number = F.row_number().over(Window.partitionBy("verdict").orderBy("stored_at", "txn_id"))
    return (
        bad.withColumn("_number", number)
        .where(F.col("_number") <= FINDINGS_MAX)
        .orderBy(rank, "_number", "verdict")
        .limit(FINDINGS_MAX)
        .select(
            *("verdict", "txn_id", "nonce", "producer_group", "topics", "half_partition"),
            *("first_offset", "last_offset", "decided_offset", "decided_line", "visible_topics", "visible_partition"),
            *("visible_offset", "visible_count", "message_count"),
            *("stored_at", "decided_at", "forwarded_at", "doubt_reason"),
        )
    )
