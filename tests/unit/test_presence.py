"""Who is there to be asked: looked for aside, and again when a look fails, breaks or never ends."""

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, cast

import pytest

from txlayer.config import SystemTopics
from txlayer.coordinator.targets import BELIEVE_S, GIVE_UP_S, LOOK_S, GroupPresence
from txlayer.errors import BrokerUnavailableError
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
