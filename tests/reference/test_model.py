"""Small histories, written as bytes by the protocol page, each with what the model must say of it."""

import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.reference.model import Kind, verdict
from tests.reference.steps import DOUBT, HALF, HASH, KEY, OP, Log, written
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


# ---------------------------------------------------------------------------- correct lives


def test_committed_and_forwarded() -> None:
    log, _ = written("half 0/2, half 1/2, C 1, show 0 1")
    report = log.judge()
    assert ("committed", "ok", []) == (report.of(KEY).state, verdict(report.of(KEY)), report.findings)
    assert 5 == len(report.of(KEY).history)


def test_open_and_unseen() -> None:
    log, _ = written("half")
    report = log.judge()
    assert ("open", []) == (report.of(KEY).state, report.findings)
    report = log.judge(now_ms=log.now_ms + 100, overdue_after_ms=50)
    assert ({Kind.OVERDUE}, "overdue") == (report.kinds(KEY), verdict(report.of(KEY)))


def test_forwarded_from_doubt_after_its_half_record_is_gone() -> None:
    log, _ = written("half, keep open 0, C 0, show 0, ended 0")
    log.starts[HALF] = 1
    report = log.judge()
    assert ("committed", []) == (report.of(KEY).state, report.findings)


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


def test_an_aborted_first_try_is_no_double() -> None:
    log, _ = written("half, C 0, show 0 kafka=aborted, show 0")
    assert ("committed", []) == (log.judge().of(KEY).state, log.judge().findings)


def test_a_line_of_version_2_acts_and_version_3_is_out_of_form() -> None:
    log, (half,) = written("half")
    log.op(f"3|R|{KEY}|orders|{half.offset}|1|producer||".encode())
    log.op(f"2|C|{KEY}|orders|{half.offset}|1|producer|||new".encode())
    log.show(half)
    report = log.judge()
    assert ("committed", []) == (report.of(KEY).state, report.broken)
    assert {Kind.OUT_OF_FORM, Kind.NOT_KEPT_ASIDE} == report.kinds(None)


# ---------------------------------------------------------------------------- lost and doubled


def test_an_aborted_copy_is_lost() -> None:
    log, _ = written("half, C 0, show 0 kafka=aborted")
    assert {Kind.LOST} == log.judge().kinds(KEY)


def test_one_message_twice_does_not_stand_for_the_other() -> None:
    log, _ = written("half 0/2, half 1/2, C 1, show 0 0")
    assert {Kind.LOST, Kind.TORN, Kind.DOUBLED} == log.judge().kinds(KEY)


@pytest.mark.parametrize("place", ["before the decision", "after settlement"])
def test_a_second_copy_of_a_half_record_is_not_forwarded_again(place: str) -> None:
    log, (half,) = written("half")
    copy = log.half() if place == "before the decision" else None
    log.op(("C", half))
    log.show(half)
    copy = copy or log.half()
    assert [] == log.judge().broken
    assert Kind.SECOND_COPY in log.judge().kinds(KEY)
    log.show(copy)
    assert Kind.DOUBLED in log.judge().kinds(KEY)


def test_on_the_wrong_topic_is_lost_and_corrupt() -> None:
    log, _ = written("half, C 0, show 0 to=elsewhere")
    assert {Kind.LOST, Kind.CORRUPT} == log.judge().kinds(KEY)


def test_committed_and_still_open_on_doubt() -> None:
    log, _ = written("half, C 0, keep open 0")
    assert {Kind.LOST, Kind.CONTRADICTED} == log.judge().kinds(KEY)


def test_settled_and_still_on_doubt_is_told() -> None:
    log, _ = written("half, C 0, keep held 0, show 0")
    assert {Kind.NOT_ENDED} == log.judge().kinds(KEY)


# ---------------------------------------------------------------------------- leaked, early, phantom


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


