"""`LocalBroker` lives as long as its `with` block; `BackgroundCluster` outlives the command that started it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from txlayer.adapters.kafka.local import server
from txlayer.adapters.kafka.local.jars import Progress, file_lock
from txlayer.adapters.kafka.local.runtime import QUIET, LocalConfig, Runtime, prepare_runtime
from txlayer.adapters.kafka.local.server import (
    HOST,
    LOCK_NAME,
    Cluster,
    ClusterFolder,
    JavaCommand,
    JvmProfile,
    Node,
    ProxiedListener,
    TemporaryFolder,
    check_fits,
    check_ports,
    free_ports,
    jvm_flags,
    open_cluster,
    prepare_storage,
    remove_orphans,
    running_already,
)
from txlayer.errors import BrokerUnavailableError, ConfigError, LifecycleError

READY_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
"""A broker that has not ended cleanly by then is killed; its data survive that."""


class LocalBroker:
    """One broker, or a cluster of three, of real Apache Kafka on this machine.

    ::

        with LocalBroker() as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    The brokers listen to 127.0.0.1 on free ports and are killed when this process ends, however it ends. Data are in
    a temporary folder that is removed at the end (by the next start, when this process is killed), or in `data`, which
    is kept. Not for several threads.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        data: Path | str | None = None,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        proxied_listeners: Sequence[Sequence[int]] = (),
        performance: bool = False,
        heap_mb: int | None = None,
        config: LocalConfig | None = None,
        progress: Progress = QUIET,
    ) -> None:
        """Store the wishes; `start()` acts.

        Args:
            brokers: 1 or 3.
            data: a folder that is kept; a broker that finds its data there goes on with them.
            port: the first broker's port, the others follow; free ones otherwise.
            properties: more settings for every broker; they win over ours.
            proxied_listeners: for each further listener, the port that each broker gives out for it: that of a proxy
                which passes on to `upstream(listener, broker)`.
            performance: a heap of 1 GB and both compilers, for measurements; the default is small and soon ready.
            heap_mb: another heap.
            config: where Java and the jars come from; the user's cache folder and PATH otherwise.
            progress: is told about jars that are fetched.
        """
        for ports in proxied_listeners:
            if len(ports) != brokers:
                raise ConfigError(
                    "every listener needs an advertised port for each broker",
                    name="proxied_listeners", value=list(ports), expected=f"{brokers} ports",
                )  # fmt: skip
        self._broker_count = brokers
        self._data = Path(data) if data is not None else None
        self._port = port
        self._properties = dict(properties or {})
        self._proxied_listeners = tuple(tuple(ports) for ports in proxied_listeners)
        self._flags = jvm_flags(
            JvmProfile.FAST if performance else JvmProfile.BRIEF, heap_mb=heap_mb
        )
        self._config = config
        self._progress = progress
        self._runtime: Runtime | None = None
        self._temporary: TemporaryFolder | None = None
        self._folder: ClusterFolder | None = None
        self._cluster: Cluster | None = None
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """How clients reach it; stays the same when brokers are killed and started again."""
        return self._opened()[1].bootstrap_servers

    @property
    def pids(self) -> dict[int, int]:
        """Broker number (1, 2, 3) to the id of its Java process, for those that are running."""
        return {number: p.pid for number, p in sorted(self._processes.items()) if p.poll() is None}

    @property
    def folder(self) -> Path:
        """Where the data and the brokers' logs are."""
        return self._opened()[0].path

    def upstream(self, *, listener: int, broker: int = 1) -> tuple[str, int]:
        """Host and port on which a broker really listens for a proxied listener (both are counted from 1)."""
        node = self._node(broker)
        return HOST, node.proxied[listener - 1].port

    def proxied_servers(self, *, listener: int) -> str:
        """The bootstrap servers of clients that go through the proxies of a listener (counted from 1)."""
        nodes = self._opened()[1].nodes
        return ",".join(f"{HOST}:{node.proxied[listener - 1].advertised_port}" for node in nodes)

    def start(self, broker: int | None = None) -> None:
        """Start what is not running, or one broker, and wait until it serves Kafka transactions; may be repeated.

        Raises:
            ConfigError: no Java, a port in use, or a folder with other data. Nothing was started.
            BrokerUnavailableError: it was not ready within 60 s or ended; see its log. `close()` cleans up.
        """
        if self._cluster is None:
            self._open()
        folder, cluster = self._opened()
        wanted = [self._node(broker)] if broker is not None else list(cluster.nodes)
        missing = [node for node in wanted if node.node_id not in self.pids]
        check_ports(missing)
        assert self._runtime is not None
        for node in missing:
            # What ended by itself is still to be cleared away.
            self._end(node.node_id, None)
            self._processes[node.node_id] = server.launch_child(
                self._runtime.command,
                properties_file=folder.properties_file(node),
                log_file=folder.log_file(node),
                flags=self._flags,
            )
            folder.write_pid(node, self._processes[node.node_id].pid)
        if missing:
            server.wait_until_ready(
                [node.address for node in missing],
                broker_count=len(self.pids),
                timeout_s=READY_TIMEOUT_S,
                check_alive=lambda: self._check_alive(missing),
            )

    def kill(self, broker: int = 1) -> None:
        """SIGKILL: what was acknowledged is in the page cache and survives."""
        self._end(broker, signal.SIGKILL)

    def stop(self, broker: int | None = None) -> None:
        """SIGTERM to one broker or to all, and wait for the clean end; `start` brings them back with their data."""
        numbers = [broker] if broker is not None else list(self.pids)
        for number in numbers:
            if number in self.pids:
                os.kill(self.pids[number], signal.SIGTERM)
        for number in numbers:
            self._end(number, None)

    def close(self) -> None:
        """End everything; a temporary folder goes with it. May be repeated; `start` begins anew."""
        if self._data is None:
            # Nobody will read these data: no need for a clean end.
            for number in list(self._processes):
                self.kill(number)
        else:
            self.stop()
        if self._temporary is not None:
            self._temporary.remove()
        self._temporary = self._folder = self._cluster = None

    def _open(self) -> None:
        self._runtime = prepare_runtime(self._config or LocalConfig(), progress=self._progress)
        if self._data is None:
            remove_orphans()
            self._temporary = TemporaryFolder()
            self._folder = ClusterFolder(self._temporary.cluster)
        else:
            self._folder = ClusterFolder(self._data.resolve())
        try:
            cluster = open_cluster(
                self._folder,
                kafka_version=self._runtime.kafka_version,
                broker_count=self._broker_count,
            )
            if any(self._folder.living_pid(node) is not None for node in cluster.nodes):
                raise running_already(self._folder.path)
            cluster = replace(cluster, nodes=self._with_ports(cluster.nodes))
            check_ports(cluster.nodes)
            prepare_storage(
                self._folder, cluster, command=self._runtime.command, more=self._properties
            )
        except BaseException:
            self.close()
            raise
        self._cluster = cluster

    def _with_ports(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        listeners = len(self._proxied_listeners)
        count = len(nodes)
        # Nobody listens there yet: by the time the proxies do, the brokers have been up for seconds.
        taken = set(chain.from_iterable(self._proxied_listeners))
        if self._port is not None:
            taken.update(range(self._port, self._port + count))
        free = iter(free_ports(count * (2 + listeners), apart_from=taken))
        placed = []
        for index, node in enumerate(nodes):
            proxied = tuple(
                ProxiedListener(next(free), ports[index]) for ports in self._proxied_listeners
            )
            client = next(free) if self._port is None else self._port + index
            placed.append(
                replace(node, client_port=client, controller_port=next(free), proxied=proxied)
            )
        return tuple(placed)

    def _opened(self) -> tuple[ClusterFolder, Cluster]:
        if self._folder is None or self._cluster is None:
            raise LifecycleError(
                "the broker is not running: call start() or use `with`", state="closed"
            )
        return self._folder, self._cluster

    def _node(self, broker: int) -> Node:
        nodes = self._opened()[1].nodes
        if not 1 <= broker <= len(nodes):
            raise ConfigError(
                "no such broker", name="broker", value=broker, expected=f"1 to {len(nodes)}"
            )
        return nodes[broker - 1]

    def _check_alive(self, nodes: Sequence[Node]) -> None:
        folder = self._opened()[0]
        for node in nodes:
            code = self._processes[node.node_id].poll()
            if code is not None:
                raise BrokerUnavailableError(
                    f"broker {node.node_id} ended with code {code}: {server.log_tail(folder.log_file(node))}",
                    bootstrap_servers=node.address,
                )

    def _end(self, broker: int, number: signal.Signals | None) -> None:
        process = self._processes.get(broker)
        if process is None:
            return
        if number is not None and process.poll() is None:
            process.send_signal(number)
        server.end_child(process, timeout_s=STOP_TIMEOUT_S)
        del self._processes[broker]
        folder, _ = self._opened()
        folder.forget_pid(self._node(broker))


DEFAULT_PORT = 9092
ANSWER_TIMEOUT_S = 3


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One broker as it is now."""

    node: Node
    pid: int | None
    """None when it is not running."""
    log_file: Path


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster as it is now."""

    cluster: Cluster
    nodes: tuple[NodeStatus, ...]
    is_answering: bool

    @property
    def running_count(self) -> int:
        """Brokers whose process lives."""
        return sum(1 for node in self.nodes if node.pid is not None)

    @property
    def is_running(self) -> bool:
        """Whether every broker's process lives."""
        return self.running_count == len(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedCluster:
    """What a start asks for."""

    runtime: Callable[[], Runtime]
    """Makes Java and jars ready; called once the folder is known to fit."""
    broker_count: int | None = None
    """1 or 3; None means what the folder holds, else 1."""
    port: int | None = None
    """The first broker's; None means the folder's last one, else 9092."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """More settings for every broker."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A start whose files are written."""

    command: JavaCommand
    cluster: Cluster
    missing: tuple[Node, ...]


class BackgroundCluster:
    """The cluster of one data folder. Every call looks at the processes anew; several commands at once are safe."""

    def __init__(self, data: Path) -> None:
        self._folder = ClusterFolder(data.resolve())

    @property
    def path(self) -> Path:
        """The data folder."""
        return self._folder.path

    def status(self) -> ClusterStatus | None:
        """What runs; None when the folder holds no cluster.

        Raises:
            ConfigError: the folder holds something else.
        """
        cluster = self._folder.load()
        if cluster is None:
            return None
        nodes = tuple(
            NodeStatus(node, self._folder.living_pid(node), self._folder.log_file(node))
            for node in cluster.nodes
        )
        is_running = any(node.pid is not None for node in nodes)
        return ClusterStatus(
            cluster,
            nodes,
            is_running and server.answers(cluster.bootstrap_servers, timeout_s=ANSWER_TIMEOUT_S),
        )

    def start(self, wanted: WantedCluster) -> ClusterStatus:
        """Start what is not running and wait until all of it is ready; a running cluster is left as it is.

        Raises:
            ConfigError: the folder or a port does not fit; nothing was started.
            BrokerUnavailableError: a broker ended or was not ready in time; what was started goes on running.
        """
        with self._locked():
            if (plan := self._prepare(wanted)) is not None:
                for node in plan.missing:
                    pid = server.launch_background(
                        plan.command,
                        properties_file=self._folder.properties_file(node),
                        log_file=self._folder.log_file(node),
                        flags=_flags(plan.cluster),
                    )
                    self._folder.write_pid(node, pid)
                self._await(plan)
        return self._known_status()

    def run(self, wanted: WantedCluster, *, on_ready: Callable[[ClusterStatus], None]) -> None:
        """Start the cluster as children of this process and stay until it ends, or until an exception (a signal).

        The brokers end with this call, and are killed if this process is.

        Raises:
            ConfigError: as `start`, or brokers of this folder are running already.
            BrokerUnavailableError: a broker ended by itself.
        """
        children: dict[Node, subprocess.Popen[bytes]] = {}
        try:
            with self._locked():
                plan = self._prepare(wanted)
                if plan is None or len(plan.missing) < len(plan.cluster.nodes):
                    raise running_already(self.path)
                for node in plan.missing:
                    children[node] = server.launch_child(
                        plan.command,
                        properties_file=self._folder.properties_file(node),
                        log_file=self._folder.log_file(node),
                        flags=_flags(plan.cluster),
                    )
                    self._folder.write_pid(node, children[node].pid)
                self._await(plan)
            on_ready(self._known_status())
            self._stay(children)
        finally:
            for child in children.values():
                if child.poll() is None:
                    child.terminate()
            for node, child in children.items():
                server.end_child(child, timeout_s=STOP_TIMEOUT_S)
                self._folder.forget_pid(node)

    def stop(self) -> int:
        """End every broker cleanly and give the number that was running; the data stay.

        Raises:
            ConfigError: the folder holds something else.
        """
        if not self.path.is_dir():
            return 0
        with self._locked():
            cluster = self._folder.load()
            return self._stop(cluster.nodes) if cluster else 0

    def wipe(self) -> bool:
        """End every broker and remove the data for ever; False when there were none.

        Raises:
            ConfigError: the folder holds something else; nothing was removed.
        """
        if not self.path.is_dir():
            return False
        with self._locked():
            cluster = self._folder.load()
            if cluster:
                self._stop(cluster.nodes)
            # Only what is ours: a folder that also holds something else keeps it.
            for node in cluster.nodes if cluster else ():
                shutil.rmtree(self._folder.node_folder(node), ignore_errors=True)
            self._folder.record_file.unlink(missing_ok=True)
        (self.path / LOCK_NAME).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()
        return cluster is not None

    def _prepare(self, wanted: WantedCluster) -> _Plan | None:
        """Write everything that a start needs; None when everything runs. What runs is not touched."""
        found = self._folder.load()
        running = (
            [n for n in found.nodes if self._folder.living_pid(n) is not None] if found else []
        )
        if found and running:
            _check_running(found, wanted, folder=self.path)
            if len(running) == len(found.nodes):
                return None
        runtime = wanted.runtime()
        cluster = open_cluster(
            self._folder, kafka_version=runtime.kafka_version, broker_count=wanted.broker_count
        )
        if not running:
            cluster = replace(cluster, nodes=_with_ports(cluster.nodes, first_port=wanted.port))
        missing = tuple(node for node in cluster.nodes if node not in running)
        check_ports(missing)
        prepare_storage(self._folder, cluster, command=runtime.command, more=wanted.properties)
        return _Plan(runtime.command, cluster, missing)

    def _await(self, plan: _Plan) -> None:
        def check_alive() -> None:
            for node in plan.missing:
                if self._folder.living_pid(node) is None:
                    raise BrokerUnavailableError(
                        f"broker {node.node_id} ended: {server.log_tail(self._folder.log_file(node))}; "
                        f"see {self._folder.log_file(node)}",
                        bootstrap_servers=node.address,
                    )

        server.wait_until_ready(
            [node.address for node in plan.missing],
            broker_count=len(plan.cluster.nodes),
            timeout_s=READY_TIMEOUT_S,
            check_alive=check_alive,
        )

    def _stay(self, children: Mapping[Node, subprocess.Popen[bytes]]) -> None:
        while all(child.poll() is None for child in children.values()):
            time.sleep(server.POLL_S)
        for node, child in children.items():
            # `txlayer broker stop` from elsewhere is no failure.
            if child.poll() not in (None, 0, -signal.SIGTERM, server.TERMINATED_CODE):
                raise BrokerUnavailableError(
                    f"broker {node.node_id} ended with code {child.returncode}: "
                    f"{server.log_tail(self._folder.log_file(node))}",
                    bootstrap_servers=node.address,
                )

    def _stop(self, nodes: Sequence[Node]) -> int:
        living = {node: pid for node in nodes if (pid := self._folder.living_pid(node)) is not None}
        # All at once: a cluster of three would otherwise wait for the majority that has gone.
        with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
            list(pool.map(lambda node: self._end(node, living[node]), living))
        for node in nodes:
            self._folder.forget_pid(node)
        return len(living)

    def _end(self, node: Node, pid: int) -> None:
        server.end(
            pid,
            is_alive=lambda: self._folder.living_pid(node) == pid,
            timeout_s=STOP_TIMEOUT_S,
        )

    def _known_status(self) -> ClusterStatus:
        status = self.status()
        assert status is not None
        return status

    def _locked(self) -> AbstractContextManager[None]:
        # Not even a lock file is put into a folder that is somebody else's.
        self._folder.load()
        return file_lock(self.path / LOCK_NAME)


def _flags(cluster: Cluster) -> tuple[str, ...]:
    # Three brokers share this machine's processors at their start, where the second compiler doubles the work.
    return jvm_flags(JvmProfile.LASTING if len(cluster.nodes) == 1 else JvmProfile.BRIEF)


def _check_running(found: Cluster, wanted: WantedCluster, *, folder: Path) -> None:
    check_fits(
        found,
        broker_count=wanted.broker_count,
        kafka_version=found.kafka_version,
        folder=folder,
    )
    if wanted.port not in (None, found.nodes[0].client_port):
        raise ConfigError(
            "it is running on another port; stop it first with `txlayer broker stop`",
            name="port",
            value=wanted.port,
            expected=str(found.nodes[0].client_port),
        )


def _with_ports(nodes: Sequence[Node], *, first_port: int | None) -> tuple[Node, ...]:
    """Client ports as asked for, as last time, or the default; controllers are nobody's business: any free port."""
    first = first_port or nodes[0].client_port or DEFAULT_PORT
    controllers = free_ports(len(nodes), apart_from=range(first, first + len(nodes)))
    return tuple(
        replace(node, client_port=first + index, controller_port=controller)
        for index, (node, controller) in enumerate(zip(nodes, controllers, strict=True))
    )
