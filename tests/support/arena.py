"""A namespace with its real topics on a broker, made for one test; when it has come to rest, and what is wrong there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException

from tests.support.broker import create_topic, unique_name
from tests.support.checker import Verdict, judge
from tests.support.doubt import DoubtShelf, read_doubt
from tests.support.history import Logs
from tests.support.load import Load
from tests.support.logs import Seen, ends, hanging, header, partition_counts, read_log
from tests.support.run_checker import missing_from
from tests.support.waiting import TimedOutError, wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.namespace import Namespace
from txlayer.config import ClientConfig, CoordinatorConfig, SystemTopics
from txlayer.core.codec import ID_HEADER
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import DoubtSummary
from txlayer.errors import BrokerUnavailableError
from txlayer.operate.topics import CoordinatorStatus, read_status
from txlayer.testing.stage import RunningCoordinator

PARTITION_COUNT = 4
REAL_TOPIC_SETTINGS = {"message.timestamp.type": "LogAppendTime"}
"""So that the broker's clock alone says whether a message came before its decision."""


@dataclass(frozen=True, slots=True)
class Arena:
    """One namespace, its targets, and the way there."""

    servers: str
    topics: SystemTopics
    targets: tuple[str, ...]
    partition_count: int = PARTITION_COUNT

    @property
    def namespace(self) -> str:
        """Its name."""
        return self.topics.namespace

    def coordinator(self, **settings: Any) -> RunningCoordinator:
        """One with these settings, which works in it while a block runs."""
        config = CoordinatorConfig(bootstrap_servers=self.servers, namespace=self.namespace, **settings)
        return RunningCoordinator(config)

    def load(self, *, rate: int, seed: int, next_share: float = 0.0, timed_share: float = 0.0) -> Load:
        """A load on it, not started; so many of its transactions are of the next release, and so many have times."""
        return Load(
            self.servers,
            self.topics,
            partition_count=self.partition_count,
            targets=self.targets,
            rate=rate,
            seed=seed,
            next_share=next_share,
            timed_share=timed_share,
        )

    def status(self) -> CoordinatorStatus:
        """What the group stored."""
        config = ClientConfig(bootstrap_servers=self.servers, namespace=self.namespace)
        with KafkaAdmin(config) as admin:
            return read_status(admin, self.topics)

    def wait_until_applied(self, *, within: float) -> None:
        """Wait until every op line was applied and nobody's Kafka transaction is open; some more `within` each time."""
        last: list[str] = []
        applied = 0

        def rest() -> list[str]:
            nonlocal applied
            try:
                positions = self._op_positions()
                applied = sum(stored for stored, _ in positions.values())
                behind = [f"op-{p}: {at} of {end}" for p, (at, end) in positions.items() if at < end]
                return behind or [f"{t}-{p}: {marks}" for (t, p), marks in hanging(self.servers, self._logs()).items()]
            except (BrokerUnavailableError, KafkaException) as exc:
                return [str(exc)]

        def is_done() -> bool:
            last[:] = rest()
            return not last

        try:
            wait_until(is_done, within=within, what="everything applied", growing=lambda: applied)
        except TimedOutError as exc:
            raise TimedOutError(f"{exc}: {last}") from exc

    def wait_until_released(self, *, within: float) -> None:
        """Wait until no message waits for its time, and everything was applied."""

        def count() -> int:
            return sum(summary.state == TxnState.SCHEDULED.value for summary in self.doubt().summaries.values())

        wait_until(lambda: not count(), within=within, what="no message waits for its time", growing=lambda: -count())
        self.wait_until_applied(within=within)

    def _op_positions(self) -> dict[int, tuple[int, int]]:
        """{partition: (stored, end)} of op.

        Not from `status`: that asks about the group's members, and an admin client that hears that a group has moved
        ends the process (docs/explanation/kafka.md, Groups).
        """
        config = ClientConfig(bootstrap_servers=self.servers, namespace=self.namespace)
        ops = [(self.topics.op, p) for p in range(self.partition_count)]
        with KafkaAdmin(config) as admin:
            ends = admin.end_offsets(ops)
            stored = admin.stored_offsets(self.topics.coordinator_group, ops)
        at = {op: stored_offset.offset for op, stored_offset in stored.items() if stored_offset}
        return {op[1]: (at.get(op, 0), ends[op]) for op in ops}

    def logs(self) -> Logs:
        """Everything that the topics hold, read by plain clients."""
        read = read_log(self.servers, self._logs())
        real = [record for target in self.targets for record in read[target]]
        half, op, doubt = (read[t] for t in (self.topics.half, self.topics.op, self.topics.doubt))
        return Logs(half, op, doubt, real, partition_counts(self.servers, self.targets))

    def verdict(self, load: Load | None = None) -> Verdict:
        """P1-P6, read by plain clients; with a `load`, that nothing acknowledged is missing."""
        logs = self.logs()
        verdict = judge(logs, partition_count=self.partition_count)
        if load is not None:
            stored = [(sent.partition, o) for sent in load.sent for o in sent.acknowledged]
            verdict.findings += missing_from(logs.half, stored, what="half")
            verdict.findings += missing_from(logs.op, load.acknowledged_ops, what="op")
        return verdict

    def visible(self, txn_id: str, *, topics: Sequence[str] | None = None) -> list[Seen]:
        """What a `read_committed` reader sees of one transaction id."""
        read = read_log(self.servers, self.targets if topics is None else topics)
        return [
            record
            for records in read.values()
            for record in records
            if header(record.headers, ID_HEADER) == txn_id.encode()
        ]

    def wait_until_visible(
        self, txn_id: str, *, count: int = 1, topics: Sequence[str] | None = None, within: float = 30
    ) -> list[Seen]:
        """Wait until so many messages of it are visible."""

        def enough() -> list[Seen]:
            found = self.visible(txn_id, topics=topics)
            return found if len(found) >= count else []

        return wait_until(enough, within=within, what=f"{count} messages of {txn_id}")

    def doubt(self) -> DoubtShelf:
        """What stands on the doubt topic."""
        return read_doubt(self.servers, self.topics.doubt)

    def wait_for_doubt(self, key: str, *, state: str | None = None, within: float = 30) -> DoubtSummary:
        """Wait until a transaction stands on doubt, in this state if one is named."""

        def stands() -> DoubtSummary | None:
            summary = self.doubt().summaries.get(key)
            return summary if summary and state in (None, summary.state) else None

        found = wait_until(stands, within=within, what=f"{key} {state} on doubt")
        assert found is not None
        return found

    def aborted_count(self) -> int:
        """Records on the real topics that only a `read_uncommitted` reader sees: of Kafka transactions given up.

        Only up to what is decided already: of a Kafka transaction that is under way nobody knows yet.
        """
        decided = ends(self.servers, self.targets, isolation="read_committed")
        whole = read_log(self.servers, self.targets, isolation="read_uncommitted")
        stable = read_log(self.servers, self.targets)
        in_whole, in_stable = (
            sum(record.offset < decided[t, record.partition] for t in self.targets for record in log[t])
            for log in (whole, stable)
        )
        return in_whole - in_stable

    def _logs(self) -> list[str]:
        return [self.topics.half, self.topics.op, self.topics.doubt, *self.targets]


def make_arena(
    servers: str,
    *,
    partition_count: int = PARTITION_COUNT,
    target_partitions: Sequence[int] = (4, 2),
    replication_factor: int = 1,
) -> Arena:
    """Create a namespace as `txlayer topics apply` does, and real topics with so many partitions."""
    is_replicated = replication_factor > 1
    settings = {**REAL_TOPIC_SETTINGS, **({"min.insync.replicas": "2"} if is_replicated else {})}
    topics = SystemTopics(unique_name("ns"))
    with KafkaAdmin(ClientConfig(bootstrap_servers=servers, namespace=topics.namespace)) as admin:
        namespace = Namespace(admin, topics=topics)
        namespace.apply(partition_count=partition_count, replication_factor=replication_factor)
    targets = tuple(
        create_topic(
            servers,
            unique_name("real"),
            partitions=partitions,
            replicas=replication_factor if is_replicated else -1,
            config=settings,
        )
        for partitions in target_partitions
    )
    return Arena(servers, topics, targets, partition_count)
