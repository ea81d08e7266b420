"""One chaotic run on a real cluster of three brokers: load, faults, healing, and the history for the one judge.

What happens is written down while it happens, into a file of JSON lines; what is judged is read by plain clients.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.arena import Arena, make_arena
from tests.support.faultproxy import FaultProxy
from tests.support.history import History, Sample
from tests.support.load import Load
from tests.support.logs import ends
from tests.support.nemesis import COORDINATORS, PRODUCERS, Fault, Nemesis
from tests.support.processes import CoordinatorProcess
from tests.support.waiting import wait_until
from tests.support.witness import Witness
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.kafka.local.ports import free_ports
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import ClientConfig
from txlayer.errors import TxLayerError

BROKER_COUNT = 3
SESSION_S = 1.5
ADVANCE_S = 120.0
"""After healing something must go on within this time, again and again until all is at rest: longer than a Kafka
transaction that hangs, the longest pause between two rebuilds and a rebalance together."""
SAMPLE_EVERY_S = 1.0
BREATH_MAX_S = 2.0
"""Between two faults: sometimes enough to recover, sometimes not."""


@dataclass
class Journal:
    """JSON lines, one per thing that happened, each written at once."""

    file: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, what: str, **details: object) -> None:
        """Any thread."""
        line = json.dumps({"at_ms": int(time.time() * 1000), "what": what, **details})
        with self._lock, self.file.open("a", encoding="utf-8") as out:
            out.write(line + "\n")


class Sampler:
    """Asks now and then what the coordinators' group has stored, and then where the real topics end."""

    def __init__(self, arena: Arena) -> None:
        self.samples: list[Sample] = []
        self._arena = arena
        self._config = ClientConfig(bootstrap_servers=arena.servers, namespace=arena.namespace)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def take(self) -> Sample:
        """One sample.

        Raises:
            TxLayerError: the cluster does not say.
        """
        topics = self._arena.topics
        wanted = [
            (t, p) for t in (topics.half, topics.op) for p in range(self._arena.partition_count)
        ]
        with KafkaAdmin(self._config, timeout_ms=5_000) as admin:
            answer: dict[TopicPartition, StoredOffset | None] = admin.stored_offsets(
                topics.coordinator_group, wanted, is_stable=False
            )
            real = [
                (topic, p)
                for topic in self._arena.targets
                for p in range(admin.partition_count(topic) or 0)
            ]
            stored = {place: offset for place, offset in answer.items() if offset is not None}
            # Markers land one by one: what is stored may be seen before the last stable offset of a real topic moves.
            return Sample(stored, admin.end_offsets(real, is_committed=False))

    def take_last(self) -> None:
        """The sample of the end, behind all others: nobody takes one after it."""
        self._stop()
        before = len(self.samples)

        def is_taken() -> bool:
            self._try()
            return len(self.samples) > before

        wait_until(is_taken, within=ADVANCE_S, what="the last sample")

    def _stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(60)

    def _try(self) -> None:
        with suppress(TxLayerError):  # a broker is away: the next sample will come
            self.samples.append(self.take())

    def _run(self) -> None:
        while not self._is_stopping.wait(SAMPLE_EVERY_S):
            self._try()


@dataclass
class Outcome:
    """What a run brought."""

    history: History
    faults: list[Fault]
    sent_count: int
    visible_count: int
    load_failures: list[str]
    rebuild_count: int
    ended_wrongly: list[str]
    """Coordinators that nobody ended, or that did not end with 0 when they were told to stop."""


