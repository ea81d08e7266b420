"""What the dashboard and the alerts ask for: their expressions, and the metrics that those name."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from txlayer.adapters.telemetry import EVERYBODYS, Family, FamilyKind
from txlayer.cli.spark import FAMILIES as OF_AUDITS
from txlayer.consumer.metrics import FAMILIES as OF_CONSUMERS
from txlayer.coordinator.metrics import FAMILIES as OF_COORDINATORS
from txlayer.producer.metrics import FAMILIES as OF_PRODUCERS
from txlayer.producer.responder import FAMILIES as OF_RESPONDERS
from txlayer_spark.progress import FAMILIES as OF_STREAMS

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "compose" / "grafana" / "dashboards" / "txlayer.json"
ALERTS = ROOT / "compose" / "prometheus" / "alerts.yml"

FAMILIES: tuple[Family, ...] = (
    *EVERYBODYS,
    *OF_COORDINATORS,
    *OF_CONSUMERS,
    *OF_RESPONDERS,
    *OF_PRODUCERS,
    *OF_AUDITS,
    *OF_STREAMS,
)

OF_PROMETHEUS = frozenset({"up", "ALERTS", "process_cpu_seconds_total", "process_resident_memory_bytes"})
"""Series that are not ours: its own, and its client's about the process."""

_STRINGS = re.compile(r'"[^"]*"')
_LABELS = re.compile(r"\{[^}]*\}|\b(?:by|on|without|ignoring) *\([^)]*\)|\[[^\]]*\]|\boffset +[0-9a-z]+")
_NAMES = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_WORDS = frozenset(
    [
        "sum",
        "max",
        "min",
        "count",
        "rate",
        "increase",
        "histogram_quantile",
        "vector",
        "time",
        "and",
        "or",
        "unless",
        "by",
        "on",
        "group",
        "last_over_time",
        "min_over_time",
    ]
)


def series_names() -> frozenset[str]:
    """Every series that some role shows."""
    names = set(OF_PROMETHEUS)
    for family in FAMILIES:
        if family.kind is FamilyKind.HISTOGRAM:
            names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(family.name)
    return frozenset(names)


def named_in(expression: str) -> set[str]:
    """The series that an expression names."""
    bare = _LABELS.sub(" ", _STRINGS.sub(" ", expression))
    return set(_NAMES.findall(bare)) - _WORDS


def dashboard() -> dict[str, Any]:
    """The dashboard's file."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    """Its panels, without the rows' titles."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> list[str]:
    """Every query, with Grafana's variables as Grafana would fill them in for all processes."""
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    queries += [a["expr"] for a in dashboard()["annotations"]["list"]]
    return [q.replace("$__rate_interval", "30s").replace("$instance", ".*") for q in queries]


def alerts() -> list[dict[str, Any]]:
    """Every alert."""
    groups = yaml.load(ALERTS.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]
    return [rule for group in groups for rule in group["rules"]]
