"""Bronze → one narrow row per thing that happened to a transaction. Numbers alone beside the id: what is shuffled is small,
and what is aggregated fits Spark's hash aggregation.

Columns: `txn_id`, `nonce` (null for forwarded records, which do not name it), `kind`, and numbers whose meaning depends on
it; the functions below say which. Never: folding them (ledger.py).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import reduce
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer.core import codec
from txlayer.core.checks import IMMUNITY_MS_MAX
from txlayer.core.codec import PARTITION_MAX
from txlayer.core.dead_letters import ReplayKind
from txlayer.core.ledger.transitions import SETTLED, TxnState
from txlayer.core.messages import RESERVED_HEADER_PREFIX, ParkReason, Resolution, Source
from txlayer_spark import lines
from txlayer_spark.parse import TopicKind

TOPIC_BITS = 63  # real topics that a row can tell apart; further ones share the last bit
LINE_BITS, SOURCE_BITS, OFFSET_BITS, REASON_BITS, STATE_BITS = 16, 4, 44, 8, 4
PARTITION_BITS = 14  # of a real partition's number; above it is which one of its name the topic was
INCARNATIONS_MAX = 31  # topics of one name that are told apart; further ones share the last number
SOURCES = tuple(source.value for source in Source)
LATER = "unknown"
SCHEDULED = TxnState.SCHEDULED.value
STATES = ("", *(state.value for state in TxnState if state is not TxnState.SCHEDULED), LATER, SCHEDULED)
"""Of a doubt summary, by number; 0 is its end, and `LATER` any state of a later release."""
REASONS = ("", *(reason.value for reason in ParkReason))


class Kind(IntEnum):
    """What happened."""

    HALF = 0
    OP = 1
    CHECK = 2
    DOUBT = 3
    FORWARDED = 4
    CONTENT = 5
    TWIN = 8  #: a second copy of a half record, as a summary names it
    QUARANTINED = 7  #: an op line that was given up before its half record came, or a half record that is no part of its transaction
    MISPLACED = 6  #: a half record in a partition that is not its transaction's; or one, or an op line, with a number that is none


class Held(IntEnum):
    """What a content on doubt is."""

    ENDED = 0
    WHOLE = 1
    CUT = 2


class Said(IntEnum):
    """What an op line says."""

    COMMIT = 1
    ROLLBACK = 2
    UNKNOWN = 3
    ABANDON = 4
    RELEASE = 5  #: a commit with a time: messages with this time may be visible from here on
    RESCHEDULE = 6  #: an unknown with a time: all that is left has this one


_OF_ALL = ("txn_id", "nonce", "kind", "partition", "pos", "at_ms", "born_ms")
COLUMNS = (*_OF_ALL, "n", "idx", "hash", "a", "b", "c", "key", "g", "w", "d", "t", "due")
EVENT_KINDS = (TopicKind.HALF, TopicKind.OP, TopicKind.CHECK, TopicKind.DOUBT, TopicKind.FORWARDED)


class Names:
    """Producer groups and real topics by number: what is short can be aggregated as a number, or as one bit."""

    _COMPARED_MAX = 16
    """Names that a row is compared with one by one; more are looked up by a join, which takes steps of its own."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        groups: Sequence[str],
        topics: Sequence[str],
        half_partitions: int = 0,
        half_gaps: Mapping[int, Sequence[tuple[int, int]]] = MappingProxyType({}),
        incarnations: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
    ) -> None:
        """The position of a name is its number for ever.

        `half_partitions` 0: their count is unknown, and no half record is misplaced; `half_gaps`: {half partition: offsets from and up
        to which nothing could be read}; `incarnations`: as `ReadState.incarnations` says.
        """
        self.groups, self.topics = tuple(groups), tuple(topics)
        self.half_partitions = half_partitions
        self._gaps = half_gaps
        self._incarnations = incarnations
        self._spark = spark

    def lane(self) -> Column:
        """The real partition of a row of bronze, packed with which one of its name its topic was."""
        partition = F.col("partition").cast("bigint")
        reader = F.split_part("folder", F.lit("-"), F.lit(1)).cast("int")
        for topic, times in self._incarnations.items():
            for number, count in times.items():
                above = min(count, INCARNATIONS_MAX) << PARTITION_BITS
                is_it = (F.col("topic") == topic) & (reader == number)
                partition = F.when(is_it, F.col("partition") + F.lit(above)).otherwise(partition)
        return partition

    def is_in_gap(self, partition: Column, offset: Column) -> Column:
        """Whether the half record that would stand there was gone before it could be read."""
        # Nearly every gap was there before the first read: one look instead of one for each partition.
        begins = {number: end for number, spans in self._gaps.items() for start, end in spans if not start}
        found = lines.sure(offset < by_number(begins, partition))
        for number, spans in self._gaps.items():
            for start, end in spans:
                if start:
                    found = found | ((partition == number) & (offset >= start) & (offset < end))
        return found

    def number(self, frame: DataFrame, names: Sequence[str], alias: str) -> DataFrame:
        """The frame with `alias`: the number of the name in `_name`, null for an unknown one; `_name` goes."""
        if not names:
            return frame.withColumn(alias, F.lit(None).cast("bigint")).drop("_name")
        if len(names) <= self._COMPARED_MAX:
            index = F.array_position(F.array(*map(F.lit, names)), F.col("_name"))
            return frame.withColumn(alias, F.when(index > 0, index - 1)).drop("_name")
        known = self._spark.range(1).select(F.posexplode(_listed(names)).alias(alias, "_name"))
        known = known.withColumn(alias, F.col(alias).cast("bigint"))
        return frame.join(F.broadcast(known), "_name", "left").drop("_name")

    def text(self, number: Column, names: Sequence[str]) -> Column:
        if not names:
            return F.lit(None).cast("string")
        return F.get(_listed(names), number.cast("int"))

    def texts(self, bits: Column) -> Column:
        """The topics whose bits are set; `…` means those that share the last bit."""
        shown = [*self.topics[:TOPIC_BITS], *(["…"] if len(self.topics) > TOPIC_BITS else [])]
        named = [F.when(bits.bitwiseAND(F.lit(signed(1 << at))) != 0, F.lit(name)) for at, name in enumerate(shown)]
        nothing = F.array().cast("array<string>")
        # No name of a topic has a comma; to leave nulls out of an array Spark walks it, which it does not compile.
        joined = F.concat_ws(",", *named)
        return F.when(joined != "", F.split(joined, ",")).otherwise(nothing)


