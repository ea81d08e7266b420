"""The data folder of an embedded cluster: what it holds, and whether it is the one that was asked for.

::

    <data>/cluster.json            whose data these are: Kafka version, cluster id, nodes and their ports
    <data>/node-1/server.properties
    <data>/node-1/broker.log       what the broker says (warnings and errors)
    <data>/node-1/broker.pid
    <data>/node-1/data/            Kafka's own
    <data>/node-1/tmp/             what its Java unpacks
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlayer.adapters.kafka.local.processes import is_broker
from txlayer.adapters.kafka.local.server_settings import (
    Node,
    bootstrap_servers,
    render_properties,
    server_settings,
)
from txlayer.errors import ConfigError

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