def test_the_id_of_another_transaction_is_a_phantom() -> None:
    log, (half,) = written("half, C 0")
    shown = log.show(half)
    log.add("shop", value=shown.value, headers=[("txl-id", b"order-2"), *shown.headers[2:]])
    assert {Kind.PHANTOM} == log.judge().kinds(None)


def test_a_half_record_that_belongs_to_nobody_is_never_forwarded() -> None:
    log, (_, intruder) = written("half, half 1/2 topic=accounts, C 0, show 0")
    assert [] == log.judge().broken
    assert {Kind.MISPLACED, Kind.NOT_KEPT_ASIDE} == log.judge().kinds(KEY)
    log.add(DOUBT, key=f"origin/{HALF}/0/{intruder.offset}".encode(), value=b"")
    assert {Kind.MISPLACED} == log.judge().kinds(KEY)
    log.show(intruder, topic="accounts")
    assert Kind.LEAKED in log.judge().kinds(KEY)


def test_a_topic_that_is_not_allowed_is_parked() -> None:
    log, (half,) = written("half topic=accounts, C 0, keep parked-committed 0 reason=forbidden-topic")
    report = log.judge(allowed_topics=frozenset({"shop"}))
    assert ("parked-committed", []) == (report.of(KEY).state, report.findings)
    log.show(half, topic="accounts")
    assert Kind.LEAKED in log.judge(allowed_topics=frozenset({"shop"})).kinds(KEY)


# ---------------------------------------------------------------------------- content and place


@pytest.mark.parametrize("change", [{"key": b"other"}, {"value": b"other"}, {"value": None}])
def test_corrupt(change: dict[str, Any]) -> None:
    log, (half,) = written("half, C 0")
    log.show(half, **change)
    report = log.judge()
    assert ({Kind.CORRUPT}, "corrupt") == (report.kinds(KEY), verdict(report.of(KEY)))


def test_corrupt_headers() -> None:
    log, (half,) = written("half, C 0")
    shown = log.show(half)
    log.records[log.records.index(shown)] = replace(shown, headers=shown.headers[1:])
    assert ["headers"] == [finding.detail for finding in log.judge().broken]


@pytest.mark.parametrize(
    ("options", "key", "partition"),
    [("n2", b"k", 2), ("", b"21", 1173551340 % 3), (f"k{HASH},m4", None, 1), ("", None, None)],
)
def test_the_wanted_partition_is_kept(options: str, key: bytes | None, partition: int | None) -> None:
    for where in range(3):
        log = Log(partition_counts={"shop": 3})
        half = log.half(options=options, key=key)
        log.op(("C", half))
        log.show(half, partition=where)
        wanted = set() if partition in (where, None) else {Kind.WRONG_PARTITION}
        assert wanted == log.judge().kinds(KEY)


# ---------------------------------------------------------------------------- order


def other(key: str) -> str:
    return f"order-{key}/5f3a90c2"


def two_of_one_key(log: Log, *, order: str = "") -> tuple[Record, Record]:
    options = f"k{HASH}" + (",op" if order == "prepare" else "")
    return log.half(other("1"), options=options), log.half(other("2"), options=options)


@pytest.mark.parametrize("order", ["commit", "prepare"])
def test_order_of_one_ordering_key(order: str) -> None:
    log = Log()
    first, second = two_of_one_key(log, order=order)
    log.op(("C", second), key=other("2"))
    log.op(("C", first), key=other("1"))
    by_decision = replace(log, records=list(log.records), ends=dict(log.ends))
    by_decision.show(second)
    by_decision.show(first)
    log.show(first)
    log.show(second)
    is_decision = order == "commit"
    assert is_decision == (not by_decision.judge().broken)
    assert is_decision == bool(log.judge().broken)


def test_prepare_order_waits_for_an_undecided_one() -> None:
    log = Log()
    _, second = two_of_one_key(log, order="prepare")
    log.op(("C", second), key=other("2"))
    assert ("waiting", []) == (log.judge().of(other("2")).state, log.judge().findings)
    log.show(second)
    assert {Kind.OUT_OF_ORDER} == log.judge().kinds(other("2"))


