"""Which topic holds what, the columns that reading it gives, and raw Kafka records → these typed columns, one function per kind of topic.
Native functions only; a broken record is a row with `error`, never a failed job. The forms of our lines are in lines.py.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from txlayer.core import codec
from txlayer.core.codec import HALF_HEADER_BYTES_MAX, NEXT_VERSION, PARTITION_MAX, VERSION
from txlayer.core.dead_letters import DLQ_HEADER, MESSAGE_LENGTH_MAX, TEXT_LENGTH_MAX, TYPE_LENGTH_MAX, ReplayKind
from txlayer.core.leases import LockKind
from txlayer.core.messages import DLQ_SUFFIX, REPLAY_SUFFIX, OrderMode, Resolution
from txlayer_spark import lines

SCHEMA_VERSION = 1  # part of every path of ours: files of another form are never mixed


class Values(Enum):
    """What bronze keeps of keys, values and headers of users."""

    FULL = "full"  #: all of it
    HASH = "hash"  #: hashes, which are enough for every verdict


class TopicKind(Enum):
    """What a topic holds."""

    HALF = "half"  #: half messages
    OP = "op"  #: resolutions
    DOUBT = "doubt"  #: in-doubt, held and parked transactions
    CHECK = "check"  #: check-backs and limits
    LOCKS = "locks"  #: lock claims
    DLQ = "dlq"  #: dead letters
    REPLAY = "replay"  #: requests to replay
    FORWARDED = "forwarded"  #: messages on a real topic


def kind_of(topic: str) -> TopicKind:
    """What a topic holds, by the last part of its name; a topic without such a part is a real one."""
    suffix = topic.rpartition(".")[2] if "." in topic else ""
    try:
        return TopicKind(suffix)
    except ValueError:
        return TopicKind.FORWARDED


SYSTEM_KINDS = (TopicKind.HALF, TopicKind.OP, TopicKind.DOUBT, TopicKind.CHECK, TopicKind.LOCKS)
"""What the topics of a namespace itself hold."""


def system_topics(namespace: str) -> dict[str, TopicKind]:
    """{topic: what it holds} of a namespace."""
    return {f"{namespace}.{kind.value}": kind for kind in SYSTEM_KINDS}


def is_never_forwarded(topic: str, *, namespace: str) -> bool:
    """Whether coordinators refuse a topic for good: one of the namespace, one of Kafka's own, dead letters, replays."""
    return topic in system_topics(namespace) or topic.startswith("__") or topic.endswith((DLQ_SUFFIX, REPLAY_SUFFIX))


def kind_column(topic: Column, *, namespace: str) -> Column:
    """What a topic holds; the topics of another namespace are real topics like any other."""
    kind = F.when(topic.endswith(DLQ_SUFFIX), TopicKind.DLQ.value)
    kind = kind.when(topic.endswith(REPLAY_SUFFIX), TopicKind.REPLAY.value)
    for name, held in system_topics(namespace).items():
        kind = kind.when(topic == name, held.value)
    return kind.otherwise(TopicKind.FORWARDED.value)


_TYPES: dict[str, T.DataType] = {
    "": T.StringType(),
    "long": T.LongType(),
    "longs": T.ArrayType(T.LongType()),
    "int": T.IntegerType(),
    "bool": T.BooleanType(),
    "bytes": T.BinaryType(),
    "texts": T.ArrayType(T.StringType()),
    "time": T.TimestampType(),
    "day": T.DateType(),
}


def _struct(columns: str) -> T.StructType:
    """Columns by their names, in their order: `name` of text, else `name:type`."""
    named = (each.partition(":") for each in columns.split())
    return T.StructType([T.StructField(name, _TYPES[kind]) for name, _, kind in named])


HEADERS = T.ArrayType(_struct("key value:bytes"))
SUMMARY = _struct(
    "state reason producer_group first_offset:long last_offset:long twin_offsets:longs seen:long count:long appended_ms:long "
    "born_ms:long key_hash order immunity_ms:long decided_offset:long decided_line:long moved_ms:long topics:texts "
    "checked_count:long answered_count:long asked_ms:long answered_number:long"
)
_QUARANTINED = _struct("origin_topic origin_partition:long origin_offset:long origin_line:long reason why")
_TYPES |= {"headers": HEADERS, "summary": SUMMARY, "quarantined": _QUARANTINED}

