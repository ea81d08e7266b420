"""The desk of a consumer whose program takes messages itself, when the time of what lies there ends."""

from __future__ import annotations

import time

import pytest

from txlayer.consumer.context import Context, Lease, ReceivedMessage
from txlayer.consumer.process_pool import SentRecord
from txlayer.consumer.pull import MARGIN_S, Desk
from txlayer.core.retry import NotBegun


@pytest.mark.promise("P9")
@pytest.mark.parametrize("is_lost", [False, True])
def test_what_nobody_took_before_the_end_of_its_lease_had_no_attempt_and_is_not_handed_out(is_lost: bool) -> None:
    desk, lease = Desk(), Lease("g", "orders", 0, token=1)
    lease.valid_until = time.monotonic() + MARGIN_S  # it was not renewed for long
    message = ReceivedMessage(SentRecord(("orders", 0, 0), None, b"", None, (0, 0)))

    result = desk.hand_over(message, Context(message, 1, time.monotonic() + 300, lease))
    if is_lost:
        lease.lost.set()

    assert NotBegun() == result
    assert desk.take(0, has_ended=bool) is None