# ---------------------------------------------------------------------------- decisions


def test_the_first_of_two_contrary_decisions_wins_whatever_half_offset_it_names() -> None:
    log, (first, last) = written("half 0/2, half 1/2, R 0, C 1")
    report = log.judge()
    assert "rolled-back" == report.of(KEY).state
    assert {Kind.REFUSED, Kind.LATE_HALF} == report.kinds(KEY)
    assert "conflicting" == verdict(report.of(KEY))
    log.show(first)
    log.show(last)
    assert Kind.LEAKED in log.judge().kinds(KEY)


def test_a_late_rollback_is_refused() -> None:
    log, _ = written("half, C 0, show 0, R C A 0")
    report = log.judge()
    assert ("committed", {Kind.REFUSED, Kind.REPEATED}) == (report.of(KEY).state, report.kinds(KEY))


def test_an_abandon_after_a_commit_does_not_switch_the_judge_off() -> None:
    log, (first, last) = written("half 0/2, half 1/2, C 1, A 1")
    assert ("abandoned", {Kind.ABANDONED_LATE}) == (log.judge().of(KEY).state, log.judge().kinds(KEY))
    log.show(first)
    assert {Kind.LOST, Kind.TORN} == log.judge().kinds(KEY)
    log.show(last, value=b"other")
    log.show(last)
    report = log.judge()
    assert ("committed", {Kind.DOUBLED, Kind.CORRUPT}) == (report.of(KEY).state, report.kinds(KEY))


def test_an_abandon_that_does_not_count_excuses_nothing() -> None:
    log, _ = written("half, C 0, A 0 group=strangers")
    assert {Kind.LOST, Kind.VOID_LINE} == log.judge().kinds(KEY)


def test_a_commit_before_its_last_half_record_is_incomplete_also_when_doubt_alone_knows_that_one() -> None:
    # The commit names a second copy of the first message. Retention took the first two half records since.
    log = Log()
    halves = [log.half(numbers="0/3"), log.half(numbers="1/3")]
    copy = log.half(numbers="0/3")
    halves.append(log.half(numbers="2/3"))
    log.op(("C", copy))
    log.summary("parked-committed", *halves, reason="incomplete")
    for index, half in enumerate(halves):
        origin = ("txl-origin", f"0:{half.offset}|{index}/3|1700000000000".encode())
        log.content(half, index, headers=[*half.headers, origin, ("txl-key", half.key)])
    log.starts[HALF] = copy.offset
    report = log.judge()
    assert ("parked-committed", "parked") == (report.of(KEY).state, verdict(report.of(KEY)))


def test_a_line_that_names_no_half_record_of_its_transaction_is_void() -> None:
    log, (_, stranger) = written("half, half txn=order-9/5f3a90c2")
    log.op(("C", stranger))
    report = log.judge()
    assert ("open", {Kind.VOID_LINE}) == (report.of(KEY).state, report.kinds(KEY))


def test_a_line_ahead_of_half_waits() -> None:
    log, (half,) = written("half")
    log.op(("R", replace(half, offset=1)))
    report = log.judge()
    assert ("open", {Kind.LINE_AHEAD}) == (report.of(KEY).state, report.kinds(KEY))


def test_a_line_that_was_given_up_never_acts() -> None:
    log = Log()
    log.op(f"1|R|{KEY}|orders|0|1|producer||".encode())
    half = log.half()
    log.op(("C", half))
    log.show(half)
    assert [] == log.judge().broken  # either reading is possible
    log.records = [record for record in log.records if record.topic != "shop"]
    assert [] == log.judge().broken
    log.add(DOUBT, key=f"origin/{OP}/0/0:0".encode(), value=b"")
    assert {Kind.LOST} == log.judge().kinds(KEY)


