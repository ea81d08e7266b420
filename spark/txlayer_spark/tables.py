"""Bronze and ledger as tables for people: flat rows, by day, and views on them. Native functions only.

docs/howto/spark-tables.md has every column of `EVENTS`, and of the other two.
"""

import re
from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, DateType, IntegerType, LongType, StringType, TimestampType

from txlayer.core.dead_letters import ReplayKind
from txlayer.core.messages import CheckKind
from txlayer_spark.parse import parse
from txlayer_spark.schemas import HEADERS, TopicKind

_TEXT, _NUMBER, _PLACE = StringType(), LongType(), IntegerType()
_RUN = "the run of `txlayer-spark tables` that wrote the row; of Parquet, the last of those that `compact` folded"

EVENTS: Mapping[str, tuple[DataType, str]] = {
    "at": (TimestampType(), "when Kafka stored the record"),
    "event": (_TEXT, "what happened; see below"),
    "topic": (_TEXT, "where the record is"),
    "partition": (_PLACE, "its partition"),
    "offset": (_NUMBER, "its offset"),
    "line": (_PLACE, "its line, of a record in op; else 0"),
    "txn_id": (_TEXT, "the transaction"),
    "nonce": (_TEXT, "the attempt of that id, where the record says it"),
    "producer_group": (_TEXT, "the group that prepared or decided"),
    "real_topic": (_TEXT, "the topic that the message is for, or was on"),
    "index": (_NUMBER, "the number of the message in its transaction, from 0"),
    "count": (_NUMBER, "how many messages the transaction has"),
    "source": (_TEXT, "who decided: producer, check, operator, policy"),
    "number": (_NUMBER, "the number of the check-back, of the consumer's attempts, or of the lease's generation"),
    "state": (_TEXT, "the state on doubt, or the result of a request"),
    "reason": (_TEXT, "the reason that was given"),
    "consumer_group": (_TEXT, "the group that consumed"),
    "origin_partition": (_NUMBER, "the partition in half, or of the message that was given up, or of the lease"),
    "origin_offset": (_NUMBER, "the offset there"),
    "holder": (_TEXT, "who holds the lease"),
    "token": (_NUMBER, "its fencing token"),
    "error_type": (_TEXT, "the class of the handler's error"),
    "day": (DateType(), "the day of the record, by which the table is divided"),
    "run": (_NUMBER, _RUN),
}
"""Columns of `events`: their types and meaning. None of them holds what a user sent."""

BRONZE: Mapping[str, tuple[DataType, str]] = {  # columns of `bronze`
    "topic": (_TEXT, "the topic"),
    "partition": (_PLACE, "its partition"),
    "offset": (_NUMBER, "the offset"),
    "timestamp": (TimestampType(), "the record's time"),
    "kind": (_TEXT, "half, op, doubt, check, locks, dlq, replay; or forwarded, for real topics"),
    "key": (BinaryType(), "the record's key; null where bronze keeps hashes"),
    "value": (BinaryType(), "its value, likewise"),
    "headers": (HEADERS, "its headers, txlayer's own among them; none of a check-back"),
    "day": (DateType(), "the day of the record, by which the table is divided"),
    "run": (_NUMBER, _RUN),
}


def bronze_rows(records: DataFrame, run: int) -> DataFrame:
    return _with(BRONZE, records.withColumn("run", F.lit(run)))


def event_rows(records: DataFrame, run: int) -> DataFrame:
    """Records of bronze → `EVENTS`: one row for each record, and for each line of op, that says something."""
    parts = [
        _with(EVENTS, _event(records.where(F.col("kind") == kind.value), kind).withColumn("run", F.lit(run)))
        for kind in TopicKind
    ]
    return reduce(DataFrame.unionByName, parts)


def ledger_rows(ledger: DataFrame, run: int) -> DataFrame:
    """Rows of `read_ledger` with `day`: that of the first time that is known of a transaction."""
    times = ("stored_at", "born_at", "decided_at", "forwarded_at", "first_checked_at")
    day = F.to_date(F.coalesce(*times, F.timestamp_seconds(F.lit(0))))
    return ledger.withColumns({"day": day, "run": F.lit(run).cast("bigint")})


def _with(columns: Mapping[str, tuple[DataType, str]], rows: DataFrame) -> DataFrame:
    there = set(rows.columns)
    return rows.select(*((F.col(n) if n in there else F.lit(None)).cast(t).alias(n) for n, (t, _) in columns.items()))


_CHECK_EVENTS = {
    CheckKind.QUESTION: "asked",
    CheckKind.LIMIT: "limit",
    CheckKind.PARKED: "parked",
    CheckKind.REFUSED: "refused",
}


