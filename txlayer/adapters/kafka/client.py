"""Creates confluent-kafka clients with the settings that carry the promises (docs/explanation/kafka.md); readers and members of groups.

A callback of the client never raises here, because an exception out of a callback loses messages silently. The error is kept, and
the next `read` raises it.
"""

import re
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import length_hint, methodcaller
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.serialization import MessageField, SerializationContext

from txlayer.adapters.errors import detail_of, translate_error
from txlayer.adapters.ports import Assignment, OnRevoke, RecordView, StoredOffset, TopicPartition
from txlayer.adapters.readers import LOST_TO_COORDINATOR, TranslatedMember
from txlayer.adapters.telemetry import Log
from txlayer.config import ClientConfig
from txlayer.errors import (
    BrokerUnavailableError,
    ConfigError,
    InvariantError,
    LifecycleError,
    MemberFencedError,
    RetriableError,
    TxLayerError,
)


def kafka_error(error: KafkaException | KafkaError) -> KafkaError:
    if isinstance(error, KafkaException):
        inner = error.args[0]
        return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(inner))
    return error


def translate(error: KafkaException | KafkaError, **context: Any) -> TxLayerError:
    """`translate_error` for an exception as well."""
    return translate_error(kafka_error(error), **context)


logger = Log("txlayer.kafka")
client_logger = Log("txlayer.librdkafka")

RETRY_BACKOFF_MS = 100
"""The guard against re-sent EndTxn rests on it (docs/explanation/kafka.md): a re-send waits at least 0.8 of it."""

MESSAGE_BYTES_MAX = 1_000_000_000  # the client's own upper end for one message


def base_settings(config: ClientConfig) -> dict[str, Any]:
    """What every client of ours shares; `client_settings` win, those that carry a promise are refused by the config."""
    return {
        "bootstrap.servers": config.bootstrap_servers,
        "retry.backoff.ms": RETRY_BACKOFF_MS,
        "retry.backoff.max.ms": 500,
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.propagation.max.ms": 5000,
        "log.connection.close": False,
        "logger": client_logger,
        **config.client_settings,
    }


C = TypeVar("C")


def new_client(kind: Callable[[dict[str, Any]], C], settings: Mapping[str, Any]) -> C:
    """A client of the given class. Every client of ours is created here.

    Raises:
        ConfigError: the client refuses a setting. No value of a setting is shown, neither here nor in what caused it.
    """
    try:
        return kind(dict(settings))
    except (KafkaException, TypeError, ValueError) as exc:
        if isinstance(exc, KafkaException) and kafka_error(exc).code() != KafkaError._INVALID_ARG:
            raise translate(exc, bootstrap_servers=settings["bootstrap.servers"]) from None
        error = refused_setting(settings, exc)
    raise error from None


_SETTING = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+|[a-z]+_(?:cb|level)|debug|retries|acks")
_PROPERTY = re.compile(r'property "([^"]+)"|value for "([^"]+)"')
_OTHER_NAMES = {  # the client's own name of a setting, which its errors use: the name that people know
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "sasl.mechanisms": "sasl.mechanism",
}
_COMMON_VALUES = frozenset(("SSL", "SASL_SSL", "PLAINTEXT", "SASL_PLAINTEXT", "PLAIN", "OAUTHBEARER", "GSSAPI"))
_VALUE_PARTS = re.compile(r"[\s,;=:\"'`]+")
_SAID_MAX = 400  # the client cuts its sentences at 512 characters; a value that was cut could not be recognised


def refused_setting(settings: Mapping[str, Any], error: Exception) -> ConfigError:
    """Our error for a setting that the client refused: the setting's name, and the client's words if they hold no value."""
    said = kafka_error(error).str() if isinstance(error, KafkaException) else str(error)
    said = " ".join(said.split())
    name = _refused_name(settings, said)
    if "No such configuration property" in said or "not settable" in said:
        # A name without a dot may be the rest of a password that holds the separator.
        name = name if "." in name else "client_settings"
        return ConfigError("the client has no such setting", name=name, expected="a librdkafka setting")
    if name.endswith(".location") and (trouble := _unreadable(settings.get(name))):
        return ConfigError(f"cannot be read: {trouble}", name=name, expected="a file")
    values = {str(value) for value in settings.values() if not callable(value)}
    parts = {part for value in values for part in (value, *_VALUE_PARTS.split(value))}
    is_telling = len(said) > _SAID_MAX or any(len(part) > 2 and part in said for part in parts - _COMMON_VALUES)
    return ConfigError(
        "the client refuses the value" if is_telling else said, name=name, expected="a value of librdkafka"
    )


