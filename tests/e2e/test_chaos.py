"""P1-P10 on three brokers under random faults: a bounded run, or as long as `make chaos MINUTES=n` says."""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.support.arena import Arena, make_arena
from tests.support.check_side import SETTINGS, CheckSide
from tests.support.checker import Verdict
from tests.support.consumer_history import ConsumerHistory
from tests.support.consumer_judge import judge_consumers
from tests.support.consumer_side import LEASE_EXPIRY_S, ConsumerSide
from tests.support.faultproxy import FaultProxy
from tests.support.fleet import Fleet
from tests.support.history import History
from tests.support.kafka_cluster import KafkaCluster
from tests.support.load import Load
from tests.support.nemesis import CONSUMERS, COORDINATORS, PRODUCERS, Fault, Nemesis
from tests.support.processes import CoordinatorProcess, TxlayerProcess
from tests.support.replayer import Replayer
from tests.support.run_checker import judge_history
from tests.support.sampler import Journal, Sampler
from tests.support.seed import SEED, say
from tests.support.waiting import pause
from tests.support.witness import Witness
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.server import free_ports

BROKER_COUNT = 3
SESSION_S = 1.5
TIMED_SHARE = 0.1
"""Of the transactions have messages with times."""
ADVANCE_S = 330.0
"""After healing something must go on within this time, again and again until all is at rest: longer than the longest pause of
questions (300 s), and than a Kafka transaction that hangs, the longest pause between two rebuilds and a rebalance together."""
TARGET_PARTITIONS = (4, 2, 3)
"""Of the real topics; the last one has consumers."""
CONSUMER_COUNT, RESPONDER_COUNT = 3, 2
BREATH_MAX_S = 2.0
"""Between two faults: sometimes enough to recover, sometimes not."""


@dataclass
class Outcome:
    """What a run brought."""

    history: History
    consumers: ConsumerHistory
    faults: list[Fault]
    sent_count: int
    visible_count: int
    load_failures: list[str]
    rebuild_count: int
    ended_wrongly: list[str]
    """Processes that nobody ended, or that did not end with 0 when they were told to stop."""


