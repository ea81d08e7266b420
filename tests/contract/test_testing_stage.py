"""What users' tests say about a namespace holds on both logs: what was published, and that nothing was."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from txlayer import Context, OrderedConsumer, ReceivedMessage
from txlayer.adapters.memory import Fault, FaultPlan, MemoryKafka, ThreadWorld
from txlayer.core.ledger.transitions import TxnState
from txlayer.errors import ConfigError, TopicMismatchError
from txlayer.testing import KafkaAccess, Stage, memory_access, real_access, wait_until

SOON_S = 0.3


@pytest.fixture
def stage(kafka: KafkaAccess) -> Iterator[Stage]:
    with Stage(kafka) as made:
        yield made


def test_a_committed_message_is_found_by_whatever_is_said_of_it(stage: Stage) -> None:
    orders = stage.topic("orders", partitions=2)
    with stage.producer("shop").transaction("order-1") as tx:
        tx.send(orders, key="customer-7", value="42 cents", headers=[("kind", b"gift")])
        tx.prepare()

    (found,) = stage.assert_published(
        orders, key="customer-7", value=b"42 cents", headers={"kind": "gift"}, txn_id="order-1"
    )

    assert ("order-1", "42 cents") == (found.txn_id, found.value.decode())


def test_what_is_not_published_is_told_with_what_is_there_and_what_is_open(stage: Stage) -> None:
    orders = stage.topic("orders")
    stage.write(orders, "another", key="customer-8")
    producer = stage.producer("shop")
    with producer.transaction("order-1") as tx:
        tx.send(orders, value="never")
        tx.prepare()
        with pytest.raises(AssertionError) as said:
            stage.assert_published(orders, value="expected", within=timedelta(seconds=SOON_S))
        tx.rollback()

    text = str(said.value)
    assert "published 0 times within 0.3 s, not 1: value=b'expected'" in text
    assert "key=b'customer-8' value=b'another'" in text
    assert "order-1: open, no commit or rollback yet; group shop" in text


def test_one_message_more_than_expected_is_a_failure(stage: Stage) -> None:
    orders = stage.topic("orders")
    stage.write(orders, "one")
    stage.write(orders, "one")

    assert 2 == len(stage.assert_published(orders, value="one", count=2))
    with pytest.raises(AssertionError, match="published 2 times, not 1: value=b'one'"):
        stage.assert_published(orders, value="one")


def test_a_count_of_none_is_no_way_to_say_that_nothing_came(stage: Stage) -> None:
    with pytest.raises(ConfigError, match="assert_nothing_published"):
        stage.assert_published(stage.topic("orders"), count=0)


def test_nothing_is_published_of_what_was_rolled_back(stage: Stage) -> None:
    orders = stage.topic("orders")
    with stage.producer().transaction() as tx:
        tx.send(orders, value="never")
        tx.prepare()
        tx.rollback()

    stage.assert_nothing_published()


def test_nobody_says_that_nothing_is_published_while_something_is_undecided(stage: Stage) -> None:
    orders = stage.topic("orders")
    with stage.producer().transaction("order-1") as tx:
        tx.send(orders, value="perhaps")
        tx.prepare()
        with pytest.raises(AssertionError, match=r"not settled within 0.3 s(.|\n)*order-1: open"):
            stage.assert_nothing_published(within=SOON_S)
        tx.commit()

    stage.assert_published(orders, value="perhaps")
    with pytest.raises(AssertionError, match=r"published on orders.*, though nothing should be"):
        stage.assert_nothing_published()
    stage.assert_nothing_published(orders, value="another")


def test_what_is_published_already_is_found_without_waiting_for_it(stage: Stage) -> None:
    orders = stage.topic("orders")
    with stage.producer().transaction() as tx:
        tx.send(orders, value="at once")
        tx.prepare()

    # Not even assert_published came before: the commit may still be on its way to the op log.
    with pytest.raises(AssertionError, match="though nothing should be"):
        stage.assert_nothing_published(value="at once")


def test_a_consumer_of_a_stage_handles_what_is_written_there(stage: Stage) -> None:
    group = stage.unique("loyalty")
    orders = stage.topic("orders", consumer_group=group)
    seen: list[bytes] = []
    consumer = OrderedConsumer(group=group, topics=[orders], start_at="earliest", **stage.consumer_options)

    @consumer.handler
    def handle(message: ReceivedMessage, context: Context) -> None:  # noqa: ARG001 - the handler's contract
        seen.append(message.value)

    with consumer:
        stage.write(orders, "1 point", key="customer-7")
        wait_until(lambda: seen, within=30, what="the message is handled")

    assert [b"1 point"] == seen


def test_two_stages_share_nothing_but_the_brokers(kafka: KafkaAccess) -> None:
    with Stage(kafka) as one, Stage(kafka) as other:
        topic, same = one.topic("orders"), other.topic("orders")
        with one.producer().transaction("order-1") as tx:
            tx.send(topic, value="one's")
            tx.prepare()
            other.assert_nothing_published(same)

        one.assert_published(topic, value="one's")
        other.assert_nothing_published()


def test_a_topic_that_nobody_created_is_an_error_and_no_silence(stage: Stage) -> None:
    with pytest.raises(TopicMismatchError):
        stage.assert_nothing_published("mistyped")


@pytest.mark.kafka
def test_on_kept_brokers_a_stage_leaves_nothing(request: pytest.FixtureRequest) -> None:
    kafka = real_access(request.getfixturevalue("broker").bootstrap_servers)
    with Stage(kafka) as stage:
        group = stage.unique("loyalty")
        topics = {stage.topic("orders", consumer_group=group), f"{stage.namespace}.half"}
        with closing(kafka.make_admin()) as admin:
            assert topics <= admin.topic_names()

    with closing(kafka.make_admin()) as admin:
        # A broker's metadata follow the controller's by some milliseconds.
        wait_until(
            lambda: not [n for n in admin.topic_names() if stage.namespace in n or group in n],
            within=30,
            what="every topic is gone",
        )
        assert topics.isdisjoint(admin.topic_names())
        assert "dead" == admin.group(f"{stage.namespace}.coordinator").state


# --- in memory, where late answers and refusals can be had ----------------------------------------------------------------


def test_a_commit_whose_marker_comes_late_is_waited_for() -> None:
    # Decided, forwarded, its offsets stored: and a reader of the topic sees nothing yet.
    delays: list[float] = []
    kafka = MemoryKafka(marker_delay_ms=lambda: delays.pop() if delays else 0)
    with Stage(memory_access(kafka)) as stage:
        orders = stage.topic("orders")
        producer = stage.producer()
        # Taken from the end: late on the topic, at once where the coordinator's offsets are.
        delays += [0.0, 400.0]
        with producer.transaction() as tx:
            tx.send(orders, value="late")
            tx.prepare()

        with pytest.raises(AssertionError, match="though nothing should be"):
            stage.assert_nothing_published()
        assert [] == delays


def test_a_commit_that_the_coordinator_is_carrying_out_is_waited_for() -> None:
    faults = FaultPlan()
    with Stage(memory_access(MemoryKafka(ThreadWorld(faults=faults)))) as stage:
        orders = stage.topic("orders")
        faults.plan(Fault.DELAY, "EndTxn", seconds=0.5)
        with stage.producer().transaction() as tx:
            tx.send(orders, value="slow")
            tx.prepare()

        with pytest.raises(AssertionError, match="though nothing should be"):
            stage.assert_nothing_published()
        assert 1 == faults.seen[Fault.DELAY, "EndTxn"]


def test_what_the_coordinator_could_not_forward_is_told_by_its_own_words() -> None:
    kafka = MemoryKafka()
    with Stage(memory_access(kafka)) as stage:
        orders = stage.topic("orders")
        producer = stage.producer()
        with producer.transaction("order-1") as tx:
            tx.send(orders, value="held")
            tx.prepare()
            kafka.deny(orders)
        wait_until(lambda: producer.status("order-1")[0].state is TxnState.HELD, within=30, what="held")
        with pytest.raises(AssertionError) as said:
            stage.wait_until_settled(within=timedelta(seconds=SOON_S))
        kafka.deny(orders, is_denied=False)

        assert "order-1: held, committed, and its topic refuses it" in str(said.value)
        assert "the coordinator says:" in str(said.value)
        stage.assert_published(orders, value="held", within=30)


def test_a_parked_transaction_is_at_rest() -> None:
    settings = {"check_immunity": timedelta(milliseconds=50), "transaction_age_max": timedelta(milliseconds=200)}
    with Stage(memory_access(MemoryKafka()), settings=settings) as stage:
        orders = stage.topic("orders")
        with stage.producer().transaction() as tx:
            tx.send(orders, value="nobody knows")
            tx.prepare()
            tx.unknown()

        stage.assert_nothing_published(orders)


def test_whoever_waits_hears_what_ended_the_coordinator() -> None:
    stage = Stage(memory_access(MemoryKafka()))
    stage.start()
    orders = stage.topic("orders")

    stage.coordinator.failure = OSError("broken")

    with pytest.raises(OSError, match="broken"):
        stage.assert_published(orders, within=3_600)
    with pytest.raises(OSError, match="broken"):
        stage.close()
