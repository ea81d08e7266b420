"""Other clients of Python read what was forwarded, without the extras that bring them a codec."""

import asyncio
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from tests.support.arena import Arena
from tests.support.broker import create_topic, unique_name
from tests.support.logs import read_log
from tests.support.processes import CoordinatorProcess
from tests.support.raw import RawWriter
from tests.support.waiting import wait_until
from txlayer.config import CoordinatorConfig
from txlayer.errors import ConfigError

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),  # kafka-python
]

COUNT, KILL_COUNT = 50, 4
READ_MS = 30_000
Read = Callable[[str, str, int], list[tuple[bytes | None, bytes | None]]]


def with_kafka_python(servers: str, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        group_id=None,
        isolation_level="read_committed",
        consumer_timeout_ms=READ_MS,
    )
    found = []
    for record in consumer:
        found.append((record.key, record.value))
        if len(found) == count:
            break
    consumer.close()
    return found


def with_aiokafka(servers: str, topic: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    from aiokafka import AIOKafkaConsumer

    async def read() -> list[tuple[bytes | None, bytes | None]]:
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            found: list[tuple[bytes | None, bytes | None]] = []
            while len(found) < count:
                batches = await consumer.getmany(timeout_ms=READ_MS)
                found += [(r.key, r.value) for records in batches.values() for r in records]
            return found

    return asyncio.run(asyncio.wait_for(read(), READ_MS / 1000))


def forwarded(arena: Arena, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """What a client with every codec reads."""
    return [(r.key, r.value) for r in read_log(arena.servers, [topic])[topic]]


@pytest.mark.parametrize("read", [with_kafka_python, with_aiokafka])
def test_a_client_without_extras_reads_what_was_forwarded(arena: Arena, read: Read) -> None:
    wanted = {(b"k%d" % n, b"value " * 100 + b"%d" % n) for n in range(COUNT)}
    raw = RawWriter(arena)
    topic = create_topic(arena.servers, unique_name("read"), partitions=2)
    with arena.coordinator():
        for key, value in sorted(wanted):
            raw.commit(raw.prepare((topic, key, value)))
        wait_until(lambda: len(forwarded(arena, topic)) == COUNT, within=READ_MS / 1000, what="all forwarded")

    assert sorted(wanted) == sorted(forwarded(arena, topic))
    assert sorted(wanted) == sorted(read(arena.servers, topic, COUNT))


def test_after_kills_other_clients_read_what_confluent_kafka_reads(arena: Arena, tmp_path: Path) -> None:
    """Kills leave Kafka transactions that are given up: each client passes over them, and over the markers."""
    raw = RawWriter(arena)
    topic = create_topic(arena.servers, unique_name("read"), partitions=2)
    wanted = {(b"k%d" % n, b"value %d" % n) for n in range(KILL_COUNT * COUNT)}
    todo = iter(sorted(wanted))
    settings = {"session_timeout": "1.5s", "batch_lines_max": "7"}
    for number in range(KILL_COUNT):
        with CoordinatorProcess(
            arena.servers, arena.namespace, log_file=tmp_path / str(number), settings=settings
        ) as running:
            running.wait_for("partitions.taken_over")
            for key, value in islice(todo, COUNT):
                raw.commit(raw.prepare((topic, key, value)))
    with arena.coordinator():
        wait_until(lambda: len(forwarded(arena, topic)) >= len(wanted), within=READ_MS / 1000, what="all forwarded")

    found = sorted(forwarded(arena, topic))
    assert sorted(wanted) == found
    for read in (with_kafka_python, with_aiokafka):
        assert found == sorted(read(arena.servers, topic, len(wanted)))


def test_an_unknown_compression_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="compression"):
        CoordinatorConfig(compression="brotli")
