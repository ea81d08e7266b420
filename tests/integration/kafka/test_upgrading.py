"""docs/howto/upgrade.md: its commands, run on a namespace with work in it; and what happens in between."""

import io
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import unique_name
from tests.support.commands import run_command, run_txlayer
from tests.support.raw import RawWriter
from tests.support.waiting import wait_until
from txlayer import Message, TransactionalProducer
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.cli.topics import app
from txlayer.config import ClientConfig, CoordinatorConfig
from txlayer.core.messages import Resolution
from txlayer.errors import NotAcceptingError, TopicMismatchError
from txlayer.testing.stage import RunningCoordinator

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "upgrade.md"
Capsys = pytest.CaptureFixture[str]


def commands(heading: str) -> list[list[str]]:
    """The words behind `txlayer topics` of a section's commands, in order."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", section, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[2:] for line in lines]


@pytest.fixture
def arena(broker: Broker) -> Arena:
    return make_arena(broker.bootstrap_servers, partition_count=2)


@contextmanager
def coordinating(arena: Arena, namespace: str | None = None) -> Iterator[RunningCoordinator]:
    config = CoordinatorConfig(
        bootstrap_servers=arena.servers, namespace=namespace or arena.namespace, session_timeout=timedelta(seconds=6)
    )
    with RunningCoordinator(config) as running:
        yield running


def producing(arena: Arena, namespace: str | None = None) -> TransactionalProducer:
    return TransactionalProducer(bootstrap_servers=arena.servers, group="shop", namespace=namespace or arena.namespace)


def topics(arena: Arena, *words: str, capsys: Capsys) -> tuple[int, str, str]:
    more = [] if "--namespace" in words else ["--namespace", arena.namespace]
    return run_command(app, *words, "-b", arena.servers, *more, capsys=capsys)


def topics_json(arena: Arena, *words: str, capsys: Capsys) -> tuple[int, Any]:
    code, out, _ = topics(arena, *words, "--json", capsys=capsys)
    return code, json.loads(out)


def test_the_page_has_its_commands() -> None:
    assert ["accept", "drain", "widen", "widen", "check", "accept"] == [c[0] for c in commands("More partitions")]
    assert ["apply", "drain"] == [c[0] for c in commands("Another namespace")]


def test_what_is_open_is_told_and_drained_once_it_is_settled(arena: Arena, capsys: Capsys) -> None:
    with coordinating(arena), producing(arena) as producer:
        with producer.transaction("order-1") as tx:
            tx.send(arena.targets[0], value=b"v")
            tx.prepare()
            code, found = topics_json(arena, "drain", "--timeout", "0s", capsys=capsys)
            assert (1, False, 1) == (code, found["is_drained"], found["half_unread"])
            (open_ones,) = found["open"]
            assert ("shop", "open", 1) == tuple(open_ones[n] for n in ("producer_group", "state", "count"))
            assert ["order-1"] == open_ones["txn_ids"]
            assert 1 == topics(arena, "drain", "--timeout", "0s", capsys=capsys)[0]

        assert 0 == topics(arena, *commands("More partitions")[1], capsys=capsys)[0]
        # Again: the same answer, because it changes nothing.
        code, found = topics_json(arena, "drain", "--timeout", "0s", capsys=capsys)
        assert (0, True, []) == (code, found["is_drained"], found["open"])


def test_nothing_is_widened_while_a_coordinator_runs_or_something_is_open(arena: Arena, capsys: Capsys) -> None:
    with coordinating(arena), producing(arena) as producer:
        code, _, err = topics(arena, "widen", "--partitions", "4", "--yes", capsys=capsys)
        assert (2, True) == (code, "stop them first" in err)
        with producer.transaction() as tx:
            tx.send(arena.targets[0], value=b"v")
            tx.prepare()
            tx.unknown()

    def widened() -> int:
        return topics(arena, "widen", "--partitions", "4", "--yes", capsys=capsys)[0]

    wait_until(lambda: widened() == 1, within=20, what="refused because something is open")
    code, _, err = topics(arena, "widen", "--partitions", "1", "--yes", capsys=capsys)
    assert (2, f"error: {arena.topics.half} has 2 partitions: a topic never gets fewer, so 1 cannot be\n") == (
        code,
        err,
    )


def refuses(producer: TransactionalProducer) -> bool:
    try:
        with producer.transaction() as tx:
            tx.rollback()
    except NotAcceptingError:
        return True
    return False


def accepting(arena: Arena, capsys: Capsys) -> tuple[int, bool]:
    code, found = topics_json(arena, "accept", capsys=capsys)
    return code, found["is_accepting"]


def test_what_began_while_a_person_was_asked_must_be_drained_first(
    arena: Arena, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(_question: str) -> None:
        RawWriter(arena).prepare((arena.targets[0], b"k", b"v"))

    monkeypatch.setattr("txlayer.cli.output.ask", prepare)

    code, found = topics_json(arena, "widen", "--partitions", "8", capsys=capsys)

    assert (1, 1) == (code, found["half_unread"])
    assert arena.partition_count == len(arena.status().partitions)


def test_a_namespace_is_widened_as_the_page_says(arena: Arena, capsys: Capsys) -> None:
    close, drain, *rest = commands("More partitions")
    with coordinating(arena), producing(arena) as producer:
        for number in range(20):
            producer.publish(Message(arena.targets[0], value=b"before"), txn_id=f"before-{number}")
        assert 0 == topics(arena, *close, capsys=capsys)[0]
        wait_until(lambda: refuses(producer), within=20, what="the producer refuses")
        assert (0, False) == accepting(arena, capsys)
        assert 0 == topics(arena, *drain, capsys=capsys)[0]
    for words in rest:
        code, out, err = topics(arena, *words, capsys=capsys)
        assert 0 == code, (words, out, err)
    again, found = topics_json(arena, "widen", "--partitions", "16", capsys=capsys)
    assert (0, {}) == (again, found["widened"])

    with coordinating(arena), producing(arena) as producer:
        results = [
            producer.publish(Message(arena.targets[0], value=b"after"), txn_id=f"after-{number}")
            for number in range(60)
        ]
        wait_until(lambda: len(_values(arena)) >= 80, within=30, what="all messages are visible")

    assert (20, 60) == (_values(arena).count(b"before"), _values(arena).count(b"after"))
    assert max(result.half_partition for result in results) > 1
    assert {} == arena.doubt().quarantined
    asked = ("-b", arena.servers, "-n", arena.namespace, "--since", "1h", "--json")
    code, out, _ = run_txlayer("verify", *asked, capsys=capsys)
    assert (0, {"ok": 80}) == (code, json.loads(out)["verdicts"])


@pytest.mark.promise("P7")
def test_who_answered_before_a_widening_answers_for_the_new_partitions_too(arena: Arena, capsys: Capsys) -> None:
    """The page leaves the services running that answer check-backs."""
    responder = TransactionalProducer(
        bootstrap_servers=arena.servers,
        group="shop",
        namespace=arena.namespace,
        check=lambda _: Resolution.COMMIT,
        client_settings={"topic.metadata.refresh.interval.ms": 1_000},
    )
    with responder:
        code, _, err = topics(arena, "widen", "--partitions", "8", "--yes", capsys=capsys)
        assert 0 == code, err
        with coordinating(arena), producing(arena) as producer:
            for number in range(20):
                immunity = timedelta(milliseconds=1)
                with producer.transaction(f"undecided-{number}", ordering_key=None, immunity=immunity) as tx:
                    tx.send(arena.targets[0], value=b"v")
                    tx.prepare()
                    tx.unknown()
            wait_until(lambda: len(_values(arena)) == 20, within=60, what="all are decided")


def test_an_interrupted_widening_hurts_nobody_and_is_finished_by_the_same_command(
    arena: Arena, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coordinating(arena), producing(arena) as producer:
        producer.publish(Message(arena.targets[0], value=b"before"))
        code, out, err = topics(arena, "drain", capsys=capsys)
        assert 0 == code, (out, err)
    config = ClientConfig(bootstrap_servers=arena.servers, namespace=arena.namespace)
    with KafkaAdmin(config) as admin:
        admin.widen({arena.topics.doubt: 4, arena.topics.op: 4})

    with pytest.raises(TopicMismatchError), producing(arena):
        pass
    with pytest.raises(TopicMismatchError), coordinating(arena):
        pass
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert 2 == topics(arena, "widen", "--partitions", "4", "--json", capsys=capsys)[0]
    code, found = topics_json(arena, "widen", "--partitions", "4", "--yes", capsys=capsys)

    assert (0, {arena.topics.half: 4}) == (code, found["widened"])
    with coordinating(arena), producing(arena) as producer:
        for number in range(20):
            producer.publish(Message(arena.targets[0], value=b"after"), txn_id=f"after-{number}")
        wait_until(lambda: len(_values(arena)) >= 21, within=30, what="all are visible")
    assert 21 == len(_values(arena))


def test_a_namespace_is_moved_as_the_page_says(arena: Arena, capsys: Capsys) -> None:
    apply, drain = commands("Another namespace")
    new = unique_name("ns")
    apply = [new if word == "shop" else word for word in apply]

    with coordinating(arena):
        with producing(arena) as old:
            old.publish(Message(arena.targets[0], value=b"before"))
        assert 0 == topics(arena, *apply, capsys=capsys)[0]
        with coordinating(arena, new), producing(arena, new) as producer:
            producer.publish(Message(arena.targets[0], value=b"after"))
            assert 0 == topics(arena, *drain, capsys=capsys)[0]
            wait_until(lambda: len(_values(arena)) >= 2, within=30, what="both are visible")

    assert [b"after", b"before"] == sorted(_values(arena))


def _values(arena: Arena) -> list[bytes]:
    return [record.value or b"" for record in arena.logs().real]
