"""What the reference model says beside the verdicts of cases.py, and what it makes of records out of form."""

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.reference.model import Kind, verdict
from tests.reference.steps import DOUBT, HALF, KEY, OP, Log, written
from tests.reference.wire import Record, murmur2, parse_half, parse_line, parse_origin, parse_summary

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "protocol.md"


def vectors(name: str) -> list[dict[str, Any]]:
    text = PAGE.read_text(encoding="utf-8")
    [block] = re.findall(rf"```json vectors={name}\n(.*?)```", text, re.DOTALL)
    cases: list[dict[str, Any]] = json.loads(block)
    return cases


def test_the_page_and_the_model_agree_on_every_vector() -> None:
    for case in vectors("murmur2"):
        assert case["murmur2"] == murmur2(case["key"].encode())
    for case in vectors("half"):
        half = parse_half(Record(HALF, 0, 0, 0, headers=[("txl", case["bytes"].encode())]))
        assert half is not None
        assert (case["key"], case["topic"], case["index"]) == (half.txn_key, half.topic, half.index)
        assert case["options"].get("key_hash") == half.options.get("k")
    for case in vectors("op"):
        line = parse_line(case["line"].encode(), Record(OP, 0, 0, 0), 0)
        assert line is not None
        wanted = "A" if case["is_abandon"] else case["resolution"][0]
        assert (wanted, case["last_offset"]) == (line.resolution, line.last_offset)
    for case in vectors("accepted"):
        half = parse_half(Record(HALF, 0, 0, 0, headers=[("txl", case.get("half", "").encode())]))
        line = parse_line(case.get("op", "").encode(), Record(OP, 0, 0, 0), 0)
        found = half or line
        assert case["is_accepted"] is (found is not None), case
        assert found is None or case["key"] == found.txn_key
    for case in vectors("summary"):
        summary = parse_summary(case["bytes"].encode())
        assert summary is not None
        assert (case["state"], case["reason"]) == (summary.state, summary.reason)
        assert tuple(case["twin_offsets"]) == summary.copy_offsets
    for case in vectors("origin"):
        origin = parse_origin(case["text"].encode())
        assert origin is not None
        assert (case["partition"], case["offset"]) == (origin.partition, origin.offset)
    for case in vectors("partition"):
        text = case["txn_id"] if case["ordering_key"] is None else case["ordering_key"]
        assert case["partition"] == zlib.crc32(text.encode()) % case["partition_count"]


def test_open_and_unseen() -> None:
    log, _ = written("half")
    report = log.judge()
    assert ("open", []) == (report.of(KEY).state, report.findings)
    report = log.judge(now_ms=log.now_ms + 100, overdue_after_ms=50)
    assert ({Kind.OVERDUE}, "overdue") == (report.kinds(KEY), verdict(report.of(KEY)))


def test_young_commit_is_on_its_way() -> None:
    log, _ = written("half, C 0")
    assert "committing" == log.judge(now_ms=log.now_ms, grace_ms=60_000).of(KEY).state


def test_records_of_others_and_dead_letters_are_passed_over() -> None:
    log, (half,) = written("half, C 0")
    log.add("shop", value=b"somebody else's")
    shown = log.show(half)
    log.add("g.shop.dlq", value=shown.value, headers=[*shown.headers, ("txl-dlq", b"1|")])
    log.add("shop", kafka="aborted", headers=[("txl-identity", b"x")])
    assert [] == log.judge().findings


def test_a_line_of_version_2_acts_and_version_3_is_out_of_form() -> None:
    log, (half,) = written("half")
    log.op(f"3|R|{KEY}|orders|{half.offset}|1|producer||".encode())
    log.op(f"2|C|{KEY}|orders|{half.offset}|1|producer|||new".encode())
    log.show(half)
    report = log.judge()
    assert ("committed", []) == (report.of(KEY).state, report.broken)


def test_of_what_is_out_of_the_window_nothing_is_told_as_broken() -> None:
    log, _ = written("half 0/2, half 1/2, R 1, show 1, starts half=1")
    report = log.judge()
    assert ("out_of_window", {Kind.LEAKED, Kind.TORN}) == (verdict(report.of(KEY)), report.kinds(KEY))
    assert [] == report.broken


def test_settled_and_still_on_doubt_is_told() -> None:
    log, _ = written("half, C 0, keep held 0, show 0")
    assert {Kind.NOT_ENDED} == log.judge().kinds(KEY)


def test_shown_before_its_decision() -> None:
    log, (half,) = written("half")
    shown = log.show(half)
    log.op(("C", half))
    assert {Kind.EARLY} == log.judge().kinds(KEY)
    assert set() == log.judge(clock_error_ms=10).kinds(KEY)
    log.records[log.records.index(shown)] = replace(shown, is_append_time=False)
    assert set() == log.judge().kinds(KEY)


@pytest.mark.parametrize(
    "origin", ["7:0|0/1|1700000000000", "0:9|0/1|1700000000000", "0:0|0/2|1700000000000", "0:0|0/1|5", "x", None]
)
def test_phantom(origin: str | None) -> None:
    log, _ = written("half")
    value = origin.encode() if origin else None
    headers = [("txl-id", b"order-1"), ("txl-origin", value)]
    log.add("shop", value=b"v", headers=headers if origin else headers[:1])
    assert [Kind.PHANTOM] == [finding.kind for finding in log.judge().broken]


def test_a_line_that_names_no_half_record_of_its_transaction_is_void() -> None:
    log, (_, stranger) = written("half, half txn=order-9/5f3a90c2")
    log.op(("C", stranger))
    report = log.judge()
    assert ("open", set()) == (report.of(KEY).state, report.kinds(KEY))


def test_null_values_on_doubt_alone_say_nothing_of_a_transaction() -> None:
    log = Log()
    log.end_on_doubt(0)

    assert {} == log.judge().transactions


@pytest.mark.parametrize(
    "txl",
    [
        b"1|order-1/5f3a90c2|orders|shop|1/1|1|",
        b"1|order-1/5f3a90c2|orders|..|0/1|1|",
        b"1|order-1/xyz|orders|shop|0/1|1|",
        b"1|order/1/5f3a90c2|orders|shop|0/1|1|",
        b"1|order-1/5f3a90c2|orders|shop|0/1|1|k12",
        b"1|order-1/5f3a90c2|orders|shop|0/1|1",
        b"1|order-1/5f3a90c2|orders|shop|0/1|9223372036854775808|",
        b"1|order-1/5f3a90c2|orders|shop|0/1|1|i1,ix",
        None,
    ],
)
def test_half_records_out_of_form(txl: bytes | None) -> None:
    log = Log()
    log.add(HALF, value=b"v", headers=[("txl", txl)])
    assert {} == log.judge().transactions


def test_a_half_record_in_the_wrong_partition_is_misplaced() -> None:
    log = Log(partition_counts={HALF: 8, OP: 8, DOUBT: 8})
    partition = zlib.crc32(b"order-1") % 8
    headers = [("txl", f"1|{KEY}|orders|shop|0/1|1|".encode())]
    for where in range(8):
        log.add(HALF, where, value=b"v", headers=headers)
    assert [(partition, KEY)] == list(log.judge().transactions)