_POSITION = "topic partition:int offset:long timestamp:time"  # the first columns of everything that is read
_USERS = "key:bytes value:bytes headers:headers"  # what belongs to the user, without our headers
_HALF = (
    "txn_id nonce producer_group real_topic index:long count:long born_ms:long key_hash order immunity_ms:long "
    "target_partition:long target_timestamp_ms:long key_murmur:long"
)
_COLUMNS = {
    # One row per half message.
    TopicKind.HALF: f"{_USERS} {_HALF}",
    # Per line of an op record.
    TopicKind.OP: "line:int resolution txn_id nonce producer_group last_offset:long born_ms:long source check_number:long "
    "is_abandon:bool reason",
    # Per check-back, limit or refusal.
    TopicKind.CHECK: "kind txn_id nonce producer_group half_partition:long last_offset:long born_ms:long number:long text",
    # Per record; `record` is summary, content or kept_aside, and says which columns are set.
    TopicKind.DOUBT: f"{_USERS} record is_tombstone:bool {_HALF} summary:summary kept_aside:quarantined",
    # Per claim, renewal or release of a queue.
    TopicKind.LOCKS: "kind queue consumer_group real_topic real_partition:long generation:long holder instance_id token:long "
    "reason",
    # Per dead letter, the message as it was given up; `txn_id` where txlayer had forwarded it.
    TopicKind.DLQ: f"{_USERS} consumer_group reason origin_topic origin_partition:long origin_offset:long origin_ms:long "
    "attempt_count:long first_ms:long last_ms:long error_type error_message txn_id",
    # Per request about a dead letter or a queue, and per result; the dead letter is in the same partition.
    TopicKind.REPLAY: "key:bytes kind request_id dead_letter_offset:long outcome text",
    # Per record of a real topic; txlayer's columns are null if another client wrote it.
    TopicKind.FORWARDED: f"{_USERS} txn_id half_partition:long half_offset:long index:long count:long born_ms:long",
}
SCHEMAS = {kind: _struct(f"{_POSITION} {columns} error") for kind, columns in _COLUMNS.items()}
"""`error` is null, or says why txlayer's columns are null: the record is malformed."""

BRONZE = _struct(
    # `batch`: of its reader; `is_append_time`: False where the timestamp is a producer's, null in folders of earlier releases;
    # `key_hash`, `content_hash`: in place of a user's key, and of key, value and headers, null where bronze holds the content.
    f"{_POSITION} {_USERS} batch:long is_append_time:bool key_hash:long content_hash:long "
    # Partition columns.
    "folder kind day:day"
)
"""One row per record of Kafka, unchanged: key, value and all headers, txlayer's too; or hashes instead of what users sent."""


# --- reading ----------------------------------------------------------------------------------------------------------

POSITION = ("topic", "partition", "offset", "timestamp")  # the columns that every row begins with
_USER = ("key", "value", "headers")


def judged(
    decoded: DataFrame,
    is_good: Column,
    what: str,
    kind: TopicKind,
    *,
    beside: Sequence[str] = (),
    is_versioned: bool = True,
) -> DataFrame:
    """`error` says why `_line` is malformed; then txlayer's columns, except `beside`, are null: a part of a line is never used."""
    line = F.col("_line")
    version = F.split_part(line, F.lit("|"), F.lit(1))
    error = (
        F.when(lines.sure(is_good), F.lit(None).cast("string"))
        .when(line.isNull(), F.lit(f"{what}: missing, or not ASCII"))
        .when(
            ~version.isin(VERSION, NEXT_VERSION) & F.lit(is_versioned),
            F.concat(F.lit(f"{what}: unknown version "), F.left(version, F.lit(20))),
        )
        .otherwise(F.lit(f"{what}: out of form"))
    )
    ours = [f.name for f in SCHEMAS[kind] if f.name not in {*POSITION, "error", *beside}]
    told = decoded.withColumn("error", error)
    return told.withColumns({name: F.when(F.isnull("error"), F.col(name)) for name in ours})


def all_of(conditions: Iterable[Column]) -> Column:
    return reduce(Column.__and__, conditions, F.lit(True))


