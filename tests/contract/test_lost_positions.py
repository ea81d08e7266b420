"""Stored offsets that the topics do not have: the coordinator says so, and what to do, and ends."""

from contextlib import closing

import pytest

from tests.contract.clients import TIMEOUT_S
from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from tests.support.whole_stage import Shop
from txlayer.adapters.ports import StoredOffset
from txlayer.adapters.readers import records_of
from txlayer.errors import ConfigError, RetriableError


@pytest.mark.parametrize(
    ("low_water", "half_next", "op_next", "doubt_low", "names"),
    [(3, 500, 0, 0, "half-0"), (0, 0, 300, 0, "op-0"), (0, 0, 0, 70, "doubt-0")],
    ids=["half", "op", "doubt"],
)
def test_positions_behind_the_end_of_a_topic_are_told_with_the_way_out(
    lab: Lab, low_water: int, half_next: int, op_next: int, doubt_low: int, names: str
) -> None:
    shop = Shop(lab, partition_count=1)
    metadata = f"1|txlayer.gone|{half_next}|0|{max(op_next - 5, 0)}:0|{doubt_low}"
    lab.admin().store_offsets(
        shop.topics.coordinator_group,
        {
            (shop.topics.half, 0): StoredOffset(low_water, f"1|txlayer.gone|{low_water}"),
            (shop.topics.op, 0): StoredOffset(op_next, metadata),
        },
    )
    running = shop.coordinator()
    wait_until(lambda: not running.is_alive, within=40, what="the coordinator ends")

    with pytest.raises(ConfigError, match="coordinator reset --to") as raised:
        running.stop()

    assert f"{shop.topics.namespace}.{names} ends at 0" in str(raised.value)


def test_what_was_removed_while_it_was_read_is_told_as_that(lab: Lab) -> None:
    topic = lab.topic()
    lab.write(topic, b"0", b"1", b"2")
    lab.delete_records(topic, before=2)
    connections = lab.coordinator(unique_name("ns"))

    with closing(connections.make_reader("read_committed")) as reader, pytest.raises(RetriableError, match="removed"):
        list(records_of(reader, {(topic, 0): (0, 3)}, patience_s=TIMEOUT_S))
