"""Keys that are parked, and whose dead letters retention has removed: no request can release them any more (P9, P11). Memory."""

from collections.abc import Iterator
from typing import cast

import pytest

from tests.support.consumers import PATIENCE_S, Stage
from tests.support.lab_memory import MemoryLab
from tests.support.waiting import wait_until
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.retry import AfterExhausted, RetryPolicy

PARKING = RetryPolicy(attempt_count_max=1, after_exhausted=AfterExhausted.PARK)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(MemoryLab())
    yield made
    made.close()


@pytest.mark.fault("consumer: retention removes the dead letters of parked keys while no more keys can be parked")
@pytest.mark.promise("P9")
def test_keys_whose_dead_letters_are_gone_hold_up_no_partition(stage: Stage) -> None:
    def act(message: ReceivedMessage, _context: Context) -> None:
        if message.value == b"bad":
            raise ValueError

    stage.write(b"bad", key=b"a")
    stage.write(b"bad", key=b"b")
    with stage.consumer(act, retry=PARKING, parked_keys_max=2) as consumer:
        stage.wait_stored(2)
        stage.write(b"bad", key=b"c")
        wait_until(
            lambda: consumer.stats().topics[stage.topic].paused_partitions, within=PATIENCE_S, what="a full partition"
        )
    cast("MemoryLab", stage.lab).delete_records(stage.letters, before=1)

    with stage.consumer(act, retry=PARKING, parked_keys_max=2):
        stage.wait_for_letters([b"bad", b"bad"], within=10)
        stage.write(b"good", key=b"a")
        stage.write(b"good", key=b"b")
        stage.wait_stored(5)

    assert [b"bad", b"good"] == stage.journal.values(b"a")
    assert [b"bad"] == stage.journal.values(b"b")
