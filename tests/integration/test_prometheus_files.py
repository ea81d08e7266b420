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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("check", "config", "prometheus.yml"), "SUCCESS"),
        (("check", "rules", "alerts.yml"), f"SUCCESS: {len(alerts())} rules found"),
        (("test", "rules", "alerts_test.yml", "alerts_days_test.yml"), "SUCCESS"),
    ],
    ids=["configuration", "rules", "every alert fires and no other beside it"],
)
def test_the_files_are_right(tool: Tool, arguments: tuple[str, ...], expected: str) -> None:
    code, said = tool(*arguments)

    assert (0, True) == (code, expected in said), said


def test_there_is_a_firing_for_every_alert() -> None:
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    fired = [
        sample["labels"]
        for test in tests
        for expression in test["promql_expr_test"]
        for sample in expression["exp_samples"]
    ]

    assert [f'{{alertname="{alert["alert"]}"}}' for alert in alerts()] == list(dict.fromkeys(fired))
