"""The consumers of a chaotic run: their group, topics and processes, when they are at rest, and their history."""

import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from confluent_kafka import KafkaException

from tests.support.arena import REAL_TOPIC_SETTINGS, Arena
from tests.support.broker import create_topic, unique_name
from tests.support.consumer_history import ConsumerHistory, ConsumerLogs, Effect, Stored
from tests.support.fenced_table import FencedTable
from tests.support.lease_judge import queues_without_holder
from tests.support.logs import Seen, both_ends, read_log
from tests.support.nemesis import OFFSETS_TOPIC
from tests.support.offsets_log import stored_by
from tests.support.processes import TxlayerProcess
from tests.support.recorded_calls import Recorded, read_journals
from tests.support.replayer import parked_in, places_of
from tests.support.waiting import TimedOutError, wait_until
from tests.support.watched_consumer import HEALED
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import TopicPartition
from txlayer.config import ClientConfig
from txlayer.core.dead_letters import ReplayKind, dead_letter_topic, decode_replay, replay_topic
from txlayer.core.key_queue import NullKeys, QueueOrder
from txlayer.core.messages import Undecodable
from txlayer.core.retry import AfterExhausted
from txlayer.errors import TxLayerError

LEASE_EXPIRY_S = 3.0
ATTEMPT_COUNT_MAX = 3
PROGRAM = """
from tests.support.watched_consumer import watched

consumer = watched("given.json")
"""


class ConsumerSide:
    """One ordered group on one real topic. Processes that it starts end with whoever entered them."""

    def __init__(
        self,
        arena: Arena,
        *,
        servers: str,
        topic: str,
        partition_count: int,
        folder: Path,
        session_s: float,
        replication_factor: int,
    ) -> None:
        """`servers`: where its processes connect; they run in `folder`."""
        self.group = unique_name("loyalty")
        self.topic = topic
        self.partition_count = partition_count
        self.letters = dead_letter_topic(self.group, topic)
        self.requests = replay_topic(self.group, topic)
        self._arena = arena
        self._folder = folder
        self._numbers = count()
        self._places = places_of(self.group, topic, partition_count=partition_count)
        for name in (self.letters, self.requests):
            # As `txlayer topics apply` makes them, but for the clock: times are held against each other.
            create_topic(
                arena.servers,
                name,
                partitions=partition_count,
                replicas=replication_factor,
                config={**REAL_TOPIC_SETTINGS, "min.insync.replicas": "2", "max.message.bytes": "2097176"},
            )
        given = {
            "servers": servers,
            "namespace": arena.namespace,
            "group": self.group,
            "topics": [topic],
            "session_s": session_s,
            "lease_expiry_s": LEASE_EXPIRY_S,
            "attempt_count_max": ATTEMPT_COUNT_MAX,
            "after_exhausted": AfterExhausted.PARK.value,
            "kafka_transaction_s": 5.0,
            "store_timeout_s": 10.0,
        }
        (folder / "given.json").write_text(json.dumps(given), encoding="utf-8")
        (folder / "loyalty.py").write_text(PROGRAM, encoding="utf-8")
        self._table = FencedTable(folder / "fenced.db")
        self._table.create()

    def start(self) -> TxlayerProcess:
        """One more process."""
        log_file = self._folder / f"consumer-{next(self._numbers)}.log"
        command = ["consumer", "run", "loyalty:consumer"]
        return TxlayerProcess(command, log_file=log_file, folder=self._folder)

    def heal(self) -> None:
        """What its handlers need is there from now on."""
        (self._folder / HEALED).touch()

    def wait_until_at_rest(self, *, within: float) -> ConsumerHistory:
        """Everything has an end that is stored, no key is parked, every queue has a holder; some more `within` each time.

        Returns the history up to that moment. Later a slow machine may let a lease lapse, which says nothing.
        """
        last: list[str] = []
        done = 0

        def at_rest() -> ConsumerHistory | None:
            nonlocal done
            try:
                last[:], done, needed = self._behind()
                if last:
                    return None
                history = self.history()
                if needed != needed_ends(history.logs.topics, history.logs.replays):
                    last[:] = ["something more came meanwhile"]
                    return None
            except (TxLayerError, KafkaException) as exc:
                last[:] = [str(exc)]
                return None
            # A queue may be between two holders when its last message has ended.
            last[:] = [f"{name} has no holder" for name in queues_without_holder(history)]
            return None if last else history

        try:
            found = wait_until(at_rest, within=within, what="consumers at rest", growing=lambda: done)
        except TimedOutError as exc:
            raise TimedOutError(f"{exc}: {last}") from exc
        assert found is not None
        return found

    def _behind(self) -> tuple[list[str], int, dict[TopicPartition, int]]:
        """What is still to be done, as far as one can see without judging; how much is; and up to where there is something to do."""
        read = read_log(self._arena.servers, [self.topic, self.requests])
        needed = needed_ends(read[self.topic], read[self.requests])
        with KafkaAdmin(ClientConfig(bootstrap_servers=self._arena.servers)) as admin:
            stored = admin.stored_offsets(self.group, self._places)
        at = {place: offset.offset for place, offset in stored.items() if offset is not None}
        behind = [
            f"{topic}-{p}: {at.get((topic, p), 0)} of {end}"
            for (topic, p), end in needed.items()
            if at.get((topic, p), 0) < end
        ]
        parked = sum(len(parked_in(offset)) for offset in stored.values())
        return behind + [f"{parked} keys are parked"] * bool(parked), sum(at.values()), needed

    def history(self) -> ConsumerHistory:
        """Everything that is known of it, for its judge."""
        servers = self._arena.servers
        locks = self._arena.topics.locks
        read = read_log(servers, [self.topic, self.letters, self.requests, locks, OFFSETS_TOPIC])
        told = [self.letters, self.requests]  # leases are renewed all the time, in no Kafka transaction
        with (self._folder / "read.jsonl").open("w", encoding="utf-8") as out:
            # For a person who looks for the reason of a finding, when the cluster is gone.
            for record in (r for topic in read for r in read[topic]):
                out.write(json.dumps([str(field) for field in record]) + "\n")
        logs = ConsumerLogs(read[self.topic], read[self.letters], read[self.requests], read[locks])
        return recorded_history(
            logs,
            read_journals(self._folder),
            stored_by(self.group, read[OFFSETS_TOPIC]),
            group=self.group,
            topic=self.topic,
            partition_count=self.partition_count,
            effects=self._table.effects(),
            ends=both_ends(servers, told),
        )