def _refused_name(settings: Mapping[str, Any], said: str) -> str:
    if "SASL mechanism" in said:
        found = ["sasl.mechanisms"]
    elif "(plugin " in said:
        found = ["plugin.library.paths"]
    else:
        # The value, which may name other settings, comes first in the client's sentence.
        found = [one or other for one, other in _PROPERTY.findall(said)][-1:]
        found = found or _SETTING.findall(said)
    for name in found:
        for known in (name, _OTHER_NAMES.get(name, name)):
            if known in settings:
                return known
    return found[0] if found else "client_settings"


def _unreadable(path: Any) -> str:
    """Why a file cannot be read; empty: it can, or there is none."""
    try:
        if path is not None:
            with Path(path).open("rb"):
                return ""
    except (OSError, TypeError, ValueError) as exc:
        return (exc.strerror if isinstance(exc, OSError) else None) or "not a path"
    return ""


READING: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "check.crcs": True,
    "allow.auto.create.topics": False,
}

_AHEAD = {
    # It fetches from a partition no more while 16 records of it wait. The client's limit in bytes counts values alone: of records that
    # are nothing but headers it would keep 100,000 of each partition. It is also fewer requests, each with more records. With 1
    # instead of 16, a record at 1,000/s waited for the next turn but one.
    "queued.min.messages": 16,
    # How long it fetches nothing after that. With its default, a second, a reader that empties the queue would wait most of the time.
    "fetch.queue.backoff.ms": 1,
}
_FETCH = {
    **_AHEAD,
    # A record waits in several times its own size: a million of them read at once would stay as unused memory.
    "queued.max.messages.kbytes": 16_384,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
}
_FETCH_LITTLE = {
    **_AHEAD,
    "queued.max.messages.kbytes": 4_096,
    # The client unpacks all of a fetch at once, before it looks at what is queued already; what compresses well is many
    # times larger then. A batch that is larger than this comes nevertheless.
    "fetch.message.max.bytes": 64 * 1024,
}


def plain_consumer(
    config: ClientConfig,
    *,
    isolation: str = "read_committed",
    group: str = "txlayer-reader",
    fetch_wait_ms: int = 10,
    is_sparing: bool = False,
) -> Consumer:
    """A consumer that assigns its partitions itself and reports the end of each; `group` is only looked at.

    With `is_sparing` it takes more requests and less memory.
    """
    return new_client(
        Consumer,
        {
            "fetch.wait.max.ms": fetch_wait_ms,
            **(_FETCH_LITTLE if is_sparing else _FETCH),
            **base_settings(config),
            # It is no member of a group: how long members may stay away is not for it, and the client refuses an interval
            # that is shorter than its session's 45 s.
            "max.poll.interval.ms": 300_000,
            **READING,
            "group.id": group,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        },
    )


def assign(consumer: Consumer, positions: Mapping[TopicPartition, int]) -> None:
    """Read these partitions from these offsets, also those that were paused under an earlier assignment."""
    # librdkafka keeps a pause with the partition, not with the assignment. It is lifted while the fetcher still runs: a
    # resume behind an assign may find it between stop and start, and then nothing of the partition ever comes
    # (docs/explanation/kafka.md, Reading).
    consumer.resume(consumer.assignment())
    partitions = [ClientPartition(topic, partition, offset) for (topic, partition), offset in positions.items()]
    consumer.assign(partitions)
    # Those that the group took back while they were paused.
    consumer.resume(partitions)


def watermarks(
    consumer: Consumer, partition: TopicPartition, *, config: ClientConfig, timeout_s: float
) -> tuple[int, int]:
    """(first offset, next offset as the consumer's isolation level sees it), asked of the broker.

    Raises:
        BrokerUnavailableError: not answered within `timeout_s`.
        RetriableError: the client does not know the partition, or its leader, at this moment.
    """
    try:
        low, high = consumer.get_watermark_offsets(ClientPartition(*partition), timeout=timeout_s)
    except KafkaException as exc:
        if kafka_error(exc).code() == KafkaError._UNKNOWN_PARTITION:  # for a moment, as while a broker dies
            raise RetriableError(detail_of(kafka_error(exc))) from exc
        raise translate(exc, bootstrap_servers=config.bootstrap_servers) from exc
    return low, high


_headers_of = methodcaller("headers")
_error_of = methodcaller("error")


