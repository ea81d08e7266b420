"""docs/howto/install.md: its commands install a checkout and a wheel, its extras are those there are, and pages lead to it."""

import os
import re
import tomllib
from pathlib import Path

import pytest

import txlayer
from tests.support.packaging import CONSTRAINTS, ROOT, clean_environ
from tests.support.pages import PAGES, blocks
from tests.support.programs import run_program

PAGE = ROOT / "docs" / "howto" / "install.md"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
SAYS_INSTALL = re.compile(r'pip install "?txlayer')
MADE_FROM_OTHERS = {"docs/explanation/first-message.md"}
"""What somebody typed, as a table."""


@pytest.mark.slow
@pytest.mark.nightly
def test_the_commands_before_the_release_install_it(tmp_path: Path) -> None:
    checkout, wheel, _ = blocks(PAGE, "sh")
    (tmp_path / "txlayer").symlink_to(ROOT)
    environ = clean_environ(tmp_path) | {"PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environ |= {n: v for n, v in os.environ.items() if n in ("PIP_CACHE_DIR", "PIP_INDEX_URL")}

    ran = run_program(
        ["bash", "-e", "-c", f"{checkout}\npip uninstall --yes txlayer\n{wheel}\ntxlayer --version"],
        within=300,
        cwd=tmp_path,
        env=environ,
    )

    assert 0 == ran.returncode, ran.stdout + ran.stderr
    assert 2 == ran.stdout.count(f"\ntxlayer {txlayer.__version__}\n"), ran.stdout


def test_every_extra_stands_on_the_page() -> None:
    rows = re.findall(r"^\| `([a-z]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(EXTRAS) == sorted(rows)


@pytest.mark.parametrize("page", [p for p in PAGES if p != PAGE], ids=lambda p: p.name)
def test_a_page_that_says_pip_install_leads_to_what_works_today(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))

    assert "install.md" in text or name in MADE_FROM_OTHERS or not SAYS_INSTALL.search(text)


def test_readme_says_how_to_install() -> None:
    assert "docs/howto/install.md" in (ROOT / "README.md").read_text(encoding="utf-8")
