"""Responders where something goes wrong: in a producer that answers, in the stand-alone one, and in `txlayer responder run`."""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run_command
from tests.support.fake_barrier import FakeBarrier
from tests.support.producer_stage import PATIENCE_S, ProducerStage, commit, parking, question, stats_of
from tests.support.waiting import wait_until
from txlayer.cli import responder
from txlayer.cli.exits import ExitCode
from txlayer.cli.services import load
from txlayer.config import ResponderConfig
from txlayer.core.messages import COMMIT, ROLLBACK, Resolution
from txlayer.errors import (
    BrokerUnavailableError,
    ConfigError,
    FencedError,
    NotAuthorisedError,
    TopicMismatchError,
    TxLayerError,
    UsageError,
)
from txlayer.producer import responder as module
from txlayer.producer import standalone
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.questions import ParkedTransaction
from txlayer.producer.responder import OF_STATS, ObservedResponder

# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [BrokerUnavailableError("gone"), NotAuthorisedError("no"), TxLayerError("x"), ValueError("y")]
)
def test_after_an_error_the_group_is_joined_anew_and_nothing_is_forgotten(
    stage: ProducerStage, error: Exception
) -> None:
    producer = stage.producer(check=commit)
    producer.start()
    first = stage.member()
    stage.ask(question("a"), partition=1)
    stage.answers(1)
    first.fail(error)

    second = stage.member(1)
    stage.ask(question("b"), member=1)
    stage.answers(2)

    assert first.is_closed
    assert 1 == second.positions["txlayer.check", 1]
    wait_until(lambda: stats_of(producer).failure is None, within=PATIENCE_S, what="it reads again")


