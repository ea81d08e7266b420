"""`check_with` and `query_id`: what a producer writes, what a coordinator asks with, what a handler gets."""

from typing import Any

import pytest

from tests.support.core_records import txn_key
from tests.support.partition_driver import PartitionDriver
from tests.support.producer_stage import HALF, ProducerStage
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters.errors import Code
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.core import codec
from txlayer.core.messages import NO_OPTIONS, CheckRecord, HalfHeader, HalfOptions, Message, QuestionDetails
from txlayer.errors import UsageError

WANTED = ("key", "tags", "headers:order-id", "query_id")
ORDER = Message("orders", b"k", b"v", headers=[("order-id", b"7"), ("x", b"1")], tags="big")
OPEN = txn_key("open")


def options_of(stage: ProducerStage) -> list[HalfOptions]:
    found = [codec.decode_half_header(codec.half_header_of(r.headers()) or b"") for r in stage.writer.of(HALF)]
    return [each.options for each in found if isinstance(each, HalfHeader)]


# --- the producer -----------------------------------------------------------------------------------------------------


def test_the_first_half_record_says_what_questions_carry(stage: ProducerStage) -> None:
    with stage.producer() as producer, producer.transaction(check_with=WANTED, query_id="invoice 7|2026") as tx:
        tx.send("orders", key=b"k", value=b"v")
        tx.send("orders", key=b"k", value=b"w", partition=2)
        tx.prepare()

    first, second = options_of(stage)
    assert ("k+t+horder-id+q", "invoice 7|2026") == (first.check_with, first.query_id)
    assert ("", None, 2) == (second.check_with, second.query_id, second.partition)


def test_a_producer_has_a_default_that_a_transaction_overrides(stage: ProducerStage) -> None:
    with stage.producer(check_with=("key",)) as producer:
        producer.publish(ORDER)
        producer.submit(ORDER, query_id="7").result()
        producer.publish(ORDER, check_with=())
        producer.publish(Message("orders", b"k", b"v"), query_id="8", check_with=("content",))

    found = [(each.check_with, each.query_id) for each in options_of(stage)]
    assert [("k", None), ("k", "7"), ("", None), ("c", "8")] == found


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"check_with": "key"}, "a tuple of names"),
        ({"check_with": ("keys",)}, "not keys"),
        ({"check_with": ("headers:",)}, "not headers:"),
        ({"check_with": ("headers:traceparent",)}, "carries 'headers:traceparent'"),
        ({"check_with": ("headers:txl-id",)}, "carries 'headers:txl-id'"),
        ({"check_with": (f"headers:{'x' * 512}",)}, "too long"),
        ({"check_with": (7,)}, "check_with"),
        ({"check_with": 7}, "check_with"),
        ({"query_id": ""}, "query_id"),
        ({"query_id": 7}, "query_id"),
        ({"query_id": "a\n"}, "query_id"),
        ({"query_id": "ä" * 101}, "query_id"),
    ],
)
def test_what_no_question_can_carry_is_refused(stage: ProducerStage, given: dict[str, Any], match: str) -> None:
    with stage.producer() as producer, pytest.raises(UsageError, match=match):
        producer.publish(ORDER, **given)

    assert [] == stage.writer.of(HALF)


def test_the_largest_options_fit_into_a_half_header(stage: ProducerStage) -> None:
    wanted = [f"headers:{'x' * 509}", "key"]
    with stage.producer() as producer:
        producer.publish(ORDER, txn_id="i" * 128, check_with=wanted, query_id="ä" * 100)

    (record,) = stage.writer.of(HALF)
    assert len(codec.half_header_of(record.headers()) or b"") <= codec.HALF_HEADER_BYTES_MAX
    assert "ä" * 100 == options_of(stage)[0].query_id


def test_an_option_that_is_none_is_a_mistake(stage: ProducerStage) -> None:
    with stage.producer() as producer, pytest.raises(TypeError, match="ordering"):
        producer.publish(ORDER, ordering="7")  # type: ignore[call-arg]  # the mistake


