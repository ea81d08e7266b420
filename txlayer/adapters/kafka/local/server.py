"""One Kafka server on this machine: its settings, its data folder, its port and its Java process.

`LocalBroker` lives as long as its `with` block; `BackgroundBroker` outlives the command that started it.

The server is broker and controller in one process. What a user must mend is a ConfigError or UsageError; no broker was started then.

::

    <data>/cluster.json            Kafka version, cluster id and ports
    <data>/node-1/server.properties
    <data>/node-1/broker.log       the broker's warnings and errors
    <data>/node-1/broker.pid
    <data>/node-1/data/            Kafka's own
    <data>/node-1/tmp/             what its Java unpacks
"""

import base64
import contextlib
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
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Self

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from txlayer.adapters.kafka.local.runtime import LocalConfig, Runtime, file_lock, prepare_runtime
from txlayer.errors import BrokerUnavailableError, ConfigError, LifecycleError, UsageError

HOST = "127.0.0.1"  # an embedded broker has no password, so it listens to this machine alone
LOCK_NAME = ".lock"  # held while a command starts, stops or removes the broker
READY_TIMEOUT_S = 180
POLL_S = 0.05

_RECORD_NAME, _RECORD_FORMAT = "cluster.json", 1
_META_NAME = "meta.properties"
_MAIN_CLASS, _FORMAT_CLASS = "kafka.Kafka", "kafka.tools.StorageTool"
_FORMAT_TIMEOUT_S = 60
_LOG_BYTES_MAX = 10 * 1024 * 1024  # a larger log file is renamed (once) when the broker starts again
_LOG_TAIL_BYTES = 64 * 1024
_EXEC_LOOKS_MAX = 20
_ATTEMPT_S, _ATTEMPT_S_MAX = 0.25, 8.0
"""A client that met no coordinator looks again after a second; a new client looks at once. Each has twice the time of the
one before: a busy machine needs more than the first has."""
_WARM_UP_NAME = "txlayer.warm-up"
_LOG_LEVEL_FLAG = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"

# Below the ports that systems give to outgoing connections (32768 and up on Linux, 49152 on others): a broker that is
# down for a moment would otherwise find its port taken by some client, or a client connected to itself.
FIRST_CHOICE, LAST_CHOICE, _TRIES_MAX = 15_000, 32_000, 500

_SETTINGS = Path(__file__).with_name("broker.properties")

BRIEF = ("-Xmx384m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""JVM flags for tests: ready soon; the first compiler alone, slower under a long load."""
LASTING = ("-Xmx512m", "-Xms64m", "-XX:+UseSerialGC")  # JVM flags for a broker in the background: small, both compilers
FAST = ("-Xmx1024m", "-Xms512m", "-XX:+UseG1GC")  # JVM flags for measurements and load
_FLAGS = (
    "-Djava.awt.headless=true",
    _LOG_LEVEL_FLAG,
    # Only there does a broker say that it left out the end of a Kafka transaction (KAFKA-20734).
    "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction.TransactionMarkerChannelManager=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    # No files outside the data folder, and no half-dead broker.
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
)

# The shell becomes Java (exec), so the process that was started is the broker itself. Its helper waits for a word from
# the parent: the end of the pipe without a word means that the parent died, by whatever signal. Then the helper kills the
# broker, and removes its folder ($1) if that is temporary.
_DIES_WITH_PARENT = (
    'exec 3<&0; folder="$1"; shift; (read -r word <&3 || { kill -9 $$; sleep 1; [ -z "$folder" ] || rm -rf "$folder"; }) & '
    'exec "$@" </dev/null 3<&-'
)

_LIVES_ON = '"$@" </dev/null >&2 & echo $!'

_QUIET_CLIENT = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 30,
    "retry.backoff.max.ms": 100,
}


