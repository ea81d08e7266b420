"""Asks a Kafka cluster about topics, groups, offsets and access rights, and changes them."""

import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Self

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub forgets to export them
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from txlayer.adapters.connect import ANSWER_TIMEOUT_MS
from txlayer.adapters.errors import MOVED_COORDINATOR_CODES, NOT_AUTHORISED_CODES, Code
from txlayer.adapters.kafka.client import base_settings, kafka_error, new_client, plain_consumer, translate
from txlayer.adapters.ports import GroupMember, GroupState, StoredOffset, TopicLimits, TopicPartition
from txlayer.config import ClientConfig
from txlayer.core.acls import Acl, AclPattern, AclResource, Operation
from txlayer.core.topics import AlterSetting, CreateTopic, TopicState, closed_at_ms
from txlayer.errors import (
    BrokerUnavailableError,
    LifecycleError,
    NotAuthorisedError,
    RetriableError,
    TxLayerError,
    UsageError,
)

logger = logging.getLogger("txlayer.admin")

DOUBTED_AFTER_S = 30.0
"""A client that misses something is not believed for longer than this: it may know the cluster as it was once."""

LOOK_S = 0.05  # how often a wait looks at what it waits for

_GRACE_S = 1.0  # the client ends its questions itself; this is for one that does not

_SLICE_S = 0.5  # so often a wait for an answer looks whether it was refused

_STATES_WITH_MEMBERS = {
    ConsumerGroupState.STABLE,
    ConsumerGroupState.PREPARING_REBALANCING,
    ConsumerGroupState.COMPLETING_REBALANCING,
}
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND)
MISSING_CODES = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


