"""An operator's lines on their way: in order, told when they are refused, and waited for within bounds."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.core_records import GROUP, txn_key
from tests.support.producer_stage import ProducerStage
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.adapters.ports import StoredOffset
from txlayer.config import CoordinatorConfig, ProducerConfig
from txlayer.core import codec
from txlayer.core.history import operator_reason
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.messages import HalfOptions, OpMessage, Resolution, Source
from txlayer.errors import NotAuthorisedError, TopicMismatchError, TxLayerError
from txlayer.operate.settle import Line, ManualSettlement, OperatorAction, SettlementResult, WrittenLine, line_of
from txlayer.operate.unsettled import UnsettledTransaction
from txlayer.runtime.environment import Environment

ROUND_MS = 100


def standing(number: int, *, partition: int = 0) -> UnsettledTransaction:
    """A transaction of that number."""
    key = f"order-{number}/00000001"
    return UnsettledTransaction(
        partition, "parked", Transaction(key, "orders", "shop", number, 1_000, "900", (0, 0), None)
    )


def line(number: int, *, partition: int = 0, reason: str = "ticket 12") -> Line:
    """A commit of it."""
    return line_of(OperatorAction.COMMIT, standing(number, partition=partition), operator_reason("zoe", reason))


class Coordinators:
    """Op positions that coordinators store, one answer per question; the last one stays. The clock moves with each pause."""

    config = CoordinatorConfig()

    def __init__(self, *answers: dict[int, int]) -> None:
        self._answers = list(answers)
        self.now_ms = 0
        self.asked_count = 0

    def stored_offsets(self, _group: str, partitions: Any, *, is_stable: bool) -> Any:
        assert not is_stable
        self.asked_count += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return {
            (topic, p): StoredOffset(answer.get(p, 0), f"1|w|9|0|{answer.get(p, 0)}:0|0") for topic, p in partitions
        }

    def pause(self, length_s: float) -> None:
        self.now_ms += int(length_s * 1000)


def producer_stage() -> Any:
    """A cluster with their topics."""
    return ProducerStage().connect(ProducerConfig())


def hands(coordinators: Any = None, producers: Any = None) -> ManualSettlement:
    """A session on fakes."""
    moving: Any = coordinators or Coordinators({})
    stage = producers or producer_stage()
    moving.topic_limits = stage.topic_limits
    moving.operator_writer = lambda batch_bytes: stage.make_half_writer(batch_bytes_max=batch_bytes)
    return ManualSettlement(moving, environment=Environment(clock=lambda: moving.now_ms / 1000, sleep=moving.pause))


def test_lines_of_one_partition_stand_in_their_order() -> None:
    producers = producer_stage()
    lines = [line(n, partition=n % 2) for n in range(6)]
    counts: list[int] = []

    written = hands(producers=producers).write(lines, on_progress=counts.append)

    places = {w.found.txn.key: (w.found.partition, w.position) for w in written}
    assert {f"order-{n}/00000001": (n % 2, (n // 2, 0)) for n in range(6)} == places
    assert 6 == counts[-1]


def test_a_refused_record_is_an_error_and_the_writer_is_closed() -> None:
    producers = producer_stage()

    def refuse(_record: MemoryRecord) -> TxLayerError:
        return NotAuthorisedError("no", resource="txlayer.op", operation="Write")

    producers.writer.refuse = refuse

    with pytest.raises(NotAuthorisedError):
        hands(producers=producers).write([line(1)])
    assert producers.writer.is_closed


def test_without_an_op_topic_the_command_that_makes_it_is_named() -> None:
    producers = producer_stage()
    producers.kafka.delete_topic("txlayer.op")

    with pytest.raises(TopicMismatchError, match="topics apply"):
        hands(producers=producers).write([line(1)])


def test_waiting_ends_when_every_line_is_behind_the_stored_positions() -> None:
    moving = Coordinators({0: 7, 1: 0}, {0: 8, 1: 3}, {1: 4})
    written = [WrittenLine(standing(1), (7, 5)), WrittenLine(standing(2, partition=1), (3, 0))]

    assert {0, 1} == hands(moving).wait(written, patience_s=1)
    assert 3 == moving.asked_count


def test_waiting_ends_when_the_coordinators_stand_still_for_so_long() -> None:
    moving = Coordinators({0: 8, 1: 3})
    written = [WrittenLine(standing(1), (7, 5)), WrittenLine(standing(2, partition=1), (3, 0))]

    assert {0} == hands(moving).wait(written, patience_s=1)
    assert 1_000 <= moving.now_ms < 1_000 + 2 * ROUND_MS


def test_coordinators_that_come_nearer_are_waited_for() -> None:
    moving = Coordinators(*({0: n // 8} for n in range(200)))

    assert {0} == hands(moving).wait([WrittenLine(standing(1), (20, 0))], patience_s=1)
    assert moving.now_ms > 10_000


def test_who_does_not_want_to_wait_asks_once() -> None:
    moving = Coordinators({0: 3})

    assert set() == hands(moving).wait([WrittenLine(standing(1), (3, 0))], patience_s=0)
    assert (1, 0) == (moving.asked_count, moving.now_ms)


@pytest.mark.parametrize("action", [OperatorAction.COMMIT, OperatorAction.ROLLBACK])
def test_a_line_that_its_transaction_outgrew_on_doubt_is_ignored(action: OperatorAction) -> None:
    """A producer that was frozen in `prepare` writes the rest while the operator's line is on its way."""
    still, key = StillCoordinator(doubt_after=timedelta(seconds=5)), txn_key("grows")
    for index in range(2):
        still.half(key, index=index, count=3)
    still.work(seconds=30)
    connections = still.kafka.connect_coordinator(still.config, client="operator")
    settlement = ManualSettlement(connections)
    snapshot = settlement.find(lambda each: each.txn.key == key)
    (found,) = snapshot.found

    still.half(key, index=2, count=3)
    still.work(seconds=5)
    written = settlement.write([line_of(action, found, operator_reason("zoe", "ticket 12"))])
    still.work(seconds=5)
    (outcome,) = settlement.outcomes(action, written, snapshot, reached={0})

    assert "open" == still.on_doubt()[key].state
    assert (SettlementResult.IGNORED, "open") == (outcome.result, outcome.state)


