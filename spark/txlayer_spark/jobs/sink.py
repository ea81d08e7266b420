"""A batch → its real topics, all or nothing, and once per epoch however often the job is killed and started again.

An epoch is one transaction id, every attempt to publish it has its own nonce, and all attempts are in one partition of
half and op. So the log itself says which of them counts (docs/howto/spark-jobs.md explains it)::

    look up     who tried this epoch before: op and half since `window` or, if that is longer, since Spark began the epoch;
                doubt as a whole
    take over   an undecided attempt is rolled back, unless its commit turns out to be first: then the epoch is published
    store       half records, by Spark's own Kafka sink; each copy of a task writes an attempt of its own
    read back   they are all there; an attempt that was complete earlier belongs to a run that is alive: it wins
    commit      one op record, by the same sink
    confirm     it is the first decision of this attempt: no other run took over meanwhile
"""

import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from txlayer.core.messages import Resolution
from txlayer.errors import (
    ConfigError,
    FencedError,
    NotAcceptingError,
    OutcomeUnknownError,
    RefusedRecordError,
    UsageError,
)
from txlayer_spark import sink
from txlayer_spark.brokers import Brokers, NamespaceAddress
from txlayer_spark.catalog import Folder
from txlayer_spark.epoch_log import Attempt, Attempts, EpochLog
from txlayer_spark.sessions import java_of

CLOCK_MARGIN_MS = 300_000  # how far the driver's clock and the brokers' may be apart
# A dot is ours: it begins the number of a part, so no query's epoch reads as a part of another one's.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TAKEN_OVER = "spark: another attempt publishes this epoch"
_GIVEN_UP = "spark: another attempt was first"
_COPY = "spark: another copy of the task was first"
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Where the messages go, and what one transaction may hold."""

    bootstrap_servers: str
    namespace: str = "txlayer"
    producer_group: str
    topic: str | None = None
    """The real topic; None: the batch has a column `topic`."""
    split: bool = False
    """Publish a batch that is too large for one transaction as several, each all or nothing."""
    window: timedelta = timedelta(days=1)
    """How far back at least to look for an earlier attempt. A stream looks back to when Spark began its epoch. A batch job that
    was down for longer than `window` may publish its epoch again."""
    transaction_messages_max: int = 10_000
    """The same as the coordinator's, which parks larger transactions."""
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Keys, values and headers of one transaction: the coordinator holds them in memory together."""
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of Kafka's Java client, without the prefix `kafka.`."""

    def __post_init__(self) -> None:
        if not _GROUP.fullmatch(self.producer_group):
            raise ConfigError(name="producer_group", value=self.producer_group, expected="letters, digits, . _ -")
        for name in ("transaction_messages_max", "transaction_bytes_max"):
            if getattr(self, name) < 1:
                raise ConfigError(name=name, value=getattr(self, name), expected="at least 1")
        if self.window <= timedelta(0):
            raise ConfigError(name="window", value=self.window, expected="a length above 0")

    @property
    def address(self) -> NamespaceAddress:
        return NamespaceAddress(self.bootstrap_servers, self.namespace, self.kafka_options)


class Outcome(Enum):
    """What became of an epoch."""

    PUBLISHED = "published"  #: committed now
    SKIPPED = "skipped"  #: an earlier attempt had committed it
    EMPTY = "empty"  #: there was nothing to publish


@dataclass(frozen=True, slots=True)
class Publication:
    """What `write_transactional` did; every transaction in it is committed."""

    epoch_id: str
    outcome: Outcome
    published: tuple[str, ...] = ()
    """id/nonce of what was committed now."""
    skipped: tuple[str, ...] = ()
    """Ids that an earlier attempt had committed."""
    committed_ms: int | None = None
    """When the first of these commits was written, by the clock of a broker; None where none was written now."""


def write_transactional(
    batch: DataFrame, settings: SinkSettings, *, query: str, epoch: int, since_ms: int | None = None
) -> Publication:
    """Publish a batch as one transaction, once per `query` and `epoch`; returns when it is committed.

    Args:
        batch: Columns `value`, and any of `key`, `headers`, `partition` (of the real topic), `topic`. It must give the same
            rows when it is computed again; they keep the frame's order, in a split batch within each part.
        settings: Where the messages go.
        query: A name that no other job uses. A job that starts over needs a new name.
        epoch: Number of the batch in its query.
        since_ms: Where to begin looking for earlier attempts, instead of `window`.

    Raises:
        UsageError and its kinds: the batch cannot be published; nothing was written.
        RefusedRecordError: a message is larger than its topic or the half topic allows, or names a partition that its topic
            does not have; nothing was committed.
        NotAuthorisedError: the job may not write half or op.
        NotAcceptingError: an operator closed the namespace to new transactions; try the same epoch again when it is open.
        BrokerUnavailableError, OutcomeUnknownError: try the same epoch again; it finds what is in the topics.
        FencedError: another run of this query publishes this epoch; end this one.
    """
    return Sink(batch.sparkSession, settings).write(batch, query=query, epoch=epoch, since_ms=since_ms)


