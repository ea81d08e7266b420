"""An operator ends the lease of one queue; the consumer claims it again, and its other queues do not notice."""

from datetime import timedelta
from typing import Any

import pytest

from tests.contract.conftest import IN_MEMORY
from tests.support.consumers import MakeStage
from tests.support.waiting import wait_until
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.leases import LeaseEffect, queue_name
from txlayer.core.retry import HandlerResult, Reject, RetryPolicy
from txlayer.operate.queues import LockAdmin

LEASES: dict[str, Any] = {"lease_renewal": timedelta(seconds=1), "lease_expiry": timedelta(seconds=10)}


@pytest.mark.promise("P9", "P10")
@IN_MEMORY
def test_a_queue_that_is_taken_over_alone_does_not_fence_the_consumers_own_writer(make_stage: MakeStage) -> None:
    stage = make_stage(partitions=2)

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        return Reject("as planned") if message.key == b"bad" else None

    with stage.consumer(act, retry=RetryPolicy(attempt_count_max=1), **LEASES) as consumer:
        stage.write(b"1", key=b"bad", partition=0)
        stage.wait_stored(1)
        locks = LockAdmin(stage.lab.consumer(namespace=stage.namespace, **LEASES))
        name = queue_name(stage.group, stage.topic, 1)
        (lease,) = [s.lease for s in locks.read() if s.lease.queue == name]
        assert LeaseEffect.RELEASED is locks.release(lease, reason="zoe: ticket 12")
        locks.close()
        wait_until(lambda: consumer.stats().lost_lease_count == 1, within=10, what="it is lost")
        stage.write(b"1", key=b"good", partition=1)
        stage.wait_stored(1, partition=1)
        stage.write(b"2", key=b"bad", partition=0)
        stage.wait_stored(2)
        assert 0 == consumer.stats().rebuild_count
