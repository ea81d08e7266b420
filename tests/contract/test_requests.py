"""Requests on their way to the replay topic, over both logs: in order, acknowledged, at a rate."""

from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.broker import unique_name
from tests.support.dead_letter_stage import Stage, make_stage
from tests.support.lab import Lab
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.adapters.ports import HalfWriter
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, decode_replay
from txlayer.errors import OutcomeUnknownError, TxLayerError
from txlayer.operate.operators import IN_FLIGHT_MAX
from txlayer.operate.replay import Request, RequestWriter


@pytest.fixture
def stage(lab: Lab) -> Stage:
    made = make_stage(lab, partitions=2)
    made.reader.close()
    return made


def writer(stage: Stage, **settings: Any) -> RequestWriter:
    def make(batch_bytes: int) -> HalfWriter:
        return stage.lab.producer().make_half_writer(batch_bytes_max=batch_bytes)

    return RequestWriter(make, group=stage.group, **settings)


def request(topic: str, offset: int, *, partition: int = 0) -> Request:
    record = ReplayRecord(ReplayKind.REPLAY, "r", offset, text="zoe: mended")
    return Request(topic, partition, b"k", record)


def test_more_than_may_be_in_flight_stand_there_in_their_order(stage: Stage) -> None:
    count, told = IN_FLIGHT_MAX * 2 + 1, [0]

    written = writer(stage).write(
        (request(stage.topic, n, partition=n % 2) for n in range(count)), on_progress=told.append
    )

    found = [(r.partition, decode_replay(r.value)) for r in stage.lab.read(stage.replays)]
    expected = [(p, request(stage.topic, n).record) for p in (0, 1) for n in range(p, count, 2)]
    assert expected == found
    assert count == len(written)
    assert told == sorted(told)
    assert count == told[-1]


@OF_HANDLERS
def test_a_replay_topic_that_is_missing_is_an_error(stage: Stage) -> None:
    with pytest.raises(TxLayerError):
        writer(stage).write([request(unique_name("missing"), 0)])


class Client:
    """A client whose broker says so of each record at the next poll; None: it says nothing. Its clock is that of the test."""

    def __init__(self, answer: tuple[str | None, Any] | None) -> None:
        self.now_s = 0.0
        self.sent_at: list[float] = []
        self._answer = answer
        self._reports: list[Any] = []

    def produce(self, *arguments: Any) -> None:
        self.sent_at.append(round(self.now_s, 3))
        self._reports.append(arguments[4])

    def poll(self, timeout_s: float) -> int:
        if self._answer is None:
            self.pass_time(timeout_s)
            return 0
        reports, self._reports = self._reports, []
        for report in reports:
            report(*self._answer)
        return len(reports)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def failure(self) -> None:
        return None

    def error_of(self, error: str, **_: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(error, txn_id="", step="replay")

    def close(self, timeout_s: float) -> None:
        pass

    def writer(self) -> RequestWriter:
        client: Any = self
        return RequestWriter(lambda _bytes: client, group="g", clock=lambda: self.now_s, pause=self.pass_time)


def test_a_rate_spreads_requests_evenly() -> None:
    prompt = Client((None, MemoryRecord("t", 0, None, None, None, (1, 0), log_offset=0)))

    prompt.writer().write([request("t", n) for n in range(4)], rate_max=4.0)

    assert [0.0, 0.25, 0.5, 0.75] == prompt.sent_at


def test_requests_that_are_never_acknowledged_are_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknownError, match="1 requests"):
        Client(None).writer().write([request("t", 0)])


def test_a_request_that_timed_out_is_said_as_a_request_that_may_be_stored() -> None:
    deaf = Client(("timed out", None))

    with pytest.raises(OutcomeUnknownError, match=r"1 requests .* timed out.*a second one does no harm") as raised:
        deaf.writer().write([request("t", 0)])

    assert ("request", None) == (raised.value.step, raised.value.txn_id)