def test_a_line_that_releases_messages_is_not_told_as_the_decision() -> None:
    """A client that may write op writes it, and two operators roll back in one instant."""
    still, key = StillCoordinator(), txn_key("young")
    offset = still.half(key)
    settlement = ManualSettlement(still.kafka.connect_coordinator(still.config, client="operator"))
    snapshot = settlement.find(lambda each: each.txn.key == key)
    (found,) = snapshot.found
    still.op(codec.encode_op(OpMessage(Resolution.COMMIT, key, GROUP, offset, 1, Source.POLICY, time_ms=5)))

    written = [
        settlement.write([line_of(OperatorAction.ROLLBACK, found, operator_reason(name, "ticket 12"))])
        for name in ("zoe", "anna")
    ]
    still.work(seconds=5)
    told = [settlement.outcomes(OperatorAction.ROLLBACK, each, snapshot, reached={0})[0] for each in written]

    assert [] == still.visible()
    assert [(SettlementResult.DONE, "rolled-back"), (SettlementResult.ALREADY, "rolled-back")] == [
        (outcome.result, outcome.state) for outcome in told
    ]
    assert all(o.decision is not None and o.decision.position == written[0][0].position for o in told)


def test_a_release_is_not_told_as_what_committed_a_scheduled_transaction() -> None:
    still, key = StillCoordinator(), txn_key("due")
    due_ms = still.world.now_ms() + 2_000
    still.commit(key, still.half(key, options=HalfOptions(deliver_at_ms=due_ms)))
    still.kafka.delete_topic("orders")
    still.work(seconds=10)
    settlement = ManualSettlement(still.kafka.connect_coordinator(still.config, client="operator"))
    (found,) = settlement.find(lambda each: each.txn.key == key).found

    outcome = settlement.known(found, SettlementResult.REFUSED)

    assert any(line.startswith(b"2|C|") for line in still.said())
    assert ("held", None) == (outcome.state, outcome.decision)


def test_a_line_behind_a_commit_of_what_was_just_being_prepared_is_refused() -> None:
    """Its last half message and the producer's commit came after the operator's command had looked."""
    still, key = StillCoordinator(), txn_key("young")
    still.half(key, index=0, count=2)
    connections = still.kafka.connect_coordinator(still.config, client="operator")
    settlement = ManualSettlement(connections)
    snapshot = settlement.find(lambda each: each.txn.key == key)
    (found,) = snapshot.found

    still.commit(key, still.half(key, index=1, count=2))
    line = line_of(OperatorAction.ROLLBACK, found, operator_reason("zoe", "ticket 12"))
    written = settlement.write([line])
    still.work(seconds=5)
    (outcome,) = settlement.outcomes(OperatorAction.ROLLBACK, written, snapshot, reached={0})

    assert 2 == len(still.visible())
    assert (SettlementResult.REFUSED, "committed") == (outcome.result, outcome.state)
