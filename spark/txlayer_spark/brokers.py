"""What the driver asks Kafka beside Spark's own reads: how many partitions, and which offsets. Never: a record.

It uses the Java client of the connector, with the settings of the job, so nothing else needs to be installed.
"""

import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Self

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.errors import BrokerUnavailableError, NotAuthorisedError, TopicMismatchError, UsageError
from txlayer_spark.sessions import java_of

ANSWER_WITHIN_MS = 30_000
STABLE_WITHIN_S = 60.0
"""Longer than a coordinator's Kafka transaction may last: behind an open one a read would miss what is there."""
_ASK_AGAIN_S = 0.05
_STORED_OFFSETS = "__consumer_offsets"
_ABSENT = {"UnknownTopicOrPartitionException": "topic", "GroupIdNotFoundException": "group"}


class Span(NamedTuple):
    """Records of one partition: `start` <= offset < `end`."""

    start: int
    end: int


Spans = Mapping[int, Span]
EndOffsets = Mapping[str, Mapping[str, int]]  # {topic: {partition: where a reader had come to}}, as Spark writes it


class NamespaceAddress(NamedTuple):
    """A namespace, and how it is reached."""

    bootstrap_servers: str
    namespace: str
    kafka_options: Mapping[str, str]

    def topic(self, role: str) -> str:
        return f"{self.namespace}.{role}"


