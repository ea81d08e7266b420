"""Somebody who reads the check topic as a producer group's instance does, with a plain client; answers by hand."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from txlayer.config import SystemTopics
from txlayer.core import codec
from txlayer.core.messages import CheckKind, CheckRecord

CHECK_PARTITION_COUNT = 4


class Listener:
    """A member of a producer group's check group who reads all partitions from their beginning."""

    def __init__(self, servers: str, topics: SystemTopics, group: str) -> None:
        self._group = group
        self._topic = topics.check
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": topics.check_group(group),
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
            }
        )
        self._consumer.subscribe([self._topic], on_assign=self._read_all)
        self.heard: list[CheckRecord] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def _read_all(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        consumer.assign([TopicPartition(self._topic, p, 0) for p in range(CHECK_PARTITION_COUNT)])

    def listen(self, kind: CheckKind = CheckKind.QUESTION) -> list[CheckRecord]:
        """Everything of one kind that the group was told so far."""
        for record in self._consumer.consume(1_000, 0.1):
            check = codec.decode_check(record.value())
            if isinstance(check, CheckRecord) and check.producer_group == self._group:
                self.heard.append(check)
        return [check for check in self.heard if check.kind is kind]