def _listed(names: Sequence[str]) -> Column:
    """The names as one array. None holds what ends a field; to call Java for each of a thousand takes seconds."""
    return F.split(F.lit("|".join(names)), "[|]")


def by_number(values: Mapping[int, int], number: Column) -> Column:
    """The value of a small number; null without one."""
    if not values:
        return F.lit(None).cast("bigint")
    each = [F.lit(values.get(at)).cast("bigint") for at in range(max(values) + 1)]
    return F.get(F.array(*each), number.cast("int"))


def events(bronze: DataFrame, names: Names, *, kinds: Sequence[TopicKind] = EVENT_KINDS) -> DataFrame:
    """Rows of bronze → what happened, `COLUMNS`; malformed records are left out.

    Each record is matched with one pattern and split once. `parse` also says what is wrong with a record, but with a
    filter on its columns Spark repeats all of its work, and plans for minutes.
    """
    return reduce(DataFrame.union, (_MAKERS[kind](bronze.where(F.col("kind") == kind.value), names) for kind in kinds))


DUE_BIT = 1 << 61  # higher than any immunity


def _half(records: DataFrame, names: Names) -> DataFrame:
    """pos: offset; n: count; a: group; b: number of the topic; c: immunity and mode, and whether it has a time before which no consumer may see it; key: hash of the ordering key;
    hash: of everything that a forwarded record repeats; g: of group and partition; w: of the partition that it names;
    d: of the content; t: the timestamp that it names; due: that time.
    """
    line = lines.text(lines.header(F.col("headers"), codec.HALF_HEADER))
    narrow = _narrow(records, _line=line)
    rows = _split(narrow.where(F.length("_line") <= codec.HALF_HEADER_BYTES_MAX), lines.HALF)
    rows = names.number(rows.withColumn("_name", _field(2)), names.groups, "_group")
    rows = names.number(rows.withColumn("_name", _field(3)), names.topics, "_topic")
    options = _field(6)
    rows = rows.withColumns(
        {
            "_key": lines.option_or_empty(options, "k", lines.KEY_HASH),
            "_immunity": lines.option_or_empty(options, "i"),
            "_wanted": lines.option_or_empty(options, "n"),
            "_timed": lines.option_or_empty(options, "t"),
            "_murmur": lines.option_or_empty(options, "m"),
            "_due": lines.option_or_empty(options, "d"),
        }
    )
    digits = [F.when(F.col("_key") != "", F.substring("_key", at, 8)) for at in (1, 9)]
    halves = [F.conv(digit, 16, 10).cast("bigint") for digit in digits]
    prepare = lines.sure(lines.option_or_empty(options, "o", "p") == "p")
    immunity = F.least(F.coalesce(_number_or_null("_immunity"), F.lit(0)), F.lit(IMMUNITY_MS_MAX))
    wanted, timed = _number_or_null("_wanted"), _number_or_null("_timed")
    part, born_ms = _field(4), lines.whole(_field(5))
    index, count = lines.whole(lines.before(part, "/")), lines.whole(lines.after(part, "/"))
    content = F.xxhash64(_field(3), index, "_content")
    return _row(
        rows,
        Kind.HALF,
        key=_field(1),
        born_ms=born_ms,
        pos=F.col("offset"),
        n=count,
        idx=index,
        hash=claimed(content, F.col("partition"), F.col("offset"), count, born_ms),
        a=F.col("_group"),
        b=F.col("_topic"),
        c=F.shiftleft(immunity, 1)
        .bitwiseOR(prepare.cast("bigint"))
        .bitwiseOR(F.when(F.col("_due") != "", DUE_BIT).otherwise(0)),
        ordering=F.shiftleft(halves[0], 32).bitwiseOR(halves[1]),
        g=F.xxhash64(_field(2), "partition"),
        w=F.when(F.isnotnull(wanted), F.xxhash64(index, wanted)),
        d=content,
        # 0 means the time of forwarding.
        t=F.when(timed > 0, timed),
        due=_number_or_null("_due"),
        is_misplaced=_is_misplaced(names, halves[0])
        | ~lines.sure(index < count)
        | F.isnull(born_ms)
        | reduce(Column.__or__, map(_is_beyond, ("_immunity", "_wanted", "_timed", "_murmur", "_due")))
        | lines.sure(wanted > PARTITION_MAX),
    )


