"""Which groups have members, by a client that may know the cluster as it was once: what is missing is not believed for long."""

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from txlayer.adapters.kafka import admin
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig
from txlayer.errors import RetriableError


class Client:
    """An admin client that answers at once."""

    def __init__(self, *groups: str, errors: tuple[Exception, ...] = ()) -> None:
        self._answer = SimpleNamespace(valid=[SimpleNamespace(group_id=group) for group in groups], errors=list(errors))

    def list_consumer_groups(self, **_limits: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._answer)
        return future

    def poll(self, _timeout: float) -> int:
        return 0


def asked(client: Client, *groups: str) -> tuple[frozenset[str], bool]:
    """What it answers, and whether it is kept."""
    admin = KafkaAdmin(ClientConfig())
    admin._client = cast("Any", client)
    admin._made_at = time.monotonic()
    found = admin.groups_with_members(groups)
    return found, admin._client is client


def test_a_client_that_sees_every_group_is_kept() -> None:
    assert (frozenset({"shop"}), True) == asked(Client("shop", "other"), "shop")


def test_a_client_whose_answer_lacks_a_broker_is_thrown_away() -> None:
    client = Client("shop", errors=(RuntimeError("a broker did not say"),))

    assert (frozenset({"shop"}), False) == asked(client, "shop", "bank")


def test_a_client_that_does_not_see_a_group_is_thrown_away_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (frozenset(), True) == asked(Client(), "shop")

    monkeypatch.setattr(admin, "DOUBTED_AFTER_S", -1.0)

    assert (frozenset(), False) == asked(Client(), "shop")


class Leaderless:
    """An admin client whose broker knows only after some questions who leads a partition."""

    def __init__(self, *refusals: int) -> None:
        self._refusals = list(refusals)

    def list_offsets(self, request: dict[Any, Any], **_limits: Any) -> dict[Any, Future[Any]]:
        future: Future[Any] = Future()
        if self._refusals:
            future.set_exception(KafkaException(KafkaError(self._refusals.pop(0))))
        else:
            future.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(request, future)

    def describe_cluster(self, **_limits: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(None)
        return future

    def poll(self, _timeout: float) -> int:
        return 0


@pytest.mark.parametrize("ask", ["start_offsets", "end_offsets"])
def test_a_partition_whose_leader_just_moved_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    client = Leaderless(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.NOT_LEADER_FOR_PARTITION)
    monkeypatch.setattr(admin, "new_client", lambda *_: client)

    assert {("orders", 0): 7} == getattr(KafkaAdmin(ClientConfig()), ask)([("orders", 0)])


def test_a_leader_that_does_not_come_is_waited_for_as_long_as_any_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Leaderless(*[KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000)
    monkeypatch.setattr(admin, "new_client", lambda *_: client)

    with pytest.raises(RetriableError):
        KafkaAdmin(ClientConfig(), timeout_ms=200).end_offsets([("orders", 0)])