@dataclass(frozen=True, slots=True)
class Server:
    """One broker: its identity and its ports, which are 0 as long as none were chosen."""

    cluster_id: str
    kafka_version: str
    port: int = 0
    controller_port: int = 0

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"{HOST}:{self.port}"


class DataFolder:
    """The files of one broker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_file = path / _RECORD_NAME  # whose data these are
        self.node = path / "node-1"  # everything else
        self.properties_file = self.node / "server.properties"  # its process is recognised by it
        self.log_file = self.node / "broker.log"
        self.pid_file = self.node / "broker.pid"  # of a broker that was started; it may be stale
        self.meta_file = self.node / "data" / _META_NAME  # Kafka's own note on its storage

    def living_pid(self) -> int | None:
        """The broker's process; None when the pid file's process has ended or is another program by now."""
        try:
            pid = int(self.pid_file.read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return pid if is_broker(pid, properties_file=self.properties_file) else None

    def load(self) -> Server | None:
        """The broker whose data these are; None when the folder is missing or empty."""
        if not self.record_file.is_file():
            if self.path.is_dir() and any(entry.name != LOCK_NAME for entry in self.path.iterdir()):
                raise _wrong_data(
                    "this folder holds other files; name an empty or a new one with --data",
                    self.path,
                    "an empty folder or a txlayer broker's",
                )
            return None
        try:
            record = json.loads(self.record_file.read_text("utf-8"))
            (node,) = record["nodes"]
            if record["format"] != _RECORD_FORMAT:
                raise ValueError("another format")
            ports = int(node["client_port"]), int(node["controller_port"])
            return Server(str(record["cluster_id"]), str(record["kafka_version"]), *ports)
        except (ValueError, KeyError, TypeError) as exc:
            raise _wrong_data(
                f"{_RECORD_NAME} cannot be read by this txlayer; name another folder with --data",
                self.path,
                f"one broker's record of format {_RECORD_FORMAT}",
            ) from exc

    def open(self, *, kafka_version: str, cluster_id: str | None = None) -> Server:
        """The broker of this folder, or a new one that is not written yet."""
        found = self.load()
        if found is None:
            return Server(cluster_id or new_id(), kafka_version)
        if _version_key(found.kafka_version) > _version_key(kafka_version):
            raise _wrong_data(
                "these data were written by a later Kafka, which this one cannot read; use the later one, name another "
                "folder with --data, or remove the data with `txlayer broker wipe`",
                f"{self.path} of Kafka {found.kafka_version}",
                f"Kafka {kafka_version} or earlier",
            )
        stored = read_properties(self.meta_file).get("cluster.id") if self.meta_file.is_file() else None
        if stored not in (None, found.cluster_id):
            raise _wrong_data(
                "node-1 holds the data of another cluster; put the right data back, "
                "or remove everything with `txlayer broker wipe`",
                stored,
                found.cluster_id,
            )
        return replace(found, kafka_version=kafka_version)

    def prepare(self, runtime: Runtime, *, port: int, more: Mapping[str, str], cluster_id: str | None = None) -> Server:
        """The broker of this folder, ready to start on `port`; `more` wins over our settings.

        Raises:
            ConfigError: other data are here, or the port is in use. Nothing was written.
        """
        if "," in str(self.path):
            why = "Kafka takes a comma for the end of a folder's path; name another folder with --data"
            raise _wrong_data(why, self.path, "a path without a comma")
        server = self.open(kafka_version=runtime.kafka_version, cluster_id=cluster_id)
        (controller_port,) = free_ports(1, apart_from=[port])
        server = replace(server, port=port, controller_port=controller_port)
        check_port(port)
        self.node.mkdir(parents=True, exist_ok=True)
        ports = {"node_id": 1, "client_port": server.port, "controller_port": server.controller_port}
        whose = {"cluster_id": server.cluster_id, "kafka_version": server.kafka_version}
        record = {"format": _RECORD_FORMAT, **whose, "nodes": [ports]}
        # A reader sees the old record or the new one.
        draft = self.path / f".{_RECORD_NAME}.{os.getpid()}"
        draft.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        draft.replace(self.record_file)
        settings = server_settings(server, log_folder=self.node / "data", more=more)
        self.properties_file.write_text(render_properties(settings), "utf-8")
        if not self.meta_file.is_file():
            _format(runtime, cluster_id=server.cluster_id, properties_file=self.properties_file)
        return server


def _wrong_data(why: str, value: object, expected: str) -> ConfigError:
    return ConfigError(why, name="data", value=str(value), expected=expected)


def read_properties(path: Path) -> dict[str, str]:
    lines = path.read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def new_id() -> str:
    """A random id in Kafka's form, of a cluster or a folder: 16 bytes in URL-safe base64 without padding."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        # Kafka's own rule: an id that begins with a dash looks like an option on a command line.
        if not text.startswith("-"):
            return text


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".") if part.isdigit())