def _number_or_null(column: str) -> Column:
    # What is no number costs a hidden exception.
    return F.when(F.col(column) != "", lines.whole(F.col(column)))


def _is_beyond(column: str) -> Column:
    """Whether a field that may be empty holds more digits than txlayer's numbers have: its record is malformed."""
    return lines.sure((F.col(column) != "") & F.isnull(lines.whole(F.col(column))))


def _is_misplaced(names: Names, key_crc: Column) -> Column:
    if not names.half_partitions:
        return F.lit(False)
    crc = F.coalesce(key_crc, F.crc32(lines.txn_id_of(_field(1)).cast("binary")))
    # Half may have had fewer partitions (`topics widen`); what came into a wrong one is quarantined.
    homes = (crc % count for count in range(names.half_partitions, 0, -1))
    return ~F.col("partition").isin(*homes)


def claimed(content: Column, partition: Column, offset: Column, count: Column, born_ms: Column) -> Column:
    """A hash of what a forwarded record says of itself and of its half record."""
    return F.xxhash64(content, *(part.cast("bigint") for part in (partition, offset, count, born_ms)))


def _op(records: DataFrame, names: Names) -> DataFrame:
    """pos: offset, line and source packed; n: last half offset; a: what it says; g: hash of group and partition; w: 1 when
    that half record was gone before it could be read; due: the time of a line that releases messages or gives them another one.
    """
    # What is not ASCII as a whole is no op record: the ends of its lines are unknown.
    records = records.where(lines.text(F.col("value")).rlike(lines.ASCII))
    each = F.split(lines.text(F.col("value")), "\n")
    rows = records.select("partition", "offset", "timestamp", F.posexplode(each).alias("_at", "_line"))
    rows = _split(rows, lines.OP)
    letters = [*((r.value, int(Said[r.name])) for r in Resolution), ("A", int(Said.ABANDON))]
    said = F.array_position(F.array(*(F.lit(letter) for letter, _ in sorted(letters, key=lambda x: x[1]))), _field(1))
    source = F.array_position(F.array(*map(F.lit, SOURCES)), _field(6))
    line = F.least("_at", F.lit((1 << LINE_BITS) - 1)).cast("bigint")
    last_offset, born_ms, check = lines.whole(_field(4)), lines.whole(_field(5)), _field(7)
    is_beyond = F.isnull(last_offset) | F.isnull(born_ms) | ((check != "") & F.isnull(lines.whole(check)))
    # Only a line of the next version has a field there.
    digits = F.when(said.isin(int(Said.COMMIT), int(Said.UNKNOWN)) & _field(9).rlike(r"\A[0-9]+\z"), _field(9))
    due = F.when(F.isnotnull(digits), lines.whole(digits))
    is_beyond = is_beyond | (F.isnotnull(digits) & F.isnull(due))
    said = F.when(F.isnull(due), said).when(said == int(Said.COMMIT), int(Said.RELEASE)).otherwise(int(Said.RESCHEDULE))
    pos = F.shiftleft("offset", LINE_BITS + SOURCE_BITS)
    pos = pos.bitwiseOR(F.shiftleft(line, SOURCE_BITS)).bitwiseOR(source)
    return _row(
        rows,
        Kind.OP,
        key=_field(2),
        born_ms=born_ms,
        pos=pos,
        n=last_offset,
        a=said,
        g=F.xxhash64(_field(3), "partition"),
        w=F.when(names.is_in_gap(F.col("partition"), last_offset), F.lit(1)),
        due=due,
        is_misplaced=is_beyond,
    )


