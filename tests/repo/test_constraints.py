"""What is installed is what was tested: every requirement of pyproject.toml has one version in the constraints."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LINES = [
    line for line in (ROOT / ".ci" / "constraints.txt").read_text("utf-8").splitlines() if not line.startswith("#")
]


def direct_requirements() -> list[Requirement]:
    """Of the package, its extras, its build and its development, without what it demands of itself."""
    project = PROJECT["project"]
    named = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    for group in (project["optional-dependencies"], PROJECT["dependency-groups"]):
        for requirements in group.values():
            named.extend(requirements)
    parsed = [Requirement(text) for text in named]
    return [requirement for requirement in parsed if requirement.name != project["name"]]


def test_a_constraint_is_a_name_and_a_version_and_no_address() -> None:
    form = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*")

    assert len(LINES) > 40
    assert [] == [line for line in LINES if form.fullmatch(line) is None]
    names = [canonicalize_name(line.partition("==")[0]) for line in LINES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_every_requirement_has_a_version_that_fits_it(requirement: Requirement) -> None:
    versions = {canonicalize_name(n): v for n, _, v in (line.partition("==") for line in LINES)}

    pinned = versions.get(canonicalize_name(requirement.name))

    assert pinned is not None, f"{requirement.name} has no version in .ci/constraints.txt"
    assert requirement.specifier.contains(pinned), f"{pinned} does not fit {requirement}"