def are_there(columns: Iterable[Column | str]) -> Column:
    return all_of(map(F.isnotnull, columns))


def locks(raw: DataFrame) -> DataFrame:
    """Records of the lock log → `SCHEMAS`."""
    queue, token = lines.text(F.col("key")), _field(5)
    located = raw.select(
        *POSITION,
        # Bytes that are not text cannot name a queue.
        F.when(F.is_valid_utf8(queue) & queue.rlike(lines.QUEUE), queue).alias("queue"),
        lines.text(F.col("value")).alias("_line"),
    )
    group, topic, partition = (F.regexp_extract("queue", lines.QUEUE, number) for number in (1, 2, 3))
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
    is_there = F.isnotnull("queue") & F.isnotnull("generation") & ((token == "") | F.isnotnull("token"))
    is_good = F.col("_form") & is_there & (F.col("real_partition") <= PARTITION_MAX)
    return judged(decoded, is_good, "lock", TopicKind.LOCKS)


def dead_letters(raw: DataFrame) -> DataFrame:
    """Records of a dead-letter topic → `SCHEMAS`."""
    headers = F.col("headers")
    txn_id = lines.text(lines.header(headers, codec.ID_HEADER))
    located = raw.select(
        *POSITION,
        "key",
        "value",
        lines.of_user(headers).alias("headers"),
        F.when(txn_id.rlike(lines.TXN_ID), txn_id).alias("txn_id"),
        lines.text(lines.header(headers, DLQ_HEADER)).alias("_line"),
    )
    numbers = ("origin_partition", "origin_offset", "origin_ms", "attempt_count", "first_ms", "last_ms")
    decoded = _split(located, lines.DEAD_LETTER).withColumns(
        {
            "reason": _field(1),
            "origin_topic": _field(2),
            **{name: lines.whole(_field(at)) for at, name in enumerate(numbers, start=3)},
            "error_type": F.left(lines.unquoted(_field(9)), F.lit(TYPE_LENGTH_MAX)),
            "error_message": F.left(lines.unquoted(_field(10)), F.lit(MESSAGE_LENGTH_MAX)),
            "consumer_group": lines.unquoted(_field(11)),
        }
    )
    is_good = F.col("_form") & are_there(numbers) & (F.col("origin_partition") <= PARTITION_MAX)
    # The message is kept whole, even if its header is malformed.
    return judged(decoded, is_good, "dead letter", TopicKind.DLQ, beside=(*_USER, "txn_id"))


def replays(raw: DataFrame) -> DataFrame:
    """Records of a replay topic → `SCHEMAS`."""
    offset, is_result = _field(3), _field(1) == ReplayKind.RESULT.value
    located = raw.select(*POSITION, "key", lines.text(F.col("value")).alias("_line"))
    decoded = _split(located, lines.REPLAY).withColumns(
        {
            "kind": _name(_field(1), ReplayKind),
            "request_id": _field(2),
            "dead_letter_offset": lines.whole(F.when(offset != "", offset)),
            "outcome": F.when(is_result, _field(4)),
            "text": F.left(lines.unquoted(F.when(is_result, _field(5)).otherwise(_field(4))), F.lit(TEXT_LENGTH_MAX)),
        }
    )
    # A copy that takes the dead letter's place.
    copy = F.when(_field(1) == ReplayKind.DROP.value, F.nullif(_field(5), F.lit("")))
    is_good = F.col("_form") & ((offset == "") | F.isnotnull("dead_letter_offset"))
    is_good = is_good & (copy.isNull() | lines.whole(copy).isNotNull())
    return judged(decoded, is_good, "replay record", TopicKind.REPLAY, beside=("key",))


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


_OPTIONS = {"immunity_ms": "i", "target_partition": "n", "target_timestamp_ms": "t", "key_murmur": "m"}
"""{column: the letter of its option}."""