@pytest.mark.promise("P7")
def test_a_log_handler_that_raises_silences_no_responder(stage: ProducerStage) -> None:
    class FullDisk(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space left on device", record.getMessage())

    logging.getLogger("txlayer").addHandler(FullDisk())
    stage.producer(check=commit).start()
    stage.member().fail(BrokerUnavailableError("gone"))

    stage.member(1)
    stage.ask(question("a"), member=1)
    stage.answers(1)


def test_positions_that_are_gone_are_left_for_the_ends(stage: ProducerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.3)
    stage.producer(check=commit).start()
    first = stage.member()
    stage.ask(question("a"), partition=1)
    stage.answers(1)
    first.fail(ConfigError("out of range", name="stored offset"))
    wait_until(lambda: first.is_closed, within=PATIENCE_S, what="it left")
    stage.ask(question("unheard"), partition=1)

    assert 2 == stage.member(1).positions["txlayer.check", 1]


def test_an_outage_of_any_length_is_survived(stage: ProducerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_MAX_S", 0.02)
    producer = stage.producer(check=commit)
    producer.start()
    stage.failure = BrokerUnavailableError("nobody")
    stage.member().fail(BrokerUnavailableError("gone"))
    wait_until(lambda: len(stage.members) > 5, within=PATIENCE_S, what="five attempts")
    assert isinstance(stats_of(producer).failure, BrokerUnavailableError)

    stage.failure = None
    wait_until(lambda: stats_of(producer).failure is None, within=PATIENCE_S, what="it reads again")
    stage.ask(question())

    stage.answers(1)


def test_what_running_calls_say_is_written_before_the_group_is_joined_anew(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", PATIENCE_S * 6)
    begun, may_end = threading.Event(), threading.Event()

    def check(_: CheckRequest) -> Resolution:
        begun.set()
        may_end.wait(PATIENCE_S)
        return COMMIT

    stage.producer(check=check).start()
    stage.ask(question())
    assert begun.wait(PATIENCE_S)
    stage.members[0].fail(BrokerUnavailableError("gone"))
    wait_until(lambda: stage.members[0].is_closed, within=PATIENCE_S, what="it left")

    may_end.set()

    stage.answers(1)


def test_close_does_not_wait_until_the_group_may_be_joined_anew(
    stage: ProducerStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_S", PATIENCE_S * 6)
    producer = stage.producer(check=commit)
    producer.start()
    stage.member().fail(BrokerUnavailableError("gone"))
    wait_until(lambda: stage.members[0].is_closed, within=PATIENCE_S, what="it left")

    with caplog.at_level(logging.INFO, "txlayer.responder"):
        producer.close(timeout=1.0)

    assert "responder.ended" in [r.getMessage() for r in caplog.records]


def test_a_producer_that_failed_leaves_the_group(
    stage: ProducerStage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.producer.pipeline.LOOK_S", 0.01)
    producer = stage.producer(check=commit)
    producer.start()
    left = stage.member()

    with caplog.at_level(logging.ERROR, "txlayer"):
        stage.writer.fatal = FencedError("fatal")
        wait_until(lambda: left.is_closed, within=PATIENCE_S, what="it left")
        wait_until(lambda: not stats_of(producer).is_member, within=PATIENCE_S, what="no member")
        wait_until(
            lambda: "responder.ended" in [r.getMessage() for r in caplog.records], within=PATIENCE_S, what="it was told"
        )
    stage.producers.remove(producer)
    producer.close()


# --- beginning and end ------------------------------------------------------------------------------------------------


def test_without_a_check_topic_nothing_starts_and_it_may_be_tried_again(stage: ProducerStage) -> None:
    stage.kafka.delete_topic("txlayer.check")
    producer = stage.producer(check=commit)
    with pytest.raises(TopicMismatchError, match="txlayer topics apply"):
        producer.start()
    assert stage.is_closed
    assert stage.members[0].is_closed

    stage.kafka.create_topic("txlayer.check", partitions=2)
    producer.start()
    stage.ask(question(), member=1)

    stage.answers(1)


def test_close_leaves_the_group_and_ends_what_is_begun(stage: ProducerStage) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def check(_: CheckRequest) -> Resolution:
        begun.set()
        may_end.wait(PATIENCE_S)
        return COMMIT

    producer = stage.producer(check=check, check_workers=1)
    producer.start()
    stage.ask(question("a"), question("b"))
    assert begun.wait(PATIENCE_S)
    closing = threading.Thread(target=producer.close)
    closing.start()
    wait_until(lambda: stage.member().is_closed, within=PATIENCE_S, what="it left the group")
    assert closing.is_alive()

    may_end.set()
    closing.join(PATIENCE_S)

    assert ["a/0000000a"] == [a.key for a in stage.answers(1)]
    assert producer.responder_stats() is None


def test_close_does_not_wait_for_a_handler_that_hangs(stage: ProducerStage) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def check(_: CheckRequest) -> Resolution:
        begun.set()
        may_end.wait(PATIENCE_S * 6)
        return COMMIT

    producer = stage.producer(check=check)
    producer.start()
    stage.ask(question())
    assert begun.wait(PATIENCE_S)

    producer.close(timeout=0.1)
    may_end.set()

    assert [] == stage.resolutions()


def test_start_twice_joins_once_and_close_twice_leaves_once(stage: ProducerStage) -> None:
    producer = stage.producer(check=commit)
    producer.start()
    producer.start()
    assert 1 == len(stage.members)

    producer.close()
    producer.close()
    assert stage.members[0].is_closed


def test_what_was_done_is_logged_at_the_end(stage: ProducerStage, caplog: pytest.LogCaptureFixture) -> None:
    producer = stage.producer(check=commit)
    producer.start()
    stage.ask(question())
    stage.answers(1)

    with caplog.at_level(logging.INFO, "txlayer.responder"):
        producer.close()

    (ended,) = [r for r in caplog.records if r.getMessage() == "responder.ended"]
    assert (1, {"COMMIT": 1}, 1) == (ended.asked, ended.answered, ended.stored)  # type: ignore[attr-defined]  # extra


def test_a_handler_that_cannot_be_called_is_refused_at_once(stage: ProducerStage) -> None:
    async def later(_: CheckRequest) -> Resolution:
        return COMMIT

    for check, words in ((later, "AsyncTransactionalProducer"), ("module:name", "not callable")):
        with pytest.raises(UsageError, match=words):
            stage.producer(check=check)
    with pytest.raises(UsageError, match="generated"):
        stage.producer(check=commit, barrier=FakeBarrier())


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


def say_commit(_: CheckRequest) -> Resolution:
    return COMMIT


def answered(stage: ProducerStage) -> list[Resolution]:
    return [answer.resolution for answer in stage.answers(1)]


def test_it_answers_until_it_is_told_to_stop(begin: Callable[..., Alone]) -> None:
    alone = begin(say_commit)
    alone.log().ask(question())
    assert [COMMIT] == answered(alone.log())

    alone.stop.set()
    alone.thread.join(PATIENCE_S)

    assert alone.failure is None
    assert alone.log().members[0].is_closed


def test_it_hears_of_parked_transactions_and_may_settle_them(begin: Callable[..., Alone]) -> None:
    alone = begin(say_commit, on_parked=lambda _: ROLLBACK)
    alone.log().ask(parking("a"))

    assert [ROLLBACK] == answered(alone.log())


def test_a_client_that_failed_for_good_is_replaced_also_behind_an_outage(begin: Callable[..., Alone]) -> None:
    alone = begin(say_commit)
    first = alone.log()
    alone.next_failure = BrokerUnavailableError("nobody")
    first.writer.fatal = FencedError("fatal")

    alone.log(1).ask(question())

    assert [COMMIT] == answered(alone.log(1))
    assert first.members[0].is_closed


def test_its_figures_are_those_of_the_client_that_works(begin: Callable[..., Alone]) -> None:
    alone = begin(say_commit)

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
    alone = Alone(say_commit)
    alone.next_failure = BrokerUnavailableError("nobody")
    alone.thread.start()
    alone.thread.join(PATIENCE_S)

    assert isinstance(alone.failure, BrokerUnavailableError)


def test_a_right_that_is_missing_ends_it(begin: Callable[..., Alone]) -> None:
    alone = begin(say_commit)
    alone.log().member().fail(NotAuthorisedError("no", resource="txlayer.check.g"))
    alone.thread.join(PATIENCE_S)

    assert isinstance(alone.failure, NotAuthorisedError)


URL = "postgresql+psycopg://shop:s3cret@127.0.0.1:1/shop"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; what is imported from there is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, loaded in list(sys.modules.items()):
        if (getattr(loaded, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("orders", "MODULE:FUNCTION"),
        (":check", "MODULE:FUNCTION"),
        ("no_such_module_here:check", "no module named no_such_module_here"),
        ("json:check", "json has no check"),
        ("json:__name__", "str is not callable"),
    ],
)
def test_a_handler_that_is_not_there_is_a_line_and_the_code_of_usage(
    handler: str, words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del here
    code, _, err = run_command(responder.app, "run", "--group", "g", "--handler", handler, capsys=capsys)

    assert ExitCode.USAGE == code
    assert words in err
    assert 1 == len(err.strip().splitlines())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("raise RuntimeError('s3cret')", "RuntimeError"),
        ("url = 's3cret' +", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def __getattr__(name): raise SystemExit('s3cret')", "SystemExit"),
        ("def __getattr__(name): raise KeyError('s3cret')", "KeyError"),
    ],
)
def test_a_module_that_raises_is_told_by_kind_and_place_and_not_by_its_words(here: Path, line: str, kind: str) -> None:
    (here / "broken_shop.py").write_text(f"import os\n{line}\n")

    with pytest.raises(ConfigError, match=rf"{kind} at .*broken_shop\.py:2") as raised:
        load("broken_shop:check", name="--handler", kind="function")
    assert "s3cret" not in str(raised.value)


def test_what_txlayer_refuses_in_a_module_is_told(here: Path) -> None:
    line = 'OrderedConsumer(bootstrap_servers="kafka:9092", group="g", topics=["t"])'
    (here / "my_consumer.py").write_text(f"from txlayer import OrderedConsumer\n{line}\n")

    with pytest.raises(ConfigError, match="plain text to another machine"):
        load("my_consumer:consumer", name="MODULE:CONSUMER", kind="consumer")


def test_a_handler_is_found_where_one_stands(here: Path) -> None:
    (here / "my_shop.py").write_text(
        "class Orders:\n    @staticmethod\n    def check(request):\n        return request\n"
    )

    assert 7 == load("my_shop:Orders.check", name="--handler", kind="function")(7)


def test_nobody_to_ask_and_two_to_ask_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_command(responder.app, "run", "--group", "g", capsys=capsys)
    assert (ExitCode.USAGE, True) == (code, "TXLAYER_BARRIER_URL" in err)

    arguments = ("--handler", "json:loads", "--on-parked", "json:no_such")
    code, _, err = run_command(responder.app, "run", "--group", "g", *arguments, capsys=capsys)
    assert (ExitCode.USAGE, True, True) == (code, "--on-parked" in err, "json has no no_such" in err)

    arguments = ("--handler", "json:loads", "--barrier-url", "sqlite:///x")
    code, _, err = run_command(responder.app, "run", "--group", "g", *arguments, capsys=capsys)
    assert (ExitCode.USAGE, True) == (code, "one of them" in err)


@pytest.mark.parametrize(
    ("is_in_environment", "code", "said"),
    [(True, ExitCode.UNAVAILABLE, "database"), (False, ExitCode.USAGE, "TXLAYER_BARRIER_URL_FILE")],
)
def test_a_database_that_is_down_is_code_3_and_its_address_stays_hidden(
    is_in_environment: bool,
    code: ExitCode,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["--barrier-url", URL]
    if is_in_environment:
        arguments = []
        monkeypatch.setenv("TXLAYER_BARRIER_URL", URL)
    ended, out, err = run_command(responder.app, "run", "--group", "g", *arguments, capsys=capsys)

    assert code == ended
    assert said in err
    for secret in ("s3cret", "shop", "127.0.0.1"):
        assert secret not in out + err


def test_a_database_without_the_table_names_what_creates_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{here}/shop.db"
    code, _, err = run_command(responder.app, "run", "--group", "g", "--barrier-url", url, capsys=capsys)

    assert (ExitCode.USAGE, True) == (code, "txlayer barrier create" in err)


def test_no_broker_is_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--handler", "json:loads", "-b", "127.0.0.1:1", "--start-timeout", "300ms")
    code, _, err = run_command(responder.app, "run", "--group", "g", *arguments, capsys=capsys)

    assert (ExitCode.UNAVAILABLE, True) == (code, "no broker" in err)
