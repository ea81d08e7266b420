"""docs/howto/metrics.md has every metric as the code has it; docs/howto/on-call.md has a section for every alert."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.dashboards import alerts
from txlayer.adapters.meters import EVERYBODYS, Family
from txlayer.consumer.figures import FAMILIES as OF_CONSUMERS
from txlayer.coordinator.families import FAMILIES as OF_COORDINATORS
from txlayer.producer.figures import FAMILIES as OF_RESPONDERS

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto"
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
    ],
)
def test_every_metric_stands_there_as_the_code_has_it(
    heading: str, families: tuple[Family, ...]
) -> None:
    lines = [x for x in sections("metrics.md")[heading].splitlines() if x.startswith("| `")]

    assert [row(family) for family in families] == lines


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    assert [str(alert["alert"]) for alert in alerts()] == list(sections("on-call.md"))


@pytest.mark.parametrize("name", [str(alert["alert"]) for alert in alerts()])
def test_a_section_says_what_it_means_what_to_look_at_and_what_to_do(name: str) -> None:
    text = sections("on-call.md")[name]

    assert list(PARTS) == [part for part in PARTS if part in text]
