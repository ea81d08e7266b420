"""When a namespace is drained: nothing of it is needed any more, so that it may be widened, or left for another one."""

import json
from contextlib import closing
from datetime import timedelta

import pytest

from tests.support.core_records import txn_key
from tests.support.still_coordinator import PARTITION_COUNT, StillCoordinator, widen
from txlayer.adapters.namespace import Namespace
from txlayer.cli.coordinator import store_reset
from txlayer.core.messages import txn_id_of
from txlayer.core.partitions import half_partition
from txlayer.core.topics import Difference
from txlayer.errors import BrokerUnavailableError, RetriableError
from txlayer.operate.topics import Drain, look, plan_reset, plan_widening, store_first_offsets
from txlayer.operate.unsettled import read_quarantined
from txlayer.runtime.kafka_transactions import produce


def look_at(stage: StillCoordinator) -> Drain:
    with closing(stage.kafka.connect_coordinator(stage.config, client="drain")) as connections:
        return look(connections, partition_count=PARTITION_COUNT)


def test_a_transaction_that_only_a_later_release_can_read_is_not_drained() -> None:
    """A coordinator of that release has put it on doubt; this one leaves it as it is, whatever else is settled."""
    stage = StillCoordinator(doubt_after=timedelta(seconds=2))
    key = txn_key("later")
    stage.half(key)
    stage.work(seconds=6)
    stage.kafka.append(stage.topics.doubt, b"9|what nobody knows", key=key.encode())
    stage.work(seconds=2)

    found = look_at(stage)

    assert (0, 0) == (found.half_unread, found.op_unread)
    assert not found.is_drained
    assert [("", "unreadable", 1, [txn_id_of(key)])] == [
        (each["producer_group"], each["state"], each["count"], each["txn_ids"]) for each in found.open
    ]
    with closing(stage.kafka.connect_coordinator(stage.config, client="widen")) as connections:
        assert plan_widening(stage.kafka.admin(), connections, partition_count=4).left is not None


def test_what_an_open_kafka_transaction_hides_is_not_drained() -> None:
    """A stranger left one open on half. Coordinators do not see what producers prepared behind it, and neither does who asks."""
    stage = StillCoordinator()
    stage.work(seconds=1)
    assert look_at(stage).is_drained
    with closing(stage.kafka.connect_coordinator(stage.config, client="stranger")) as connections:
        stranger = connections.make_writer("stranger", batch_bytes_max=16_384)
        stranger.initialise(timeout_s=10.0)
        stranger.begin()
        produce(stranger, stage.topics.half, b"?", None, 0)
        stranger.flush(timeout_s=10.0)
        stage.half(txn_key("behind it"))

        found = look_at(stage)

        assert 2 == found.half_unread
        assert not found.is_drained
        stranger.close()


def test_a_widening_that_was_killed_before_it_stored_offsets_is_finished_whatever_was_prepared_since() -> None:
    """All topics have as many partitions, so producers begin, and no coordinator can."""
    stage = StillCoordinator()
    stage.commit(txn_key("before"), stage.half(txn_key("before")))
    stage.work(seconds=2)
    widen(stage.kafka, [stage.topics.doubt, stage.topics.op, stage.topics.half], 4)
    keys = [f"t{number}/0000000a" for number in range(8)]
    for key in keys:
        p = half_partition(ordering_key=None, txn_id=txn_id_of(key), partition_count=4)
        stage.commit(key, stage.half(key, partition=p), partition=p)
    admin = stage.kafka.admin()
    (half, op) = Namespace(admin, topics=stage.topics).plan()

    with closing(stage.kafka.connect_coordinator(stage.config, client="widen")) as connections:
        planned = plan_widening(admin, connections, partition_count=4)
    store_first_offsets(admin, stage.topics, 4)
    stage.start()
    stage.work(seconds=2)

    assert all("txlayer topics widen --partitions 4" in change.why for change in (half, op))
    assert all(isinstance(change, Difference) and change.is_widening_interrupted for change in (half, op))
    assert ({}, None) == (planned.wanted, planned.left)
    assert sorted(map(txn_id_of, [txn_key("before"), *keys])) == sorted(stage.visible())


def test_a_widening_that_was_killed_before_it_stored_offsets_goes_on_to_more_partitions_only_when_drained() -> None:
    """What producers prepared in the new partitions would be in the wrong ones, and never be forwarded."""
    stage = StillCoordinator()
    stage.work(seconds=1)
    widen(stage.kafka, [stage.topics.doubt, stage.topics.op, stage.topics.half], 4)
    key = txn_key("since")
    stage.commit(key, stage.half(key, partition=3), partition=3)

    with closing(stage.kafka.connect_coordinator(stage.config, client="widen")) as connections:
        planned = plan_widening(stage.kafka.admin(), connections, partition_count=8)

    assert planned.left is not None
    assert (1, 1) == (planned.left.half_unread, planned.left.op_unread)


