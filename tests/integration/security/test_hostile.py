"""What somebody can do who has one right and means harm; docs/explanation/security.md names these tests."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.broker import unique_name
from tests.support.raw import RawWriter
from tests.support.role_acts import Stage, make_stage, running
from tests.support.tls_broker import TlsBroker, User
from tests.support.waiting import wait_until
from txlayer.adapters.namespace import read_acl_files
from txlayer.config import CoordinatorConfig
from txlayer.core import codec
from txlayer.core.acls import AclResource, Operation, RoleSpec
from txlayer.core.dead_letters import writer_name
from txlayer.core.messages import Resolution

PATIENCE_S = 15.0
_TOPIC_DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED
_GROUP_DENIED = KafkaError.GROUP_AUTHORIZATION_FAILED
_DENIED = {_TOPIC_DENIED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


class Prober:
    """Tries things as one principal; each answer is True when the broker let it."""

    def __init__(self, servers: str, settings: Mapping[str, Any]) -> None:
        self._settings = {"bootstrap.servers": servers, "log_level": 0, **settings}

    def may_write(self, topic: str, value: bytes = b"probe") -> bool:
        """One record."""
        return bool(self.writable([topic], value))

    def writable(self, topics: Iterable[str], value: bytes = b"probe") -> frozenset[str]:
        """The topics that took a record."""
        errors: dict[str, KafkaError | None] = {}

        def told(topic: str) -> Callable[[KafkaError | None, object], None]:
            return lambda error, _: errors.update({topic: error})

        # Not idempotent: who may write nothing at all gets no producer id, and that is an error of the whole client.
        producer = Producer({**self._settings, "acks": "all", "linger.ms": 0})
        for topic in topics:
            producer.produce(topic, value, b"probe", 0, on_delivery=told(topic))
        assert not producer.flush(PATIENCE_S), "records without an answer"
        return frozenset(topic for topic, error in errors.items() if _is_allowed(error))

    def readable(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics whose first partition can be read."""
        words: dict[str, bool] = {}
        consumer = self._consumer("probe", {"enable.partition.eof": True})
        try:
            # A topic that may not be described is not shown, and may not be read; an assignment of it is never answered.
            asked = set(topics) & set(consumer.list_topics(timeout=PATIENCE_S).topics)
            consumer.assign([TopicPartition(topic, 0, 0) for topic in asked])

            def everybody_answered() -> bool:
                record = consumer.poll(0.05)
                word = None if record is None else _word(record, _TOPIC_DENIED)
                if record is not None and word is not None:
                    words.setdefault(str(record.topic()), word)
                return asked == set(words)

            wait_until(everybody_answered, within=PATIENCE_S, what="a word about each topic")
            return frozenset(topic for topic, may in words.items() if may)
        finally:
            consumer.close()

    def may_join(self, group: str, topic: str) -> bool:
        """A consumer group, with a topic that may be read."""
        words: list[bool] = []
        consumer = self._consumer(group, {"session.timeout.ms": 6000})
        try:
            consumer.subscribe([topic], on_assign=lambda *_: words.append(True))

            def is_answered() -> bool:
                record = consumer.poll(0.05)
                if record is not None and _word(record, _GROUP_DENIED) is False:
                    words.append(False)
                return bool(words)

            wait_until(is_answered, within=PATIENCE_S, what="a word about the group")
            return words[0]
        finally:
            consumer.close()

    def may_be(self, transactional_id: str) -> bool:
        """The holder of a transactional id."""
        producer = Producer({**self._settings, "transactional.id": transactional_id})
        try:
            producer.init_transactions(PATIENCE_S)
        except KafkaException as exc:
            return _is_allowed(exc.args[0])
        return True

    def _consumer(self, group: str, settings: Mapping[str, Any]) -> Consumer:
        # Nothing is stored: `close` would wait for a group that may not be used.
        fixed = {"group.id": group, "enable.auto.commit": False}
        return Consumer({**self._settings, **fixed, **settings})


def _word(record: Message, denial: int) -> bool | None:
    error = record.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    return False if error.code() == denial else None


def _is_allowed(error: KafkaError | None) -> bool:
    assert error is None or error.code() in _DENIED, error
    return error is None


pytestmark = pytest.mark.kafka

ROLES = ("producer", "responder", "coordinator", "consumer", "reader", "operator", "spark")


@pytest.fixture(scope="module")
def stage(guarded: TlsBroker) -> Stage:
    """A namespace that nobody works in: what is written there is never read by a service."""
    return make_stage(guarded)


@pytest.fixture(scope="module")
def other(guarded: TlsBroker) -> Stage:
    """The namespace of people who trust nobody."""
    return make_stage(guarded)


def granted(guarded: TlsBroker, stage: Stage, role: str, user: User) -> set[tuple[str, Operation]]:
    """The role's rights on topics, given to the user."""
    acls = [right.acl for right in stage.rights(role, user)]
    guarded.allow(acls)
    return {(acl.name, acl.operation) for acl in acls if acl.resource is AclResource.TOPIC}


