"""Encode messages as half records, and check them against the limits of their topics before anything is sent.

Sizes are counted without compression, and include the headers of a forwarded record. A message that passes here is
refused later only if its topic changes; a message that fits only when compressed is refused here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from txlayer.adapters.ports import TopicLimits
from txlayer.config import ProducerConfig, milliseconds
from txlayer.core.codec import GROUP_HEADER, HEADER_BYTES, WHOLE_MAX, encode_options
from txlayer.core.ledger.transaction import TIMES_MAX
from txlayer.core.messages import (
    HEADERS_MAX,
    RESERVED_HEADER_PREFIX,
    TAGS_HEADER,
    TOPICS_BYTES_MAX,
    TXN_ID_LENGTH_MAX,
    HalfOptions,
    Message,
    is_topic_name,
    many_headers_bytes,
)
from txlayer.errors import ForbiddenTopicError, RefusedRecordError, ReservedHeaderError, UsageError
from txlayer.producer.identity import Placement, now_ms

HalfRecord = tuple[str, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]] | None, str]
"""(real topic, key, value, the user's headers, options): the arguments of `Pipeline.store`."""

Serialize = Callable[..., bytes | None]
"""`ProducerConnections.serialize` with the user's serializer: (value, topic=…, headers=…) → bytes."""

PartitionSelector = Callable[[Message, int], int | None]
"""Chooses the partition of the real topic for a message that names none: (message, number of partitions) → number.

None: by the key. It runs in the call that sends, and what it raises comes out of that call; nothing was sent then.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

BATCH_OVERHEAD_BYTES = 61  # overhead of a record batch of format 2; the smallest batch holds one record
RECORD_OVERHEAD_BYTES = 32  # upper bound of a record's own overhead: lengths, deltas, attributes
FORWARDED_BYTES = 100 + TXN_ID_LENGTH_MAX  # upper bound of `txl-id` and `txl-origin`
HALF_BYTES = 800  # upper bound of `txl`: id 128, group 200, topic 249, options and numbers


class KnownTopic(NamedTuple):
    """The limits that a message for this topic is checked against."""

    partition_count: int
    message_bytes_max: int  # of key, value and headers, counted by `size_of`


def size_of(key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]] | None) -> int:
    """Bytes of a message's content with the overhead of its headers."""
    size = (0 if key is None else len(key)) + (0 if value is None else len(value))
    for name, header in headers or ():
        size += len(name.encode()) + (0 if header is None else len(header)) + HEADER_BYTES
    return size


class Encoder:
    """Checks and encodes the messages of one producer. Thread-safe."""

    def __init__(
        self,
        config: ProducerConfig,
        *,
        half_bytes_max: int | None,
        serialize: Serialize | None,
        spare_bytes: int = 0,
        select: PartitionSelector | None = None,
        named_group: str = "",
    ) -> None:
        self._config = config
        self._select = select
        self._named = encode_options(HalfOptions(is_group_named=True)) if named_group else ""
        if named_group:
            spare_bytes += len(GROUP_HEADER) + len(named_group) + HEADER_BYTES
        self._spare_bytes = spare_bytes
        self._half_bytes_max = half_bytes_max
        self._serialize = serialize
        self._known: dict[str, KnownTopic] = {}

    # --- topics -------------------------------------------------------------------------------------------------------

    def unknown_topics(self, messages: Iterable[Message]) -> list[str]:
        """Topics whose limits must be learned before `records`.

        Raises:
            ForbiddenTopicError: a topic is one that users may not send to. Nothing was sent.
        """
        unknown = list(dict.fromkeys(m.topic for m in messages if m.topic not in self._known))
        for topic in unknown:
            self.check_topic(topic)
        return unknown

    def check_topic(self, topic: str) -> None:
        """Return if a message may name this topic, as far as that is known without asking the broker.

        Raises:
            ForbiddenTopicError: it is not a valid topic name, or names a system topic. Nothing was sent.
        """
        if topic in self._known:
            return
        if not isinstance(topic, str) or not is_topic_name(topic):
            raise ForbiddenTopicError("nothing was sent", topic=str(topic)[:260], reason="not a topic's name")
        if self._config.topics.is_system(topic):
            raise ForbiddenTopicError(
                "nothing was sent", topic=topic, reason="system topics are written by txlayer and Kafka alone"
            )

    def is_known(self, topic: str) -> bool:
        return topic in self._known

    def learn(self, topic: str, limits: TopicLimits | None) -> None:
        """Store the broker's limits of a topic.

        Raises:
            ForbiddenTopicError: the topic does not exist; it is asked for again the next time. Nothing was sent.
        """
        if limits is None:
            self._known.pop(topic, None)
            raise ForbiddenTopicError("nothing was sent", topic=topic, reason="there is no such topic")
        of_topic = _room(limits.message_bytes_max, FORWARDED_BYTES + self._spare_bytes)
        of_half = _room(self._half_bytes_max, HALF_BYTES + self._spare_bytes)
        self._known[topic] = KnownTopic(
            limits.partition_count, min(of_topic, of_half, self._config.transaction_bytes_max)
        )

    def forget(self, topic: str) -> None:
        """Drop the stored limits of a topic: they contradict a message, and may be out of date."""
        self._known.pop(topic, None)

    # --- messages -----------------------------------------------------------------------------------------------------

    def plain_record(self, message: Message, placement: Placement) -> HalfRecord | None:
        """The half record of a plain message: bytes, a known topic, no options; None if it is not plain."""
        topic, key, value, headers, tags, partition, timestamp, deliver_at, delay = message
        known = self._known.get(topic)
        if (
            known is not None
            and value.__class__ is bytes
            and (key.__class__ is bytes or (key is None and placement.ordering_key is None))
            and headers is None
            and tags is None
            and partition is None
            and timestamp is None
            and deliver_at is None
            and delay is None
            and self._serialize is None
            and self._select is None
            and len(value) + len(key or b"") <= known.message_bytes_max
        ):
            return (topic, key, value, None, self._with_name(placement.options))
        return None

    def records(self, messages: Sequence[Message], placement: Placement, asked: str = "") -> list[HalfRecord] | None:
        """Half records of one transaction; None if one of its `unknown_topics` must be learned first.

        The options of the first one also hold `asked`.

        Raises:
            UsageError and its subclasses, RefusedRecordError: a message cannot be sent. Nothing was sent.
        """
        if not messages:
            raise UsageError("an empty transaction: send at least one message before prepare")
        if len(messages) > self._config.transaction_messages_max:
            raise UsageError(
                f"{len(messages)} messages in one transaction; transaction_messages_max is "
                f"{self._config.transaction_messages_max}"
            )
        if any(m.topic not in self._known for m in messages):
            return None
        names_bytes = sum(map(len, {m.topic for m in messages}))
        if names_bytes > TOPICS_BYTES_MAX:
            raise UsageError(
                f"the names of the transaction's topics have {names_bytes} bytes; together they may have "
                f"{TOPICS_BYTES_MAX}. Nothing was sent"
            )
        at_ms = now_ms()  # once: messages with one delay are due together
        times = [time_ms_of(message.deliver_at, message.delay, at_ms=at_ms) for message in messages]
        if len(set(times)) > TIMES_MAX:
            raise UsageError(
                f"{len(set(times))} different times in one transaction; it may have {TIMES_MAX}. Nothing was sent"
            )
        records: list[HalfRecord] = []
        byte_count = 0
        for message, deliver_at_ms in zip(messages, times, strict=True):
            record, size = self._record(message, placement, deliver_at_ms, "" if records else asked)
            records.append(record)
            byte_count += size + many_headers_bytes(len(record[3] or ()))
        if byte_count > self._config.transaction_bytes_max:
            raise UsageError(
                f"{byte_count} bytes in one transaction; transaction_bytes_max is {self._config.transaction_bytes_max}"
            )
        return records

    def _record(
        self, message: Message, placement: Placement, deliver_at_ms: int | None, asked: str
    ) -> tuple[HalfRecord, int]:
        topic = message.topic
        headers = headers_of(message.headers)
        if message.tags is not None:
            headers.append((TAGS_HEADER, _text_or_bytes(message.tags, "tags")))
        key = _bytes_or_none(message.key, "key")
        if self._serialize is None:
            value = _bytes_or_none(message.value, "value")
        else:
            value = self._serialize(message.value, topic=topic, headers=headers)
            if not isinstance(value, bytes | None):
                raise UsageError(f"the serializer gave {type(value).__name__}, not bytes. Nothing was sent")
            headers = headers_of(headers)  # it may have added some
        if len(headers) > HEADERS_MAX:
            raise UsageError(f"{len(headers)} headers of one message; it may have {HEADERS_MAX}. Nothing was sent")
        known = self._known[topic]
        size = size_of(key, value, headers) + len(asked)
        if size > known.message_bytes_max:
            raise RefusedRecordError(
                "the message is larger than its topic, the half topic or transaction_bytes_max allows; "
                "sizes count without compression. Nothing was sent",
                topic=topic,
                size_bytes=size,
                size_bytes_max=known.message_bytes_max,
                reason="too-large",
            )
        if self._select is not None and message.partition is None:
            message = message._replace(partition=self._select(message, known.partition_count))
        _check_partition_and_timestamp(message, known)
        if (
            message.partition is None
            and message.timestamp is None
            and deliver_at_ms is None
            and (key is not None or placement.ordering_key is None)
        ):
            options = placement.options
        else:
            options = placement.options_of(
                has_key=key is not None,
                partition=message.partition,
                timestamp_ms=message.timestamp,
                deliver_at_ms=deliver_at_ms,
            )
        if asked:
            options = f"{options},{asked}" if options else asked
        return (topic, key, value, headers or None, self._with_name(options)), size

    def _with_name(self, options: str) -> str:
        named = self._named
        return f"{options},{named}" if options and named else options or named


def headers_of(headers: Any) -> list[tuple[str, bytes | None]]:
    """Headers as pairs of name and bytes, in order.

    Raises:
        ReservedHeaderError: a name begins with `txl`. Nothing was sent.
        UsageError: the argument is not a valid set of headers. Nothing was sent.
    """
    pairs = headers.items() if isinstance(headers, Mapping) else (headers or ())
    made = []
    try:
        for name, value in pairs:
            if not isinstance(name, str) or not name or "\0" in name:  # there the client would cut it off
                raise UsageError(f"a header's name is text without a null character, not {name!r}. Nothing was sent")
            if name.startswith(RESERVED_HEADER_PREFIX):
                raise ReservedHeaderError(
                    f"headers that begin with {RESERVED_HEADER_PREFIX!r} are txlayer's own "
                    "(`user_headers` drops those of a consumed record). Nothing was sent",
                    header=name,
                )
            _text_or_bytes(name, "a header's name")
            made.append((name, _bytes_or_none(value, f"header {name}")))
    except (TypeError, ValueError) as exc:  # no pairs
        raise UsageError(f"headers are pairs of name and value, or a mapping: {exc}. Nothing was sent") from exc
    return made


def _room(bytes_max: int | None, ours: int) -> int:
    """Bytes that a topic's largest message leaves to the user; the broker counts the whole batch."""
    if bytes_max is None:  # not reported: only the broker can check it
        return 2**31
    return max(bytes_max - BATCH_OVERHEAD_BYTES - RECORD_OVERHEAD_BYTES - ours, 0)


def _check_partition_and_timestamp(message: Message, known: KnownTopic) -> None:
    partition, timestamp = message.partition, message.timestamp
    if isinstance(partition, bool) or isinstance(timestamp, bool):  # written, it would be a word
        raise UsageError("partition and timestamp are whole numbers, not True or False. Nothing was sent")
    if partition is not None and not (isinstance(partition, int) and 0 <= partition < known.partition_count):
        raise RefusedRecordError(
            f"partition {partition!r} does not exist, the topic has {known.partition_count}. Nothing was sent",
            topic=message.topic,
            reason="unknown-partition",
        )
    if timestamp is not None and not (isinstance(timestamp, int) and 0 <= timestamp <= WHOLE_MAX):
        raise UsageError(
            f"a timestamp is whole milliseconds since 1970, at most {WHOLE_MAX}, not {timestamp!r}. Nothing was sent"
        )


def time_ms_of(at: Any, delay: Any, *, at_ms: int) -> int | None:
    """The time before which no consumer sees a message, counted from `at_ms` if it is a delay; None: it has none.

    Raises:
        UsageError: it is not a time, or both are given. Nothing was sent.
    """
    if at is None and delay is None:
        return None
    if at is not None and delay is not None:
        raise UsageError("deliver_at or delay, not both. Nothing was sent")
    if delay is not None:
        if not isinstance(delay, timedelta) or delay < timedelta(0):
            raise UsageError(f"delay is a timedelta of 0 or more, not {delay!r}. Nothing was sent")
        return at_ms + milliseconds(delay)
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise UsageError(f"deliver_at is a datetime with a time zone, not {at!r}. Nothing was sent")
    return max(-((_EPOCH - at) // timedelta(milliseconds=1)), 1)  # not earlier; 0 is that of messages without a time


def new_time_ms(at: datetime | None, delay: timedelta | None) -> int:
    """The new time of scheduled messages; UsageError: not exactly one of both is given, or it is no time."""
    time_ms = time_ms_of(at, delay, at_ms=now_ms())
    if time_ms is None:
        raise UsageError("a new time is deliver_at or delay. Nothing was sent")
    return time_ms


def _bytes_or_none(value: Any, what: str) -> bytes | None:
    return None if value is None else _text_or_bytes(value, what)


def _text_or_bytes(value: Any, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as exc:
            raise UsageError(f"{what}: {exc}. Nothing was sent") from exc
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise UsageError(
        f"{what}: bytes, str or None, not {type(value).__name__} (values of other types need codec=). Nothing was sent"
    )
