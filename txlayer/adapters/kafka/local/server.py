"""One Kafka server of the embedded broker: its settings, its data folder, its ports and its Java process.

Every node is broker and controller in one process, and knows the others from its configuration.

::

    <data>/cluster.json            Kafka version, cluster id, nodes and their ports
    <data>/node-1/server.properties
    <data>/node-1/broker.log       the broker's warnings and errors
    <data>/node-1/broker.pid
    <data>/node-1/data/            Kafka's own
    <data>/node-1/tmp/             what its Java unpacks
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from txlayer.errors import BrokerUnavailableError, ConfigError, UsageError

HOST = "127.0.0.1"
"""An embedded broker has no password, so it listens to this machine alone."""
CLIENT_LISTENER = "PLAINTEXT"
CONTROLLER_LISTENER = "CONTROLLER"
REPLICATION_MAX = 3
INSYNC_REPLICAS_OF_THREE = 2
HEAP_MB_MIN = 128
LOG_LEVEL_FLAG = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
MARKER_LOG_FLAG = "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction.TransactionMarkerChannelManager=info"
"""It is only there that a broker says when it leaves the end of a Kafka transaction out (KAFKA-20734)."""

# Kafka's defaults are made for large clusters. Partitions of the internal topics are log files and start-up time;
# the delays are waited for by every test and every first run.
SMALL_AND_QUICK: Mapping[str, str] = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # Kafka looks for timed-out transactions every 10 s; that would be part of every fail-over.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.min.session.timeout.ms": "1000",
    # A broker that was killed may come back only when its session has ended (default 9 s).
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # 128 MB of heap otherwise.
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    # A mistyped target topic must be an error, not a new topic.
    "auto.create.topics.enable": "false",
}


@dataclass(frozen=True, slots=True)
class ProxiedListener:
    """One more listener, whose advertised address is somebody else's (a proxy that a test puts in between)."""

    port: int
    advertised_port: int


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the cluster."""

    node_id: int
    client_port: int
    controller_port: int
    proxied: tuple[ProxiedListener, ...] = ()

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"{HOST}:{self.client_port}"

    @property
    def voter(self) -> str:
        """How the other nodes name it."""
        return f"{self.node_id}@{HOST}:{self.controller_port}"

    @property
    def ports(self) -> tuple[int, ...]:
        """Every port that it listens on."""
        return (self.client_port, self.controller_port, *(proxied.port for proxied in self.proxied))


def bootstrap_servers(nodes: Sequence[Node]) -> str:
    """All nodes, as a client wants them."""
    return ",".join(node.address for node in nodes)


def server_settings(
    node: Node, *, nodes: Sequence[Node], log_folder: Path, more: Mapping[str, str]
) -> dict[str, str]:
    """The settings of one node; `more` wins over everything here."""
    client = f"{CLIENT_LISTENER}://{node.address}"
    controller = f"{CONTROLLER_LISTENER}://{HOST}:{node.controller_port}"
    bound = [client, controller]
    advertised = [client]
    protocols = [f"{CLIENT_LISTENER}:PLAINTEXT", f"{CONTROLLER_LISTENER}:PLAINTEXT"]
    for number, proxied in enumerate(node.proxied, start=1):
        bound.append(f"PROXY{number}://{HOST}:{proxied.port}")
        advertised.append(f"PROXY{number}://{HOST}:{proxied.advertised_port}")
        protocols.append(f"PROXY{number}:PLAINTEXT")
    replicas = min(REPLICATION_MAX, len(nodes))
    in_sync = INSYNC_REPLICAS_OF_THREE if replicas == REPLICATION_MAX else 1
    return {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(each.voter for each in nodes),
        "listeners": ",".join(bound),
        "advertised.listeners": ",".join(advertised),
        "listener.security.protocol.map": ",".join(protocols),
        "inter.broker.listener.name": CLIENT_LISTENER,
        "controller.listener.names": CONTROLLER_LISTENER,
        "log.dirs": str(log_folder),
        # Their defaults (3 and 2) are never reached by one broker: it would wait for them for ever.
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "default.replication.factor": str(replicas),
        **SMALL_AND_QUICK,
        **more,
    }


def render_properties(settings: Mapping[str, str]) -> str:
    """A Java properties file, one setting per line; backslashes and line ends in values are escaped."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