class Chaos:
    """A cluster with proxies before every broker, coordinators, a load, and a nemesis."""

    def __init__(
        self,
        config: LocalConfig,
        *,
        folder: Path,
        seed: int,
        rate: int,
        say: Callable[..., None],
        kind_count: int | None = None,
    ) -> None:
        """`kind_count`: at least so many kinds of faults happen; None: every kind."""
        self._config = config
        self._folder = folder
        self._seed = seed
        self._rate = rate
        self._say = say
        self._kind_count = kind_count
        self._numbers = count()
        self.journal = Journal(folder / "history.jsonl")

    def run(
        self, *, seconds: float
    ) -> Outcome:  # longer: the steps of one run, in their order, share what the run made
        """Load and faults for so long, and until enough kinds of faults were there; then all is healed and comes to rest."""
        with ExitStack() as stack:
            cluster, proxies = self._cluster(stack)
            arena = make_arena(
                cluster.bootstrap_servers, target_partitions=TARGET_PARTITIONS, replication_factor=BROKER_COUNT
            )
            servers = {w: cluster.proxied_servers(listener=n) for n, w in enumerate(proxies, start=1)}
            checks = CheckSide(arena, servers=servers[PRODUCERS], folder=self._folder, session_s=SESSION_S)
            consumers = ConsumerSide(
                arena,
                servers=servers[CONSUMERS],
                topic=arena.targets[-1],
                partition_count=TARGET_PARTITIONS[-1],
                folder=self._folder,
                session_s=SESSION_S,
                replication_factor=BROKER_COUNT,
            )
            nemesis = self._nemesis(stack, cluster, proxies, arena, servers, checks, consumers)
            nemesis.coordinators += [nemesis.start_coordinator(), nemesis.start_coordinator()]
            load = Load(
                servers[PRODUCERS],
                arena.topics,
                partition_count=arena.partition_count,
                targets=arena.targets,
                rate=self._rate,
                seed=self._seed,
                timed_share=TIMED_SHARE,
                truth=checks.truth,
            )
            load.start()
            with (
                Witness(arena.servers, arena.targets) as witness,
                Sampler(arena) as sampler,
                Replayer(
                    arena.servers,
                    group=consumers.group,
                    topic=consumers.topic,
                    partition_count=consumers.partition_count,
                ),
            ):
                self._strike(nemesis, load, witness, seconds=seconds)
                self._heal(nemesis)
                consumers.heal()
                try:
                    load.stop(within=ADVANCE_S)
                    checks.wait_until_settled(load, within=ADVANCE_S)
                    arena.wait_until_applied(within=ADVANCE_S)
                    arena.wait_until_released(within=ADVANCE_S)
                    sampler.take_last(within=ADVANCE_S)
                    witness.wait_until_at_end(arena.targets, within=ADVANCE_S)
                    handled = consumers.wait_until_at_rest(within=ADVANCE_S)
                except AssertionError as exc:
                    exc.add_note(nemesis.count_what_they_said())
                    self._say(nemesis.ask_where_they_stand())
                    raise
            self.journal.write("at rest")
            history = checks.told(sampler.history(load, witness), load)
            return Outcome(
                history,
                handled,
                nemesis.faults,
                len(load.sent),
                witness.count,
                load.failures,
                sum(len(process.events("coordinator.rebuild")) for process in nemesis.coordinators),
                nemesis.ended_wrongly(),
            )

    def _heal(self, nemesis: Nemesis) -> None:
        nemesis.heal()
        self.journal.write("healed")

    def _nemesis(
        self,
        stack: ExitStack,
        cluster: KafkaCluster,
        proxies: dict[str, list[FaultProxy]],
        arena: Arena,
        servers: dict[str, str],
        checks: CheckSide,
        consumers: ConsumerSide,
    ) -> Nemesis:
        """Who breaks what; its coordinators are to be started."""

        def started(start: Callable[[], TxlayerProcess]) -> Callable[[], TxlayerProcess]:
            return lambda: stack.enter_context(start())

        return Nemesis(
            cluster,
            proxies=proxies,
            start_coordinator=lambda: stack.enter_context(self._coordinator(servers[COORDINATORS], arena)),
            coordinator_group=arena.topics.coordinator_group,
            session_s=SESSION_S,
            rng=random.Random(self._seed),
            fleets=[
                Fleet("consumer", started(consumers.start), count=CONSUMER_COUNT, frozen_s_max=2 * LEASE_EXPIRY_S),
                Fleet("responder", started(checks.start), count=RESPONDER_COUNT, frozen_s_max=3 * SESSION_S),
            ],
        )

    def _cluster(self, stack: ExitStack) -> tuple[KafkaCluster, dict[str, list[FaultProxy]]]:
        """Three brokers; and proxies before each of them, by whose connections they carry."""
        everybody = (COORDINATORS, PRODUCERS, CONSUMERS)
        ports = free_ports(BROKER_COUNT * len(everybody))
        advertised = [ports[n :: len(everybody)] for n in range(len(everybody))]
        cluster = stack.enter_context(
            KafkaCluster(brokers=BROKER_COUNT, config=self._config, proxied_listeners=advertised)
        )
        return cluster, {
            whose: [
                stack.enter_context(FaultProxy(cluster.upstream(listener=listener, broker=b + 1), port=theirs[b]))
                for b in range(BROKER_COUNT)
            ]
            for listener, (whose, theirs) in enumerate(zip(everybody, advertised, strict=True), start=1)
        }

    def _strike(self, nemesis: Nemesis, load: Load, witness: Witness, *, seconds: float) -> None:
        rng = random.Random(~self._seed)
        end_at = time.monotonic() + seconds
        kind_count = self._kind_count

        def has_shown_enough() -> bool:
            return nemesis.has_shown_all if kind_count is None else len(nemesis.counts) >= kind_count

        while time.monotonic() < end_at or not has_shown_enough():
            fault = nemesis.strike()
            self.journal.write(
                "fault",
                name=fault.name,
                detail=fault.detail,
                took_s=round(fault.took_s, 2),
                sent=len(load.sent),
                visible=witness.count,
            )
            self._say(f"{fault.began_s:7.1f} s  {fault.name:<32} {fault.detail} ({fault.took_s:.1f} s)")
            pause(rng.uniform(0, BREATH_MAX_S))

    def _coordinator(self, servers: str, arena: Arena) -> CoordinatorProcess:
        number = next(self._numbers)
        self.journal.write("coordinator started", number=number)
        return CoordinatorProcess(
            servers,
            arena.namespace,
            log_file=self._folder / f"coordinator-{number}.log",
            arguments=["--doubt-after", "2s"],
            settings={"session_timeout": f"{SESSION_S}s", **SETTINGS},
        )


pytestmark = [pytest.mark.kafka, pytest.mark.slow]

MINUTES = os.environ.get("E2E_CHAOS_MINUTES")
SECONDS = float(MINUTES or "0.5") * 60
"""Faults for at least so long; a slow machine takes more, until enough kinds of faults have been there."""
KIND_COUNT = None if MINUTES else 8
"""Half of the kinds, others in each run of `make test`; every kind where somebody says how long, as `make nightly` does."""
RATE = 150


