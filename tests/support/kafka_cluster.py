"""One or three real brokers as one cluster, with listeners whose clients come through a proxy."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.kafka.local.server import HOST, free_ports, new_id


class KafkaCluster:
    """Brokers are numbered from 1. `proxied_listeners` holds the advertised ports of each further listener, one per broker."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        config: LocalConfig | None = None,
        proxied_listeners: Sequence[Sequence[int]] = (),
        performance: bool = False,
    ) -> None:
        listeners = len(proxied_listeners)
        # Nothing listens on the proxies' ports yet: by the time they do, the brokers have been up for seconds.
        taken = {port for ports in proxied_listeners for port in ports}
        free = iter(free_ports(brokers * (2 + listeners), apart_from=taken))
        client = [next(free) for _ in range(brokers)]
        controller = [next(free) for _ in range(brokers)]
        self._advertised = proxied_listeners
        self._bound = [[next(free) for _ in range(brokers)] for _ in range(listeners)]
        self.bootstrap_servers = ",".join(f"{HOST}:{port}" for port in client)
        voters = ",".join(f"{n}@{HOST}:{port}" for n, port in enumerate(controller, start=1))
        cluster_id = new_id()
        self._brokers = {
            n + 1: LocalBroker(
                port=client[n],
                cluster_id=cluster_id,
                config=config,
                performance=performance,
                properties={
                    "node.id": str(n + 1),
                    "controller.quorum.voters": voters,
                    **self._listeners(n, client[n], controller[n]),
                    **(_REPLICATED if brokers == 3 else {}),
                },
            )
            for n in range(brokers)
        }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> dict[int, int]:
        """Broker number to the id of its process, for those that are running."""
        return {n: broker.pid for n, broker in self._brokers.items() if broker.pid is not None}

    @property
    def folder(self) -> Path:
        """The first broker's."""
        return self.folders[0]

    @property
    def folders(self) -> list[Path]:
        """Every broker's."""
        return [broker.folder for broker in self._brokers.values()]

    def upstream(self, *, listener: int, broker: int = 1) -> tuple[str, int]:
        """Host and port on which a broker really listens for a proxied listener (both are counted from 1)."""
        return HOST, self._bound[listener - 1][broker - 1]

    def proxied_servers(self, *, listener: int) -> str:
        """The bootstrap servers of clients that go through the proxies of a listener (counted from 1)."""
        return ",".join(f"{HOST}:{port}" for port in self._advertised[listener - 1])

    def start(self, broker: int | None = None) -> None:
        """Start what is not running, or one broker, and wait until each serves Kafka transactions."""
        wanted = [broker] if broker is not None else list(self._brokers)
        # Side by side: the first becomes ready only when most of the others are up.
        _all(self._brokers[n].start for n in wanted)
        for n in wanted:
            admin = AdminClient({"bootstrap.servers": self.bootstrap_servers.split(",")[n - 1], "log_level": 0})
            wait_until(
                lambda admin=admin: _known(admin) >= len(self.pids),  # type: ignore[misc]  # lambdas take no types
                within=60,
                what=f"broker {n} knows the others",
            )

    def kill(self, broker: int = 1) -> None:
        """SIGKILL."""
        self._brokers[broker].kill()

    def stop(self, broker: int | None = None) -> None:
        """SIGTERM to one broker or to all, and wait for the clean end."""
        _all(self._brokers[n].stop for n in ([broker] if broker else list(self._brokers)))

    def close(self) -> None:
        """End everything and remove the data."""
        _all(broker.close for broker in self._brokers.values())

    def _listeners(self, n: int, client: int, controller: int) -> dict[str, str]:
        bound = [f"PLAINTEXT://{HOST}:{client}", f"CONTROLLER://{HOST}:{controller}"]
        advertised = [f"PLAINTEXT://{HOST}:{client}"]
        protocols = ["PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
        for number, (theirs, ours) in enumerate(zip(self._advertised, self._bound, strict=True), start=1):
            bound.append(f"PROXY{number}://{HOST}:{ours[n]}")
            advertised.append(f"PROXY{number}://{HOST}:{theirs[n]}")
            protocols.append(f"PROXY{number}:PLAINTEXT")
        return {
            "listeners": ",".join(bound),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(protocols),
        }


_REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "default.replication.factor": "3",
}


def _all(acts: Iterable[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(max_workers=3) as pool:
        for done in [pool.submit(act) for act in acts]:
            done.result()


def _known(admin: AdminClient) -> int:
    try:
        return len(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return 0
