"""A process that is killed in the middle of a dead letter's Kafka transaction: by itself, at a named place."""

import os
import signal
import sys
from typing import Any

from tests.contract.clients import join
from tests.support.dead_letter_stage import Stage
from tests.support.lab_kafka import KafkaLab
from txlayer.adapters.ports import StoredOffset, TopicPartition, TransactionalWriter
from txlayer.consumer.dead_letters import DeadLetterWriter

FLUSHED, OFFSETS_SENT, COMMITTED = PLACES = ("flushed", "offsets-sent", "committed")


def die() -> None:
    """As by `kill -9`: nothing is closed or flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


class _Doomed:
    """A writer that dies at its second commit, before it or after it."""

    def __init__(self, inner: TransactionalWriter, place: str) -> None:
        self._inner = inner
        self._place = place
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, *, timeout_s: float) -> None:
        self._count += 1
        if self._count == 2 and self._place == OFFSETS_SENT:
            die()
        self._inner.commit(timeout_s=timeout_s)
        if self._count == 2 and self._place == COMMITTED:
            die()


class _Connections:
    def __init__(self, stage: Stage, place: str) -> None:
        self._stage = stage
        self._place = place

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:
        inner = self._stage.connections.make_writer(transactional_id, batch_bytes_max=batch_bytes_max)
        return _Doomed(inner, self._place)


def main(servers: str, namespace: str, topic: str, name: str, place: str) -> None:
    """Write dead letter 0 whole, and die within dead letter 1."""
    lab = KafkaLab(servers)
    connections = lab.coordinator(namespace)
    reader, share = join(connections, topic)
    stage = Stage(lab, f"{namespace}.coordinator", topic, connections, reader, share.member)
    writer = DeadLetterWriter(_Connections(stage, place), group=stage.group, name=name, recycle_after_s=600.0)
    writer.write([stage.given_up(0)], offsets=stage.behind(0, metadata=name), member=share.member)

    def offsets(_places: list[int]) -> dict[TopicPartition, StoredOffset]:
        if place == FLUSHED:
            die()
        return {(topic, 0): StoredOffset(2, name)}

    writer.write([stage.given_up(1)], offsets=offsets, member=share.member)


if __name__ == "__main__":
    main(*sys.argv[1:])