def _is_of_group(record: Any) -> bool:
    """True for the news that this principal may not use the group, which a reader that assigns itself never does."""
    error = record.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def readable(records: list[Any]) -> list[Any]:
    """The same records; one whose header names are no UTF-8 is replaced by itself without its headers."""
    left = iter(records)
    while True:
        try:
            # Kept by the client: asking again costs nothing.
            deque(map(_headers_of, left), maxlen=0)
        except (SystemError, UnicodeDecodeError):
            # The client returns a list with holes in it and an exception as well; it must not be asked again. A plain call
            # would let the exception come out wherever the interpreter looks next; `methodcaller` looks at once.
            index = len(records) - length_hint(left) - 1
            records[index] = _WithoutHeaders(records[index])
        else:
            return records


class _WithoutHeaders(RecordView):
    """A record of which everything but the headers can be read."""

    __slots__ = ()

    def headers(self) -> list[tuple[str, bytes | None]]:
        return []


COUNT_MAX = 1_000_000  # what the client takes at most for one read
SPARING_COUNT_MAX = 2_000  # records of one read of a sparing reader: each takes about a kilobyte beside its bytes


class PlainReader:
    """Reads partitions that it names itself; the `LogReader` of real Kafka."""

    def __init__(self, config: ClientConfig, **reading: Any) -> None:
        """`reading`: what `plain_consumer` takes."""
        self._config = config
        self._count_max = SPARING_COUNT_MAX if reading.get("is_sparing") else COUNT_MAX
        self._consumer = plain_consumer(config, **reading)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        assign(self._consumer, positions)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        """Records as they come; `poll`, then `consume(n, 0)`, because `consume(n, t)` would wait for all n."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return ()
        records = [first, *self._consumer.consume(min(record_count_max, self._count_max) - 1, 0)]
        if any(map(_error_of, records)):
            records = [record for record in records if not _is_of_group(record)]
        return readable(records)

    def pause(self, partition: TopicPartition) -> None:
        self._consumer.pause([ClientPartition(*partition)])

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:
        return watermarks(self._consumer, partition, config=self._config, timeout_s=timeout_s)

    def close(self) -> None:
        self._consumer.close()


class Deadline:
    """Makes calls in a thread of its own, with a deadline that holds. One thread uses it.

    `send_offsets_to_transaction` does not keep its time-out: it waits for ever when the group's coordinator goes away at the
    wrong moment (librdkafka #5456 and #5511; seen whenever the broker died in the middle of it).

    A call that does not come back keeps its thread, a daemon, for good: the instance is of no use any more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stuck = False

    def call(self, function: Callable[[], object], *, within_s: float) -> None:
        """Return when `function` has; what it raises is raised here.

        Raises:
            TimeoutError: it has not come back within `within_s`, or an earlier one never did. It may still do its work.
            RetriableError: the machine starts no thread for it just now. It was not called.
        """
        if self._is_stuck:
            raise TimeoutError("an earlier call never came back")
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as exc:
                raise RetriableError(f"{self._name}: {exc}") from exc
            self._thread = thread
        self._calls.put(function)
        try:
            failure = self._ends.get(timeout=within_s)
        except Empty:
            self._is_stuck = True
            raise TimeoutError(f"no answer within {within_s:g} s") from None
        if failure is not None:
            raise failure

    @property
    def is_at_work(self) -> bool:
        """True if a call that was given up has not come back."""
        return self._is_stuck and self._ends.empty()

    def close(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                function()
            except BaseException as exc:  # noqa: BLE001 - raised where the call was made
                self._ends.put(exc)
            else:
                self._ends.put(None)


def serialize(serializer: Any, value: Any, *, topic: str, headers: list[tuple[str, bytes | None]]) -> bytes | None:
    """The value as a serializer of Confluent's writes it."""
    # The list itself, not a copy: a serializer may append to it.
    context = SerializationContext(topic, MessageField.VALUE, headers)  # type: ignore[arg-type]  # invariant list
    written: bytes | None = serializer(value, context)
    return written


# --- members of groups -----------------------------------------------------------------------------------------------


_METADATA_PREFIX = b"CGMDv2:"
_SERVED_AT_ONCE = 10_000
_SERVED_ROUNDS_MAX = 100
"""A client queues far fewer records than both together: what waited when `close` began has been served then."""
_LEAVE_WAIT_S = 0.05
_LEAVE_PATIENCE_S = 5.0  # the client takes the partitions back within itself, which takes some milliseconds


def parse_member(metadata: bytes) -> tuple[int, str]:
    """(generation, member id) of a group's metadata: `CGMDv2:`, int32 generation, then group and member, each ending in NUL.

    Raises:
        MemberFencedError: no member or no generation is in it, because the session ended before the assignment was taken; the client
            joins again. The broker would accept it unchecked (docs/explanation/kafka.md).
        InvariantError: it has another form.
    """
    if not metadata.startswith(_METADATA_PREFIX) or len(metadata) < len(_METADATA_PREFIX) + 6:
        raise InvariantError(f"group metadata of an unknown form: {metadata[:40]!r}")
    (generation,) = struct.unpack_from("<i", metadata, len(_METADATA_PREFIX))
    group, _, rest = metadata[len(_METADATA_PREFIX) + 4 :].partition(b"\0")
    member = rest.partition(b"\0")[0].decode()
    if generation < 0 or not member:
        raise MemberFencedError(
            f"group metadata without a member or a generation: {metadata[:80]!r}", group=group.decode()
        )
    return generation, member


class KafkaGroupReader(TranslatedMember):
    """The `GroupReader` of real Kafka."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        group: str,
        session_timeout_ms: int,
        busy_ms: int = 0,
        lost_to: str | None = LOST_TO_COORDINATOR,
        fetch_wait_ms: int = 10,
        instance_id: str = "",
        on_commit: Callable[..., None] | None = None,
        tells_end: bool = False,
    ) -> None:
        """A member of a classic group with the range assignor; it never stores offsets by itself.

        It may take `busy_ms` between two reads, and so may each other member at a rebalance, or a minute, whichever is longer.
        With `tells_end` it gets an error record with the position whenever it has read all of a partition.
        """
        super().__init__(group=group, bootstrap_servers=config.bootstrap_servers, lost_to=lost_to)
        self._config = config
        settings = {
            "fetch.wait.max.ms": fetch_wait_ms,
            **_AHEAD,
            "queued.max.messages.kbytes": 65_536,
            "fetch.message.max.bytes": 4 * 1024 * 1024,
            "max.poll.interval.ms": max(60_000, session_timeout_ms, busy_ms),
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
        self._deadline = self._given_up = Deadline("txlayer-store-offsets")
        self._positions: Mapping[TopicPartition, int] | None = None

    def start(self, topics: Sequence[str], *, on_revoke: OnRevoke | None = None) -> None:
        self._hook = on_revoke
        taken, lost = partial(self._on_gone, is_lost=False), partial(self._on_gone, is_lost=True)
        self._consumer.subscribe(list(topics), on_assign=self._on_assign, on_revoke=taken, on_lost=lost)

    def resume_at(self, positions: Mapping[TopicPartition, int]) -> None:
        # Each call of the client would wait for the answer: then they are for the next read.
        self._positions = positions if self._given_up.is_at_work else None
        if self._positions is None and not self._is_closed:
            super().resume_at(positions)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Any]:
        if self._given_up.is_at_work:
            raise BrokerUnavailableError(
                "a store of offsets is still not answered",
                bootstrap_servers=self._config.bootstrap_servers,
                waited_ms=0,
            )
        if self._positions is not None:
            positions, self._positions = self._positions, None
            super().resume_at(positions)
        return super().read(record_count_max=record_count_max, timeout_s=timeout_s)

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
                    raise self.store_error(partition.error, topic=partition.topic)

        try:
            if self._is_in_callback:
                store()
            else:
                self._deadline.call(store, within_s=timeout_s)
        except TimeoutError as exc:
            # The thread keeps waiting; the next one gets another.
            self._given_up, self._deadline = self._deadline, Deadline("txlayer-store-offsets")
            raise BrokerUnavailableError(
                "offsets were not stored in time",
                bootstrap_servers=self._config.bootstrap_servers,
                waited_ms=int(timeout_s * 1000),
            ) from exc
        except KafkaException as exc:  # no offset was stored: what is said holds for the first one, too
            raise self.store_error(kafka_error(exc), topic=partitions[0].topic) from exc

    def close(self) -> None:
        """Leave the group; `on_revoke` is called first when there are partitions to give back.

        A static member does not leave: the group keeps its partitions for its next process, until its session ends. A member whose
        store was not answered does not leave either, and `on_revoke` is not called: each call of the client would wait for that answer.
        """
        if not self._is_closed and self._given_up.is_at_work:
            self._is_closed = True
            del self._consumer
        elif not self._is_static:
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
        refused = next((p for p in partitions or () if p.error is not None), None)
        failed = error or (None if refused is None else refused.error)
        if failed is not None:
            store.failure = self.store_error(failed, topic=refused.topic if refused else "")

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
