"""Which topic holds what, and the columns that reading it gives; parse.py reads them."""

from enum import Enum

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from txlayer.core.messages import DLQ_SUFFIX, REPLAY_SUFFIX

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
    """What a topic holds, by its name: a system topic says it in its last part, any other is a real one."""
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


def _struct(*columns: T.StructField) -> T.StructType:
    return T.StructType(list(columns))


def _columns(**types: object) -> tuple[T.StructField, ...]:
    return tuple(T.StructField(name, kind) for name, kind in types.items())  # type: ignore[arg-type]  # T.StructField's own check


TEXT, NUMBER, BYTES = T.StringType(), T.LongType(), T.BinaryType()
HEADERS = T.ArrayType(_struct(*_columns(key=TEXT, value=BYTES)))

POSITION = _columns(topic=TEXT, partition=T.IntegerType(), offset=NUMBER, timestamp=T.TimestampType())
"""Where a record is, and since when: the first columns of everything that is read."""
USER = _columns(key=BYTES, value=BYTES, headers=HEADERS)  # what belongs to the user, without our headers
ERROR = T.StructField("error", TEXT)  # null, or why the columns of ours are: the record is not of our form
_TRANSACTION = _columns(txn_id=TEXT, nonce=TEXT)
_HALF = (
    *_TRANSACTION,
    *_columns(
        producer_group=TEXT,
        real_topic=TEXT,
        index=NUMBER,
        count=NUMBER,
        born_ms=NUMBER,
        key_hash=TEXT,
        order=TEXT,
        immunity_ms=NUMBER,
        target_partition=NUMBER,
        target_timestamp_ms=NUMBER,
        key_murmur=NUMBER,
    ),
)

HALF = _struct(*POSITION, *USER, *_HALF, ERROR)  # one row per half message

OP = _struct(
    *POSITION,
    *_columns(line=T.IntegerType(), resolution=TEXT),
    *_TRANSACTION,
    *_columns(
        producer_group=TEXT,
        last_offset=NUMBER,
        born_ms=NUMBER,
        source=TEXT,
        check_number=NUMBER,
        is_abandon=T.BooleanType(),
        reason=TEXT,
    ),
    ERROR,
)
"""One row per line of an op record."""

CHECK = _struct(
    *POSITION,
    *_columns(kind=TEXT),
    *_TRANSACTION,
    *_columns(producer_group=TEXT, half_partition=NUMBER, last_offset=NUMBER, born_ms=NUMBER, number=NUMBER, text=TEXT),
    ERROR,
)
"""One row per check-back, limit or refusal."""

SUMMARY = _struct(
    *_columns(
        state=TEXT,
        reason=TEXT,
        producer_group=TEXT,
        first_offset=NUMBER,
        last_offset=NUMBER,
        twin_offsets=T.ArrayType(NUMBER),
        seen=NUMBER,
        count=NUMBER,
        appended_ms=NUMBER,
        born_ms=NUMBER,
        key_hash=TEXT,
        order=TEXT,
        immunity_ms=NUMBER,
        decided_offset=NUMBER,
        decided_line=NUMBER,
        moved_ms=NUMBER,
        topics=T.ArrayType(TEXT),
        checked_count=NUMBER,
        answered_count=NUMBER,
        asked_ms=NUMBER,
        answered_number=NUMBER,
    )
)
QUARANTINED = _struct(
    *_columns(
        origin_topic=TEXT, origin_partition=NUMBER, origin_offset=NUMBER, origin_line=NUMBER, reason=TEXT, why=TEXT
    )
)
DOUBT = _struct(
    *POSITION,
    *USER,
    *_columns(record=TEXT, is_tombstone=T.BooleanType()),
    *_HALF,
    *_columns(summary=SUMMARY, kept_aside=QUARANTINED),
    ERROR,
)
"""One row per record; `record` is summary, content or kept_aside, and says which columns are set."""

FORWARDED = _struct(
    *POSITION,
    *USER,
    *_columns(txn_id=TEXT, half_partition=NUMBER, half_offset=NUMBER, index=NUMBER, count=NUMBER, born_ms=NUMBER),
    ERROR,
)
"""One row per record of a real topic; the columns of ours are null where somebody else wrote it."""

LOCKS = _struct(
    *POSITION,
    *_columns(
        kind=TEXT,
        queue=TEXT,
        consumer_group=TEXT,
        real_topic=TEXT,
        real_partition=NUMBER,
        generation=NUMBER,
        holder=TEXT,
        instance_id=TEXT,
        token=NUMBER,
        reason=TEXT,
    ),
    ERROR,
)
"""One row per claim, renewal or release of a queue."""

DLQ = _struct(
    *POSITION,
    *USER,
    *_columns(
        consumer_group=TEXT,
        reason=TEXT,
        origin_topic=TEXT,
        origin_partition=NUMBER,
        origin_offset=NUMBER,
        origin_ms=NUMBER,
        attempt_count=NUMBER,
        first_ms=NUMBER,
        last_ms=NUMBER,
        error_type=TEXT,
        error_message=TEXT,
        txn_id=TEXT,
    ),
    ERROR,
)
"""One row per dead letter, the message as it was given up; `txn_id` where txlayer had forwarded it."""

REPLAY = _struct(
    *POSITION,
    *_columns(key=BYTES, kind=TEXT, request_id=TEXT, dead_letter_offset=NUMBER, outcome=TEXT, text=TEXT),
    ERROR,
)
"""One row per request about a dead letter or a queue, and per result; the dead letter is in the same partition."""

SCHEMAS = {
    TopicKind.HALF: HALF,
    TopicKind.OP: OP,
    TopicKind.CHECK: CHECK,
    TopicKind.DOUBT: DOUBT,
    TopicKind.LOCKS: LOCKS,
    TopicKind.DLQ: DLQ,
    TopicKind.REPLAY: REPLAY,
    TopicKind.FORWARDED: FORWARDED,
}

BRONZE = _struct(
    *POSITION,
    *USER,
    *_columns(
        batch=NUMBER,  # of its reader
        is_append_time=T.BooleanType(),  # False: the timestamp is a producer's; null in folders of earlier releases
        key_hash=NUMBER,  # in place of a user's key; this and the next one are null where bronze holds the content
        content_hash=NUMBER,  # in place of a user's key, value and headers
        folder=TEXT,  # partition columns from here on
        kind=TEXT,
        day=T.DateType(),
    ),
)
"""One row per record of Kafka, as it was found: key, value and headers with ours among them. Or hashes in place of what users sent."""
