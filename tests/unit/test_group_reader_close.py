"""How a member of a group leaves it: nothing may wait in the client's queue when the client is closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from txlayer.adapters.kafka import group
from txlayer.adapters.kafka.group import KafkaGroupReader
from txlayer.config import ClientConfig


class FakeConsumer:
    """A client whose queue holds records and callbacks; it tells what was called, in order."""

    def __init__(self, *, failure: Exception | None = None) -> None:
        self.queue: list[int | Callable[[], None]] = []
        self.calls: list[str] = []
        self._failure = failure

    def consume(self, count: int, timeout: float) -> list[object]:
        """As the client's: callbacks run on the way."""
        assert 0 == timeout
        if self._failure is not None:
            raise self._failure
        found: list[object] = []
        while self.queue and len(found) < count:
            waiting = self.queue.pop(0)
            if callable(waiting):
                waiting()
            else:
                found += [object()] * min(waiting, count)
        return found

    def close(self) -> None:
        """Tell it."""
        self.calls.append(f"close with {len(self.queue)} waiting")


def reader_over(client: FakeConsumer, monkeypatch: pytest.MonkeyPatch) -> KafkaGroupReader:
    monkeypatch.setattr(group, "group_consumer", lambda *_, **__: client)
    config = ClientConfig(bootstrap_servers="127.0.0.1:1")
    return KafkaGroupReader(config, group="g", session_timeout_ms=6_000)


def test_callbacks_that_wait_behind_records_are_called_before_the_client_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeConsumer()
    client.queue += [50_000, lambda: client.calls.append("assigned")]
    reader = reader_over(client, monkeypatch)

    reader.close()

    assert ["assigned", "close with 0 waiting"] == client.calls


def test_a_group_that_cannot_be_read_any_more_is_left_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = KafkaException(KafkaError(KafkaError._FATAL))
    client = FakeConsumer(failure=failure)

    reader_over(client, monkeypatch).close()

    assert ["close with 0 waiting"] == client.calls


def test_leaving_twice_is_leaving_once(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeConsumer()
    reader = reader_over(client, monkeypatch)

    reader.close()
    reader.close()

    assert ["close with 0 waiting"] == client.calls