def test_an_interrupted_widening_is_finished_although_a_producer_was_not_stopped() -> None:
    """No coordinator can start before, so nothing would ever be drained."""
    stage = StillCoordinator()
    stage.work(seconds=1)
    widen(stage.kafka, [stage.topics.doubt, stage.topics.op], 4)
    keys = [f"t{number}/0000000a" for number in range(8)]
    places = {key: half_partition(ordering_key=None, txn_id=txn_id_of(key), partition_count=2) for key in keys}
    for key, p in places.items():
        stage.commit(key, stage.half(key, partition=p), partition=p)

    with closing(stage.kafka.connect_coordinator(stage.config, client="widen")) as connections:
        planned = plan_widening(stage.kafka.admin(), connections, partition_count=4)
    widen(stage.kafka, [stage.topics.half], 4)
    store_first_offsets(stage.kafka.admin(), stage.topics, 4)
    stage.start()
    stage.work(seconds=2)

    assert ({stage.topics.half: 4}, None, len(keys)) == (planned.wanted, planned.left, planned.late_count)
    right = [
        k for k, p in places.items() if p == half_partition(ordering_key=None, txn_id=txn_id_of(k), partition_count=4)
    ]
    assert 0 < len(right) < len(keys)
    assert sorted(map(txn_id_of, right)) == sorted(stage.visible())
    with closing(stage.kafka.connect_coordinator(stage.config, client="look")) as connections:
        kept = read_quarantined(connections)
    assert len(keys) - len(right) == sum(each.origin.topic == stage.topics.half for each in kept)


def test_who_meets_another_persons_widening_is_told_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = StillCoordinator()

    def counted_before(*_given: object) -> dict[str, int]:
        widen(stage.kafka, [stage.topics.doubt], 4)
        return dict.fromkeys((stage.topics.half, stage.topics.op, stage.topics.doubt), 2)

    monkeypatch.setattr("txlayer.operate.topics.partition_counts", counted_before)
    with (
        closing(stage.kafka.connect_coordinator(stage.config, client="widen")) as connections,
        pytest.raises(RetriableError, match="try again"),
    ):
        plan_widening(stage.kafka.admin(), connections, partition_count=4)


@pytest.mark.parametrize("is_sure", [False, True])
def test_a_program_is_told_of_offsets_only_when_they_are_stored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, is_sure: bool
) -> None:
    stage = StillCoordinator()
    stage.work(seconds=1)
    admin, group = stage.kafka.admin(), stage.topics.coordinator_group
    plan = plan_reset(admin, group, [stage.topics.half, stage.topics.op], to="earliest", of_coordinators=True)

    def refuse(*_given: object) -> None:
        raise BrokerUnavailableError("it is away")

    monkeypatch.setattr("txlayer.cli.output.ask", lambda _question: None)
    with monkeypatch.context() as patch:
        patch.setattr(type(admin), "store_offsets", refuse)
        with pytest.raises(BrokerUnavailableError):
            store_reset(admin, group, plan, "Store?", is_dry_run=False, is_sure=is_sure, as_json=True)
    failed = capsys.readouterr()
    store_reset(admin, group, plan, "Store?", is_dry_run=False, is_sure=is_sure, as_json=True)
    stored = capsys.readouterr()

    assert ("", not is_sure) == (failed.out, "before" in failed.err)
    assert {stage.topics.half, stage.topics.op} == {row["topic"] for row in json.loads(stored.out)}


def test_what_coordinators_did_while_a_person_was_asked_is_not_done_again_by_a_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of the logs that the person saw is not the end any more."""
    stage = StillCoordinator()
    stage.work(seconds=1)
    admin, group, key = stage.kafka.admin(), stage.topics.coordinator_group, txn_key("meanwhile")
    plan = plan_reset(admin, group, [stage.topics.half, stage.topics.op], to="latest", of_coordinators=True)

    def work(_question: str) -> None:
        stage.commit(key, stage.half(key))
        stage.work(seconds=2)

    monkeypatch.setattr("txlayer.cli.output.ask", work)
    with pytest.raises(RetriableError, match="look again"):
        store_reset(admin, group, plan, "Store?", is_dry_run=False, is_sure=False, as_json=True)
    stage.start()
    stage.work(seconds=2)

    assert [txn_id_of(key)] == list(stage.visible())
