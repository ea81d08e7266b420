"""The plugin's `container`: users' suites on a broker that a real Docker engine runs, and what is left of it afterwards.

The engine is the test's own. No registry is needed: the image has the places of the cp-kafka family, this machine's programs, and
the Kafka and the Java of `txlayer broker`.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.support.debian import install, skip_or_fail
from tests.support.pages import programs
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.runtime import bundled_java, prepare_runtime

START_S = 180
COMMAND_S = 300
ENGINE_PACKAGE = "docker." + "io"
"""Debian's package, not an address."""
NEEDED = ("dockerd", "docker", "ip", "unshare", "nsenter", "ldd")


def need_an_engine() -> None:
    """Go on where an engine can be started. Elsewhere the test is skipped at home, and fails in CI."""
    if os.geteuid() != 0:
        skip_or_fail("a Docker engine needs root")
    if any(shutil.which(name) is None for name in NEEDED):
        install(ENGINE_PACKAGE, "iproute2")
    if shutil.which("docker") is None:
        install("docker-cli")  # of its own in newer releases
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        skip_or_fail(f"not here: {', '.join(missing)} (a Docker engine and iproute2)")


@dataclass(frozen=True)
class Engine:
    """An engine that runs. No registry can be reached from its network."""

    host: str
    """DOCKER_HOST."""
    pid: int

    def inside(self, *command: str | Path) -> list[str]:
        """The command in the engine's network, where its published ports are on loopback."""
        return ["nsenter", "--net", f"--target={self.pid}", "--", *map(str, command)]

    def docker(self, *arguments: str, stdin: IO[bytes] | int | None = subprocess.DEVNULL) -> str:
        """What a docker command says."""
        ran = subprocess.run(
            [_program("docker"), *arguments],
            env={**os.environ, "DOCKER_HOST": self.host},
            stdin=stdin,
            capture_output=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert 0 == ran.returncode, ran.stderr.decode()
        return ran.stdout.decode().strip()

    def build(self, tag: str, dockerfile: str) -> None:
        """An image without files of its own."""
        with tempfile.TemporaryFile() as stream:
            stream.write(dockerfile.encode())
            stream.seek(0)
            self.docker("build", "--tag", tag, "-", stdin=stream)

    def left(self) -> dict[str, str]:
        """Containers and volumes that are there, also those that ended."""
        return {"containers": self.docker("ps", "--all", "--quiet"), "volumes": self.docker("volume", "ls", "--quiet")}


@contextmanager
def running_engine() -> Iterator[Engine]:
    """An engine without images; it and its data are gone at the end.

    Its folder is not pytest's: a path of a socket may have 107 bytes, and pytest would keep the layers of three runs.
    """
    with tempfile.TemporaryDirectory(prefix="txlayer-docker-") as name:
        folder = Path(name)
        host = f"unix://{folder}/sock"
        dockerd = [_program("dockerd"), "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
        dockerd += ["--pidfile", f"{folder}/pid", "--host", host, "--storage-driver", "vfs", "--group", "0"]
        dockerd += ["--iptables=false", "--ip6tables=false"]
        apart = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*apart, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *dockerd],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                engine = Engine(host=host, pid=process.pid)
                wait_until(lambda: _answers(engine, process, folder / "log"), within=START_S, what="the engine answers")
                yield engine
            finally:
                process.kill()
                process.wait()


def _answers(engine: Engine, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text("utf-8", errors="replace")[-3000:]
    command = [_program("docker"), "--host", engine.host, "version"]
    return 0 == subprocess.run(command, capture_output=True, timeout=COMMAND_S, check=False).returncode


def _program(name: str) -> str:
    """Debian's own, where another program of this name is found before it."""
    path = ("/usr/bin", "/usr/sbin", *os.environ.get("PATH", "").split(os.pathsep))
    found = shutil.which(name, path=os.pathsep.join(path))
    assert found is not None, name
    return found


# --- an image of the cp-kafka family -----------------------------------------------------------------------------------

USER = 1000
PLACES = "/etc/confluent/docker"
DATA = "/var/lib/kafka/data"
OWNED = (PLACES, "/etc/kafka", DATA)
CLASS_PATH = "/usr/share/java/kafka/*"

SCRIPTS = {
    f"{PLACES}/bash-config": "set -o nounset -o errexit\n",
    # As there: what must be set, then every KAFKA_ name as a property. testcontainers adds a line that formats the storage.
    f"{PLACES}/configure": f"""#!/bin/bash
. {PLACES}/bash-config
: "${{KAFKA_PROCESS_ROLES:?}}" "${{CLUSTER_ID:?}}" "${{KAFKA_ADVERTISED_LISTENERS:?}}"
export KAFKA_LOG_DIRS="${{KAFKA_LOG_DIRS-{DATA}}}"
for name in $(compgen -e KAFKA_); do
    case $name in KAFKA_HEAP_OPTS | KAFKA_OPTS) continue ;; esac
    property=${{name#KAFKA_}}
    property=${{property//_/.}}
    echo "${{property,,}}=${{!name}}"
done > /etc/kafka/kafka.properties
""",
    f"{PLACES}/launch": f"""#!/bin/bash
. {PLACES}/bash-config
echo "===> Launching kafka ..."
exec java -Xmx256m -cp '{CLASS_PATH}' kafka.Kafka /etc/kafka/kafka.properties
""",
    "/bin/kafka-storage": f"""#!/bin/bash
exec java -Xmx64m -cp '{CLASS_PATH}' kafka.tools.StorageTool "$@"
""",
}


def make_kafka_image(engine: Engine, tag: str, *, java: Path, jars: Path) -> None:
    """Programs and libraries of this machine, this Java and these jars; a user without rights owns what it may write."""
    java_home = java.resolve().parents[1]
    programs = [Path(_program(name)) for name in ("bash", "cut", "hostname", "sed", "sleep")]
    with tempfile.TemporaryDirectory(prefix="txlayer-image-") as name:
        root = Path(name)
        shutil.copytree(java_home, f"{root}/opt/java")
        shutil.copytree(jars, f"{root}/usr/share/java/kafka")
        for path in programs:
            _copy(path, Path(f"{root}/bin/{path.name}"))
        for path in _libraries([*programs, java_home / "bin" / "java", *java_home.rglob("*.so")]):
            if not path.is_relative_to(java_home):
                _copy(path, Path(f"{root}{path}"))
        Path(f"{root}/bin/sh").symlink_to("bash")
        Path(f"{root}/bin/java").symlink_to("/opt/java/bin/java")
        for folder in ("/tmp", *OWNED):
            Path(f"{root}{folder}").mkdir(parents=True, exist_ok=True)
        Path(f"{root}/tmp").chmod(0o1777)
        for place, text in SCRIPTS.items():
            script = Path(f"{root}{place}")
            script.write_text(text, encoding="utf-8")
            script.chmod(0o755)
        for folder in OWNED:
            subprocess.run(["chown", "-R", str(USER), f"{root}{folder}"], check=True)
        root.chmod(0o755)
        _import(engine, tag, root)


def _import(engine: Engine, tag: str, root: Path) -> None:
    """An image of one layer from a folder."""
    described = (f"USER {USER}", f'VOLUME ["{DATA}"]', f'CMD ["{PLACES}/launch"]')
    with subprocess.Popen(["tar", "--create", "--directory", root, "."], stdout=subprocess.PIPE) as packed:
        engine.docker(
            "import", *(word for one in described for word in ("--change", one)), "-", tag, stdin=packed.stdout
        )


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    """What the dynamic linker takes for them, by the names that it looks for."""
    ran = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False, timeout=COMMAND_S)
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", ran.stdout)}


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)


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
    # A run that a shell started in the background ignores SIGINT, and what it starts inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.fixture(scope="module")
def engine(local_config: LocalConfig) -> Iterator[Engine]:
    """An engine with an image of a Kafka, and one of a Kafka that ends at once."""
    need_an_engine()
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
    need_an_engine()
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
