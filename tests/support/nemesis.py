"""Faults on a real cluster of three brokers and its processes: one at a time, drawn from a seed, each undone again.

It keeps the promise that Kafka's own replication rests on: at most one broker is away at any moment, and away is whoever
has not caught up. So with `min.insync.replicas=2` every acknowledged record survives, and every partition has a leader
(a marker for one without a leader is lost by the broker itself: docs/explanation/kafka.md).
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.faultproxy import (
    END_TXN,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    FaultProxy,
    Rules,
)
from tests.support.fleet import Fleet
from tests.support.kafka_cluster import KafkaCluster
from tests.support.processes import CoordinatorProcess, TxlayerProcess
from tests.support.waiting import pause, wait_until

COORDINATORS, PRODUCERS, CONSUMERS = "coordinators", "producers", "consumers"
"""Whose connections go through proxies; those of responders are producers'."""
OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
ADMIN_PATIENCE_S = 5.0
CATCH_UP_S = 90.0
"""A broker that is back and of which no further partition is in sync for so long never will be."""
REQUEST_S = 120.0
"""After the fault before, whoever writes is at work again within this time."""
STOP_S = 60.0
"""A coordinator that was told to stop finishes its Kafka transaction, which ends by its own time-out if need be."""


class Fault(NamedTuple):
    """One fault that happened."""

    name: str
    detail: str
    began_s: float  # since the nemesis was made
    took_s: float


LAST_LINES = 40
"""Of a coordinator's log, printed when a run does not come to rest."""


