"""Who may import whom: the contracts of pyproject.toml hold, and each of them goes red when it is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHES = shutil.ignore_patterns("__pycache__")


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """The contracts of `root`'s pyproject.toml over `root`'s packages."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages that a test may break."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "txlayer", tmp_path / "txlayer", ignore=CACHES)
    return tmp_path


def test_every_import_contract_holds() -> None:
    said = lint_imports(ROOT)

    assert 0 == said.returncode, said.stdout + said.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("txlayer/core/broken.py", "import txlayer.config", "layers"),
        ("txlayer/adapters/broken.py", "import txlayer.coordinator", "layers"),
        ("txlayer/producer/broken.py", "import txlayer.testing", "layers"),
        ("txlayer/operate/broken.py", "import txlayer.cli", "layers"),
        ("txlayer/coordinator/broken.py", "import txlayer.operate", "layers"),
        ("txlayer/stranger.py", "", "stranger"),
        ("txlayer/core/broken.py", "import time", "the core is pure"),
        ("txlayer/core/broken.py", "import threading", "the core is pure"),
        (
            "txlayer/coordinator/broken.py",
            "import confluent_kafka",
            "only adapters/kafka speaks to Kafka",
        ),
        ("txlayer/cli/broken.py", "import confluent_kafka", "only adapters/kafka speaks to Kafka"),
        (
            "txlayer/producer/broken.py",
            "import sqlalchemy",
            "only adapters/sql speaks to databases",
        ),
        ("txlayer/producer/broken.py", "import txlayer.adapters.sql.barrier", "by its port alone"),
    ],
)
def test_a_broken_import_contract_is_found(
    copy: Path, module: str, line: str, contract: str
) -> None:
    (copy / module).write_text(f"{line}\n", encoding="utf-8")

    said = lint_imports(copy)

    assert 0 != said.returncode
    assert any(
        contract in shown
        for shown in (f"{said.stdout}{said.stderr}").splitlines()
        if "KEPT" not in shown
    )


@pytest.mark.parametrize(
    "module",
    [
        "txlayer",
        "txlayer.core.codec",
        "txlayer.config",
        "txlayer.cli.topics",
        "txlayer.cli.database",
        "txlayer.producer.producer",
        "txlayer.testing.stage",
        "txlayer.testing.plugin",
    ],
)
def test_an_import_loads_neither_the_kafka_client_nor_sqlalchemy(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{'confluent_kafka', 'sqlalchemy', 'pyspark'}} & set(sys.modules)))"

    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert "" == said.stdout.strip()
