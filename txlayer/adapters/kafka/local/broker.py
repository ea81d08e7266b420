"""A real Kafka of one's own for tests and notebooks: it lives as long as the `with` block and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from txlayer.adapters.kafka.local import processes
from txlayer.adapters.kafka.local.cluster_folder import Cluster, ClusterFolder, running_already
from txlayer.adapters.kafka.local.fetch import Progress
from txlayer.adapters.kafka.local.ports import free_ports
from txlayer.adapters.kafka.local.runtime import QUIET, LocalConfig, Runtime, prepare_runtime
from txlayer.adapters.kafka.local.server_settings import (
    HOST,
    JvmProfile,
    Node,
    ProxiedListener,
    jvm_flags,
)
from txlayer.adapters.kafka.local.starting import check_ports, open_cluster, prepare_storage
from txlayer.adapters.kafka.local.temporary import TemporaryFolder, remove_orphans
from txlayer.errors import BrokerUnavailableError, ConfigError, LifecycleError

READY_TIMEOUT_S = 60
STOP_TIMEOUT_S = 15
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
            self._processes[node.node_id] = processes.launch_child(
                self._runtime.command,
                properties_file=folder.properties_file(node),
                log_file=folder.log_file(node),
                flags=self._flags,
            )
            folder.write_pid(node, self._processes[node.node_id].pid)
        if missing:
            processes.wait_until_ready(
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
                    f"broker {node.node_id} ended with code {code}: {processes.log_tail(folder.log_file(node))}",
                    bootstrap_servers=node.address,
                )

    def _end(self, broker: int, number: signal.Signals | None) -> None:
        process = self._processes.get(broker)
        if process is None:
            return
        if number is not None and process.poll() is None:
            process.send_signal(number)
        processes.end_child(process, timeout_s=STOP_TIMEOUT_S)
        del self._processes[broker]
        folder, _ = self._opened()
        folder.forget_pid(self._node(broker))
