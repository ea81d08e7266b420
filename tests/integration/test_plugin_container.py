"""The plugin's `container`: users' suites on a broker that a real Docker engine runs, and what is left of it afterwards.

The engine is the test's own. No registry is needed: the image has the places of the cp-kafka family, this machine's programs, and
the Kafka and the Java of `txlayer broker`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.docker_engine import Engine, make_kafka_image, running_engine, why_no_engine
from tests.support.pages import programs
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.runtime import bundled_java, prepare_runtime

ROOT = Path(__file__).resolve().parents[2]
# The version in the tag is all that testcontainers knows of an image.
KAFKA, ENDING = "localhost/cp-kafka:8.1.0", "localhost/cp-kafka-ending:8.1.0"
SERVICE_TEST_COUNT, PAGE_TEST_COUNT = 6, 2
RUN_S = 300

pytestmark = [pytest.mark.nightly, pytest.mark.kafka, pytest.mark.slow]

BROKER_DIES = """
import docker

def test_a_message_is_published(txlayer_stage):
    topic = txlayer_stage.topic("orders")
    client = docker.from_env()
    for container in client.containers.list():
        container.kill()
    client.close()
    with txlayer_stage.producer().transaction() as tx:
        tx.send(topic, value="42")
        tx.prepare()
"""

USER_ENDS_THE_RUN = """
import os
import signal

def test_a_message_is_published(txlayer_stage):
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.fixture(scope="module")
def engine(local_config: LocalConfig) -> Iterator[Engine]:
    """An engine with an image of a Kafka, and one of a Kafka that ends at once."""
    if (reason := why_no_engine()) is not None:
        pytest.skip(reason)
    java = bundled_java()
    assert java is not None, "the extra `local` brings one"
    jars = prepare_runtime(local_config).jar_folder
    with running_engine() as started:
        make_kafka_image(started, KAFKA, java=java, jars=jars)
        launch = "/etc/confluent/docker/launch"
        started.build(ENDING, f"FROM {KAFKA}\nRUN printf '#!/bin/sh\\necho no heap for Kafka >&2; exit 3' > {launch}\n")
        yield started


@pytest.fixture(autouse=True)
def nothing_left(engine: Engine) -> Iterator[None]:
    """A run leaves neither a container nor a volume, however it ended."""
    yield
    assert {"containers": "", "volumes": ""} == engine.left()


def run_pytest(engine: Engine, folder: Path, *options: str, image: str = KAFKA) -> subprocess.CompletedProcess[str]:
    """A user's suite, with the plugin's own options, where the engine publishes its ports."""
    plugins = ["-p", "txlayer.testing.plugin", "-p", "no:randomly", "-p", "no:cacheprovider"]
    named = ["--txlayer-kafka=container", f"--txlayer-kafka-image={image}"]
    settings = {
        "DOCKER_HOST": engine.host,
        # What else testcontainers starts is an image, too, which no registry can be asked for.
        "TESTCONTAINERS_RYUK_DISABLED": "true",
        # As outside of a container, also where these tests run in one.
        "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
    }
    return subprocess.run(
        engine.inside(sys.executable, "-W", "error", "-m", "pytest", "--rootdir=.", *plugins, *named, *options),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


def run_program(
    engine: Engine, folder: Path, program: str, *options: str, image: str = KAFKA
) -> subprocess.CompletedProcess[str]:
    """A suite of one file."""
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "test_it.py").write_text(program, encoding="utf-8")
    return run_pytest(engine, folder, *options, image=image)


def test_the_suites_of_our_pages_pass_in_a_container(engine: Engine, tmp_path: Path) -> None:
    service = tmp_path / "service"
    shutil.copytree(ROOT / "examples" / "tested_service", service, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (service / "tests" / "test_page.py").write_text(programs("test-your-service")[0], encoding="utf-8")

    ran = run_pytest(engine, service)

    assert 0 == ran.returncode, ran.stdout[-4000:]
    assert f"{SERVICE_TEST_COUNT + PAGE_TEST_COUNT} passed" in ran.stdout
    assert "txlayer: Kafka in a container: --txlayer-kafka says so" in ran.stdout


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        # Where it is not here and no registry answers.
        ("localhost/not-here:8.1.0", "localhost/v2"),
        ("apache/kafka:4.3.0", "must be 7.0.0 or above"),
        ("localhost/cp-kafka", "Invalid version"),
        # Its container is gone with its log.
        (ENDING, "no heap for Kafka"),
    ],
)
def test_an_image_that_does_not_start_is_an_error_with_its_reason(
    engine: Engine, tmp_path: Path, image: str, reason: str
) -> None:
    ran = run_program(engine, tmp_path, "def test_it(txlayer_stage): pass", image=image)

    assert 1 == ran.returncode, ran.stdout[-4000:]
    assert f"--txlayer-kafka=container is not possible here: the container of {image} did not start: " in ran.stdout
    assert reason in ran.stdout
    assert "1 error" in ran.stdout
    assert "Traceback" not in ran.stdout
    assert "During handling" not in ran.stdout


def test_a_broker_that_dies_in_a_test_is_an_error_that_says_so(engine: Engine, tmp_path: Path) -> None:
    ran = run_program(engine, tmp_path, BROKER_DIES)

    assert 1 == ran.returncode, ran.stdout[-4000:]
    assert "FAILED test_it.py::test_a_message_is_published - txlayer.errors.BrokerUna" in ran.stdout
    assert "1 failed" in ran.stdout


def test_a_run_that_the_user_ends_removes_its_container(engine: Engine, tmp_path: Path) -> None:
    ran = run_program(engine, tmp_path, USER_ENDS_THE_RUN)

    assert 2 == ran.returncode, ran.stdout[-4000:]
    assert "KeyboardInterrupt" in ran.stdout


def test_nothing_of_an_engine_is_left() -> None:
    if (reason := why_no_engine()) is not None:
        pytest.skip(reason)
    with running_engine() as short:
        folder = Path(short.host.removeprefix("unix://")).parent
        assert [] != processes_of(folder)

    wait_until(lambda: not processes_of(folder), within=10, what="no process of the engine is left")
    assert not folder.exists()


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder: the engine, its containerd, and what holds its containers."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a process that ended meanwhile
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if str(folder) in line]