def _event(records: DataFrame, kind: TopicKind) -> DataFrame:
    """Records of topics of one kind → columns of `EVENTS`, by the names that they have there."""
    rows = parse(records, kind)
    is_good = F.isnull("error")
    renamed: Mapping[str, Column] = {}
    match kind:
        case TopicKind.HALF:
            event: Column = F.lit("stored")
        case TopicKind.OP:
            event = F.when(F.col("is_abandon"), "abandon").otherwise(F.lower("resolution"))
            renamed = {
                "number": F.col("check_number"),
                "origin_partition": F.col("partition"),
                "origin_offset": F.col("last_offset"),
            }
        case TopicKind.CHECK:
            event = _word(F.col("kind"), _CHECK_EVENTS)
            renamed = {
                "reason": F.col("text"),
                "origin_partition": F.col("half_partition"),
                "origin_offset": F.col("last_offset"),
            }
        case TopicKind.DOUBT:
            is_summary = F.col("record") == "summary"
            event = F.when(is_summary & F.col("is_tombstone"), "doubt_ended").when(is_summary, "in_doubt")
            event = event.when((F.col("record") == "kept_aside") & ~F.col("is_tombstone"), "kept_aside")
            # A content says what half says.
            is_good = is_good & F.isnotnull(event)
            summary = F.col("summary")
            renamed = {
                "producer_group": summary["producer_group"],
                "state": summary["state"],
                "reason": F.coalesce(summary["reason"], F.col("kept_aside.reason")),
                "count": summary["count"],
                "number": summary["checked_count"],
                "origin_partition": F.coalesce(F.col("kept_aside.origin_partition"), F.col("partition")),
                "origin_offset": F.coalesce(F.col("kept_aside.origin_offset"), summary["last_offset"]),
            }
        case TopicKind.FORWARDED:
            event = F.lit("forwarded")
            is_good = is_good & F.isnotnull("txn_id")
            renamed = {
                "real_topic": F.col("topic"),
                "origin_partition": F.col("half_partition"),
                "origin_offset": F.col("half_offset"),
            }
        case TopicKind.LOCKS:
            event = F.lower("kind")
            renamed = {"number": F.col("generation"), "origin_partition": F.col("real_partition")}
        case TopicKind.DLQ:
            event = F.lit("dead_letter")
            renamed = {"number": F.col("attempt_count"), "real_topic": F.col("origin_topic")}
        case TopicKind.REPLAY:
            event = F.when(F.col("kind") == ReplayKind.RESULT.name, "replayed").otherwise(
                F.concat(F.lit("request_"), F.lower("kind"))
            )
            renamed = {"state": F.col("outcome"), "reason": F.col("text"), "origin_offset": F.col("dead_letter_offset")}
    rows = rows.withColumn("_event", F.when(F.isnotnull("error"), "malformed").otherwise(event)).where(
        is_good | F.isnotnull("error")
    )
    rows = rows.withColumns({**renamed, "at": F.col("timestamp"), "event": F.col("_event")})
    return rows.withColumn("day", F.to_date("timestamp"))


def _word(letter: Column, words: Mapping[CheckKind, str]) -> Column:
    found = F.lit(None)
    for kind, word in words.items():
        found = F.when(letter == kind.value, word).otherwise(found)
    return found


VIEWS: Mapping[str, str] = {  # views on the three tables, in SQL that Spark, DuckDB and Trino know
    "transactions": "SELECT * FROM ledger",
    # Of a topic that was made anew, two records are at one offset. The runs may differ: each table is folded by itself.
    "messages": """
        SELECT e.txn_id, e.topic, e.partition, e.offset, e.at, e.`index`, e.count, b.key, b.value, e.day
        FROM events e JOIN bronze b ON b.topic = e.topic AND b.partition = e.partition AND b.offset = e.offset
             AND b.timestamp = e.at
        WHERE e.event = 'forwarded' AND b.kind = 'forwarded'""",
    "checks": """
        SELECT at, event, txn_id, nonce, producer_group, number, reason, origin_partition AS half_partition, day
        FROM events WHERE event IN ('asked', 'refused', 'limit')""",
    "resolutions": """
        SELECT at, event AS resolution, txn_id, nonce, producer_group, source, number AS check_number, reason, partition,
               offset, line, day
        FROM events WHERE event IN ('commit', 'rollback', 'unknown', 'abandon')""",
    "attempts": """
        SELECT txn_id, nonce, min(producer_group) AS producer_group, min(at) AS first_at, max(at) AS last_at,
               count(*) AS messages_stored, max(count) AS message_count, min(day) AS day
        FROM events WHERE event = 'stored' GROUP BY txn_id, nonce""",
    "dead_letters": """
        SELECT at, consumer_group, real_topic, txn_id, number AS attempt_count, reason, error_type, topic, partition, offset, day
        FROM events WHERE event = 'dead_letter'""",
    "leases": """
        SELECT at, event, consumer_group, real_topic, origin_partition AS real_partition, number AS generation, holder, token,
               reason, day
        FROM events WHERE event IN ('claim', 'renewal', 'release')""",
}


def views_over(tables: Sequence[str], *, prefix: str = "") -> Mapping[str, str]:
    """{view: SQL} where tables and views have a prefix (`lake.audit.`)."""
    named = re.compile(rf"(FROM|JOIN) ({'|'.join(tables)})\b")
    return {f"{prefix}{name}": " ".join(named.sub(rf"\1 {prefix}\2", sql).split()) for name, sql in VIEWS.items()}