def _check(records: DataFrame, _names: Names) -> DataFrame:
    """a: 1 a question, 2 a refusal; n: its number."""
    rows = _split(records.withColumn("_line", lines.text(F.col("value"))), lines.CHECK)
    rows = rows.where(_field(1).isin("Q", "X"))
    rows = rows.withColumn("partition", lines.partition(_field(4))).where(F.isnotnull("partition"))
    return _row(
        rows,
        Kind.CHECK,
        key=_field(2),
        born_ms=lines.whole(_field(6)),
        pos=F.col("offset"),
        n=lines.whole(_field(7)),
        a=F.when(_field(1) == "Q", 1).otherwise(2),
    )


def _doubt(records: DataFrame, names: Names) -> DataFrame:
    parts = (_summaries(records, names), _twins(records), _contents(records), _quarantined(records))
    return reduce(DataFrame.unionByName, parts)


def _quarantined(records: DataFrame) -> DataFrame:
    """pos: offset and line of an op line, packed without its source, or the offset of a half record; a: 1 for a half record."""
    name = lines.text(F.col("key"))
    position = F.split_part(name, F.lit("/"), F.lit(4))
    offset, line = (lines.whole(F.split_part(position, F.lit(":"), F.lit(part))).cast("bigint") for part in (1, 2))
    is_half = F.isnull(line)
    header = lines.text(lines.header(F.col("headers"), codec.HALF_HEADER))
    rows = records.where(name.rlike(lines.QUARANTINE_OF_TXN_KEY)).select(
        lines.partition(F.split_part(name, F.lit("/"), F.lit(3))).alias("partition"),
        "timestamp",
        F.when(is_half, 1).alias("_half"),
        F.when(is_half, offset).otherwise(F.shiftleft(offset, LINE_BITS).bitwiseOR(line)).alias("_pos"),
        F.when(is_half, header).otherwise(lines.text(F.col("value"))).alias("_line"),
    )
    is_line = F.isnull("_half") & F.col("_line").rlike(lines.OP)
    rows = rows.where(F.isnotnull("partition"))
    rows = rows.where(is_line | (F.isnotnull("_half") & F.col("_line").rlike(lines.HALF)))
    rows = rows.withColumn("_f", lines.fields(F.col("_line"))).drop("_line")
    key = F.when(F.isnull("_half"), _field(2)).otherwise(_field(1))
    return _row(rows, Kind.QUARANTINED, key=key, born_ms=lines.whole(_field(5)), pos=F.col("_pos"), a=F.col("_half"))


