"""Who may import whom: each contract of pyproject.toml goes red when it is broken. `make form` sees that they hold."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
CACHES = shutil.ignore_patterns("__pycache__")


BREAKS = [
    ("core", "txlayer.config", "layers"),
    ("adapters", "txlayer.coordinator", "layers"),
    ("producer", "txlayer.testing", "layers"),
    ("operate", "txlayer.cli", "layers"),
    ("coordinator", "txlayer.operate", "layers"),
    ("core", "time", "the core is pure"),
    ("core", "threading", "the core is pure"),
    ("coordinator", "confluent_kafka", "only adapters/kafka speaks to Kafka"),
    ("cli", "confluent_kafka", "only adapters/kafka speaks to Kafka"),
    ("operate", "txlayer.console", "layers"),
    ("cli", "starlette", "only the console speaks HTTP to browsers"),
    ("producer", "sqlalchemy", "only adapters/sql speaks to databases"),
    ("producer", "txlayer.adapters.sql.barrier", "services know a barrier by its port alone"),
]
"""(package, what it must not import, the contract that says so)."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """{contract: what is said of it} over a copy of the packages in which each contract is broken."""
    copy = tmp_path_factory.mktemp("broken")
    shutil.copy(ROOT / "pyproject.toml", copy)
    shutil.copytree(ROOT / "txlayer", copy / "txlayer", ignore=CACHES)
    for package, imported, _ in BREAKS:
        with (copy / "txlayer" / package / "broken.py").open("a", encoding="utf-8") as broken:
            broken.write(f"import {imported}\n")
    (copy / "txlayer" / "stranger.py").touch()
    said = run_program(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        within=60,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(copy), str(copy / "spark")))},
    )
    assert 0 != said.returncode
    _, *parts = re.split(r"^(.+)\n-+\n", said.stdout, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("package", "imported", "contract"), BREAKS)
def test_a_broken_import_contract_is_found(told: dict[str, str], package: str, imported: str, contract: str) -> None:
    assert f"txlayer.{package}.broken -> {imported} (l." in told[contract]


@pytest.mark.slow
def test_a_module_without_a_layer_is_found(told: dict[str, str]) -> None:
    assert "not listed as layers:\n\n- txlayer.stranger\n" in told["layers"]