def test_null_values_on_doubt_alone_say_nothing_of_a_transaction() -> None:
    log = Log()
    log.end_on_doubt(0)

    assert {} == log.judge().transactions


def test_an_op_record_that_is_not_ascii_is_out_of_form_as_a_whole() -> None:
    log, (half,) = written("half")
    log.op(b"1|R|" + KEY.encode() + b"|orders|0|1|operator||zo\xc3\xab", ("C", half))
    report = log.judge()
    assert ("open", set()) == (report.of(KEY).state, report.kinds(KEY))
    assert ("txlayer.op-0@0",) == report.findings[0].places


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
    report = log.judge()
    assert ({}, {Kind.OUT_OF_FORM, Kind.NOT_KEPT_ASIDE}) == (report.transactions, report.kinds(None))


def test_a_half_record_in_the_wrong_partition_is_misplaced() -> None:
    log = Log(partition_counts={HALF: 8, OP: 8, DOUBT: 8})
    partition = zlib.crc32(b"order-1") % 8
    headers = [("txl", f"1|{KEY}|orders|shop|0/1|1|".encode())]
    for where in range(8):
        log.add(HALF, where, value=b"v", headers=headers)
    assert [(partition, KEY)] == list(log.judge().transactions)


def test_two_attempts_of_one_id_are_two_transactions() -> None:
    log = Log()
    for key in ("order-1/00000001", "order-1/00000002"):
        half = log.half(key)
        log.op(("C", half), key=key)
        log.show(half)
        assert "committed" == log.judge().of(key).state
    assert {Kind.TWO_ATTEMPTS} == {finding.kind for finding in log.judge().findings}


# ---------------------------------------------------------------------------- what is gone


@pytest.mark.parametrize("cause", ["retention", "compaction", "not read"])
def test_a_real_topic_that_may_have_had_the_message(cause: str) -> None:
    log = Log(ends={("shop", 0): 5})
    topic = "unread" if cause == "not read" else "shop"
    log.op(("C", log.half(topic=topic)))
    log.starts["shop"] = 5 if cause == "retention" else 0
    compacted = frozenset({"shop"} if cause == "compaction" else ())
    report = log.judge(compacted_topics=compacted)
    assert ("unknown", {Kind.NOT_JUDGED}) == (report.of(KEY).state, report.kinds(KEY))
    assert "out_of_window" == verdict(report.of(KEY))


def test_retention_that_did_not_come_so_far_excuses_nothing() -> None:
    log = Log(ends={("shop", 0): 5})
    log.starts["shop"] = 5
    log.add("shop", value=b"older than the decision")
    log.op(("C", log.half()))
    assert {Kind.LOST} == log.judge().kinds(KEY)


def test_an_open_kafka_transaction_of_a_stranger() -> None:
    log, (half,) = written("half, C 0")
    log.add("shop", value=b"a stranger's", kafka="open")
    log.show(half)
    log.stable_ends["shop"] = 0
    report = log.judge()
    assert ("committing", {Kind.BLOCKED}) == (report.of(KEY).state, report.kinds(KEY))
    assert {Kind.OPEN_KAFKA_TRANSACTION} == report.kinds(None)
    assert "open" == verdict(report.of(KEY))
    lost = log.half(other("2"))
    log.op(("C", lost), key=other("2"))
    assert {Kind.LOST} == log.judge().kinds(other("2"))


def test_aborted_records_of_half_and_op_count_for_nothing() -> None:
    log, (half,) = written("half")
    log.half(other("2"), kafka="aborted")
    log.records[-1] = replace(log.records[-1], kafka="aborted")
    log.op(("R", half))
    log.records[-1] = replace(log.records[-1], kafka="aborted")
    log.op(("C", half))
    log.show(half)
    report = log.judge()
    assert ([(0, KEY)], "committed") == (list(report.transactions), report.of(KEY).state)
