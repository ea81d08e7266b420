"""What each role of topics/acl does for a living, done by the real services under that role's rights alone.

An act fails when a right is missing: what it waits for does not come within the stage's patience.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from confluent_kafka import Producer

from tests.support.arena import Arena, make_arena
from tests.support.broker import create_topic, unique_name
from tests.support.check_back import Asker
from tests.support.logs import read_log
from tests.support.raw import RawWriter
from tests.support.tls_broker import TlsBroker, User
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.namespace import read_acl_files
from txlayer.config import ClientConfig, CoordinatorConfig, ResponderConfig
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.core.acls import CreateAcl, RoleSpec
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, dead_letter_topic, encode_replay, replay_topic
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Message, Resolution
from txlayer.errors import RefusedRecordError
from txlayer.operate.topics import GroupTopics
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.standalone import run_responder
from txlayer.testing.stage import RunningCoordinator

SMALL = {"max.message.bytes": "20000"}
LARGE = b"x" * 30_000
QUICK = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class Stage:
    """A namespace with a group and topics of its own, made by the administrator."""

    broker: TlsBroker
    arena: Arena
    group: str
    small: str
    """A real topic that takes small messages only."""
    patience_s: float
    """How long an act waits for each thing; on a silent machine a second is enough."""

    @property
    def patience(self) -> timedelta:
        """As services take it."""
        return timedelta(seconds=self.patience_s)

    @property
    def topics(self) -> tuple[str, ...]:
        """The real topics."""
        return (*self.arena.targets, self.small)

    def rights(self, role: str, user: User) -> list[CreateAcl]:
        """Everything that the role needs here."""
        return RoleSpec.parse(role, read_acl_files()[role]).wanted(
            namespace=self.arena.namespace, group=self.group, topics=self.topics, principal=user.principal, host="*"
        )

    def settings(self, user: User) -> dict[str, Any]:
        """How a service of ours connects as this user."""
        return {
            "bootstrap_servers": self.broker.sasl_servers,
            "namespace": self.arena.namespace,
            "client_settings": self.broker.scram(user),
        }


def make_stage(broker: TlsBroker, *, patience_s: float = 30.0) -> Stage:
    """A new one."""
    arena = make_arena(broker.open_servers, partition_count=1, target_partitions=(1,))
    small = create_topic(broker.open_servers, unique_name("small"), config=SMALL)
    group = unique_name("group")
    stage = Stage(broker, arena, group, small, patience_s)
    with KafkaAdmin(ClientConfig(bootstrap_servers=broker.open_servers)) as admin:
        GroupTopics(admin, group=group, topics=stage.topics).apply()
    return stage


# --- producers and responders -----------------------------------------------------------------------------------------


def produce(stage: Stage, user: User) -> None:
    """Publish, know the sizes of topics, answer a check-back."""
    asker = _asker(stage)
    with TransactionalProducer(
        group=stage.group,
        check=lambda _: COMMIT,
        start_timeout=stage.patience,
        prepare_timeout=stage.patience,
        resolution_timeout=stage.patience,
        close_timeout=timedelta(seconds=1),
        **stage.settings(user),
    ) as producer:
        result = producer.publish(Message(stage.arena.targets[0], b"k", b"v"))
        assert COMMIT is result.resolution
        try:
            producer.publish(Message(stage.small, b"k", LARGE))
        except RefusedRecordError:
            pass
        else:
            raise AssertionError("the target's own limit is not known")
        assert producer._engine is not None
        assert producer._engine.encoder._half_bytes_max is not None, "half's limit is not known"
        _answered(stage, asker, producer)


def respond(stage: Stage, user: User) -> None:
    """Answer a check-back."""
    asker = _asker(stage)
    is_over = threading.Event()
    failures: list[BaseException] = []
    config = ResponderConfig(start_timeout=stage.patience, close_timeout=stage.patience, **stage.settings(user))

    def run() -> None:
        try:
            run_responder(config, group=stage.group, should_stop=is_over.is_set, check=lambda _: ROLLBACK)
        except BaseException as exc:  # noqa: BLE001 - raised below
            failures.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: failures or asker.member_count() == 1, within=stage.patience_s, what="a member")
        _raise_first(failures)
        _asked_until_answered(stage, asker)
    finally:
        is_over.set()
        thread.join(stage.patience_s)
    _raise_first(failures)


def _asker(stage: Stage) -> Asker:
    asker = Asker(stage.arena)
    asker.group = stage.group
    return asker


def _answered(stage: Stage, asker: Asker, producer: TransactionalProducer) -> None:
    def is_ready() -> bool:
        stats = producer.responder_stats()
        if stats is not None and stats.failure is not None:
            raise stats.failure
        return stats is not None and bool(stats.own_partitions)

    wait_until(is_ready, within=stage.patience_s, what="a share of the check topic")
    _asked_until_answered(stage, asker)


def _asked_until_answered(stage: Stage, asker: Asker) -> None:
    before = len(asker.answers())

    # A responder starts at the end: what was asked before it had found that is asked again, as a coordinator does.
    def answered() -> bool:
        asker.ask(asker.question(unique_name("t")))
        return len(asker.answers()) > before

    wait_until(answered, within=stage.patience_s, what="an answer")


# --- coordinators -----------------------------------------------------------------------------------------------------


def coordinate(stage: Stage, user: User) -> None:
    """Forward, move to doubt, ask, decide by policy, park what is too large; and go on with it after a restart."""
    config = CoordinatorConfig(
        session_timeout=timedelta(seconds=3),
        doubt_after=QUICK,
        check_immunity=QUICK,
        check_interval=QUICK,
        start_timeout=stage.patience,
        group_policies={"tests.unresolved": "rollback", "tests.transaction_age_max": "5s"},
        **stage.settings(user),
    )
    raw = RawWriter(stage.arena)
    arena = stage.arena
    with _member(stage) as asked, running(config, within=2 * stage.patience_s) as coordinator:
        rebuilt = coordinator.coordinator.counts.rebuild_count
        done = raw.prepare((arena.targets[0], b"k", b"v"))
        raw.commit(done)
        arena.wait_until_visible(done.txn_id, within=stage.patience_s)
        large = raw.prepare((stage.small, b"k", LARGE))
        raw.commit(large)
        assert "too-large" == arena.wait_for_doubt(large.key, within=stage.patience_s).reason
        open_one = raw.prepare((arena.targets[0], b"k", b"v"))
        wait_until(lambda: open_one.txn_id in asked, within=stage.patience_s, what="a question")
        wait_until(lambda: open_one.key not in arena.doubt().summaries, within=4 + stage.patience_s, what="rolled back")
        assert rebuilt == coordinator.coordinator.counts.rebuild_count
        assert [] == arena.visible(open_one.txn_id)
    # Now something stands on doubt: whoever takes the partition over has to read it.
    with running(config, within=2 * stage.patience_s):
        after = raw.prepare((arena.targets[0], b"k", b"v"))
        raw.commit(after)
        arena.wait_until_visible(after.txn_id, within=stage.patience_s)


@contextmanager
def running(config: CoordinatorConfig, *, within: float = 60) -> Iterator[RunningCoordinator]:
    """A coordinator that takes its partitions over, or fails."""
    with RunningCoordinator(config, within=within) as coordinator:
        yield coordinator


@contextmanager
def _member(stage: Stage) -> Iterator[list[str]]:
    """The administrator's own producer, of the group of raw records, who never knows anything."""
    asked: list[str] = []

    def check(request: CheckRequest) -> Resolution:
        asked.append(request.txn_id)
        return UNKNOWN

    with TransactionalProducer(
        group="tests", check=check, bootstrap_servers=stage.broker.open_servers, namespace=stage.arena.namespace
    ) as producer:

        def has_share() -> bool:
            stats = producer.responder_stats()
            return stats is not None and bool(stats.own_partitions)

        wait_until(has_share, within=30, what="a share of the check topic")
        yield asked


