"""Looks at the cluster beside what shows them, and `txlayer top`, which shows on a terminal what the overview of the console shows."""

import json
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from tests.support.core_records import txn_key
from tests.support.onlooking import Onlooker
from tests.support.still_coordinator import AtOnce, StillCoordinator
from txlayer.cli import health as top
from txlayer.core.progress import Attempts
from txlayer.errors import BrokerUnavailableError
from txlayer.operate.dead_letters import ConsumedTopic
from txlayer.operate.live import LiveView, Minute, rates_of
from txlayer.operate.overall import Look, Looks, overall_json
from txlayer.operate.queues import QueueNow, Queues, consumption_json
from txlayer.runtime.environment import Environment


class Screen:
    """A live view of a still world, and what is drawn of it."""

    def __init__(self) -> None:
        self.stage = StillCoordinator()
        self.onlooker = Onlooker(self.stage)
        self.consumption: Any = {"consumers": None, "consumers_ms": None, "consumers_problem": None}

    def body(self, view: LiveView | None = None) -> Any:
        view = view or self.onlooker.view
        now_ms, counts = self.stage.world.now_ms(), view.rows.counts()
        consumed = self.consumption["consumers"] or ()
        body = overall_json("shop", view.state, counts, now_ms=now_ms, consumed=consumed)
        return body | self.consumption

    def drawn(self) -> str:
        console = Console(width=200, color_system=None)
        with console.capture() as caught:
            console.print(top.overview(self.body()))
        return caught.get()


@pytest.fixture
def screen() -> Screen:
    return Screen()


def test_what_is_wrong_comes_first_and_every_number_is_there(screen: Screen) -> None:
    screen.stage.half(txn_key("a"))
    screen.onlooker.look()
    screen.stage.world.advance(ms=60_000)
    screen.onlooker.look()

    text = screen.drawn()
    body = screen.body()

    assert text.index("no coordinator runs") < text.index("1 transaction not settled")
    assert "\\n" not in text
    assert [""] == [
        before.rstrip() for before, line in pairwise(text.splitlines()) if line.startswith("coordinators: ")
    ]
    assert "no responder" in text
    assert ("shop", {"open": 1}, False) == tuple(
        body["groups"][0][name] for name in ("producer_group", "states", "is_answered")
    )
    assert [0, 1] == sorted(row["partition"] for row in body["partitions"])
    assert json.loads(json.dumps(body)) == body


def test_consumers_and_leases_have_a_block_each(screen: Screen) -> None:
    consumed = [
        ConsumedTopic("loyalty", "orders", 2, 1_234, 7),
        ConsumedTopic("mail", "orders", 0, 0, 0),
        ConsumedTopic("secret", "orders", problem="TOPIC_AUTHORIZATION_FAILED"),
    ]
    free = QueueNow("loyalty", "orders", 0, is_paused=True, failing=(Attempts(3, 1_700_000_000),))
    screen.consumption = top.consumed_json(Look(1, consumption_json(consumed, Queues([free]))))

    lines = [line.replace("│", " ").split() for line in screen.drawn().splitlines()]

    assert ["loyalty", "orders", "2", "1,234", "7"] in lines
    assert ["mail", "orders", "none", "0", "0"] in lines
    assert ["secret", "orders", "TOPIC_AUTHORIZATION_FAILED"] in lines
    assert ["loyalty", "orders", "1", "0", "1", "0", "1", "0"] in lines
    assert json.loads(json.dumps(screen.body())) == screen.body()
    said = [remark["sentence"] for remark in screen.body()["remarks"]]
    assert ["1 queue paused: loyalty"] == [sentence for sentence in said if "loyalty" in sentence or "mail" in sentence]


def test_what_consumers_did_last_stays_while_it_cannot_be_read_again(screen: Screen) -> None:
    answers: list[Any] = [[], BrokerUnavailableError("no answer")]

    def read() -> list[Any]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return consumption_json([ConsumedTopic("loyalty", "orders", 2, 0, 0)], Queues())

    looks = Looks()
    looks.read("consumption", read)
    looks.read("consumption", read)
    screen.consumption = top.consumed_json(looks.newest("consumption", read, age_s=60))

    text = screen.drawn()

    assert "not known now: no answer" in text
    assert "loyalty" in text


def test_before_the_logs_are_read_nothing_is_claimed(screen: Screen) -> None:
    text = screen.drawn()

    assert "the logs are being read" in text
    assert "true at no time yet" in text
    assert "the last minute: being counted" in text
    assert "consumers and leases: being read" in text


def test_what_others_wrote_moves_no_cursor(screen: Screen) -> None:
    screen.stage.half(txn_key("a"), group="[red]x\x1b[2J")
    screen.onlooker.look()

    text = screen.drawn()

    assert "[red]x\\x1b[2J" in text
    assert "\x1b" not in text


def test_rates_are_said_when_a_whole_minute_was_counted() -> None:
    minutes = [Minute(50_000, 60, 30, 6, {1024: 29, 4096: 1}), Minute(110_000, 600, 0, 0, {})]

    assert rates_of(minutes, since_ms=55_000, now_ms=112_000) is None
    rates = rates_of(minutes, since_ms=50_000, now_ms=112_000)

    assert rates is not None
    assert [1.0, 0.5, 0.1, 1024, 4096] == list(rates)
    assert "1.0/s prepared, 0.5/s committed, 0.1/s rolled back; half of the commits within 1 s" in top._rates(
        rates._asdict()
    )


def test_a_time_of_which_nothing_is_known_is_none_without_transactions(screen: Screen) -> None:
    screen.onlooker.look()
    screen.stage.world.advance(ms=30_000)
    screen.stage.half(txn_key("a"))
    screen.stage.world.advance(ms=40_000)
    screen.onlooker.look()
    before = screen.body()
    screen.stage.kafka.stop()
    screen.stage.world.advance(ms=300_000)
    screen.onlooker.view.step()

    after = screen.body()

    assert before["rates"]["prepared"] > 0
    assert (before["rates"], before["true_ms"]) == (after["rates"], after["true_ms"])


def test_the_loop_shows_each_interval_and_goes_on_after_a_failure(
    screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []
    steps = iter(range(1_000))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        screen.stage.world.advance(ms=round(seconds * 1000))
        screen.stage.kafka.start()

    screen.stage.half(txn_key("a"))
    screen.onlooker.look()
    screen.stage.kafka.stop()
    begun_ms = screen.stage.world.now_ms()
    top.follow(
        screen.onlooker.view,
        screen.body,
        top.overview,
        interval_s=2.0,
        should_stop=lambda: next(steps) == 999 or screen.stage.world.now_ms() - begun_ms > 20_000,
        wait=wait,
        clock=screen.stage.world.monotonic,
        as_json=True,
    )

    bodies = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert waits
    assert any(body["problem"] for body in bodies)
    assert bodies[-1]["problem"] is None
    assert 2 < len(bodies) < 12


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
        world.looks.forget("all")

    world.while_reading = change_once

    for _ in range(2):
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
