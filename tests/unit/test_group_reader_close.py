"""How a member of a group leaves it: nothing may wait in the client's queue when the client is closed."""

import struct
import weakref
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from txlayer.adapters.kafka import group
from txlayer.adapters.kafka.group import KafkaGroupReader, KafkaStoringGroupReader
from txlayer.config import ClientConfig


class FakeConsumer:
    """A client whose queue holds records and callbacks; it tells what was called, in order."""

    def __init__(self, *, failure: Exception | None = None) -> None:
        self.queue: list[int | Callable[[], None]] = []
        self.calls: list[str] = []
        self.late_rounds = 0  # so often is read in vain before the partitions are taken back
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

    def subscribe(self, _topics: list[str], **callbacks: Callable[..., None]) -> None:
        """The group gives a share at once."""
        self._callbacks = callbacks
        callbacks["on_assign"](self, [])

    def consumer_group_metadata(self) -> bytes:
        """Of generation 1."""
        return b"CGMDv2:" + struct.pack("<i", 1) + b"g\0member\0\0"

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
    monkeypatch.setattr(group, "new_client", lambda *_, **__: client)
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
def test_a_share_is_given_back_before_the_client_closes(late_rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeConsumer()
    client.late_rounds = late_rounds
    reader = reader_over(client, monkeypatch)
    reader.start(["orders"])

    reader.close()

    assert ["unsubscribe", "unassign", "close with 0 waiting"] == client.calls


def test_a_share_that_nobody_takes_back_is_waited_for_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_LEAVE_PATIENCE_S", 0.01)
    client = FakeConsumer()
    client.late_rounds = 1 << 40
    reader = reader_over(client, monkeypatch)
    reader.start(["orders"])

    reader.close()

    assert ["unsubscribe", "close with 0 waiting"] == client.calls


def test_leaving_twice_is_leaving_once(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeConsumer()
    reader = reader_over(client, monkeypatch)

    reader.close()
    reader.close()

    assert ["unsubscribe", "close with 0 waiting"] == client.calls


@pytest.mark.fault("consumer: a static member restarts within its session")
def test_a_static_member_gives_its_share_back_and_leaves_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    # The client itself leaves with `unsubscribe`; with nothing but its destructor the group keeps the place.
    clients = [FakeConsumer()]
    monkeypatch.setattr(group, "new_client", lambda *_, **__: clients.pop())
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
