"""The world of threads: who waits is woken, the clock can be moved, faults are met one at a time."""

import threading
from collections.abc import Callable

import pytest

from txlayer.adapters.memory import ClientCrashedError, Fault, NoAnswerError, RefusedError, ThreadWorld

PATIENCE_S = 10.0


@pytest.fixture
def world() -> ThreadWorld:
    return ThreadWorld(seed=1)


def ask(world: ThreadWorld, answer: Callable[[], int], *, client: str = "c") -> int:
    return world.exchange(client, "Fetch", answer)


def test_who_waits_is_woken_by_a_change_of_another_thread(world: ThreadWorld) -> None:
    changed: list[int] = []
    other = threading.Thread(target=lambda: world.change(lambda: changed.append(1)))

    other.start()

    assert world.wait(lambda: bool(changed), timeout_s=PATIENCE_S)
    other.join()


def test_a_wait_in_vain_ends_after_its_time(world: ThreadWorld) -> None:
    started = world.monotonic()

    assert not world.wait(lambda: False, timeout_s=0.05)

    assert 0.05 <= world.monotonic() - started


@pytest.mark.fault("clock: a coordinator's clock is wrong or jumps back")
def test_the_brokers_clock_can_be_moved_and_the_clients_cannot(world: ThreadWorld) -> None:
    before_ms, before_s = world.now_ms(), world.monotonic()

    world.advance(ms=3_600_000)

    assert before_ms + 3_600_000 <= world.now_ms()
    assert 3_600 > world.monotonic() - before_s


def test_no_two_requests_overlap(world: ThreadWorld) -> None:
    inside: list[int] = []
    deepest: list[int] = []

    def act() -> int:
        inside.append(1)
        deepest.append(len(inside))
        inside.pop()
        return 0

    threads = [threading.Thread(target=lambda: [ask(world, act) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert [1] * 800 == deepest


@pytest.mark.parametrize(
    ("fault", "done_count", "is_answered"),
    [
        (Fault.LOSE_REQUEST, 0, False),
        (Fault.LOSE_ANSWER, 1, False),
        (Fault.REPEAT, 2, True),
        (Fault.KEEP, 0, False),
        (Fault.ECHO, 1, False),
        (Fault.DELAY, 1, True),
    ],
)
def test_a_fault_does_what_it_says_as_often_as_it_says(
    world: ThreadWorld, fault: Fault, done_count: int, is_answered: bool
) -> None:
    done: list[int] = []

    def act() -> int:
        done.append(1)
        return len(done)

    world.faults.plan(fault, "Fetch")
    if is_answered:
        ask(world, act)
    else:
        with pytest.raises(NoAnswerError):
            ask(world, act)
    assert done_count == len(done)

    assert done_count + 1 == ask(world, act)
    late_count = world.faults.release()
    assert (fault in (Fault.KEEP, Fault.ECHO)) == late_count
    assert done_count + 1 + late_count == len(done)
    assert 1 == world.faults.seen[fault, "Fetch"]


def test_a_refusal_is_answered_and_not_done(world: ThreadWorld) -> None:
    done: list[int] = []
    world.faults.refuse("Fetch", "NOT_COORDINATOR")

    with pytest.raises(RefusedError, match="NOT_COORDINATOR"):
        world.exchange("c", "Fetch", lambda: done.append(1))
    assert [] == done


def test_a_code_that_nobody_knows_is_refused_when_it_is_planned(world: ThreadWorld) -> None:
    with pytest.raises(KeyError):
        world.faults.refuse("Fetch", "NO_SUCH_CODE")


def test_a_late_request_that_is_refused_disturbs_nobody(world: ThreadWorld) -> None:
    def refuse() -> int:
        raise NoAnswerError("nobody is there")

    world.faults.plan(Fault.KEEP, "Fetch")
    with pytest.raises(NoAnswerError):
        ask(world, refuse)

    assert 1 == world.faults.release()


def test_a_client_that_is_cut_off_comes_back_and_one_that_crashed_does_not(world: ThreadWorld) -> None:
    world.faults.cut_off("one")
    world.faults.crash("two")
    assert [False, False, True] == [world.is_running(c) for c in ("one", "two", "three")]
    with pytest.raises(NoAnswerError):
        ask(world, lambda: 1, client="one")

    world.faults.reconnect("one")
    world.faults.reconnect("two")

    assert 1 == ask(world, lambda: 1, client="one")
    with pytest.raises(ClientCrashedError):
        ask(world, lambda: 1, client="two")


def test_forgotten_plans_do_not_happen(world: ThreadWorld) -> None:
    world.faults.plan(Fault.LOSE_REQUEST, times=1 << 30)
    with pytest.raises(NoAnswerError):
        ask(world, lambda: 1)

    world.faults.forget()

    assert 1 == ask(world, lambda: 1)