def _summaries(records: DataFrame, names: Names) -> DataFrame:
    """pos: offset; n: count; a: number of the state, 0 its end; b: of the reason; c: group; idx: half records that are there;
    hash: append time of the first; w, d: offset of the first and of the last; g: of group and partition.
    """
    key = lines.text(F.col("key"))
    rows = records.where(key.rlike(lines.SUMMARY_KEY)).withColumn("_line", lines.text(F.col("value")))
    rows = rows.where(F.isnull("_line") | F.col("_line").rlike(lines.SUMMARY))
    rows = rows.withColumn("_f", lines.fields(F.col("_line"))).withColumn("_name", _field(3))
    rows = names.number(rows, names.groups, "_group")
    name = lines.before(_field(1), "+")  # behind it contents may follow without a new summary
    found = F.array_position(F.array(*map(F.lit, STATES[1:])), name)
    is_known = name.isin(*(state.value for state in TxnState if state not in SETTLED))
    reason = F.array_position(F.array(*map(F.lit, REASONS)), _field(2)) - 1
    state = F.when(F.isnull("_line"), 0).when(is_known, found).otherwise(STATES.index(LATER))
    return _row(
        rows,
        Kind.DOUBT,
        key=key,
        born_ms=lines.whole(_field(9)),
        pos=F.col("offset"),
        n=lines.whole(_field(7)),
        a=state,
        b=F.greatest(F.coalesce(reason, F.lit(0)), F.lit(0)),
        c=F.col("_group"),
        idx=lines.whole(_field(6)),
        hash=lines.whole(_field(8)),
        w=lines.whole(_field(4)),
        d=lines.whole(lines.before(_field(5), "+")),
        g=F.xxhash64(_field(3), "partition"),
    )


def _twins(records: DataFrame) -> DataFrame:
    """d: offset of a second copy."""
    key, value = lines.text(F.col("key")), lines.text(F.col("value"))
    rows = records.where(value.contains("+") & key.rlike(lines.SUMMARY_KEY) & value.rlike(lines.SUMMARY))
    offsets = F.transform(F.split(F.get(lines.fields(value), F.lit(5)), r"\+"), lines.whole)
    rows = rows.select("partition", "timestamp", key.alias("_key"), offsets.alias("_offsets"))
    rows = rows.withColumn("_twin", F.explode(F.slice("_offsets", 2, 1 << 30)))
    return _row(rows, Kind.TWIN, key=F.col("_key"), born_ms=F.lit(None).cast("bigint"), d=F.col("_twin"))


