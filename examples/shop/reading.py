"""The real topics, made, watched and read by plain Kafka clients: whoever reads them needs no txlayer."""

from __future__ import annotations

import json
import threading
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stub forgets NewTopic

PARTITION_COUNT = 4
TIMEOUT_S = 30.0
WATCH_EVERY_S = 0.1


class Record(NamedTuple):
    """A message as a reader gets it; `number` is its purchase's, None when its value names none."""

    partition: int
    key: str
    value: bytes
    number: int | None
    forward_ms: int | None
    """From its birth at the producer to the real topic; None when it does not say when it was born."""


class Checks(NamedTuple):
    """What check-back did, as the topics tell."""

    checked_count: int
    """Transactions that the coordinators asked about."""
    committed_count: int
    rolled_back_count: int


def read_checks(bootstrap_servers: str, namespace: str = "txlayer") -> Checks:
    """Count the questions and what was decided by answering them: lines of text with `|` between fields."""
    asked, op = f"{namespace}.check", f"{namespace}.op"
    topics = read_topics(bootstrap_servers, [asked, op])
    questions = {r.key for r in topics[asked] if r.value.startswith(b"1|Q|")}
    decided: dict[bytes, bytes] = {}
    for record in topics[op]:
        for line in record.value.split(b"\n"):
            _, resolution, key, _, _, _, source, *_ = line.split(b"|")
            if resolution in (b"C", b"R"):  # the first one counts, whoever wrote it
                decided.setdefault(key, resolution if source in (b"check", b"barrier") else b"")
    by_check = list(decided.values())
    return Checks(len(questions), by_check.count(b"C"), by_check.count(b"R"))


def create_topics(bootstrap_servers: str, topics: list[str]) -> None:
    """Create the shop's topics; any topic will do, these have nothing special."""
    # Errors only: a client that lives so shortly notes that it did not read all that it was told.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
    wanted = [NewTopic(topic, num_partitions=PARTITION_COUNT) for topic in topics]
    for created in admin.create_topics(wanted).values():
        created.result(TIMEOUT_S)


def read_topics(bootstrap_servers: str, topics: list[str]) -> dict[str, list[Record]]:
    """Everything that is visible in the topics, partition by partition in the order of the log.

    Raises:
        TimeoutError: the broker says nothing for 30 s.
        KafkaException: it refuses.
    """
    consumer = _consumer(bootstrap_servers, {"enable.partition.eof": True})
    try:
        unread_count = _assign_all(consumer, topics)
        found: dict[str, list[Record]] = {topic: [] for topic in topics}
        while unread_count:
            message = consumer.poll(TIMEOUT_S)
            if message is None:
                raise TimeoutError(f"the broker has said nothing for {TIMEOUT_S:g} s")
            error = message.error()
            if error is None:
                found[str(message.topic())].append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - public, whatever its name says
                unread_count -= 1
            elif not error.retriable():
                raise KafkaException(error)
        return found
    finally:
        consumer.close()


class Watcher:
    """Counts what becomes visible in a topic, while it becomes visible."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._consumer = _consumer(bootstrap_servers, {})
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.visible_count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _watch(self) -> None:
        _assign_all(self._consumer, [self._topic])
        while not self._stopping.is_set():
            # Many at once: a thread that comes back for each single message takes turns with all that sell.
            messages = self._consumer.consume(10_000, WATCH_EVERY_S)
            self.visible_count += sum(message.error() is None for message in messages)


def _consumer(bootstrap_servers: str, settings: dict[str, str | bool]) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "shop-reader",  # never joined: partitions are assigned by hand
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **settings,
        }
    )


def _assign_all(consumer: Consumer, topics: list[str]) -> int:
    known = consumer.list_topics(timeout=TIMEOUT_S).topics
    partitions = [TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in known[t].partitions]
    consumer.assign(partitions)
    return len(partitions)


def _record(message: Message) -> Record:
    # `half partition:offset|index/count|born`: one of the two headers that the coordinator adds.
    headers = dict(message.headers() or [])
    born_ms = _bytes(headers.get("txl-origin")).rpartition(b"|")[2]
    _, timestamp_ms = message.timestamp()
    partition, value = message.partition(), _bytes(message.value())
    assert partition is not None  # it was read from one
    return Record(
        partition=partition,
        key=_bytes(message.key()).decode(errors="replace"),
        value=value,
        number=_number(value),
        forward_ms=timestamp_ms - int(born_ms) if born_ms.isdigit() else None,
    )


def _bytes(given: bytes | str | None) -> bytes:
    # The client's stub allows str everywhere, and a null is as empty as "" for this shop.
    return given.encode() if isinstance(given, str) else given or b""


def _number(value: bytes) -> int | None:
    try:
        number = json.loads(value)["number"]
    except (ValueError, TypeError, KeyError):
        return None
    return number if isinstance(number, int) else None
