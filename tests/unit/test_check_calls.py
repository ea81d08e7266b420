"""Calls of a check handler, on threads and as tasks: side by side, given up, replaced, ended."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.waiting import wait_until
from txlayer.producer import check_handlers
from txlayer.producer.check_handlers import (
    Call,
    CallOutcome,
    CheckRequest,
    ExecutorCallRunner,
    LoopCallRunner,
    ThreadCallRunner,
)

PATIENCE_S = 10.0


def call_of(name: str, *, stale_at: float = 100.0) -> Call:
    return Call([CheckRequest(name, "0000000a", "g", 0, 1, ())], stale_at=stale_at)


class Application:
    """A handler whose calls wait until the test lets them go, who calls it, and how the calls ended."""

    def __init__(self) -> None:
        self.outcomes: deque[CallOutcome] = deque()
        self.runners: list[ThreadCallRunner] = []
        self.begun: list[str] = []
        self.may_end: dict[str, threading.Event] = {}

    def hold(self, *names: str) -> None:
        self.may_end.update({name: threading.Event() for name in names})

    def answer(self, requests: Sequence[CheckRequest]) -> Any:
        name = requests[0].txn_id
        self.begun.append(name)
        if name in self.may_end:
            self.may_end[name].wait(PATIENCE_S)
        if name.startswith("bad"):
            raise SystemExit(name)
        return [name]

    def threads(self, count_max: int = 2, clock: Callable[[], float] = lambda: 1.0) -> ThreadCallRunner:
        """Calls on threads of ours."""
        done = self.outcomes.append
        made = ThreadCallRunner(self.answer, call_count_max=count_max, done=done, name="check", clock=clock)
        self.runners.append(made)
        return made

    def on(self, executor: Executor, clock: Callable[[], float] = lambda: 1.0) -> ExecutorCallRunner:
        """Calls on an executor of the user's."""
        return ExecutorCallRunner(self.answer, executor=executor, done=self.outcomes.append, clock=clock)

    def said(self) -> list[object]:
        return [outcome.said for outcome in self.outcomes]

    def let_go(self) -> None:
        for event in self.may_end.values():
            event.set()


@pytest.fixture
def app() -> Iterator[Application]:
    made = Application()
    yield made
    made.let_go()
    for runner in made.runners:
        runner.close(PATIENCE_S)


def test_a_slow_call_does_not_hold_up_the_others(app: Application) -> None:
    app.hold("slow")
    calls = app.threads()
    for name in ("slow", "a", "b", "c"):
        calls.begin(call_of(name))

    wait_until(lambda: len(app.outcomes) == 3, within=PATIENCE_S, what="the three others")

    assert [["a"], ["b"], ["c"]] == app.said()


def test_no_more_calls_are_made_at_a_time_than_the_limit_says(app: Application) -> None:
    app.hold("a", "b")
    calls = app.threads(2)
    for name in ("a", "b", "c"):
        calls.begin(call_of(name))
    wait_until(lambda: len(app.begun) == 2, within=PATIENCE_S, what="two calls")

    app.may_end["a"].set()
    wait_until(lambda: len(app.outcomes) == 2, within=PATIENCE_S, what="the first and the third")

    assert {"a", "b", "c"} == set(app.begun)


def test_calls_that_hang_are_replaced_and_what_they_say_later_is_told_as_late(app: Application) -> None:
    app.hold("h1", "h2")
    calls = app.threads(2)
    hanging = [call_of("h1"), call_of("h2")]
    for call in hanging:
        calls.begin(call)
    wait_until(lambda: len(app.begun) == 2, within=PATIENCE_S, what="both hang")

    assert [True, True] == [calls.give_up(call) for call in hanging]
    calls.begin(call_of("a"))
    wait_until(lambda: len(app.outcomes) == 1, within=PATIENCE_S, what="the call behind them")
    app.let_go()
    wait_until(lambda: len(app.outcomes) == 3, within=PATIENCE_S, what="what came late")

    assert ["a"] == app.said()[0]
    assert all(call.is_given_up for call in hanging)


def test_who_hangs_too_often_is_not_replaced_for_ever(app: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_handlers, "LOST_COUNT_MAX", 1)
    app.hold("h1", "h2", "h3")
    calls = app.threads(1)
    for count, name in enumerate(("h1", "h2"), start=1):
        call = call_of(name)
        calls.begin(call)
        wait_until(lambda n=count: len(app.begun) == n, within=PATIENCE_S, what=name)  # type: ignore[misc]  # bound now
        assert calls.give_up(call)
    calls.begin(call_of("a"))
    able = [calls.is_able]

    app.may_end["h1"].set()
    app.may_end["h2"].set()
    wait_until(
        lambda: len(app.outcomes) == 3, within=PATIENCE_S, what="both came back, and the call that waited was made"
    )
    able.append(calls.is_able)
    calls.begin(call_of("b"))

    wait_until(lambda: len(app.outcomes) == 4, within=PATIENCE_S, what="the next call")
    assert [False, True] == able


