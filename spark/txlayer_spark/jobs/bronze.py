"""Topics of a namespace and its real topics → bronze: raw records as Parquet, each exactly once, and only new ones. Also compacts
folders, deletes old days and erases content: every record that is kept is in bronze once at every moment.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer.core import codec
from txlayer.errors import UsageError
from txlayer_spark import lines
from txlayer_spark.brokers import Brokers, EndOffsets, NamespaceAddress
from txlayer_spark.catalog import (
    FOLDERS_MIN,
    WRITING,
    BatchFolder,
    Catalog,
    Gap,
    Reader,
    ReadState,
    Turn,
    effective,
    worth_folding,
)
from txlayer_spark.events import hashed, held_on_doubt
from txlayer_spark.parse import POSITION, TopicKind, Values, is_never_forwarded, kind_column, system_topics
from txlayer_spark.sessions import is_data_loss, is_done_all_the_same, source_options

_FOLLOWERS_MAX = 5  # how often one call begins again behind what retention took meanwhile
_PROGRESS_KEPT = "spark.sql.streaming.numRecentProgressUpdates"
_HIDDEN_AFTER_MS = 60_000  # a coordinator's own Kafka transactions end sooner
_CONTENT = ("key", "value", "headers.list.element.key", "headers.list.element.value", "key_hash", "content_hash")
_WRITING = {
    **WRITING,
    # What hardly ever comes twice: a dictionary of it is filled, and then thrown away.
    **{
        f"parquet.enable.dictionary#{column}": "false"
        for column in ("offset", "timestamp", "key", "value", "headers.list.element.value", "key_hash", "content_hash")
    },
    # No reader looks for records by the smallest and largest of these.
    **{f"parquet.column.statistics.enabled#{column}": "false" for column in _CONTENT},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BronzeSettings:
    """Where from and where to."""

    root: str
    namespace: str
    bootstrap_servers: str
    topics: tuple[str, ...] = ()  # real topics; without any, those that half records name
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)  # settings of Kafka's Java client
    values: Values = Values.FULL  # what is kept of what users sent; the same from run to run
    batch_offsets_max: int = 4_000_000
    """Offsets of one batch: bounds what a killed job reads again, and the memory of its tasks."""

    @property
    def address(self) -> NamespaceAddress:
        return NamespaceAddress(self.bootstrap_servers, self.namespace, self.kafka_options)


def unread(spark: SparkSession, settings: BronzeSettings, state: ReadState) -> dict[str, tuple[int, int]]:
    """{topic: (offsets of committed records that bronze has not read, offsets that an open Kafka transaction hides)}."""
    read = {topic: ends for reader in state.active for topic, ends in reader.end_offsets.items()}
    with Brokers(spark, settings.address) as brokers:
        return brokers.unread(read)


def read_new(spark: SparkSession, settings: BronzeSettings, *, now_ms: Callable[[], int]) -> ReadState:
    """Read all new records of the topics into bronze; returns what bronze then knows.

    If it is killed, call it again: it goes on, and no record is there twice.
    `now_ms` is this machine's clock, which is compared with the brokers' append times.

    Raises:
        UsageError: the folder holds another namespace's records, or other `values`, or records of a system topic that was made
            anew since: nothing of it was read. Or the session keeps no progress of streams. Or another run began in this folder meanwhile: this one wrote nothing further.
    """
    return _Reading(spark, settings, now_ms).run()


class _Reading:
    """One call of `read_new`."""

    def __init__(self, spark: SparkSession, settings: BronzeSettings, now_ms: Callable[[], int]) -> None:
        self._spark, self._settings, self._wall_ms = spark, settings, now_ms
        self._behind_ms = 0  # by how much this machine's clock is behind the brokers'
        self._catalog = Catalog(spark, settings.root)
        self._turn = Turn(self._catalog.folder, "bronze")
        self._state = ReadState()
        self._read: dict[int, Reader] = {}  # what was read meanwhile: no part of the cut before all of it is
        self._hidden: set[str] = set()

    def run(self) -> ReadState:
        # With fewer, Spark keeps none, and bronze could not note how far it has read.
        if int(self._spark.conf.get(_PROGRESS_KEPT, "100") or 0) < 2:
            raise UsageError(f"{_PROGRESS_KEPT} is less than 2 in this session: set it to 2 or more. Nothing was read")
        self._catalog.claim(self._settings.namespace, self._settings.values)
        self._turn.begin()
        self._state = self._catalog.state()
        with self._brokers() as brokers:
            wall_ms = self._wall_ms()
            self._behind_ms = brokers.time_ms(wall_ms=wall_ms) - wall_ms
        if self._state.system is None:
            topics = tuple(system_topics(self._settings.namespace))
            self._add(Reader(self._state.next_number(), topics, is_system=True))
        self._read_topics(self._settings.topics)
        self._drain()
        if not self._settings.topics and self._read_topics(self._state.topics):
            self._drain()
        self._note_edges()
        # In one step: until then the ledger reads what all readers had read before.
        return self._store(self._state.with_readers(*self._read.values()))

    def _now_ms(self) -> int:
        return self._wall_ms() + self._behind_ms

    def _store(self, state: ReadState) -> ReadState:
        self._turn.go_on()
        self._state = self._catalog.store(state)
        return self._state

    def _add(self, *added: Reader) -> None:
        # Known before it reads: after a kill the same reader goes on with the same topics.
        self._store(self._state.with_readers(*added))

    def _read_topics(self, topics: Sequence[str]) -> bool:
        """Add a reader for those real topics that no reader has yet; whether there were some."""
        missing = sorted(set(filter(self._is_real, topics)) - self._state.real_topics)
        if missing:
            self._add(Reader(self._state.next_number(), tuple(missing)))
        return bool(missing)

    def _is_real(self, topic: str) -> bool:
        """Whether it may be a real topic: of a system topic, for example, the records would be read twice."""
        return not is_never_forwarded(topic, namespace=self._settings.namespace)

    def _drain(self) -> None:
        """Bring the system's reader, and each that has not read yet, to the ends that its topics have now."""
        for reader in self._state.active:
            if reader.is_system or reader.number not in self._read:
                self._read_on(reader)

    def _read_on(self, reader: Reader) -> None:
        reader = self._same_topics(reader)
        for _ in range(_FOLLOWERS_MAX):
            if reader.topic_ids != next(r.topic_ids for r in self._state.readers if r.number == reader.number):
                # Known before it reads: after a kill its checkpoint would go on in a topic that was made anew meanwhile.
                self._add(reader)
            self._note_beginnings(reader)
            self._look_for_hidden(reader)
            try:
                self._stream(reader)
            except StreamingQueryException as exc:
                # Whatever Spark says of a checkpoint that two write.
                self._turn.go_on()
                if is_done_all_the_same(exc):
                    continue
                follower = self._follower(reader) if is_data_loss(exc) else None
                if follower is None:
                    raise
                reader = self._same_topics(follower)
            else:
                # Of a topic that was made anew meanwhile, the records may be of either one: what was read is read again.
                after = self._same_topics(reader)
                if after.number == reader.number:
                    read = self._read[reader.number]
                    self._read[reader.number] = replace(read, topic_ids=after.topic_ids)
                    return
                reader = after
        # Retention takes records as fast as they are read.
        self._note_beginnings(reader)
        self._stream(reader)

    def _same_topics(self, reader: Reader) -> Reader:
        """The reader with the ids of its topics; one that goes on where it stood when a topic was made anew since.

        Raises:
            UsageError: a system topic was. Nothing was read.
        """
        with self._brokers() as brokers:
            there = set(brokers.topics())
            ids = brokers.topic_ids(there & set(self._topics_of(reader, brokers)))
        known = reader.topic_ids
        anew = {topic for topic in known.keys() & ids.keys() if known[topic] != ids[topic]}
        if anew:
            # By its offsets alone one that is longer than before looks as if nothing had happened.
            follower = self._follower(reader, anew=anew)
            if follower is None:
                raise UsageError(
                    f"{', '.join(sorted(anew))} was deleted and made anew, and {self._catalog.folder.path} holds the one "
                    "before: name another folder"
                )
            reader = follower
        back = {topic for topic in reader.absent if ids.get(topic) == known.get(topic, "")}
        if back:
            # It could not be seen for a while. A stream that meets it now would read it from its beginning.
            reader = self._follower(reader, back=back) or reader
        return replace(reader, topic_ids={**known, **ids})

    def _look_for_hidden(self, reader: Reader) -> None:
        """Know the real topics of which the end is hidden now: by when all is read, what hides it may have ended."""
        if reader.is_system:
            return
        with self._brokers() as brokers:
            ours = [topic for topic in self._topics_of(reader, brokers) if self._is_real(topic)]
            self._hidden |= set(brokers.hidden(ours, before_ms=self._now_ms() - _HIDDEN_AFTER_MS))

    def _note_beginnings(self, reader: Reader) -> None:
        """Keep what was gone of a topic before it is read for the first time."""
        with self._brokers() as brokers:
            new = [t for t in self._topics_of(reader, brokers) if t not in reader.end_offsets]
            spans = brokers.log_spans(new)
        # A run that was killed may have read what is gone by now.
        shortened = [topic for topic, found in spans.items() if any(span.start for span in found.values())]
        read = self._catalog.first_offsets(reader, shortened)
        known = {(gap.topic, gap.partition): gap.end for gap in self._state.gaps}
        # One that was not there before may have been deleted and made anew: this one holds nothing of the other.
        absent = set() if reader.last_batch is None else set(reader.topics) - set(self._state.gone)
        begins = [
            Gap(topic, partition, 0, min(span.start, read.get((topic, partition), span.start)))
            for topic, found in spans.items()
            for partition, span in found.items()
        ]
        self._note_gaps(
            gap
            for gap in begins
            if (gap.end or gap.topic in absent) and gap.end > known.get((gap.topic, gap.partition), -1)
        )

    def _note_gaps(self, found: Iterable[Gap]) -> None:
        """Keep gaps; one that is longer now takes the place of the one that was noted."""
        gaps = {gap.name: gap for gap in self._state.gaps}
        longer = {gap.name: gap for gap in found if gap.name not in gaps or gap.end > gaps[gap.name].end}
        gaps |= longer
        now_ms, before = self._now_ms(), self._state.noted_ms
        noted_ms = {name: now_ms if name in longer else before.get(name, now_ms) for name in gaps}
        if longer or noted_ms != before:
            self._store(replace(self._state, gaps=tuple(sorted(gaps.values())), noted_ms=noted_ms))

    def _note_edges(self) -> None:
        """Know what else may be missing: what compaction may have taken, and what was hidden when it was read."""
        read = [
            self._read[r.number].end_offsets for r in self._state.active if not r.is_system and r.number in self._read
        ]
        others = tuple(f".{kind.value}" for kind in (TopicKind.DLQ, TopicKind.REPLAY))
        ours = {topic for ends in read for topic in ends if not topic.endswith(others)}
        with self._brokers() as brokers:
            there = ours & set(brokers.topics())
            compacted = brokers.compacted(there)
            doubt_lag_ms, doubt_ends_ms = self._doubt_times(brokers)
        # What compaction took while a topic had that policy stays gone.
        self._state = replace(
            self._state,
            hidden=tuple(sorted(self._hidden)),
            compacted=tuple(sorted({*self._state.compacted, *compacted})),
            doubt_lag_ms=doubt_lag_ms,
            doubt_ends_ms=doubt_ends_ms,
        )

    def _doubt_times(self, brokers: Brokers) -> tuple[int | None, int]:
        doubt = f"{self._settings.namespace}.{TopicKind.DOUBT.value}"
        policy = brokers.settings([doubt], "cleanup.policy").get(doubt, "compact")
        lag, ends = (
            int(brokers.settings([doubt], name).get(doubt, "0"))
            for name in ("min.compaction.lag.ms", "delete.retention.ms")
        )
        return lag if "compact" in policy else None, ends

    def _stream(self, reader: Reader) -> None:
        if not self._catalog.is_checkpoint_there(reader):
            # Spark would give the numbers of batches that count to other records.
            raise UsageError(
                f"{self._catalog.checkpoint(reader.number)} was deleted, or restored from a copy, and bronze holds later batches: "
                "name another folder, or restore all of this one"
            )
        started_ms = self._now_ms()
        stream = self._spark.readStream.format("kafka").options(**self._source(reader))

        def write(records: DataFrame, batch: int) -> None:
            folder = self._catalog.begin(BatchFolder(reader.number, batch, batch))
            rows = to_bronze(records, namespace=self._settings.namespace, batch=batch, now_ms=self._now_ms())
            if self._settings.values is Values.HASH:
                rows = hashed(rows)
            writer = rows.write.mode("append").options(**_WRITING).partitionBy("kind", "day")
            # Behind the making of the folder: a run that begins later sees it, and writes elsewhere.
            self._turn.go_on()
            writer.parquet(self._catalog.path_of(folder))
            self._turn.go_on()
            if TopicKind.HALF in self._catalog.kinds([folder]):
                # Before Spark notes the batch: after a kill it would not be looked at again. And behind the write: looked at on
                # its way each record would be copied once more.
                self._note(self._catalog.records([folder], kinds=[TopicKind.HALF]))

        query = (
            stream.load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", self._catalog.checkpoint(reader.number))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = query.lastProgress
        # As JSON: what PySpark's own field holds differs from release to release.
        found = None if progress is None else json.loads(progress.json)["sources"][0]["endOffset"]
        # A reader none of whose topics is there has no ends.
        ends = found if isinstance(found, dict) else reader.end_offsets
        last = self._catalog.last_batch(reader.number)
        self._read[reader.number] = replace(reader, at_ms=started_ms, end_offsets=ends, last_batch=last)

    def _source(self, reader: Reader) -> dict[str, str]:
        options = source_options(
            bootstrap_servers=self._settings.bootstrap_servers,
            topics=reader.topics,
            kafka_options=self._settings.kafka_options,
        )
        if not reader.is_system:
            # A half record may name a topic that is not there; dead letters come when a consumer has some.
            del options["subscribe"]
            options["subscribePattern"] = subscription(reader.topics, but=self._state.earlier_topics(reader))
        begin = "earliest"
        if reader.follows is not None and reader.end_offsets:
            begin = json.dumps(self._begin(reader))
        return {**options, "startingOffsets": begin, "maxOffsetsPerTrigger": str(self._settings.batch_offsets_max)}

    def _begin(self, reader: Reader) -> EndOffsets:
        """Where each partition begins: Spark asks for all of them; -2 is the earliest."""
        with self._brokers() as brokers:
            counts = brokers.partition_counts(self._topics_of(reader, brokers))
        known = reader.end_offsets
        return {
            topic: {str(p): known.get(topic, {}).get(str(p), -2) for p in range(count)}
            for topic, count in counts.items()
        }

    def _topics_of(self, reader: Reader, brokers: Brokers) -> list[str]:
        if reader.is_system:
            return list(reader.topics)
        # Where a real topic's name ends with another's, dead letters are of both.
        but = self._state.earlier_topics(reader)
        return [t for t in brokers.topics() if is_subscribed(t, reader.topics, but=but)]

    def _note(self, halves: DataFrame) -> None:
        """Keep what half records name; stored when something of it is new."""
        state = self._state
        new = named(halves, groups=state.groups, topics=state.topics)
        pairs = [each.split("|") for row in halves.agg(F.collect_set(new)).collect() for each in row[0]]
        groups = sorted({group for group, _ in pairs} - set(state.groups))
        topics = sorted({topic for _, topic in pairs if self._is_real(topic)} - set(state.topics))
        if groups or topics:
            self._store(replace(state, groups=(*state.groups, *groups), topics=(*state.topics, *topics)))

    def _follower(self, reader: Reader, *, anew: Collection[str] = (), back: Collection[str] = ()) -> Reader | None:
        """A reader that goes on where this one stood in the cut, behind what is gone; None when a system topic was made anew.

        What was taken before it was read is noted as a gap, and a topic that was deleted as gone: the ledger judges nothing that
        it might have told. Locks are not judged. A topic that could not be seen and is back goes on where it was.
        """
        ends = {**reader.end_offsets, **{topic: reader.absent[topic] for topic in back}}
        # Where it had come to in one that was deleted says nothing of the one that is made anew.
        absent = {topic: at for topic, at in reader.absent.items() if topic not in {*back, *anew}}
        with self._brokers() as brokers:
            there = brokers.log_spans(ends)
        locks = f"{self._settings.namespace}.{TopicKind.LOCKS.value}"
        kept: dict[str, dict[str, int]] = {}
        gone, gaps = [], []
        for topic, offsets in ends.items():
            spans = there.get(topic, {})
            found = {p: (spans.get(int(p)), offset) for p, offset in offsets.items()}
            is_short = any(span is None or offset > span.end for span, offset in found.values())
            if is_short or topic in anew:
                if topic == locks:
                    continue
                if reader.is_system:
                    return None
                gone.append(topic)
                if topic not in there:
                    absent[topic] = offsets  # deleted, or a right to see it was taken away
                continue
            kept[topic] = {p: max(offset, span.start) for p, (span, offset) in found.items() if span}
            if topic != locks:
                gaps += [
                    Gap(topic, int(p), offset, span.start)
                    for p, (span, offset) in found.items()
                    if span and offset < span.start
                ]
                # Of partitions that were added meanwhile nothing was read yet.
                gaps += [
                    Gap(topic, p, 0, span.start) for p, span in spans.items() if str(p) not in offsets and span.start
                ]
        self._note_gaps(gaps)
        follower = replace(
            reader,
            number=self._state.next_number(),
            end_offsets=kept,
            absent=absent,
            last_batch=None if reader.last_batch is None else -1,
            follows=reader.number,
        )
        self._read.pop(reader.number, None)
        still_gone = {*self._state.gone, *gone} - (set(back) & kept.keys())
        self._state = replace(self._state, gone=tuple(sorted(still_gone)))
        self._add(follower)
        return follower

    def _brokers(self) -> Brokers:
        return Brokers(self._spark, self._settings.address)


# --- records as rows ---

_LOG_APPEND_TIME = 1  # Kafka's number for timestamps that the broker sets


def to_bronze(raw: DataFrame, *, namespace: str, batch: int, now_ms: int) -> DataFrame:
    """One batch of Kafka records → one row each: place, key, value, headers, batch, is_append_time, kind, day (UTC).

    `now_ms`: by the brokers' clocks, as the days of other records are.
    """
    return raw.select(
        *(*POSITION, "key", "value"),
        # What a question carries of a message is in half, too.
        F.when(F.col("topic") != f"{namespace}.{TopicKind.CHECK.value}", F.col("headers")).alias("headers"),
        F.lit(batch).cast("bigint").alias("batch"),
        (F.col("timestampType") == _LOG_APPEND_TIME).alias("is_append_time"),
        kind_column(F.col("topic"), namespace=namespace).alias("kind"),
        # A producer's time may be of any day: then it is the day of the reading, and stays as long as what it belongs to.
        lines.day_of(
            F.when(F.col("timestampType") == _LOG_APPEND_TIME, F.col("timestamp")).otherwise(
                lines.time_of(F.lit(now_ms))
            )
        ).alias("day"),
    )


def named(halves: DataFrame, *, groups: Sequence[str], topics: Sequence[str]) -> Column:
    """Of a half record: `group|topic` as it names them; null when both are known."""
    line = lines.text(lines.header(halves["headers"], codec.HALF_HEADER))
    both = F.substring_index(F.substring_index(line, "|", 4), "|", -2)
    is_known = F.lit(False)
    if groups and topics:
        is_known = lines.before(both, "|").isin(*groups) & lines.after(both, "|").isin(*topics)
    # Only what is new is held against the pattern, which costs more than all else here.
    return F.when(~is_known & line.rlike(lines.HALF), both)


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
    name, _, suffix = topic.rpartition(".")

    def is_beside(topics: Sequence[str]) -> bool:
        return any(name.endswith(f".{t}") and len(name) > len(t) + 1 for t in topics)

    return topic in real_topics or (suffix in ("dlq", "replay") and is_beside(real_topics) and not is_beside(but))


# --- what is there already --------------------------------------------------------------------------------------------


def compact(spark: SparkSession, root: str, *, folders_min: int = FOLDERS_MIN) -> list[BatchFolder]:
    """Fold each reader's folders into one when there are `folders_min` or more; the folders that were written.

    A first folder that is larger than all later ones together stays as it is: so the cost is that of what is new, and a record
    is written anew a few times in all.

    The folded ones are removed by the next run: a job that reads them now goes on. May be killed and called again;
    one at a time.
    """
    catalog = Catalog(spark, root)
    begun, state = catalog.folders(), catalog.state()
    counting = catalog.cut(state)
    # What is behind the cut is left as it is: a reader of the cut would else miss what was folded into it.
    ended = {r.follows for r in state.readers}
    for folder in set(begun) - set(counting):
        is_covered = any(other.covers(folder) for other in counting)
        if is_covered or folder.reader in ended:
            catalog.remove(folder)
    written = []
    for _, each in groupby(counting, key=lambda folder: folder.reader):
        folders = list(each)
        if len(folders) >= folders_min:
            folders = worth_folding({folder: catalog.size_of(folder) for folder in folders})
        if len(folders) < folders_min:
            continue
        whole = catalog.begin(BatchFolder(folders[0].reader, folders[0].first, folders[-1].last))
        _write(catalog, whole, catalog.records(folders))
        written.append(whole)
    return written


def _write(catalog: Catalog, folder: BatchFolder, rows: DataFrame) -> None:
    # One file for each kind and day; files of more than a few GB would be split by size, not by hand.
    spread = rows.drop("folder").repartition("kind", "day")
    writer = spread.write.mode("append").options(**WRITING).partitionBy("kind", "day")
    writer.parquet(catalog.path_of(folder))


def erase(spark: SparkSession, root: str, key: str) -> int:
    """Replace the content of all messages with that key by hashes; returns how many records.

    The verdicts stay the same. If it is killed, call it again. A run of bronze that is under way elsewhere ends. When this returns,
    the content is gone from the files.
    """
    catalog, count = Catalog(spark, root), 0
    turn = Turn(catalog.folder, "bronze")
    turn.begin()
    # What a killed job left holds content, too; of a batch that is not noted, it is written again.
    catalog.remove_incomplete()
    complete = catalog.complete()
    counting = effective(complete)
    for folder in set(complete) - set(counting):
        catalog.remove(folder)
    held_key, _ = held_on_doubt()
    is_meant = F.coalesce(
        F.when(F.col("kind") == TopicKind.DOUBT.value, held_key).otherwise(F.col("key")) == F.lit(key.encode()),
        F.lit(False),
    )
    for folder in counting:
        rows = catalog.records([folder])
        found = rows.where(is_meant).count()
        if not found:
            continue
        erased = hashed(rows.where(is_meant)).withColumn(
            "key", F.when(F.col("kind") == TopicKind.DOUBT.value, F.col("key"))
        )
        later = catalog.begin(folder)
        _write(catalog, later, rows.where(~is_meant).unionByName(erased))
        turn.go_on()
        catalog.remove(folder)
        count += found
    return count


def expire(spark: SparkSession, root: str, *, keep_ms: int) -> int:
    """Delete the days of bronze that are completely more than `keep_ms` before its cut; returns how many folders of a day.

    If it is killed, call it again; the verdicts of a ledger that runs before that stay the same.
    """
    catalog = Catalog(spark, root)
    state = catalog.state()
    return catalog.end_days(catalog.up_to_cut(state), before=state.first_day(keep_ms=keep_ms))
