"""A lock topic in memory, processes with registries on it, and one clock that tests move."""

from __future__ import annotations

from typing import Any

from tests.support.still_world import StillWorld
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.ports import TopicPartition
from txlayer.config import ConsumerConfig, SystemTopics
from txlayer.consumer.lease_keeper import LockRegistry
from txlayer.core.leases import (
    LeaseTable,
    LockKind,
    LockRecord,
    QueueLease,
    decode_lock,
    encode_lock,
    lock_partition,
    queue_name,
)

GROUP = "loyalty"
QUEUE: TopicPartition = ("orders", 3)
NAME = queue_name(GROUP, *QUEUE)
TOPICS = SystemTopics("txlayer")
RENEWAL_MS, EXPIRY_MS = 20_000, 60_000
PARTITION_COUNT = 4
STEP_MS = 500


def holding(table: LeaseTable, queue: str, *, at_ms: int) -> QueueLease | None:
    """The lease of a queue that is live at an append time."""
    lease = table.lease(queue)
    return lease if lease is not None and table.is_live_at(lease, at_ms) else None


class Process:
    """A consumer's registry, and what its engine knows of it."""

    def __init__(self, stage: LockStage, name: str, *, instance_id: str, clock_rate: float, kind: Any) -> None:
        self.name = name
        self.tokens: dict[TopicPartition, int | None] = {}
        self.history: list[str] = []
        self._world = stage.world
        self._rate = clock_rate
        self.registry: LockRegistry = kind(
            stage.kafka.connect_consumer(ConsumerConfig(), client=name),
            group=GROUP,
            holder=name,
            instance_id=instance_id,
            topics=TOPICS,
            lease_renewal_ms=RENEWAL_MS,
            lease_expiry_ms=EXPIRY_MS,
            clock=self.clock,
        )
        self.registry.start()

    def clock(self) -> float:
        """Its own monotonic clock: it may run fast or slow, and says nothing about anybody else's."""
        return 5_000.0 + self._world.monotonic() * self._rate

    def turn(self) -> None:
        """One turn of its engine."""
        changes = self.registry.turn()
        for queue, token in changes.gained.items():
            self.tokens[queue] = token
            self.history.append("gained")
        for queue in changes.lost:
            del self.tokens[queue]
            self.history.append("lost")

    def may_start(self, queue: TopicPartition = QUEUE) -> bool:
        """Whether its engine would start a handler now, without looking at the log."""
        valid_until = self.registry.valid_until(queue)
        return queue in self.tokens and valid_until is not None and self.clock() < valid_until


class LockStage:
    """One namespace's lock log, and who works on it."""

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        self.world = StillWorld()
        self.kafka = MemoryKafka(self.world)
        self.kafka.create_topic(
            TOPICS.locks,
            partitions=PARTITION_COUNT,
            settings={"message.timestamp.type": "LogAppendTime", **(settings or {})},
        )
        self.running: list[Process] = []

    def process(
        self, name: str, *, instance_id: str = "", clock_rate: float = 1.0, kind: Any = LockRegistry
    ) -> Process:
        """A started process; it turns as long as it is not frozen."""
        made = Process(self, name, instance_id=instance_id, clock_rate=clock_rate, kind=kind)
        self.running.append(made)
        return made

    def freeze(self, process: Process) -> None:
        """It does nothing any more, and knows nothing of it; a process that was killed is one that never thaws."""
        self.running.remove(process)

    def thaw(self, process: Process) -> None:
        """It goes on where it was."""
        self.running.append(process)

    def run(self, ms: int = 2 * STEP_MS) -> None:
        """So much time, in which every process turns often."""
        for _ in range(ms // STEP_MS):
            for process in list(self.running):
                process.turn()
                process.turn()
            self.world.advance(ms=STEP_MS)
            for process in list(self.running):
                process.turn()

    def run_until_it_may_start(self, process: Process, *, instead_of: Process) -> None:
        """Until a process may start handlers; never may both."""
        for _ in range(2 * EXPIRY_MS // STEP_MS):
            self.run(STEP_MS)
            assert not (instead_of.may_start() and process.may_start())
            if process.may_start():
                return
        raise AssertionError(self.kinds())

    def assign(self, process: Process, generation: int, *queues: TopicPartition) -> None:
        """The group gives queues to a process, and its claims are read back."""
        process.registry.assigned(queues or (QUEUE,), generation=generation)
        self.run()

    def assigned(self, name: str, *, generation: int, **how: Any) -> Process:
        """A started process that was given the queue."""
        process = self.process(name, **how)
        self.assign(process, generation)
        return process

    def log(self) -> list[tuple[int, int, LockRecord]]:
        """(offset, append time, record) of the queue's partition."""
        found = []
        partition = lock_partition(NAME, partition_count=PARTITION_COUNT)
        for record in self.kafka.records(TOPICS.locks):
            if record.partition() != partition:
                continue
            lock = decode_lock(record.key(), record.value())
            assert isinstance(lock, LockRecord)
            found.append((record.offset(), record.timestamp()[1], lock))
        return found

    def kinds(self) -> str:
        """The records' kinds in order, as letters."""
        return "".join(record.kind.value for _, _, record in self.log() if record.queue == NAME)

    def append(self, record: LockRecord) -> int:
        """A record that somebody else writes; its offset."""
        key, value = encode_lock(record)
        partition = lock_partition(record.queue, partition_count=PARTITION_COUNT)
        return self.kafka.append(TOPICS.locks, value, key=key, partition=partition)

    def claim(self, holder: str, generation: int) -> int:
        """Somebody's claim."""
        return self.append(LockRecord(LockKind.CLAIM, NAME, generation, holder))

    def table(self) -> LeaseTable:
        """What one who read everything says."""
        table = LeaseTable(expiry_ms=EXPIRY_MS)
        for offset, at_ms, record in self.log():
            table.apply(record, offset=offset, appended_ms=at_ms)
        return table

    def holder(self) -> tuple[str, int] | None:
        """(holder, token) now."""
        lease = holding(self.table(), NAME, at_ms=self.world.now_ms())
        return None if lease is None else (lease.holder, lease.token)
