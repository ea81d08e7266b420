"""The dashboard and the alerts name nothing that no role shows, and say what a person on call needs, in fields that Grafana's types know.

Grafana itself was never run here (docs/howto/deploy.md): the types are those that Grafana's own makers generate from its
schema, for the release that compose names.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.dashboards import (
    DASHBOARD,
    FAMILIES,
    alerts,
    dashboard,
    dashboard_expressions,
    named_in,
    panels,
    series_names,
)
from tests.support.deployment import COMPOSE, documents, services
from txlayer.adapters.telemetry import Family, FamilyKind
from txlayer.core.verification import Severity
from txlayer_spark.verdicts import SEVERITIES


@pytest.mark.parametrize("expression", [*dashboard_expressions(), *(alert["expr"] for alert in alerts())])
def test_a_query_of_the_dashboard_or_of_an_alert_names_series_that_exist(expression: str) -> None:
    names = named_in(expression)

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


FOREIGN = {
    "annotations.list.0.titleFormat": "of the data source's own kind of annotation, which Grafana's schema leaves open",
    "templating.list.0.definition": "what the page of variables shows; Grafana writes it into what it exports",
}
"""Fields that are right though the types do not know them."""


def lost(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """What of `given` is not in `kept`, or is there as something else."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name in given:
            at = f"{place}.{name}".lstrip(".")
            if name in kept:
                yield from lost(given[name], kept[name], at)
            else:
                yield at
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{place}.{number}")
    elif given != kept:
        yield place


def unknown_in(found: dict[str, Any]) -> set[str]:
    """Places of a dashboard that Grafana's types do not keep."""
    register_default_plugins()
    parsed = Dashboard.from_json(copy.deepcopy(found))
    return set(lost(found, json.loads(JSONEncoder().encode(parsed))))


def typed_dashboard() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return found


def test_the_types_are_those_of_the_grafana_that_compose_names() -> None:
    image = services()["grafana"]["image"].rpartition(":")[2]
    types = version("grafana-foundation-sdk").rpartition("!")[2]

    assert image.split(".")[:2] == types.split(".")[:2]


def test_the_dashboard_has_no_field_that_grafana_does_not_know() -> None:
    assert set(FOREIGN) == unknown_in(typed_dashboard())


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda d: d.update(titel="x"), "titel"),
        (lambda d: d["panels"][1]["gridPos"].update(width=3), "panels.1.gridPos.width"),
        (lambda d: d["panels"][1]["fieldConfig"]["defaults"].update(unitt="s"), "panels.1.fieldConfig.defaults.unitt"),
        (lambda d: d["panels"][1]["targets"][0].update(legend="x"), "panels.1.targets.0.legend"),
    ],
)
def test_a_mistyped_field_would_be_seen(spoil: Callable[[Any], None], place: str) -> None:
    found = typed_dashboard()
    spoil(found)

    assert {place} == unknown_in(found) - set(FOREIGN)


def test_grafana_finds_its_data_source_and_the_dashboard_where_compose_puts_them() -> None:
    folder = COMPOSE / "grafana" / "provisioning"
    ((source,),) = [d["datasources"] for d in documents(folder / "datasources" / "prometheus.yml")]
    ((provider,),) = [d["providers"] for d in documents(folder / "dashboards" / "txlayer.yml")]
    mounted = [volume.split(":")[:2] for volume in services()["grafana"]["volumes"]]
    listening = dict(services())["prometheus"]

    used = {t["datasource"]["uid"] for p in typed_dashboard()["panels"] for t in p.get("targets", ())}
    assert {source["uid"]} == used
    assert ("prometheus", "http://prometheus:9090") == (source["type"], source["url"])
    assert "http://127.0.0.1:9090" in listening["healthcheck"]["test"]
    assert ["./grafana/dashboards", provider["options"]["path"]] in mounted
    assert ["./grafana/provisioning", "/etc/grafana/provisioning"] in mounted
