"""The steps that every start of an embedded cluster shares, in the foreground, in the background and in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from txlayer.adapters.kafka.local.cluster_folder import (
    Cluster,
    ClusterFolder,
    check_fits,
    new_id,
)
from txlayer.adapters.kafka.local.ports import is_free
from txlayer.adapters.kafka.local.processes import JavaCommand, format_storage
from txlayer.adapters.kafka.local.server_settings import Node
from txlayer.errors import ConfigError

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
