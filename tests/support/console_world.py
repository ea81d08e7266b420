"""A shop's bad night on a broker of its own, for people who look at it in the console, and what its topics hold.

Two coordinators; a checkout whose process died with open orders; a till that sells; refunds to a topic that is missing; billing,
whose service never knows; loyalty, a consumer group that cannot handle one customer. Each process ends with the world.
"""

import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.reference import wire
from tests.support.arena import REAL_TOPIC_SETTINGS, Arena
from tests.support.broker import create_topic
from tests.support.logs import Seen, ends, read_log
from tests.support.processes import ROOT, ConsoleProcess, CoordinatorProcess, TxlayerProcess
from tests.support.responders import ResponderProcess
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.namespace import Namespace
from txlayer.config import ClientConfig, SystemTopics
from txlayer.operate.topics import GroupTopics

NAMESPACE, TARGETS, PARTITION_COUNT = "shop", ("orders", "invoices"), 4
CHECKOUT, TILL, REFUNDS, BILLING, LOYALTY = "checkout", "till", "refunds", "billing", "loyalty"
HURRY = {
    "session_timeout": "1.5s",
    "check_immunity": "1s",
    "check_interval": "1s",
    "check_interval_max": "1s",
    "check_max": "3",
    "doubt_after": "1s",
}
"""Of the coordinators."""
LETTERS_OF = "customer-7"
"""Loyalty fails for this customer until the file `mended` is there."""

SERVICE = """
import json, os, signal, sys
from contextlib import ExitStack
from txlayer import TransactionalProducer

given = json.loads(sys.argv[1])
with TransactionalProducer(bootstrap_servers=given["servers"], namespace=given["namespace"], group=given["group"]) as producer, ExitStack() as stack:
    for txn_id, topics, key in given["transactions"]:
        tx = stack.enter_context(producer.transaction(txn_id, ordering_key=key))
        for topic in topics:
            tx.send(topic, key=key, value=json.dumps({"order": txn_id, "cents": 1999}))
        tx.prepare()
        if not given["dies"]:
            stack.close()
    print("stored", flush=True)
    if given["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
"""
CHECKS = """
import pathlib
from txlayer import COMMIT, ROLLBACK, UNKNOWN

def paid(request):
    return COMMIT if request.txn_id in pathlib.Path("paid").read_text().split() else ROLLBACK

def never_knows(request):
    return UNKNOWN
"""
CONSUMER = """
import json, pathlib
from txlayer import AfterExhausted, OrderedConsumer, RetryPolicy

given = json.loads(pathlib.Path("consumer.json").read_text())
consumer = OrderedConsumer(
    bootstrap_servers=given["servers"], group=given["group"], topics=["orders"], namespace=given["namespace"],
    start_at="earliest",
    retry=RetryPolicy(attempt_count_max=2, backoff_first_ms=100, after_exhausted=AfterExhausted.PARK),
)

@consumer.handler
def add_points(message, context):
    if message.key == given["fails"].encode() and not pathlib.Path("mended").exists():
        raise LookupError("customer 7 has no account")
"""


@dataclass(slots=True)
class Known:
    """A transaction that is not settled, as the topics say."""

    group: str
    partition: int
    state: str = "open"
    reason: str = ""
    count: int = 0
    offsets: list[int] = field(default_factory=list)
    topics: set[str] = field(default_factory=set)


