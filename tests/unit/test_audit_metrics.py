"""What an audit that runs for ever shows of its runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from txlayer.cli.spark import main
from txlayer.cli.spark.metrics import ObservedAudit, RunResult


def test_an_audit_is_ready_after_its_first_run_and_stalled_when_no_further_one_ends() -> None:
    now = 100.0
    audit = ObservedAudit(pause_s=60, record_count=lambda: 12, name="txlayer", version="1", clock=lambda: now)

    assert ("", "the first run goes on") == audit.health()
    audit.failed()
    audit.complete(RunResult(20.0, {"ok": 7, "lost": 1}, {"orders": (3, 5)}, {"gap": 2}))
    now = 339.0
    assert ("", "") == audit.health()

    found = {(sample.family.name, sample.labels): sample.value for sample in audit.samples()}
    assert {
        ("txlayer_audit_runs_total", ("complete",)): 1,
        ("txlayer_audit_runs_total", ("failed",)): 1,
        ("txlayer_audit_run_seconds", ()): 20.0,
        ("txlayer_audit_age_seconds", ()): 239.0,
        ("txlayer_audit_records_total", ()): 12,
        ("txlayer_audit_unreadable", ("gap",)): 2,
        ("txlayer_audit_transactions", ("ok",)): 7,
        ("txlayer_audit_transactions", ("lost",)): 1,
        ("txlayer_audit_behind_records", ("orders",)): 3,
        ("txlayer_audit_hidden_records", ("orders",)): 5,
    }.items() <= found.items()

    now = 341.0
    assert "the last complete run ended 241 s ago" == audit.health().stalled


def test_a_topic_that_was_created_later_is_no_gap_that_retention_left(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = ObservedAudit(pause_s=60, record_count=lambda: 0, name="txlayer", version="1")
    nothing: Any = None
    gaps = [
        {"topic": "new", "partition": 0, "start": 0, "end": 0},
        {"topic": "old", "partition": 0, "start": 0, "end": 7},
    ]
    summary: Any = SimpleNamespace(gaps=gaps, unread_topics=[], hidden_topics=[], verdicts={"ok": 1})
    monkeypatch.setattr(main, "unread", lambda *_: {})

    main._run_observed(nothing, nothing, lambda _: (nothing, summary), audit)

    found = {(sample.family.name, sample.labels): sample.value for sample in audit.samples()}
    assert 1 == found["txlayer_audit_unreadable", ("gap",)]
