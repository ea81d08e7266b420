"""Somebody else's Kafka transaction on half: open, it hides what stands behind it; ended, no record tells of its marker."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.core_records import FAR_AWAY, op_line
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters import readers
from txlayer.core import codec
from txlayer.core.messages import NONCE_LENGTH
from txlayer.errors import BrokerUnavailableError
from txlayer.operate.settle import ManualSettlement, OperatorAction, SettlementOrder, plan_of
from txlayer.operate.unsettled import Filter, Overview

KEY = f"a-0/{'a' * NONCE_LENGTH}"
PARTITION = 0


def stage_with_a_strangers_marker(topic: str = "txlayer.half") -> StillCoordinator:
    """An open transaction; half, or op, ends with what a stranger wrote and gave up."""
    stage = StillCoordinator()
    stage.half(KEY, partition=PARTITION)
    stranger = stage.kafka.connect_coordinator(stage.config, client="stranger")
    writer = stranger.make_writer("stranger", batch_bytes_max=10_000)
    writer.initialise(timeout_s=1)
    writer.begin()
    writer.produce(topic, b"never committed", None, PARTITION)
    assert 0 == writer.flush(timeout_s=1)
    # Whoever holds the name next ends it: an abort, and its marker.
    stranger.make_writer("stranger", batch_bytes_max=10_000).initialise(timeout_s=5)
    return stage


@pytest.mark.promise("P11")
@pytest.mark.parametrize("offset", [FAR_AWAY, pytest.param(2, id="its marker")])
def test_a_line_that_names_nothing_or_a_strangers_marker_is_given_up(offset: int) -> None:
    stage = stage_with_a_strangers_marker()
    stage.op(op_line("C", KEY, offset), partition=PARTITION)
    stage.commit(KEY, 0, partition=PARTITION)

    stage.work(seconds=1_200)

    assert ["a-0"] == stage.visible()


def test_records_behind_the_marker_are_read_before_anything_is_given_up() -> None:
    stage = stage_with_a_strangers_marker()
    late = f"b-4/{'b' * NONCE_LENGTH}"
    offset = len(stage.kafka.records(stage.topics.half, isolation="read_uncommitted")) + 1
    stage.op(op_line("C", late, offset), partition=PARTITION)
    assert offset == stage.half(late, partition=PARTITION)

    stage.work(seconds=600)

    assert ["b-4"] == stage.visible()
    kept = (codec.parse_quarantine_key(r.key()) for r in stage.kafka.records(stage.topics.doubt))
    assert [] == list(filter(None, kept))


def stage_with_a_commit_whose_half_record_a_stranger_hides() -> StillCoordinator:
    stage = StillCoordinator(misplaced_after=timedelta(seconds=1))
    stranger = stage.kafka.connect_coordinator(
        replace(stage.config, kafka_transaction_timeout=timedelta(seconds=60)), client="stranger"
    )
    writer = stranger.make_writer("stranger", batch_bytes_max=10_000)
    writer.initialise(timeout_s=1)
    writer.begin()
    writer.produce(stage.topics.half, b"never committed", None, PARTITION)
    assert 0 == writer.flush(timeout_s=1)
    stage.commit(KEY, stage.half(KEY, partition=PARTITION), partition=PARTITION)
    return stage


@pytest.mark.promise("P1")
def test_a_commit_is_not_given_up_while_a_stranger_hides_its_half_records() -> None:
    stage = stage_with_a_commit_whose_half_record_a_stranger_hides()

    stage.work(seconds=30)
    assert ([], {}) == (stage.visible(), stage.on_doubt()), "nobody can read its half record yet"
    stage.work(seconds=60)

    assert (["a-0"], {}) == (stage.visible(), stage.on_doubt())


@pytest.mark.promise("P7")
def test_a_look_says_of_no_transaction_that_it_is_parked_while_a_stranger_hides_its_half_records() -> None:
    stage = stage_with_a_commit_whose_half_record_a_stranger_hides()
    stage.work(seconds=30)
    stage.op(op_line("C", KEY, 1), partition=PARTITION)

    look = Overview(stage.kafka.connect_coordinator(stage.config, client="operator"))
    found = [(each.txn.key, each.state) for each in look.unsettled()]

    assert ([], 0) == (found, look.op_ends[PARTITION])


def test_no_operator_is_told_of_what_a_stranger_hides_that_there_is_nothing_to_cancel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readers, "HIDDEN_S", -1)
    stage = stage_with_a_commit_whose_half_record_a_stranger_hides()
    hands = ManualSettlement(stage.kafka.connect_coordinator(stage.config, client="operator"))
    order = SettlementOrder(OperatorAction.CANCEL, ("a-0",), None, False, Filter(), None, "zoe: a slip")

    with pytest.raises(BrokerUnavailableError, match="hides what there is"):
        plan_of(order, hands, since_ms=0, now_ms=0)


# --- retention --------------------------------------------------------------------------------------------------------


def is_forwarded_by_a_successor_after_retention(stage: StillCoordinator) -> bool:
    """Half and op are emptied, as after seven quiet days, and a successor takes over."""
    places = [(topic, PARTITION) for topic in (stage.topics.half, stage.topics.op)]
    for (topic, partition), end in stage.kafka.admin().end_offsets(places).items():
        stage.kafka.delete_records(topic, partition, before=end)
    late = f"b-4/{'b' * NONCE_LENGTH}"
    stage.commit(late, stage.half(late, partition=PARTITION), partition=PARTITION)
    stage.work(seconds=60)
    return stage.visible() == ["b-4"]


@pytest.mark.fault("coordinator: retention empties half or op up to behind the marker of a Kafka transaction")
@pytest.mark.promise("P1", "P7")
@pytest.mark.parametrize("topic", ["txlayer.half", "txlayer.op"])
def test_an_open_transaction_before_a_strangers_marker_goes_to_doubt_and_retention_stops_no_successor(
    topic: str,
) -> None:
    stage = stage_with_a_strangers_marker(topic)

    stage.work(seconds=100)

    assert [KEY] == list(stage.on_doubt())
    assert is_forwarded_by_a_successor_after_retention(stage)


@pytest.mark.fault("coordinator: retention empties half or op up to behind the marker of a Kafka transaction")
@pytest.mark.promise("P1")
def test_retention_that_takes_the_marker_of_a_policys_line_stops_no_successor() -> None:
    """The coordinator writes such a line within its own Kafka transaction."""
    stage = StillCoordinator(transaction_age_max=timedelta(seconds=1), unresolved="rollback")
    stage.half(KEY, partition=PARTITION)

    stage.work(seconds=60)

    assert [b"R"] == [line.split(b"|")[1] for line in stage.said()]
    assert is_forwarded_by_a_successor_after_retention(stage)
