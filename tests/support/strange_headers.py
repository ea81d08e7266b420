"""Records whose header names are no text, as other clients can write them; librdkafka itself is asked, Python's client cannot."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import confluent_kafka

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
