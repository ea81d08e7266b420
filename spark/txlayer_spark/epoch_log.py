"""What one epoch reads and writes in half, op and doubt, by Spark's own Kafka source and sink. Never: what follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from txlayer.core import codec
from txlayer.core.ids import half_partition
from txlayer.core.messages import OpMessage, Resolution, Source
from txlayer.errors import (
    NotAuthorisedError,
    OutcomeUnknownError,
    RefusedRecordError,
    TopicMismatchError,
)
from txlayer_spark import sink
from txlayer_spark.attempts import (
    Attempt,
    Attempts,
    doubt_traces,
    fold,
    half_places,
    half_traces,
    in_question,
    op_traces,
)
from txlayer_spark.brokers import Brokers, Place, Span, Spans
from txlayer_spark.failures import failures_as_ours
from txlayer_spark.session import source_options

REQUEST_BYTES_MAX = 64 * 1024 * 1024
"""The Java client's own limit of 1 MiB would refuse what the half topic allows."""
_ROLES = ("half", "op", "doubt")


class EpochLog:
    """The records of one epoch's transactions, and how far they were read."""

    def __init__(
        self,
        spark: SparkSession,
        brokers: Brokers,
        place: Place,
        epoch_id: str,
        ids: Sequence[str],
    ) -> None:
        """Ask how many partitions there are.

        Raises:
            TopicMismatchError: a topic is missing, or half, op and doubt are not alike.
        """
        self.epoch_id, self.ids = epoch_id, ids
        self._spark, self._brokers, self._place = spark, brokers, place
        counts = set(brokers.partition_counts([place.topic(role) for role in _ROLES]).values())
        if len(counts) != 1:
            raise TopicMismatchError(
                topic=f"{place.namespace}.*",
                expected="one count of partitions",
                found=str(sorted(counts)),
            )
        self.partition_count = counts.pop()
        self._partitions = sorted(
            {
                half_partition(
                    ordering_key=None, txn_id=txn_id, partition_count=self.partition_count
                )
                for txn_id in ids
            }
        )
        self._half_read: Mapping[int, int] = {}
        self._op_read: Mapping[int, int] = {}

    def find(self, since_ms: int) -> dict[str, Attempt]:
        """Attempts in op and half since then, and on doubt.

        Half is read in the partitions of these ids; op and doubt, which are small, in all: there are the parts of an epoch
        that was divided otherwise.
        """
        topic, everywhere = self._place.topic, range(self.partition_count)
        # Op first: who decided before its end had stored all half records before.
        op = self._brokers.since(topic("op"), everywhere, at_ms=since_ms)
        half = self._brokers.since(topic("half"), self._partitions, at_ms=since_ms)
        doubt = self._brokers.all_of(topic("doubt"), everywhere)
        self._op_read = {p: span.end for p, span in op.items()}
        self._half_read = {p: span.end for p, span in half.items()}
        known = fold(
            {},
            self.epoch_id,
            halves=self._rows("half", half, half_traces),
            doubts=self._rows("doubt", doubt, doubt_traces),
        )
        return self._decided(known, self._rows("op", op, op_traces))

    def halves_since(self, known: Attempts) -> dict[str, Attempt]:
        """The same with the half records that came since `find`."""
        new = self._new("half", self._half_read)
        return fold(known, self.epoch_id, halves=self._rows("half", new, half_traces))

    def ops_since(self, known: Attempts) -> dict[str, Attempt]:
        """The same with the decisions that came since `find`."""
        new = self._new("op", self._op_read)
        return self._decided(known, self._rows("op", new, op_traces))

    def _decided(self, known: Attempts, ops: Sequence[Row]) -> dict[str, Attempt]:
        """The same with those decisions; where a line names what may be a half record, the half topic is asked."""
        named: dict[int, set[int]] = {}
        for key, offset in in_question(known, ops):
            home = half_partition(
                ordering_key=None,
                txn_id=key.partition("/")[0],
                partition_count=self.partition_count,
            )
            named.setdefault(home, set()).add(offset)
        if not named:
            return fold(known, self.epoch_id, ops=ops)
        spans = {p: Span(min(offsets), max(offsets) + 1) for p, offsets in named.items()}
        offsets = {offset for each in named.values() for offset in each}
        rows = self._rows("half", spans, lambda raw, epoch: half_places(raw, epoch, offsets))
        places = {(f"{row.txn_id}/{row.nonce}", row.offset) for row in rows}
        return fold(known, self.epoch_id, ops=ops, places=places)

    def say(self, attempts: Sequence[Attempt], resolution: Resolution, *, reason: str = "") -> None:
        """Write one resolution for each attempt; they are acknowledged."""
        said: dict[str, list[str]] = {}
        for attempt in attempts:
            op = OpMessage(
                resolution, attempt.key, attempt.producer_group, attempt.op_offset, attempt.born_ms,
                Source.PRODUCER, reason=reason,
            )  # fmt: skip
            said.setdefault(attempt.txn_id, []).append(codec.encode_op(op))
        self.write(sink.op_records(self._spark, said, partition_count=self.partition_count), "op")

    def write(self, records: DataFrame, role: str) -> None:
        """Write records through Spark's Kafka sink; they are acknowledged.

        Raises:
            RefusedRecordError: one is larger than the topic allows. Others may be there.
            NotAuthorisedError: the topic may not be written.
            OutcomeUnknownError: not all were acknowledged; some may be there.
        """
        settings = {
            **self._place.kafka_options,
            "bootstrap.servers": self._place.bootstrap_servers,
            "acks": "all",
            # Half records stay in the order of their index, also when the client sends some again.
            "enable.idempotence": "true",
            "max.request.size": str(REQUEST_BYTES_MAX),
        }
        options = {f"kafka.{name}": value for name, value in settings.items()}
        writer = records.write.format("kafka").options(**options)
        topic = self._place.topic(role)
        try:
            writer.option("topic", topic).save()
        except (PySparkException, Py4JJavaError) as exc:
            told = str(exc)
            if "RecordTooLarge" in told:
                raise RefusedRecordError(
                    "a message is larger than the topic allows (max.message.bytes); nothing was committed",
                    topic=topic,
                ) from exc
            if "AuthorizationException" in told:
                raise NotAuthorisedError(f"{topic} may not be written") from exc
            raise OutcomeUnknownError(
                "Spark could not write all records: try the same epoch again",
                txn_id=self.epoch_id, step=role,
            ) from exc  # fmt: skip

    def _new(self, role: str, read: Mapping[int, int]) -> Spans:
        ends = self._brokers.ends(self._place.topic(role), self._partitions)
        return {p: Span(read[p], end) for p, end in ends.items()}

    def _rows(
        self, role: str, spans: Spans, traces: Callable[[DataFrame, str], DataFrame]
    ) -> list[Row]:
        """A few rows for each attempt, whatever the spans hold."""
        filled = {p: span for p, span in spans.items() if span.start < span.end}
        if not filled:
            return []
        topic = self._place.topic(role)
        options = source_options(
            bootstrap_servers=self._place.bootstrap_servers,
            topics=[topic],
            kafka_options=self._place.kafka_options,
        )
        del options["subscribe"]
        raw = (
            self._spark.read.format("kafka")
            .options(**options)
            .option("assign", json.dumps({topic: list(filled)}))
            .option("startingOffsets", json.dumps({topic: {p: s.start for p, s in filled.items()}}))
            .option("endingOffsets", json.dumps({topic: {p: s.end for p, s in filled.items()}}))
            .load()
        )
        with failures_as_ours():
            return traces(raw, self.epoch_id).collect()
