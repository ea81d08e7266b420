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
_USER = "key:bytes value:bytes headers:headers"  # what belongs to the user, without our headers
_HALF = (
    "txn_id nonce producer_group real_topic index:long count:long born_ms:long key_hash order immunity_ms:long "
    "target_partition:long target_timestamp_ms:long key_murmur:long"
)
_COLUMNS = {
    # One row per half message.
    TopicKind.HALF: f"{_USER} {_HALF}",
    # Per line of an op record.
    TopicKind.OP: "line:int resolution txn_id nonce producer_group last_offset:long born_ms:long source check_number:long "
    "is_abandon:bool reason",
    # Per check-back, limit or refusal.
    TopicKind.CHECK: "kind txn_id nonce producer_group half_partition:long last_offset:long born_ms:long number:long text",
    # Per record; `record` is summary, content or kept_aside, and says which columns are set.
    TopicKind.DOUBT: f"{_USER} record is_tombstone:bool {_HALF} summary:summary kept_aside:quarantined",
    # Per claim, renewal or release of a queue.
    TopicKind.LOCKS: "kind queue consumer_group real_topic real_partition:long generation:long holder instance_id token:long "
    "reason",
    # Per dead letter, the message as it was given up; `txn_id` where txlayer had forwarded it.
    TopicKind.DLQ: f"{_USER} consumer_group reason origin_topic origin_partition:long origin_offset:long origin_ms:long "
    "attempt_count:long first_ms:long last_ms:long error_type error_message txn_id",
    # Per request about a dead letter or a queue, and per result; the dead letter is in the same partition.
    TopicKind.REPLAY: "key:bytes kind request_id dead_letter_offset:long outcome text",
    # Per record of a real topic; the columns of ours are null where somebody else wrote it.
    TopicKind.FORWARDED: f"{_USER} txn_id half_partition:long half_offset:long index:long count:long born_ms:long",
}
SCHEMAS = {kind: _struct(f"{_POSITION} {columns} error") for kind, columns in _COLUMNS.items()}
"""`error` is null, or why the columns of ours are: the record is not of our form."""

BRONZE = _struct(
    # `batch`: of its reader; `is_append_time`: False where the timestamp is a producer's, null in folders of earlier releases;
    # `key_hash`, `content_hash`: in place of a user's key, and of key, value and headers, null where bronze holds the content.
    f"{_POSITION} {_USER} batch:long is_append_time:bool key_hash:long content_hash:long "
    # Partition columns.
    "folder kind day:day"
)
"""One row per record of Kafka, as it was found: key, value and headers with ours among them. Or hashes in place of what users sent."""
