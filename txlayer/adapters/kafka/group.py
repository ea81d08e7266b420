"""Members of a consumer group: they report what was assigned, and the service decides where to read.

A callback of the client never raises here, because an exception out of a callback loses messages silently
(docs/explanation/kafka.md, Reading). The error is kept, and the next `read` raises it.
"""

import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from txlayer.adapters.kafka.client import (
    FETCH_QUEUE_BACKOFF_MS,
    READING,
    Deadline,
    assign,
    base_settings,
    kafka_error,
    new_client,
    readable,
    translate,
    watermarks,
)
from txlayer.adapters.ports import Assignment, OnRevoke, StoredOffset, TopicPartition
from txlayer.adapters.readers import LOST_TO_COORDINATOR, TranslatedMember
from txlayer.adapters.telemetry import Log
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError, InvariantError, LifecycleError, TxLayerError

logger = Log("txlayer.kafka")

_METADATA_PREFIX = b"CGMDv2:"
_SERVED_AT_ONCE = 10_000
_SERVED_ROUNDS_MAX = 100
"""A client queues far fewer records than both together: what waited when `close` began has been served then."""
_LEAVE_WAIT_S = 0.05
_LEAVE_PATIENCE_S = 5.0
"""The client takes the partitions back within itself, which takes some milliseconds."""


def parse_member(metadata: bytes) -> tuple[int, str]:
    """(generation, member id) of a group's metadata: `CGMDv2:`, int32 generation, then group and member, each ending in NUL.

    Raises:
        InvariantError: no member or no generation is in it. The broker would accept it unchecked (docs/explanation/kafka.md).
    """
    if not metadata.startswith(_METADATA_PREFIX) or len(metadata) < len(_METADATA_PREFIX) + 6:
        raise InvariantError(f"group metadata of an unknown form: {metadata[:40]!r}")
    (generation,) = struct.unpack_from("<i", metadata, len(_METADATA_PREFIX))
    parts = metadata[len(_METADATA_PREFIX) + 4 :].split(b"\0")
    member = parts[1].decode() if len(parts) > 1 else ""
    if generation < 0 or not member:
        raise InvariantError(f"group metadata without a member or a generation: {metadata[:80]!r}")
    return generation, member


_error_of = Message.error