def parse(raw: DataFrame, kind: TopicKind, *, beside: Sequence[str] = ()) -> DataFrame:
    """Kafka records (with headers) of topics of one kind → the columns that `SCHEMAS` says of it, and those of `raw` beside them."""
    if beside:
        # The decoders copy the timestamp unchanged, so it can carry the other columns.
        rows = _DECODERS[kind](raw.withColumn("timestamp", F.struct("timestamp", *beside)))
        rows = rows.withColumns({name: F.col("timestamp")[name] for name in ("timestamp", *beside)})
    else:
        rows = _DECODERS[kind](raw)
    # Not by `to`, which makes each header anew, by a walk that Spark does not compile.
    return rows.select(*(F.col(f.name).cast(f.dataType).alias(f.name) for f in SCHEMAS[kind]), *beside)


def _half(raw: DataFrame) -> DataFrame:
    located = raw.select(
        *POSITION,
        "key",
        "value",
        lines.of_user(F.col("headers"), codec.HALF_HEADER).alias("headers"),
        lines.text(lines.header(F.col("headers"), codec.HALF_HEADER)).alias("_line"),
    )
    return _with_half_columns(located)


def _with_half_columns(located: DataFrame) -> DataFrame:
    """`_line`, the header `txl`, → what it says, and `error`."""
    part, options = _field(4), _field(6)
    given = {name: lines.option(options, letter) for name, letter in _OPTIONS.items()}
    order = lines.option(options, "o", "[^,]*")
    prepare, commit = OrderMode.PREPARE.value, OrderMode.COMMIT.value
    decoded = _split(located, lines.HALF).withColumns(
        {
            "txn_id": lines.txn_id_of(_field(1)),
            "nonce": lines.nonce_of(_field(1)),
            "producer_group": _field(2),
            "real_topic": _field(3),
            "index": lines.whole(F.split_part(part, F.lit("/"), F.lit(1))),
            "count": lines.whole(F.split_part(part, F.lit("/"), F.lit(2))),
            "born_ms": lines.whole(_field(5)),
            "key_hash": lines.option(options, "k", lines.KEY_HASH),
            "order": F.when(order == "p", prepare).otherwise(F.lit(commit)),
            **{name: lines.whole(found) for name, found in given.items()},
            "_options_fit": all_of([found.isNull() | lines.whole(found).isNotNull() for found in given.values()]),
        }
    )
    is_good = F.col("_form") & (F.length("_line") <= HALF_HEADER_BYTES_MAX) & F.isnotnull("born_ms")
    is_good = is_good & (F.col("index") < F.col("count")) & F.col("_options_fit")
    is_good = is_good & (F.isnull("target_partition") | (F.col("target_partition") <= PARTITION_MAX))
    return judged(decoded, is_good, "half header", TopicKind.HALF, beside=_USER)


def _op(raw: DataFrame) -> DataFrame:
    # A value that is not ASCII is malformed as a whole: the ends of its lines are unknown.
    value = lines.text(F.col("value"))
    found = F.when(value.rlike(lines.ASCII) & (value != ""), F.split(value, "\n"))
    exploded = raw.select(*POSITION, F.posexplode_outer(found).alias("line", "_line"))
    exploded = exploded.withColumn("line", F.coalesce("line", F.lit(0)))
    letter, check = _field(1), _field(7)
    decoded = _split(exploded, lines.OP).withColumns(
        {
            "is_abandon": letter == "A",
            "resolution": F.when(letter == "A", Resolution.ROLLBACK.name).otherwise(_name(letter, Resolution)),
            "txn_id": lines.txn_id_of(_field(2)),
            "nonce": lines.nonce_of(_field(2)),
            "producer_group": _field(3),
            "last_offset": lines.whole(_field(4)),
            "born_ms": lines.whole(_field(5)),
            "source": _field(6),
            "check_number": lines.whole(F.when(check != "", check)),
            "reason": lines.unquoted(_field(8)),
        }
    )
    is_there = are_there(("last_offset", "born_ms")) & ((check == "") | F.isnotnull("check_number"))
    is_good = F.col("_form") & is_there
    return judged(decoded, is_good, "op line", TopicKind.OP, beside=("line",))


