"""docs/howto/run-a-coordinator.md names the coordinator's log lines, and its warnings and errors without exception."""

import logging
import re
from pathlib import Path

from txlayer.coordinator.metrics import REPORTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "run-a-coordinator.md"

_OF_PRODUCERS = {"producer.refused"}
"""Lines of `adapters/kafka` that only producers write."""

_CALL = re.compile(r'logger\.(debug|info|warning|error)\(\s*"([a-z]+\.[a-z_-]+)"')


def logged() -> dict[str, str]:
    """{name: level} of every log line that a coordinator may write."""
    product = ROOT / "txlayer"
    folders = [product / "coordinator", product / "runtime", product / "adapters" / "kafka"]
    alone = [product / "adapters" / "connect.py", product / "cli" / "services.py"]
    files = [*alone, *(path for folder in folders for path in folder.glob("*.py"))]
    found = {
        name: level
        for path in files
        for level, name in _CALL.findall(path.read_text(encoding="utf-8"))
        if name not in _OF_PRODUCERS
    }
    reports = {f"transaction.{k.value}": logging.getLevelName(s.level).lower() for k, s in REPORTS.items()}
    storms = {f"transactions.{k.value}": logging.getLevelName(s.level).lower() for k, s in REPORTS.items()}
    return found | reports | storms


def on_page() -> dict[str, str]:
    """{name: level} of the page's table."""
    rows = re.findall(r"^\| (`[a-z]+\.[^|]+`) \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: level for names, level in rows for name in re.findall(r"`([^`]+)`", names)}


def test_every_log_line_on_the_page_exists_with_its_level() -> None:
    lines = logged()

    assert {name: lines.get(name) for name in on_page()} == on_page()


def test_every_warning_and_error_stands_on_the_page() -> None:
    loud = {name for name, level in logged().items() if level in ("warning", "error")}
    # A storm of one kind is told by its number; the page has the single lines.
    loud = {name for name in loud if not name.startswith("transactions.")}

    assert set() == loud - set(on_page())