@pytest.mark.fault(
    "producer: its op is stored, but the answer is lost",
    "producer: the answer to a batch is lost, and the answer to a later one shows that it was stored, but not where",
    "coordinator: is killed at any step",
    "coordinator: is frozen for longer than its session, then goes on",
    "coordinator: is frozen inside a Kafka transaction",
    "coordinator: many coordinators join and leave all the time",
    "consumer: is killed while it handles a message",
    "consumer: is frozen for longer than its session or its lease, then goes on",
    "consumer: dies, or is cut off, while it writes a dead letter",
    "consumer: brokers are away when it starts, or when it must write its leases again",
    "broker: is killed, also one that leads the group or the Kafka transactions",
    "broker: is frozen for seconds, and requests are sent again late",
    "broker: an internal topic is not available",
    "network: connections are cut",
    "network: one direction is lost, or connections are half open",
    "network: packets are lost, latency is high, or bandwidth is low",
)
@pytest.mark.promise("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10")
def test_nothing_is_lost_doubled_or_shown_too_early_whatever_fails(local_config: LocalConfig, tmp_path: Path) -> None:
    say(f"replay the plan with E2E_SEED={SEED}{f' E2E_CHAOS_MINUTES={MINUTES}' if MINUTES else ''}")
    chaos = Chaos(local_config, folder=tmp_path, seed=SEED, rate=RATE, say=say, kind_count=KIND_COUNT)

    outcome = chaos.run(seconds=SECONDS)

    verdict = judge_history(outcome.history)
    handled = judge_consumers(outcome.consumers)
    findings = [*verdict.findings, *handled.findings]
    say("\n".join([*table(outcome, verdict, handled), f"history: {chaos.journal.file}"]))
    assert [] == findings[:20]
    assert [] == outcome.ended_wrongly
    assert [] == outcome.load_failures
    # A run in which little happened has shown little.
    assert outcome.visible_count > outcome.sent_count / 2
    assert verdict.counts["ordered"]
    assert verdict.counts["check question"]
    assert verdict.counts["commit by barrier"]
    assert verdict.counts["rollback by barrier"]
    assert verdict.counts["rollback by policy"]
    assert verdict.doubt_states["parked"]
    assert handled.counts["result handled"]
    assert handled.counts["replay attempt"]
    assert handled.counts["breaker opened"]
    assert outcome.consumers.effects
    assert outcome.history.samples


def table(outcome: Outcome, verdict: Verdict, handled: Verdict) -> list[str]:
    """Faults by kind, what was done meanwhile, and what was found."""
    counts = Counter(fault.name for fault in outcome.faults)
    took_s = dict.fromkeys(counts, 0.0)
    for fault in outcome.faults:
        took_s[fault.name] += fault.took_s
    rows = [(name, count, f"{took_s[name]:.0f} s") for name, count in sorted(counts.items())]
    rows.append(("all faults", len(outcome.faults), f"{sum(took_s.values()):.0f} s"))
    rows += [(name, count, "") for name, count in operations(outcome, verdict, handled).items()]
    every = [*verdict.findings, *handled.findings]
    findings = Counter(finding.kind.value for finding in every)
    rows += [(f"finding: {kind}", count, "") for kind, count in sorted(findings.items())]
    broken = len(outcome.ended_wrongly) + len(outcome.load_failures)
    rows.append(("findings", len(every) + broken, ""))
    return ["", *(f"{name:<32} {count:>8} {more:>8}" for name, count, more in rows)]


def operations(outcome: Outcome, verdict: Verdict, handled: Verdict) -> dict[str, int]:
    """What there was to judge."""
    told, called = verdict.counts, handled.counts
    return {
        "transactions": outcome.sent_count,
        "committed": told["commit"],
        "rolled back": told["rollback"],
        "not decided": told["undecided"],
        "messages visible": outcome.visible_count,
        "of them with an order": told["ordered"],
        "samples of stored positions": len(outcome.history.samples),
        "rebuilds of coordinators": outcome.rebuild_count,
        "producers that died in doubt": len(outcome.history.must_end),
        "checks asked": told["check question"],
        "answered with commit": told["commit by barrier"],
        "answered with rollback": told["rollback by barrier"],
        "answered with unknown": told["unknown by barrier"],
        "decided by their policy": told["rollback by policy"],
        "moved to another time": told["unknown by operator"],
        "late words told to their group": told["check refused"],
        "messages for consumers": len(outcome.consumers.logs.topics),
        "handler calls": called["attempt"] + called["replay attempt"],
        "of them later attempts": called["later attempt"],
        "of them cut short": called["result none"],
        "breakers opened": called["breaker opened"],
        "dead letters": len(outcome.consumers.logs.letters),
        "handler calls of replays": called["replay attempt"],
        "stores of progress": called["stored"],
        "records in the lock log": called["locks"],
        "writes refused by their token": called["write refused"],
    }