def _check(raw: DataFrame) -> DataFrame:
    located = raw.select(*POSITION, lines.text(F.col("value")).alias("_line"))
    key = _field(2)
    numbers = {"half_partition": 4, "last_offset": 5, "born_ms": 6, "number": 7}
    decoded = _split(located, lines.CHECK).withColumns(
        {
            "kind": _field(1),
            "txn_id": F.when(key != "", lines.txn_id_of(key)),
            "nonce": F.when(key != "", lines.nonce_of(key)),
            "producer_group": _field(3),
            **{name: lines.whole(_field(at)) for name, at in numbers.items()},
            "text": lines.unquoted(_field(8)),
        }
    )
    is_good = F.col("_form") & are_there(numbers) & (F.col("half_partition") <= PARTITION_MAX)
    return judged(decoded, is_good, "check", TopicKind.CHECK)


def _doubt(raw: DataFrame) -> DataFrame:
    name = lines.text(F.col("key"))
    record = (
        F.when(name.rlike(lines.QUARANTINE_KEY), "kept_aside")
        .when(name.rlike(lines.SUMMARY_KEY), "summary")
        .when(name.rlike(lines.CONTENT_KEY), "content")
    )
    headers = F.col("headers")
    is_content, is_summary = F.col("record") == "content", F.col("record") == "summary"
    is_held = is_content | (F.col("record") == "kept_aside")
    is_null = F.exists("headers", lambda each: each["key"] == codec.NULL_HEADER)
    key = F.split(name, "/")
    content_line = lines.text(lines.header(headers, codec.HALF_HEADER))
    located = raw.withColumn("record", record).withColumn(
        "is_tombstone", F.isnull("value") & F.col("record").isNotNull()
    )
    located = located.select(
        *POSITION,
        "record",
        "is_tombstone",
        F.when(is_held, lines.header(headers, codec.KEY_HEADER)).alias("key"),
        F.when(is_held & ~lines.sure(is_null), F.col("value")).alias("value"),
        F.when(is_held, lines.of_user(headers)).alias("headers"),
        F.when(is_content & ~F.col("is_tombstone"), content_line).alias("_line"),
        F.when(is_summary, lines.text(F.col("value"))).alias("_summary"),
        F.get(key, F.lit(0)).alias("_id"),
        F.get(key, F.lit(1)).alias("_nonce"),
        lines.whole(F.get(key, F.lit(2))).alias("_index"),
        _quarantined(key, lines.text(lines.header(headers, codec.WHY_HEADER))).alias("kept_aside"),
    )
    summarised = _with_summary(located)
    decoded = _with_half_columns(summarised)
    is_end = F.col("is_tombstone")
    is_wrong_content = is_content & ~is_end & (F.col("error").isNotNull() | F.isnull("_index"))
    is_wrong_summary = is_summary & ~is_end & F.isnull("summary")
    error = (
        F.when(F.col("record").isNull(), F.lit("doubt: unknown key"))
        .when(is_wrong_content, F.lit("doubt content: out of form"))
        .when(is_wrong_summary, F.lit("doubt summary: out of form"))
    )
    is_ours = is_content | is_summary
    return decoded.withColumns(
        {
            "error": error,
            "kept_aside": F.when(F.col("record") == "kept_aside", F.col("kept_aside")),
            "txn_id": F.when(is_ours, F.col("_id")),
            "nonce": F.when(is_ours, F.col("_nonce")),
            "index": F.when(is_content, F.col("_index")),
        }
    )


def _quarantined(key: Column, why: Column) -> Column:
    position = F.get(key, F.lit(3))
    return F.struct(
        F.get(key, F.lit(1)).alias("origin_topic"),
        lines.whole(F.get(key, F.lit(2))).alias("origin_partition"),
        lines.whole(F.split_part(position, F.lit(":"), F.lit(1))).alias("origin_offset"),
        lines.whole(F.split_part(position, F.lit(":"), F.lit(2))).alias("origin_line"),
        F.split_part(why, F.lit(" "), F.lit(1)).alias("reason"),
        F.regexp_extract(why, r"(?s)\A[^ ]* ?(.*)\z", 1).alias("why"),
    )


