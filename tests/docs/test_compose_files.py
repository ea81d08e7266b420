"""The compose files are what compose understands, and every service in them is bounded, watched and without rights."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.debian import program
from tests.support.deployment import ALONE, COMPOSE, COMPOSE_FILES, ROOT, exit_code, services
from tests.support.programs import run_program
from txlayer.cli.main import build_app
from txlayer.config import check_names

PINNED = re.compile(r"[a-z0-9/-]+:v?[0-9]+\.[0-9]+(\.[0-9]+)?(-[a-z]+)?")
SERVICES = services()
BOOTSTRAP = "TXLAYER_BOOTSTRAP_SERVERS"
THREE = "docker-compose.three.yml"
ALL_THREE = "broker:9092,broker-2:9092,broker-3:9092"
ALL_HERE = "127.0.0.1:9094,127.0.0.1:9095,127.0.0.1:9096"
"""For what is in this machine's network."""
TOGETHER = [
    [ALONE],
    [ALONE, "docker-compose.override.yml"],
    [ALONE, THREE],
    [ALONE, "docker-compose.override.yml", THREE],
    [ALONE, "docker-compose.host.yml"],
]


def environment(service: dict[str, Any]) -> dict[str, str]:
    """A service's environment as its program sees it."""
    return {name: str(value) for name, value in service.get("environment", {}).items()}


@pytest.mark.parametrize("name", COMPOSE_FILES)
def test_a_compose_file_follows_the_specification(name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    command += ["--traceback-mode", "short", str(COMPOSE / name)]

    answer = run_program(command, within=60)

    assert (0, "") == (answer.returncode, answer.stderr), answer.stdout


@pytest.mark.parametrize(
    "names",
    [
        # Each start of that program takes two seconds of CPU: others than the last two read nothing but a part of their files.
        *(pytest.param(names, marks=pytest.mark.nightly) for names in TOGETHER[:-2]),
        *TOGETHER[-2:],
    ],
    ids=" ".join,
)
def test_the_oldest_docker_compose_reads_the_files(names: list[str]) -> None:
    found = program("docker-compose", package="docker-compose")
    files = [word for name in names for word in ("--file", str(COMPOSE / name))]

    answer = run_program(
        [found, *files, "config", "--quiet"], within=60, env={"PATH": os.environ.get("PATH", os.defpath)}
    )

    assert (0, "") == (answer.returncode, answer.stderr)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_watched_bounded_and_without_rights(name: str) -> None:
    service = SERVICES[name]

    lacking = [
        setting
        for setting in ("healthcheck", "cpus", "mem_limit", "pids_limit", "restart", "user", "tmpfs")
        if not service.get(setting)
    ]
    assert [] == lacking
    assert service["read_only"] is True
    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    assert service["user"].partition(":")[0] not in ("", "0", "root")
    assert "privileged" not in service
    assert "ports" not in service


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_a_probe_imports_nothing_from_the_working_directory(file: str) -> None:
    """The folder is a volume that services share, and a probe has every secret of its container."""
    probes = [service.get("healthcheck", {}).get("test", []) for service in services(file).values()]
    pythons = [probe for probe in probes if probe[1:2] == ["python"]]

    assert (file in (ALONE, "docker-compose.host.yml")) == bool(pythons)
    assert [] == [probe for probe in pythons if probe[2] != "-P"]


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_pinned(name: str) -> None:
    assert PINNED.fullmatch(SERVICES[name]["image"])


def test_an_image_of_ours_has_a_name_that_nobody_can_register() -> None:
    ours = [s["image"] for s in SERVICES.values() if "txlayer" in s["image"]]

    assert len(ours) > 5
    assert [] == [image for image in ours if not image.startswith("localhost/txlayer/")]


def test_what_is_published_is_published_on_this_machine_alone() -> None:
    published = [
        port
        for file in ("docker-compose.override.yml", THREE)
        for service in services(file).values()
        for port in service.get("ports", ())
    ]

    assert len(published) > 3
    assert [] == [port for port in published if not port.startswith("127.0.0.1:")]


def test_every_broker_of_three_has_its_own_number_and_folder() -> None:
    extra = services(THREE)

    brokers = {name: extra[name] for name in extra if name.startswith("broker-")}
    numbers = {b["environment"]["KAFKA_NODE_ID"] for b in brokers.values()}
    assert {2, 3} == numbers
    assert {"broker-2", "broker-3"} == {b["volumes"][0].partition(":")[0] for b in brokers.values()}
    voters = extra["broker"]["environment"]["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    assert "1@broker:9093,2@broker-2:9093,3@broker-3:9093" == voters


def test_every_broker_of_three_is_reached_from_this_machine_where_it_says() -> None:
    alone = environment(SERVICES["broker"])
    brokers = {n: s for n, s in services(THREE).items() if n in ("broker", "broker-2", "broker-3")}

    reached = {name: service["ports"] for name, service in brokers.items()}

    said = {name: {**alone, **environment(service)}["KAFKA_ADVERTISED_LISTENERS"] for name, service in brokers.items()}
    outside = {name: listeners.partition("MACHINE://")[2] for name, listeners in said.items()}
    assert {name: [f"{place}:9094"] for name, place in outside.items()} == reached
    assert 3 == len(set(outside.values()))


def test_whoever_starts_while_one_of_three_brokers_is_down_knows_another() -> None:
    extra = services(THREE)

    told = {
        name: [environment(beside).get(BOOTSTRAP), *beside.get("command", ())]
        for name, service in SERVICES.items()
        if BOOTSTRAP in environment(service) or "--bootstrap-servers" in service.get("command", ())
        for beside in [extra.get(name, {})]
    }

    assert {"topics", "coordinator-1", "coordinator-2", "responder", "shop", "spark", "console"} == set(told)
    ignorant = [name for name, words in told.items() if (ALL_HERE if name == "console" else ALL_THREE) not in words]
    assert [] == ignorant


def test_the_shop_of_three_brokers_is_the_same_but_for_their_names() -> None:
    command = services(THREE)["shop"]["command"]

    alone = ["broker:9092" if word == ALL_THREE else word for word in command]
    assert SERVICES["shop"]["command"] == alone


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (file, name)
        for file in (ALONE, THREE)
        for name, service in services(file).items()
        if service.get("command")
        and service.get("image", SERVICES.get(name, {}).get("image")) == "localhost/txlayer/coordinator:0.1.0"
    ],
)
def test_a_command_line_of_ours_is_one_that_the_program_takes(file: str, name: str) -> None:
    assert 0 == exit_code(services(file)[name]["command"], build_app())


