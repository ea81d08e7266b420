"""A Docker engine of the tests' own, and an image with the places that testcontainers expects of the cp-kafka family.

The engine runs in namespaces of its own: its bridge, its mounts and all processes of its containers end with it, and another
engine on the machine notices nothing.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.support.waiting import wait_until

START_S = 180
COMMAND_S = 300
NEEDED = ("dockerd", "docker", "ip", "unshare", "nsenter", "ldd")


def why_no_engine() -> str | None:
    """Why no engine can be started here; None: one can."""
    if os.geteuid() != 0:
        return "a Docker engine needs root"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    return f"not here: {', '.join(missing)} (a Docker engine and iproute2)" if missing else None


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
