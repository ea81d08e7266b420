"""Scheduled messages while coordinators are killed: before their times, and while they are released."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import Broker
from tests.e2e.conftest import Start
from tests.support.arena import make_arena
from tests.support.logs import read_log
from tests.support.producers import made_for
from tests.support.waiting import pause, wait_until
from txlayer import Message

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COUNT = 300


@pytest.mark.fault("coordinator: is killed at any step")
@pytest.mark.promise("P1", "P2", "P3")
def test_kills_lose_double_and_hasten_no_scheduled_message(broker: Broker, start_coordinator: Start) -> None:
    arena = make_arena(broker.bootstrap_servers)
    topic = arena.targets[0]
    first = start_coordinator(arena)
    begin = datetime.now(UTC) + timedelta(seconds=6)
    times = [begin + timedelta(milliseconds=20 * n) for n in range(COUNT)]
    with made_for(arena) as producer:
        futures = [producer.submit(Message(topic, "k", f"{n}", deliver_at=at)) for n, at in enumerate(times)]
        for future in futures:
            future.result()

    first.kill()
    second = start_coordinator(arena)
    wait_until(lambda: read_log(arena.servers, [topic])[topic], within=60, what="the first is visible")
    pause(1)
    second.kill()
    start_coordinator(arena)
    wait_until(lambda: len(read_log(arena.servers, [topic])[topic]) >= COUNT, within=60, what="all are visible")
    arena.wait_until_applied(within=60)

    seen = read_log(arena.servers, [topic])[topic]
    assert {1} == set(Counter(record.value for record in seen).values())
    # All have one key: they come in the order of their times.
    assert list(range(COUNT)) == [int(record.value or b"") for record in seen]
    early = [n for n, record in enumerate(seen) if record.timestamp_ms < int(times[n].timestamp() * 1000) - 1]
    assert [] == early