class JvmProfile(Enum):
    """What a broker's JVM is made for."""

    BRIEF = "brief"  #: tests: ready soon; the first compiler alone, slower under a long load
    LASTING = "lasting"  #: a broker in the background: small, both compilers
    FAST = "fast"  #: measurements and load: a large heap


_PROFILE_FLAGS: Mapping[JvmProfile, tuple[int, tuple[str, ...]]] = {
    JvmProfile.BRIEF: (384, ("-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")),
    JvmProfile.LASTING: (512, ("-Xms64m", "-XX:+UseSerialGC")),
    JvmProfile.FAST: (1024, ("-Xms512m", "-XX:+UseG1GC")),
}


def jvm_flags(profile: JvmProfile, *, heap_mb: int | None = None) -> tuple[str, ...]:
    """Flags of the broker's JVM; `heap_mb` replaces the profile's own limit.

    Raises:
        ConfigError: a heap in which no broker lives.
    """
    default_mb, flags = _PROFILE_FLAGS[profile]
    if heap_mb is not None and heap_mb < HEAP_MB_MIN:
        raise ConfigError(
            "too small as a broker's heap",
            name="heap_mb",
            value=heap_mb,
            expected=f"{HEAP_MB_MIN} or more",
        )
    return (
        *flags,
        f"-Xmx{heap_mb or default_mb}m",
        "-Djava.awt.headless=true",
        LOG_LEVEL_FLAG,
        MARKER_LOG_FLAG,
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
        # No files outside the data folder, and no half-dead broker.
        "-XX:-UsePerfData",
        "-XX:+ExitOnOutOfMemoryError",
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


# Below the ports that systems give to outgoing connections (32768 and up on Linux, 49152 on others): a broker that is
# down for a moment would otherwise find its port taken by some client, or a client connected to itself.
FIRST_CHOICE = 15_000
LAST_CHOICE = 32_000
_TRIES_MAX = 500


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does: what lingers of an earlier server's connections is no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            # With SO_REUSEADDR a bind may succeed beside a listener on some systems; listening does not.
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int, *, apart_from: Collection[int] = ()) -> list[int]:
    """`count` different ports that were free a moment ago, none of those that somebody chose already.

    Raises:
        ConfigError: hardly any port of the range is free.
    """
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        port = random.randint(FIRST_CHOICE, LAST_CHOICE)  # noqa: S311 - no secret: spreads processes that look at once
        if port not in found and port not in apart_from and is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise ConfigError(
        "no free ports for a broker; end what holds them or name one with --port",
        name="port",
        expected=f"free ports between {FIRST_CHOICE} and {LAST_CHOICE}",
    )


MAIN_CLASS = "kafka.Kafka"
FORMAT_CLASS = "kafka.tools.StorageTool"
FORMAT_TIMEOUT_S = 60
POLL_S = 0.05
TERMINATED_CODE = 143
"""What Java ends with after SIGTERM."""
WARM_UP_NAME = "txlayer.warm-up"
LOG_BYTES_MAX = 10 * 1024 * 1024
"""A log file larger than this is put aside (once) when the broker starts again."""
_LOG_TAIL_BYTES = 64 * 1024
_EXEC_LOOKS_MAX = 20
_ENDED_STATES = (b"Z", b"X")
_ATTEMPT_S = 0.25
"""A client that met no coordinator looks again after a second; a new client looks at once."""

# The shell becomes Java (exec), so the process that was started is the broker itself. Its helper waits for a word from
# whoever started it: the end of the pipe without a word means that the parent died, by whatever signal.
_DIES_WITH_PARENT = 'exec 3<&0; (read -r word <&3 || kill -9 $$) & exec "$@" </dev/null 3<&-'