class Brokers:
    """An administrator of the job's cluster; use as a context manager.

    Raises, from each question:
        BrokerUnavailableError: no broker answered; or, of `since` and `ends`, a Kafka transaction stayed open for too long.
        NotAuthorisedError, TopicMismatchError, UsageError: Kafka refuses it: a right or a topic is missing, or for another reason.
    """

    def __init__(self, spark: SparkSession, address: NamespaceAddress) -> None:
        self._jvm = java_of(spark, "asking brokers for offsets and topics")
        self._address = address
        self._servers = address.bootstrap_servers
        self._options = address.kafka_options
        self._admin: Any = None

    def __enter__(self) -> Self:
        settings = {**self._options, "bootstrap.servers": self._servers}
        self._admin = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        found = self._described(topics)
        return {topic: len(found[topic].partitions()) for topic in topics}

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """{topic: its id}: a topic that is deleted and created again has another id."""
        found = self._described(topics)
        return {topic: str(found[topic].topicId()) for topic in topics}

    def _described(self, topics: Collection[str]) -> Any:
        return self._answer(self._admin.describeTopics(list(topics)).allTopicNames())

    def topics(self) -> list[str]:
        names = self._answer(self._admin.listTopics().names())
        # A loop asks Java for each, and ends by an exception of Java's, which PySpark compares with 14 classes.
        return [name for name in str(self._jvm.java.lang.String.join(",", names)).split(",") if name]

    def log_spans(self, topics: Collection[str]) -> dict[str, dict[int, Span]]:
        """{topic: {partition: its log's start, and its end for readers of committed records}} of those that are there."""
        counts = self.partition_counts(set(topics) & set(self.topics()))
        earliest = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest()
        found = {}
        for topic, count in counts.items():
            starts = self._offsets(topic, range(count), spec=earliest)
            ends = self._offsets(topic, range(count), is_stable=True)
            found[topic] = {p: Span(starts[p], ends[p]) for p in starts}
        return found

    def unread(self, read: EndOffsets) -> dict[str, tuple[int, int]]:
        """{topic: (offsets of committed records behind what was read, offsets behind an open Kafka transaction)} of those
        topics that are there.
        """
        found = {}
        for topic, count in self.partition_counts(set(read) & set(self.topics())).items():
            stable = self._offsets(topic, range(count), is_stable=True)
            ends = self._offsets(topic, range(count))
            behind = sum(max(end - read[topic].get(str(p), 0), 0) for p, end in stable.items())
            found[topic] = (behind, sum(max(ends[p] - end, 0) for p, end in stable.items()))
        return found

    def hidden(self, topics: Collection[str], *, before_ms: int) -> list[str]:
        """The topics whose end is hidden by a Kafka transaction that was already open at that time: no reader of committed
        records reaches their end.
        """
        found = []
        for topic, count in self.partition_counts(topics).items():
            stable = self._offsets(topic, range(count), is_stable=True)
            ends = self._offsets(topic, range(count))
            behind = [p for p, end in ends.items() if stable[p] < end]
            later = self._offsets(topic, behind, at_ms=before_ms) if behind else {}
            if any(at < 0 or at > stable[p] for p, at in later.items()):
                found.append(topic)
        return found

    def compacted(self, topics: Collection[str]) -> list[str]:
        """The compacted topics among these; topics whose settings may not be read are left out."""
        found = self.settings(topics, "cleanup.policy")
        return [topic for topic, policy in found.items() if "compact" in policy]

    def settings(self, topics: Collection[str], name: str) -> dict[str, str]:
        """{topic: that setting of it}; those whose settings may not be asked for are left out."""
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource
        of_topic = getattr(self._jvm, "org.apache.kafka.common.config.ConfigResource$Type").TOPIC
        wanted = {topic: resource(of_topic, topic) for topic in topics}
        futures = self._admin.describeConfigs(list(wanted.values())).values()
        found = {}
        for topic, each in wanted.items():
            try:
                settings = self._answer(futures.get(each))
            except NotAuthorisedError:
                continue
            found[topic] = str(settings.get(name).value())
        return found

    def since(self, topic: str, partitions: Collection[int], *, at_ms: int) -> Spans:
        """What was appended at that time or later, up to the end; no open Kafka transaction hides any of it."""
        # Ends first: a record that comes meanwhile is after them, never before the start.
        ends = self.ends(topic, partitions)
        starts = self._offsets(topic, partitions, at_ms=at_ms)
        return {p: Span(min(starts[p], ends[p]) if starts[p] >= 0 else ends[p], ends[p]) for p in ends}

    def ends(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """The high watermark of each partition, once all records before it can be read with `read_committed`."""
        ends = self._offsets(topic, partitions)
        give_up_at = time.monotonic() + STABLE_WITHIN_S
        while any(at < ends[p] for p, at in self._offsets(topic, partitions, is_stable=True).items()):
            if time.monotonic() > give_up_at:
                raise BrokerUnavailableError(
                    f"a Kafka transaction on {topic} stays open: what is behind it cannot be read",
                    bootstrap_servers=self._servers,
                    waited_ms=int(STABLE_WITHIN_S * 1000),
                )
            time.sleep(_ASK_AGAIN_S)
        return ends

    def time_ms(self, *, wall_ms: int) -> int:
        """The brokers' current time; `wall_ms`, this machine's, may be wrong. docs/howto/limits.md says which counts when."""
        newest_ms, is_stored = 0, False
        for topic in (*map(self._address.topic, ("half", "op", "locks")), _STORED_OFFSETS):
            try:
                times = self._newest_times(topic)
            except (NotAuthorisedError, TopicMismatchError):
                continue  # the other topics show the time, too
            newest_ms, is_stored = max([newest_ms, *times]), topic == _STORED_OFFSETS
        is_behind = newest_ms > wall_ms + CLOCK_ERROR_MS
        may_be_ahead = 0 < newest_ms < wall_ms - CLOCK_ERROR_MS and is_stored
        is_known = is_behind or (may_be_ahead and self._has_members(self._address.topic("coordinator")))
        return newest_ms if is_known else wall_ms

    def _newest_times(self, topic: str) -> list[int]:
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.maxTimestamp()
        count = self.partition_counts([topic])[topic]
        return [int(found.timestamp()) for found in self._listed(topic, range(count), spec).values()]

    def _has_members(self, group: str) -> bool:
        try:
            found = self._answer(self._admin.describeConsumerGroups([group]).all())
        except (NotAuthorisedError, TopicMismatchError):
            return False
        return not found.get(group).members().isEmpty()

    def all_of(self, topic: str, partitions: Collection[int]) -> Spans:
        starts = self._offsets(topic, partitions, at_ms=0)
        ends = self._offsets(topic, partitions, is_stable=True)
        return {p: Span(starts[p] if starts[p] >= 0 else end, end) for p, end in ends.items()}

    def _offsets(
        self,
        topic: str,
        partitions: Collection[int],
        *,
        at_ms: int | None = None,
        is_stable: bool = False,
        spec: Any = None,
    ) -> dict[int, int]:
        """The first offset appended at `at_ms` or later (-1: there is none), what `spec` asks for, or the ends."""
        admin = self._jvm.org.apache.kafka.clients.admin
        if spec is None:
            spec = admin.OffsetSpec.latest() if at_ms is None else admin.OffsetSpec.forTimestamp(at_ms)
        found = self._listed(topic, partitions, spec, is_stable=is_stable)
        return {p: int(each.offset()) for p, each in found.items()}

    def _listed(self, topic: str, partitions: Collection[int], spec: Any, *, is_stable: bool = False) -> dict[int, Any]:
        admin, common = self._jvm.org.apache.kafka.clients.admin, self._jvm.org.apache.kafka.common
        wanted = self._jvm.java.util.HashMap()
        keys = {p: common.TopicPartition(topic, p) for p in partitions}
        for key in keys.values():
            wanted.put(key, spec)
        level = common.IsolationLevel
        options = admin.ListOffsetsOptions(level.READ_COMMITTED if is_stable else level.READ_UNCOMMITTED)
        found = self._answer(self._admin.listOffsets(wanted, options).all())
        return {p: found.get(key) for p, key in keys.items()}

    def _answer(self, future: Any) -> Any:
        try:
            return future.get(ANSWER_WITHIN_MS, self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS)
        except Py4JJavaError as exc:
            cause = exc.java_exception.getCause() or exc.java_exception
            name, said = cause.getClass().getSimpleName(), str(cause.getMessage())
            if name in _ABSENT:
                raise TopicMismatchError(f"there is no such {_ABSENT[name]}: {said}") from exc
            if name == "TimeoutException":
                raise BrokerUnavailableError(said, bootstrap_servers=self._servers, waited_ms=ANSWER_WITHIN_MS) from exc
            if name in ("TopicAuthorizationException", "GroupAuthorizationException", "ClusterAuthorizationException"):
                raise NotAuthorisedError(said) from exc
            raise UsageError(f"Kafka refuses: {name}: {said}") from exc