def test_behind_a_thread_that_hangs_and_cannot_be_replaced_just_then_no_call_waits_for_ever(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.hold("h")
    calls, hanging = app.threads(1), call_of("h")
    calls.begin(hanging)
    wait_until(lambda: app.begun, within=PATIENCE_S, what="a call that hangs")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert calls.give_up(hanging)
        calls.begin(call_of("a"))
        stale = [outcome.is_stale for outcome in app.outcomes]
    calls.begin(call_of("b"))
    wait_until(lambda: len(app.outcomes) == 2, within=PATIENCE_S, what="the call behind it")

    assert [True] == stale
    assert ["b"] == app.outcomes[1].said


@pytest.mark.fault("check handler: the machine cannot start a thread for it")
@pytest.mark.promise("P7")
def test_a_call_that_waits_behind_one_that_hangs_is_dropped_if_no_thread_can_be_started(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction is asked about again, and no question of another one has to come before."""
    app.hold("h")
    calls, hanging = app.threads(1), call_of("h")
    calls.begin(hanging)
    calls.begin(call_of("a"))
    wait_until(lambda: app.begun, within=PATIENCE_S, what="a call that hangs")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert calls.give_up(hanging)

    assert [("a", True)] == [(o.call.requests[0].txn_id, o.is_stale) for o in app.outcomes]


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_call_that_has_ended_cannot_be_given_up(app: Application) -> None:
    calls = app.threads()
    call = call_of("a")
    calls.begin(call)
    wait_until(lambda: app.outcomes, within=PATIENCE_S, what="the outcome")

    assert not calls.give_up(call)


def test_whatever_a_handler_raises_its_thread_goes_on(app: Application) -> None:
    calls = app.threads(1)
    calls.begin(call_of("bad"))
    calls.begin(call_of("a"))
    wait_until(lambda: len(app.outcomes) == 2, within=PATIENCE_S, what="both")

    assert SystemExit is type(app.outcomes[0].error)
    assert ["a"] == app.outcomes[1].said


def test_a_call_whose_turn_comes_too_late_is_not_made(app: Application) -> None:
    calls = app.threads(1, clock=lambda: 5.0)
    calls.begin(call_of("old", stale_at=4.9))
    wait_until(lambda: app.outcomes, within=PATIENCE_S, what="the outcome")

    assert app.outcomes[0].is_stale
    assert [] == app.begun


# --- tasks ------------------------------------------------------------------------------------------------------------


class Tasks:
    """A coroutine handler, and `LoopCallRunner` on the running loop."""

    def __init__(self, *, count_max: int = 2, clock: Callable[[], float] = lambda: 1.0) -> None:
        self.outcomes: list[CallOutcome] = []
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.calls = LoopCallRunner(
            self.answer,
            call_count_max=count_max,
            done=self.outcomes.append,
            loop=asyncio.get_running_loop(),
            clock=clock,
        )

    async def answer(self, requests: Sequence[CheckRequest]) -> list[str]:
        name = requests[0].txn_id
        self.begun.append(name)
        while name in self.gates:
            try:
                await self.gates.pop(name).wait()
            except asyncio.CancelledError:
                if not name.startswith("stubborn"):
                    raise
                await asyncio.sleep(PATIENCE_S)
        return [name]

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def test_tasks_run_side_by_side_up_to_the_limit() -> None:
    async def run() -> None:
        tasks = Tasks()
        tasks.gates = {"a": asyncio.Event(), "b": asyncio.Event()}
        gate = tasks.gates["a"]
        for name in ("a", "b", "c"):
            tasks.calls.begin(call_of(name))
        await tasks.settle()
        assert ["a", "b"] == tasks.begun

        gate.set()
        await tasks.settle()
        assert [["a"], ["c"]] == [outcome.said for outcome in tasks.outcomes]
        tasks.calls.close(0)
        await tasks.settle()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["slow", "stubborn"])
def test_a_task_that_is_given_up_is_cancelled_and_gives_its_place_to_another(name: str) -> None:
    async def run() -> None:
        tasks = Tasks(count_max=1)
        tasks.gates = {name: asyncio.Event()}
        slow = call_of(name)
        tasks.calls.begin(slow)
        tasks.calls.begin(call_of("a"))
        await tasks.settle()
        assert [name] == tasks.begun

        assert tasks.calls.give_up(slow)
        await tasks.settle()
        assert ["a"] in [outcome.said for outcome in tasks.outcomes]
        assert slow.task is not None
        slow.task.cancel()
        await tasks.settle()

    asyncio.run(run())


def test_a_task_whose_turn_comes_too_late_is_not_made() -> None:
    async def run() -> None:
        tasks = Tasks(clock=lambda: 5.0)
        tasks.calls.begin(call_of("old", stale_at=4.9))
        await tasks.settle()
        assert [True] == [outcome.is_stale for outcome in tasks.outcomes]
        assert [] == tasks.begun

    asyncio.run(run())


def test_a_closed_loop_answers_nothing_and_breaks_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    outcomes: list[CallOutcome] = []
    calls = LoopCallRunner(list, call_count_max=1, done=outcomes.append, loop=loop, clock=lambda: 1.0)

    assert not calls.is_able
    calls.begin(call_of("a"))
    calls.give_up(call_of("b"))
    calls.close(0)

    assert [True] == [outcome.is_stale for outcome in outcomes]


# --- on an executor of the user's -------------------------------------------------------------------------------------


def test_calls_run_on_the_users_executor_which_stays_open(app: Application) -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as mine:
        calls = app.on(mine)
        for name in ("a", "bad"):
            calls.begin(call_of(name))
        calls.begin(call_of("old", stale_at=0.5))
        wait_until(lambda: len(app.outcomes) == 3, within=PATIENCE_S, what="all calls")
        calls.close(0.0)
        assert 7 == mine.submit(lambda: 7).result()

    assert [["a"], None, None] == app.said()
    assert [None, SystemExit, None] == [type(each.error) if each.error else None for each in app.outcomes]
    assert [False, False, True] == [each.is_stale for each in app.outcomes]
    assert ["a", "bad"] == app.begun


def test_a_call_that_hangs_on_an_executor_is_given_up_and_too_many_stop_it(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_handlers, "LOST_COUNT_MAX", 0)
    app.hold("h")
    call = call_of("h")
    with ThreadPoolExecutor(1) as mine:
        calls = app.on(mine)
        calls.begin(call)
        wait_until(lambda: app.begun, within=PATIENCE_S, what="it hangs")

        able = [calls.is_able]
        assert calls.give_up(call)
        able.append(calls.is_able)
        app.let_go()
        wait_until(lambda: app.outcomes, within=PATIENCE_S, what="what came late")

    assert [True, False, True] == [*able, calls.is_able]
    assert not calls.give_up(call)
    assert call.is_given_up


@pytest.mark.parametrize("has_begun", [False, True])
def test_calls_for_an_executor_that_is_shut_down_are_stale(app: Application, *, has_begun: bool) -> None:
    app.hold("h")
    mine = ThreadPoolExecutor(1)
    calls = app.on(mine)
    if has_begun:
        calls.begin(call_of("h"))
        calls.begin(call_of("a"))
    mine.shutdown(wait=False, cancel_futures=True)
    if not has_begun:
        calls.begin(call_of("a"))

    wait_until(lambda: app.outcomes, within=PATIENCE_S, what="it is stale")

    assert app.outcomes[0].is_stale
    assert not calls.is_able


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), queue.Full()])
def test_an_executor_that_refuses_a_call_is_tried_again_after_a_while(
    app: Application, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    class Refusing(ThreadPoolExecutor):
        """It refuses as long as it has a reason."""

        reason: Exception | None = error

        def submit(self, *given: Any) -> Future[Any]:  # type: ignore[override]  # as few as the test needs
            if self.reason is not None:
                raise self.reason
            return super().submit(*given)

    now = [1.0]
    with Refusing(1) as mine:
        calls = app.on(mine, lambda: now[0])
        for name in "aa":
            calls.begin(call_of(name))
        able = []
        for at in (1.0, 32.0, 33.0, 63.0):
            now[0] = at
            mine.reason = error if at < 33 else None
            able.append(calls.is_able)
        calls.begin(call_of("b", stale_at=99.0))
        wait_until(lambda: len(app.outcomes) == 3, within=PATIENCE_S, what="all calls")

    assert [False, False, False, True] == able
    assert [True, True, False] == [each.is_stale for each in app.outcomes]
    assert ["executor.refused"] == [record.getMessage() for record in caplog.records]


def test_a_call_that_an_executor_cannot_make_is_answered_with_its_error(app: Application) -> None:
    class Processes(ThreadPoolExecutor):
        """It pickles what it runs."""

        def submit(self, *_given: Any) -> Future[Any]:  # type: ignore[override]  # as few as the test needs
            future = Future[Any]()
            future.set_exception(TypeError("cannot pickle '_thread.lock' object"))
            return future

    calls = app.on(Processes(1))
    calls.begin(call_of("a"))

    assert [TypeError] == [type(each.error) for each in app.outcomes]
    assert calls.is_able


def test_an_executor_that_serves_no_call_for_long_stops_it_until_it_does(app: Application) -> None:
    now = [1.0]
    app.hold("h")
    with ThreadPoolExecutor(1) as mine:
        calls = app.on(mine, lambda: now[0])
        calls.begin(call_of("h"))
        wait_until(lambda: app.begun, within=PATIENCE_S, what="it hangs")
        calls.begin(call_of("a", stale_at=31.0))
        able = []
        for at in (31.0, 62.0):
            now[0] = at
            able.append(calls.is_able)
        app.let_go()
        wait_until(lambda: len(app.outcomes) == 2, within=PATIENCE_S, what="both calls")

    assert [True, False, True] == [*able, calls.is_able]
    assert app.outcomes[1].is_stale
