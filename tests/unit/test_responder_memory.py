"""Two instances of one group on a cluster in memory: shares, limits, an outage, a crash."""

from collections.abc import Iterator

import pytest

from tests.support.producer_stage import limit, question
from tests.support.waiting import wait_until
from txlayer.adapters.memory import MemoryKafka, ThreadWorld
from txlayer.core import codec
from txlayer.core.messages import COMMIT, CheckRecord, OpMessage, Resolution
from txlayer.producer.check_handlers import CheckRequest
from txlayer.producer.producer import TransactionalProducer
from txlayer.producer.questions import ResponderStats

PATIENCE_S = 20.0
CHECK, OP = "txlayer.check", "txlayer.op"
PARTITION_COUNT = 4


class Group:
    """Producers of the group `g`, each a client of its own."""

    def __init__(self) -> None:
        self.world = ThreadWorld(seed=1)
        self.kafka = MemoryKafka(self.world)
        self.kafka.create_namespace()
        self.producers: list[TransactionalProducer] = []
        self.asked: list[list[str]] = []

    def add(self) -> TransactionalProducer:
        """One more that answers."""
        asked: list[str] = []
        name = f"instance-{len(self.producers)}"

        def check(request: CheckRequest) -> Resolution:
            asked.append(request.txn_id)
            return COMMIT

        made = TransactionalProducer(
            bootstrap_servers=self.kafka.bootstrap_servers,
            group="g",
            check=check,
            connect=lambda config: self.kafka.connect_producer(config, client=name),
        )
        self.producers.append(made)
        self.asked.append(asked)
        made.start()
        return made

    def stats(self) -> list[ResponderStats]:
        found = [producer.responder_stats() for producer in self.producers]
        return [stats for stats in found if stats is not None]

    def settle(self) -> None:
        """Wait until they share the check topic."""

        def is_shared() -> bool:
            owned = sorted(p for stats in self.stats() for p in stats.own_partitions)
            return owned == list(range(PARTITION_COUNT))

        wait_until(is_shared, within=PATIENCE_S, what="every partition has its instance")

    def ask(self, *checks: CheckRecord) -> None:
        for number, check in enumerate(checks):
            value = codec.encode_check(check)
            self.kafka.append(CHECK, value, partition=number % PARTITION_COUNT)

    def answered(self) -> list[str]:
        lines = [line for record in self.kafka.records(OP) for line in (record.value() or b"").decode().split("\n")]
        found = [codec.decode_op(line) for line in lines]
        return sorted(op.key.split("/")[0] for op in found if isinstance(op, OpMessage))

    def wait_for(self, *names: str) -> None:
        wait_until(lambda: self.answered() == sorted(names), within=PATIENCE_S, what=f"{len(names)} answers")


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    for producer in made.producers:
        producer.close()


def test_each_question_is_answered_by_one_instance(group: Group) -> None:
    group.add()
    group.add()
    group.settle()

    names = [f"t{n}" for n in range(40)]
    group.ask(*(question(name) for name in names))

    group.wait_for(*names)
    assert sorted(names) == sorted(group.asked[0] + group.asked[1])
    assert all(group.asked)


def test_a_limit_reaches_both(group: Group) -> None:
    both = [group.add(), group.add()]
    group.settle()

    group.ask(limit("on"))

    def are_limited() -> bool:
        engines = [producer._engine for producer in both]
        return all(engine is not None and engine.limit is not None for engine in engines)

    wait_until(are_limited, within=PATIENCE_S, what="both are limited")


def test_an_outage_longer_than_a_session_is_survived(group: Group) -> None:
    group.add()
    group.settle()
    group.ask(question("before"))
    group.wait_for("before")

    group.kafka.stop()
    group.world.advance(ms=60_000)
    group.kafka.start()
    group.settle()
    group.ask(question("after"))

    group.wait_for("after", "before")


def test_an_instance_that_is_cut_off_loses_its_questions_to_the_other(group: Group) -> None:
    group.add()
    group.add()
    group.settle()
    group.world.faults.cut_off("instance-1")
    group.world.advance(ms=60_000)

    def has_everything() -> bool:
        return PARTITION_COUNT == len(group.stats()[0].own_partitions)

    wait_until(has_everything, within=PATIENCE_S, what="the other one has everything")
    group.ask(*(question(f"t{n}") for n in range(8)))
    group.wait_for(*(f"t{n}" for n in range(8)))
    assert 8 == len(group.asked[0])
    group.world.faults.reconnect("instance-1")
