"""A cluster that outlives the command which started it: found again by its data folder."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from txlayer.adapters.kafka.local import processes
from txlayer.adapters.kafka.local.cluster_folder import (
    LOCK_NAME,
    Cluster,
    ClusterFolder,
    check_fits,
    running_already,
)
from txlayer.adapters.kafka.local.file_lock import file_lock
from txlayer.adapters.kafka.local.ports import free_ports
from txlayer.adapters.kafka.local.processes import JavaCommand
from txlayer.adapters.kafka.local.runtime import Runtime
from txlayer.adapters.kafka.local.server_settings import JvmProfile, Node, jvm_flags
from txlayer.adapters.kafka.local.starting import check_ports, open_cluster, prepare_storage
from txlayer.errors import BrokerUnavailableError, ConfigError

DEFAULT_PORT = 9092
READY_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20
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
            is_running and processes.answers(cluster.bootstrap_servers, timeout_s=ANSWER_TIMEOUT_S),
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
                    pid = processes.launch_background(
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
                    children[node] = processes.launch_child(
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
                processes.end_child(child, timeout_s=STOP_TIMEOUT_S)
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
                        f"broker {node.node_id} ended: {processes.log_tail(self._folder.log_file(node))}; "
                        f"see {self._folder.log_file(node)}",
                        bootstrap_servers=node.address,
                    )

        processes.wait_until_ready(
            [node.address for node in plan.missing],
            broker_count=len(plan.cluster.nodes),
            timeout_s=READY_TIMEOUT_S,
            check_alive=check_alive,
        )

    def _stay(self, children: Mapping[Node, subprocess.Popen[bytes]]) -> None:
        while all(child.poll() is None for child in children.values()):
            time.sleep(processes.POLL_S)
        for node, child in children.items():
            # `txlayer broker stop` from elsewhere is no failure.
            if child.poll() not in (None, 0, -signal.SIGTERM, processes.TERMINATED_CODE):
                raise BrokerUnavailableError(
                    f"broker {node.node_id} ended with code {child.returncode}: "
                    f"{processes.log_tail(self._folder.log_file(node))}",
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
        processes.end(
            pid, is_alive=lambda: self._folder.living_pid(node) == pid, timeout_s=STOP_TIMEOUT_S
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
