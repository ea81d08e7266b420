"""Who is there to be asked: looked for aside, again when a look fails, breaks or never ends, and by a client that may know the cluster as it was once."""

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from txlayer.adapters.kafka import admin
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig, SystemTopics
from txlayer.coordinator.targets import BELIEVE_S, GIVE_UP_S, LOOK_S, GroupPresence
from txlayer.errors import BrokerUnavailableError, RetriableError
from txlayer.runtime.environment import REAL

TOPICS = SystemTopics("ns")


class World:
    """A clock, a group that is there, and looks that end when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.looks: list[Callable[[], Any]] = []
        self.error: Exception | None = None
        self.due = self.there = ["shop"]
        self.presence = GroupPresence(
            cast("Any", self), TOPICS, environment=replace(REAL, clock=lambda: self.now, background=cast("Any", self))
        )

    def start(self, call: Callable[[], Any], *, name: str) -> None:
        assert name
        self.looks.append(call)

    def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
        if self.error is not None:
            raise self.error
        return frozenset(name for name in groups if name in map(TOPICS.check_group, self.there))

    def groups_due(self) -> list[str]:
        return self.due

    def present(self) -> set[str]:
        return set(self.presence.of([cast("Any", self)]))


def test_a_look_is_begun_once_and_believed_for_a_while() -> None:
    world = World()

    assert set() == world.present()
    assert set() == world.present()
    world.looks.pop()()
    assert {"shop"} == world.present()
    assert [] == world.looks
    world.now += BELIEVE_S
    assert set() == world.present()
    assert 1 == len(world.looks)


@pytest.mark.parametrize("error", [BrokerUnavailableError("away", waited_ms=1), RuntimeError("no error of ours")])
def test_a_look_that_fails_is_told_and_followed_by_another(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.error = error
    world.present()

    with caplog.at_level(logging.WARNING, "txlayer.coordinator"):
        world.looks.pop()()

    assert ["groups.unknown"] == [record.getMessage() for record in caplog.records]
    world.error = None
    world.now += LOOK_S
    world.present()
    world.looks.pop()()
    assert {"shop"} == world.present()


def test_a_look_that_never_ends_is_given_up_and_counts_for_nothing_when_it_ends_at_last() -> None:
    world = World()
    world.present()
    world.now += GIVE_UP_S - 1
    world.present()
    assert 1 == len(world.looks)

    world.now += 1
    world.present()
    old, new = world.looks
    new()
    assert {"shop"} == world.present()
    world.now += LOOK_S
    world.present()
    world.error = RuntimeError("late")
    old()

    assert {"shop"} == world.present()
    assert 3 == len(world.looks)


def test_a_late_answer_takes_the_place_of_no_newer_one() -> None:
    world = World()
    world.present()
    world.now += GIVE_UP_S
    world.present()
    old, new = world.looks
    new()

    world.there = []
    old()

    assert {"shop"} == world.present()


def test_a_late_answer_begins_no_look_beside_one_that_is_under_way() -> None:
    world = World()
    world.present()
    world.now += GIVE_UP_S
    world.present()
    world.looks[0]()

    world.now += LOOK_S
    world.present()
    assert 2 == len(world.looks)


def test_an_answer_is_as_old_as_its_question() -> None:
    world = World()
    world.present()
    world.now += BELIEVE_S - 1
    world.looks.pop()()
    assert {"shop"} == world.present()

    world.now += 1
    assert set() == world.present()


def test_while_nobody_is_to_be_asked_nobody_is_looked_for() -> None:
    world = World()
    world.due = []

    assert set() == world.present()
    assert [] == world.looks


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

    def list_topics(self, topic: str, **_limits: Any) -> Any:
        leaders = {p: SimpleNamespace(leader=leader) for p, leader in enumerate((1, -1, 1))}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=leaders)})

    def poll(self, _timeout: float) -> int:
        return 0


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.LEADER_NOT_AVAILABLE])
def test_the_error_of_a_question_names_the_partition_without_a_leader(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(admin, "new_client", lambda *_: Leaderless(code))

    with pytest.raises(BrokerUnavailableError, match="no broker leads orders-1"):
        KafkaAdmin(ClientConfig()).end_offsets([("orders", 0), ("orders", 1), ("orders", 7)])


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