def transactional_batches(settings: SinkSettings) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: each micro-batch of a stream is published once. The checkpoint's id is the name of the query.

    A new checkpoint is a new query: it publishes its source from the first record on.
    """
    # {query: the epoch that comes next, and when the last one that was published for the first time was committed: by a
    # broker's clock, since this machine's may be wrong}
    following: dict[str, tuple[int, int]] = {}

    def write(batch: DataFrame, epoch: int) -> None:
        java_of(batch.sparkSession, "publishing")
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise UsageError("transactional_batches is for foreachBatch; elsewhere call write_transactional")
        # A checkpoint that was restored from a copy repeats epochs that were published long ago. Only after a new epoch is
        # the next one new as well.
        expected, since_ms = following.get(query, (None, None))
        begun_ms = _begun_ms(batch.sparkSession, query, epoch)
        if expected != epoch:
            # Its epochs begin anew, so the window counts, too.
            window_ms = _now_ms() - int(settings.window.total_seconds() * 1000)
            since_ms = begun_ms if begun_ms is not None and begun_ms < window_ms else None
        sink_ = Sink(batch.sparkSession, settings)
        done = sink_.write(batch, query=query, epoch=epoch, since_ms=since_ms, begun_ms=begun_ms)
        if done.committed_ms is not None and not done.skipped:
            following[query] = (epoch + 1, done.committed_ms)
        elif done.outcome is Outcome.EMPTY and since_ms is not None:
            following[query] = (epoch + 1, since_ms)
        else:
            following.pop(query, None)

    return write


class Sink:
    """The steps of one epoch, each a method; only `write` calls them, in this order. `write_transactional` lists their errors."""

    def __init__(self, spark: SparkSession, settings: SinkSettings, *, now_ms: Callable[[], int] | None = None) -> None:
        """Reads and writes nothing yet; UsageError if the session is of Spark Connect."""
        java_of(spark, "publishing")
        self._spark = spark
        self._settings = settings
        self._now_ms = now_ms or _now_ms

    def write(
        self, batch: DataFrame, *, query: str, epoch: int, since_ms: int | None = None, begun_ms: int | None = None
    ) -> Publication:
        if not _NAME.fullmatch(query) or epoch < 0:
            raise ConfigError(name="query", value=f"{query}-{epoch}", expected="letters, digits, _ -; an epoch >= 0")
        said = self._spark.sparkContext.getConf().get("spark.speculation", "false")
        # As Spark reads it: `SparkConf.set("spark.speculation", True)` writes "True".
        if said.strip().lower() == "true":
            raise ConfigError(
                name="spark.speculation",
                value=said,
                expected="false: a second copy of a task would store its messages once more, open until they are too old",
            )
        epoch_id = f"{query}-{epoch}"
        # Computed once, not for every step; what memory does not hold goes to disk.
        rows = sink.messages(batch, topic=self._settings.topic).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            size = sink.measure(rows, namespace=self._settings.namespace, topic=self._settings.topic)
            if not size.count:
                return Publication(epoch_id, Outcome.EMPTY)
            placed, ids = self._place(rows, epoch_id, size)
            with Brokers(self._spark, self._settings.address) as brokers:
                log = EpochLog(self._spark, brokers, self._settings.address, epoch_id, ids)
                _check_partitions(size.topics, brokers.partition_counts(size.topics))
                _check_sizes(rows, brokers.settings(size.topics, "max.message.bytes"))
                return self._publish(log, placed, since_ms, begun_ms)
        finally:
            rows.unpersist()

    def _place(self, rows: DataFrame, epoch_id: str, size: sink.Measure) -> tuple[DataFrame, list[str]]:
        settings = self._settings
        limit, bytes_limit = settings.transaction_messages_max, settings.transaction_bytes_max
        if size.count <= limit and size.bytes <= bytes_limit:
            return sink.whole(rows, epoch_id), [epoch_id]
        if not settings.split:
            raise UsageError(
                f"{size.count} messages with {size.bytes} bytes in one transaction; transaction_messages_max is {limit}, "
                f"transaction_bytes_max {bytes_limit}. Make batches smaller (maxOffsetsPerTrigger), or publish them in "
                "parts with split=True. Nothing was written"
            )
        parts = sink.part_count(size, messages_max=limit, bytes_max=bytes_limit)
        placed = sink.split(rows, epoch_id, parts=parts, messages_max=limit)
        return placed, sink.ids_of(placed, bytes_max=bytes_limit)

    def _publish(self, log: EpochLog, placed: DataFrame, since_ms: int | None, begun_ms: int | None) -> Publication:
        begin_ms = self._now_ms() - int(self._settings.window.total_seconds() * 1000)
        attempts = self.look_up(log, begin_ms if since_ms is None else since_ms)
        attempts = self.take_over(log, attempts)
        _refuse_other_rows(attempts, begun_ms)
        done = {a.txn_id for a in attempts.values() if a.decision is Resolution.COMMIT}
        skipped = tuple(txn_id for txn_id in log.ids if txn_id in done)
        left = [txn_id for txn_id in log.ids if txn_id not in done]
        if not left:
            return Publication(log.epoch_id, Outcome.SKIPPED, skipped=skipped)
        closed_at_ms = log.closed_at_ms()
        if closed_at_ms is not None:
            raise NotAcceptingError(
                f"the namespace accepts no new transactions until `txlayer topics accept --on`: {', '.join(left[:3])} was not published",
                namespace=self._settings.namespace,
                closed_at_ms=closed_at_ms,
            )
        if skipped:
            placed = placed.where(~placed["_txn"].isin(list(skipped)))
        # `_refuse_other_rows` compares it, to see whether an attempt is from the same plan of Spark's.
        born_ms = self._now_ms() if begun_ms is None else begun_ms
        self.store(log, placed, born_ms)
        mine, copies = self.read_back(log, left, attempts, born_ms)
        self.commit(log, mine)
        committed_ms = self.confirm(log, mine)
        if copies:
            log.say(copies, Resolution.ROLLBACK, reason=_COPY)
        keys = tuple(attempt.key for attempt in mine)
        return Publication(log.epoch_id, Outcome.PUBLISHED, keys, skipped, committed_ms)

    # --- steps --------------------------------------------------------------------------------------------------------

    def look_up(self, log: EpochLog, begin_ms: int) -> Attempts:
        """Earlier attempts."""
        attempts = log.find(max(begin_ms - CLOCK_MARGIN_MS, 0))
        self._refuse_other_groups(attempts)
        others = {a.txn_id for a in attempts.values()} - set(log.ids)
        if others:
            raise UsageError(
                f"epoch {log.epoch_id} was begun as {', '.join(sorted(others)[:3])}, not as {', '.join(log.ids[:3])}: "
                "its rows or its limits were others. Nothing was written"
            )
        return attempts

    def take_over(self, log: EpochLog, attempts: Attempts) -> Attempts:
        """Roll back what is undecided; the same attempts, each decided."""
        for attempt in attempts.values():
            if attempt.decision is None and attempt.is_settled:
                raise OutcomeUnknownError(
                    "decided before the window that is looked at: name a longer one",
                    txn_id=attempt.txn_id,
                    step="look-up",
                )
        open_ones = [a for a in attempts.values() if a.is_open]
        if not open_ones:
            return attempts
        log.say(open_ones, Resolution.ROLLBACK, reason=_TAKEN_OVER)
        # A commit that was on its way may come before the rollback: then it counts, and the epoch is published.
        attempts = log.ops_since(attempts, begun=open_ones)
        self._refuse_other_groups(attempts)
        undecided = [a for a in attempts.values() if a.is_open]
        if undecided:
            raise OutcomeUnknownError(
                "an earlier attempt was committed before all of its half records: `txlayer tx abandon` it"
                if undecided[0].is_incomplete
                else "an earlier attempt can be neither found nor rolled back",
                txn_id=undecided[0].txn_id,
                step="take-over",
            )
        return attempts

    def store(self, log: EpochLog, placed: DataFrame, born_ms: int) -> None:
        """Write the half records; they are acknowledged by all replicas."""
        records = sink.half_records(
            placed, producer_group=self._settings.producer_group, born_ms=born_ms, partition_count=log.partition_count
        )
        log.write(records, "half")

    def read_back(
        self, log: EpochLog, ids: Collection[str], attempts: Attempts, born_ms: int
    ) -> tuple[list[Attempt], list[Attempt]]:
        """The written attempts: for each transaction the one that was complete first, and those that other copies of its task left."""
        seen = log.halves_since(attempts)
        written = {
            key: a for key, a in seen.items() if key not in attempts and a.born_ms == born_ms and self._is_ours(a)
        }
        whole: dict[str, Attempt] = {}
        for attempt in sorted(written.values(), key=lambda a: a.op_offset):
            if attempt.completed_at is not None:
                whole.setdefault(attempt.txn_id, attempt)
        if not set(ids) <= whole.keys():
            raise OutcomeUnknownError(
                "half records are missing: the batch gave other rows when it was computed again, or the topic lost some",
                txn_id=log.epoch_id,
                step="half",
            )
        ahead = [
            a
            for key, a in seen.items()
            if a.is_open
            and key not in written
            and a.completed_at is not None
            and a.txn_id in whole
            and a.completed_at < whole[a.txn_id].op_offset
        ]
        if ahead:
            log.say(list(written.values()), Resolution.ROLLBACK, reason=_GIVEN_UP)
            raise FencedError(f"{ahead[0].key} is another run's, and was complete before this one")
        mine = [whole[txn_id] for txn_id in ids]
        return mine, [a for a in written.values() if a not in mine]

    def _is_ours(self, attempt: Attempt) -> bool:
        return attempt.producer_group == self._settings.producer_group

    def _refuse_other_groups(self, attempts: Attempts) -> None:
        for attempt in attempts.values():
            # The end of one that was decided long ago names no group; `take_over` refuses it.
            if attempt.producer_group and not self._is_ours(attempt):
                raise UsageError(
                    f"{attempt.key} is a transaction of producer group {attempt.producer_group}, not of "
                    f"{self._settings.producer_group}. Nothing was published: name the query otherwise; or, if the group was "
                    "renamed, publish this epoch under its former name"
                )

    def commit(self, log: EpochLog, mine: list[Attempt]) -> None:
        """Write the op records; they are acknowledged by all replicas."""
        log.say(mine, Resolution.COMMIT)

    def confirm(self, log: EpochLog, mine: list[Attempt]) -> int:
        """Make sure that the commit is the first decision; when the first one was written."""
        found = log.ops_since({attempt.key: attempt for attempt in mine})
        for attempt in mine:
            decision = found[attempt.key].decision
            if decision is Resolution.ROLLBACK:
                raise FencedError(f"{attempt.key} was rolled back by a newer run, or by a person")
            if decision is None:
                raise OutcomeUnknownError("its commit is not in the log", txn_id=attempt.txn_id, step="op")
        return min(found[attempt.key].decided_ms or 0 for attempt in mine)


def _check_sizes(rows: DataFrame, allowed: Mapping[str, str]) -> None:
    """Refuse messages that are too large for their topic, which coordinators would park; topics with unreadable settings are not checked."""
    found = sink.too_large(rows, {topic: int(most) for topic, most in allowed.items()})
    if found is not None:
        topic, size = found
        raise RefusedRecordError(
            f"a message of {size} bytes is larger than the topic allows (max.message.bytes). Nothing was written",
            topic=topic,
            size_bytes=size,
            size_bytes_max=int(allowed[topic]),
            reason="too-large",
        )


def _check_partitions(named: Mapping[str, int], counts: Mapping[str, int]) -> None:
    for topic, highest in named.items():
        if highest >= counts[topic]:
            raise RefusedRecordError(
                f"partition {highest} does not exist, the topic has {counts[topic]}. Nothing was written",
                topic=topic,
                reason="unknown-partition",
            )


def _refuse_other_rows(attempts: Attempts, begun_ms: int | None) -> None:
    """Refuse an epoch that was published from another plan of Spark's: the checkpoint was restored from a copy, and its rows differ."""
    for attempt in attempts.values():
        if attempt.decision is Resolution.COMMIT and begun_ms not in (None, attempt.born_ms):
            raise UsageError(
                f"{attempt.key} was published by another checkpoint than this one: this one was restored from a copy, or is one, and "
                "its epochs hold other rows than those that were published under their numbers. Nothing was written: begin with "
                "a new checkpoint, at the place in the source up to which the old one had published"
            )


def _begun_ms(spark: SparkSession, query: str, epoch: int) -> int | None:
    """When Spark began this epoch of a stream that runs here, as its checkpoint has it."""
    streams = spark._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001 - Spark tells Python in no other way
    ids = {str(each): each for each in streams.keySet()}
    if query not in ids:
        return None
    checkpoint = Folder(spark, str(streams.get(ids[query]).resolvedCheckpointRoot()))
    begun_ms: int | None = json.loads(checkpoint.read_text("offsets", str(epoch)).splitlines()[1]).get(
        "batchTimestampMs"
    )
    return begun_ms


def _now_ms() -> int:
    return int(time.time() * 1000)
