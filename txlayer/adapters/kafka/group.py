"""A member of a consumer group (the coordinators', or a producer group's responders'): it says what was assigned and lets the service decide where to read.

No callback here ever raises: an exception out of a callback loses messages silently (docs/explanation/kafka.md, Reading). What
goes wrong in one is kept and raised by the next `read`.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from txlayer.adapters.error_codes import PASSING_CODES, Code
from txlayer.adapters.kafka.client import assign, group_consumer, readable, watermarks
from txlayer.adapters.kafka.errors import translate
from txlayer.adapters.ports import Assignment, TopicPartition
from txlayer.adapters.translation import COORDINATOR_ADVICE, translate_read_error
from txlayer.config import ClientConfig
from txlayer.errors import InvariantError

logger = logging.getLogger("txlayer.kafka")

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


class KafkaGroupReader:
    """The `GroupReader` of real Kafka."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        group: str,
        session_timeout_ms: int,
        fetch_wait_ms: int = 10,
        instance_id: str = "",
        on_commit: Callable[..., None] | None = None,
        tells_end: bool = False,
        reader: str = "the coordinator",
        advice: str = COORDINATOR_ADVICE,
    ) -> None:
        self._config = config
        self._reader_name = reader
        self._advice = advice
        self._consumer: Consumer = group_consumer(
            config,
            group=group,
            session_timeout_ms=session_timeout_ms,
            isolation="read_committed",
            fetch_wait_ms=fetch_wait_ms,
            instance_id=instance_id,
            on_commit=on_commit,
            tells_end=tells_end,
        )
        self._reached: dict[TopicPartition, int] = {}
        self._assignment: Assignment | None = None
        self._is_revoked = False
        self._holds_share = False  # the group has given one, empty or not, and not taken it back
        self._is_closed = False
        self._failure: Exception | None = None

    def start(self, topics: Sequence[str]) -> None:
        """Join the group; the assignment comes from within a later `read`."""
        self._consumer.subscribe(
            list(topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def take_assignment(self) -> Assignment | None:
        """The newest assignment that was not taken yet; it assigns nothing, `resume_at` does."""
        taken, self._assignment = self._assignment, None
        return taken

    def take_revocation(self) -> bool:
        """True once after the group took its partitions back, or the session was lost."""
        taken, self._is_revoked = self._is_revoked, False
        return taken

    def resume_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read the assigned partitions from here."""
        self._reached.clear()
        assign(self._consumer, positions)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these; what was fetched ahead is given up."""
        self._consumer.pause([ClientPartition(*p) for p in partitions])

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these again."""
        self._consumer.resume([ClientPartition(*p) for p in partitions])

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        """Records as they come, none with an error; serves the group's callbacks.

        Raises:
            TxLayerError: the stored offset is gone (OFFSET_OUT_OF_RANGE), access is denied, or a callback failed.
                Nothing that was read counts: rebuild from the stored offsets.
        """
        # poll, then consume(n, 0): consume(n, t) would wait for all n (docs/explanation/kafka.md, Reading).
        try:
            first = self._consumer.poll(timeout_s)
            records = (
                [] if first is None else [first, *self._consumer.consume(record_count_max - 1, 0)]
            )
        except KafkaException as exc:
            raise translate(exc, bootstrap_servers=self._config.bootstrap_servers) from exc
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if any(map(_error_of, records)):
            records = [r for r in records if not self._is_error(r)]
        return readable(records)

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        """(first offset, last stable offset); errors as `watermarks` has them."""
        return watermarks(self._consumer, partition, config=self._config, timeout_s=timeout_s)

    def read_to(self, partition: TopicPartition) -> int:
        """Where reading stood when it last came to the end; -1: it has not. Only a reader that `tells_end` knows it."""
        return self._reached.get(partition, -1)

    def known_end(self, partition: TopicPartition) -> int | None:
        """The end of an assigned partition as the last fetch told it; None: none has."""
        try:
            _, high = self._consumer.get_watermark_offsets(ClientPartition(*partition), cached=True)
        except KafkaException as exc:
            # It was taken away, or nobody has fetched from it yet.
            logger.debug("end.unknown", extra={"partition": partition, "reason": str(exc)})
            return None
        return high if high >= 0 else None

    def partition_count(self, topic: str, *, timeout_s: float) -> int:
        """Partitions of a topic, 0 when there is no such topic.

        Raises:
            BrokerUnavailableError: not answered within `timeout_s`.
        """
        try:
            found = self._consumer.list_topics(topic, timeout=timeout_s).topics.get(topic)
        except KafkaException as exc:
            raise translate(exc, bootstrap_servers=self._config.bootstrap_servers) from exc
        return len(found.partitions) if found is not None and found.error is None else 0

    def close(self) -> None:
        """Leave the group."""
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

    def _is_error(self, record: Any) -> bool:
        error = record.error()
        if error is None:
            return False
        if error.code() in PASSING_CODES:
            return True
        if error.code() == Code.LOCAL_PARTITION_EOF:
            self._reached[record.topic(), record.partition()] = record.offset()
            return True
        raise translate_read_error(
            error, bootstrap_servers=self._config.bootstrap_servers, reader=self._reader_name,
            advice=self._advice_for(record.topic() or ""),
        )  # fmt: skip

    def _advice_for(self, topic: str) -> str:  # noqa: ARG002 - for those that read several
        return self._advice
