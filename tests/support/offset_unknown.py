"""Acknowledged records of which the client was not told where they stand, looked up as any reader may. Never: retried."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaException

from tests.support.logs import header, read_log
from txlayer.core import codec


class Placeless:
    """What is sought in one topic, by what only that record says."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._sought: dict[bytes, Callable[[list[tuple[int, int]]], None]] = {}

    def __len__(self) -> int:
        return len(self._sought)

    def seek(self, name: bytes, on_found: Callable[[list[tuple[int, int]]], None]) -> None:
        """`on_found` is told every (partition, offset) of `name`: a transaction's key in half, a whole value in op."""
        self._sought[name] = on_found

    def look(self) -> None:
        """Read the topic, tell who is found; where a broker is away, or a record missing, the next look may find it."""
        if not self._sought:
            return
        found: dict[bytes, list[tuple[int, int]]] = {}
        with suppress(KafkaException, AssertionError):
            for record in read_log(self._servers, [self._topic])[self._topic]:
                raw = header(record.headers, codec.HALF_HEADER)
                name = raw.split(b"|")[1] if raw else record.value or b""
                if name in self._sought:
                    found.setdefault(name, []).append((record.partition, record.offset))
        for name, places in found.items():
            self._sought.pop(name)(places)