_LIVES_ON = '"$@" </dev/null >&2 & echo $!'

_QUIET_CLIENT = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 30,
    "retry.backoff.max.ms": 100,
}


@dataclass(frozen=True, slots=True)
class JavaCommand:
    """How a class of Kafka's jars is run."""

    java: Path
    jar_folder: Path
    flags: tuple[str, ...] = ()
    """For every run."""

    @property
    def class_path(self) -> str:
        """All jars of the folder."""
        return f"{self.jar_folder}/*"

    def line(self, main_class: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
        """The command line."""
        return [str(self.java), *self.flags, *flags, "-cp", self.class_path, main_class, *arguments]


def format_storage(command: JavaCommand, *, cluster_id: str, properties_file: Path) -> None:
    """Make the log folder that `properties_file` names a part of the cluster.

    Raises:
        UsageError: Kafka's own tool refused, mostly for a setting; nothing was formatted.
    """
    line = command.line(
        FORMAT_CLASS, "format", "-t", cluster_id, "-c", str(properties_file),
        flags=("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", LOG_LEVEL_FLAG),
    )  # fmt: skip
    answer = subprocess.run(  # noqa: S603 - our own command line
        line, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False
    )
    if answer.returncode != 0:
        said = _telling_line(answer.stderr or answer.stdout)
        raise UsageError(f"Kafka refuses the settings in {properties_file}; it says: {said}")


def launch_child(
    command: JavaCommand, *, properties_file: Path, log_file: Path, flags: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start a broker that is killed when this process ends in any way; it is not ready yet.

    It has a session of its own, so a Ctrl-C at the terminal does not reach it. Call `release` when it has ended.
    """
    with _open_log(log_file) as log:
        return subprocess.Popen(  # noqa: S603 - our own command line
            [
                "/bin/sh",
                "-c",
                _DIES_WITH_PARENT,
                "sh",
                *_broker_line(command, properties_file, flags),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def launch_background(
    command: JavaCommand, *, properties_file: Path, log_file: Path, flags: Sequence[str]
) -> int:
    """Start a broker that lives on without this process and give its process id; it is not ready yet."""
    with _open_log(log_file) as log:
        # The shell ends at once, so the broker is no child of ours that would have to be waited for.
        answer = subprocess.run(  # noqa: S603 - our own command line
            ["/bin/sh", "-c", _LIVES_ON, "sh", *_broker_line(command, properties_file, flags)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    return int(answer.stdout)


def release(process: subprocess.Popen[bytes]) -> None:
    """Tell the helper of a broker started with `dies_with_parent` that nothing is left to kill; may be repeated."""
    if process.stdin is not None and not process.stdin.closed:
        # A helper that is gone already needs no word.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"ended\n")
            process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def end_child(process: subprocess.Popen[bytes], *, timeout_s: float) -> None:
    """Wait for a child that was told to end, kill it when it has not after `timeout_s`, and release it."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    release(process)


def is_broker(pid: int, *, properties_file: Path) -> bool:
    """Whether `pid` is a living broker with exactly this configuration, and not some other process with a reused id."""
    return f"{MAIN_CLASS} {properties_file}" in _command_line(pid)


def end(pid: int, *, is_alive: Callable[[], bool], timeout_s: float) -> None:
    """SIGTERM, and SIGKILL when that has not ended it after `timeout_s`; Kafka's data survive both."""
    for number, wait_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, timeout_s)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if not is_alive():
                return
            time.sleep(POLL_S)


def wait_until_ready(
    addresses: Sequence[str],
    *,
    broker_count: int,
    timeout_s: float,
    check_alive: Callable[[], None],
) -> None:
    """Wait until each of the brokers at `addresses` knows `broker_count`, and serves groups and Kafka transactions.

    The first call on a new cluster creates Kafka's internal topics, so that a user's first transaction need not
    wait for them.

    Raises:
        BrokerUnavailableError: they were not there within `timeout_s`.
        Exception: whatever `check_alive` raises when a process has ended.
    """
    deadline = time.monotonic() + timeout_s
    for address in addresses:
        admin = AdminClient({"bootstrap.servers": address, **_QUIET_CLIENT})
        seen = 0
        while seen < broker_count:
            check_alive()
            with contextlib.suppress(KafkaException):
                seen = len(admin.list_topics(timeout=1).brokers)
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(
                    f"{seen} of {broker_count} brokers are ready; see their logs",
                    bootstrap_servers=address,
                    waited_ms=round(timeout_s * 1000),
                )
            time.sleep(POLL_S)
    _warm_up(",".join(addresses), deadline=deadline)


def answers(bootstrap_servers: str, *, timeout_s: float) -> bool:
    """Whether some broker there answers within `timeout_s`."""
    try:
        AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET_CLIENT}).list_topics(
            timeout=timeout_s
        )
    except KafkaException:
        return False
    return True