def needed_ends(messages: Sequence[Seen], requests: Sequence[Seen]) -> dict[TopicPartition, int]:
    """Behind the last record of each partition that a consumer has to handle: answers are passed over at leisure."""
    asked = [r for r in requests if not _is_answer(r)]
    return {(r.topic, r.partition): r.offset + 1 for r in (*messages, *asked)}


def _is_answer(record: Seen) -> bool:
    said = decode_replay(record.value)
    return not isinstance(said, Undecodable) and said.kind is ReplayKind.RESULT


def recorded_history(
    logs: ConsumerLogs,
    recorded: Recorded,
    stored: Sequence[Stored],
    *,
    group: str,
    topic: str,
    partition_count: int,
    effects: Sequence[Effect] = (),
    ends: Mapping[TopicPartition, tuple[int, int]],
) -> ConsumerHistory:
    """What was read and written down, as the judge takes it."""
    return ConsumerHistory(
        logs,
        group=group,
        topics=(topic,),
        partition_count=partition_count,
        order=QueueOrder.KEY,
        null_keys=NullKeys.ORDERED,
        is_parking=True,
        attempt_count_max=ATTEMPT_COUNT_MAX,
        lease_expiry_ms=int(LEASE_EXPIRY_S * 1000),
        calls=recorded.calls,
        stored=stored,
        effects=effects,
        learned=recorded.learned,
        holders=recorded.holders,
        ends=ends,
    )