def server_settings(server: Server, *, log_folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The settings of a broker; `more` wins over everything here."""
    return {
        **read_properties(_SETTINGS),
        "controller.quorum.voters": f"1@{HOST}:{server.controller_port}",
        "listeners": f"PLAINTEXT://{server.address},CONTROLLER://{HOST}:{server.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{server.address}",
        "log.dirs": str(log_folder),
        **more,
    }


def render_properties(settings: Mapping[str, str]) -> str:
    """A Java properties file, one setting per line. Java takes it for ISO 8859-1, so JSON's escapes, which are Java's, say all else."""
    return "".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items())


# --- ports ------------------------------------------------------------------------------------------------------------


def is_free(port: int) -> bool:
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
    """`count` different ports that were free a moment ago, none of those in `apart_from`."""
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


def check_port(port: int) -> None:
    """Refuse a port that another process listens on; Kafka would say so in a stack trace, seconds later."""
    if not is_free(port):
        raise ConfigError(
            "this port is in use by another process; end that, or choose another with --port",
            name="port",
            value=port,
            expected="a free port",
        )


# --- processes --------------------------------------------------------------------------------------------------------


def _format(runtime: Runtime, *, cluster_id: str, properties_file: Path) -> None:
    flags = (*BRIEF, "-XX:-UsePerfData", _LOG_LEVEL_FLAG)
    line = runtime.line(_FORMAT_CLASS, "format", "-t", cluster_id, "-c", str(properties_file), flags=flags)
    answer = subprocess.run(  # noqa: S603 - our own command line
        line, capture_output=True, text=True, timeout=_FORMAT_TIMEOUT_S, check=False
    )
    if answer.returncode != 0:
        said = _telling_line(answer.stderr or answer.stdout)
        raise UsageError(f"Kafka refuses the settings in {properties_file}; it says: {said}")


def launch_child(
    runtime: Runtime, folder: DataFolder, *, flags: Sequence[str], is_temporary: bool
) -> subprocess.Popen[bytes]:
    """Start a broker that is killed when this process ends in any way; a temporary folder goes with it. It is not ready yet.

    It has a session of its own, so a Ctrl-C at the terminal does not reach it. `end_child` ends it.
    """
    removed = str(folder.path) if is_temporary else ""
    with _open_log(folder.log_file) as log:
        child = subprocess.Popen(  # noqa: S603 - our own command line
            ["/bin/sh", "-c", _DIES_WITH_PARENT, "sh", removed, *_broker_line(runtime, folder, flags)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    folder.pid_file.write_text(f"{child.pid}\n", "utf-8")
    return child


def launch_background(runtime: Runtime, folder: DataFolder) -> None:
    """Start a broker that lives on without this process; it is not ready yet."""
    with _open_log(folder.log_file) as log:
        # The shell ends at once, so the broker is no child of ours that would have to be waited for.
        answer = subprocess.run(  # noqa: S603 - our own command line
            ["/bin/sh", "-c", _LIVES_ON, "sh", *_broker_line(runtime, folder, LASTING)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    folder.pid_file.write_text(f"{int(answer.stdout)}\n", "utf-8")


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Wait for a child that was asked to end, and kill it when it has not ended after `STOP_TIMEOUT_S`."""
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None and not process.stdin.closed:
        # Its helper learns that nothing is left to kill; one that is gone already needs no word.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"ended\n")
            process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def is_broker(pid: int, *, properties_file: Path) -> bool:
    """Whether `pid` is a living broker with exactly this configuration, and not another process that reuses the id."""
    return f"{_MAIN_CLASS} {properties_file}" in _command_line(pid)


def end(pid: int, *, is_alive: Callable[[], bool]) -> None:
    """SIGTERM, and SIGKILL when that has not ended it after `STOP_TIMEOUT_S`; Kafka's data survive both."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            if not is_alive():
                return
            time.sleep(POLL_S)


def wait_until_ready(address: str, *, check_alive: Callable[[], None]) -> None:
    """Wait until the broker serves metadata, groups and Kafka transactions.

    The first call on a new broker creates Kafka's internal topics, so that a user's first transaction need not
    wait for them.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    for what, serves in (
        ("metadata", answers),
        ("groups", _serves_groups),
        ("Kafka transactions", _serves_kafka_transactions),
    ):
        attempt_s = _ATTEMPT_S
        check_alive()
        while not serves(address, timeout_s=attempt_s):
            check_alive()
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(
                    f"the broker does not serve {what} yet; see its log",
                    bootstrap_servers=address,
                    waited_ms=READY_TIMEOUT_S * 1000,
                )
            attempt_s = min(2 * attempt_s, _ATTEMPT_S_MAX)
            time.sleep(POLL_S)


def answers(address: str, *, timeout_s: float) -> bool:
    client = AdminClient({"bootstrap.servers": address, **_QUIET_CLIENT})
    return _is_served(lambda: client.list_topics(timeout=timeout_s))


def _serves_groups(address: str, *, timeout_s: float) -> bool:
    consumer = Consumer({"bootstrap.servers": address, "group.id": _WARM_UP_NAME, **_QUIET_CLIENT})
    with contextlib.closing(consumer):
        return _is_served(lambda: consumer.committed([TopicPartition("__consumer_offsets", 0)], timeout=timeout_s))


def _serves_kafka_transactions(address: str, *, timeout_s: float) -> bool:
    producer = Producer({"bootstrap.servers": address, "transactional.id": _WARM_UP_NAME, **_QUIET_CLIENT})
    return _is_served(lambda: producer.init_transactions(timeout_s))


def _is_served(call: Callable[[], object]) -> bool:
    try:
        call()
    except KafkaException:
        return False
    return True


def _broker_line(runtime: Runtime, folder: DataFolder, flags: Sequence[str]) -> list[str]:
    # A Java that is killed leaves the libraries that it unpacked: here its next start removes them.
    temporary = folder.node / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    flags = (f"-Djava.io.tmpdir={temporary}", *flags, *_FLAGS)
    return runtime.line(_MAIN_CLASS, str(folder.properties_file), flags=flags)


def _open_log(log_file: Path) -> BinaryIO:
    if log_file.exists() and log_file.stat().st_size > _LOG_BYTES_MAX:
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


def _command_line(pid: int) -> str:
    """The words of a process, joined by spaces; empty when there is none or it has ended (a zombie)."""
    if not Path("/proc/self").exists():
        # Systems without /proc.
        answer = subprocess.run(  # noqa: S603 - a number is the only argument
            ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return answer.stdout
    # For a moment of its exec a living process has no words: a shell that becomes Java, or Java that starts itself anew.
    for _ in range(_EXEC_LOOKS_MAX):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ""
        if words or state in (b"Z", b"X"):
            return words.decode("utf-8", "replace").replace("\0", " ")
        time.sleep(POLL_S / 10)
    return ""


# --- brokers ---------------------------------------------------------------------------------------------------------


DEFAULT_PORT = 9092
STOP_TIMEOUT_S = 20  # a broker that has not ended cleanly by then is killed; its data survive that
ANSWER_TIMEOUT_S = 3


class LocalBroker:
    """One broker of real Apache Kafka on this machine.

    ::

        with LocalBroker() as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    The broker listens to 127.0.0.1 on a free port and is killed when this process ends, however it ends. Data are in
    a temporary folder that is removed at the end, also when this process is killed while the broker runs, or in `data`, which
    is kept. Not for several threads.
    """

    def __init__(
        self,
        *,
        data: Path | str | None = None,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        performance: bool = False,
        cluster_id: str | None = None,
        config: LocalConfig | None = None,
    ) -> None:
        """Store the settings; `start()` acts.

        Args:
            data: a folder that is kept; a broker that finds its data there goes on with them.
            port: the broker's port; a free one otherwise.
            properties: more broker settings; they win over ours.
            performance: a heap of 1 GB and both compilers, for measurements; the default is small and soon ready.
            cluster_id: the id of a new cluster; a random one otherwise. With `properties` that make the broker one of
                several, all of them need the same.
            config: where Java and the jars come from; the user's cache folder and PATH otherwise.
        """
        self._data = Path(data) if data is not None else None
        self._port = port
        self._properties = dict(properties or {})
        self._flags = FAST if performance else BRIEF
        self._cluster_id = cluster_id
        self._config = config
        self._temporary: Path | None = None
        self._opened: tuple[DataFolder, Server, Runtime] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """How clients reach it; stays the same when the broker is killed and started again."""
        return self._started()[1].address

    @property
    def pid(self) -> int | None:
        """The id of its Java process; None when it is not running."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def folder(self) -> Path:
        """Where the data and the broker's log are."""
        return self._started()[0].path

    def start(self) -> None:
        """Start the broker and wait until it serves Kafka transactions; does nothing when it is running.

        Raises:
            ConfigError: no Java, a port in use, or a folder with other data. Nothing was started.
            BrokerUnavailableError: it was not ready within 180 s or ended; see its log. `close()` cleans up.
        """
        if self._opened is None:
            self._open()
        folder, server, runtime = self._started()
        if self.pid is not None:
            return
        check_port(server.port)
        self._end(None)  # clears away a process that ended by itself
        child = self._process = launch_child(runtime, folder, flags=self._flags, is_temporary=self._data is None)
        wait_until_ready(server.address, check_alive=lambda: self._check_child(child))

    def _check_child(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is not None:
            folder, server, _ = self._started()
            raise BrokerUnavailableError(
                f"broker 1 ended with code {child.returncode}: {log_tail(folder.log_file)}",
                bootstrap_servers=server.address,
            )

    def kill(self) -> None:
        """SIGKILL: what was acknowledged is in the page cache and survives."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait for the clean end; `start` brings the broker back with its data."""
        self._end(signal.SIGTERM)

    def close(self) -> None:
        """End everything; a temporary folder goes with it. May be repeated; `start` begins anew."""
        # Data in a temporary folder are not read again, so they need no clean end.
        self._end(signal.SIGKILL if self._data is None else signal.SIGTERM)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary = self._opened = None

    def _open(self) -> None:
        runtime = prepare_runtime(self._config or LocalConfig())
        path = self._data
        if path is None:
            path = self._temporary = Path(tempfile.mkdtemp(prefix="txlayer-broker-"))
        folder = DataFolder(path.resolve())
        try:
            if folder.living_pid() is not None:
                raise ConfigError(
                    "the broker of this folder is running already; stop it first with `txlayer broker stop`",
                    name="data",
                    value=str(folder.path),
                    expected="no running broker",
                )
            (free_port,) = free_ports(1)
            port = self._port or free_port
            server = folder.prepare(runtime, port=port, more=self._properties, cluster_id=self._cluster_id)
        except BaseException:
            self.close()
            raise
        self._opened = (folder, server, runtime)

    def _started(self) -> tuple[DataFolder, Server, Runtime]:
        if self._opened is None:
            raise LifecycleError("the broker is not running: call start() or use `with`", state="closed")
        return self._opened

    def _end(self, number: signal.Signals | None) -> None:
        if self._process is None:
            return
        if number is not None and self._process.poll() is None:
            self._process.send_signal(number)
        end_child(self._process)
        self._process = None
        self._started()[0].pid_file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker as it is now."""

    server: Server
    pid: int | None  # None when it is not running
    log_file: Path
    is_answering: bool


class BackgroundBroker:
    """The broker of one data folder. Every call looks at the process anew; several commands at once are safe.

    Raises, from each call:
        ConfigError: the folder holds something else, or, at `start`, a port does not fit. Nothing was started or removed.
        BrokerUnavailableError: the broker ended or was not ready in time; what was started goes on running.
    """

    def __init__(self, data: Path) -> None:
        self._folder = DataFolder(data.resolve())

    def status(self) -> BrokerStatus | None:
        """What runs; None when the folder holds no broker."""
        server = self._folder.load()
        if server is None:
            return None
        pid = self._folder.living_pid()
        is_answering = pid is not None and answers(server.address, timeout_s=ANSWER_TIMEOUT_S)
        return BrokerStatus(server, pid, self._folder.log_file, is_answering)

    def start(self, runtime: Callable[[], Runtime], *, port: int | None, properties: Mapping[str, str]) -> BrokerStatus:
        """Start the broker unless it runs, and wait until it is ready.

        Args:
            runtime: makes Java and jars ready; called once the folder is known to fit.
            port: None means the folder's last one, else 9092.
            properties: more broker settings.
        """
        with self._locked():
            server = self._folder.load()
            if server is None or self._folder.living_pid() is None:
                made = runtime()
                port = port or (server.port if server is not None else 0) or DEFAULT_PORT
                server = self._folder.prepare(made, port=port, more=properties)
                launch_background(made, self._folder)
            elif port not in (None, server.port):
                raise ConfigError(
                    "it is running on another port; stop it first with `txlayer broker stop`",
                    name="port",
                    value=port,
                    expected=str(server.port),
                )
            wait_until_ready(server.address, check_alive=self._check_alive)
        status = self.status()
        assert status is not None
        return status

    def stop(self) -> int:
        """End the broker cleanly and return the number that was running, 0 or 1; the data stay."""
        if not self._folder.path.is_dir():
            return 0
        with self._locked():
            return self._stop()

    def wipe(self) -> bool:
        """End the broker and remove the data for ever; False when there were none."""
        path = self._folder.path
        if not path.is_dir():
            return False
        with self._locked():
            was_there = self._folder.load() is not None
            if was_there:
                self._stop()
                # Only what is ours: a folder that also holds something else keeps it.
                shutil.rmtree(self._folder.node, ignore_errors=True)
                self._folder.record_file.unlink(missing_ok=True)
        (path / LOCK_NAME).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.rmdir()
        return was_there

    def _check_alive(self) -> None:
        if self._folder.living_pid() is None:
            log_file = self._folder.log_file
            raise BrokerUnavailableError(f"broker 1 ended: {log_tail(log_file)}; see {log_file}")

    def _stop(self) -> int:
        pid = self._folder.living_pid()
        if pid is not None:
            end(pid, is_alive=lambda: self._folder.living_pid() == pid)
        self._folder.pid_file.unlink(missing_ok=True)
        return int(pid is not None)

    def _locked(self) -> AbstractContextManager[None]:
        # Not even a lock file is put into a folder that belongs to another program.
        self._folder.load()
        return file_lock(self._folder.path / LOCK_NAME)