def _broker_line(command: JavaCommand, properties_file: Path, flags: Sequence[str]) -> list[str]:
    # A Java that is killed leaves the libraries that it unpacked: here its next start removes them.
    temporary = properties_file.parent / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    flags = (f"-Djava.io.tmpdir={temporary}", *flags)
    return command.line(MAIN_CLASS, str(properties_file), flags=flags)


def _open_log(log_file: Path) -> BinaryIO:
    if log_file.exists() and log_file.stat().st_size > LOG_BYTES_MAX:
        log_file.replace(log_file.with_suffix(".old.log"))
    return log_file.open("ab")


def log_tail(log_file: Path) -> str:
    """The last line of a broker's log that names an error, else its last line."""
    if not log_file.exists():
        return "no log"
    with log_file.open("rb") as log:
        log.seek(max(0, log_file.stat().st_size - _LOG_TAIL_BYTES))
        return _telling_line(log.read().decode("utf-8", "replace"))


def _telling_line(output: str) -> str:
    lines = output.splitlines()
    named = [line for line in lines if "ERROR" in line or "Exception" in line]
    return (named or lines or ["nothing"])[-1].strip()


def _warm_up(bootstrap_servers: str, *, deadline: float) -> None:
    begun_at = time.monotonic()
    unserved = [_serves_groups, _serves_kafka_transactions]
    while True:
        # Side by side: each makes the broker create an internal topic.
        with ThreadPoolExecutor(max_workers=len(unserved)) as pool:
            served = list(pool.map(lambda serves: serves(bootstrap_servers), unserved))
        unserved = [
            serves for serves, is_served in zip(unserved, served, strict=True) if not is_served
        ]
        if not unserved:
            return
        if time.monotonic() > deadline:
            raise BrokerUnavailableError(
                "the broker answers, but does not serve groups and Kafka transactions yet",
                bootstrap_servers=bootstrap_servers,
                waited_ms=round((time.monotonic() - begun_at) * 1000),
            )


def _serves_groups(bootstrap_servers: str) -> bool:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": WARM_UP_NAME, **_QUIET_CLIENT}
    )
    try:
        consumer.committed([TopicPartition("__consumer_offsets", 0)], timeout=_ATTEMPT_S)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return True


def _serves_kafka_transactions(bootstrap_servers: str) -> bool:
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": WARM_UP_NAME, **_QUIET_CLIENT}
    )
    try:
        producer.init_transactions(_ATTEMPT_S)
    except KafkaException:
        return False
    return True


