"""A standalone cluster of Spark on this machine: one master and workers, each a process, from the pyspark package."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.processes import ROOT
from tests.support.waiting import wait_until

HOME = Path(pyspark.__path__[0])
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A running cluster."""

    master: str
    folder: Path
    environ: Mapping[str, str]

    def submit(
        self, *command: str, settings: Mapping[str, str], jars: Sequence[Path], within: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on it, its driver in a process of its own."""
        given = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
            **settings,
        }
        options = [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
        return subprocess.run(
            [
                str(HOME / "bin" / "spark-submit"),
                "--master",
                self.master,
                "--jars",
                ",".join(map(str, jars)),
                *options,
                *command,
            ],
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
            env=dict(self.environ),
            cwd=self.folder,
        )

    def executors(self) -> dict[str, int]:
        """{worker: executors that it has run}."""
        return {worker.name: len(list(worker.glob("app-*/*"))) for worker in sorted(self.folder.glob("worker-*/"))}


@contextmanager
def spark_cluster(folder: Path, *, java_home: Path, workers: int, memory: str) -> Iterator[SparkCluster]:
    """A cluster for the time of the block, with one core for each worker."""
    environ = {
        **os.environ,
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "spark"), os.environ.get("PYTHONPATH", "")]),
    }
    with ExitStack() as stack:
        log = stack.enter_context(_daemon(folder / "master.log", environ, "master.Master", "--port", "0"))
        master = _logged(log, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            log = stack.enter_context(
                _daemon(
                    folder / f"worker-{number}.log",
                    environ,
                    "worker.Worker",
                    "--cores",
                    "1",
                    "--memory",
                    memory,
                    "--work-dir",
                    str(folder / f"worker-{number}"),
                    master,
                )
            )
            _logged(log, r"(Successfully registered with master)")
        yield SparkCluster(master, folder, environ)


@contextmanager
def _daemon(log_file: Path, environ: Mapping[str, str], name: str, *arguments: str) -> Iterator[Path]:
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [
                str(HOME / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{name}",
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environ),
            start_new_session=True,
        )
    try:
        yield log_file
    finally:
        # A worker ends its executors with it; the group is for those that it could not reach any more.
        process.terminate()
        try:
            process.wait(30)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.poll()


def _logged(log: Path, pattern: str) -> str:
    """What the pattern finds in the log, as soon as it stands there."""
    found = wait_until(lambda: re.search(pattern, log.read_text("utf-8", "replace")), within=60, what=pattern)
    assert found is not None
    return found[1]
