"""`txlayer dlq list` and `show` over dead letters planted on a real broker."""

import json
import time

import pytest

from tests.conftest import Broker
from tests.support.broker import unique_name
from tests.support.planted_letters import Planted
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome, ReplayRecord

pytestmark = pytest.mark.kafka

HOUR_MS = 3_600_000


def result(planted: Planted, letter: str, outcome: ReplayOutcome, *, request_id: str = "r1") -> None:
    offset = int(letter.rpartition(":")[2])
    planted.say(ReplayRecord(ReplayKind.REPLAY, request_id, offset, text="zoe: mended"))
    planted.say(ReplayRecord(ReplayKind.RESULT, request_id, offset, outcome, "detail"))


def test_list_shows_what_is_to_be_done_and_counts_the_rest(planted: Planted) -> None:
    handled, failed, requested, untouched = (planted.letter() for _ in range(4))
    foreign = planted.record(value=b"not ours")
    result(planted, handled, ReplayOutcome.HANDLED)
    result(planted, failed, ReplayOutcome.FAILED)
    planted.say(ReplayRecord(ReplayKind.DROP, "r2", 2, text="zoe: a test"))

    code, out, err = planted.dlq("list", "--json")
    everything = planted.json("list", "--all")
    table = planted.dlq("list", "--keys")

    assert 0 == code
    states = {row["letter"]: row["state"] for row in json.loads(out)}
    assert {failed: "failed", requested: "requested", untouched: "open"} == states
    assert "1 were handled or dropped; --all shows them" in err
    assert "1 records are no dead letters of the group" in err
    assert "handled" == next(row["state"] for row in everything if row["letter"] == handled)
    assert untouched in table[1]
    assert "customer-7" in table[1]
    assert foreign not in table[1]


def test_keys_and_values_are_shown_only_when_asked_for(planted: Planted) -> None:
    letter = planted.letter(key=b"secret key", value=b"secret value")

    listed = planted.dlq("list")[1] + planted.dlq("list", "--json")[1]
    shown = planted.dlq("show", letter)[1]
    whole = planted.dlq("show", letter, "--value")[1]

    assert "secret" not in listed
    assert "secret key" in shown
    assert "secret value" not in shown
    assert "secret value" in whole


def test_filters_narrow_each_other(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    planted = Planted(broker.bootstrap_servers, capsys, is_append_time=False)
    now_ms = int(time.time() * 1000)
    old = planted.letter(at_ms=now_ms - 10 * HOUR_MS)
    rejected = planted.letter(reason=DeadLetterReason.REJECTED, at_ms=now_ms - HOUR_MS)
    other = planted.letter(key=b"\xff\x00", partition=1, at_ms=now_ms - HOUR_MS)
    null = planted.letter(key=None, partition=1)

    def listed(*filters: str) -> set[str]:
        return {row["letter"] for row in planted.json("list", *filters)}

    assert {old, rejected, other, null} == listed()
    assert {old, rejected, other, null} == listed("--topic", planted.topic)
    assert {rejected, other, null} == listed("--since", "2h")
    assert {old, rejected, other} == listed("--until", "30m")
    assert {old} == listed("--until", "2h", "--key", "customer-7")
    assert {rejected} == listed("--reason-code", "rejected")
    assert {other} == listed("--key-hex", "ff00")
    assert {rejected, other} == listed("--since", "2h", "--until", "30m")
    assert {old, rejected, other, null} == listed("--state", "open")
    assert set() == listed("--state", "failed")
    assert [old] == [row["letter"] for row in planted.json("list", "--limit", "1")]


def test_show_tells_the_whole_story(planted: Planted) -> None:
    letter = planted.letter(value=None)
    result(planted, letter, ReplayOutcome.FAILED)

    found = planted.json("show", letter, "--value")
    code, table, _ = planted.dlq("show", letter.rpartition("/")[2], "--topic", planted.topic)

    assert "failed" == found["state"]
    assert {"topic": planted.topic, "partition": 0, "offset": 1_000} == found["origin"]
    assert (16, "ValueError", "no such customer") == (
        found["attempt_count"],
        found["error_type"],
        found["error_message"],
    )
    assert ["tags", "txl-id"] == [h["name"] for h in found["headers"]]
    assert None is found["value"]
    assert [("replay", None, "zoe", "mended"), ("result", "failed", None, "detail")] == [
        (h["kind"], h["outcome"], h["operator"], h["text"]) for h in found["history"]
    ]
    assert 0 == code
    assert "no such customer" in table
    assert "mended" in table


def test_a_record_that_is_no_dead_letter_of_the_group_says_why(planted: Planted) -> None:
    foreign = planted.record(value=b"not ours")
    others = planted.letter(group="somebody-else")

    assert "no header txl-dlq" == planted.json("show", foreign)["why"]
    assert "group somebody-else" in planted.json("show", others)["why"]


def test_what_is_missing_is_named_with_the_command_that_makes_it(planted: Planted) -> None:
    missing = unique_name("missing")

    code, _, err = planted.dlq("list", "--topic", missing)
    nobody = planted.run("dlq", "list", "--group", unique_name("nobody"))
    nowhere = planted.dlq("show", f"{planted.topic}/0:99")

    assert 2 == code
    assert f"`txlayer topics apply --group {planted.group} --topic {missing}` creates it" in err
    assert 2 == nobody[0]
    assert "has no dead-letter topic that these credentials may see; `txlayer topics apply --group nobody-" in nobody[2]
    assert (1, "") == nowhere[:2]
    assert "there is no record in" in nowhere[2]


def test_an_empty_list_says_so(planted: Planted) -> None:
    assert (0, "no dead letter is as the filters say\n", "") == planted.dlq("list")
