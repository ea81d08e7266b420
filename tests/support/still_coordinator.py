"""A real coordinator on a cluster in memory, in a world whose clocks stand still until a test moves them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from tests.support.core_records import half_header, op_line
from tests.support.still_world import StillWorld
from txlayer.adapters.errors import Code
from txlayer.adapters.memory import MemoryKafka, RefusedError
from txlayer.adapters.memory.log import Partition
from txlayer.adapters.namespace import Namespace
from txlayer.adapters.readers import STORED_OFFSETS
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.publish import Publisher
from txlayer.core.codec import HALF_HEADER, decode_summary, parse_doubt_key
from txlayer.core.ledger.batch import Batch
from txlayer.core.messages import DoubtSummary
from txlayer.errors import BrokerUnavailableError
from txlayer.runtime.environment import Environment, Running

T = TypeVar("T")

PARTITION_COUNT = 2
IDLE_WAIT_MAX_S = 4.0
IDLE_TURN_COUNT = 250
AT_ONCE_MAX = 3


class StillCoordinator:
    """A namespace of two partitions with the real topic `orders`, and one coordinator at a time."""

    def __init__(
        self,
        *,
        wall_skew_s: float = 0.0,
        world: StillWorld | None = None,
        make: type[Coordinator] = Coordinator,
        **settings: Any,
    ) -> None:
        self.world = world or StillWorld()
        self._make = make
        self.kafka = MemoryKafka(self.world)
        self.kafka.create_topic("orders")
        self.config = CoordinatorConfig(**settings)
        self.topics = self.config.topics
        self.wall_skew_s = wall_skew_s
        Namespace(self.kafka.admin(), topics=self.topics).apply(partition_count=PARTITION_COUNT, replication_factor=1)
        self._started_count = 0
        self.start()

    def start(self) -> None:
        """A coordinator, the first or a successor."""
        self._started_count += 1
        world = self.world
        self.environment = Environment(
            clock=world.monotonic,
            wall_clock=lambda: world.now_ms() / 1000 + self.wall_skew_s,
            sleep=lambda seconds: world.advance(ms=round(seconds * 1000)),
            draw_name=lambda: f"name-{self._started_count}-{world.passed_s}",
            keep_for_long=lambda: None,
            background=AtOnce(),
        )
        connections = self.kafka.connect_coordinator(self.config, client=f"coordinator-{self._started_count}")
        self.coordinator = self._make(self.config, connections, environment=self.environment)

    def work(self, *, seconds: float) -> None:
        """A coordinator works for so long, and leaves cleanly."""
        until_s = self.world.passed_s + seconds
        self.run(lambda: self.world.passed_s >= until_s, seconds=seconds)
        self.start()

    def run(self, should_stop: Callable[[], bool], *, seconds: float) -> None:
        """The coordinator works until then, about so long; in `IDLE_TURN_COUNT` turns or a few more when there is nothing to do."""
        self.world.idle_wait_s = min(seconds / IDLE_TURN_COUNT, IDLE_WAIT_MAX_S)
        self.coordinator.run(should_stop=should_stop)
        self.world.idle_wait_s = 0.0

    def half(
        self,
        key: str,
        *,
        partition: int = 0,
        ahead_s: float = 0.0,
        stamp_ms: int = 0,
        value: bytes = b"v",
        **header: Any,
    ) -> int:
        """A half record, appended by a broker whose clock is so far ahead; its offset. `stamp_ms` is its writer's time."""
        headers = [(HALF_HEADER, half_header(key, **header))]
        return self._at(
            ahead_s,
            lambda: self.kafka.append(
                self.topics.half, value, partition=partition, headers=headers, timestamp_ms=stamp_ms
            ),
        )

    def op(self, *lines: str, partition: int = 0, ahead_s: float = 0.0) -> int:
        """An op record, appended by a broker whose clock is so far ahead; its offset."""
        value = "\n".join(lines).encode()
        return self._at(ahead_s, lambda: self.kafka.append(self.topics.op, value, partition=partition))

    def commit(self, key: str, offset: int, *, partition: int = 0) -> None:
        """What its producer says."""
        self.op(op_line("C", key, offset), partition=partition)

    def _at(self, ahead_s: float, act: Callable[[], T]) -> T:
        self.world.advance(ms=round(ahead_s * 1000))
        result = act()
        self.world.advance(ms=round(-ahead_s * 1000))
        return result

    def refuse(self, answer: Callable[[str, list[Any]], Code | None]) -> None:
        """From now on the broker answers so to records that are written to a topic (None: it takes them)."""
        broker: Any = self.kafka.cluster
        produce = broker.produce

        def produce_or_refuse(place: Any, records: list[Any], *arguments: Any) -> Any:
            code = answer(place[0], records)
            if code is not None:
                raise RefusedError(code)
            return produce(place, records, *arguments)

        broker.produce = produce_or_refuse

    def visible(self) -> list[str]:
        """Ids of forwarded messages."""
        return [(dict(r.headers() or ())["txl-id"] or b"").decode() for r in self.kafka.records("orders")]

    def on_doubt(self) -> dict[str, DoubtSummary]:
        """The newest summaries of those that stand on doubt."""
        found: dict[str, DoubtSummary] = {}
        for record in self.kafka.records(self.topics.doubt):
            parsed = parse_doubt_key(record.key())
            if parsed is None or parsed[1] is not None:
                continue
            found.pop(parsed[0], None)
            if record.value() is not None:
                summary = decode_summary(parsed[0], record.value() or b"")
                assert isinstance(summary, DoubtSummary)
                found[parsed[0]] = summary
        return found

    def said(self) -> list[bytes]:
        """Every op line."""
        return [line for r in self.kafka.records(self.topics.op) for line in (r.value() or b"").split(b"\n")]


