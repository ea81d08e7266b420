"""The code of docs/howto/consumers.md runs as it stands."""

import re
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import blocks, programs
from tests.support.waiting import wait_until
from txlayer import Context, OrderedConsumer, ReceivedMessage, Reject
from txlayer.adapters.memory import MemoryKafka
from txlayer.config import CoordinatorConfig
from txlayer.consumer.consumer import ConsumerService
from txlayer.testing.stage import RunningCoordinator

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "consumers.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def names_of(program: str) -> dict[str, Any]:
    """What a program defines when it is imported."""
    names: dict[str, Any] = {"__name__": "loyalty"}
    exec(compile(program, "loyalty.py", "exec", dont_inherit=True), names)
    return names


def test_the_page_has_programs() -> None:
    assert 9 == len(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_defines_consumers(program: str) -> None:
    assert any(isinstance(value, ConsumerService) for value in names_of(program).values())


def test_the_first_program_handles_messages(capsys: pytest.CaptureFixture[str]) -> None:
    kafka = MemoryKafka()
    kafka.create_namespace()
    for topic in ("orders", "loyalty.orders.dlq", "loyalty.orders.replay"):
        kafka.create_topic(topic)
    kafka.append("orders", b"7", key=b"customer")
    consumer = names_of(PROGRAMS[0])["consumer"]
    consumer._connect = kafka.connect_consumer

    with consumer:
        wait_until(
            lambda: consumer.stats().topics.get("orders") and consumer.stats().topics["orders"].handled,
            within=20,
            what="the message handled",
        )

    assert "b'customer' b'7' 1\n" == capsys.readouterr().out


def test_the_program_that_polls_takes_messages(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [text for text in PROGRAMS if "consumer.poll" in text]
    kafka = MemoryKafka()
    kafka.create_namespace()
    for topic in ("orders", "loyalty.orders.dlq", "loyalty.orders.replay"):
        kafka.create_topic(topic)
    kafka.append("orders", b"7", key=b"customer")
    names = names_of(program.replace("seconds=10", "seconds=2"))
    names["consumer"]._connect = kafka.connect_consumer

    names["work"]()

    assert "b'customer' b'7' 1\n" == capsys.readouterr().out


def test_the_program_with_bodies_sends_and_handles_an_order(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [text for text in PROGRAMS if "codec=JSON" in text]
    kafka = MemoryKafka()
    kafka.create_namespace()
    for topic in ("orders", "loyalty.orders.dlq", "loyalty.orders.replay"):
        kafka.create_topic(topic)
    config = CoordinatorConfig(bootstrap_servers=kafka.bootstrap_servers)
    names = names_of(program)
    names["producer"]._connect, names["consumer"]._connect = kafka.connect_producer, kafka.connect_consumer
    stats = names["consumer"].stats

    with ExitStack() as opened:
        connections = opened.enter_context(closing(kafka.connect_coordinator(config)))
        for running in (RunningCoordinator(config, connections), names["producer"], names["consumer"]):
            opened.enter_context(running)
        names["sell"]()
        wait_until(
            lambda: stats().topics.get("orders") and stats().topics["orders"].handled,
            within=20,
            what="the order handled",
        )

    assert capsys.readouterr().out.startswith("customer-7 42 ")


def test_the_saga_is_undone_when_its_other_part_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    kafka = MemoryKafka()
    kafka.create_namespace()
    letters = "loyalty.orders.dlq"
    for topic in (
        "orders",
        letters,
        "loyalty.orders.replay",
        f"shop-undo.{letters}.dlq",
        f"shop-undo.{letters}.replay",
    ):
        kafka.create_topic(topic)
    config = CoordinatorConfig(bootstrap_servers=kafka.bootstrap_servers)
    sell, hear = programs("saga")
    connected = f'connect=kafka.connect_producer, bootstrap_servers="{kafka.bootstrap_servers}"'
    sell = sell.replace('bootstrap_servers="127.0.0.1:9092"', connected)
    undo = names_of(hear)["undo"]
    loyalty = OrderedConsumer(group="loyalty", topics=["orders"], start_at="earliest", connect=kafka.connect_consumer)
    undo._connect = kafka.connect_consumer

    @loyalty.handler
    def add_points(_message: ReceivedMessage, _context: Context) -> Reject:
        return Reject("no such customer")

    with ExitStack() as opened:
        connections = opened.enter_context(closing(kafka.connect_coordinator(config)))
        for running in (RunningCoordinator(config, connections), loyalty, undo):
            opened.enter_context(running)
        exec(compile(sell, "shop.py", "exec", dont_inherit=True), {"kafka": kafka})
        stats = undo.stats
        wait_until(lambda: stats().topics.get(letters) and stats().topics[letters].handled, within=20, what="it heard")

    assert blocks(ROOT / "docs" / "howto" / "saga.md", "text") == [capsys.readouterr().out]