@pytest.mark.threat(
    "write `<ns>.doubt`",
    "write `<ns>.check`",
    "write `<ns>.locks`",
    "write `<group>.<topic>.dlq`",
    "write `<group>.<topic>.replay`",
    "write a real topic",
    "read `<ns>.half` or `<ns>.doubt`",
)
@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_write_and_read_what_it_needs_and_nothing_else(
    guarded: TlsBroker, stage: Stage, other: Stage, user: User, role: str
) -> None:
    rights = granted(guarded, stage, role, user)
    prober = Prober(guarded.sasl_servers, guarded.scram(user))
    mine, theirs = stage.arena.topics, other.arena.topics
    topics = [*sorted(mine.all), *sorted(theirs.all), stage.topics[0], other.topics[0]]
    topics += [f"{stage.group}.{stage.topics[0]}.{kind}" for kind in ("dlq", "replay")]

    allowed = {(t, Operation.WRITE) for t in prober.writable(topics)}
    allowed |= {(t, Operation.READ) for t in prober.readable(topics)}
    names = set(topics)
    expected = {(t, o) for t, o in rights if t in names and o in (Operation.READ, Operation.WRITE)}
    assert expected == allowed


@pytest.mark.threat("read `<ns>.check`, and know a group's name")
def test_a_producer_joins_its_own_check_group_and_no_other(guarded: TlsBroker, stage: Stage, user: User) -> None:
    granted(guarded, stage, "producer", user)
    prober = Prober(guarded.sasl_servers, guarded.scram(user))
    topics = stage.arena.topics

    assert prober.may_join(topics.check_group(stage.group), topics.check)
    assert not prober.may_join(topics.check_group("another"), topics.check)
    assert not prober.may_join(topics.coordinator_group, topics.check)


@pytest.mark.threat("use a transactional id below `<ns>/`")
def test_nobody_but_its_holder_may_fence_a_transactional_id(guarded: TlsBroker, stage: Stage, user: User) -> None:
    granted(guarded, stage, "producer", user)
    coordinator = guarded.add_user()
    granted(guarded, stage, "coordinator", coordinator)
    name = f"{stage.arena.topics.transactional_id(unique_name('id'))}.a"

    assert not Prober(guarded.sasl_servers, guarded.scram(user)).may_be(name)
    assert Prober(guarded.sasl_servers, guarded.scram(coordinator)).may_be(name)


@pytest.mark.threat("use a transactional id below `<ns>/`")
def test_a_consumer_may_fence_neither_a_namesake_nor_a_group_whose_name_begins_alike(
    guarded: TlsBroker, stage: Stage, user: User
) -> None:
    namespace = stage.arena.namespace
    rights = RoleSpec.parse("consumer", read_acl_files()["consumer"]).wanted(
        namespace=namespace, group=namespace, topics=stage.topics, principal=user.principal, host="*"
    )
    guarded.allow([right.acl for right in rights])
    prober = Prober(guarded.sasl_servers, guarded.scram(user))

    assert prober.may_be(writer_name(namespace, "f00"))
    assert not prober.may_be(f"{stage.arena.topics.transactional_id('f00')}.a")
    assert not prober.may_be(writer_name(f"{namespace}.eu", "f00"))


def quick(stage: Stage, user: User, **more: object) -> CoordinatorConfig:
    """A coordinator under the rights of its role."""
    return CoordinatorConfig(
        session_timeout=timedelta(seconds=3),
        hold_after=timedelta(seconds=1),
        **stage.settings(user),
        **more,  # type: ignore[arg-type]  # any field
    )


@pytest.mark.threat("write `<ns>.op`")
def test_a_producer_of_one_namespace_cannot_resolve_a_transaction_of_another(guarded: TlsBroker, user: User) -> None:
    mine, theirs = make_stage(guarded), make_stage(guarded)
    granted(guarded, mine, "producer", user)
    coordinator = guarded.add_user()
    for stage in (mine, theirs):
        granted(guarded, stage, "coordinator", coordinator)
    raw = RawWriter(theirs.arena)
    victim = raw.prepare((theirs.topics[0], b"k", b"v"))
    own = RawWriter(mine.arena).prepare((mine.topics[0], b"k", b"v"))
    prober = Prober(guarded.sasl_servers, guarded.scram(user))
    # Everything about the victim is known, and the line is well formed.
    line = codec.encode_ops([victim.line(Resolution.COMMIT)])

    assert not prober.may_write(theirs.arena.topics.op, line)
    assert prober.may_write(mine.arena.topics.op, line)
    assert prober.may_write(mine.arena.topics.op, codec.encode_ops([own.line(Resolution.COMMIT)]))
    with running(quick(mine, coordinator)), running(quick(theirs, coordinator)):
        mine.arena.wait_until_visible(own.txn_id)
        raw.resolve(victim, Resolution.ROLLBACK)
        later = raw.prepare((theirs.topics[0], b"k", b"later"))
        raw.commit(later)
        theirs.arena.wait_until_visible(later.txn_id)

    assert [] == theirs.arena.visible(victim.txn_id)


@pytest.mark.threat("write `<ns>.half`")
def test_a_half_message_cannot_make_the_coordinator_write_another_namespace(
    guarded: TlsBroker, other: Stage, user: User
) -> None:
    stage = make_stage(guarded)
    granted(guarded, stage, "coordinator", user)
    raw = RawWriter(stage.arena)
    sent = raw.prepare((other.arena.topics.op, None, b"any line"))
    good = raw.prepare((stage.topics[0], b"k", b"v"))

    with running(quick(stage, user)):
        raw.commit(sent)
        raw.commit(good)
        stage.arena.wait_until_visible(good.txn_id)
        summary = stage.arena.wait_for_doubt(sent.key)

    # No list of targets here: the rights alone stop it, and the message waits for a person.
    assert ("held", "topic-denied") == (summary.state, summary.reason)
