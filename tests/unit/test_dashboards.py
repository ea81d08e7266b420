"""The dashboard and the alerts name nothing that no role shows, and say what a person on call needs."""

import re

import pytest

from tests.support.dashboards import FAMILIES, alerts, dashboard, dashboard_expressions, named_in, panels, series_names
from txlayer.adapters.metrics import Family, FamilyKind
from txlayer_spark.verdicts import SEVERITIES, Severity


@pytest.mark.parametrize("expression", dashboard_expressions())
def test_a_query_of_the_dashboard_names_series_that_exist(expression: str) -> None:
    names = named_in(expression)

    assert names
    assert set() == names - series_names()


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_names_series_that_exist(alert: dict[str, str]) -> None:
    names = named_in(alert["expr"])

    assert names
    assert set() == names - series_names()


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_and_why_and_where_to_read_on(alert: dict[str, dict[str, str]]) -> None:
    notes, name = alert["annotations"], str(alert["alert"])

    assert re.fullmatch(r"Txlayer[A-Z][A-Za-z]+", name)
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert {"summary", "why", "runbook"} == set(notes)
    assert f"docs/howto/on-call.md of txlayer, #{name.lower()}" == notes["runbook"]
    assert notes["why"].endswith(".")


def test_the_alert_about_an_audit_names_the_verdicts_that_break_a_promise() -> None:
    (alert,) = [alert for alert in alerts() if alert["alert"] == "TxlayerAuditBroken"]

    named = {tuple(names.split("|")) for names in re.findall(r'verdict=~"([a-z_|]+)"', alert["expr"])}

    assert {tuple(name for name, severity in SEVERITIES.items() if severity is Severity.FAULT)} == named


def test_the_dashboard_is_one_that_grafana_loads() -> None:
    found = dashboard()
    ids = [panel["id"] for panel in found["panels"]]

    assert ("txlayer", 39) == (found["uid"], found["schemaVersion"])
    assert sorted(set(ids)) == sorted(ids)
    for panel in panels():
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {"type": "prometheus", "uid": "prometheus"} == panel["datasource"]
        refs = [target["refId"] for target in panel["targets"]]
        assert sorted(set(refs)) == refs


def test_panels_do_not_cover_each_other() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


def test_every_metric_of_ours_stands_on_the_dashboard_or_in_an_alert() -> None:
    asked = {n for e in dashboard_expressions() for n in named_in(e)}
    asked |= {n for alert in alerts() for n in named_in(alert["expr"])}
    shown = {
        family.name for family in FAMILIES if {family.name, f"{family.name}_bucket", f"{family.name}_count"} & asked
    }

    assert set() == {family.name for family in FAMILIES} - shown


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family.name))
def test_a_name_follows_prometheus_conventions(family: Family) -> None:
    assert re.fullmatch(r"txlayer_[a-z]+(_[a-z]+)*", family.name)
    assert (family.kind is FamilyKind.COUNTER) == family.name.endswith("_total")
    assert family.kind is not FamilyKind.HISTOGRAM or family.name.endswith("_seconds")
    assert "milliseconds" not in family.name
    assert not family.name.endswith("_ms")
    assert family.text.endswith(".")
    assert not set(family.labels) & {"id", "key", "txn_id", "value"}


def test_names_are_used_once() -> None:
    names = [family.name for family in FAMILIES]

    assert sorted(set(names)) == sorted(names)
