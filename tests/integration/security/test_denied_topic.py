"""A real topic that the coordinator's user may describe and not write."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.raw import RawWriter
from tests.support.role_acts import make_stage, running
from tests.support.tls_broker import TlsBroker, User
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import TopicLimits
from txlayer.config import CoordinatorConfig
from txlayer.core.acls import Operation

pytestmark = pytest.mark.kafka


@pytest.mark.fault("rights: the coordinator may not write to a topic")
@pytest.mark.promise("P7")
@pytest.mark.promise("P11")
@pytest.mark.parametrize("tells_rights", [True, False], ids=["told", "untold"])
def test_a_topic_that_may_be_described_and_not_written_is_held_and_the_others_go_on(
    guarded: TlsBroker, user: User, monkeypatch: pytest.MonkeyPatch, *, tells_rights: bool
) -> None:
    if not tells_rights:  # as an authorizer that does not list operations
        look = KafkaAdmin.topic_limits

        def described(self: KafkaAdmin, topic: str) -> TopicLimits | None:
            limits = look(self, topic)
            return limits and limits._replace(is_writable=True)

        monkeypatch.setattr(KafkaAdmin, "topic_limits", described)
    stage = make_stage(guarded)
    sealed = stage.topics[0]
    acls = [right.acl for right in stage.rights("coordinator", user)]
    guarded.allow(
        [
            replace(acl, operation=Operation.DESCRIBE)
            if (acl.name, acl.operation) == (sealed, Operation.WRITE)
            else acl
            for acl in acls
        ]
    )
    raw = RawWriter(stage.arena)
    # One topic that may be written, then the one that may not.
    held = raw.prepare((stage.small, b"k", b"v"), (sealed, b"k", b"v"))
    good = raw.prepare((stage.small, b"k", b"v"), key=raw.key_in(held.partition))
    config = CoordinatorConfig(
        session_timeout=timedelta(seconds=3), hold_after=timedelta(seconds=1), **stage.settings(user)
    )

    # Looks after 1, 2, 4 and 8 s: each costs a try or two where the broker does not tell the right.
    watched_s = 8 if tells_rights else 20
    with running(config) as coordinator:
        began = time.monotonic()
        raw.commit(held)
        raw.commit(good)
        stage.arena.wait_until_visible(good.txn_id, topics=[stage.small])
        summary = stage.arena.wait_for_doubt(held.key, state="held")
        wait_until(lambda: time.monotonic() - began > watched_s, within=30, what="some looks")
        rebuilds = coordinator.coordinator.measures.rebuild_count
        guarded.allow(acls)
        stage.arena.wait_until_visible(held.txn_id, topics=[sealed], within=60)

    assert "topic-denied" == summary.reason
    assert rebuilds == 0 if tells_rights else 0 < rebuilds <= 12


@pytest.mark.fault("rights: the coordinator may not write op, or op takes nothing")
@pytest.mark.promise("P7")
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
        assert 0 < coordinator.coordinator.measures.rebuild_count <= 5
        raw.commit(left)
        stage.arena.wait_until_visible(left.txn_id, topics=[stage.small])

    assert "too-old" == summary.reason
