"""Looks at the cluster that are taken beside what shows them."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.still_coordinator import AtOnce
from txlayer.errors import BrokerUnavailableError
from txlayer.operate.looks import Look, Looks
from txlayer.runtime.environment import Environment


class Later(AtOnce):
    """Keeps what is started until the test runs it."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def start(self, call: Callable[[], Any], *, name: str) -> Any:
        del name
        self.calls.append(call)

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


class World:
    """Looks, a clock that the test moves, and what reading returns."""

    def __init__(self) -> None:
        self.now = 100.0
        self.later = Later()
        self.read_count = 0
        self.takes_s = 0.0
        self.while_reading: Callable[[], None] = lambda: None
        self.looks = Looks(Environment(clock=self.clock, wall_clock=self.clock, background=self.later))

    def clock(self) -> float:
        return self.now

    def read(self) -> int:
        self.read_count += 1
        self.now += self.takes_s
        self.while_reading()
        return self.read_count

    def newest(self) -> Look:
        return self.looks.newest("all", self.read, age_s=10)


def test_an_old_look_is_shown_while_it_is_repeated() -> None:
    world = World()

    before = world.newest()
    world.later.run()
    first = world.newest()
    world.now += 10.1
    old = world.newest()
    world.newest()
    assert 1 == len(world.later.calls)
    world.later.run()

    assert [Look(), Look(100_000, 1), Look(100_000, 1)] == [before, first, old]
    assert Look(110_100, 2) == world.newest()


def test_what_takes_long_to_read_is_read_less_often() -> None:
    world = World()
    world.takes_s = 2.0
    world.newest()
    world.later.run()

    world.now += 37
    world.newest()
    assert not world.later.calls
    world.now += 2
    world.newest()

    assert world.later.calls


def test_what_was_changed_while_it_is_read_is_read_once_more() -> None:
    world = World()

    def change_once() -> None:
        world.while_reading = lambda: None
        world.looks.again("all", world.read)

    world.while_reading = change_once

    world.newest()
    world.later.run()

    assert 2 == world.read_count
    assert 2 == world.newest().result


def test_what_cannot_be_read_again_stays_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.newest()
    world.later.run()
    errors = iter([BrokerUnavailableError("no answer"), ZeroDivisionError("secret")])

    def fail() -> None:
        raise next(errors)

    world.while_reading = fail
    looks = []
    for _ in range(2):
        world.now += 11
        world.newest()
        with caplog.at_level(logging.ERROR):
            world.later.run()
        looks.append(world.newest())

    assert [1, 1] == [look.result for look in looks]
    assert ["no answer", "a defect of txlayer: ZeroDivisionError; its log has the details"] == [
        look.problem for look in looks
    ]
    assert ["look.failed"] == [record.getMessage() for record in caplog.records]
