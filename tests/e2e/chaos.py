"""P1-P6 on three brokers under random faults, for as long as `make chaos MINUTES=n` says. Not part of `make test` yet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.chaos import Chaos
from tests.support.run_checker import judge_history
from tests.support.seed import SEED, say
from txlayer.adapters.kafka.local import LocalConfig

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SECONDS = float(os.environ.get("E2E_CHAOS_MINUTES", "1")) * 60
RATE = 150
FAULTS_PER_MINUTE_MIN = 6


@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.promise("P3")
@pytest.mark.promise("P4")
@pytest.mark.promise("P5")
@pytest.mark.promise("P6")
def test_nothing_is_lost_doubled_or_shown_too_early_whatever_fails(
    local_config: LocalConfig, tmp_path: Path
) -> None:
    say(f"replay the draw with E2E_SEED={SEED} E2E_CHAOS_MINUTES={SECONDS / 60:g}")
    chaos = Chaos(local_config, folder=tmp_path, seed=SEED, rate=RATE, say=say)

    outcome = chaos.run(seconds=SECONDS)

    verdict = judge_history(outcome.history)
    counts: dict[str, int] = {}
    for fault in outcome.faults:
        counts[fault.name] = counts.get(fault.name, 0) + 1
    say(f"{len(outcome.faults)} faults: {counts}")
    say(
        f"{outcome.sent_count} transactions sent, {outcome.visible_count} messages visible, "
        f"{len(outcome.history.samples)} samples, {outcome.rebuild_count} rebuilds, "
        f"{len(verdict.findings)} findings; history: {chaos.journal.file}"
    )
    assert [] == verdict.findings[:20]
    assert [] == outcome.load_failures
    assert len(outcome.faults) >= FAULTS_PER_MINUTE_MIN * SECONDS / 60
    assert outcome.visible_count > outcome.sent_count / 2
