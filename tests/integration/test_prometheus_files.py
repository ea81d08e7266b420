"""Prometheus' own tool about our files: they are right, and every alert fires, by itself, on what it is about."""

from collections.abc import Callable

import pytest
import yaml

from tests.support.dashboards import alerts
from tests.support.debian import program
from tests.support.prometheus import COMPOSE, PACKAGE, promtool

FOLDER = COMPOSE / "prometheus"

Tool = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def tool() -> Tool:
    """`promtool`, in the folder of our files."""
    program("promtool", package=PACKAGE)
    return lambda *arguments: promtool(*arguments, folder=FOLDER)


def test_the_configuration_is_right(tool: Tool) -> None:
    code, said = tool("check", "config", "prometheus.yml")

    assert (0, True) == (code, "SUCCESS" in said), said


def test_the_rules_are_right(tool: Tool) -> None:
    code, said = tool("check", "rules", "alerts.yml")

    assert (0, True) == (code, f"SUCCESS: {len(alerts())} rules found" in said), said


def test_every_alert_fires_and_no_other_beside_it(tool: Tool) -> None:
    code, said = tool("test", "rules", "alerts_test.yml", "alerts_days_test.yml")

    assert (0, True) == (code, "SUCCESS" in said), said


def test_there_is_a_firing_for_every_alert() -> None:
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    fired = [
        sample["labels"]
        for test in tests
        for expression in test["promql_expr_test"]
        for sample in expression["exp_samples"]
    ]

    assert [f'{{alertname="{alert["alert"]}"}}' for alert in alerts()] == list(dict.fromkeys(fired))
