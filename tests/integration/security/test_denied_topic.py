"""A real topic that the coordinator's user may describe and not write."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import pytest

from tests.support.raw import RawWriter
from tests.support.role_acts import Stage, count, make_stage, running
from tests.support.tls_broker import TlsBroker, User
from tests.support.topic_records import Record, RecordWriter
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import TopicLimits
from txlayer.config import CoordinatorConfig
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.acls import Operation
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, dead_letter_topic, encode_replay, replay_topic
from txlayer.core.retry import Reject
from txlayer.testing.stage import RunningCoordinator

pytestmark = pytest.mark.kafka


@pytest.mark.fault("rights: the coordinator may not write to a topic")
@pytest.mark.promise("P7", "P11")
def test_a_topic_that_may_be_described_and_not_written_is_held_and_the_others_go_on(
    guarded: TlsBroker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a namespace whose coordinator is not told its rights: as by an authorizer that does not list operations."""
    told, untold = make_stage(guarded), make_stage(guarded)
    look = KafkaAdmin.topic_limits

    def described(self: KafkaAdmin, topic: str) -> TopicLimits | None:
        limits = look(self, topic)
        return limits._replace(is_writable=True) if limits and topic in untold.topics else limits

    monkeypatch.setattr(KafkaAdmin, "topic_limits", described)
    sealed = {stage.topics[0] for stage in (told, untold)}
    acls = [right.acl for stage in (told, untold) for right in stage.rights("coordinator", user)]
    guarded.allow(
        [
            replace(acl, operation=Operation.DESCRIBE)
            if acl.name in sealed and acl.operation == Operation.WRITE
            else acl
            for acl in acls
        ]
    )

    with held_by(told, user) as of_told, held_by(untold, user) as of_untold:
        began = time.monotonic()
        # Looks after 1, 2, 4 and 8 s: each costs a try or two where the broker does not tell the right.
        wait_until(lambda: time.monotonic() - began > 20, within=60, what="some looks")
        rebuilds = [held.coordinator.coordinator.counts.rebuild_count for held in (of_told, of_untold)]
        guarded.allow(acls)
        for stage, held in ((told, of_told), (untold, of_untold)):
            stage.arena.wait_until_visible(held.txn_id, topics=[stage.topics[0]], within=60)

    assert 0 == rebuilds[0]
    assert 0 < rebuilds[1] <= 12


@dataclass(frozen=True)
class Held:
    """A transaction that waits for a right, and its coordinator."""

    coordinator: RunningCoordinator
    txn_id: str


@contextmanager
def held_by(stage: Stage, user: User) -> Iterator[Held]:
    """A coordinator that holds a transaction of a topic that it may write and one that it may not; another has gone on."""
    raw = RawWriter(stage.arena)
    held = raw.prepare((stage.small, b"k", b"v"), (stage.topics[0], b"k", b"v"))
    good = raw.prepare((stage.small, b"k", b"v"), key=raw.key_in(held.partition))
    config = CoordinatorConfig(
        session_timeout=timedelta(seconds=3), hold_after=timedelta(seconds=1), **stage.settings(user)
    )
    with running(config) as coordinator:
        raw.commit(held)
        raw.commit(good)
        stage.arena.wait_until_visible(good.txn_id, topics=[stage.small])
        assert "topic-denied" == stage.arena.wait_for_doubt(held.key, state="held").reason
        yield Held(coordinator, held.txn_id)


@pytest.mark.fault("rights: the coordinator may not write op, or op takes nothing")
@pytest.mark.promise("P7")
@pytest.mark.nightly  # unit/test_unresolved.py has the same fault in memory
def test_a_coordinator_that_may_not_write_op_parks_what_a_policy_would_decide_and_goes_on(
    guarded: TlsBroker, user: User
) -> None:
    stage = make_stage(guarded)
    op = stage.arena.topics.op
    acls = [right.acl for right in stage.rights("coordinator", user)]
    guarded.allow([acl for acl in acls if (acl.name, acl.operation) != (op, Operation.WRITE)])
    raw = RawWriter(stage.arena)
    config = CoordinatorConfig(
        session_timeout=timedelta(seconds=3),
        check_immunity=timedelta(seconds=1),
        transaction_age_max=timedelta(seconds=1),
        unresolved="rollback",
        **stage.settings(user),
    )

    with running(config) as coordinator:
        left = raw.prepare((stage.small, b"k", b"v"))
        summary = stage.arena.wait_for_doubt(left.key, state="parked")
        good = raw.prepare((stage.small, b"k", b"v"), key=raw.key_in(left.partition))
        raw.commit(good)
        stage.arena.wait_until_visible(good.txn_id, topics=[stage.small])
        assert 0 < coordinator.coordinator.counts.rebuild_count <= 5
        raw.commit(left)
        stage.arena.wait_until_visible(left.txn_id, topics=[stage.small])

    assert "too-old" == summary.reason


@pytest.mark.fault("consumer: a dead letter is refused for another reason than its size")
@pytest.mark.promise("P9")
@pytest.mark.nightly  # contract/test_refused_dead_letters.py has the same with a topic that is gone
def test_a_dead_letter_that_may_not_be_written_or_read_waits_and_all_else_goes_on(
    guarded: TlsBroker, user: User
) -> None:
    stage = make_stage(guarded)
    letters, requests = dead_letter_topic(stage.group, stage.small), replay_topic(stage.group, stage.small)
    acls = [right.acl for right in stage.rights("consumer", user)]
    guarded.allow([acl for acl in acls if acl.name != letters])
    handled: list[bytes | None] = []
    consumer = OrderedConsumer(
        group=stage.group,
        topics=[stage.small],
        start_at="earliest",
        session_timeout=timedelta(seconds=3),
        **stage.settings(user),
    )

    @consumer.handler
    def handle(message: ReceivedMessage, _context: Context) -> Reject | None:
        handled.append(message.value)
        return Reject("as planned") if message.value == b"bad" else None

    with consumer:
        writer = RecordWriter(guarded.open_servers)
        writer.write([Record(stage.small, b"bad", b"bad")])
        wait_until(lambda: consumer.stats().replaced_count, within=60, what="a try to write")
        writer.write([Record(requests, encode_replay(ReplayRecord(ReplayKind.REPLAY, "r", 0)), b"k")])
        for n in range(3):
            writer.write([Record(stage.small, b"%d" % n, b"good")])
            wait_until(partial(handled.count, b"%d" % n), within=60, what="another key")
        assert not count(guarded.open_servers, letters)
        guarded.allow(acls)
        wait_until(lambda: count(guarded.open_servers, letters), within=120, what="the dead letter")
        wait_until(lambda: count(guarded.open_servers, requests) == 2, within=120, what="the answer")

    assert [b"bad", b"0", b"1", b"2"] == handled[:4]
