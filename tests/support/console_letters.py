"""A consumer group with dead letters, parked keys and leases on the cluster of a console's site, and its owner's answers."""

from collections.abc import Callable
from typing import Any

from tests.support.console_site import Site
from txlayer.adapters.ports import StoredOffset, TransactionalWriter
from txlayer.core.dead_letters import (
    DLQ_HEADER,
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_topic,
    decode_replay,
    encode_dead_letter,
    encode_replay,
    replay_topic,
)
from txlayer.core.leases import LockKind, LockRecord, encode_lock, lock_partition
from txlayer.core.messages import Origin
from txlayer.core.progress import Attempts, StoredProgress, encode, fixed_part, hash_of_key

LOCK_PARTITION_COUNT = 4


class Group:
    """The consumer group `loyalty` of the topic `orders`, which has one partition."""

    def __init__(self, site: Site, *, name: str = "loyalty", topic: str = "orders") -> None:
        self.site = site
        self.name = name
        self.topic = topic
        self.kafka = site.stage.kafka
        self.dead_letters = dead_letter_topic(name, topic)
        self.replays = replay_topic(name, topic)
        for each in (self.dead_letters, self.replays):
            self.kafka.create_topic(each)
        self._answered = 0

    def letter(
        self,
        *,
        key: bytes | None = b"customer-7",
        value: bytes | None = b"an order",
        reason: DeadLetterReason = DeadLetterReason.ATTEMPTS_EXHAUSTED,
        error: tuple[str, str] = ("ValueError", "no such customer\nsecond line"),
        origin: int = 1_000,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        hidden_by: TransactionalWriter | None = None,
    ) -> int:
        """A dead letter as a consumer writes it; its offset. Until `hidden_by` commits, no reader sees it: then -1."""
        now_ms = self.site.stage.world.now_ms()
        letter = DeadLetter(
            reason, Origin(self.topic, 0, origin), now_ms, 16, now_ms - 900, now_ms - 100, *error, self.name
        )
        if hidden_by is not None:
            written = [*headers, (DLQ_HEADER, encode_dead_letter(letter))]
            hidden_by.produce(self.dead_letters, value, key, 0, None, None, now_ms, written)
            hidden_by.flush(timeout_s=1.0)
            return -1
        return self.kafka.append(
            self.dead_letters,
            value,
            key=key,
            headers=[*headers, (DLQ_HEADER, encode_dead_letter(letter))],
            timestamp_ms=now_ms,
        )

    def open_transaction(self, name: str) -> TransactionalWriter:
        """A Kafka transaction of this transactional id, begun."""
        clients = self.site.console.clients
        writer = clients.writer(transactional_id=name, timeout_ms=10_000, batch_bytes_max=16_384)
        writer.initialise(timeout_s=1.0)
        writer.begin()
        return writer

    def store(
        self,
        *,
        parked: dict[bytes, int] | None = None,
        stuck: tuple[bytes, ...] = (),
        paused: bool = False,
        failing: dict[int, Attempts] | None = None,
    ) -> None:
        """What the owner has stored: keys that are parked at an offset, of which replays failed, a pause, ended attempts."""
        at = {hash_of_key(key): offset for key, offset in (parked or {}).items()}
        failed = {hash_of_key(key): at[hash_of_key(key)] for key in stuck}
        stored = StoredProgress(is_paused=paused, attempts=failing or {}, parked=at, stuck=failed)
        found = encode(0, (), fixed_part(0, stored), bytes_max=4_000)
        self.kafka.admin().store_offsets(self.name, {(self.topic, 0): StoredOffset(0, found.text)})

    def said(self) -> list[ReplayRecord]:
        """Every record of the replay topic."""
        found = [decode_replay(record.value()) for record in self.kafka.records(self.replays)]
        records = [each for each in found if isinstance(each, ReplayRecord)]
        assert len(records) == len(found)
        return records

    def requests(self) -> list[tuple[str, int | None]]:
        """(kind, dead letter) of each request."""
        return [
            (each.kind.value, each.dead_letter_offset) for each in self.said() if each.kind is not ReplayKind.RESULT
        ]

    def say(self, record: ReplayRecord) -> None:
        """A record of the replay topic."""
        self.kafka.append(self.replays, encode_replay(record), key=b"k", timestamp_ms=self.site.stage.world.now_ms())

    def answer(self, judge: Callable[[int], ReplayOutcome]) -> int:
        """Answer what was asked for since the last call, as the owner does; how many that were."""
        asked = [each for each in self.said() if each.kind in (ReplayKind.REPLAY, ReplayKind.DROP)]
        fresh = asked[self._answered :]
        self._answered = len(asked)
        for each in fresh:
            assert each.dead_letter_offset is not None
            outcome = ReplayOutcome.DROPPED if each.kind is ReplayKind.DROP else judge(each.dead_letter_offset)
            self.say(ReplayRecord(ReplayKind.RESULT, each.request_id, each.dead_letter_offset, outcome, "as told"))
        return len(fresh)

    def lock(self, kind: LockKind = LockKind.CLAIM, **record: Any) -> int:
        """A record of the lock log about partition 0; its offset."""
        queue = f"{self.name}/{self.topic}/0"
        made = LockRecord(kind, queue, **{"generation": 5, "holder": "host-1/4711/0b7e", **record})
        key, value = encode_lock(made)
        partition = lock_partition(queue, partition_count=LOCK_PARTITION_COUNT)
        return self.kafka.append(self.site.stage.topics.locks, value, key=key, partition=partition)