# --- the coordinator --------------------------------------------------------------------------------------------------


def admit_all(stage: StillCoordinator) -> None:
    """Every group has members."""
    connections: Any = stage.coordinator._connections
    connections.groups_with_members = frozenset


def asked(stage: StillCoordinator) -> list[MemoryRecord]:
    return stage.kafka.records(stage.topics.check)


def half(stage: StillCoordinator, *wanted: str, value: bytes = b"v", query_id: str | None = "7") -> int:
    admit_all(stage)
    options = HalfOptions(check_with=codec.encode_check_with(wanted), query_id=query_id)
    header = codec.half_header(OPEN, "shop", "orders", 0, 1, 5, codec.encode_options(options))
    headers = [("tags", b"big"), ("order-id", b"7"), ("txl", header)]
    return stage.kafka.append(stage.topics.half, value, key=b"k", partition=0, headers=headers)


@pytest.mark.promise("P7")
def test_every_question_carries_what_its_transaction_asked_for() -> None:
    stage = StillCoordinator()
    half(stage, *WANTED)

    for _ in range(4):  # later owners have neither half in memory nor the half record's options
        stage.work(seconds=60)
        admit_all(stage)

    details = [codec.decode_details(record.headers()) for record in asked(stage)]
    assert 3 < len(details)
    assert [QuestionDetails(b"k", "big", (("order-id", b"7"),), "7")] * len(details) == details


def test_content_is_carried_when_it_is_asked_for_and_small_enough() -> None:
    for size, expected in ((16_384, (16_384, ())), (16_385, (0, ("content",)))):
        stage = StillCoordinator()
        half(stage, "content", value=b"v" * size)

        stage.work(seconds=90)

        details = [codec.decode_details(record.headers()) for record in asked(stage)]
        assert 1 < len(details)
        assert {expected} == {(len(each.content or b""), each.left_out) for each in details}


@pytest.mark.fault("check handler: the check topic refuses a question as too large")
def test_a_check_topic_that_refuses_what_a_question_carries_gets_the_question_alone() -> None:
    stage = StillCoordinator()
    half(stage, "content", value=b"v" * 500)

    def answer(topic: str, records: list[Any]) -> Code | None:
        sizes = [len(r.value() or b"") + sum(len(value or b"") for _, value in r.headers() or ()) for r in records]
        return Code.MSG_SIZE_TOO_LARGE if topic == stage.topics.check and max(sizes) > 300 else None

    stage.refuse(answer)
    stage.work(seconds=90)

    checks = [codec.decode_check(record.value()) for record in asked(stage)]
    assert ["orders"] * len(checks) == [check.text for check in checks if isinstance(check, CheckRecord)]
    assert checks
    assert {None} == {codec.decode_details(record.headers()).content for record in asked(stage)}


def test_questions_of_other_transactions_carry_nothing() -> None:
    stage = StillCoordinator()
    half(stage)

    stage.work(seconds=90)

    assert [None, None] == [record.headers() or None for record in asked(stage)][:2]


def test_a_coordinator_keeps_only_the_kind_of_what_questions_carry() -> None:
    driver = PartitionDriver()
    names = [txn_key(f"order-{n}") for n in range(3)]
    for name, options in zip(
        names,
        (HalfOptions(check_with="k+horder-id", query_id="7"), HalfOptions(check_with="t+c"), HalfOptions(query_id="8")),
        strict=True,
    ):
        driver.half(name, options=options)
    driver.turn()
    driver.pass_time(after_ms=6_000, is_present=True)

    ledger = driver.ledger
    kept = [ledger.transactions[name].options for name in names]
    assert [HalfOptions(check_with="k"), HalfOptions(check_with="c"), NO_OPTIONS] == kept
    assert kept[2] is NO_OPTIONS
