"""Everything runs on a cluster too: a standalone one of two workers, each with an executor of its own."""

import json
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
import pytest

from tests.conftest import LOCAL_CONFIG, Broker
from tests.spark.test_commands import txlayer_spark
from tests.support.arena import Arena
from tests.support.logs import read_log
from tests.support.planted import Field, Message
from tests.support.processes import ROOT
from tests.support.programs import run_program
from tests.support.spark_sink import attempts_in, resolved, values
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local.runtime import SparkRuntime, prepare_connector
from txlayer.core import codec
from txlayer.core.messages import OpMessage, Resolution

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
        submit = [HOME / "bin" / "spark-submit", "--master", self.master, "--jars", ",".join(map(str, jars))]
        return run_program([*submit, *options, *command], within=within, env=dict(self.environ), cwd=self.folder)

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


pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

PROGRAM = """
import runpy, sys
from txlayer_spark import SinkSettings, write_transactional
from txlayer_spark.sessions import build_session
program, servers, namespace, topic, *audit = sys.argv[1:]
spark = build_session(name="publish", master=None)
settings = SinkSettings(
    bootstrap_servers=servers, namespace=namespace, topic=topic, producer_group="shop", split=True, transaction_messages_max=40
)
batch = spark.range(0, 200, 1, 4).selectExpr("concat('k', id) AS key", "concat('v', id) AS value")
write_transactional(batch, settings, query="cluster", epoch=0)
sys.argv = [program, *audit]
runpy.run_path(program, run_name="__main__")
"""

LOSING = """
import json, sys, threading
import psutil
from tests.support.waiting import wait_until
from txlayer_spark import SinkSettings
from txlayer_spark.brokers import Brokers
from txlayer_spark.jobs.sink import Sink
from txlayer_spark.sessions import build_session
servers, namespace, topic, count = sys.argv[1:]
spark = build_session(name="lose", master=None)
context = spark.sparkContext._jsc.sc()
# A request for each record: so the task writes for seconds.
settings = SinkSettings(
    bootstrap_servers=servers, namespace=namespace, topic=topic, producer_group="orders", kafka_options={"batch.size": "0"}
)
batch = spark.range(0, int(count), 1, 2).selectExpr("concat('v', id) AS value")
half = settings.address.topic("half")

def written():
    with Brokers(spark, settings.address) as brokers:
        return sum(brokers.ends(half, range(brokers.partition_counts([half])[half])).values())

def writer():
    for stage in spark.sparkContext.statusTracker().getActiveStageIds():
        tasks = context.statusStore().taskList(stage, 0, 100)
        for task in (tasks.apply(number) for number in range(tasks.size())):
            if task.status() == "RUNNING":
                return process_of(task.executorId())

def process_of(executor):
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "--executor-id" in line and context.applicationId() in line and line[line.index("--executor-id") + 1] == executor:
            return process

class Losing(Sink):
    def store(self, log, placed, born_ms):
        self.before, self.lost = written(), None
        thread = threading.Thread(target=self.strike)
        thread.start()
        super().store(log, placed, born_ms)
        thread.join()

    def strike(self):
        wait_until(lambda: written() > self.before + 100, within=120, what="half records")
        self.lost = writer()
        self.lose()

class Killing(Losing):
    def lose(self):
        self.lost.kill()

class Freezing(Losing):
    def lose(self):
        # The worker first: it would kill what does not answer.
        self.worker = self.lost.parent()
        self.worker.suspend()
        self.lost.suspend()

killed = Killing(spark, settings)
killed.write(batch, query="killed", epoch=0)
wait_until(lambda: context.getExecutorMemoryStatus().size() == 3, within=120, what="two executors and the driver")
frozen = Freezing(spark, settings)
try:
    frozen.write(batch, query="frozen", epoch=0)
    before = written()
    frozen.lost.resume()
    wait_until(lambda: written() > before, within=60, what="what the lost executor still writes")
finally:
    frozen.worker.resume()
print(json.dumps([killed.lost.pid, frozen.lost.pid, written() - before]))
"""


