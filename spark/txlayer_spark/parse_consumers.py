"""Raw records of what consumers write → typed columns: locks, dead letters, replays. Native functions only.

Never: records of transactions (parse.py).
"""

from __future__ import annotations

from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txlayer.core import codec
from txlayer.core.codec import PARTITION_MAX
from txlayer.core.dead_letters import (
    DLQ_HEADER,
    MESSAGE_LENGTH_MAX,
    TEXT_LENGTH_MAX,
    TYPE_LENGTH_MAX,
)
from txlayer.core.retry import LockKind, ReplayKind
from txlayer_spark import lines, schemas
from txlayer_spark.decoding import PLACE, all_of, judged, own_columns


def locks(raw: DataFrame) -> DataFrame:
    """Records of the lock log → `schemas.LOCKS`."""
    queue, token = lines.text(F.col("key")), _field(5)
    located = raw.select(
        *PLACE,
        # Bytes that are no text are no name of a queue.
        F.when(F.is_valid_utf8(queue) & queue.rlike(lines.QUEUE), queue).alias("queue"),
        lines.text(F.col("value")).alias("_line"),
    )
    group, topic, partition = (
        F.regexp_extract("queue", lines.QUEUE, number) for number in (1, 2, 3)
    )
    decoded = _split(located, lines.LOCK).withColumns(
        {
            "kind": _name(_field(1), LockKind),
            "consumer_group": group,
            "real_topic": topic,
            "real_partition": lines.whole(partition),
            "generation": lines.whole(_field(2)),
            "holder": lines.unquoted(_field(3)),
            "instance_id": lines.unquoted(_field(4)),
            "token": lines.whole(F.when(token != "", token)),
            "reason": lines.unquoted(_field(6)),
        }
    )
    is_good = (
        F.col("_form")
        & F.col("queue").isNotNull()
        & (F.col("real_partition") <= PARTITION_MAX)
        & F.col("generation").isNotNull()
        & ((token == "") | F.col("token").isNotNull())
    )
    return judged(decoded, is_good, "lock", columns=own_columns(schemas.LOCKS))


def dead_letters(raw: DataFrame) -> DataFrame:
    """Records of a dead-letter topic → `schemas.DLQ`."""
    headers = F.col("headers")
    txn_id = lines.text(lines.header(headers, codec.ID_HEADER))
    located = raw.select(
        *PLACE,
        "key",
        "value",
        lines.of_user(headers).alias("headers"),
        F.when(txn_id.rlike(lines.TXN_ID), txn_id).alias("txn_id"),
        lines.text(lines.header(headers, DLQ_HEADER)).alias("_line"),
    )
    numbers = {
        "origin_partition": 3, "origin_offset": 4, "origin_ms": 5, "attempt_count": 6, "first_ms": 7, "last_ms": 8,
    }  # fmt: skip
    decoded = _split(located, lines.DEAD_LETTER).withColumns(
        {
            "reason": _field(1),
            "origin_topic": _field(2),
            **{name: lines.whole(_field(at)) for name, at in numbers.items()},
            "error_type": F.left(lines.unquoted(_field(9)), F.lit(TYPE_LENGTH_MAX)),
            "error_message": F.left(lines.unquoted(_field(10)), F.lit(MESSAGE_LENGTH_MAX)),
            "consumer_group": lines.unquoted(_field(11)),
        }
    )
    is_good = (
        F.col("_form")
        & all_of([F.col(name).isNotNull() for name in numbers])
        & (F.col("origin_partition") <= PARTITION_MAX)
    )
    # The message is whole, whatever is wrong with what is said of it.
    beside = (*(field.name for field in schemas.USER), "txn_id")
    return judged(decoded, is_good, "dead letter", columns=own_columns(schemas.DLQ, beside=beside))


def replays(raw: DataFrame) -> DataFrame:
    """Records of a replay topic → `schemas.REPLAY`."""
    offset, is_result = _field(3), _field(1) == ReplayKind.RESULT.value
    located = raw.select(*PLACE, "key", lines.text(F.col("value")).alias("_line"))
    decoded = _split(located, lines.REPLAY).withColumns(
        {
            "kind": _name(_field(1), ReplayKind),
            "request_id": _field(2),
            "dead_letter_offset": lines.whole(F.when(offset != "", offset)),
            "outcome": F.when(is_result, _field(4)),
            "text": F.left(
                lines.unquoted(F.when(is_result, _field(5)).otherwise(_field(4))),
                F.lit(TEXT_LENGTH_MAX),
            ),
        }
    )
    is_good = F.col("_form") & ((offset == "") | F.col("dead_letter_offset").isNotNull())
    columns = own_columns(schemas.REPLAY, beside=("key",))
    return judged(decoded, is_good, "replay record", columns=columns)


def _split(located: DataFrame, form: str) -> DataFrame:
    """`_form`, and the fields `_f` of a line that has it."""
    return located.withColumn("_form", F.col("_line").rlike(form)).withColumn(
        "_f", F.when(F.col("_form"), lines.fields(F.col("_line")))
    )


def _field(number: int) -> Column:
    return F.get("_f", F.lit(number))


def _name(letter: Column, kinds: type[Enum]) -> Column:
    names = [F.lit(word) for kind in kinds for word in (kind.value, kind.name)]
    return F.try_element_at(F.create_map(*names), letter)
