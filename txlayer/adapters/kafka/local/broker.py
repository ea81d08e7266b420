"""`LocalBroker` lives as long as its `with` block; `BackgroundBroker` outlives the command that started it."""

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from txlayer.adapters.kafka.local import server as processes
from txlayer.adapters.kafka.local.runtime import LocalConfig, file_lock, prepare_runtime
from txlayer.errors import BrokerUnavailableError, ConfigError, LifecycleError

DEFAULT_PORT = 9092
STOP_TIMEOUT_S = 20
"""A broker that has not ended cleanly by then is killed; its data survive that."""
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
        self._flags = processes.FAST if performance else processes.BRIEF
        self._cluster_id = cluster_id
        self._config = config
        self._temporary: Path | None = None
        self._opened: tuple[processes.DataFolder, processes.Server, processes.Runtime] | None = None
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
        processes.check_port(server.port)
        self._end(None)  # clears away a process that ended by itself
        child = self._process = processes.launch_child(
            runtime, folder, flags=self._flags, is_temporary=self._data is None
        )
        processes.wait_until_ready(server.address, check_alive=lambda: self._check_child(child))

    def _check_child(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is not None:
            folder, server, _ = self._started()
            raise BrokerUnavailableError(
                f"broker 1 ended with code {child.returncode}: {processes.log_tail(folder.log_file)}",
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
        folder = processes.DataFolder(path.resolve())
        try:
            if folder.living_pid() is not None:
                raise ConfigError(
                    "the broker of this folder is running already; stop it first with `txlayer broker stop`",
                    name="data",
                    value=str(folder.path),
                    expected="no running broker",
                )
            (free_port,) = processes.free_ports(1)
            port = self._port or free_port
            server = folder.prepare(runtime, port=port, more=self._properties, cluster_id=self._cluster_id)
        except BaseException:
            self.close()
            raise
        self._opened = (folder, server, runtime)

    def _started(self) -> tuple[processes.DataFolder, processes.Server, processes.Runtime]:
        if self._opened is None:
            raise LifecycleError("the broker is not running: call start() or use `with`", state="closed")
        return self._opened

    def _end(self, number: signal.Signals | None) -> None:
        if self._process is None:
            return
        if number is not None and self._process.poll() is None:
            self._process.send_signal(number)
        processes.end_child(self._process, timeout_s=STOP_TIMEOUT_S)
        self._process = None
        self._started()[0].pid_file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker as it is now."""

    server: processes.Server
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
        self._folder = processes.DataFolder(data.resolve())

    def status(self) -> BrokerStatus | None:
        """What runs; None when the folder holds no broker."""
        server = self._folder.load()
        if server is None:
            return None
        pid = self._folder.living_pid()
        is_answering = pid is not None and processes.answers(server.address, timeout_s=ANSWER_TIMEOUT_S)
        return BrokerStatus(server, pid, self._folder.log_file, is_answering)

    def start(
        self, runtime: Callable[[], processes.Runtime], *, port: int | None, properties: Mapping[str, str]
    ) -> BrokerStatus:
        """Start the broker and wait until it is ready; a running one is left as it is.

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
                processes.launch_background(made, self._folder, flags=processes.LASTING)
                processes.wait_until_ready(server.address, check_alive=self._check_alive)
            elif port not in (None, server.port):
                raise ConfigError(
                    "it is running on another port; stop it first with `txlayer broker stop`",
                    name="port",
                    value=port,
                    expected=str(server.port),
                )
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
        (path / processes.LOCK_NAME).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.rmdir()
        return was_there

    def _check_alive(self) -> None:
        if self._folder.living_pid() is None:
            log_file = self._folder.log_file
            raise BrokerUnavailableError(f"broker 1 ended: {processes.log_tail(log_file)}; see {log_file}")

    def _stop(self) -> int:
        pid = self._folder.living_pid()
        if pid is not None:
            processes.end(pid, is_alive=lambda: self._folder.living_pid() == pid, timeout_s=STOP_TIMEOUT_S)
        self._folder.pid_file.unlink(missing_ok=True)
        return int(pid is not None)

    def _locked(self) -> AbstractContextManager[None]:
        # Not even a lock file is put into a folder that belongs to another program.
        self._folder.load()
        return file_lock(self._folder.path / processes.LOCK_NAME)