class KafkaAdmin:
    """The `Administration` of real Kafka, and the rights there; a question waits for `timeout_ms`."""

    def __init__(self, config: ClientConfig, *, timeout_ms: int = ANSWER_TIMEOUT_MS) -> None:
        self._config = config
        self._timeout_ms = timeout_ms
        self._client: AdminClient | None = None
        self._made_at = 0.0
        self._has_answered = False
        self._refusal: KafkaError | None = None
        self._trouble = ""
        self._consumers: dict[tuple[str, bool], Consumer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the clients back; the next use would make new ones."""
        self._client = None
        self._close_consumers()

    def client(self) -> AdminClient:
        if self._client is None:
            # What goes wrong is reported once, by the error, and not by the client's own log.
            settings = {**base_settings(self._config), "log_level": 0, "error_cb": self._on_error}
            self._client = new_client(AdminClient, settings)
            self._made_at, self._has_answered = time.monotonic(), False
        return self._client

    def connected_client(self) -> AdminClient:
        """The admin client once a broker has answered it: for what goes to the leaders of partitions.

        A client that is not connected yet may miss the moment to ask who leads, and looks again after 3 s
        (docs/explanation/kafka.md, "Asking").
        """
        client = self.client()
        if not self._has_answered:
            self.wait(client.describe_cluster(**self.limits()), resource="cluster", operation="describe")
        return client

    def doubt(self, errors: Sequence[Exception]) -> None:
        """Something was missing in an answer: the next question gets a new client, at once if a broker did not say."""
        if errors:
            logger.warning("answer.incomplete", extra={"reason": str(errors[0])})
        if errors or time.monotonic() - self._made_at > DOUBTED_AFTER_S:
            self._client = None

    def wait(
        self, future: concurrent.futures.Future[Any], *, resource: str, operation: str, foreseen: Collection[int] = ()
    ) -> Any:
        """The answer to a question about `resource`; a `KafkaError` if the cluster refused with a `foreseen` code.

        Raises:
            NotAuthorisedError: credentials or rights were refused; nothing was changed.
            BrokerUnavailableError: no answer in time; a change may have happened.
        """
        waited_ms = self._wait_until_done(future)
        try:
            answer = future.result()
        except KafkaException as exc:
            if kafka_error(exc).code() in foreseen:
                return kafka_error(exc)
            # The client believes what it once learned about leaders, also when a broker says that it is out of date
            # (FENCED_LEADER_EPOCH after a restart): the next question gets a new one that asks afresh.
            self._client = None
            error = self.translated(exc, resource=resource, operation=operation)
            if isinstance(error, BrokerUnavailableError):
                raise self._unavailable(waited_ms) from exc
            raise error from exc
        self._refusal, self._trouble, self._has_answered = None, "", True
        return answer

    def settings(
        self, kind: ResourceType, name: str, *, about: str | None = None, foreseen: Collection[int] = ()
    ) -> dict[str, str] | None:
        """Every setting in effect of one topic or broker; None after a `foreseen` refusal. Other errors as `wait`."""
        resource = ConfigResource(kind, name)
        future = self.client().describe_configs([resource], **self.limits())[resource]
        entries = self.wait(future, resource=about or name, operation="describe configs", foreseen=foreseen)
        return None if isinstance(entries, KafkaError) else {key: e.value or "" for key, e in entries.items()}

    def translated(self, error: KafkaException | KafkaError, *, resource: str, operation: str) -> TxLayerError:
        return translate(
            error,
            bootstrap_servers=self._config.bootstrap_servers,
            resource=resource,
            topic=resource,
            operation=operation,
        )

    def limits(self) -> dict[str, float]:
        return {"request_timeout": self._timeout_ms / 1000}

    def deadline(self) -> float:
        """When what begins now has taken too long, on the monotonic clock."""
        return time.monotonic() + self._timeout_ms / 1000

    def _wait_until_done(self, future: concurrent.futures.Future[Any]) -> int:
        started, deadline = time.monotonic(), self.deadline() + _GRACE_S
        # Not `future.done()` again and again: the client answers under the future's lock. If an interrupt left that locked, the end of
        # the client would wait for ever.
        done, is_done = SimpleQueue[object](), False
        future.add_done_callback(done.put)
        while True:
            with suppress(Empty):
                is_done = done.get(timeout=LOOK_S) is future
            self.client().poll(0)  # calls `_on_error`
            waited_ms = int((time.monotonic() - started) * 1000)
            if is_done:
                return waited_ms
            if self._refusal is not None:
                # The client would try again until its time is over; the answer will not change.
                refusal, self._refusal = self._refusal, None
                raise NotAuthorisedError(
                    f"the broker refused the credentials: {self._trouble}",
                    resource=self._config.bootstrap_servers,
                    operation="connect",
                ) from KafkaException(refusal)
            if time.monotonic() > deadline:
                raise self._unavailable(waited_ms)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            self._refusal = error
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error.str().partition(" (after ")[0]

    def _unavailable(self, waited_ms: int) -> BrokerUnavailableError:
        # A client that knew a group's coordinator before the brokers went away may wait for that one for ever
        # (librdkafka #5511): the next question gets a new client.
        self._client = None
        return BrokerUnavailableError(
            f"no broker answered: {self._trouble or 'timed out'}",
            bootstrap_servers=self._config.bootstrap_servers,
            waited_ms=waited_ms,
        )

    # --- topics -------------------------------------------------------------------------------------------------------

    def describe_topics(self, names: Collection[str]) -> dict[str, TopicState]:
        return {
            name: TopicState(
                partition_count=len(description.partitions),
                replication_factor=min(len(p.replicas) for p in description.partitions),
                settings=self.settings(ResourceType.TOPIC, name) or {},
            )
            for name, description in self._descriptions(names).items()
            if description is not None
        }

    def topic_names(self) -> frozenset[str]:
        timeout_s = self.limits()["request_timeout"]
        try:
            return frozenset(self.connected_client().list_topics(timeout=timeout_s).topics)
        except KafkaException as exc:
            raise self.translated(exc, resource="topics", operation="list") from exc

    def partition_count(self, topic: str) -> int | None:
        description = self._descriptions([topic])[topic]
        return None if description is None else len(description.partitions)

    def topic_limits(self, topic: str) -> TopicLimits | None:
        # Without the right to read settings, `message_bytes_max` and `is_append_time` are None.
        description = self._descriptions([topic])[topic]
        if description is None:
            return None
        unreadable = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART}
        settings = self.settings(ResourceType.TOPIC, topic, foreseen=unreadable) or {}
        bytes_max, timestamps = settings.get("max.message.bytes"), settings.get("message.timestamp.type")
        # With fewer replicas than the topic's `min.insync.replicas` a broker asks for all of them.
        in_sync_min = int(settings.get("min.insync.replicas", 0))
        operations = description.authorized_operations  # some brokers say nothing about rights
        return TopicLimits(
            partition_count=len(description.partitions),
            message_bytes_max=None if bytes_max is None else int(bytes_max),
            unavailable=frozenset(
                p.id
                for p in description.partitions
                if not _has_leader(p) or len(p.isr) < min(in_sync_min, len(p.replicas))
            ),
            is_append_time=None if timestamps is None else timestamps == "LogAppendTime",
            is_writable=not operations or AclOperation.WRITE in operations,
            closed_at_ms=closed_at_ms(settings),
            topic_id=str(description.topic_id),
        )

    def create(self, topics: Sequence[CreateTopic]) -> list[str]:
        wanted = [
            NewTopic(t.topic, t.partition_count, t.replication_factor or -1, config=dict(t.settings)) for t in topics
        ]
        # Asked first, so that a refusal leaves no half of a namespace behind.
        self._create(wanted, validate_only=True)
        created = self._create(wanted, validate_only=False)
        self._wait_until(
            lambda: all(
                d is not None and all(map(_has_leader, d.partitions)) for d in self._descriptions(created).values()
            ),
            f"created, but without a leader yet: {', '.join(created)}",
        )
        return created

    def alter_settings(self, changes: Sequence[AlterSetting]) -> None:
        by_topic: dict[str, list[ConfigEntry]] = {}
        for change in changes:
            entry = ConfigEntry(change.setting, change.wanted, incremental_operation=AlterConfigOpType.SET)
            by_topic.setdefault(change.topic, []).append(entry)
        if not by_topic:
            return
        resources = [
            ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            for topic, entries in by_topic.items()
        ]
        for resource, future in self.client().incremental_alter_configs(resources, **self.limits()).items():
            self.wait(future, resource=resource.name, operation="alter configs")
        self._wait_until(
            lambda: all(self.describe_topics([c.topic])[c.topic].settings.get(c.setting) == c.wanted for c in changes),
            f"altered, but not yet in effect: {', '.join(sorted(by_topic))}",
        )

    def widen(self, counts: Mapping[str, int]) -> None:
        """Give each topic so many partitions, one topic after the other, and wait until that is known.

        A topic that has as many by now, because another person was quicker, stays as it is.

        Raises:
            RetriableError: no answer in time; what came before may have happened. It may be called again.
            NotAuthorisedError: refused; likewise.
        """
        for topic, count in counts.items():
            future = self.client().create_partitions([NewPartitions(topic, count)], **self.limits())[topic]
            refused = self.wait(
                future, resource=topic, operation="create partitions", foreseen={KafkaError.INVALID_PARTITIONS}
            )
            self._wait_until(
                lambda t=topic, n=count: self._led_count(t) >= n,  # type: ignore[misc]  # mypy infers no lambda with defaults
                f"widened, but not all {count} partitions of {topic} have a leader yet",
            )
            if isinstance(refused, KafkaError) and self._led_count(topic) > count:
                raise self.translated(refused, resource=topic, operation="create partitions")

    def _led_count(self, topic: str) -> int:
        found = self.client().list_topics(topic, timeout=LOOK_S * 50).topics[topic]
        return sum(p.leader >= 0 for p in found.partitions.values())

    def remove(self, *, topics: Collection[str], groups: Collection[str]) -> None:
        """Delete topics with their records, and groups with their offsets; what is not there is passed over.

        Raises:
            BrokerUnavailableError, NotAuthorisedError, TxLayerError: some of it may be left.
        """
        client, asked = self.client(), []
        if topics:
            asked += [*client.delete_topics(list(topics), **self.limits()).items()]
        if groups:
            asked += [*client.delete_consumer_groups(list(groups), **self.limits()).items()]
        for name, future in asked:
            self.wait(future, resource=name, operation="delete", foreseen=_GONE)  # it never was, or is gone already

    # --- groups and offsets -------------------------------------------------------------------------------------------

    def group(self, group: str) -> GroupState:
        future = self.client().describe_consumer_groups([group], **self.limits())[group]
        answer = self.wait(future, resource=group, operation="describe group", foreseen={KafkaError.GROUP_ID_NOT_FOUND})
        if isinstance(answer, KafkaError):
            return GroupState("dead", ())
        members = tuple(
            GroupMember(
                m.member_id,
                m.client_id,
                m.host.removeprefix("/"),
                tuple(sorted((p.topic, p.partition) for p in m.assignment.topic_partitions)),
            )
            for m in answer.members
        )
        return GroupState(answer.state.name.lower(), members)

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        # One question for all of them, and not to each group's own coordinator: it may just be moving.
        future = self.client().list_consumer_groups(states=_STATES_WITH_MEMBERS, **self.limits())
        answer = self.wait(future, resource="consumer groups", operation="list groups")
        found = frozenset(groups) & {listing.group_id for listing in answer.valid}
        if answer.errors or found < frozenset(groups):
            # The groups may have no members, or the client does not notice where they are now.
            self.doubt(answer.errors)
        return found

    def stored_offsets(
        self, group: str, partitions: Collection[TopicPartition], *, is_stable: bool = False
    ) -> dict[TopicPartition, StoredOffset | None]:
        if not partitions:
            return {}
        started, wanted = time.monotonic(), [ClientPartition(*p) for p in partitions]
        consumer = self._consumer(group, is_stable=is_stable)
        refused: KafkaException | None = None
        while True:
            left_s = started + self._timeout_ms / 1000 - time.monotonic()
            try:
                answer = consumer.committed(wanted, timeout=max(min(left_s, _SLICE_S), 0.001))
                for p in answer:
                    if p.error is not None:
                        raise KafkaException(p.error)
            except KafkaException as exc:
                code = kafka_error(exc).code()
                if code in MOVED_COORDINATOR_CODES and left_s > LOOK_S:
                    # The client looks for the new one by itself, but tells the answer of the old one at once.
                    refused = exc
                    time.sleep(LOOK_S)
                elif code == KafkaError._TIMED_OUT and left_s > _SLICE_S:
                    # Only `poll` reports a refused group.
                    report = consumer.poll(0)
                    refusal = None if report is None else report.error()
                    if refusal is not None and refusal.code() in NOT_AUTHORISED_CODES:
                        raise self._no_offsets(KafkaException(refusal), group, started) from exc
                else:
                    # The last slice may be too short for any answer; what the broker said before tells more than "timed out".
                    why = refused if code == KafkaError._TIMED_OUT and refused else exc
                    raise self._no_offsets(why, group, started) from exc
            else:
                return {
                    (p.topic, p.partition): StoredOffset(p.offset, p.metadata or "") if p.offset >= 0 else None
                    for p in answer
                }

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        deadline = self.deadline()
        while offsets:
            request = ConsumerGroupTopicPartitions(
                group, [ClientPartition(t, p, stored.offset, stored.metadata) for (t, p), stored in offsets.items()]
            )
            future = self.client().alter_consumer_group_offsets([request], **self.limits())[group]
            answer = self.wait(future, resource=group, operation="store offsets")
            failed = [p for p in answer.topic_partitions if p.error is not None]
            if not failed:
                return
            error = failed[0].error
            if error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS):
                raise LifecycleError(f"the group {group} has active members; stop them first", state="active")
            # A topic that was just created is not known to every broker at once, a group's coordinator may be moving.
            is_passing = error.code() in MISSING_CODES | MOVED_COORDINATOR_CODES
            if not is_passing or time.monotonic() > deadline:
                is_of_group = error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
                about = group if is_of_group else failed[0].topic
                raise self.translated(error, resource=about, operation="store offsets")
            time.sleep(LOOK_S)

    def start_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return _known(self._list_offsets(partitions, OffsetSpec.earliest()))  # type: ignore[no-untyped-call]  # the client's stub says no type

    def end_offsets(
        self, partitions: Collection[TopicPartition], *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        found = self._list_offsets(partitions, OffsetSpec.latest(), is_committed=is_committed)  # type: ignore[no-untyped-call]  # the same
        return _known(found)

    def offsets_at(self, partitions: Collection[TopicPartition], *, at_ms: int) -> dict[TopicPartition, int]:
        found = self._list_offsets(partitions, OffsetSpec.for_timestamp(max(at_ms, 0)))
        after = [p for p, offset in found.items() if offset < 0]
        return {**found, **self.end_offsets(after)}

    # Consumers ask for stored offsets, one per group and isolation level, because an admin client that learns that the group's
    # coordinator has moved ends the process: librdkafka 2.16 then looks for a group that only a consumer has
    # (docs/explanation/kafka.md, Groups).

    def _consumer(self, group: str, *, is_stable: bool) -> Consumer:
        if (group, is_stable) not in self._consumers:
            isolation = "read_committed" if is_stable else "read_uncommitted"
            self._consumers[group, is_stable] = plain_consumer(self._config, isolation=isolation, group=group)
        return self._consumers[group, is_stable]

    def _close_consumers(self) -> None:
        consumers, self._consumers = list(self._consumers.values()), {}
        for consumer in consumers:
            consumer.close()

    def _no_offsets(self, exc: KafkaException, group: str, started: float) -> TxLayerError:
        # A client that knew the group's coordinator before the brokers went away may wait for that one for ever
        # (librdkafka #5511): the next question gets a new one.
        self._close_consumers()
        error = self.translated(exc, resource=group, operation="read stored offsets")
        if not isinstance(error, BrokerUnavailableError):
            return error
        return BrokerUnavailableError(
            f"the stored offsets of {group} did not come: {error.detail}",
            bootstrap_servers=self._config.bootstrap_servers,
            waited_ms=int((time.monotonic() - started) * 1000),
        )

    # --- rights -------------------------------------------------------------------------------------------------------

    def acls(self) -> frozenset[Acl]:
        """Every right; none where the brokers have no authorizer."""
        any_value: Any = None  # the client's stub wants a text
        kind = (ResourceType.ANY, any_value, ResourcePatternType.ANY, any_value, any_value)
        everything = AclBindingFilter(*kind, AclOperation.ANY, AclPermissionType.ANY)
        future = self.client().describe_acls(everything, **self.limits())
        return frozenset(map(_ours, self._authorised(future, "cluster", "describe ACLs")))

    def create_acls(self, acls: Sequence[Acl]) -> None:
        """Create these; one that is there already stays as it is.

        Raises:
            UsageError: the brokers have no authorizer; nothing was changed.
        """
        if not acls:
            return
        futures = self.client().create_acls([_theirs(acl) for acl in acls], **self.limits())
        for binding, future in futures.items():
            self._authorised(future, binding.name, "create ACLs")

    def _authorised(self, future: concurrent.futures.Future[Any], resource: str, operation: str) -> Any:
        answer = self.wait(future, resource=resource, operation=operation, foreseen={Code.SECURITY_DISABLED})
        if isinstance(answer, KafkaError):
            raise UsageError(
                "the brokers have no authorizer, every client may do everything: set authorizer.class.name on them"
            ) from KafkaException(answer)
        return answer

    # --- what several questions share ---------------------------------------------------------------------------------

    def _create(self, wanted: list[NewTopic], *, validate_only: bool) -> list[str]:
        if not wanted:
            return []
        futures = self.client().create_topics(wanted, validate_only=validate_only, **self.limits())
        exists = {KafkaError.TOPIC_ALREADY_EXISTS}
        answers = {
            name: self.wait(future, resource=name, operation="create", foreseen=exists)
            for name, future in futures.items()
        }
        return [name for name, answer in answers.items() if not isinstance(answer, KafkaError)]

    def _descriptions(self, names: Collection[str], *, foreseen: frozenset[Code] = frozenset()) -> dict[str, Any]:
        """{name: description, `KafkaError` of a `foreseen` code, or None for a topic that does not exist}."""
        if not names:
            return {}
        futures = self.client().describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, **self.limits()
        )
        answers = {
            name: self.wait(future, resource=name, operation="describe", foreseen=MISSING_CODES | foreseen)
            for name, future in futures.items()
        }
        return {n: None if isinstance(a, KafkaError) and a.code() in MISSING_CODES else a for n, a in answers.items()}

    def _wait_until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        """Brokers follow the log of the controller: for some milliseconds a broker still shows what was before."""
        deadline = self.deadline()
        while not is_so():
            if time.monotonic() > deadline:
                raise RetriableError(otherwise)
            time.sleep(LOOK_S)

    def _list_offsets(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec, *, is_committed: bool = True
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        deadline = self.deadline()
        while True:
            try:
                return self._offsets_once(partitions, spec, is_committed=is_committed)
            except BrokerUnavailableError as exc:  # it was waited for
                if leaderless := self._leaderless(partitions):
                    raise BrokerUnavailableError(
                        f"no broker leads {leaderless}",
                        bootstrap_servers=exc.bootstrap_servers,
                        waited_ms=exc.waited_ms,
                    ) from exc
                raise
            except RetriableError:
                # A partition is new or its leader just moved, and not every broker knows it yet.
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)

    def _leaderless(self, partitions: Collection[TopicPartition]) -> str:
        """Those of the partitions that have no leader, the first five; "" if there is none, or no broker says so."""
        try:
            topics = {
                t: self.client().list_topics(t, timeout=LOOK_S * 10).topics[t] for t in {t for t, _ in partitions}
            }
        except KafkaException:
            return ""
        found = [
            tp for tp in sorted(partitions) if tp[1] in (known := topics[tp[0]].partitions) and known[tp[1]].leader < 0
        ]
        return ", ".join(f"{topic}-{partition}" for topic, partition in found[:5]) + ", …" * (len(found) > 5)

    def _offsets_once(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec, *, is_committed: bool
    ) -> dict[TopicPartition, int]:
        isolation = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        request = {ClientPartition(*p): spec for p in partitions}
        futures = self.connected_client().list_offsets(request, isolation_level=isolation, **self.limits())
        return {
            (p.topic, p.partition): self.wait(future, resource=p.topic, operation="list offsets").offset
            for p, future in futures.items()
        }


def _known(offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets themselves.

    Raises:
        RetriableError: one is none: a partition whose leader just moved was left out of the answer. Taken for an end it
            would say that there is nothing to read.
    """
    for (topic, partition), offset in offsets.items():
        if offset < 0:
            raise RetriableError(f"{topic}-{partition}: the broker said no offset")
    return offsets


def _has_leader(partition: Any) -> bool:
    return partition.leader is not None and partition.leader.id >= 0


ASK_AGAIN_S = 0.1
HUNG_S = 30.0  # a client that keeps others waiting for so long hangs, also where its library promises an end


class SharedAdmin:
    """A `KafkaAdmin` that any thread may ask. It asks again for `patience_ms`, after a failure with a new client.

    A question that hangs keeps its client. The questions behind it go on with another one after `hung_s`.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        timeout_ms: int = ANSWER_TIMEOUT_MS,
        patience_ms: int = 0,
        make_admin: Callable[..., Any] = KafkaAdmin,
        clock: Callable[[], float] = time.monotonic,
        hung_s: float = HUNG_S,
    ) -> None:
        self._patience_s = patience_ms / 1000
        self._clock = clock
        self._hung_s = hung_s
        self._make_admin: Callable[[], KafkaAdmin] = partial(make_admin, config, timeout_ms=timeout_ms)
        self._turn = (threading.Lock(), self._make_admin())
        self._is_closed = False

    def topic_limits(self, topic: str) -> TopicLimits | None:
        began = self._clock()
        while True:
            try:
                # For one question at a time, so that `close` does not wait for all of them.
                with self._next_turn() as admin:
                    return admin.topic_limits(topic)
            except BrokerUnavailableError as exc:
                waited_s = self._clock() - began
                if self._is_closed or waited_s + ASK_AGAIN_S >= self._patience_s:
                    raise BrokerUnavailableError(
                        exc.detail, bootstrap_servers=exc.bootstrap_servers, waited_ms=int(waited_s * 1000)
                    ) from exc
            time.sleep(ASK_AGAIN_S)

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        with self._next_turn() as admin:
            return admin.groups_with_members(groups)

    def end_offsets(self, partitions: Collection[TopicPartition], *, is_committed: bool) -> dict[TopicPartition, int]:
        with self._next_turn() as admin:
            return admin.end_offsets(partitions, is_committed=is_committed)

    def close(self) -> None:
        self._is_closed = True
        with self._next_turn() as admin:
            admin.close()

    @contextmanager
    def _next_turn(self) -> Iterator[KafkaAdmin]:
        while True:
            turn = lock, admin = self._turn
            if lock.acquire(timeout=self._hung_s):
                break
            logger.warning("client.hangs", extra={"waited_s": self._hung_s})
            if self._turn is turn:
                self._turn = (threading.Lock(), self._make_admin())
        try:
            yield admin
        finally:
            lock.release()


# --- access rights ----------------------------------------------------------------------------------------------------


_CLUSTER = ResourceType.BROKER
"""So the client calls the cluster; all other resources, patterns and operations have our names."""


def _theirs(acl: Acl) -> AclBinding:
    return AclBinding(
        _CLUSTER if acl.resource is AclResource.CLUSTER else ResourceType[acl.resource.name],
        acl.name,
        ResourcePatternType[acl.pattern.name],
        acl.principal,
        acl.host,
        AclOperation[acl.operation.name],
        AclPermissionType.DENY if acl.is_denied else AclPermissionType.ALLOW,
    )


def _ours(binding: Any) -> Acl:  # the client's stub lets the enums be texts and numbers too
    resource = "CLUSTER" if binding.restype is _CLUSTER else binding.restype.name
    return Acl(
        AclResource.__members__.get(resource, AclResource.OTHER),
        binding.name,
        AclPattern.__members__.get(binding.resource_pattern_type.name, AclPattern.LITERAL),
        Operation.__members__.get(binding.operation.name, Operation.OTHER),
        binding.principal,
        binding.host,
        is_denied=binding.permission_type is AclPermissionType.DENY,
    )