def test_a_command_line_that_the_program_does_not_take_would_be_seen() -> None:
    assert 2 == exit_code(["coordinator", "run", "--no-such-option"], build_app())


@pytest.mark.spark
def test_the_command_line_of_the_spark_job_is_one_that_the_program_takes() -> None:
    from txlayer.cli.spark import app as spark_app

    assert 0 == exit_code(SERVICES["spark"]["command"], spark_app)


def test_the_command_line_of_the_shop_is_one_that_it_takes() -> None:
    shop = ROOT / "examples" / "shop"
    program = "import sys; import service; service.parse(sys.argv[1:])"

    answer = run_program(
        [sys.executable, "-c", program, *SERVICES["shop"]["command"]], within=60, env={"PYTHONPATH": f"{shop}:{ROOT}"}
    )

    assert (0, "") == (answer.returncode, answer.stderr)


@pytest.mark.parametrize("file", COMPOSE_FILES)
def test_every_name_in_an_environment_is_known(file: str) -> None:
    for service in services(file).values():
        check_names(environment(service))


def test_no_secret_stands_in_a_compose_file() -> None:
    words = re.compile(r"password|passwd|secret|token", re.IGNORECASE)
    found = [
        f"{file}: {name}: {variable}"
        for file in COMPOSE_FILES
        for name, service in services(file).items()
        for variable in environment(service)
        if words.search(variable)
    ]

    assert [] == found


def test_every_mounted_file_is_there() -> None:
    mounted = [
        volume.partition(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", ())
        if volume.startswith("./")
    ]

    assert len(mounted) > 3
    assert [] == [path for path in mounted if not (COMPOSE / path).exists()]


def test_prometheus_is_sent_to_services_alone_that_are_there() -> None:
    file = COMPOSE / "prometheus" / "prometheus.yml"
    jobs = yaml.safe_load(file.read_text("utf-8"))["scrape_configs"]

    targets = {t for job in jobs for found in job["static_configs"] for t in found["targets"]}

    assert {"coordinator-1:9464", "coordinator-2:9464", "responder:9464"} == targets
    assert {target.partition(":")[0] for target in targets} <= set(SERVICES)


def test_the_scripts_of_the_stand_ins_are_read_by_the_shell() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    for script in (Path("stand-ins/make.sh"), Path("stand-ins/kafka/run")):
        subprocess.run([bash, "-n", str(COMPOSE / script)], check=True, timeout=60)