def _contents(records: DataFrame) -> DataFrame:
    """pos: offset; n: count; idx: of the message; a: what it is (`Held`); d: hash of the content; w: offset of its half record."""
    name, headers = lines.text(F.col("key")), F.col("headers")
    is_cut = F.exists(headers, lambda each: each["key"] == codec.CUT_HEADER)
    rows = records.where(name.rlike(lines.CONTENT_KEY)).select(
        "partition",
        "offset",
        "timestamp",
        name.alias("_key"),
        F.isnull("value").alias("_is_end"),
        lines.sure(is_cut).alias("_is_cut"),
        lines.text(lines.header(headers, codec.HALF_HEADER)).alias("_line"),
        lines.text(lines.header(headers, codec.ORIGIN_HEADER)).alias("_origin"),
        F.coalesce("content_hash", _hash_of(*held_on_doubt(), lines.of_user(headers))).alias("_content"),
    )
    rows = rows.withColumn("_f", F.when(F.col("_line").rlike(lines.HALF), lines.fields(F.col("_line"))))
    part, key = _field(4), F.substring_index("_key", "/", 2)
    index = lines.whole(lines.after(F.col("_key"), "/"))
    is_its_own = (_field(1) == key) & (lines.whole(lines.before(part, "/")) == index)
    held = F.when(F.col("_is_end") | ~lines.sure(is_its_own), int(Held.ENDED))
    held = held.when(F.col("_is_cut"), int(Held.CUT)).otherwise(int(Held.WHOLE))
    place = F.when(F.col("_origin").rlike(lines.ORIGIN), lines.before(F.col("_origin"), "|"))
    return _row(
        rows,
        Kind.CONTENT,
        key=key,
        born_ms=lines.whole(_field(5)),
        pos=F.col("offset"),
        n=lines.whole(lines.after(part, "/")),
        idx=index,
        a=held,
        d=F.xxhash64(_field(3), index, "_content"),
        w=lines.whole(lines.after(place, ":")),
    )


_FORWARDED_HEADERS = 2  # headers of ours on a forwarded record, beside those that name its producer group


def _forwarded(records: DataFrame, names: Names) -> DataFrame:
    """partition, pos: of the half record; n: count; a: 1 when the headers say nothing that can be read; b: number of the topic;
    c: partition, as `Names.lane` has it, and offset where it is visible; hash: as of a half record; g: append time, null where a producer sets the
    time; key: 1 when its half record was gone before it could be read; w: of its partition; d: of the message's key;
    t: its time, null where the broker sets that.
    """
    headers = F.col("headers")
    # Folders of earlier releases do not say whether the time is the broker's.
    of_broker = lines.sure(F.col("is_append_time"))
    found = _narrow(
        records,
        _id=lines.text(lines.header(headers, codec.ID_HEADER, usual_index=-2)),
        _line=lines.text(lines.header(headers, codec.ORIGIN_HEADER)),
        # Nearly none has more: Spark does not compile the walk.
        _groups=F.when(
            F.size("headers") - F.size("_user") > _FORWARDED_HEADERS,
            F.size(F.filter(headers, lambda each: each["key"] == codec.GROUP_HEADER)),
        ),
        _at_ms=F.when(of_broker, F.unix_millis("timestamp")),
        _timed=F.when(~F.col("is_append_time"), F.unix_millis("timestamp")),
        _lane=F.coalesce("key_hash", key_hash()),
        _lane_number=names.lane(),
    )
    # Neither header: another client's record, which is no fault.
    rows = found.where(F.isnotnull("_id") | F.isnotnull("_line"))
    rows = rows.withColumn("_f", F.when(F.col("_line").rlike(lines.ORIGIN), lines.fields(F.col("_line"))))
    rows = names.number(rows.drop("_line").withColumn("_name", F.col("topic")), names.topics, "_topic")
    position = F.shiftleft(F.col("_lane_number"), OFFSET_BITS).bitwiseOR(F.col("offset"))
    origin, part, born_ms = _field(0), _field(1), lines.whole(_field(2))
    index, count = lines.whole(lines.before(part, "/")), lines.whole(lines.after(part, "/"))
    half_partition, offset = (lines.partition(lines.before(origin, ":")), lines.whole(lines.after(origin, ":")))
    content = F.xxhash64("topic", index, "_content")
    is_good = (
        (index < count) & F.isnotnull(half_partition) & F.isnotnull(offset) & F.isnotnull(born_ms) & F.isnotnull("_id")
    )
    is_good = is_good & (F.col("_ours") == _FORWARDED_HEADERS + F.coalesce("_groups", F.lit(0)))
    return _row(
        rows,
        Kind.FORWARDED,
        key=F.coalesce(F.col("_id"), F.lit("")),
        born_ms=born_ms,
        partition=half_partition,
        pos=offset,
        n=count,
        idx=index,
        hash=claimed(content, half_partition, offset, count, born_ms),
        a=F.when(~lines.sure(is_good), 1),
        b=F.col("_topic"),
        c=position,
        g=F.col("_at_ms"),
        ordering=F.when(is_good & names.is_in_gap(half_partition, offset), F.lit(1)),
        w=F.xxhash64(index, F.col("partition").cast("bigint")),
        d=F.col("_lane"),
        t=F.col("_timed"),
    )


