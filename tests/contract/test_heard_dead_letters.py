"""A producer group hears which consumer group gave up which of its messages, and why; over both logs."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from tests.support.core_records import GROUP, txn_key
from tests.support.still_coordinator import StillCoordinator
from tests.support.waiting import wait_until
from txlayer import (
    JSON,
    AsyncOrderedConsumer,
    Context,
    DeadLetter,
    DeadLetterReason,
    Message,
    OrderedConsumer,
    ReceivedMessage,
    Reject,
    RetryPolicy,
)
from txlayer.adapters.memory import MemoryKafka
from txlayer.core.dead_letters import DLQ_HEADER, EDITED, dead_letter_topic, encode_dead_letter
from txlayer.core.messages import HalfOptions, Origin
from txlayer.errors import ConfigError, UsageError
from txlayer.operate.topics import GroupTopics
from txlayer.testing import KafkaAccess, Stage, memory_access

PATIENCE_S = 30.0
QUICK = RetryPolicy(attempt_count_max=2, backoff_first_ms=10, backoff_max_ms=20)


@pytest.fixture
def stage(kafka: KafkaAccess) -> Iterator[Stage]:
    with Stage(kafka) as made:
        yield made


def given_up(stage: Stage, group: str, orders: str) -> str:
    """The dead-letter topic of a group, with the topics that a consumer of it needs."""
    letters = dead_letter_topic(group, orders)
    with closing(stage.kafka.make_admin()) as admin:
        GroupTopics(admin, group="shop-undo", topics=[letters]).apply()
    return letters


def reject(stage: Stage, group: str, orders: str) -> OrderedConsumer:
    """A consumer that cannot handle what begins with `bad`."""
    options: dict[str, Any] = {**stage.consumer_options, "start_at": "earliest", "retry": QUICK}
    consumer = OrderedConsumer(group=group, topics=[orders], **options)

    @consumer.handler
    def handle(message: ReceivedMessage, _context: Context) -> Reject | None:
        if message.value == b"bad":
            raise ValueError("no such customer")
        return Reject("too late") if message.value.startswith(b"bad") else None

    return consumer


def undoing(stage: Stage, letters: str, kind: type[Any] = OrderedConsumer, **settings: Any) -> Any:
    options = {**stage.consumer_options, **settings}
    return kind(group="shop-undo", topics=[letters], start_at="earliest", retry=QUICK, **options)


def until(condition: Callable[[], object], what: str) -> None:
    wait_until(condition, within=PATIENCE_S, what=what)


@pytest.mark.promise("P9")
def test_a_group_hears_of_its_own_dead_letters_at_least_once_also_after_a_restart(stage: Stage) -> None:
    group = stage.unique("loyalty")
    orders = stage.topic("orders", consumer_group=group)
    letters = given_up(stage, group, orders)
    shop, other = stage.producer("shop", is_group_named=True), stage.producer("other", is_group_named=True)
    quiet = stage.producer("shop")
    for number, (producer, value) in enumerate([(shop, "bad"), (other, "bad"), (quiet, "bad"), (shop, "good")]):
        producer.publish(Message(orders, "customer-7", value, [("h", b"1")]), txn_id=f"order-{number}")
    heard: list[tuple[DeadLetter, Any, Any, int]] = []

    def undo(letter: DeadLetter, message: ReceivedMessage, context: Context) -> None:
        heard.append((letter, message.key, message.value, context.attempt))
        if context.attempt == 1 and letter.txn_id == "order-0":
            raise ConnectionError("the shop's database is away")

    with reject(stage, group, orders):
        first = undoing(stage, letters)
        first.on_dead_letter(producer_group="shop")(undo)
        with first:
            until(lambda: len(heard) == 2, f"an attempt and a repetition, not {heard}")

        shop.publish(Message(orders, "customer-8", "bad too"), txn_id="order-4")
        again = undoing(stage, letters)
        again.on_dead_letter(producer_group="shop", topic=letters)(undo)
        with again:
            until(lambda: len(heard) == 3, f"one more, not {heard}")

    (letter, key, value, attempt), repeated, (last, *_) = heard
    assert (b"customer-7", b"bad", 1) == (key, value, attempt)
    assert (letter, b"customer-7", b"bad", 2) == repeated
    assert (group, orders, 0, 0) == (letter.consumer_group, *letter.origin)
    assert ("order-0", "shop", DeadLetterReason.ATTEMPTS_EXHAUSTED) == (
        letter.txn_id,
        letter.producer_group,
        letter.reason,
    )
    assert ("ValueError", "no such customer", 2) == (letter.error_type, letter.error_message, letter.attempt_count)
    assert 0 < letter.first_ms <= letter.last_ms
    assert ("order-4", DeadLetterReason.REJECTED, "too late") == (last.txn_id, last.reason, last.error_message)
    (plain,) = stage.assert_published(orders, txn_id="order-3")
    assert ["h", "txl-group", "txl-id", "txl-origin"] == [name for name, _ in plain.headers]
    (unnamed,) = stage.assert_published(orders, txn_id="order-2")
    assert (None, None) == (unnamed.producer_group, unnamed.dead_letter)


LETTER = DeadLetter(DeadLetterReason.REJECTED, Origin("orders", 0, 7), 1, 1, 1, 1, "Reject", "no", "loyalty")


def test_coroutines_hear_of_every_group_but_not_of_copies_and_other_records() -> None:
    with Stage(memory_access(MemoryKafka())) as stage:
        letters = given_up(stage, "loyalty", stage.topic("orders", consumer_group="loyalty"))
        for letter, value, headers in (
            (LETTER, "{", [("txl-id", b"a"), ("txl-group", b"shop")]),  # its value is why it was given up
            (LETTER._replace(error_type=EDITED), "1", [("txl-id", b"b"), ("txl-group", b"shop")]),
            (LETTER, "1", [("txl-id", b"c")]),
            (LETTER._replace(txn_id="d", producer_group="market"), "1", []),  # as one without content says it
        ):
            stage.write(letters, value, key="k", headers=[*headers, (DLQ_HEADER, encode_dead_letter(letter))])
        stage.write(letters, "no dead letter", key="k")
        heard: list[tuple[str, str, Any]] = []
        own: list[str] = []

        async def consume() -> None:
            everything: AsyncOrderedConsumer = undoing(stage, letters, AsyncOrderedConsumer, codec=JSON)
            market: AsyncOrderedConsumer = undoing(stage, letters, AsyncOrderedConsumer)

            @everything.on_dead_letter(producer_group=None)
            async def note(letter: DeadLetter, message: ReceivedMessage) -> None:
                heard.append((letter.txn_id, letter.producer_group, message.value))

            @market.handler(body=DeadLetter, tags="paid")
            async def note_paid(letter: DeadLetter) -> None:
                """Hears of none: no message has this tag."""

            @market.on_dead_letter(producer_group="market")
            async def note_own(letter: DeadLetter) -> None:
                own.append(letter.txn_id)

            async with everything:
                await asyncio.to_thread(until, lambda: len(heard) == 3, "three dead letters")
            stage.write(letters, "v", key="k", headers=[(DLQ_HEADER, encode_dead_letter(LETTER))])
            last = LETTER._replace(txn_id="e", producer_group="market")
            stage.write(letters, "v", key="k", headers=[(DLQ_HEADER, encode_dead_letter(last))])
            async with market:
                await asyncio.to_thread(until, lambda: own, "the one that is its own")

        asyncio.run(consume())

    assert [("a", "shop", b"{"), ("c", "", 1), ("d", "market", 1)] == heard
    assert ["e"] == own


def test_a_dead_letter_of_a_later_release_is_not_lost_and_one_that_cannot_be_undone_is_a_dead_letter() -> None:
    with Stage(memory_access(MemoryKafka())) as stage:
        letters = given_up(stage, "loyalty", stage.topic("orders", consumer_group="loyalty"))
        later = [("txl-group", b"shop"), (DLQ_HEADER, b"1|of-a-later-release|" + encode_dead_letter(LETTER)[11:])]
        stage.write(letters, "later", key="k", headers=later)
        stage.write(letters, "fails", key="k", headers=[(DLQ_HEADER, encode_dead_letter(LETTER))])
        undo: OrderedConsumer = undoing(stage, letters)
        heard: list[str] = []

        @undo.on_dead_letter(producer_group=None)
        def fail(letter: DeadLetter) -> Reject:
            heard.append(letter.consumer_group)
            return Reject("the shop has no such order")

        with undo:
            own = dead_letter_topic("shop-undo", letters)
            until(lambda: len(stage.messages(own)) == 2, "both are dead letters of the group that could not undo them")

        first, second = (message.dead_letter for message in stage.messages(own))
        assert first is not None
        assert second is not None
        assert ("ValueError", "dead letter: reason, topic or group out of form") == first[6:8]
        assert ("shop-undo", letters, "the shop has no such order") == (
            second.consumer_group,
            second.origin.topic,
            second.error_message,
        )
        assert ["loyalty"] == heard


def test_a_consumer_of_other_topics_hears_of_no_dead_letters() -> None:
    orders = OrderedConsumer(group="shop-undo", topics=["orders"])

    @orders.handler
    def by_its_annotation(letter: DeadLetter) -> None:
        """Would count every message as handled."""

    with pytest.raises(UsageError, match=r"orders has no dead letters: their topics end with \.dlq"):
        orders.start()
    consumer = OrderedConsumer(group="shop-undo", topics=["orders", "loyalty.orders.dlq"])
    with pytest.raises(UsageError, match=r"orders: no topic of dead letters \(GROUP\.TOPIC\.dlq\)"):
        consumer.on_dead_letter(producer_group="shop", topic="orders")
    with pytest.raises(UsageError, match="the shop"):
        consumer.on_dead_letter(producer_group="the shop")
    with pytest.raises(ConfigError, match="its parameter letter gets the DeadLetter"):

        @consumer.on_dead_letter(producer_group="shop")  # type: ignore[arg-type]  # what mypy says of it
        def undo(letter: int) -> None:
            """Expects something else."""


@pytest.mark.parametrize("seconds", [0, 60], ids=["in half", "on doubt"])
def test_a_forwarded_message_names_its_group_where_its_half_record_asks_for_it(seconds: int) -> None:
    stage = StillCoordinator(doubt_after=timedelta(seconds=5))
    named = stage.half(txn_key("a"), options=HalfOptions(is_group_named=True))
    other = stage.half(txn_key("b"))
    stage.work(seconds=seconds)
    stage.commit(txn_key("a"), named)
    stage.commit(txn_key("b"), other)
    stage.work(seconds=5)

    headers = [r.headers() or () for r in stage.kafka.records("orders")]
    assert [["txl-group", "txl-id", "txl-origin"], ["txl-id", "txl-origin"]] == [
        [n for n, _ in each] for each in headers
    ]
    assert ("txl-group", GROUP.encode()) == headers[0][0]