# --- consumers --------------------------------------------------------------------------------------------------------


def consume(stage: Stage, user: User) -> None:
    """Handle a message, give one up, handle that again when it is asked for."""
    topic = stage.arena.targets[0]
    handled: list[bytes | None] = []
    is_mended = threading.Event()
    settings = stage.settings(user)
    consumer = OrderedConsumer(
        group=stage.group,
        topics=[topic],
        start_at="earliest",
        attempt_count_max=1,
        start_timeout=stage.patience,
        store_timeout=stage.patience,
        close_timeout=timedelta(seconds=1),
        session_timeout=timedelta(seconds=3),
        **settings,
    )

    @consumer.handler
    def handle(message: Any, _: Any) -> None:
        if message.value == b"bad" and not is_mended.is_set():
            raise ValueError("bad")
        handled.append(message.value)

    servers = stage.broker.open_servers
    write(servers, topic, b"good")
    write(servers, topic, b"bad")
    consumer.start()
    try:
        wait_until(lambda: _going(consumer) and b"good" in handled, within=stage.patience_s, what="handled")
        letters = dead_letter_topic(stage.group, topic)
        wait_until(lambda: _going(consumer) and count(servers, letters), within=stage.patience_s, what="a dead letter")
        is_mended.set()
        requests = replay_topic(stage.group, topic)
        letter = read_log(servers, [letters])[letters][-1].offset
        write(servers, requests, encode_replay(ReplayRecord(ReplayKind.REPLAY, "r1", letter)))
        wait_until(lambda: _going(consumer) and b"bad" in handled, within=stage.patience_s, what="replayed")
        wait_until(
            lambda: _going(consumer) and count(servers, requests) > 1, within=stage.patience_s, what="the result"
        )
    finally:
        consumer.stop()
        consumer.close()


def write(servers: str, topic: str, value: bytes) -> None:
    """One record, as the administrator."""
    plain = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    plain.produce(topic, value, b"k", 0)
    assert not plain.flush(30)


def count(servers: str, topic: str) -> int:
    """Records that a `read_committed` reader sees."""
    return len(read_log(servers, [topic])[topic])


def _going(consumer: OrderedConsumer) -> bool:
    consumer._raise_failure()
    return True


# --- people -----------------------------------------------------------------------------------------------------------


def _raise_first(failures: list[BaseException]) -> None:
    if failures:
        raise failures[0]


ACTS: Mapping[str, Callable[[Stage, User], None]] = {
    "producer": produce,
    "responder": respond,
    "coordinator": coordinate,
    "consumer": consume,
}
