"""Records that Python's own client could not write, or whose words Kafka would refuse: nobody may stop at them."""

import ctypes
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support.arena import Arena
from tests.support.logs import Seen, read_log
from tests.support.raw import RawWriter
from tests.support.waiting import wait_until
from txlayer.core import codec
from txlayer.core.messages import HEADERS_READ_MAX, NO_OPTIONS, HalfHeader
from txlayer.testing.stage import RunningCoordinator

_END, _TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADER = 0, 1, 3, 4, 7, 9
_COPY = 2
_PRODUCER = 0
_FLUSH_MS = 30_000


def library() -> Any:
    """The librdkafka that Python's client brought."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    loaded = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new"):
        getattr(loaded, name).restype = ctypes.c_void_p
    return loaded


def write_with_header(servers: str, topic: str, partition: int, *, name: bytes, value: bytes) -> None:
    """One record with one header, acknowledged."""
    rdkafka, told = library(), ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(rdkafka.rd_kafka_conf_new())
    for setting, wanted in ((b"bootstrap.servers", servers.encode()), (b"log_level", b"0")):
        assert 0 == rdkafka.rd_kafka_conf_set(conf, setting, wanted, told, 512), told.value
    producer = ctypes.c_void_p(rdkafka.rd_kafka_new(_PRODUCER, conf, told, 512))
    assert producer.value, told.value
    try:
        code = rdkafka.rd_kafka_producev(
            producer,
            _TOPIC,
            ctypes.c_char_p(topic.encode()),
            _PARTITION,
            ctypes.c_int32(partition),
            _FLAGS,
            _COPY,
            _VALUE,
            ctypes.c_char_p(value),
            ctypes.c_size_t(len(value)),
            _HEADER,
            ctypes.c_char_p(name),
            ctypes.c_char_p(b"x"),
            ctypes.c_ssize_t(1),
            _END,
        )
        assert 0 == code
        assert 0 == rdkafka.rd_kafka_flush(producer, _FLUSH_MS)
    finally:
        rdkafka.rd_kafka_destroy(producer)


pytestmark = pytest.mark.kafka

SESSION = timedelta(seconds=10)
"""Longer than a busy machine stands still: who loses its session rebuilds, and here nobody may."""
IMPOSSIBLE = ("two words", ".", "..", "x" * 250, "a\0b", "\0", "\x1b[2J", "a/b")


@pytest.fixture(scope="module")
def coordinator(arena: Arena) -> Iterator[RunningCoordinator]:
    with arena.coordinator(session_timeout=SESSION) as running:
        yield running
        assert 0 == running.coordinator.counts.rebuild_count


@pytest.mark.fault("data: garbage: no header, an unknown version, not UTF-8, no id, a thousand headers")
def test_a_header_whose_name_is_no_text_stops_nobody(arena: Arena, coordinator: RunningCoordinator) -> None:
    raw = RawWriter(arena)
    strange = []
    for name in (b"\xff\xfe", b"txl\xff", b"\xed\xb3\xa9"):
        strange.append(raw.half_end(0))
        write_with_header(arena.servers, arena.topics.half, 0, name=name, value=b"strange")

    good_one_passes(arena, raw)

    assert coordinator.failure is None
    assert [b"strange"] * 3 == [kept_aside(arena, offset) for offset in strange]


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.fault("data: null values, control characters, or impossible topic names")
def test_a_half_message_for_a_topic_that_cannot_be_stops_nobody(arena: Arena, coordinator: RunningCoordinator) -> None:
    raw = RawWriter(arena)
    headers = [
        codec.encode_half_header(HalfHeader(raw.key_in(0), "g", topic, 0, 1, 5, NO_OPTIONS)) for topic in IMPOSSIBLE
    ]

    strange = [raw.half(0, b"strange", headers=[(codec.HALF_HEADER, header)]) for header in headers]
    good_one_passes(arena, raw)

    assert coordinator.failure is None
    assert [b"strange"] * len(IMPOSSIBLE) == [kept_aside(arena, offset) for offset in strange]


def good_one_passes(arena: Arena, raw: RawWriter) -> None:
    """The records after them are forwarded."""
    good = raw.prepare((arena.targets[0], b"k", b"v"), key=raw.key_in(0))
    raw.commit(good)
    arena.wait_until_visible(good.txn_id)


@pytest.mark.fault("data: garbage: no header, an unknown version, not UTF-8, no id, a thousand headers")
def test_a_thousand_headers_are_forwarded_as_they_are(arena: Arena, coordinator: RunningCoordinator) -> None:
    raw = RawWriter(arena)
    headers: list[tuple[str, bytes | None]] = [(f"name-{n % 7}", b"%d" % n) for n in range(1_000)]

    mine = raw.prepare((arena.targets[0], b"k", b"v"), headers=headers)
    raw.commit(mine)

    (record,) = arena.wait_until_visible(mine.txn_id)
    assert coordinator.failure is None
    assert headers == record.headers[:1_000]


@pytest.mark.promise("P1", "P11")
@pytest.mark.fault("data: garbage: no header, an unknown version, not UTF-8, no id, a thousand headers")
def test_a_message_that_would_have_too_many_headers_on_doubt_stops_nobody(arena: Arena) -> None:
    """Kafka's client shows no header at all of a record that has more than 100,000, and doubt adds two to those of half."""
    raw = RawWriter(arena)
    with arena.coordinator(session_timeout=SESSION, doubt_after=timedelta(milliseconds=300)) as running:
        mine = raw.prepare((arena.targets[0], b"k", b"v"), headers=[("h", b"")] * (HEADERS_READ_MAX - 2))
        arena.wait_for_doubt(mine.key, within=90)
        raw.commit(mine)

        wait_until(lambda: b"v" in [record.value for record in real(arena)], within=90, what="it is forwarded")
        assert running.failure is None


def real(arena: Arena) -> list[Seen]:
    """What a `read_committed` reader sees of the first real topic: its headers are too many to be shown."""
    return read_log(arena.servers, arena.targets[:1])[arena.targets[0]]


def kept_aside(arena: Arena, offset: int) -> bytes | None:
    """The value of a record of half's first partition as doubt holds it."""
    name = f"origin/{arena.topics.half}/0/{offset}"
    wait_until(lambda: name in arena.doubt().quarantined, within=20, what="the record is quarantined")
    kept = arena.doubt().quarantined[name]
    return codec.decode_content(value=kept.value, headers=kept.headers)[1]
