"""docs/howto/metrics.md has every metric as the code has it; docs/howto/on-call.md has a section for every alert."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.dashboards import alerts
from tests.support.databases import free_port
from tests.support.pages import ROOT, programs
from tests.support.programs import run_program
from txlayer.adapters.telemetry import EVERYBODYS, Family
from txlayer.cli.spark import FAMILIES as OF_AUDITS
from txlayer.consumer.metrics import FAMILIES as OF_CONSUMERS
from txlayer.coordinator.metrics import FAMILIES as OF_COORDINATORS
from txlayer.producer.metrics import FAMILIES as OF_PRODUCERS
from txlayer.producer.responder import FAMILIES as OF_RESPONDERS
from txlayer_spark.progress import FAMILIES as OF_STREAMS

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"
BEFORE = """
from txlayer.adapters.memory import MemoryKafka

kafka = MemoryKafka()
kafka.create_topic("orders")
kafka.create_namespace("txlayer")
"""
AFTER = """
from urllib.request import urlopen
from txlayer import Message

with producer:
    producer.publish(Message("orders", value=b"42 cents"))
    with urlopen("http://127.0.0.1:PORT/metrics") as answer:
        print(answer.read().decode())
"""
PARTS = ("**Means**: ", "**Look at**: ", "**Do**: ")


def sections(page: str) -> dict[str, str]:
    """{heading: the text below it}."""
    text = (HOWTO / page).read_text(encoding="utf-8")
    found = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return dict(found)


def row(family: Family) -> str:
    """A family as the page shows it."""
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind.value} | {labels} | {family.text} |"


@pytest.mark.parametrize(
    ("heading", "families"),
    [
        ("Every role", EVERYBODYS),
        ("Coordinator", OF_COORDINATORS),
        ("Consumer", OF_CONSUMERS),
        ("Responder", OF_RESPONDERS),
        ("Audit", OF_AUDITS),
        ("Streams", OF_STREAMS),
        ("Producer", OF_PRODUCERS),
    ],
)
def test_every_metric_stands_there_as_the_code_has_it(heading: str, families: tuple[Family, ...]) -> None:
    lines = [x for x in sections("metrics.md")[heading].splitlines() if x.startswith("| `")]

    assert [row(family) for family in families] == lines


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    assert [str(alert["alert"]) for alert in alerts()] == list(sections("on-call.md"))


@pytest.mark.parametrize("name", [str(alert["alert"]) for alert in alerts()])
def test_a_section_says_what_it_means_what_to_look_at_and_what_to_do(name: str) -> None:
    text = sections("on-call.md")[name]

    assert list(PARTS) == [part for part in PARTS if part in text]


def test_a_program_shows_its_producers(tmp_path: Path) -> None:
    _, program = programs("metrics")
    port = str(free_port())
    own = program.replace(
        'bootstrap_servers="127.0.0.1:9092"',
        "bootstrap_servers=kafka.bootstrap_servers, connect=kafka.connect_producer",
    )
    assert own != program

    ran = run_program(
        [sys.executable, "-c", BEFORE + own.replace("9465", port) + AFTER.replace("PORT", port)],
        within=60,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )

    assert (0, "") == (ran.returncode, ran.stderr)
    lines = ran.stdout.splitlines()
    assert 'txlayer_producer_transactions_total{group="shop",outcome="commit"} 1.0' in lines
    assert 'txlayer_producer_transaction_duration_seconds_count{group="shop"} 1.0' in lines
    assert 'txlayer_producer_in_flight_transactions{group="shop"} 0.0' in lines
    assert any(line.startswith('txlayer_info{name="shop",role="producer"') for line in lines)
