"""The stand-alone responder: it goes on over failures of its client, and says what it cannot mend."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.producer_stage import PATIENCE_S, ProducerStage, parking, question
from tests.support.waiting import wait_until
from txlayer.config import ResponderConfig
from txlayer.core.messages import COMMIT, ROLLBACK, Resolution
from txlayer.errors import BrokerUnavailableError, FencedError, NotAuthorisedError
from txlayer.producer import standalone
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.questions import ParkedTransaction
from txlayer.producer.responder import OF_STATS, ObservedResponder


class Alone:
    """One that runs in a thread of the test's."""

    def __init__(self, check: Callable[[CheckRequest], Any]) -> None:
        self.logs: list[ProducerStage] = []
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self.next_failure: BrokerUnavailableError | None = None
        self.on_parked: Callable[[ParkedTransaction], Any] | None = None
        self.observed = ObservedResponder(group="g", version="1")
        self._check = check
        self.thread = threading.Thread(target=self._run, daemon=True)

    def log(self, number: int = 0) -> ProducerStage:
        """The log of its `number`-th client, which has joined."""
        wait_until(
            lambda: len(self.logs) > number and bool(self.logs[number].members), within=PATIENCE_S, what="a client"
        )
        return self.logs[number]

    def connect(self, config: Any) -> Any:
        """A log of its own for each client."""
        if self.next_failure is not None:
            failure, self.next_failure = self.next_failure, None
            raise failure
        self.logs.append(ProducerStage())
        return self.logs[-1].connect(config)

    def _run(self) -> None:
        try:
            standalone.run_responder(
                ResponderConfig(),
                group="g",
                should_stop=self.stop.is_set,
                check=self._check,
                on_parked=self.on_parked,
                connect=self.connect,
                observed=self.observed,
            )
        except BaseException as exc:  # noqa: BLE001 - the test looks at it
            self.failure = exc


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Alone]]:
    monkeypatch.setattr(standalone, "RENEW_S", 0.01)
    monkeypatch.setattr(standalone, "LOOK_S", 0.01)
    monkeypatch.setattr("txlayer.producer.pipeline.LOOK_S", 0.01)
    made: list[Alone] = []

    def alone(check: Callable[[CheckRequest], Any], on_parked: Any = None) -> Alone:
        made.append(Alone(check))
        made[-1].on_parked = on_parked
        made[-1].thread.start()
        return made[-1]

    yield alone
    for one in made:
        one.stop.set()
        one.thread.join(PATIENCE_S)
        assert not one.thread.is_alive()


def commit(_: CheckRequest) -> Resolution:
    return COMMIT


def answered(stage: ProducerStage) -> list[Resolution]:
    return [answer.resolution for answer in stage.answers(1)]


def test_it_answers_until_it_is_told_to_stop(begin: Callable[..., Alone]) -> None:
    alone = begin(commit)
    alone.log().ask(question())
    assert [COMMIT] == answered(alone.log())

    alone.stop.set()
    alone.thread.join(PATIENCE_S)

    assert alone.failure is None
    assert alone.log().members[0].is_closed


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_it_hears_of_parked_transactions_and_may_settle_them(begin: Callable[..., Alone], is_coroutine: bool) -> None:
    async def roll_back(_: ParkedTransaction) -> Resolution:
        return ROLLBACK

    alone = begin(commit, on_parked=roll_back if is_coroutine else lambda _: ROLLBACK)
    alone.log().ask(parking("a"))

    assert [ROLLBACK] == answered(alone.log())


def test_a_client_that_failed_for_good_is_replaced_also_behind_an_outage(begin: Callable[..., Alone]) -> None:
    alone = begin(commit)
    first = alone.log()
    alone.next_failure = BrokerUnavailableError("nobody")
    first.writer.fatal = FencedError("fatal")

    alone.log(1).ask(question())

    assert [COMMIT] == answered(alone.log(1))
    assert first.members[0].is_closed


def test_its_figures_are_those_of_the_client_that_works(begin: Callable[..., Alone]) -> None:
    alone = begin(commit)

    def asked() -> list[object]:
        return [s.value for s in alone.observed.samples() if s.family == OF_STATS["asked"]]

    alone.log().ask(question())
    wait_until(lambda: asked() == [1], within=PATIENCE_S, what="one question")
    assert "" == alone.observed.health().waiting
    alone.log().writer.fatal = FencedError("fatal")
    alone.log(1)

    # The counts of a new client begin anew, as those of a new process do.
    wait_until(lambda: asked() == [0], within=PATIENCE_S, what="another client")


def test_no_broker_at_the_start_is_an_error() -> None:
    alone = Alone(commit)
    alone.next_failure = BrokerUnavailableError("nobody")
    alone.thread.start()
    alone.thread.join(PATIENCE_S)

    assert isinstance(alone.failure, BrokerUnavailableError)


def test_a_right_that_is_missing_ends_it(begin: Callable[..., Alone]) -> None:
    alone = begin(commit)
    alone.log().member().fail(NotAuthorisedError("no", resource="txlayer.check.g"))
    alone.thread.join(PATIENCE_S)

    assert isinstance(alone.failure, NotAuthorisedError)


def test_a_coroutine_function_has_a_loop_of_its_own(begin: Callable[..., Alone]) -> None:
    async def check(_: CheckRequest) -> Resolution:
        await asyncio.sleep(0)
        return COMMIT

    alone = begin(check)
    alone.log().ask(question("a"), question("b"))

    assert COMMIT in answered(alone.log())
