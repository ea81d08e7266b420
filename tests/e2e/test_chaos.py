"""P1-P10 on three brokers under random faults: a bounded run, or as long as `make chaos MINUTES=n` says."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.chaos import Chaos, Outcome
from tests.support.checker import Verdict
from tests.support.consumer_judge import judge_consumers
from tests.support.run_checker import judge_history
from tests.support.seed import SEED, say
from txlayer.adapters.kafka.local import LocalConfig

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
@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.promise("P3")
@pytest.mark.promise("P4")
@pytest.mark.promise("P5")
@pytest.mark.promise("P6")
@pytest.mark.promise("P7")
@pytest.mark.promise("P8")
@pytest.mark.promise("P9")
@pytest.mark.promise("P10")
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
    assert handled.counts["result handled"]
    assert handled.counts["replay attempt"]
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
        "late words told to their group": told["check refused"],
        "messages for consumers": len(outcome.consumers.logs.topics),
        "handler calls": called["attempt"] + called["replay attempt"],
        "of them later attempts": called["later attempt"],
        "of them cut short": called["result none"],
        "dead letters": len(outcome.consumers.logs.letters),
        "handler calls of replays": called["replay attempt"],
        "stores of progress": called["stored"],
        "records in the lock log": called["locks"],
        "writes refused by their token": called["write refused"],
    }
