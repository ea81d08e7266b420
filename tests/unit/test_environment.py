"""Background calls of a service while the machine has no room for another thread."""

import threading

import pytest

from txlayer.adapters.kafka.client import Deadline
from txlayer.errors import RetriableError
from txlayer.runtime.environment import SIDE_BY_SIDE_MAX, Threads


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.fault("coordinator: the machine cannot start a thread")
def test_a_call_in_the_background_is_made_at_once_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert 3 == Threads().start(lambda: 3, name="three").result()


@pytest.mark.fault("coordinator: the machine cannot start a thread")
@pytest.mark.parametrize("is_room", [True, False])
def test_all_parallel_calls_are_made_although_one_fails(*, is_room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_room:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    made: list[int] = []

    def call(number: int) -> None:
        made.append(number)
        if number == 1:
            raise LookupError(number)

    with pytest.raises(LookupError):
        Threads().run_parallel([lambda n=n: call(n) for n in range(SIDE_BY_SIDE_MAX + 2)])  # type: ignore[misc]  # mypy infers no lambda with defaults

    assert list(range(SIDE_BY_SIDE_MAX + 2)) == sorted(made)


@pytest.mark.fault("coordinator: the machine cannot start a thread")
def test_a_call_with_a_deadline_may_be_made_again_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    deadline, made = Deadline("offsets"), list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RetriableError):
            deadline.call(lambda: made.append(1), within_s=1)
    assert [] == made

    deadline.call(lambda: made.append(2), within_s=10)

    assert [2] == made
    deadline.close()