def _with_summary(located: DataFrame) -> DataFrame:
    def field(number: int) -> Column:
        return F.get("_s", F.lit(number))

    def part(number: int, separator: str, at: int) -> Column:
        return lines.whole(F.split_part(field(number), F.lit(separator), F.lit(at)))

    last = F.transform(F.split(field(5), r"\+"), lines.whole)
    required = {
        "first_offset": lines.whole(field(4)),
        "last_offset": F.get(last, F.lit(0)),
        "seen": lines.whole(field(6)),
        "count": lines.whole(field(7)),
        "appended_ms": lines.whole(field(8)),
        "born_ms": lines.whole(field(9)),
        "moved_ms": lines.whole(field(14)),
        "checked_count": part(16, "/", 1),
        "answered_count": part(16, "/", 2),
        "asked_ms": part(16, "/", 3),
        "answered_number": part(16, "/", 4),
    }
    columns = {
        "state": lines.before(field(1), "+"),
        "reason": field(2),
        "producer_group": field(3),
        "twin_offsets": F.slice(last, F.lit(2), F.size(last)),
        "key_hash": _set(field(10)),
        "order": field(11),
        "immunity_ms": lines.whole(_set(field(12))),
        "decided_offset": part(13, ":", 1),
        "decided_line": part(13, ":", 2),
        "topics": F.when(field(15) == "", F.array()).otherwise(F.split(field(15), ",")),
        **required,
    }
    ordered = [columns[f.name].alias(f.name) for f in SUMMARY]
    is_good = are_there(required.values())
    return (
        located.withColumn("_s", F.when(F.col("_summary").rlike(lines.SUMMARY), lines.fields(F.col("_summary"))))
        .withColumn("summary", F.when(F.isnotnull("_s") & is_good, F.struct(*ordered)))
        .drop("_s", "_summary")
    )


def _set(field: Column) -> Column:
    return F.when(field != "", field)


_FORWARDED_HEADERS = (codec.ID_HEADER, codec.ORIGIN_HEADER)  # each once


def _forwarded(raw: DataFrame) -> DataFrame:
    headers = F.col("headers")
    # Apart, or Spark would look through the headers for each use.
    raw = raw.withColumn("_user", lines.of_user(headers, *_FORWARDED_HEADERS))
    last = [F.try_element_at(headers, F.lit(at))["key"] for at in (-2, -1)]
    # As coordinators write them they need no further walk, which Spark does not compile.
    is_usual = all_of([name == ours for name, ours in zip(last, _FORWARDED_HEADERS, strict=True)])
    is_usual = is_usual & (F.size("_user") == F.size(headers) - len(_FORWARDED_HEADERS))
    every = F.size(F.filter(headers, lambda each: each["key"].isin(*_FORWARDED_HEADERS)))
    located = raw.select(
        *POSITION,
        "key",
        "value",
        F.col("_user").alias("headers"),
        lines.text(lines.header(headers, codec.ID_HEADER, usual_index=-2)).alias("_id"),
        lines.text(lines.header(headers, codec.ORIGIN_HEADER)).alias("_line"),
        F.when(is_usual, len(_FORWARDED_HEADERS)).otherwise(every).alias("_ours"),
    )
    where, part = _field(0), _field(1)
    numbers = {
        "half_partition": lines.before(where, ":"),
        "half_offset": lines.after(where, ":"),
        "index": lines.before(part, "/"),
        "count": lines.after(part, "/"),
        "born_ms": _field(2),
    }
    decoded = (
        _split(located, lines.ORIGIN)
        .withColumn("txn_id", F.col("_id"))
        .withColumns({name: lines.whole(field) for name, field in numbers.items()})
    )
    is_good = F.col("_form") & are_there(numbers) & (F.col("index") < F.col("count"))
    is_good = is_good & F.col("txn_id").rlike(lines.TXN_ID) & (F.col("_ours") == len(_FORWARDED_HEADERS))
    told = judged(decoded, is_good, "forwarded", TopicKind.FORWARDED, beside=_USER, is_versioned=False)
    # Neither header: another client's record, which is no fault.
    is_foreign = F.isnull("_id") & F.isnull("_line")
    return told.withColumn("error", F.when(~is_foreign, F.col("error")))


_DECODERS: dict[TopicKind, Callable[[DataFrame], DataFrame]] = {
    TopicKind.HALF: _half,
    TopicKind.OP: _op,
    TopicKind.CHECK: _check,
    TopicKind.DOUBT: _doubt,
    TopicKind.LOCKS: locks,
    TopicKind.DLQ: dead_letters,
    TopicKind.REPLAY: replays,
    TopicKind.FORWARDED: _forwarded,
}
