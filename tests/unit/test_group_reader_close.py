"""A member of a group: what of its metadata fences a Kafka transaction, and that nothing waits in the client's queue when it leaves."""

import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from tests.support.still_world import StillWorld
from txlayer.adapters.kafka import client as kafka_client
from txlayer.adapters.kafka.client import KafkaGroupReader, KafkaStoringGroupReader, parse_member
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.memory.cluster import MemberMetadata
from txlayer.adapters.ports import StoredOffset
from txlayer.config import ClientConfig, CoordinatorConfig
from txlayer.errors import InvariantError, MemberFencedError

PREFIX = b"CGMDv2:"
A_MEMBERS = PREFIX + struct.pack("<i", 4) + b"g\0member\0\0"


class FakeConsumer:
    """A client whose queue holds records and callbacks; it tells what was called, in order."""

    def __init__(self, *, failure: Exception | None = None) -> None:
        self.queue: list[int | Callable[[], None]] = []
        self.calls: list[str] = []
        self.late_rounds = 0  # so often is read in vain before the partitions are taken back
        self.metadata = A_MEMBERS
        self._callbacks: dict[str, Callable[..., None]] = {}
        self._rounds_to_revocation: int | None = None
        self._failure = failure

    def consume(self, count: int, timeout: float) -> list[object]:
        """As the client's: callbacks run on the way."""
        if self._failure is not None:
            raise self._failure
        if self._rounds_to_revocation == 0:
            self._rounds_to_revocation = None
            self.queue.append(lambda: self._callbacks["on_revoke"](self, []))
        elif self._rounds_to_revocation is not None:
            assert (0 == timeout) == (self._rounds_to_revocation == self.late_rounds)
            self._rounds_to_revocation -= 1
        found: list[object] = []
        while self.queue and len(found) < count:
            waiting = self.queue.pop(0)
            if callable(waiting):
                waiting()
            else:
                found += [object()] * min(waiting, count)
        return found

    def poll(self, _timeout: float) -> None:
        """No record."""

    def subscribe(self, _topics: list[str], **callbacks: Callable[..., None]) -> None:
        """The group gives a share at once."""
        self._callbacks = callbacks
        callbacks["on_assign"](self, [])

    def consumer_group_metadata(self) -> bytes:
        """As the test wants it."""
        return self.metadata

    def assign(self, _partitions: list[object]) -> None:
        """Nothing."""

    def assignment(self) -> list[object]:
        """Nothing."""
        return []

    def resume(self, _partitions: list[object]) -> None:
        """Nothing."""

    def unassign(self) -> None:
        """Tell it."""
        self.calls.append("unassign")

    def unsubscribe(self) -> None:
        """The share is taken back, by a callback that waits in the queue."""
        self.calls.append("unsubscribe")
        if self._callbacks:
            self._rounds_to_revocation = self.late_rounds

    def close(self) -> None:
        """Tell it."""
        self.calls.append(f"close with {len(self.queue)} waiting")


def reader_over(client: FakeConsumer, monkeypatch: pytest.MonkeyPatch) -> KafkaGroupReader:
    monkeypatch.setattr(kafka_client, "new_client", lambda *_, **__: client)
    config = ClientConfig(bootstrap_servers="127.0.0.1:1")
    return KafkaGroupReader(config, group="g", session_timeout_ms=6_000)


@pytest.mark.fault("consumer: an assignment and a revocation are pending when a member of a group closes")
def test_callbacks_that_wait_behind_records_are_called_before_the_client_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeConsumer()
    client.queue += [50_000, lambda: client.calls.append("assigned")]
    reader = reader_over(client, monkeypatch)

    reader.close()

    assert ["assigned", "unsubscribe", "close with 0 waiting"] == client.calls


def test_a_group_that_cannot_be_read_any_more_is_left_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = KafkaException(KafkaError(KafkaError._FATAL))
    client = FakeConsumer(failure=failure)

    reader_over(client, monkeypatch).close()

    assert ["close with 0 waiting"] == client.calls


@pytest.mark.parametrize("late_rounds", [0, 1, 3])
def test_a_share_is_given_back_once_before_the_client_closes(late_rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeConsumer()
    client.late_rounds = late_rounds
    reader = reader_over(client, monkeypatch)
    reader.start(["orders"])

    reader.close()
    reader.close()

    assert ["unsubscribe", "unassign", "close with 0 waiting"] == client.calls


def test_a_share_that_nobody_takes_back_is_waited_for_in_bounds_and_left_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "_LEAVE_PATIENCE_S", 0.01)
    client = FakeConsumer()
    client.late_rounds = 1 << 40
    reader = reader_over(client, monkeypatch)
    reader.start(["orders"])

    reader.close()
    reader.close()

    assert ["unsubscribe", "close with 0 waiting"] == client.calls


@pytest.mark.fault("consumer: a static member restarts within its session")
def test_a_static_member_gives_its_share_back_and_leaves_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    # The client itself leaves with `unsubscribe`; with nothing but its destructor the group keeps the place.
    clients = [FakeConsumer()]
    monkeypatch.setattr(kafka_client, "new_client", lambda *_, **__: clients.pop())
    told: list[bool] = []
    calls, gone = clients[0].calls, weakref.ref(clients[0])
    reader = KafkaStoringGroupReader(
        ClientConfig(bootstrap_servers="127.0.0.1:1"),
        group="g",
        session_timeout_ms=6_000,
        fetch_wait_ms=10,
        instance_id="one",
    )
    reader.start(["orders"], on_revoke=told.append)

    reader.close()
    reader.close()

    assert [False] == told
    assert [] == calls
    assert gone() is None


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
FORMLESS = ("cut off", "of another form")


def started(metadata: bytes, monkeypatch: pytest.MonkeyPatch) -> KafkaGroupReader:
    """A reader whose group gave it a share with this metadata."""
    client = FakeConsumer()
    client.metadata = metadata
    reader = reader_over(client, monkeypatch)
    reader.start(["orders"])
    return reader


@pytest.mark.fault(
    "consumer: is frozen for longer than its session or its lease, then goes on",
    "coordinator: is frozen for longer than its session, then goes on",
)
@pytest.mark.promise("P2")
@pytest.mark.parametrize("form", NOBODYS)
def test_a_share_that_nothing_fences_is_never_taken_over(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = started(NOBODYS[form](), monkeypatch)

    assert None is reader.take_assignment()
    # A session may end while its assignment waits to be taken: the client joins again, so that ends no process.
    with pytest.raises(InvariantError if form in FORMLESS else MemberFencedError, match="group metadata"):
        reader.read(record_count_max=1, timeout_s=0)


def test_a_share_of_a_member_is_taken_with_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = started(A_MEMBERS, monkeypatch).take_assignment()

    assert taken is not None
    assert (A_MEMBERS, 4, (4, "member")) == (taken.member, taken.generation, parse_member(A_MEMBERS))


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
    with pytest.raises(MemberFencedError):
        visible_twice(A_MEMBERS, monkeypatch)

    monkeypatch.setattr(kafka_client, "parse_member", unchecked)

    both = [b"forwarded by the owner", b"forwarded once more"]
    metadata = PREFIX + struct.pack("<i", -1) + b"g\0\0\0" if "generation" in form else never_joined()
    assert both == visible_twice(metadata, monkeypatch)
