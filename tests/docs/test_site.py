"""`make docs` builds the site: strictly, so every link leads somewhere, every page is reachable, every docstring is readable."""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.support.programs import run_program
from txlayer.cli.main import build_app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    ran = run_program(
        [*command, "--config-file", str(ROOT / ".ci" / "mkdocs.yml"), "--site-dir", str(folder)],
        within=300,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'spark'}"},
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    return folder


def test_every_page_is_there_and_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]

    assert len(pages) > 50
    assert [] == [page for page in pages if not (site / page).exists()]
    assert [] == [page for page in pages if f'href="{page.as_posix()}"' not in home]


def test_links_out_of_docs_lead_to_a_copy(site: Path) -> None:
    barrier = (site / "howto" / "barrier.html").read_text(encoding="utf-8")

    assert 'href="../repository/bench/index.html"' in barrier
    assert (site / "repository" / "bench" / "index.html").exists()
    assert (site / "repository" / "LICENSE").exists()


def test_the_state_diagram_is_drawn(site: Path) -> None:
    protocol = (site / "explanation" / "protocol.html").read_text(encoding="utf-8")

    assert '<pre class="mermaid"><code>stateDiagram-v2' in protocol


PUBLIC = (
    "txlayer",
    "txlayer.adapters.sql",
    "txlayer.adapters.memory",
    "txlayer.adapters.kafka.local",
    "txlayer.testing",
    "txlayer_spark",
)
"""Packages whose `__all__` users import from."""


@pytest.mark.parametrize("package", PUBLIC)
@pytest.mark.spark
def test_every_public_name_is_in_the_reference(site: Path, package: str) -> None:
    reference = "".join(p.read_text(encoding="utf-8") for p in (site / "reference").glob("*.html"))
    constants = {"COMMIT", "ROLLBACK", "UNKNOWN", "__version__"}  # members of Resolution; a text
    names = [name for name in import_module(package).__all__ if name not in constants]

    assert names
    assert [] == [name for name in names if f'.{name}"' not in reference]


def command_names(group: Any, *before: str) -> Iterator[str]:
    """The words of every command."""
    for name, command in group.commands.items():
        if getattr(command, "commands", None):
            yield from command_names(command, *before, name)
        else:
            yield " ".join((*before, name))


def test_every_command_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    names = list(command_names(typer.main.get_command(build_app()), "txlayer"))

    assert len(names) >= 40
    assert [] == [name for name in names if f"<code>{name}</code>" not in page]
    assert "--bootstrap-servers" in page


@pytest.mark.spark
def test_every_command_for_spark_is_in_the_reference(site: Path) -> None:
    from txlayer.cli.spark import app as spark_app

    page = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    names = list(command_names(typer.main.get_command(spark_app), "txlayer-spark"))

    assert len(names) > 5
    assert [] == [name for name in names if f"<code>{name}</code>" not in page]
