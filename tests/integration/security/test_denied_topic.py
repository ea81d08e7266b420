"""A real topic that the coordinator's user may describe and not write."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from tests.support.raw import RawWriter
from tests.support.role_acts import Stage, make_stage, running
from tests.support.tls_broker import TlsBroker, User
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import TopicLimits
from txlayer.config import CoordinatorConfig
from txlayer.core.acls import Operation
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
