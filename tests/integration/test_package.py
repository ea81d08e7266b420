"""The wheel holds what users need and nothing else, and works where nothing of ours is beside it."""

import importlib.metadata
import re
import subprocess
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import txlayer
from tests.conftest import Broker
from tests.docs.test_readme import SERVERS, blocks
from tests.support.broker import unique_name
from tests.support.packaging import ROOT, build_wheel, clean_environ, make_environment
from tests.support.programs import run_program

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: set[str]) -> Message:
    (name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as opened:
        return Parser().parsestr(opened.read(name).decode())


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_the_wheel_carries_every_topic_file(names: set[str]) -> None:
    folder = ROOT / "topics"
    ours = {f"txlayer/_topics/{path.relative_to(folder)}" for path in folder.rglob("*.toml")}

    assert ours
    assert ours == {name for name in names if name.startswith("txlayer/_topics/")}


def test_the_wheel_carries_every_module_and_data_file_of_both_packages(names: set[str]) -> None:
    ours = {
        str(path.relative_to(base))
        for base, package in ((ROOT, "txlayer"), (ROOT / "spark", "txlayer_spark"))
        for path in (base / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert {"txlayer/py.typed", "txlayer_spark/py.typed"} <= ours
    assert set() == ours - names


def test_the_wheel_carries_nothing_else(names: set[str]) -> None:
    assert {"txlayer", "txlayer_spark", f"txlayer-{txlayer.__version__}.dist-info"} == {
        name.partition("/")[0] for name in names
    }


def test_the_wheel_says_its_licence_and_carries_it(names: set[str], metadata: Message) -> None:
    assert "Apache-2.0" == metadata["License-Expression"]
    assert f"txlayer-{txlayer.__version__}.dist-info/licenses/LICENSE" in names


def test_there_is_one_version_and_it_is_a_semantic_one(metadata: Message) -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert txlayer.__version__ == metadata["Version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", txlayer.__version__)
    # The newest section is the one that is being written, or was just released.
    (newest, *_) = re.findall(r"^## \[([^\]]+)\]", changes, re.MULTILINE)
    assert txlayer.__version__ == newest


# --- extras -----------------------------------------------------------------------------------------------------------


def test_the_extra_all_names_every_other_one() -> None:
    (everything,) = (Requirement(text) for text in PROJECT["optional-dependencies"]["all"])

    assert EXTRAS - {"all"} == everything.extras


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_what_an_extra_needs_is_installed_here_and_so_tested(extra: str, metadata: Message) -> None:
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    of_extra = [r for r in needed if r.marker is not None and r.marker.evaluate({"extra": extra})]

    assert of_extra
    assert extra in metadata.get_all("Provides-Extra", [])
    for requirement in of_extra:
        if requirement.name == "txlayer":
            assert requirement.extras <= EXTRAS
        else:
            version = importlib.metadata.version(requirement.name)
            assert requirement.specifier.contains(version), f"{requirement} has {version}"


def test_the_plain_install_is_the_kafka_client_alone(metadata: Message) -> None:
    plain = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]

    assert ["confluent-kafka"] == [r.name for r in plain if r.marker is None]


# --- where nothing of ours is beside it -------------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.nightly
def test_readmes_producer_runs_from_the_wheel_in_a_clean_environment(
    wheel: Path, broker: Broker, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "venv", f"{wheel}[cli]")
    command, servers = python.with_name("txlayer"), broker.bootstrap_servers
    namespace, orders = unique_name("ns"), unique_name("orders")
    environ = clean_environ(tmp_path) | {"TXLAYER_BOOTSTRAP_SERVERS": servers, "TXLAYER_NAMESPACE": namespace}
    program = "\n".join(blocks("python")).replace(SERVERS, servers)
    for said, ours in (
        ('group="shop"', f'group="shop", namespace="{namespace}"'),
        ('"orders"', f'"{orders}"'),
        ('"packing"', f'"{unique_name("packing")}"'),
    ):
        assert said in program
        program = program.replace(said, ours)

    def run(*arguments: str | Path) -> str:
        ran = run_program(arguments, within=120, cwd=tmp_path, env=environ)
        assert (0, "") == (ran.returncode, ran.stderr), ran.stdout
        return ran.stdout

    assert f"txlayer {txlayer.__version__}\n" == run(command, "--version")
    assert str(tmp_path) in run(python, "-c", "import txlayer; print(txlayer.__file__)")
    run(command, "topics", "apply")
    with (tmp_path / "log").open("wb") as log:
        coordinator = subprocess.Popen(
            [command, "coordinator", "run"], cwd=tmp_path, env=environ, stdout=log, stderr=log
        )
    try:
        said = run(python, "-W", "error", "-c", program)
        assert "Resolution.COMMIT" in said
        (order,) = re.findall(r"txn_id='(order-\w+)'", said)
        assert f"""b'{{"order": "{order}", "cents": 1999}}'""" in said
    finally:
        coordinator.terminate()
        code = coordinator.wait(30)
    assert 0 == code, (tmp_path / "log").read_text(encoding="utf-8")
