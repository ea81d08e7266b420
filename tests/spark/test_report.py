"""The report: one file that needs nothing beside it, the same in JSON, and an exit code that says whether a promise broke."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

from txlayer_spark.report import to_html, to_json
from txlayer_spark.summary import AGES_MS, Summary
from txlayer_spark.verdicts import SEVERITIES, VERDICTS, Severity, exit_code

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "reconcile.md"


def summary(**verdicts: int) -> Summary:
    """A small one with a finding for each verdict that is none of the good ones."""
    bad = [v for v, n in verdicts.items() if n and SEVERITIES[v] is not Severity.GOOD]
    finding = {
        "txn_id": "<b>order</b>",
        "nonce": "0000000a",
        "producer_group": "shop",
        "topics": ["orders"],
        "half_partition": 3,
        "first_offset": 16,
        "last_offset": 17,
        "decided_offset": 9,
        "decided_line": 4,
        "visible_topics": ["orders"],
        "visible_partition": 1,
        "visible_offset": 5,
        "visible_count": 1,
        "message_count": 2,
        "stored_at": AT,
        "decided_at": AT,
        "forwarded_at": AT,
        "doubt_reason": None,
    }
    point = {"at": AT, "stored": 60, "committed": 50, "rolled_back": 10, "visible": 70}
    stages = {name: [1, 20, 300] for name in ("decide_ms", "forward_ms", "total_ms")}
    return Summary(
        namespace="ns",
        cut_ms=1_769_860_800_000,
        verdicts=verdicts,
        step_s=60,
        curve=[{**point, **stages}],
        ages=[{"age": n, "verdict": v, "n": n} for n in range(len(AGES_MS) + 1) for v in ("open", "overdue", "parked")],
        checks=[{"checked": 0, "decided_by": "producer", "n": 50}, {"checked": 3, "decided_by": None, "n": 1}],
        hot_keys=[{"key_hash": "028c7948712c936a", "n": 9}],
        partitions=[{"half_partition": 3, "n": 60}],
        dead_letters=[{"topic": "g.orders.dlq", "kind": "dlq", "n": 2}],
        findings=[{**finding, "verdict": verdict} for verdict in bad],
        finding_count=len(bad),
    )


def test_a_broken_promise_is_exit_code_1_and_a_warning_is_not() -> None:
    faults = {name for name, severity in SEVERITIES.items() if severity is Severity.FAULT}

    assert {"lost", "duplicate", "leaked", "torn", "orphan", "out_of_order", "corrupt"} == faults
    assert {1} == {exit_code({"ok": 5, name: 1}) for name in faults}
    others = {name: 1 for name in SEVERITIES if name not in faults}
    assert 0 == exit_code({**others, "lost": 0})


def test_the_page_needs_nothing_beside_it_and_escapes_what_users_wrote() -> None:
    page = to_html(summary(ok=59, lost=1, parked=1), made_at=AT)

    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", page)
    assert "@import" not in page
    assert "<script" not in page
    assert "<b>order</b>" not in page
    assert "&lt;b&gt;order&lt;/b&gt;" in page
    assert 7 == page.count("<svg")
    assert "1 of 61 transactions break a promise; 1 more want a look." in page
    for place in ("ns.half-3@16…17", "ns.op-3@9:4", "orders-1@5"):
        assert place in page


def test_a_page_of_nothing_and_one_of_good_news_are_pages_too() -> None:
    empty = Summary("ns", 0, {}, 1, [], [], [], [], [], [], [], 0)

    assert "There are no transactions." in to_html(empty, made_at=AT)
    assert "All 60 transactions are in order." in to_html(summary(ok=60), made_at=AT)
    assert "No promise is broken. 2 of 62" in to_html(summary(ok=60, parked=2), made_at=AT)


def test_json_says_what_the_page_says() -> None:
    found = json.loads(to_json(summary(ok=59, lost=1)))

    assert (1, {"ok": 59, "lost": 1}) == (found["exit_code"], found["verdicts"])
    assert ("lost", "2026-01-31T12:00:00+00:00") == (
        found["findings"][0]["verdict"],
        found["findings"][0]["decided_at"],
    )


def test_the_documented_verdicts_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (yes)? ?\| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)

    assert [(v.name, "yes" if v.severity is Severity.FAULT else "", v.means) for v in VERDICTS] == rows
