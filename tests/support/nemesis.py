"""Faults on a real cluster of three brokers and its coordinators: one at a time, drawn from a seed, each undone again.

It keeps the promise that Kafka's own replication rests on: at most one broker is away at any moment, so with
`min.insync.replicas=2` every acknowledged record survives.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Event
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.faultproxy import (
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    FaultProxy,
    Rules,
)
from tests.support.processes import CoordinatorProcess
from txlayer.adapters.kafka.local import LocalBroker

OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
ADMIN_PATIENCE_S = 5.0


class Fault(NamedTuple):
    """One fault that happened."""

    name: str
    detail: str
    began_s: float  # since the nemesis was made
    took_s: float


class Nemesis:
    """Draws and does faults. One thread uses it."""

    def __init__(
        self,
        cluster: LocalBroker,
        *,
        proxies: Mapping[str, Sequence[FaultProxy]],
        start_coordinator: Callable[[], CoordinatorProcess],
        coordinator_group: str,
        session_s: float,
        rng: random.Random,
    ) -> None:
        """`proxies`: whose connections they carry → one per broker."""
        self.faults: list[Fault] = []
        self.coordinators: list[CoordinatorProcess] = []
        self._cluster = cluster
        self._proxies = proxies
        self._start_coordinator = start_coordinator
        self._group = coordinator_group
        self._session_s = session_s
        self._rng = rng
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
        )

    @property
    def counts(self) -> Counter[str]:
        """Faults by name."""
        return Counter(fault.name for fault in self.faults)

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
        if not any(process.is_running for process in self.coordinators):
            self.coordinators.append(self._start_coordinator())

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _kill_broker(self, number: int | None = None) -> str:
        number = number or self._rng.choice(sorted(self._cluster.pids))
        self._cluster.kill(number)
        self._pause(0.2, 3)
        self._cluster.start(number)
        return f"broker {number}"

    def _freeze_broker(self, number: int | None = None) -> str:
        number = number or self._rng.choice(sorted(self._cluster.pids))
        pid = self._cluster.pids[number]
        os.kill(pid, signal.SIGSTOP)
        try:
            self._pause(0.5, 5)
        finally:
            os.kill(pid, signal.SIGCONT)
        return f"broker {number}"

    def _kill_group_coordinator(self) -> str:
        return self._kill_broker(self._leader_for_group())

    def _freeze_transaction_coordinator(self) -> str:
        return self._freeze_broker(self._leader_for_writer())

    def _leader_for_group(self) -> int:
        """The broker that keeps the coordinators' group; any, while nobody says."""
        return self._leader(OFFSETS_TOPIC, self._group)

    def _leader_for_writer(self) -> int:
        """The broker that keeps the Kafka transactions of the newest writer that is known."""
        names = [
            str(event["writer"])
            for process in self.coordinators
            for event in process.events("partitions.taken_over")
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
        process.kill()
        self.coordinators.append(self._start_coordinator())
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
        process.terminate()
        self.coordinators.append(self._start_coordinator())
        code = process.wait(within=60)
        assert code == 0, f"a clean stop ended with {code}: {process.output()[-3000:]}"
        return f"pid {process.pid}"

    def _join_coordinator(self) -> str:
        guest = self._start_coordinator()
        self.coordinators.append(guest)
        self._pause(0.5, 3)
        guest.kill()
        return f"pid {guest.pid} came and was killed"

    def _any_coordinator(self) -> CoordinatorProcess:
        running = [process for process in self.coordinators if process.is_running]
        assert running, "no coordinator runs: one ended by itself"
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
        api = self._rng.choice([PRODUCE, INIT_PRODUCER_ID, END_TXN, TXN_OFFSET_COMMIT])
        rules = Rules(actions={api: "cut_after"}, action_count_max=self._rng.randint(1, 4))
        return f"{self._with_rules(rules, longest_s=3)}, request {api}"

    def _echo(self) -> str:
        api = self._rng.choice([END_TXN, TXN_OFFSET_COMMIT])
        after_s = self._rng.uniform(0.1, 3)
        rules = Rules(actions={api: f"cut_after+echo:{after_s:.2f}"}, action_count_max=2)
        return f"{self._with_rules(rules, longest_s=4)}, request {api} again after {after_s:.1f} s"

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

    def _whose(self) -> tuple[str, list[FaultProxy]]:
        """Somebody's connections to one broker, or to all."""
        whose = self._rng.choice(sorted(self._proxies))
        proxies = list(self._proxies[whose])
        if self._rng.random() < 0.5:
            number = self._rng.randrange(len(proxies))
            return f"{whose} and broker {number + 1}", [proxies[number]]
        return f"{whose} and all brokers", proxies

    def _pause(self, shortest_s: float, longest_s: float) -> None:
        Event().wait(self._rng.uniform(shortest_s, longest_s))


def java_hash(text: str) -> int:
    """What Kafka takes to find the partition of a group or a transactional id: Java's `String.hashCode`, made positive."""
    number = 0
    for letter in text:
        number = (31 * number + ord(letter)) & 0xFFFF_FFFF
    return number & 0x7FFF_FFFF