def _narrow(records: DataFrame, **columns: Column) -> DataFrame:
    """Position and time, those columns, and `_content`: what must be the same in a half message and in what was forwarded of it.

    Every step behind it copies its rows: what is large is hashed before the first.
    """
    # Apart, or Spark would walk through the headers for each use.
    records = records.withColumn("_user", lines.of_user(F.col("headers")))
    content = F.coalesce("content_hash", _hash_of(F.col("key"), F.col("value"), F.col("_user"))).alias("_content")
    ours = (F.size("headers") - F.size("_user")).alias("_ours")
    named = [column.alias(name) for name, column in columns.items()]
    return records.select("topic", "partition", "offset", "timestamp", *named, content, ours)


def _hash_of(key: Column, value: Column, headers: Column) -> Column:
    """A hash of the user's key, value and headers. Spark's hash skips nulls, so the places of nulls are hashed with them."""
    count = F.size(headers)
    are_null = F.when(count > 0, F.transform(headers, lambda each: each["value"].isNull()))
    return F.xxhash64(key.isNull(), key, value.isNull(), value, count, headers, are_null)


def held_on_doubt() -> tuple[Column, Column]:
    """The user's key and value in a content that doubt holds."""
    is_null = lines.text(lines.header(F.col("headers"), codec.NULL_HEADER)) == "1"
    return lines.header(F.col("headers"), codec.KEY_HEADER), F.when(~lines.sure(is_null), F.col("value"))


def key_hash() -> Column:
    """Of the key of a row of bronze; null without one."""
    return F.when(F.isnotnull("key"), F.xxhash64("key"))


_NOT_OURS = (codec.KEY_HEADER, codec.WHY_HEADER)  # headers on doubt that repeat what a user sent
_RESULT = rf"\A([0-9]+\|{ReplayKind.RESULT.value}\|(?:[^|]*\|){{3}})[^|]*"
"""Of the result of a replay: all before its text."""


