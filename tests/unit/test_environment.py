"""Background calls of a service while the machine has no room for another thread, and its pause before a rebuild."""

import threading
import weakref
from dataclasses import replace

import pytest

from txlayer.adapters.kafka.client import Deadline
from txlayer.adapters.telemetry import Log
from txlayer.errors import InstanceFencedError, MemberFencedError, RetriableError, TxLayerError
from txlayer.runtime.environment import REAL, SIDE_BY_SIDE_MAX, Threads, keep_for_long, wait_before_rebuild


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


@pytest.mark.slow
@pytest.mark.promise("P11")
def test_what_was_kept_for_long_and_is_given_up_is_freed_with_what_is_kept_next() -> None:
    class Itself:
        def __init__(self) -> None:
            self.itself = self

    kept = Itself()
    keep_for_long()
    found = weakref.ref(kept)
    del kept

    keep_for_long()

    assert found() is None


@pytest.mark.fault("consumer: two processes have one `instance_id`")
def test_a_static_member_that_hears_of_the_other_process_before_a_rebuild_does_not_go_on() -> None:
    # Its client tells it once, and reads nothing any more.
    told: list[TxLayerError] = [InstanceFencedError("another process", group="g"), RetriableError("no answer")]
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def serve(seconds: float) -> bool:
        sleep(seconds)
        if told:
            raise told.pop()
        return False

    with pytest.raises(InstanceFencedError):
        wait_before_rebuild(
            MemberFencedError("its dead letters were refused", group="g"),
            failure_count=1,
            session_timeout_s=6.0,
            serve_group=serve,
            environment=replace(REAL, clock=lambda: now[0], sleep=sleep),
            logger=Log("txlayer.consumer"),
        )
