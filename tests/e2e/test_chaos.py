"""P1-P6 on three brokers under random faults: a bounded run, or as long as `make chaos MINUTES=n` says."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.support.chaos import Chaos, Outcome
from tests.support.checker import Verdict
from tests.support.run_checker import judge_history
from tests.support.seed import SEED, say
from txlayer.adapters.kafka.local import LocalConfig

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SECONDS = float(os.environ.get("E2E_CHAOS_MINUTES", "1.2")) * 60
"""Faults for at least so long; a slow machine takes more, until every kind of fault has been there."""
RATE = 150


@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.promise("P3")
@pytest.mark.promise("P4")
@pytest.mark.promise("P5")
@pytest.mark.promise("P6")
def test_nothing_is_lost_doubled_or_shown_too_early_whatever_fails(
    local_config: LocalConfig, tmp_path: Path
) -> None:
    say(f"replay the plan with E2E_SEED={SEED} E2E_CHAOS_MINUTES={SECONDS / 60:g}")
    chaos = Chaos(local_config, folder=tmp_path, seed=SEED, rate=RATE, say=say)

    outcome = chaos.run(seconds=SECONDS)

    verdict = judge_history(outcome.history)
    say("\n".join([*table(outcome, verdict), f"history: {chaos.journal.file}"]))
    assert [] == verdict.findings[:20]
    assert [] == outcome.ended_wrongly
    assert [] == outcome.load_failures
    # A run in which little happened has shown little.
    assert outcome.visible_count > outcome.sent_count / 2
    assert verdict.counts["ordered"]
    assert outcome.history.samples


def table(outcome: Outcome, verdict: Verdict) -> list[str]:
    """Faults by kind, what was done meanwhile, and what was found."""
    counts = Counter(fault.name for fault in outcome.faults)
    took_s = dict.fromkeys(counts, 0.0)
    for fault in outcome.faults:
        took_s[fault.name] += fault.took_s
    rows = [(name, count, f"{took_s[name]:.0f} s") for name, count in sorted(counts.items())]
    rows.append(("all faults", len(outcome.faults), f"{sum(took_s.values()):.0f} s"))
    operations = {
        "transactions": outcome.sent_count,
        "committed": verdict.counts["commit"],
        "rolled back": verdict.counts["rollback"],
        "not decided": verdict.counts["undecided"],
        "messages visible": outcome.visible_count,
        "of them with an order": verdict.counts["ordered"],
        "samples of stored positions": len(outcome.history.samples),
        "rebuilds of coordinators": outcome.rebuild_count,
    }
    rows += [(name, count, "") for name, count in operations.items()]
    findings = Counter(finding.kind.value for finding in verdict.findings)
    rows += [(f"finding: {kind}", count, "") for kind, count in sorted(findings.items())]
    broken = len(outcome.ended_wrongly) + len(outcome.load_failures)
    rows.append(("findings", len(verdict.findings) + broken, ""))
    return ["", *(f"{name:<32} {count:>8} {more:>8}" for name, count, more in rows)]
