"""`txlayer consumer pause` and `resume` on a real broker: the requests, and who took them."""

import json
import os
from typing import NoReturn

import pytest

from tests.support.broker import unique_name
from tests.support.planted_letters import WHY, Planted
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import StoredOffset
from txlayer.cli import consumer
from txlayer.core.dead_letters import ReplayKind, ReplayRecord
from txlayer.errors import BrokerUnavailableError
from txlayer.operate import replay
from txlayer.operate.replay import WrittenRequest

pytestmark = pytest.mark.kafka


def test_every_partition_is_asked_and_those_that_nobody_took_are_told(planted: Planted) -> None:
    said = ("consumer", "pause", planted.group, planted.topic, *WHY, "--request-id", "ticket-14")
    with KafkaAdmin(planted.config) as admin:
        admin.store_offsets(planted.group, {(planted.replays, 0): StoredOffset(1, "")})

    code, out, err = planted.run(*said, "--wait", "1s")

    expected = ReplayRecord(ReplayKind.PAUSE, "ticket-14", None, text="zoe@desk: ticket 12: mended")
    assert [(0, None, expected), (1, None, expected)] == planted.requests()
    assert 1 == code
    assert f"{planted.topic}-0 is paused\n" == out
    assert f"{planted.topic}-1 is asked to be paused" in err


def test_a_partition_alone_is_asked_and_json_tells_where(planted: Planted) -> None:
    code, out, _ = planted.run(
        "consumer", "resume", planted.group, planted.topic, *WHY, "--partition", "1", "--wait", "0s", "--json"
    )

    assert 0 == code
    (row,) = json.loads(out)
    assert ("resume", 1, 0, "requested") == (row["act"], row["partition"], row["written_at"], row["result"])
    assert [(1, ReplayKind.RESUME)] == [(p, r.kind) for p, _, r in planted.requests()]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_pause_that_another_person_ended_in_the_same_moment_is_not_said_to_be_in_effect(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    def resumed(_log: object, written: list[WrittenRequest], **_: object) -> set[int]:
        planted.say(ReplayRecord(ReplayKind.RESUME, "ticket-16", None, text="kim@desk: go on"), partition=0)
        planted.say(ReplayRecord(ReplayKind.PAUSE, "ticket-17", None, text="kim@desk: stop"), partition=1)
        return {each.request.partition for each in written}

    monkeypatch.setattr(consumer, "wait_until_taken", resumed)

    code, out, err = planted.run("consumer", "pause", planted.group, planted.topic, *WHY, *["--json"] * as_json)

    assert 1 == code
    if as_json:
        assert ["overruled", "taken"] == [row["result"] for row in json.loads(out)]
    else:
        assert f"{planted.topic}-1 is paused\n" == out
        assert f"{planted.topic}-0 is asked to be resumed since then, by kim@desk: go on\n" == err


@pytest.mark.parametrize("command", ["dlq drop", "consumer pause"])
def test_when_the_cluster_is_away_behind_a_request_it_is_said_to_count(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def away(*_: object, **__: object) -> NoReturn:
        assert planted.requests()
        raise BrokerUnavailableError("no broker answered")

    monkeypatch.setattr(replay, "_wait_for_answers", away)
    monkeypatch.setattr(consumer, "wait_until_taken", away)
    what = (planted.letter(), "--group", planted.group) if command == "dlq drop" else (planted.group, planted.topic)

    code, out, err = planted.run(*command.split(), *what, *WHY, "--request-id", "ticket-15", "--json")

    assert (3, "") == (code, out)
    assert "requests that were written take effect; the same command with --request-id ticket-15 goes on\nerror:" in err


def test_what_cannot_be_meant_is_refused(planted: Planted) -> None:
    beyond = planted.run("consumer", "pause", planted.group, planted.topic, *WHY, "--partition", "2")
    silent = planted.run("consumer", "pause", planted.group, planted.topic)
    missing = planted.run("consumer", "pause", planted.group, unique_name("missing"), *WHY)

    resets = [
        planted.run("consumer", "reset", "--group", planted.group, "--topic", name, "--to", "earliest", "--yes")
        for name in ("", os.fsdecode(b"\xff\xfe"))
    ]

    own = [("txlayer.coordinator", planted.topic), *((planted.group, f"txlayer.{name}") for name in ("half", "locks"))]
    own += [(planted.group, f"{planted.group}.{planted.topic}.replay"), (planted.group, "__consumer_offsets")]
    refused = [
        planted.run("consumer", "reset", "--group", group, "--topic", topic, "--to", "earliest", "--yes")
        for group, topic in own
    ]

    assert [2] * 5 == [code for code, _, _ in refused]
    assert all("txlayer" in err and ("own" in err or "keeps for itself" in err) for _, _, err in refused)
    assert [2, 2, 2, 2, 2] == [beyond[0], silent[0], missing[0], *(code for code, _, _ in resets)]
    assert all("no topic can have this name" in err for _, _, err in resets)
    assert "has the partitions 0 to 1" in beyond[2]
    assert "say why with --reason" in silent[2]
    assert "txlayer topics apply --group" in missing[2]
    assert [] == planted.requests()