def _command_line(pid: int) -> str:
    """The words of a process, joined by spaces; empty when there is none or it has ended (a zombie)."""
    if not Path("/proc/self").exists():
        # Systems without /proc.
        answer = subprocess.run(  # noqa: S603 - a number is the only argument
            ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        return answer.stdout
    # For a moment of its exec a living process has no words: a shell that becomes Java, or Java that starts itself anew.
    for _ in range(_EXEC_LOOKS_MAX):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ""
        if words or state in _ENDED_STATES:
            return words.decode("utf-8", "replace").replace("\0", " ")
        time.sleep(POLL_S / 10)
    return ""


RECORD_NAME = "cluster.json"
LOCK_NAME = ".lock"
"""Held while a command starts, stops or removes the cluster."""
RECORD_FORMAT = 1
_META_NAME = "meta.properties"
_BOOTSTRAP_NAME = "bootstrap.checkpoint"


@dataclass(frozen=True, slots=True)
class Cluster:
    """One embedded cluster: its identity and its nodes."""

    cluster_id: str
    kafka_version: str
    nodes: tuple[Node, ...]

    @property
    def bootstrap_servers(self) -> str:
        """How clients reach it."""
        return bootstrap_servers(self.nodes)


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    """The files of one cluster."""

    path: Path

    @property
    def record_file(self) -> Path:
        """Whose data these are."""
        return self.path / RECORD_NAME

    def node_folder(self, node: Node) -> Path:
        """Everything of one node."""
        return self.path / f"node-{node.node_id}"

    def properties_file(self, node: Node) -> Path:
        """What the broker is started with; also what its process is recognised by."""
        return self.node_folder(node) / "server.properties"

    def log_file(self, node: Node) -> Path:
        """What the broker says."""
        return self.node_folder(node) / "broker.log"

    def pid_file(self, node: Node) -> Path:
        """The process id of a broker that was started; it may be stale."""
        return self.node_folder(node) / "broker.pid"

    def living_pid(self, node: Node) -> int | None:
        """The process of a node; a pid file whose process is gone, or somebody else's by now, counts for nothing."""
        try:
            pid = int(self.pid_file(node).read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return pid if is_broker(pid, properties_file=self.properties_file(node)) else None

    def write_pid(self, node: Node, pid: int) -> None:
        """Remember the process of a node; what an earlier one left is replaced."""
        self.pid_file(node).write_text(f"{pid}\n", "utf-8")

    def forget_pid(self, node: Node) -> None:
        """The node has ended."""
        self.pid_file(node).unlink(missing_ok=True)

    def is_formatted(self, node: Node) -> bool:
        """Whether Kafka's storage tool has been here."""
        return (self._data_folder(node) / _META_NAME).is_file()

    def format_like(self, formatted: Node, node: Node) -> bool:
        """Format a node's storage as its neighbour's, without the tool; False: that one is not where ours would be.

        The tool writes two files for every node of a cluster, alike but for the ids of the node and of the folder.
        Source: Kafka's class Formatter; KIP-858 on directory ids.
        """
        source, target = self._data_folder(formatted), self._data_folder(node)
        if not all((source / name).is_file() for name in (_META_NAME, _BOOTSTRAP_NAME)):
            return False
        own = {"node.id": str(node.node_id), "directory.id": new_id()}
        meta = read_properties(source / _META_NAME) | own
        target.mkdir(exist_ok=True)
        shutil.copyfile(source / _BOOTSTRAP_NAME, target / _BOOTSTRAP_NAME)
        # Last, for it says that the storage is formatted.
        (target / _META_NAME).write_text(render_properties(meta), "utf-8")
        return True

    def _data_folder(self, node: Node) -> Path:
        return self.node_folder(node) / "data"

    def load(self) -> Cluster | None:
        """The cluster whose data these are; None when the folder is missing or empty.

        Raises:
            ConfigError: the folder holds something else, or a record of a later txlayer.
        """
        if not self.record_file.is_file():
            if self.path.is_dir() and any(entry.name != LOCK_NAME for entry in self.path.iterdir()):
                raise ConfigError(
                    "this folder holds other files; name an empty or a new one with --data",
                    name="data",
                    value=str(self.path),
                    expected="an empty folder or a txlayer broker's",
                )
            return None
        try:
            return _parse_record(json.loads(self.record_file.read_text("utf-8")))
        except (ValueError, KeyError, TypeError) as exc:
            raise ConfigError(
                f"{RECORD_NAME} cannot be read by this txlayer; name another folder with --data",
                name="data",
                value=str(self.path),
                expected=f"a record of format {RECORD_FORMAT}",
            ) from exc

    def save(self, cluster: Cluster) -> None:
        """Write the record; a reader sees the old one or the new one."""
        record = {
            "format": RECORD_FORMAT,
            "cluster_id": cluster.cluster_id,
            "kafka_version": cluster.kafka_version,
            "nodes": [
                {
                    "node_id": n.node_id,
                    "client_port": n.client_port,
                    "controller_port": n.controller_port,
                }
                for n in cluster.nodes
            ],
        }
        self.path.mkdir(parents=True, exist_ok=True)
        draft = self.path / f".{RECORD_NAME}.{os.getpid()}"
        draft.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        draft.replace(self.record_file)

    def write_properties(self, cluster: Cluster, node: Node, more: Mapping[str, str]) -> Path:
        """The node's `server.properties`, written anew at each start: ports may have changed."""
        folder = self.node_folder(node)
        folder.mkdir(parents=True, exist_ok=True)
        settings = server_settings(
            node, nodes=cluster.nodes, log_folder=self._data_folder(node), more=more
        )
        self.properties_file(node).write_text(render_properties(settings), "utf-8")
        return self.properties_file(node)

    def check_storage(self, cluster: Cluster, node: Node) -> None:
        """Hold Kafka's own note on its storage against the record.

        Raises:
            ConfigError: the node's data belong to another cluster; Kafka would refuse them with a stack trace.
        """
        if not self.is_formatted(node):
            return
        found = read_properties(self._data_folder(node) / _META_NAME).get("cluster.id")
        if found != cluster.cluster_id:
            raise ConfigError(
                f"node-{node.node_id} holds the data of another cluster; put the right data back, "
                "or remove everything with `txlayer broker wipe`",
                name="data",
                value=found,
                expected=cluster.cluster_id,
            )


def running_already(path: Path) -> ConfigError:
    """The error of a start that needs the folder for itself."""
    return ConfigError(
        "brokers of this folder are running already; stop them first with `txlayer broker stop`",
        name="data",
        value=str(path),
        expected="no running broker",
    )


def read_properties(path: Path) -> dict[str, str]:
    """A properties file of Kafka's own, without its comments."""
    lines = path.read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def new_id() -> str:
    """A random id in Kafka's form, of a cluster or a folder: 16 bytes in URL-safe base64 without padding."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        # Kafka's own rule: an id that begins with a dash looks like an option on a command line.
        if not text.startswith("-"):
            return text


def check_fits(
    found: Cluster, *, broker_count: int | None, kafka_version: str, folder: Path
) -> None:
    """Whether an existing cluster is what is wanted.

    Raises:
        ConfigError: it has another number of brokers, or its data were written by a later Kafka.
    """
    if broker_count is not None and broker_count != len(found.nodes):
        raise ConfigError(
            f"this folder holds a cluster of {len(found.nodes)}; say --brokers {len(found.nodes)}, name another "
            "folder with --data, or remove the data with `txlayer broker wipe`",
            name="brokers",
            value=broker_count,
            expected=str(len(found.nodes)),
        )
    if _version_key(found.kafka_version) > _version_key(kafka_version):
        raise ConfigError(
            "these data were written by a later Kafka, which this one cannot read; use the later one, name another "
            "folder with --data, or remove the data with `txlayer broker wipe`",
            name="data",
            value=f"{folder} of Kafka {found.kafka_version}",
            expected=f"Kafka {kafka_version} or earlier",
        )


def _parse_record(record: Any) -> Cluster:
    if record["format"] != RECORD_FORMAT:
        raise ValueError("another format")
    nodes = tuple(
        Node(int(n["node_id"]), int(n["client_port"]), int(n["controller_port"]))
        for n in record["nodes"]
    )
    if not nodes:
        raise ValueError("no nodes")
    return Cluster(str(record["cluster_id"]), str(record["kafka_version"]), nodes)


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(
        int(part) for part in version.split("-", maxsplit=1)[0].split(".") if part.isdigit()
    )


BROKER_COUNTS = (1, 3)
"""One, or the smallest number that survives the loss of one."""


def open_cluster(folder: ClusterFolder, *, kafka_version: str, broker_count: int | None) -> Cluster:
    """The cluster of a folder, or a new one that is not written yet; its ports are 0 when it is new.

    Raises:
        ConfigError: the folder holds something else than was asked for. Nothing was changed.
    """
    if broker_count is not None and broker_count not in BROKER_COUNTS:
        raise ConfigError(
            "not possible as a number of brokers",
            name="brokers",
            value=broker_count,
            expected="1 or 3",
        )
    found = folder.load()
    if found is None:
        nodes = tuple(Node(number, 0, 0) for number in range(1, (broker_count or 1) + 1))
        return Cluster(new_id(), kafka_version, nodes)
    check_fits(found, broker_count=broker_count, kafka_version=kafka_version, folder=folder.path)
    for node in found.nodes:
        folder.check_storage(found, node)
    return replace(found, kafka_version=kafka_version)


def check_ports(nodes: Sequence[Node]) -> None:
    """Refuse ports that somebody else listens on; Kafka would say so in a stack trace, seconds later.

    Raises:
        ConfigError: the first such port. Nothing was started.
    """
    for node in nodes:
        for port in node.ports:
            if not is_free(port):
                raise ConfigError(
                    "this port is in use by another process; end that, or choose another with --port",
                    name="port",
                    value=port,
                    expected="a free port",
                )


def prepare_storage(
    folder: ClusterFolder, cluster: Cluster, *, command: JavaCommand, more: Mapping[str, str]
) -> None:
    """Write the record and every node's settings, and format the storage that is new.

    Raises:
        UsageError: Kafka refused to format. The record is written; the next start goes on from here.
    """
    folder.save(cluster)
    files = {node: folder.write_properties(cluster, node, more) for node in cluster.nodes}
    new = [node for node in cluster.nodes if not folder.is_formatted(node)]
    if not new:
        return

    def format_one(node: Node) -> None:
        format_storage(command, cluster_id=cluster.cluster_id, properties_file=files[node])

    # The tool takes a second of processor time, so one node's is copied where that can be.
    first, *others = new
    format_one(first)
    for node in others:
        if not folder.format_like(first, node):
            format_one(node)


PREFIX = "txlayer-broker-"
_OWNER_NAME = ".owner"


class TemporaryFolder:
    """A folder of this process's own; `remove` ends it, else it goes with a later process's start."""

    def __init__(self) -> None:
        self._path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        # Locked before it has its name: nobody can meet it without its owner.
        draft = self._path / f"{_OWNER_NAME}.draft"
        self._lock: int | None = os.open(draft, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.replace(self._path / _OWNER_NAME)

    @property
    def cluster(self) -> Path:
        """Where a cluster may be put; it does not exist yet."""
        return self._path / "cluster"

    def remove(self) -> None:
        """Remove everything; may be repeated."""
        if self._lock is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def remove_orphans() -> list[Path]:
    """Remove the folders of processes that have died and whose brokers have ended too; those that were removed.

    Never: a folder of another user, of a living process, with a living broker, or that this module did not make.
    """
    return [
        path
        for path in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*")
        if _is_ours(path) and _remove_if_orphaned(path)
    ]


def _is_ours(path: Path) -> bool:
    # It may vanish meanwhile: its owner, or another start, removes it.
    with contextlib.suppress(FileNotFoundError):
        return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
    return False


def _remove_if_orphaned(path: Path) -> bool:
    try:
        lock = os.open(path / _OWNER_NAME, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False  # no owner was ever named there
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Brokers are killed with their owner, a moment later; then the next start finds them ended.
        if _has_living_broker(ClusterFolder(path / "cluster")):
            return False
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return not path.exists()


def _has_living_broker(folder: ClusterFolder) -> bool:
    try:
        cluster = folder.load()
    except ConfigError:
        return False  # killed before its record was written, and so before any broker
    return cluster is not None and any(
        folder.living_pid(node) is not None for node in cluster.nodes
    )
