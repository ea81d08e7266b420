"""Records that the doubt topic refuses: each is kept as its origin, its reason and its size, and nobody waits for it."""

import random
from collections.abc import Iterator
from datetime import timedelta

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]  # its stub forgets them

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import create_topic, unique_name
from tests.support.logs import Headers
from tests.support.raw import GROUP, RawWriter
from tests.support.topic_records import Record, RecordWriter
from tests.support.waiting import wait_until
from txlayer.core import codec
from txlayer.core.messages import NO_OPTIONS, HalfHeader, HalfOptions, OpMessage, ParkReason, Resolution
from txlayer.testing.stage import RunningCoordinator

pytestmark = pytest.mark.kafka

SMALL = 1_048_588
"""Kafka's own limit, and that of half: what zstd shrinks below it may be far larger."""
GARBAGE = random.Random(1).randbytes(2_800_000).translate((b"abcde" * 52)[:256])
"""zstd shrinks it to 0.8 MB, lz4 does not come below 1 MB."""


@pytest.fixture(scope="module")
def arena(broker: Broker) -> Arena:
    """Its doubt topic takes no more than half does, as one that `topics apply` did not make."""
    arena = make_arena(broker.bootstrap_servers, partition_count=1)
    admin = AdminClient({"bootstrap.servers": arena.servers, "log_level": 0})
    entry = ConfigEntry("max.message.bytes", str(SMALL), incremental_operation=AlterConfigOpType.SET)
    doubt = ConfigResource(ResourceType.TOPIC, arena.topics.doubt, incremental_configs=[entry])
    admin.incremental_alter_configs([doubt])[doubt].result(30)
    return arena


@pytest.fixture(scope="module")
def coordinator(arena: Arena) -> Iterator[RunningCoordinator]:
    with arena.coordinator(doubt_after=timedelta(seconds=2), session_timeout=timedelta(seconds=10)) as running:
        yield running


def write_squeezed(arena: Arena, topic: str, value: bytes, *, headers: Headers | None = None) -> int:
    """One record, compressed by zstd; its offset."""
    writer = RecordWriter(arena.servers, record_bytes_max=100_000_000, compression="zstd")
    return writer.write([Record(topic, value, headers=headers)])[0]


def good_one_passes(arena: Arena) -> None:
    raw = RawWriter(arena)
    good = raw.prepare((arena.targets[0], b"k", b"v"))
    raw.commit(good)
    arena.wait_until_visible(good.txn_id)


@pytest.mark.parametrize("role", ["half", "op"])
def test_a_record_kept_aside_that_doubt_refuses_is_kept_as_its_origin_and_size(
    arena: Arena, coordinator: RunningCoordinator, role: str
) -> None:
    topic = getattr(arena.topics, role)
    offset = write_squeezed(arena, topic, GARBAGE)

    good_one_passes(arena)

    name = f"origin/{topic}/0/{offset}" + (":0" if role == "op" else "")
    assert name in arena.doubt().quarantined
    assert b"" == arena.doubt().quarantined[name].value
    assert f"{len(GARBAGE)} bytes" in arena.doubt().why(name).replace(",", "")
    assert coordinator.failure is None


def test_a_large_undecided_transaction_stands_on_doubt_and_is_forwarded_from_half(
    arena: Arena, coordinator: RunningCoordinator
) -> None:
    target = create_topic(arena.servers, unique_name("wide"), config={"max.message.bytes": "10000000"})
    raw = RawWriter(arena)
    key = raw.key_in(0)
    header = codec.encode_half_header(HalfHeader(key, GROUP, target, 0, 1, 5, NO_OPTIONS))
    offset = write_squeezed(arena, arena.topics.half, GARBAGE, headers=[("mine", b"x"), (codec.HALF_HEADER, header)])
    arena.wait_for_doubt(key)
    good_one_passes(arena)

    raw.op(0, codec.encode_ops([codec.encode_op(OpMessage(Resolution.COMMIT, key, GROUP, offset, 5))]))

    (record,) = arena.wait_until_visible(key.partition("/")[0], topics=[target])
    assert GARBAGE == record.value
    assert ("mine", b"x") == record.headers[0]
    assert coordinator.failure is None


def test_what_neither_doubt_nor_half_holds_any_more_is_parked(arena: Arena, coordinator: RunningCoordinator) -> None:
    key = RawWriter(arena).key_in(0)
    header = codec.encode_half_header(HalfHeader(key, GROUP, arena.targets[0], 0, 1, 5, NO_OPTIONS))
    offset = write_squeezed(arena, arena.topics.half, GARBAGE, headers=[(codec.HALF_HEADER, header)])
    arena.wait_for_doubt(key)
    good_one_passes(arena)
    assert coordinator.failure is None
    admin = AdminClient({"bootstrap.servers": arena.servers, "log_level": 0})
    before = TopicPartition(arena.topics.half, 0, offset + 1)
    admin.delete_records([before])[before].result(30)

    line = codec.encode_op(OpMessage(Resolution.COMMIT, key, GROUP, offset, 5))
    RawWriter(arena).op(0, codec.encode_ops([line]))

    summary = arena.wait_for_doubt(key, state="parked-committed")
    assert ParkReason.REFUSED.value == summary.reason
    good_one_passes(arena)


def test_a_transaction_that_names_very_many_long_topics_stops_nobody(
    arena: Arena, coordinator: RunningCoordinator
) -> None:
    raw = RawWriter(arena)
    many = [(f"{n:05}{'x' * 240}", b"k", b"v") for n in range(6_000)]
    key = raw.key_in(0)
    raw.prepare(*many, key=key, options=HalfOptions(immunity_ms=1))
    good_one_passes(arena)

    arena.wait_for_doubt(key)
    good_one_passes(arena)
    assert coordinator.failure is None


def test_a_group_with_a_name_of_a_megabyte_stops_nobody(arena: Arena, coordinator: RunningCoordinator) -> None:
    raw = RawWriter(arena)
    key = raw.key_in(0)
    header = codec.encode_half_header(
        HalfHeader(key, "g" * 900_000, arena.targets[0], 0, 1, 5, HalfOptions(immunity_ms=1))
    )
    offset = raw.half(0, b"v", headers=[(codec.HALF_HEADER, header)])

    good_one_passes(arena)
    wait_until(
        lambda: f"origin/{arena.topics.half}/0/{offset}" in arena.doubt().quarantined, within=20, what="quarantined"
    )
    assert coordinator.failure is None
