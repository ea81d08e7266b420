"""The dashboard has no field that the types of that Grafana do not know, and Grafana is told where everything is.

Grafana itself was never run here (docs/howto/deploy.md): the types are those that Grafana's own makers generate from its
schema, for the release that compose names.
"""

import copy
import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.dashboards import DASHBOARD
from tests.support.deployment import COMPOSE, documents, services

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


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return found


def test_the_types_are_those_of_the_grafana_that_compose_names() -> None:
    image = services()["grafana"]["image"].rpartition(":")[2]
    types = version("grafana-foundation-sdk").rpartition("!")[2]

    assert image.split(".")[:2] == types.split(".")[:2]


def test_the_dashboard_has_no_field_that_grafana_does_not_know() -> None:
    assert set(FOREIGN) == unknown_in(dashboard())


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
    found = dashboard()
    spoil(found)

    assert {place} == unknown_in(found) - set(FOREIGN)


def test_grafana_finds_its_data_source_and_the_dashboard_where_compose_puts_them() -> None:
    folder = COMPOSE / "grafana" / "provisioning"
    ((source,),) = [d["datasources"] for d in documents(folder / "datasources" / "prometheus.yml")]
    ((provider,),) = [d["providers"] for d in documents(folder / "dashboards" / "txlayer.yml")]
    mounted = [volume.split(":")[:2] for volume in services()["grafana"]["volumes"]]
    listening = dict(services())["prometheus"]

    used = {t["datasource"]["uid"] for p in dashboard()["panels"] for t in p.get("targets", ())}
    assert {source["uid"]} == used
    assert ("prometheus", "http://prometheus:9090") == (source["type"], source["url"])
    assert "http://127.0.0.1:9090" in listening["healthcheck"]["test"]
    assert ["./grafana/dashboards", provider["options"]["path"]] in mounted
    assert ["./grafana/provisioning", "/etc/grafana/provisioning"] in mounted
