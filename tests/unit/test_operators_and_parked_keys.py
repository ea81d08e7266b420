"""Whatever operators replay, drop and edit, beside each other and with what they saw before: the messages of a parked key are handled in order."""

import pytest

from tests.support.operator_world import OperatorWorld


@pytest.mark.promise("P9")
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_no_message_of_a_parked_key_is_handled_before_an_earlier_one(first: int) -> None:
    for seed in range(first, first + 25):
        world = OperatorWorld(seed)
        for _ in range(300):
            world.step()
        world.settle()
