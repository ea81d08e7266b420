"""What an embedded broker is configured with: pure values and text, no file and no process.

A cluster is N nodes, each broker and controller in one process, with a static quorum of voters: every node knows all
others from its configuration, so a cluster of one and of three are written by the same lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from txlayer.errors import ConfigError

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
