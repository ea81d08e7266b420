"""What fences a Kafka transaction: the member and the generation of a group's metadata, without which nothing does.

The broker takes offsets whose metadata hold neither (tests/contract/test_offsets.py), and then two coordinators forward one
transaction each (docs/explanation/guards.md, "offsets carry the group's generation").
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.support.still_world import StillWorld
from txlayer.adapters.kafka import group
from txlayer.adapters.kafka.group import KafkaGroupReader, parse_member
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.memory.cluster import MemberMetadata
from txlayer.adapters.ports import StoredOffset
from txlayer.config import ClientConfig, CoordinatorConfig
from txlayer.errors import InvariantError, MemberFencedError

PREFIX = b"CGMDv2:"


def never_joined() -> bytes:
    """What the client itself says of a group that it is no member of."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    with closing(Consumer(settings)) as consumer:
        return bytes(consumer.consumer_group_metadata())


NOBODYS: dict[str, Callable[[], bytes]] = {
    "a client that never joined": never_joined,
    "no member": lambda: PREFIX + struct.pack("<i", 4) + b"g\0\0\0",
    "no generation": lambda: PREFIX + struct.pack("<i", -1) + b"g\0member\0\0",
    "cut off": lambda: PREFIX + struct.pack("<i", 4),
    "of another form": lambda: b"CGMDv9:" + struct.pack("<i", 4) + b"g\0member\0\0",
}


class SubscribedConsumer:
    """A client that the group gives a share at once."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata

    def subscribe(self, _topics: list[str], **callbacks: Callable[..., None]) -> None:
        """The share comes."""
        callbacks["on_assign"](self, [])

    def consumer_group_metadata(self) -> bytes:
        """As the test wants it."""
        return self._metadata

    def assign(self, _partitions: list[Any]) -> None:
        """Nothing."""

    def poll(self, _timeout: float) -> None:
        """No record."""


def started(metadata: bytes, monkeypatch: pytest.MonkeyPatch) -> KafkaGroupReader:
    """A reader whose group gave it a share with this metadata."""
    consumer = SubscribedConsumer(metadata)
    monkeypatch.setattr(group, "new_client", lambda *_args, **_named: consumer)
    reader = KafkaGroupReader(ClientConfig(), group="g", session_timeout_ms=6_000)
    reader.start(["orders"])
    return reader


@pytest.mark.promise("P2")
@pytest.mark.parametrize("form", NOBODYS)
def test_a_share_that_nothing_fences_is_never_taken_over(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = started(NOBODYS[form](), monkeypatch)

    assert None is reader.take_assignment()
    with pytest.raises(InvariantError, match="group metadata"):
        reader.read(record_count_max=1, timeout_s=0)


def test_a_share_of_a_member_is_taken_with_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = PREFIX + struct.pack("<i", 4) + b"g\0member\0\0"

    taken = started(metadata, monkeypatch).take_assignment()

    assert taken is not None
    assert (metadata, 4, (4, "member")) == (taken.member, taken.generation, parse_member(metadata))


# --- what breaks without it -------------------------------------------------------------------------------------------


def unchecked(metadata: bytes) -> tuple[int, str]:
    """`parse_member` without its assertion."""
    generation = struct.unpack_from("<i", metadata, len(PREFIX))[0]
    return generation, metadata[len(PREFIX) + 4 :].split(b"\0")[1].decode()


@contextmanager
def owned_group(kafka: MemoryKafka, config: CoordinatorConfig) -> Iterator[None]:
    """The partitions belong to a member that joined after the one of which a test tells."""
    reader = kafka.connect_coordinator(config, client="owner").make_group_reader()
    reader.start(["half"])
    while reader.take_assignment() is None:
        reader.read(record_count_max=1, timeout_s=0.1)
    yield
    reader.close()


def visible_twice(metadata: bytes, monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    """Two coordinators take the same share: the owner forwarded its message, and so does who has this metadata."""
    taken = started(metadata, monkeypatch).take_assignment()
    assert taken is not None
    generation, member_id = unchecked(bytes(taken.member))
    kafka, config = MemoryKafka(StillWorld()), CoordinatorConfig()
    kafka.create_topic("half")
    kafka.create_topic("orders")
    group_name = config.topics.coordinator_group
    kafka.append("orders", b"forwarded by the owner")
    with owned_group(kafka, config):
        writer = kafka.connect_coordinator(config, client="late").make_writer("late", batch_bytes_max=1_000)
        writer.initialise(timeout_s=1)
        writer.begin()
        writer.produce("orders", b"forwarded once more")
        writer.flush(timeout_s=1)
        member = MemberMetadata(group_name, member_id, generation)
        writer.send_offsets({("half", 0): StoredOffset(1, "")}, member, timeout_s=1)
        writer.commit(timeout_s=1)
    return [record.value() for record in kafka.records("orders")]


@pytest.mark.promise("P2")
@pytest.mark.parametrize("form", ["a client that never joined", "no generation"])
def test_without_that_check_two_coordinators_forward_one_transaction(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_members = PREFIX + struct.pack("<i", 4) + b"g\0member\0\0"
    with pytest.raises(MemberFencedError):
        visible_twice(a_members, monkeypatch)

    monkeypatch.setattr(group, "parse_member", unchecked)

    both = [b"forwarded by the owner", b"forwarded once more"]
    metadata = PREFIX + struct.pack("<i", -1) + b"g\0\0\0" if "generation" in form else never_joined()
    assert both == visible_twice(metadata, monkeypatch)
