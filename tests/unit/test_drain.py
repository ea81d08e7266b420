"""When a namespace is drained: nothing of it is needed any more, so that it may be widened, or left for another one."""

from contextlib import closing
from datetime import timedelta

from tests.support.core_records import txn_key
from tests.support.still_coordinator import PARTITION_COUNT, StillCoordinator
from txlayer.core.messages import txn_id_of
from txlayer.operate.topics import Drain, look, plan_widening
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
