"""Topics of a namespace and its real topics → bronze: raw records as Parquet, each exactly once, and only what is new."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from txlayer_spark.bronze import named, subscription, system_topics, to_bronze
from txlayer_spark.catalog import SYSTEM_READER, BatchFolder, Catalog, Reader, ReadState
from txlayer_spark.session import source_options

_CONTENT = ("key", "value", "headers.list.element.key", "headers.list.element.value")
_WRITING = {
    # What hardly ever comes twice: a dictionary of it is filled, and then thrown away.
    **{
        f"parquet.enable.dictionary#{column}": "false"
        for column in ("offset", "timestamp", "key", "value", "headers.list.element.value")
    },
    # Nobody looks for records by the smallest and largest of these.
    **{f"parquet.column.statistics.enabled#{column}": "false" for column in _CONTENT},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BronzeSettings:
    """Where from and where to."""

    root: str
    namespace: str
    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    """Real topics; without any, those that half records name."""
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of Kafka's Java client."""
    batch_offsets_max: int = 4_000_000
    """Offsets of one batch: bounds what a killed job reads again, and the memory of its tasks."""


def read_new(
    spark: SparkSession, settings: BronzeSettings, *, now_ms: Callable[[], int]
) -> ReadState:
    """Bring bronze up to what the topics hold now; what became known.

    Killed at any point and called again, it goes on, and no record is there twice.

    Raises:
        UsageError: the folder holds another namespace's records. Nothing was read.
    """
    catalog = Catalog(spark, settings.root)
    catalog.claim(settings.namespace)
    state = catalog.state()
    if not state.readers:
        system = Reader(SYSTEM_READER, tuple(system_topics(settings.namespace)))
        state = catalog.store(state.with_reader(system))
    state = _with_topics(catalog, state, settings.topics)
    # Real topics first: of whatever is visible in them, half and op records are then read too.
    for reader in sorted(state.readers, key=lambda r: -r.number):
        state = _read(spark, catalog, settings, state, reader, now_ms)
    known = len(state.readers)
    if not settings.topics:
        state = _with_topics(catalog, state, state.topics)
    if len(state.readers) > known:
        for reader in (state.readers[-1], state.readers[SYSTEM_READER]):
            state = _read(spark, catalog, settings, state, reader, now_ms)
    return catalog.store(state)


def _with_topics(catalog: Catalog, state: ReadState, topics: Sequence[str]) -> ReadState:
    """The state with a further reader for those real topics that nobody reads yet."""
    missing = sorted(set(topics) - state.real_topics)
    if not missing:
        return state
    # Known before it reads: after a kill the same reader goes on with the same topics.
    added = Reader(max(r.number for r in state.readers) + 1, tuple(missing))
    return catalog.store(state.with_reader(added))


def _read(  # the parts of a job
    spark: SparkSession,
    catalog: Catalog,
    settings: BronzeSettings,
    state: ReadState,
    reader: Reader,
    now_ms: Callable[[], int],
) -> ReadState:
    """Drain one reader to the ends that its topics have now."""
    started_ms = now_ms()
    stream = spark.readStream.format("kafka").options(**_source(settings, reader))

    def write(records: DataFrame, batch: int) -> None:
        nonlocal state
        folder = BatchFolder(reader.number, batch, batch)
        rows = to_bronze(records, namespace=settings.namespace, batch=batch)
        names = Observation()
        if reader.number == SYSTEM_READER:
            # Made before it is looked at, where it is compiled.
            found = rows.withColumn("_named", named(rows, groups=state.groups, topics=state.topics))
            found = found.observe(names, F.array_join(F.collect_set("_named"), "\n").alias("named"))
            rows = found.drop("_named")
        writer = rows.write.mode("overwrite").options(**_WRITING).partitionBy("kind", "day")
        writer.parquet(catalog.path_of(folder))
        if reader.number == SYSTEM_READER:
            # Before Spark notes the batch: after a kill it would not be looked at again.
            state = _with_names(catalog, state, names.get["named"])

    query = (
        stream.load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", catalog.checkpoint(reader.number))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = query.lastProgress
    found = progress.sources[0].endOffset if progress is not None else None
    ends = json.loads(found) if found else reader.end_offsets
    return state.with_reader(replace(reader, at_ms=started_ms, end_offsets=ends))


def _source(settings: BronzeSettings, reader: Reader) -> dict[str, str]:
    options = source_options(
        bootstrap_servers=settings.bootstrap_servers,
        topics=reader.topics,
        kafka_options=settings.kafka_options,
    )
    if reader.number != SYSTEM_READER:
        # A half record may name a topic that is not there; dead letters come when a consumer has some.
        del options["subscribe"]
        options["subscribePattern"] = subscription(reader.topics)
    return {
        **options,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(settings.batch_offsets_max),
    }


def _with_names(catalog: Catalog, state: ReadState, named: str) -> ReadState:
    """The state with what half records name (lines of `group|topic`); stored when something of it is new."""
    # The only character that ends a line here: others may stand in the name of a group.
    pairs = [pair.split("|") for pair in named.split("\n") if pair]
    groups = sorted({group for group, _ in pairs} - set(state.groups))
    topics = sorted({topic for _, topic in pairs} - set(state.topics))
    if not groups and not topics:
        return state
    return catalog.store(
        replace(state, groups=(*state.groups, *groups), topics=(*state.topics, *topics))
    )
