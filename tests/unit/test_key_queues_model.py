"""Whatever handlers, operators and crashes do: order per key, no end twice, no attempt forgotten, nothing lost."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.queue_world import PARKING, STEPS, QueueWorld
from txlayer.core.key_queue import NullKeys, QueueOrder, QueueSettings
from txlayer.core.retry import RetryPolicy

GO_ON = QueueSettings(policy=RetryPolicy(attempt_count_max=3))
STEP = st.tuples(st.sampled_from(STEPS), st.integers(0, 255))
ALL_SETTINGS = [
    GO_ON,
    PARKING,
    replace(PARKING, order=QueueOrder.PARTITION),
    replace(GO_ON, order=QueueOrder.PARTITION),
    replace(GO_ON, order=QueueOrder.NONE),
    replace(PARKING, null_keys=NullKeys.FREE),
    replace(GO_ON, metadata_bytes_max=540, parked_keys_max=1),
    replace(PARKING, metadata_bytes_max=540, parked_keys_max=1),
]


@pytest.mark.promise("P9")
@given(st.sampled_from(ALL_SETTINGS), st.sampled_from([None, None, 1, 3]), st.lists(STEP, max_size=150))
def test_it_keeps_order_ends_and_attempts_through_anything(
    settings: QueueSettings, records_max: int | None, steps: list[tuple[str, int]]
) -> None:
    live(QueueWorld(settings, records_max=records_max), steps)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("seed", range(60))
def test_it_keeps_them_through_long_histories(seed: int) -> None:
    # What hypothesis draws is short most of the time; parking, replay and restarts need a longer life.
    dice = random.Random(seed)
    settings = ALL_SETTINGS[seed % len(ALL_SETTINGS)]
    steps = [(dice.choice(STEPS), dice.randrange(256)) for _ in range(200)]

    live(QueueWorld(settings, records_max=dice.choice([None, None, 1, 3])), steps)


def live(world: QueueWorld, steps: list[tuple[str, int]]) -> None:
    """Take these steps, then let everything succeed."""
    for name, number in steps:
        getattr(world, name)(number)
    world.settle()
