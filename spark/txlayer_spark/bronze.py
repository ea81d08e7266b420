"""Kafka records → rows of bronze, and what half records name. DataFrame → DataFrame. Never: reading, writing."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txlayer.core import codec
from txlayer_spark import lines
from txlayer_spark.schemas import TopicKind

SYSTEM_KINDS = (TopicKind.HALF, TopicKind.OP, TopicKind.DOUBT, TopicKind.CHECK, TopicKind.LOCKS)
"""What the topics of a namespace itself hold."""
_LOG_APPEND_TIME = 1
"""Kafka's number for timestamps that the broker sets."""


def system_topics(namespace: str) -> dict[str, TopicKind]:
    """{topic: what it holds} of a namespace."""
    return {f"{namespace}.{kind.value}": kind for kind in SYSTEM_KINDS}


def is_never_forwarded(topic: str, *, namespace: str) -> bool:
    """Whether coordinators refuse a topic for good: one of the namespace, one of Kafka's own, dead letters, replays."""
    return topic in system_topics(namespace) or topic.startswith("__") or topic.endswith((".dlq", ".replay"))


def kind_column(topic: Column, *, namespace: str) -> Column:
    """What a topic holds; the topics of another namespace are real topics like any other."""
    kind = F.when(topic.endswith(".dlq"), TopicKind.DLQ.value).when(topic.endswith(".replay"), TopicKind.REPLAY.value)
    for name, held in system_topics(namespace).items():
        kind = kind.when(topic == name, held.value)
    return kind.otherwise(TopicKind.FORWARDED.value)


def to_bronze(raw: DataFrame, *, namespace: str, batch: int) -> DataFrame:
    """One batch of Kafka records → one row each: place, key, value, headers, batch, is_append_time, kind, day (UTC)."""
    return raw.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        F.lit(batch).cast("bigint").alias("batch"),
        (F.col("timestampType") == _LOG_APPEND_TIME).alias("is_append_time"),
        kind_column(F.col("topic"), namespace=namespace).alias("kind"),
        # A producer's time may be of any day: then it is the day of the reading, and stays as long as what it belongs to.
        F.when(F.col("timestampType") == _LOG_APPEND_TIME, F.to_date("timestamp"))
        .otherwise(F.current_date())
        .alias("day"),
    )


def named(rows: DataFrame, *, groups: Sequence[str], topics: Sequence[str]) -> Column:
    """Of a row of bronze that is a half record: `group|topic` as it names them; null when both are known, and for others."""
    line = lines.text(lines.header(rows["headers"], codec.HALF_HEADER))
    both = F.substring_index(F.substring_index(line, "|", 4), "|", -2)
    is_known = F.lit(False)
    if groups and topics:
        is_known = lines.before(both, "|").isin(*groups) & lines.after(both, "|").isin(*topics)
    is_half = rows["kind"] == TopicKind.HALF.value
    # Only what is new is held against the pattern, which costs more than all else here.
    return F.when(is_half & ~is_known & line.rlike(lines.HALF), both)


def subscription(real_topics: Sequence[str], *, but: Sequence[str] = ()) -> str:
    """The pattern of real topics with their dead letters and replays, but those of others; one that is missing is no error."""
    besides = rf"(?!{_beside(but)}$)" if but else ""
    # Spark takes a topic of which a part fits, too.
    return rf"^(?:(?:{_any(real_topics)})|{besides}{_beside(real_topics)})$"


def _beside(real_topics: Sequence[str]) -> str:
    return rf"[A-Za-z0-9._-]+\.(?:{_any(real_topics)})\.(?:dlq|replay)"


def _any(topics: Sequence[str]) -> str:
    return "|".join(rf"\Q{topic}\E" for topic in topics)


def is_subscribed(topic: str, real_topics: Sequence[str], *, but: Sequence[str] = ()) -> bool:
    """Whether the pattern fits a topic."""
    name, _, suffix = topic.rpartition(".")

    def is_beside(topics: Sequence[str]) -> bool:
        return any(name.endswith(f".{t}") and len(name) > len(t) + 1 for t in topics)

    return topic in real_topics or (suffix in ("dlq", "replay") and is_beside(real_topics) and not is_beside(but))