class KafkaGroupReader(TranslatedMember):
    """The `GroupReader` of real Kafka."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        group: str,
        session_timeout_ms: int,
        lost_to: str | None = LOST_TO_COORDINATOR,
        fetch_wait_ms: int = 10,
        instance_id: str = "",
        on_commit: Callable[..., None] | None = None,
        tells_end: bool = False,
        prefetches: bool = True,
    ) -> None:
        """A member of a classic group with the range assignor; it never stores offsets by itself.

        With `tells_end` it gets an error record with the position whenever it has read all of a partition. Without `prefetches` it
        fetches from a partition no more while 16 records of it wait: fewer requests, each with more records. With 1 instead of 16,
        a record at 1,000/s waited for the next turn but one.
        """
        super().__init__(group=group, bootstrap_servers=config.bootstrap_servers, lost_to=lost_to)
        self._config = config
        settings = {
            "fetch.wait.max.ms": fetch_wait_ms,
            "queued.max.messages.kbytes": 65_536,
            "fetch.message.max.bytes": 4 * 1024 * 1024,
            "fetch.queue.backoff.ms": FETCH_QUEUE_BACKOFF_MS,
            **({} if prefetches else {"queued.min.messages": 16, "fetch.queue.backoff.ms": 1}),
            "max.poll.interval.ms": max(60_000, session_timeout_ms),
            **base_settings(config),
            "group.id": group,
            **({"group.instance.id": instance_id} if instance_id else {}),
            **({"on_commit": on_commit} if on_commit is not None else {}),
            **READING,
            "group.protocol": "classic",
            "partition.assignment.strategy": "range",
            "isolation.level": "read_committed",
            "enable.partition.eof": tells_end,
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": max(session_timeout_ms // 4, 100),
        }
        self._consumer = new_client(Consumer, settings)
        self._holds_share = False  # the group has given one, empty or not, and not taken it back
        self._is_closed = False

    def start(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def resume_at(self, positions: Mapping[TopicPartition, int]) -> None:
        self._reached.clear()
        assign(self._consumer, positions)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._consumer.pause([ClientPartition(*p) for p in partitions])

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._consumer.resume([ClientPartition(*p) for p in partitions])

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        # poll, then consume(n, 0): consume(n, t) would wait for all n (docs/explanation/kafka.md, Reading).
        try:
            first = self._consumer.poll(timeout_s)
            records = [] if first is None else [first, *self._consumer.consume(record_count_max - 1, 0)]
        except KafkaException as exc:
            raise translate(exc, bootstrap_servers=self._config.bootstrap_servers) from exc
        self._raise_failure()
        if any(map(_error_of, records)):
            records = [r for r in records if not self._is_error(r)]
        return readable(records)

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        return watermarks(self._consumer, partition, config=self._config, timeout_s=timeout_s)

    def read_to(self, partition: TopicPartition) -> int:
        """Where reading stood when it last came to the end; -1: it has not. Only a reader that `tells_end` knows it."""
        return self._reached.get(partition, -1)

    def known_end(self, partition: TopicPartition) -> int | None:
        """The end of an assigned partition as the last fetch reported it; None: no fetch has."""
        try:
            _, high = self._consumer.get_watermark_offsets(ClientPartition(*partition), cached=True)
        except KafkaException as exc:
            # It was taken away, or was not fetched from yet.
            logger.debug("end.unknown", extra={"partition": partition, "reason": str(exc)})
            return None
        return high if high >= 0 else None

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._leave()
            self._consumer.close()

    def _leave(self) -> None:
        """Give the partitions back while the client can still answer.

        A callback within the client's own `close` may stop the whole process for good (docs/explanation/kafka.md, Closing).
        """
        try:
            self._serve_what_waits()
            self._consumer.unsubscribe()
            self._serve_what_waits()
            give_up_at = time.monotonic() + _LEAVE_PATIENCE_S
            while self._holds_share and time.monotonic() < give_up_at:
                self._consumer.consume(_SERVED_AT_ONCE, _LEAVE_WAIT_S)
        except KafkaException as exc:
            logger.debug("group.closing", extra={"reason": str(exc)})

    def _serve_what_waits(self) -> None:
        """Call the callbacks that wait in the client's queue; the records there are of no use any more."""
        for _ in range(_SERVED_ROUNDS_MAX):
            if len(self._consumer.consume(_SERVED_AT_ONCE, 0)) < _SERVED_AT_ONCE:
                return

    def _on_assign(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        try:
            self._holds_share = True
            # Assign nothing now: recovery comes first, outside the callback. The metadata of this very generation is
            # the fence of every Kafka transaction until the next one.
            consumer.assign([])
            metadata = consumer.consumer_group_metadata()
            generation, _ = parse_member(bytes(metadata))
            self._assignment = Assignment(
                tuple(sorted((p.topic, p.partition) for p in partitions)), metadata, generation
            )
        except Exception as exc:  # noqa: BLE001 - a client's callback: the next read raises it
            self._failure = exc

    def _on_revoke(self, consumer: Consumer, _partitions: list[ClientPartition]) -> None:
        try:
            self._assignment = None
            self._is_revoked = True
            self._reached.clear()
            self._holds_share = False
            # A pause outlives its assignment: lifted now, the next one finds none.
            consumer.resume(consumer.assignment())
            consumer.unassign()
        except Exception as exc:  # noqa: BLE001 - a client's callback: the next read raises it
            self._failure = exc


@dataclass(slots=True)
class _Store:
    """A store that was begun."""

    is_done: bool = False
    failure: TxLayerError | None = None


class KafkaStoringGroupReader(KafkaGroupReader):
    """The `StoringGroupReader` of real Kafka. One thread uses it.

    A store without waiting is reported from within a later read. One that waits has a deadline, and a thread for it. The
    client does not answer a commit of one thread while another one polls it, or is in a callback of it (seen with 2.16): so
    no thread polls meanwhile, and a store during a revocation is made by the thread of the callback, within the client's own
    time-outs.
    """

    def __init__(self, config: ClientConfig, *, group: str, instance_id: str, **reading: Any) -> None:
        super().__init__(
            config,
            group=group,
            lost_to=None,
            instance_id=instance_id,
            on_commit=self._on_commit,
            tells_end=True,
            **reading,
        )
        self._is_static = bool(instance_id)
        self._under_way: deque[_Store] = deque()  # the client answers in order, also what is no longer waited for
        self._begun: _Store | None = None
        self._is_in_callback = False
        self._deadline = Deadline("txlayer-store-offsets")

    def start(self, topics: Sequence[str], *, on_revoke: OnRevoke | None = None) -> None:
        self._hook = on_revoke
        taken, lost = partial(self._on_gone, is_lost=False), partial(self._on_gone, is_lost=True)
        self._consumer.subscribe(list(topics), on_assign=self._on_assign, on_revoke=taken, on_lost=lost)

    def begin_store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        if self._begun is not None:
            raise LifecycleError("a store of offsets is under way", state="storing")
        try:
            self._consumer.commit(offsets=_partitions(offsets), asynchronous=True)
        except KafkaException as exc:
            raise self.store_error(kafka_error(exc)) from exc
        self._begun = _Store()
        self._under_way.append(self._begun)

    def take_stored(self) -> bool:
        begun = self._begun
        if begun is None or not begun.is_done:
            return False
        self._begun = None
        if begun.failure is not None:
            raise begun.failure
        return True

    def store_offsets(self, offsets: Mapping[TopicPartition, StoredOffset], *, timeout_s: float) -> None:
        self._begun = None
        partitions = _partitions(offsets)

        def store() -> None:
            for partition in self._consumer.commit(offsets=partitions, asynchronous=False) or ():
                if partition.error is not None:
                    raise KafkaException(partition.error)

        try:
            if self._is_in_callback:
                store()
            else:
                self._deadline.call(store, within_s=timeout_s)
        except TimeoutError as exc:
            # The thread keeps waiting; the next one gets another.
            self._deadline = Deadline("txlayer-store-offsets")
            raise BrokerUnavailableError(
                "offsets were not stored in time",
                bootstrap_servers=self._config.bootstrap_servers,
                waited_ms=int(timeout_s * 1000),
            ) from exc
        except KafkaException as exc:
            raise self.store_error(kafka_error(exc)) from exc

    def close(self) -> None:
        """Leave the group; `on_revoke` is called first when there are partitions to give back.

        A static member does not leave: the group keeps its partitions for its next process, until its session ends.
        """
        if not self._is_static:
            super().close()
        elif not self._is_closed:
            self._is_closed = True
            self._stay_in_group()
        self._deadline.close()

    def _stay_in_group(self) -> None:
        try:
            self._serve_what_waits()
        except KafkaException as exc:
            logger.debug("group.closing", extra={"reason": str(exc)})
        if self._holds_share:
            self._holds_share = False
            self._call_hook(is_lost=False)
        # Without a subscription the client leaves, static member or not, and in its `close` a callback may freeze the process. A client that
        # is dropped calls nothing and sends nothing: its threads end here.
        del self._consumer

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[ClientPartition] | None) -> None:
        # A client's callback: it must not raise.
        if not self._under_way:
            return
        store = self._under_way.popleft()
        store.is_done = True
        failed = error or next((p.error for p in partitions or () if p.error is not None), None)
        if failed is not None:
            store.failure = self.store_error(failed)

    def _on_gone(self, consumer: Consumer, partitions: list[ClientPartition], *, is_lost: bool) -> None:
        self._is_in_callback = True
        try:
            self._call_hook(is_lost=is_lost)
        finally:
            self._is_in_callback = False
        if is_lost:
            self._begun = None  # fenced by its generation
        self._on_revoke(consumer, partitions)


def _partitions(offsets: Mapping[TopicPartition, StoredOffset]) -> list[ClientPartition]:
    return [ClientPartition(t, p, o.offset, o.metadata) for (t, p), o in offsets.items()]
