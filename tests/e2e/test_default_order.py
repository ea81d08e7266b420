"""One thread and one key on a real broker: messages arrive in the order in which they were sent (P6)."""

from itertools import pairwise

import pytest

from tests.conftest import Broker
from tests.e2e.conftest import Start
from tests.support.arena import make_arena
from tests.support.producers import made_for
from tests.support.waiting import wait_until
from txlayer.core.messages import Message

pytestmark = [pytest.mark.kafka]

COUNT = 3_000


@pytest.mark.promise("P6")
def test_messages_of_one_thread_and_key_arrive_in_their_order(broker: Broker, start_coordinator: Start) -> None:
    arena = make_arena(broker.bootstrap_servers)
    start_coordinator(arena)
    with made_for(arena) as producer:
        for number in range(COUNT):
            producer.submit(Message(arena.targets[0], b"anna", f"{number:05}".encode()))

    def arrived() -> list[bytes]:
        return [record.value or b"" for record in arena.logs().real]

    wait_until(lambda: len(arrived()) >= COUNT, within=60, what="all messages are visible")
    values = arrived()
    assert COUNT == len(values)
    assert 0 == sum(later < earlier for earlier, later in pairwise(values))
