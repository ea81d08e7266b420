"""A consumer's program in the hands of who operates it: reset, restarted, and slower than its polls."""

import io
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from threading import Event
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.commands import run_command
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.lab_kafka import KafkaLab
from tests.support.waiting import wait_until
from txlayer.cli.consumer import app
from txlayer.consumer.consumer import OrderedConsumer
from txlayer.errors import InstanceFencedError

pytestmark = pytest.mark.kafka

INTERVAL = timedelta(seconds=5)
"""Between two polls, and of a session: longer than a busy machine stands still."""


@pytest.fixture
def stage(broker: Broker) -> Iterator[Stage]:
    stage = Stage(KafkaLab(broker.bootstrap_servers))
    yield stage
    stage.close()


def reset(stage: Stage, *more: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """`txlayer consumer reset` of the stage's group."""
    return run_command(
        app,
        "reset",
        "--group",
        stage.group,
        "--topic",
        stage.topic,
        "--bootstrap-servers",
        stage.lab.servers,
        *more,
        capsys=capsys,
    )


# --- where a group goes on --------------------------------------------------------------------------------------------


def test_reset_says_where_a_group_begins(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.write(b"0", b"1", b"2")

    code, out, _ = reset(stage, "--to", "latest", "--json", "--yes", capsys=capsys)

    assert 0 == code
    assert [{"topic": stage.topic, "partition": 0, "before": None, "after": 3}] == json.loads(out)
    stage.write(b"3")
    stage.consumer().start()
    stage.journal.wait_for(1)
    assert [b"3"] == stage.journal.values(b"k")


@pytest.mark.parametrize(("word", "expected"), [("--dry-run", 0), ("--json", 2)])
def test_a_reset_that_is_dry_or_that_nobody_confirms_stores_nothing(
    word: str, expected: int, stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    stage.write(b"0")

    code, out, err = reset(stage, "--to", "latest", word, capsys=capsys)

    assert (expected, -1) == (code, stage.stored())
    # What a program reads is stored, so there is nothing for it here; a person is shown what would be.
    assert (word == "--dry-run", word == "--json") == (stage.topic in out, stage.topic in err)


@pytest.mark.promise("P10")
def test_on_a_new_cluster_a_reset_says_above_which_token_a_group_goes_on(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.write(b"0")

    code, _, _ = reset(stage, "--to", "earliest", "--token-above", "4711", "--yes", capsys=capsys)

    assert 0 == code
    stage.consumer().start()
    stage.wait_stored(1)
    assert [4712] == [seen.token for seen in stage.journal.seen]


def test_reset_is_refused_while_a_consumer_runs(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.write(b"0")
    stage.consumer().start()
    stage.wait_stored(1)

    code, _, err = reset(stage, "--to", "earliest", "--yes", capsys=capsys)

    assert 2 == code
    assert f"{stage.group} has running consumers; stop them first" in err
    assert 1 == stage.stored()


def test_reset_of_a_topic_that_is_not_there_is_an_error(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run_command(
        app,
        "reset",
        "--group",
        stage.group,
        "--topic",
        f"{stage.topic}-not",
        "--to",
        "earliest",
        "--yes",
        "--bootstrap-servers",
        stage.lab.servers,
        capsys=capsys,
    )

    assert 2 == code
    assert f"{stage.topic}-not" in err


# --- slower than the group's patience ---------------------------------------------------------------------------------


def test_a_handler_may_take_longer_than_max_poll_interval(stage: Stage) -> None:
    let_go, others = Event(), 5
    stage.write(b"slow", key=b"slow")
    for n in range(others):
        stage.write(b"quick", key=b"%d" % n)

    def act(message: Any, _context: Any) -> None:
        if message.key == b"slow":
            let_go.wait(PATIENCE_S)

    consumer: OrderedConsumer = stage.consumer(
        act,
        session_timeout=INTERVAL,
        client_settings={"max.poll.interval.ms": str(INTERVAL // timedelta(milliseconds=1))},
    )
    consumer.start()
    began = time.monotonic()
    longer_s = 2 * INTERVAL.total_seconds()
    wait_until(lambda: time.monotonic() - began > longer_s, within=PATIENCE_S, what="two intervals")
    stage.write(b"later", key=b"later")
    stage.journal.wait_for(1 + others + 1)
    let_go.set()
    stage.wait_stored(1 + others + 1)

    assert 0 == consumer.stats().rebuild_count
    assert [b"slow"] == stage.journal.values(b"slow")


# --- static members ---------------------------------------------------------------------------------------------------


@pytest.mark.fault("consumer: a static member restarts within its session")
def test_a_static_member_has_its_partitions_back_without_a_rebalance(broker: Broker) -> None:
    stage = Stage(KafkaLab(broker.bootstrap_servers), partitions=2)
    first = stage.consumer(instance_id="one", session_timeout=timedelta(seconds=20))
    second = stage.consumer(instance_id="two", session_timeout=timedelta(seconds=20))
    first.start()
    second.start()
    wait_until(
        lambda: all(len(c.stats().partitions) == 1 for c in (first, second)), within=PATIENCE_S, what="each has one"
    )
    held, (others,) = first.stats().partitions, second.stats().partitions
    rebalance_count = second.stats().rebalance_count
    stage.write(b"before", partition=others[1])
    stage.journal.wait_for(1)

    first.close()
    again = stage.consumer(instance_id="one", session_timeout=timedelta(seconds=20))
    again.start()
    wait_until(lambda: again.stats().partitions == held, within=PATIENCE_S, what="the same one")

    # What the group takes away has another lease, and another token, when it comes back.
    stage.write(b"after", partition=others[1])
    stage.journal.wait_for(2)
    assert 1 == len({(seen.partition, seen.token) for seen in stage.journal.seen})
    assert (others,) == second.stats().partitions
    assert rebalance_count == second.stats().rebalance_count
    assert 0 == second.stats().rebuild_count
    stage.close()


@pytest.mark.fault("consumer: a static member restarts within its session")
def test_what_a_static_member_has_ended_is_stored_when_it_closes(stage: Stage) -> None:
    stage.write(b"0", b"1")
    first = stage.consumer(instance_id="one", store_interval=timedelta(seconds=60))
    first.start()
    stage.journal.wait_for(2)

    first.close()

    assert 2 == stage.stored()


@pytest.mark.fault("consumer: two processes have one `instance_id`")
def test_of_two_processes_with_one_instance_id_the_first_one_ends(stage: Stage) -> None:
    first = stage.consumer(instance_id="one")
    first.start()
    stage.write(b"0")
    stage.journal.wait_for(1)

    second = stage.consumer(instance_id="one")
    second.start()
    wait_until(lambda: not first.is_running, within=PATIENCE_S, what="the first ends")

    assert isinstance(first.failure, InstanceFencedError)
    with pytest.raises(InstanceFencedError, match="instance_id"):
        first.close()
    stage.write(b"1")
    stage.journal.wait_for(2)
    assert second.is_running