class Nemesis:
    """Draws and does faults. One thread uses it."""

    def __init__(
        self,
        cluster: KafkaCluster,
        *,
        proxies: Mapping[str, Sequence[FaultProxy]],
        start_coordinator: Callable[[], CoordinatorProcess],
        coordinator_group: str,
        session_s: float,
        rng: random.Random,
        fleets: Sequence[Fleet] = (),
    ) -> None:
        """`proxies`: whose connections they carry → one per broker; `fleets`: who else is killed and frozen."""
        self.faults: list[Fault] = []
        self.coordinators: list[CoordinatorProcess] = []
        self._ended: set[int] = set()
        self._cluster = cluster
        self._proxies = proxies
        self.start_coordinator = start_coordinator
        self._group = coordinator_group
        self._session_s = session_s
        self._rng = rng
        self._fleets = fleets
        self._began = time.monotonic()
        self._kinds: tuple[tuple[str, Callable[[], str]], ...] = (
            ("broker killed", self._kill_broker),
            ("broker frozen", self._freeze_broker),
            ("group coordinator killed", self._kill_group_coordinator),
            ("transaction coordinator frozen", self._freeze_transaction_coordinator),
            ("coordinator killed", self._kill_coordinator),
            ("coordinator frozen", self._freeze_coordinator),
            ("coordinator stopped", self._stop_coordinator),
            ("coordinator joined", self._join_coordinator),
            ("connections cut", self._cut),
            ("connections half-open", self._black_hole),
            ("connections slow", self._slow),
            ("answers lost", self._lose_answers),
            ("requests late and twice", self._echo),
            *(
                (f"{fleet.kind} {what}", partial(act, rng))
                for fleet in fleets
                for what, act in (("killed", fleet.kill), ("frozen", fleet.freeze))
            ),
        )

    @property
    def names(self) -> list[str]:
        """Every kind of fault."""
        return [name for name, _ in self._kinds]

    @property
    def counts(self) -> Counter[str]:
        """Faults by name."""
        return Counter(fault.name for fault in self.faults)

    @property
    def has_shown_all(self) -> bool:
        """True when every kind has happened."""
        return set(self.names) == set(self.counts)

    def ended_wrongly(self) -> list[str]:
        """Processes that nobody ended, or that did not end with 0 when they were told to stop; and their last words."""
        return [told for fleet in self._fleets for told in fleet.ended_wrongly()] + [
            f"pid {process.pid} ended with {process.exit_code}: {process.output()[-3000:]}"
            for process in self.coordinators
            if not process.is_running and process.pid not in self._ended
        ]

    def strike(self) -> Fault:
        """Do one fault and undo it."""
        # Every kind once before any kind comes again: a short run shall have seen all.
        done = self.counts
        least = min(done[name] for name, _ in self._kinds)
        name, act = self._rng.choice([kind for kind in self._kinds if done[kind[0]] == least])
        began = time.monotonic()
        detail = act()
        fault = Fault(name, detail, began - self._began, time.monotonic() - began)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Everything is up and connected, and at least one coordinator runs."""
        for proxies in self._proxies.values():
            for proxy in proxies:
                proxy.use()
        for pid in self._cluster.pids.values():
            os.kill(pid, signal.SIGCONT)
        self._cluster.start()
        for process in self.coordinators:
            if process.is_running:
                process.thaw()
        for fleet in self._fleets:
            fleet.heal()
        if not any(process.is_running for process in self.coordinators):
            self.coordinators.append(self.start_coordinator())
        self._wait_until_in_sync()

    def ask_where_they_stand(self) -> str:
        """End everybody who runs; where their threads stood is in their logs then. What the coordinators said last."""
        told = []
        for process in self._running():
            lines = process.output().splitlines()[-LAST_LINES:]
            process.stacks()
            if process in self.coordinators:
                told += [f"coordinator {process.pid} said last:", *(line[:300] for line in lines)]
        return "\n".join(told)

    def count_what_they_said(self) -> str:
        """A line for each process that still runs: how often it said what. It is short enough for a report of a failure."""
        return "\n".join(
            f"{type(process).__name__} {process.pid}: {dict(Counter(event['event'] for event in process.events()))}"
            for process in self._running()
        )

    def _running(self) -> list[TxlayerProcess]:
        processes = (*self.coordinators, *(process for fleet in self._fleets for process in fleet.processes))
        return [process for process in processes if process.is_running]

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _kill_broker(self, number: int | None = None) -> str:
        number = number or self._rng.choice(sorted(self._cluster.pids))
        self._cluster.kill(number)
        self._pause(0.2, 3)
        self._cluster.start(number)
        self._wait_until_in_sync()
        return f"broker {number}"

    def _freeze_broker(self, number: int | None = None) -> str:
        number = number or self._rng.choice(sorted(self._cluster.pids))
        pid = self._cluster.pids[number]
        os.kill(pid, signal.SIGSTOP)
        try:
            self._pause(0.5, 5)
        finally:
            os.kill(pid, signal.SIGCONT)
        self._wait_until_in_sync()
        return f"broker {number}"

    def _kill_group_coordinator(self) -> str:
        return self._kill_broker(self._leader_for_group())

    def _freeze_transaction_coordinator(self) -> str:
        return self._freeze_broker(self._leader_for_writer())

    def _wait_until_in_sync(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 0})
        in_sync = 0

        def has_everybody() -> bool:
            nonlocal in_sync
            with suppress(KafkaException):
                topics = admin.list_topics(timeout=ADMIN_PATIENCE_S).topics.values()
                partitions = [p for topic in topics for p in topic.partitions.values()]
                in_sync = sum(len(p.isrs) for p in partitions)
                return in_sync == sum(len(p.replicas) for p in partitions)
            return False

        wait_until(has_everybody, within=CATCH_UP_S, what="all replicas are in sync", growing=lambda: in_sync)

    def _leader_for_group(self) -> int:
        """The broker that keeps the coordinators' group; any, while nobody says."""
        return self._leader(OFFSETS_TOPIC, self._group)

    def _leader_for_writer(self) -> int:
        """The broker that keeps the Kafka transactions of the newest writer that is known."""
        names = [
            str(event["writer"]) for process in self.coordinators for event in process.events("partitions.taken_over")
        ]
        return self._leader(TRANSACTIONS_TOPIC, f"{names[-1]}.a" if names else "")

    def _leader(self, topic: str, name: str) -> int:
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 0})
        with suppress(KafkaException):
            partitions = admin.list_topics(topic, timeout=ADMIN_PATIENCE_S).topics[topic].partitions
            if partitions:
                leader = partitions[java_hash(name) % len(partitions)].leader
                if leader in self._cluster.pids:
                    return int(leader)
        return self._rng.choice(sorted(self._cluster.pids))

    # --- coordinators -------------------------------------------------------------------------------------------------

    def _kill_coordinator(self) -> str:
        process = self._any_coordinator()
        self._kill(process)
        self.coordinators.append(self.start_coordinator())
        return f"pid {process.pid}"

    def _freeze_coordinator(self) -> str:
        process = self._any_coordinator()
        process.freeze()
        try:
            # Sometimes shorter than its session, sometimes long after somebody else took over.
            self._pause(0.3, 3 * self._session_s)
        finally:
            process.thaw()
        return f"pid {process.pid}"

    def _stop_coordinator(self) -> str:
        process = self._any_coordinator()
        process.wait_until_listening()
        process.terminate()
        self.coordinators.append(self.start_coordinator())
        code = process.wait(within=STOP_S)
        if code == 0:
            self._ended.add(process.pid)
        return f"pid {process.pid}, exit code {code}"

    def _join_coordinator(self) -> str:
        guest = self.start_coordinator()
        self.coordinators.append(guest)
        guest.wait_until_listening()
        self._pause(0.5, 3)
        self._kill(guest)
        return f"pid {guest.pid} came and was killed"

    def _kill(self, process: CoordinatorProcess) -> None:
        self._ended.add(process.pid)
        process.kill()

    def _any_coordinator(self) -> CoordinatorProcess:
        running = [process for process in self.coordinators if process.is_running]
        assert running, f"no coordinator runs: {self.ended_wrongly()}"
        return self._rng.choice(running)

    # --- connections --------------------------------------------------------------------------------------------------

    def _cut(self) -> str:
        whose, proxies = self._whose()
        for _ in range(self._rng.randint(1, 5)):
            for proxy in proxies:
                proxy.cut()
            self._pause(0.05, 0.5)
        return whose

    def _black_hole(self) -> str:
        return self._with_rules(Rules(is_blackhole=True), longest_s=4)

    def _slow(self) -> str:
        return self._with_rules(Rules(latency_s=self._rng.uniform(0.02, 0.3)), longest_s=4)

    def _lose_answers(self) -> str:
        whose = self._rng.choice(sorted(self._proxies))
        # Producers have no Kafka transactions: of their answers one kind alone is worth losing.
        if whose == PRODUCERS:
            apis = [PRODUCE]
        elif whose == CONSUMERS:
            apis = [self._rng.choice([PRODUCE, OFFSET_COMMIT])]
        else:
            apis = [self._rng.choice([PRODUCE, END_TXN, TXN_OFFSET_COMMIT]), INIT_PRODUCER_ID]
        rules = Rules(actions=dict.fromkeys(apis, "cut_after"), action_count_max=self._rng.randint(1, 4))
        return self._with_actions(rules, whose, longest_s=3)

    def _echo(self) -> str:
        api = self._rng.choice([END_TXN, TXN_OFFSET_COMMIT])
        after_s = self._rng.uniform(0.1, 3)
        rules = Rules(actions={api: f"cut_after+echo:{after_s:.2f}"}, action_count_max=2)
        return f"{self._with_actions(rules, COORDINATORS, longest_s=4)}, again after {after_s:.1f} s"

    def _with_rules(self, rules: Rules, *, longest_s: float) -> str:
        whose, proxies = self._whose()
        for proxy in proxies:
            proxy.use(rules)
        try:
            self._pause(0.5, longest_s)
        finally:
            for proxy in proxies:
                proxy.use()
        return whose

    def _with_actions(self, rules: Rules, whose: str, *, longest_s: float) -> str:
        """For a while, and until one request was harmed: one that comes to no harm was no fault."""
        proxies = self._proxies[whose]
        before = _harmed(proxies)
        for proxy in proxies:
            proxy.use(rules)
        try:
            self._pause(0.5, longest_s)
            harmed = wait_until(lambda: _harmed(proxies) - before, within=REQUEST_S, what=f"a request of {whose}")
        finally:
            for proxy in proxies:
                proxy.use()
        requests = ", ".join(f"{count} of {api}" for api, count in sorted(harmed.items()))
        return f"{whose}, requests: {requests}"

    def _whose(self) -> tuple[str, list[FaultProxy]]:
        """Somebody's connections to one broker, or to all."""
        whose = self._rng.choice(sorted(self._proxies))
        proxies = list(self._proxies[whose])
        if self._rng.random() < 0.5:
            number = self._rng.randrange(len(proxies))
            return f"{whose} and broker {number + 1}", [proxies[number]]
        return f"{whose} and all brokers", proxies

    def _pause(self, shortest_s: float, longest_s: float) -> None:
        pause(self._rng.uniform(shortest_s, longest_s))


def _harmed(proxies: Sequence[FaultProxy]) -> Counter[int]:
    """{kind of request: how many were harmed} since the proxies began."""
    return sum((Counter(dict(proxy.harmed)) for proxy in proxies), Counter())


def java_hash(text: str) -> int:
    """What Kafka takes to find the partition of a group or a transactional id: Java's `String.hashCode`, made positive."""
    number = 0
    for letter in text:
        number = (31 * number + ord(letter)) & 0xFFFF_FFFF
    return number & 0x7FFF_FFFF
