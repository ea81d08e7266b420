"""RocketMQ 5.5 with its own transaction benchmark, stopped (SIGSTOP) while others are measured.

Its jars come from the locked list beside this file, from the repository where Kafka's jars come from. The settings are a
single master that neither replicates nor syncs, as the Kafka broker of the benchmarks.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from harness import ON_ONE_CORE

from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.runtime import JarPurpose, bundled_java, fetch_jars, find_java, parse_lock

PURPOSE = JarPurpose("rocketmq.lock", "rocketmq", "RocketMQ", "rocketmq-broker", "local")
TOPIC = "BenchTx"
QUEUE_COUNT = 8
REPORT_S = 5
OPENED = (
    "java.base/java.lang",
    "java.base/jdk.internal.ref",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/sun.nio.ch",
)
SENT = re.compile(r"Send TPS: *(\d+) .*AVG RT\(ms\): *([\d.]+)")
CONSUMED = re.compile(r"Consume TPS: *(\d+) .*AVG\(B2C\) RT\(ms\): *([\d.]+)")


class RocketMQ:
    """A name server, a broker, a consumer, and one benchmark producer for each number of threads."""

    def __init__(self, folder: Path, *, stores_half_in_rocksdb: bool) -> None:
        config = LocalConfig.from_environ(os.environ)
        lock = parse_lock((Path(__file__).parent / PURPOSE.file).read_text(), PURPOSE)
        self._jars = fetch_jars(lock, cache=config.home, maven_url=config.maven_url, say=print)
        self._java = find_java(config, bundled=bundled_java())
        self._folder = folder
        self._stores_half_in_rocksdb = stores_half_in_rocksdb
        self._names, self._port = f"127.0.0.1:{_free_port()}", _free_port()
        self._servers: list[subprocess.Popen[bytes]] = []
        self._producers: dict[tuple[int, bool], subprocess.Popen[bytes]] = {}  # by threads, and on one core or not

    def start(self) -> None:
        """Start the servers and the consumer."""
        host, port = self._names.split(":")
        (self._folder / "names.conf").write_text(f"listenPort={port}\n")
        self._servers.append(self._run("names", "namesrv.NamesrvStartup", "-c", str(self._folder / "names.conf")))
        _wait_for_port(host, int(port))
        (self._folder / "broker.conf").write_text(
            f"brokerClusterName=bench\nbrokerName=a\nbrokerId=0\nbrokerIP1=127.0.0.1\nnamesrvAddr={self._names}\n"
            f"listenPort={self._port}\nhaListenPort={_free_port()}\nbrokerRole=ASYNC_MASTER\nflushDiskType=ASYNC_FLUSH\n"
            f"storePathRootDir={self._folder}/store\nstorePathCommitLog={self._folder}/store/commitlog\n"
            "mappedFileSizeCommitLog=268435456\nmaxHashSlotNum=500000\nmaxIndexNum=2000000\nfileReservedTime=4\n"
            f"diskMaxUsedSpaceRatio=95\ntransRocksDBEnable={str(self._stores_half_in_rocksdb).lower()}\n"
        )
        memory = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")
        configured = str(self._folder / "broker.conf")
        self._servers.append(self._run("broker", "broker.BrokerStartup", "-c", configured, memory=memory))
        _wait_for_port("127.0.0.1", self._port)
        time.sleep(2)  # until it is registered
        queues = ("-r", str(QUEUE_COUNT), "-w", str(QUEUE_COUNT), "-a", "+message.type=TRANSACTION")
        made = self._run(
            "topic",
            "tools.command.MQAdminStartup",
            "updateTopic",
            "-n",
            self._names,
            "-c",
            "bench",
            "-t",
            TOPIC,
            *queues,
        )
        made.wait(60)
        self._servers.append(self._run("consumer", "example.benchmark.Consumer", *self._where(), "-g", "bench"))

    def measure(self, thread_count: int, *, seconds: float, on_one_core: bool = False) -> dict[str, float]:
        """Committed transactions a second, milliseconds from birth to consumer, and CPU a transaction in µs.

        The first report after a pause does not count. `on_one_core` is for the producer alone.
        """
        name = f"producer{thread_count}{'-on-one-core' if on_one_core else ''}"
        producer = self._producers.get((thread_count, on_one_core))
        self.proceed()
        if producer is None:
            producer = self._producers[thread_count, on_one_core] = self._run(
                name,
                "example.benchmark.TransactionProducer",
                *self._where(),
                *("-w", str(thread_count), "-s", "1024", "-ri", str(REPORT_S * 1000)),
                before=ON_ONE_CORE if on_one_core else (),
            )
        else:
            producer.send_signal(signal.SIGCONT)
        sent, consumed = self._folder / f"{name}.log", self._folder / "consumer.log"
        time.sleep(REPORT_S)
        beginnings = sent.stat().st_size, consumed.stat().st_size
        cpu_s = self._cpu_s(producer)
        time.sleep(seconds)
        cpu_s = self._cpu_s(producer) - cpu_s
        producer.send_signal(signal.SIGSTOP)
        self.pause()
        rates = [float(found[1]) for found in SENT.finditer(sent.read_text()[beginnings[0] :])]
        ages = [float(found[2]) for found in CONSUMED.finditer(consumed.read_text()[beginnings[1] :])]
        if not rates:
            raise RuntimeError(f"RocketMQ's producer printed no rate: {sent.read_text()[-500:]}")
        rate = statistics.mean(rates)
        return {"rate": rate, "age_ms": statistics.mean(ages) if ages else 0.0, "cpu_us": cpu_s / seconds / rate * 1e6}

    def pause(self) -> None:
        """Take no CPU until `measure`."""
        for process in self._servers:
            process.send_signal(signal.SIGSTOP)

    def proceed(self) -> None:
        """Go on."""
        for process in self._servers:
            process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End all that was started."""
        for process in [*self._producers.values(), *reversed(self._servers)]:
            process.kill()
            process.wait()

    def _where(self) -> tuple[str, ...]:
        return ("-n", self._names, "-t", TOPIC)

    def _cpu_s(self, producer: subprocess.Popen[bytes]) -> float:
        return sum(sum(psutil.Process(p.pid).cpu_times()[:2]) for p in [*self._servers, producer])

    def _run(
        self,
        name: str,
        main: str,
        *arguments: str,
        memory: tuple[str, ...] = ("-Xms256m", "-Xmx512m"),
        before: tuple[str, ...] = (),
    ) -> subprocess.Popen[bytes]:
        opened = [word for package in OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
        exported = [word for package in (OPENED[1], OPENED[4]) for word in ("--add-exports", f"{package}=ALL-UNNAMED")]
        kind = {"names": "namesrv", "broker": "broker", "topic": "tools"}.get(name, "client")
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [
                    *(*before, str(self._java), *opened, *exported, *memory),
                    f"-Duser.home={self._folder}",
                    f"-Drmq.logback.configurationFile=rmq.{kind}.logback.xml",
                    *("-cp", f"{self._jars}/*", f"org.apache.rocketmq.{main}", *arguments),
                ],
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ROCKETMQ_HOME": str(self._folder), "NAMESRV_ADDR": self._names},
            )


@contextmanager
def rocketmq(folder: Path, *, stores_half_in_rocksdb: bool) -> Iterator[RocketMQ]:
    """A running one, ended with the block."""
    server = RocketMQ(folder, stores_half_in_rocksdb=stores_half_in_rocksdb)
    with ExitStack() as stack:
        stack.callback(server.end)
        server.start()
        yield server


def _free_port() -> int:
    # Two below the broker's port its second listener begins, so any free port is taken from the middle of a gap.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(host: str, port: int) -> None:
    give_up_at = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, port), 1).close()
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.2)
        else:
            return
