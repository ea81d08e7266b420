"""The report: one file that needs nothing beside it, the same in JSON, and an exit code that says whether a promise broke."""

import html
import json
import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from txlayer.core.verification import ADVICE, Severity, Verdict
from txlayer.errors import UsageError
from txlayer_spark.report import (
    AGES_MS,
    EARLIER_MAX,
    Summary,
    throughput_chart,
    to_html,
    to_json,
    with_earlier,
    write_report,
)
from txlayer_spark.verdicts import SEVERITIES, VERDICTS, exit_code

AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "reconcile.md"
HOUR_MS = 3_600_000


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
        curve=[{**point, **stages}, {**point, **stages, "at": AT + timedelta(minutes=1)}],
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
    assert not re.findall(r"#[0-9a-f]{6}", page.partition("</style>")[2])
    assert "1 of 61 transactions break a promise; 1 more want a look." in page
    for place in ("ns.half-3@16…17", "ns.op-3@9:4", "orders-1@5"):
        assert place in page


def test_a_page_of_nothing_and_one_of_good_news_are_pages_too() -> None:
    empty = Summary("ns", 0, {}, 1, [], [], [], [], [], [], [], 0)

    assert "There are no transactions." in to_html(empty, made_at=AT)
    assert "All 60 transactions are in order." in to_html(summary(ok=60), made_at=AT)
    assert "No promise is broken. 2 of 62" in to_html(summary(ok=60, parked=2), made_at=AT)


def test_the_page_has_the_consoles_colours() -> None:
    style = to_html(summary(ok=60), made_at=AT).partition("</style>")[0]
    console = (ROOT / "txlayer" / "console" / "static" / "console.css").read_text("utf-8")

    def themes(text: str) -> list[dict[str, str]]:
        blocks = [block.partition("}")[0] for block in re.split(r"(?<!-)color-scheme: ", text)]
        return [dict(re.findall(r"--([a-z-]+): (#\w+)", block)) for block in blocks[1:3]]

    # The first is light, the second dark.
    both = list(zip(themes(style), themes(console), strict=True))
    assert [12, 12] == [len(ours) for ours, _ in both]
    assert [{}, {}] == [{k: v for k, v in ours.items() if theirs[k] != v} for ours, theirs in both]


def test_the_worst_come_with_what_to_do_and_a_command_that_is_safe_to_paste() -> None:
    kinds = {name: 1 for name, severity in SEVERITIES.items() if severity is not Severity.GOOD}
    found = summary(**kinds, ok=60)
    hostile = [{**row, "txn_id": "a; rm -rf /", "visible_topics": ["$(id)"]} for row in found.findings[1:]]
    page = html.unescape(to_html(replace(found, findings=hostile), made_at=AT))

    assert set(kinds) == {verdict.value for verdict in ADVICE}
    assert "10 of 11" in page
    for row in hostile:
        assert ADVICE[Verdict(row["verdict"])].sentence in page
    assert "txlayer tx check-now 'a; rm -rf /' --namespace ns" in page
    assert "txlayer tx show --id 'a; rm -rf /' --since 2026-01-31T11:59:00+00:00 --namespace ns" in page
    assert "txlayer verify --since 2026-01-31T11:59:00+00:00 --topics '$(id)' --namespace ns" in page


def test_a_report_says_what_changed_since_the_one_that_is_nearest_to_a_day_ago() -> None:
    now = summary(ok=59, lost=1)
    assert "cannot say what has changed" in to_html(now, made_at=AT)

    # One report each twenty minutes, for three days; two transactions in each, and a parked one until the last hour.
    said = None
    for number in range(3 * 72, -1, -1):
        counts = {"ok": 59 - 2 * min(number, 29), "parked": int(number >= 3)}
        each = replace(now, cut_ms=now.cut_ms - number * HOUR_MS // 3, verdicts=counts)
        each = with_earlier(each, said)
        said = to_json(each)

    assert EARLIER_MAX == len(each.earlier)
    assert {HOUR_MS} == {after["cut_ms"] - before["cut_ms"] for before, after in pairwise(each.earlier)}
    page = to_html(each, made_at=AT)
    assert "Since 2026-01-30 12:00:00 UTC: 1 fewer want a look, 58 more are in order." in page
    assert "Since 2026-01-31 11:00:00 UTC: nothing has changed." in to_html(
        replace(each, earlier=[{"cut_ms": each.cut_ms - HOUR_MS, "verdicts": each.verdicts}]), made_at=AT
    )
    swapped = replace(summary(torn=1), earlier=[{"cut_ms": now.cut_ms - HOUR_MS, "verdicts": {"lost": 1}}])
    assert "Since 2026-01-31 11:00:00 UTC: other verdicts, as many of each kind." in to_html(swapped, made_at=AT)


@pytest.mark.parametrize("name", ["pipe.html", "folder.html", "blocked.html", "a-file/report.html"])
def test_a_page_that_cannot_be_a_file_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "blocked.json").mkdir()
    (tmp_path / "a-file").touch()
    nothing: Any = None  # no session is asked

    with pytest.raises(UsageError, match="--page"):
        write_report(nothing, bronze="b", ledger="l", namespace="ns", page=tmp_path / name, made_at=AT)

    assert (tmp_path / "pipe.html").is_fifo()


def test_no_throughput_is_drawn_where_nothing_was_stored() -> None:
    last = {**summary().curve[0], "at": AT + timedelta(minutes=10)}

    drawn = throughput_chart(replace(summary(), curve=[summary().curve[0], last]))

    assert 10 == max(path.count("L ") for path in re.findall(r'<path d="([^"]*)"', drawn))


@pytest.mark.parametrize("said", [None, "", "{", "[]", '{"namespace": "other", "earlier": [], "cut_ms": 1}'])
def test_a_file_that_is_no_earlier_report_of_the_namespace_is_none(said: str | None) -> None:
    now = summary(ok=59)

    assert now == with_earlier(now, said)


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