class Chaos:
    """A cluster with proxies before every broker, coordinators, a load, and a nemesis."""

    def __init__(
        self, config: LocalConfig, *, folder: Path, seed: int, rate: int, say: Callable[..., None]
    ) -> None:
        self._config = config
        self._folder = folder
        self._seed = seed
        self._rate = rate
        self._say = say
        self._numbers = count()
        self.journal = Journal(folder / "history.jsonl")

    def run(self, *, seconds: float) -> Outcome:
        """Load and faults for so long, and until every kind of fault was there; then all is healed and comes to rest."""
        with ExitStack() as stack:
            advertised = [free_ports(BROKER_COUNT) for _ in (COORDINATORS, PRODUCERS)]
            cluster = stack.enter_context(
                LocalBroker(brokers=BROKER_COUNT, config=self._config, proxied_listeners=advertised)
            )
            proxies = {
                whose: [
                    stack.enter_context(
                        FaultProxy(cluster.upstream(listener=listener, broker=b + 1), port=ports[b])
                    )
                    for b in range(BROKER_COUNT)
                ]
                for listener, (whose, ports) in enumerate(
                    zip((COORDINATORS, PRODUCERS), advertised, strict=True), start=1
                )
            }
            arena = make_arena(cluster.bootstrap_servers, replication_factor=BROKER_COUNT)
            through = cluster.proxied_servers(listener=1)

            def start_coordinator() -> CoordinatorProcess:
                return stack.enter_context(self._coordinator(through, arena))

            nemesis = Nemesis(
                cluster,
                proxies=proxies,
                start_coordinator=start_coordinator,
                coordinator_group=arena.topics.coordinator_group,
                session_s=SESSION_S,
                rng=random.Random(self._seed),
            )
            nemesis.coordinators += [start_coordinator(), start_coordinator()]
            load = Load(
                cluster.proxied_servers(listener=2), arena.topics,
                partition_count=arena.partition_count, targets=arena.targets,
                rate=self._rate, seed=self._seed,
            )  # fmt: skip
            load.start()
            with (
                Witness(arena.servers, arena.targets) as witness,
                Sampler(arena) as sampler,
            ):
                self._strike(nemesis, load, witness, seconds=seconds)
                nemesis.heal()
                self.journal.write("healed")
                load.stop(within=ADVANCE_S)
                arena.wait_until_applied(within=ADVANCE_S)
                sampler.take_last()
                witness.wait_until_at_end(arena.targets, within=ADVANCE_S)
                return self._outcome(arena, nemesis, load, witness, sampler)

    def _strike(self, nemesis: Nemesis, load: Load, witness: Witness, *, seconds: float) -> None:
        rng = random.Random(~self._seed)
        end_at = time.monotonic() + seconds
        while time.monotonic() < end_at or not nemesis.has_shown_all:
            fault = nemesis.strike()
            self.journal.write(
                "fault", name=fault.name, detail=fault.detail, took_s=round(fault.took_s, 2),
                sent=len(load.sent), visible=witness.count,
            )  # fmt: skip
            self._say(
                f"{fault.began_s:7.1f} s  {fault.name:<32} {fault.detail} ({fault.took_s:.1f} s)"
            )
            threading.Event().wait(rng.uniform(0, BREATH_MAX_S))

    def _outcome(
        self, arena: Arena, nemesis: Nemesis, load: Load, witness: Witness, sampler: Sampler
    ) -> Outcome:
        logs = arena.logs()
        topics = [arena.topics.half, arena.topics.op, arena.topics.doubt, *arena.targets]
        stable = ends(arena.servers, topics, isolation="read_committed")
        whole = ends(arena.servers, topics, isolation="read_uncommitted")
        acknowledged = [
            (arena.topics.half, sent.partition, offset)
            for sent in load.sent
            for offset in sent.acknowledged
        ] + [(arena.topics.op, p, offset) for p, offset in load.acknowledged_ops]
        history = History(
            logs=logs,
            half_topic=arena.topics.half,
            op_topic=arena.topics.op,
            partition_count=arena.partition_count,
            samples=sampler.samples,
            witnessed=witness.records,
            ends={place: (stable[place], end) for place, end in whole.items()},
            acknowledged=acknowledged,
        )
        rebuilds = sum(
            len(process.events("coordinator.rebuild")) for process in nemesis.coordinators
        )
        return Outcome(
            history, nemesis.faults, len(load.sent), witness.count, load.failures, rebuilds,
            nemesis.ended_wrongly(),
        )  # fmt: skip

    def _coordinator(self, servers: str, arena: Arena) -> CoordinatorProcess:
        number = next(self._numbers)
        self.journal.write("coordinator started", number=number)
        return CoordinatorProcess(
            servers,
            arena.namespace,
            log_file=self._folder / f"coordinator-{number}.log",
            arguments=["--doubt-after", "2s"],
            settings={"session_timeout": f"{SESSION_S}s"},
        )
