"""Questions about transactions whose resolution never came, from a real coordinator over a real broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]  # its stub forgets them

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.crafted import GROUP, Crafted
from tests.support.doubt import read_doubt
from tests.support.logs import header, read_log
from tests.support.processes import CoordinatorProcess
from tests.support.waiting import wait_until
from txlayer.config import SystemTopics
from txlayer.core import codec
from txlayer.core.messages import CheckKind, CheckRecord, DoubtSummary, OpMessage, Resolution, Source

CHECK_PARTITION_COUNT = 4


class Listener:
    """A member of a producer group's check group who reads all partitions from their beginning."""

    def __init__(self, servers: str, topics: SystemTopics, group: str) -> None:
        self._group = group
        self._topic = topics.check
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": topics.check_group(group),
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
            }
        )
        self._consumer.subscribe([self._topic], on_assign=self._read_all)
        self.heard: list[CheckRecord] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def _read_all(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        consumer.assign([TopicPartition(self._topic, p, 0) for p in range(CHECK_PARTITION_COUNT)])

    def listen(self, kind: CheckKind = CheckKind.QUESTION) -> list[CheckRecord]:
        """Everything of one kind that the group was told so far."""
        for record in self._consumer.consume(1_000, 0.1):
            check = codec.decode_check(record.value())
            if isinstance(check, CheckRecord) and check.producer_group == self._group:
                self.heard.append(check)
        return [check for check in self.heard if check.kind is kind]


pytestmark = [pytest.mark.kafka, pytest.mark.promise("P7")]

COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN
QUICK = {"session_timeout": "1.5s", "check_immunity": "500ms", "check_interval": "500ms", "check_interval_max": "1s"}


@pytest.fixture
def arena(broker: Broker) -> Arena:
    return make_arena(broker.bootstrap_servers)


@pytest.fixture
def crafted(arena: Arena) -> Crafted:
    return Crafted(arena.servers, arena.topics, partition_count=arena.partition_count)


@contextmanager
def coordinator(arena: Arena, log_file: Path, **settings: str) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(
        arena.servers, arena.namespace, log_file=log_file, settings={**QUICK, **settings}
    ) as started:
        started.wait_for("partitions.taken_over")
        yield started


def summaries(arena: Arena) -> dict[str, DoubtSummary]:
    return read_doubt(arena.servers, arena.topics.doubt).summaries


def visible(arena: Arena) -> list[str]:
    target = arena.targets[0]
    records = read_log(arena.servers, [target])[target]
    return sorted((header(r.headers, "txl-id") or b"").decode() for r in records)


@pytest.mark.fault("producer: is killed between the local commit and its op")
def test_who_is_asked_answers_with_an_op_and_is_not_asked_again(arena: Arena, crafted: Crafted, tmp_path: Path) -> None:
    placed = crafted.half("left/00000001", arena.targets[0])
    with coordinator(arena, tmp_path / "log"), Listener(arena.servers, arena.topics, GROUP) as group:
        wait_until(group.listen, within=30, what="the group is asked")
        question = group.heard[0]
        crafted.op(placed, COMMIT, source=Source.CHECK, check_number=question.number)
        wait_until(lambda: visible(arena) == ["left"], within=30, what="it is forwarded")
        arena.wait_until_applied(within=30)
        asked_count = len(group.listen())
        assert (placed.key, placed.partition, placed.offsets[-1], 1) == (
            question.key,
            question.partition,
            question.last_offset,
            question.number,
        )
        assert arena.targets[0] == question.text
        assert asked_count == len(group.listen())
    assert {} == summaries(arena)


@pytest.mark.fault("check handler: no instance of a group runs for hours")
def test_a_group_without_members_is_not_asked_until_somebody_comes(
    arena: Arena, crafted: Crafted, tmp_path: Path
) -> None:
    crafted.half("left/00000001", arena.targets[0])
    with coordinator(arena, tmp_path / "log", doubt_after="2s"):
        wait_until(lambda: len(summaries(arena)) == 1, within=30, what="it is old enough for doubt")
        assert [] == read_log(arena.servers, [arena.topics.check])[arena.topics.check]

        with Listener(arena.servers, arena.topics, GROUP) as group:
            wait_until(group.listen, within=30, what="the group is asked")
            assert 1 == group.heard[0].number


def test_the_policy_rollback_is_a_line_of_the_op_log(arena: Arena, crafted: Crafted, tmp_path: Path) -> None:
    placed = crafted.half("left/00000001", arena.targets[0])
    kept = crafted.half("kept/00000001", arena.targets[0], group="patient")
    with coordinator(
        arena,
        tmp_path / "log",
        transaction_age_max="1s",
        unresolved="rollback",
        group_policies="patient.unresolved=park",
    ):
        wait_until(
            lambda: {kept.key: "too-old"} == {k: s.reason for k, s in summaries(arena).items()},
            within=30,
            what="one is parked, the other not on doubt",
        )
        # Each partition has its own turn: this one's may come behind the other's.
        wait_until(lambda: said_in(arena), within=30, what="the other is rolled back")

    assert [(ROLLBACK, placed.key, Source.POLICY, "too-old")] == said_in(arena)
    assert {kept.key} == set(summaries(arena))
    assert [] == visible(arena)


def said_in(arena: Arena) -> list[tuple[Resolution, str, Source, str]]:
    """(resolution, key, source, reason) of every line of op."""
    lines = [
        codec.decode_op(line)
        for record in read_log(arena.servers, [arena.topics.op])[arena.topics.op]
        for line in (record.value or b"").decode().splitlines()
    ]
    return [(op.resolution, op.key, op.source, op.reason) for op in lines if isinstance(op, OpMessage)]


@pytest.mark.promise("P4")
def test_a_late_commit_after_a_rollback_by_check_is_refused_and_the_group_is_told(
    arena: Arena, crafted: Crafted, tmp_path: Path
) -> None:
    placed = crafted.half("left/00000001", arena.targets[0])
    with coordinator(arena, tmp_path / "log") as started, Listener(arena.servers, arena.topics, GROUP) as group:
        wait_until(group.listen, within=30, what="the group is asked")
        crafted.op(placed, ROLLBACK, source=Source.CHECK, check_number=1)
        crafted.op(placed, COMMIT)
        wait_until(lambda: group.listen(CheckKind.REFUSED), within=30, what="the refusal is told")
        (told,) = group.listen(CheckKind.REFUSED)

        assert (placed.key, "COMMIT by producer") == (told.key, told.text)
        started.wait_for("transaction.conflict")
    assert [] == visible(arena)


@pytest.mark.fault("check handler: the check topic refuses a question as too large")
@pytest.mark.promise("P11")
def test_a_question_larger_than_its_topic_allows_names_no_topics_and_stops_nobody(
    arena: Arena, crafted: Crafted, tmp_path: Path
) -> None:
    small = ConfigEntry("max.message.bytes", "20000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, arena.topics.check, incremental_configs=[small])
    admin = AdminClient({"bootstrap.servers": arena.servers, "log_level": 0})
    admin.incremental_alter_configs([topic])[topic].result(30)
    crafted.half("wide/00000001", *(f"{n:05}{'x' * 240}" for n in range(200)))
    with coordinator(arena, tmp_path / "log"), Listener(arena.servers, arena.topics, GROUP) as group:
        wait_until(group.listen, within=40, what="the group is asked")
        assert ("wide/00000001", "") == (group.heard[0].key, group.heard[0].text)
        placed = crafted.half("left/00000001", arena.targets[0])
        crafted.op(placed, COMMIT)
        wait_until(lambda: visible(arena) == ["left"], within=30, what="it is forwarded")
