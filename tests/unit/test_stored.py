"""Offsets and their metadata, as the protocol page says them."""

from typing import Any

import pytest

from tests.support.protocol_page import vectors
from txlayer.adapters.ports import StoredOffset
from txlayer.config import SystemTopics
from txlayer.coordinator.recovery import StoredPositions, decode_stored, encode_stored
from txlayer.core.ledger.batch import Positions
from txlayer.errors import ConfigError

TOPICS = SystemTopics("txlayer")


def stored(pair: list[Any]) -> StoredOffset:
    """An offset of the page."""
    return StoredOffset(*pair)


def test_stored_offsets_are_those_on_the_protocol_page() -> None:
    for vector in vectors("stored"):
        half, op = stored(vector["half"]), stored(vector["op"])
        positions = Positions(**{name: vector[name] for name in Positions._fields})

        encoded = encode_stored(
            positions, writer=vector["writer"], topics=TOPICS, partition=3, time_ms=vector["time_ms"]
        )

        assert {(TOPICS.half, 3): half, (TOPICS.op, 3): op} == encoded
        found = StoredPositions(positions, vector["writer"], vector["time_ms"])
        assert found == decode_stored(half, op, partition=3)


def test_empty_metadata_begin_at_the_two_offsets() -> None:
    begun = decode_stored(StoredOffset(7, ""), StoredOffset(5, ""), partition=0)

    assert (7, 7, 5, 0, 5, 0, 0, 7) == begun.positions
    assert "" == begun.writer


@pytest.mark.parametrize(("half", "op"), [(None, StoredOffset(0, "")), (StoredOffset(0, ""), None), (None, None)])
def test_without_a_stored_offset_the_command_is_named(half: StoredOffset | None, op: StoredOffset | None) -> None:
    with pytest.raises(ConfigError, match="txlayer topics apply"):
        decode_stored(half, op, partition=3)


def test_without_a_time_nobody_knows_it() -> None:
    found = decode_stored(StoredOffset(7, "1|w|6"), StoredOffset(5, "1|w|9|0|5:0|0"), partition=0)

    assert (6, 0) == (found.positions.copies_from, found.time_ms)


def test_without_a_place_for_copies_nothing_before_the_low_water_mark_is_read() -> None:
    found = decode_stored(StoredOffset(7, "1|w"), StoredOffset(5, "1|w|9|0|5:0|0"), partition=0)

    assert 7 == found.positions.copies_from


@pytest.mark.fault("operation: two versions in one group, a wrong setting, or a return to an older version")
@pytest.mark.parametrize(
    "metadata", ["x", "3|w|0|0|0:0|0", "1|w|0|0|0:0", "1|w|a|0|0:0|0", "1|w|0|0|0|0", "1|w|0|0|0:0|0|"]
)
def test_metadata_of_somebody_else_are_refused(metadata: str) -> None:
    with pytest.raises(ConfigError, match="coordinator reset"):
        decode_stored(StoredOffset(0, "1|w"), StoredOffset(0, metadata), partition=3)
