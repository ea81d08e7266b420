"""`txlayer top` shows on a terminal what the overview of the console shows, and the loop keeps it current."""

import json
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from tests.support.core_records import txn_key
from tests.support.onlooking import Onlooker
from tests.support.still_coordinator import StillCoordinator
from txlayer.cli import top
from txlayer.core.progress import Attempts
from txlayer.errors import BrokerUnavailableError
from txlayer.operate.dead_letters import ConsumedTopic
from txlayer.operate.live import LiveView, Minute, rates_of
from txlayer.operate.looks import Look, Looks
from txlayer.operate.overall import overall_json
from txlayer.operate.queues import QueueNow, Queues, consumption_json


class Screen:
    """A live view of a still world, and what is drawn of it."""

    def __init__(self) -> None:
        self.stage = StillCoordinator()
        self.onlooker = Onlooker(self.stage)
        self.consumption: Any = {"consumers": None, "consumers_ms": None, "consumers_problem": None}

    def body(self, view: LiveView | None = None) -> Any:
        view = view or self.onlooker.view
        body = overall_json("shop", view.state, view.rows.counts(), now_ms=self.stage.world.now_ms())
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