def appear(stage: StillCoordinator) -> None:
    """A coordinator is a member of its group, and has just stored its offsets, as one that runs does."""
    stage.kafka.create_topic(STORED_OFFSETS)
    stage.kafka.append(STORED_OFFSETS, b"offsets", timestamp_ms=stage.world.now_ms())
    member = stage.kafka.connect_coordinator(stage.config, client="running").make_group_reader()
    member.start([stage.topics.half])
    member.read(record_count_max=1, timeout_s=0.0)


def widen(kafka: MemoryKafka, topics: Sequence[str], partition_count: int) -> None:
    """Give topics so many partitions, which brokers add without asking anybody."""

    def add() -> None:
        for topic in topics:
            made = kafka.cluster.topics[topic]
            while (number := len(made.partitions)) < partition_count:
                made.partitions.append(Partition(made.settings))
                kafka.cluster.partitions[topic, number] = made.partitions[number]

    kafka.do(add)


def narrow(kafka: MemoryKafka, topic: str, partition_count: int) -> None:
    """Leave a topic so many partitions, as if it was deleted and made anew at once."""

    def remove() -> None:
        made = kafka.cluster.topics[topic]
        while len(made.partitions) > partition_count:
            made.partitions.pop()
            del kafka.cluster.partitions[topic, len(made.partitions)]

    kafka.do(remove)


class RefusedTopic:
    """A topic to whose writers the broker answers with this code as long as it `is_refused`."""

    def __init__(self, stage: StillCoordinator, topic: str, code: Code) -> None:
        self.is_refused = True
        stage.refuse(lambda name, _records: code if self.is_refused and name == topic else None)


def seen_by(look: Callable[[list[Batch]], None]) -> type[Coordinator]:
    """Coordinators that show `look` what one Kafka transaction will have, before they begin it."""

    class Shown(Publisher):
        def publish(self, batches: Sequence[tuple[int, Batch]], *rest: Any, **named: Any) -> dict[int, dict[str, int]]:
            look([batch for _, batch in batches])
            return super().publish(batches, *rest, **named)

    class ShowingCoordinator(Coordinator):
        make_publisher = Shown

    return ShowingCoordinator


def slow_for(count: Callable[[Batch], int]) -> type[Coordinator]:
    """Coordinators whose broker takes no more than three of what is counted within the time-out."""

    def look(batches: list[Batch]) -> None:
        if sum(map(count, batches)) > AT_ONCE_MAX:
            raise BrokerUnavailableError("not acknowledged in time")

    return seen_by(look)


class AtOnce:
    """Runs a call at once, in the caller's own thread."""

    def start(self, call: Callable[[], T], *, name: str) -> Running[T]:
        """It is over when this returns."""
        del name
        done: Future[T] = Future()
        try:
            done.set_result(call())
        except Exception as exc:  # noqa: BLE001 - whoever asks for the result gets it
            done.set_exception(exc)
        return done

    def run_parallel(self, calls: Sequence[Callable[[], Any]]) -> None:
        """One after the other."""
        for call in calls:
            call()
