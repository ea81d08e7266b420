"""What a handler returns is user code, too: it costs its own attempt and no worker (P9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.consumers import Stage
from tests.support.lab_memory import MemoryLab
from tests.support.waiting import wait_until
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.retry import Reject, RetryPolicy


class Lazy(str):
    """A text that is made when it is shown, as translations are."""

    __slots__ = ()

    def __str__(self) -> str:
        raise LookupError("no translation")


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(MemoryLab())
    yield made
    made.close()


@pytest.mark.promise("P9")
def test_a_reason_that_cannot_be_shown_costs_no_worker(stage: Stage) -> None:
    def act(message: ReceivedMessage, _context: Context) -> Any:
        return Reject(Lazy("x")) if message.key == b"bad" else None

    stage.write(b"1", key=b"bad")
    with stage.consumer(act, worker_count=1, retry=RetryPolicy(attempt_count_max=1)):
        stage.journal.wait_for(1)
        stage.write(b"2", key=b"good")
        wait_until(lambda: stage.journal.values(b"good"), within=10, what="the other key")


@pytest.mark.promise("P9")
@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_an_error_that_cannot_be_shown_costs_no_worker(stage: Stage, error: type[BaseException]) -> None:
    class UnkindError(Exception):
        def __str__(self) -> str:
            raise error

    def act(message: ReceivedMessage, _context: Context) -> Any:
        if message.key == b"bad":
            raise UnkindError
        return None

    stage.write(b"1", key=b"bad")
    with stage.consumer(act, worker_count=1, retry=RetryPolicy(attempt_count_max=1)):
        stage.journal.wait_for(1)
        stage.write(b"2", key=b"good")
        wait_until(lambda: stage.journal.values(b"good"), within=10, what="the other key")
