"""Requests on their way to the replay topic, over both logs: in order, acknowledged, and nobody else's between look and request."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.broker import unique_name
from tests.support.dead_letter_stage import Stage, make_stage
from tests.support.lab import Lab
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, decode_replay
from txlayer.errors import OutcomeUnknownError, TxLayerError
from txlayer.operate.dead_letters import DeadLetterLog
from txlayer.operate.operators import OperatorWriter
from txlayer.operate.replay import (
    STEP_COUNT_MAX,
    Author,
    DeadLetterResult,
    ReplayOrder,
    Request,
    RequestWriter,
    ask,
    choose,
)

LINE = ("a line", 0, b"1|C|order-7/00000000|orders|1|0|operator||")


@pytest.fixture
def stage(lab: Lab) -> Stage:
    made = make_stage(lab, partitions=2)
    made.reader.close()
    return made


def writer(stage: Stage, **settings: Any) -> RequestWriter:
    return RequestWriter(stage.connections, group=stage.group, **settings)


def request(topic: str, offset: int, *, partition: int = 0) -> Request:
    record = ReplayRecord(ReplayKind.REPLAY, "r", offset, text="zoe: mended")
    return Request(topic, partition, b"k", record)


def test_many_requests_are_written_in_their_order(stage: Stage) -> None:
    asked = [request(stage.topic, n, partition=n % 2) for n in range(STEP_COUNT_MAX)]

    with closing(writer(stage)) as writing:
        written = [each for _ in range(2) for each in writing.write(lambda: asked)]

    found = {(r.partition, r.offset): decode_replay(r.value) for r in stage.lab.read(stage.replays)}
    assert [each.record for each in asked] * 2 == [found[each.request.partition, each.offset] for each in written]
    assert sorted(found) == sorted((each.request.partition, each.offset) for each in written)


def test_many_requests_are_written_where_the_topic_takes_only_a_few_in_a_batch(stage: Stage) -> None:
    stage.lab.delete_topic(stage.replays)
    stage.lab.create(stage.replays, partitions=2, settings={"max.message.bytes": "1000"})
    asked = [request(stage.topic, n) for n in range(100)]

    with closing(writer(stage)) as writing:
        assert asked == [each.request for each in writing.write(lambda: asked)]

    assert 100 == len(stage.lab.read(stage.replays))


@pytest.mark.parametrize("kinds", [(ReplayKind.REPLAY, ReplayKind.REPLAY), (ReplayKind.DROP, ReplayKind.REPLAY)])
def test_of_two_people_who_ask_at_the_same_moment_one_is_told_of_the_other(
    lab: Lab, kinds: tuple[ReplayKind, ReplayKind]
) -> None:
    """The second one asks between the first one's last look and its request."""
    (kind_of_first, kind_of_second), stage = kinds, make_stage(lab)
    stage.writer().write_letters([stage.given_up(1)], offsets=stage.behind(1), member=stage.member)
    stage.wait_for(b"message 1")

    def carry_out(kind: ReplayKind, name: str, look: Callable[[], None]) -> list[DeadLetterResult]:
        with closing(stage.lab.admin()) as admin, closing(writer(stage)) as writing:
            log = DeadLetterLog(
                admin,
                group=stage.group,
                topic=stage.topic,
                make_reader=lambda: stage.connections.make_reader("read_committed"),
            )
            logs, order = {stage.topic: log}, ReplayOrder(kind, stage.group, Author(f"{name}: x", name), is_all=True)
            choice, follow = choose(order, logs), log.follow

            def follow_and_wait() -> None:
                follow()
                look()

            log.follow = follow_and_wait  # type: ignore[method-assign]  # this one alone
            return [each.result for each in ask(order, writing, logs, choice)]

    second: list[DeadLetterResult] = []

    def ask_beside() -> None:
        looks.append(None)
        if len(looks) == 2:  # after the look before the request
            second.extend(carry_out(kind_of_second, "second", lambda: None))

    looks: list[None] = []
    first = carry_out(kind_of_first, "first", ask_beside)

    asked = [decode_replay(each.value) for each in stage.lab.read(stage.replays)]
    assert [(kind_of_second, "second")] == [each[:2] for each in asked if isinstance(each, ReplayRecord)]
    assert ([DeadLetterResult.REQUESTED_ALREADY], [DeadLetterResult.REQUESTED]) == (first, second)


@OF_HANDLERS
def test_a_replay_topic_that_is_missing_is_an_error(stage: Stage) -> None:
    with pytest.raises(TxLayerError):
        writer(stage).write(lambda: [request(unique_name("missing"), 0)])


class Client:
    """A client whose broker says so of each record at the next poll; None: it says nothing. Its clock is that of the test."""

    def __init__(self, answer: tuple[str | None, Any] | None) -> None:
        self.now_s = 0.0
        self._answer = answer
        self._reports: list[Any] = []

    def produce(self, *arguments: Any) -> None:
        self._reports.append(arguments[4])

    def poll(self, timeout_s: float) -> int:
        if self._answer is None:
            self.now_s += timeout_s
            return 0
        reports, self._reports = self._reports, []
        for report in reports:
            report(*self._answer)
        return len(reports)

    def failure(self) -> None:
        return None

    def error_of(self, error: str, **_: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(error, txn_id="", step="replay")

    def close(self, timeout_s: float) -> None:
        pass

    def writer(self) -> OperatorWriter:
        client: Any = self
        return OperatorWriter(client, topic="txlayer.op", clock=lambda: self.now_s)


def test_lines_that_are_never_acknowledged_are_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknownError, match="1 lines"):
        Client(None).writer().write([LINE])


def test_a_line_that_timed_out_is_said_as_a_line_that_may_be_stored() -> None:
    deaf = Client(("timed out", None))

    with pytest.raises(OutcomeUnknownError, match=r"1 lines .* timed out.*a second one does no harm") as raised:
        deaf.writer().write([LINE])

    assert ("op", None) == (raised.value.step, raised.value.txn_id)