class ConsoleWorld:
    """All of it. The test starts what the night needs."""

    def __init__(self, servers: str, folder: Path, stack: ExitStack) -> None:
        self.servers = servers
        self.folder = folder
        self.arena = Arena(servers, SystemTopics(NAMESPACE), TARGETS, PARTITION_COUNT)
        self._stack = stack
        (folder / "checks.py").write_text(CHECKS, encoding="utf-8")
        (folder / "paid").write_text("refund-1 order-2000 order-2001 order-2002 order-2003", encoding="utf-8")
        (folder / "loyalty.py").write_text(CONSUMER, encoding="utf-8")
        given = {"servers": servers, "namespace": NAMESPACE, "group": LOYALTY, "fails": LETTERS_OF}
        (folder / "consumer.json").write_text(json.dumps(given), encoding="utf-8")
        with KafkaAdmin(ClientConfig(bootstrap_servers=servers, namespace=NAMESPACE)) as admin:
            namespace = Namespace(admin, topics=self.arena.topics)
            namespace.apply(partition_count=PARTITION_COUNT, replication_factor=1)
            for name in TARGETS:
                create_topic(servers, name, partitions=4, config=REAL_TOPIC_SETTINGS)
            GroupTopics(admin, group=LOYALTY, topics=["orders"]).apply()

    # --- processes ----------------------------------------------------------------------------------------------------

    def coordinator(self, number: int) -> CoordinatorProcess:
        log_file = self.folder / f"coordinator-{number}.log"
        started = CoordinatorProcess(self.servers, NAMESPACE, log_file=log_file, settings=HURRY)
        return self._stack.enter_context(started)

    def responder(self, group: str, function: str) -> ResponderProcess:
        started = ResponderProcess(
            self.servers,
            NAMESPACE,
            group,
            folder=self.folder,
            name=group,
            arguments=["--handler", f"checks:{function}"],
        )
        self._stack.enter_context(started).wait_for("responder.assigned", within=60)
        return started

    def consumer(self) -> TxlayerProcess:
        command = ["consumer", "run", "loyalty:consumer"]
        log_file = self.folder / "consumer.log"
        return self._stack.enter_context(TxlayerProcess(command, log_file=log_file, folder=self.folder))

    def sell(self, group: str, *transactions: tuple[str, Sequence[str], str | None], dies: bool = False) -> None:
        """Let a service of this group prepare (id, topics, ordering key), and commit each, unless it dies first."""
        given = {
            "servers": self.servers,
            "namespace": NAMESPACE,
            "group": group,
            "dies": dies,
            "transactions": transactions,
        }
        ended = subprocess.run(
            [sys.executable, "-c", SERVICE, json.dumps(given)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
            timeout=90,
        )
        assert (-signal.SIGKILL if dies else 0, "stored\n") == (ended.returncode, ended.stdout), ended.stderr

    def say_late(self, resolution: str, half: wire.HalfMessage) -> None:
        """Write the line of a producer that comes back and says it now."""
        line = f"1|{resolution}|{half.txn_key}|{half.producer_group}|{half.offset}|{half.born_ms}|producer||"
        producer = Producer({"bootstrap.servers": self.servers, "acks": "all", "log_level": 0})
        producer.produce(self.arena.topics.op, line.encode(), partition=half.partition)
        assert 0 == producer.flush(30)

    def lose_a_topic(self) -> None:
        """Delete the topic of a refund that is prepared, and then say commit."""
        create_topic(self.servers, "refunds")
        self.sell(REFUNDS, ("refund-1", ["refunds"], None), dies=True)
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        admin.delete_topics(["refunds"])["refunds"].result(30)
        self.responder(REFUNDS, "paid")

    def console(self, *arguments: str, name: str = "console") -> ConsoleProcess:
        """`txlayer console`; it ends with its block."""
        return ConsoleProcess(self.servers, NAMESPACE, log_file=self.folder / f"{name}.log", arguments=arguments)

    # --- what the topics hold -------------------------------------------------------------------------------------------

    def records(self, topic: str) -> list[Seen]:
        return read_log(self.servers, [topic])[topic]

    def halves(self) -> Iterator[wire.HalfMessage]:
        for record in map(_record, self.records(self.arena.topics.half)):
            if (half := wire.parse_half(record)) is not None:
                yield half

    def lines(self) -> Iterator[wire.Line]:
        for record in map(_record, self.records(self.arena.topics.op)):
            for number, text in enumerate((record.value or b"").split(b"\n")):
                if (line := wire.parse_line(text, record, number)) is not None:
                    yield line

    def summaries(self) -> dict[str, wire.Summary]:
        """Of doubt, the newest of each transaction."""
        found: dict[str, wire.Summary] = {}
        for record in self.records(self.arena.topics.doubt):
            key = (record.key or b"").decode()
            summary = wire.parse_summary(record.value)
            if record.value is None:
                found.pop(key, None)
            elif summary is not None:
                found[key] = summary
        return found

    def unsettled(self) -> dict[str, Known]:
        """{"id/nonce": what is known}: undecided in half and op, or on doubt. Right when the coordinators are at rest."""
        found: dict[str, Known] = {}
        for half in self.halves():
            known = found.setdefault(half.txn_key, Known(half.producer_group, half.partition))
            known.count = half.count
            known.offsets.append(int(half.offset or 0))
            known.topics.add(half.topic)
        summaries = self.summaries()
        for line in self.lines():
            if line.resolution in "CR" and line.txn_key not in summaries:
                found.pop(line.txn_key, None)
        for key, summary in summaries.items():
            found[key].state, found[key].reason = summary.state, summary.reason
        return found

    def by_group(self) -> dict[str, dict[str, int]]:
        """{group: {state: how many are not settled}}."""
        counts: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for known in self.unsettled().values():
            counts[known.group][known.state] += 1
        return {group: dict(states) for group, states in counts.items()}

    def op_lags(self) -> dict[int, tuple[int, int]]:
        """{partition: (op offsets that are not carried out, half offsets that a restart reads again)}."""
        topics = self.arena.topics
        places = [TopicPartition(topic, p) for topic in (topics.op, topics.half) for p in range(PARTITION_COUNT)]
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        asked = ConsumerGroupTopicPartitions(topics.coordinator_group, places)
        answer = admin.list_consumer_group_offsets([asked])[topics.coordinator_group].result(30)
        stored = {(place.topic, place.partition): place.offset for place in answer.topic_partitions}
        end = ends(self.servers, [topics.op, topics.half], isolation="read_uncommitted")
        return {
            p: (end[topics.op, p] - stored[topics.op, p], end[topics.half, p] - stored[topics.half, p])
            for p in range(PARTITION_COUNT)
        }


def _record(seen: Seen) -> wire.Record:
    return wire.Record(seen.topic, seen.partition, seen.offset, seen.timestamp_ms, seen.key, seen.value, seen.headers)


@contextmanager
def bad_night(folder: Path, config: LocalConfig) -> Iterator[ConsoleWorld]:
    """A world with all of it, as an operator meets it who is called: no responder of the checkout runs."""
    with LocalBroker(config=config, data=folder / "broker") as broker, ExitStack() as stack:
        world = ConsoleWorld(broker.bootstrap_servers, folder, stack)
        for each in (world.coordinator(1), world.coordinator(2)):
            each.wait_for("partitions.taken_over", within=60)
        consumer = world.consumer()
        world.responder(BILLING, "never_knows")
        sold = [(f"order-{number}", ["orders"], f"customer-{number % 9}") for number in range(1000, 1040)]
        world.sell(TILL, *sold)
        world.lose_a_topic()
        world.sell(BILLING, ("invoice-1", ["invoices"], "customer-3"), dies=True)
        late = [(f"order-{number}", ["orders", "invoices"], f"customer-{number % 9}") for number in range(2000, 2006)]
        world.sell(CHECKOUT, *late, dies=True)
        consumer.wait_for("message.dead_lettered", within=60)
        yield world