@pytest.fixture(scope="module")
def runtime() -> SparkRuntime:
    """Java and the connector."""
    return prepare_connector(LOCAL_CONFIG)


@pytest.fixture(scope="module")
def cluster(runtime: SparkRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Two workers with one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    with spark_cluster(folder, java_home=runtime.java_home, workers=2, memory="1g") as cluster:
        yield cluster


def test_a_batch_is_published_and_the_namespace_audited_by_two_workers(
    cluster: SparkCluster, runtime: SparkRuntime, broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers)
    for _ in range(5):
        field.whole(Message(field.orders), Message(field.stock))
    program = tmp_path / "publish.py"
    program.write_text(PROGRAM, "utf-8")
    page = tmp_path / "report.html"

    command = txlayer_spark("program", folder=tmp_path).stdout.strip()
    where = ("-b", field.servers, "-n", field.namespace, "--data", str(tmp_path / "data"))
    done = cluster.submit(
        *(str(program), command, field.servers, field.namespace, field.orders),
        *("audit", *where, "--page", str(page), "--grace", "1h", "--json"),
        jars=runtime.jars,
        settings={"spark.sql.shuffle.partitions": "2"},
        within=300,
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    verdicts = json.loads(done.stdout.splitlines()[-1])["verdicts"]
    lines = [
        codec.decode_op(line)
        for record in read_log(field.servers, [field.topic("op")])[field.topic("op")]
        for line in (record.value or b"").decode().split("\n")
    ]
    parts = [op for op in lines if isinstance(op, OpMessage) and op.key.startswith("cluster-0.")]
    assert 5 <= len(parts)
    assert {Resolution.COMMIT} == {op.resolution for op in parts}
    # No coordinator runs here: what was just published is on its way.
    assert (5, len(parts)) == (verdicts["ok"], verdicts["open"])
    assert page.stat().st_size > 10_000
    assert {"worker-0": 1, "worker-1": 1} == cluster.executors()


@pytest.mark.fault("Spark: a second copy of a task still writes, or a retried task has its rows in another order")
def test_an_epoch_is_published_once_although_the_executor_that_writes_it_is_killed_or_goes_on_later(
    cluster: SparkCluster, runtime: SparkRuntime, arena: Arena, tmp_path: Path
) -> None:
    count = 6_000
    program = tmp_path / "lose.py"
    program.write_text(LOSING, "utf-8")

    done = cluster.submit(
        str(program),
        arena.servers,
        arena.namespace,
        arena.targets[0],
        str(count),
        jars=runtime.jars,
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.network.timeout": "20s",
            "spark.network.timeoutInterval": "1s",
            "spark.executor.heartbeatInterval": "2s",
        },
        within=500,
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    *_, late_count = json.loads(done.stdout.splitlines()[-1])
    assert late_count
    for txn_id in ("killed-0", "frozen-0"):
        assert [f"v{n}" for n in range(count)] == values(arena.wait_until_visible(txn_id, count=count))
        copies = attempts_in(arena, txn_id)
        assert 2 <= len(copies)
        assert 1 == resolved(arena, txn_id)[Resolution.COMMIT]
    arena.wait_until_applied(within=30)
    assert [count] * 2 == [len(arena.visible(txn_id)) for txn_id in ("killed-0", "frozen-0")]


@pytest.mark.fault("Spark: a second copy of a task still writes, or a retried task has its rows in another order")
def test_where_the_cluster_starts_slow_tasks_twice_nothing_is_published(
    cluster: SparkCluster, runtime: SparkRuntime, arena: Arena, tmp_path: Path
) -> None:
    program = tmp_path / "publish.py"
    program.write_text(PROGRAM, "utf-8")
    where = ("no-program", arena.servers, arena.namespace, arena.targets[0])

    done = cluster.submit(str(program), *where, jars=runtime.jars, settings={"spark.speculation": "true"}, within=300)

    assert done.returncode
    assert "a second copy of a task would store its messages once more" in done.stdout, done.stdout[-3000:]
    half = read_log(arena.servers, [arena.topics.half])[arena.topics.half]
    assert not [record for record in half if b"cluster-0" in (codec.half_header_of(record.headers) or b"")]