def hashed(rows: DataFrame) -> DataFrame:
    """Rows of bronze with hashes instead of users' keys, values and headers: `events` gives the same for both.

    A value that is not null becomes empty. What txlayer itself writes stays: headers `txl…`, lines of op, check, locks and replay,
    and summaries on doubt; but not what a dead letter, or the result of its replay, says of a handler's error.
    """
    kind = F.col("kind")
    is_doubt, is_letter = kind == TopicKind.DOUBT.value, kind == TopicKind.DLQ.value
    is_message = is_letter | kind.isin(TopicKind.HALF.value, TopicKind.FORWARDED.value)
    name, value = lines.text(F.col("key")), lines.text(F.col("value"))
    is_summary = name.rlike(lines.SUMMARY_KEY) & value.rlike(lines.SUMMARY)
    is_line = name.rlike(lines.QUARANTINE_OF_TXN_KEY) & value.rlike(lines.OP)
    is_content = is_message | (is_doubt & ~lines.sure(is_summary | is_line))
    held_key, held_value = held_on_doubt()
    ours = F.filter("headers", lambda each: each["key"].startswith(RESERVED_HEADER_PREFIX))
    rows = rows.withColumns({"_user": lines.of_user(F.col("headers")), "_ours": ours})
    content = _hash_of(
        F.when(is_doubt, held_key).otherwise(F.col("key")),
        F.when(is_doubt, held_value).otherwise(F.col("value")),
        F.col("_user"),
    )
    nothing = F.lit(b"")
    # A replay has its dead letter's key.
    is_replay = kind == TopicKind.REPLAY.value
    without_error = F.regexp_replace(value, _RESULT, "$1").cast("binary")
    blank = F.transform(
        "_ours",
        lambda each: F.struct(
            each["key"], F.when(each["key"].isin(*_NOT_OURS), nothing).otherwise(each["value"]).alias("value")
        ),
    )
    return rows.withColumns(
        {
            "key": F.when(~(is_message | is_replay), F.col("key")),
            "value": F.when(is_content & F.isnotnull("value"), nothing)
            .when(is_replay & value.rlike(_RESULT), without_error)
            .otherwise(F.col("value")),
            "headers": F.when(is_doubt, blank).when(~is_letter, F.col("_ours")),
            "key_hash": F.when(is_message, key_hash()),
            "content_hash": F.when(is_content, content),
        }
    ).drop("_user", "_ours")


def _split(rows: DataFrame, form: str) -> DataFrame:
    fitting = rows.where(F.col("_line").rlike(form))
    return fitting.withColumn("_f", lines.fields(F.col("_line"))).drop("_line")


def _field(number: int) -> Column:
    return F.get("_f", F.lit(number))


def signed(bits: int) -> int:
    """64 bits as the number that a column holds: the highest bit is the sign."""
    return bits - (1 << 64) if bits >> TOPIC_BITS else bits


def bit(number: Column) -> Column:
    """A real topic's bit, by its number; null without one."""
    shift = F.least(number, F.lit(TOPIC_BITS)).cast("int")
    shifted = F.call_function("shiftleft", F.lit(1).cast("bigint"), shift)
    # `least` of null and a number is the number.
    return F.when(F.isnotnull(number), shifted)


def _row(
    rows: DataFrame,
    kind: Kind,
    *,
    key: Column,
    born_ms: Column,
    ordering: Column | None = None,
    is_misplaced: Column | None = None,
    **numbers: Column,
) -> DataFrame:
    """`COLUMNS`, of the same types for every kind: a run may have read one alone. `key` is id/nonce, forwarded the id alone."""
    nothing = F.lit(None).cast("bigint")
    is_id = kind is Kind.FORWARDED
    columns = {
        "txn_id": key if is_id else lines.txn_id_of(key),
        "nonce": nothing if is_id else lines.nonce_number(lines.nonce_of(key)),
        "kind": F.lit(int(kind))
        if is_misplaced is None
        else F.when(is_misplaced, int(Kind.MISPLACED)).otherwise(int(kind)),
        "partition": numbers.pop("partition", F.col("partition")).cast("int"),
        "at_ms": F.unix_millis("timestamp"),
        "born_ms": born_ms,
        "key": nothing if ordering is None else ordering.cast("bigint"),
        **{name: column.cast("bigint") for name, column in numbers.items()},
    }
    return rows.select(*(columns.get(name, nothing).alias(name) for name in COLUMNS))


_MAKERS: dict[TopicKind, Callable[[DataFrame, Names], DataFrame]] = {
    TopicKind.HALF: _half,
    TopicKind.OP: _op,
    TopicKind.CHECK: _check,
    TopicKind.DOUBT: _doubt,
    TopicKind.FORWARDED: _forwarded,
}
