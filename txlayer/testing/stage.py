"""`Stage`: a namespace, its coordinator and topics for one test, and assertions about them."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from logging.handlers import BufferingHandler
from types import EllipsisType, TracebackType
from typing import Any, Self, TypeVar

from txlayer.adapters.connect import CoordinatorConnections, connect_coordinator
from txlayer.adapters.namespace import Namespace
from txlayer.adapters.ports import TopicPartition, TransactionalWriter
from txlayer.adapters.readers import records_of
from txlayer.adapters.telemetry import fields_of
from txlayer.config import CoordinatorConfig, seconds
from txlayer.consumer.context import ReceivedMessage
from txlayer.coordinator.loop import Coordinator
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import Headers, txn_id_of
from txlayer.core.topics import CreateTopic
from txlayer.errors import BrokerUnavailableError, ConfigError, LifecycleError, TopicMismatchError
from txlayer.operate.topics import GroupTopics
from txlayer.operate.unsettled import PARKED, Overview, UnsettledTransaction
from txlayer.producer.producer import TransactionalProducer
from txlayer.runtime.environment import REAL
from txlayer.testing.access import KafkaAccess, unique_name

POLL_S = 0.02

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, within: timedelta | float, what: str) -> T:
    """The first true value of `condition()`; fails after `within` (a number: seconds) with the last value seen.

    An exception of `condition` is not caught: a state that is expected for a while belongs into its value.
    """
    deadline = time.monotonic() + seconds(within)
    while not (seen := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds(within):g} s, last seen: {seen!r}")
        time.sleep(POLL_S)
    return seen


def comes_true(condition: Callable[[], bool], *, within: timedelta | float, poll_s: float = POLL_S) -> bool:
    """Whether `condition()` became true `within` so long (a number: seconds); it is called at least once."""
    deadline = time.monotonic() + seconds(within)
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


LOGGER = logging.getLogger("txlayer.coordinator")

START_S = 30.0  # a group of real brokers may still wait for the session of a member that died
STOP_S = 30.0
IN_TESTS = replace(REAL, keep_for_long=lambda: None)  # what else is in the process of a test is none of its business


class RunningCoordinator:
    """Runs from `with` to its end; its error is raised there, and by `wait_for`.

    Args:
        config: its settings.
        connections: its cluster; None: the real one that `config` names. They are closed with it.
        within: how long it may take to own partitions; a number: seconds.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        connections: CoordinatorConnections | None = None,
        *,
        within: timedelta | float = START_S,
    ) -> None:
        self._within = within
        self.coordinator = Coordinator(config, connections or connect_coordinator(config), environment=IN_TESTS)
        self.failure: BaseException | None = None
        self._log = BufferingHandler(sys.maxsize)  # of every coordinator of this process
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def __enter__(self) -> Self:
        self._level = LOGGER.level
        LOGGER.addHandler(self._log)
        LOGGER.setLevel(logging.INFO)
        self._thread.start()
        try:
            self.wait_for("partitions.taken_over", within=self._within)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._end()
        assert not self._thread.is_alive(), "the coordinator does not end"
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise the error that ended it, if there is one."""
        if self.failure is not None:
            raise self.failure

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What it logged: the fields, with the name as `event`."""
        found = [{"event": record.getMessage(), **record.__dict__} for record in self._log.buffer]
        return [event for event in found if name in (None, event["event"])]

    def wait_for(self, name: str, *, within: timedelta | float = 30) -> None:
        """Wait until it logged this."""

        def logged() -> bool:
            self.check()
            return bool(self.events(name))

        wait_until(logged, within=within, what=name)

    def trouble(self) -> list[str]:
        """Its warnings and errors, a line each: what held back or refused a transaction."""
        return [
            " ".join([record.getMessage(), *(f"{name}={value}" for name, value in fields_of(record).items())])
            for record in self._log.buffer
            if record.levelno >= logging.WARNING
        ]

    def _end(self) -> None:
        self._is_stopping.set()
        self._thread.join(STOP_S)
        LOGGER.removeHandler(self._log)
        LOGGER.setLevel(self._level)

    def _run(self) -> None:
        try:
            self.coordinator.run(should_stop=self._is_stopping.is_set)
        except BaseException as exc:  # noqa: BLE001 - raised where the block ends
            self.failure = exc


# --- the stage -------------------------------------------------------------------------------------------------------


SHOWN_COUNT_MAX = 20  # messages in the text of a failure: a test that published more than these is read at their end
SHOWN_LENGTH_MAX = 200  # characters of a key or value there
READ_PATIENCE_S = 10.0  # no record of what must be there for so long: the broker does not answer any more

Text = str | bytes
Wanted = Text | None | EllipsisType  # What a key or value must be; `...`: anything. Text is compared as UTF-8.


@dataclass(frozen=True, slots=True)
class Expected:
    """A description of messages: a message must match all of it."""

    value: Wanted = ...
    key: Wanted = ...
    headers: Mapping[str, Text | None] = field(default_factory=dict)
    """Each must be there with this value; others may be there too."""
    txn_id: str | None = None
    where: Callable[[ReceivedMessage], bool] | None = None

    def fits(self, message: ReceivedMessage) -> bool:
        if self.txn_id is not None and message.txn_id != self.txn_id:
            return False
        found = dict(message.headers)
        return (
            _is(self.value, message.raw_value)
            and _is(self.key, message.key)
            and all(n in found and _is(v, found[n]) for n, v in self.headers.items())
            and (self.where is None or self.where(message))
        )

    def __str__(self) -> str:
        said = [
            f"{name}={_short(_bytes(wanted))}"
            for name, wanted in (("key", self.key), ("value", self.value))
            if not isinstance(wanted, EllipsisType)
        ]
        said += [f"header {n}={_short(_bytes(v))}" for n, v in self.headers.items()]
        said += [f"txn_id={self.txn_id}"] if self.txn_id is not None else []
        said += ["where the given function says so"] if self.where is not None else []
        return " ".join(said) or "any message"


class TopicView:
    """Everything that is visible on one topic, read further each time; for one thread."""

    def __init__(self, topic: str, connections: CoordinatorConnections) -> None:
        self.topic = topic
        self._connections = connections
        self._next: dict[TopicPartition, int] = {}
        self._records: dict[TopicPartition, list[Any]] = {}
        self._reader = connections.make_reader("read_committed")

    def close(self) -> None:
        self._reader.close()

    def messages(self) -> list[ReceivedMessage]:
        """All that is visible now, partition by partition in the order of offsets."""
        ends = self._connections.end_offsets(self._partitions())
        ranges = {tp: (self._next.get(tp, 0), end) for tp, end in ends.items()}
        for record in records_of(self._reader, ranges, patience_s=READ_PATIENCE_S):
            self._records.setdefault((record.topic(), record.partition()), []).append(record)
        self._next.update(ends)
        return [ReceivedMessage(r) for tp in sorted(self._records) for r in self._records[tp]]

    def is_hanging(self, reach: Mapping[TopicPartition, int]) -> bool:
        """True while an open Kafka transaction hides what is before `reach`."""
        ends = self._connections.end_offsets(list(reach))
        return any(ends[tp] < reach[tp] for tp in reach)

    def reach(self) -> dict[TopicPartition, int]:
        """Where each partition ends now, with what is not visible yet."""
        return self._connections.end_offsets(self._partitions(), is_committed=False)

    def _partitions(self) -> list[TopicPartition]:
        limits = self._connections.topic_limits(self.topic)
        if limits is None:
            raise TopicMismatchError("no such topic; Stage.topic() creates one", topic=self.topic, found="none")
        return [(self.topic, p) for p in range(limits.partition_count)]


def shown(messages: Sequence[ReceivedMessage]) -> str:
    """Messages as lines for people; the last ones when there are many."""
    if not messages:
        return "  nothing"
    left_out = len(messages) - SHOWN_COUNT_MAX
    lines = [f"  ({left_out} before these)"] if left_out > 0 else []
    return "\n".join([*lines, *(_line(m) for m in messages[-SHOWN_COUNT_MAX:])])


def _line(message: ReceivedMessage) -> str:
    said = [
        f"  {message.topic}-{message.partition}@{message.offset}",
        f"key={_short(message.key)}",
        f"value={_short(message.raw_value)}",
    ]
    said += [f"header {n}={_short(v)}" for n, v in message.user_headers]
    said += [f"txn_id={message.txn_id}"] if message.txn_id is not None else []
    return " ".join(said)


def _short(content: bytes | None) -> str:
    text = repr(content)
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[:SHOWN_LENGTH_MAX]}…"


def _bytes(wanted: Text | None) -> bytes | None:
    return wanted.encode() if isinstance(wanted, str) else wanted


def _is(wanted: Wanted, found: bytes | None) -> bool:
    return isinstance(wanted, EllipsisType) or _bytes(wanted) == found


def unsettled(connections: CoordinatorConnections) -> list[UnsettledTransaction]:
    """Every transaction that is neither settled nor parked, as the logs say up to their ends of now.

    One that is decided counts until the coordinator has carried it out and stored that.
    """
    return [s for s in Overview(connections).unsettled() if s.state not in PARKED]


def _unsettled_line(found: UnsettledTransaction) -> str:
    txn = found.txn
    where = "doubt" if txn.is_in_doubt else f"half {found.partition}:{txn.first_offset}"
    age_s = max(time.time() - txn.appended_ms / 1000, 0)
    topics = ", ".join(topic for topic in txn.topics if topic)
    return (
        f"{txn_id_of(txn.key)}: {found.state}, {_WAITS.get(found.state, 'for the coordinator')}; "
        f"group {txn.group}, {txn.count} messages for {topics}, in {where}, {age_s:.1f} s old"
    )


_WAITS = {
    TxnState.OPEN.value: "no commit or rollback yet",
    TxnState.WAITING.value: "committed, waits for an earlier one of its key",
    TxnState.HELD.value: "committed, and its topic refuses it",
}

PARTITION_COUNT = 2  # of half, op and doubt: two show what several do, and are made and taken over sooner than eight
WITHIN_S = 10.0
"""How long assertions wait; on real brokers a message is visible some 20 ms after its commit, on a busy machine later."""
LOOK_S = 0.05
_WRITE_S = 30.0
_WRITER_BATCH_BYTES = 1_000_000


class Stage:
    """A namespace of its own on some Kafka, with a coordinator that runs as long as the `with` block.

    ::

        with Stage(memory_access(MemoryKafka())) as stage:
            orders = stage.topic("orders")
            sell(stage.producer(group="shop"), orders)
            stage.assert_published(orders, key="customer-7")

    For the test's own thread; producers and consumers made with it may run anywhere. At the end producers are closed,
    then the coordinator; on brokers that are kept, its topics and groups are removed, too.

    Args:
        kafka: where.
        partition_count: of half, op and doubt.
        settings: of the coordinator, by their names in `CoordinatorConfig`: `check_immunity`, `doubt_after`, …
    """

    def __init__(
        self, kafka: KafkaAccess, *, partition_count: int = PARTITION_COUNT, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.kafka = kafka
        self.namespace = unique_name("tests")
        self._config = CoordinatorConfig(**{**self._where(), **(settings or {})})
        self._partition_count = partition_count
        self._topics: list[str] = []
        self._made: list[str] = []
        self._names: list[str] = []
        self._views: dict[str, TopicView] = {}
        self._opened = ExitStack()
        self._coordinator: RunningCoordinator | None = None
        self._plain_writer: TransactionalWriter | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._coordinator is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    def start(self) -> None:
        """Create the namespace and start its coordinator; when it fails, nothing is left running.

        Raises:
            ConfigError, UsageError, BrokerUnavailableError, NotAuthorisedError: the brokers cannot be used.
        """
        with ExitStack() as begun:
            with closing(self.kafka.make_admin()) as admin:
                admin.topic_names()  # brokers that do not answer are not asked to remove anything, either
                begun.callback(self._remove)
                self._made += sorted(self._config.topics.all)
                Namespace(admin, topics=self._config.topics).apply(partition_count=self._partition_count)
            self._looking = self.kafka.connect_coordinator(self._config)
            begun.callback(self._looking.close)
            running = RunningCoordinator(self._config, self.kafka.connect_coordinator(self._config))
            self._coordinator = begun.enter_context(running)
            self._opened = begun.pop_all()

    def close(self) -> None:
        """End everything; may be repeated.

        Raises:
            TxLayerError: what ended the coordinator, or a producer that could not bring its work to an end.
        """
        self._opened.close()

    @property
    def coordinator(self) -> RunningCoordinator:
        """The running coordinator; its `events` are what it logged."""
        if self._coordinator is None:
            raise LifecycleError("start it first, or use `with`", state="new")
        return self._coordinator

    # --- what the code under test is given ----------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' address."""
        return self.kafka.bootstrap_servers

    @property
    def producer_options(self) -> dict[str, Any]:
        """What `TransactionalProducer` and its asyncio twin take, beside their group, to work here."""
        return {**self._where(), "connect": self.kafka.connect_producer}

    @property
    def consumer_options(self) -> dict[str, Any]:
        """What `OrderedConsumer` and the others take, beside group and topics, to work here."""
        return {**self._where(), "connect": self.kafka.connect_consumer}

    def unique(self, prefix: str) -> str:
        """A unique name for a group or an id; a consumer group of this name is removed at the end."""
        name = unique_name(prefix)
        self._names.append(name)
        return name

    def topic(
        self,
        prefix: str = "topic",
        *,
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
        consumer_group: str | None = None,
    ) -> str:
        """Create a topic with a unique name that begins with `prefix`; returns the name.

        With a `consumer_group` the topics for its dead letters and replays are there, too.

        Raises:
            UsageError: the cluster refuses its form. Nothing was created.
        """
        name = unique_name(prefix)
        wanted = CreateTopic(name, partitions, None, dict(settings or {}), why="a test's")
        with closing(self.kafka.make_admin()) as admin:
            self._made += admin.create([wanted])
            self._topics.append(name)
            if consumer_group is not None:
                group = GroupTopics(admin, group=consumer_group, topics=[name])
                self._made += [change.topic for change in group.plan() if isinstance(change, CreateTopic)]
                group.apply()
        return name

    def producer(self, group: str = "tests", **settings: Any) -> TransactionalProducer:
        """A producer that is started, and closed at the end; `settings` are further arguments of its class."""
        made = TransactionalProducer(**{**self.producer_options, "group": group, **settings})
        return self._opened.enter_context(made)

    def write(
        self,
        topic: str,
        value: Text | None,
        *,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int = -1,
    ) -> None:
        """Write one message as any producer outside txlayer might; it is visible when this returns.

        Args:
            topic: where.
            value: bytes, or text as UTF-8.
            key: the same.
            headers: as they are.
            partition: -1: the key's.

        Raises:
            TxLayerError: it is not there.
        """
        writer = self._writer()
        writer.begin()
        writer.produce(topic, _bytes(value), _bytes(key), partition, None, None, 0, list(headers or ()))
        writer.commit(timeout_s=_WRITE_S)
        view, reach = self._view(topic), self._view(topic).reach()
        if not comes_true(lambda: not view.is_hanging(reach), within=_WRITE_S):
            raise BrokerUnavailableError("the end of a Kafka transaction was not written")

    # --- what became of it --------------------------------------------------------------------------------------------

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """All that a `read_committed` reader sees now, partition by partition in the order of offsets."""
        return self._view(topic).messages()

    def assert_published(
        self,
        topic: str,
        *,
        value: Wanted = ...,
        key: Wanted = ...,
        headers: Mapping[str, Text | None] | None = None,
        txn_id: str | None = None,
        where: Callable[[ReceivedMessage], bool] | None = None,
        count: int = 1,
        within: timedelta | float = WITHIN_S,
    ) -> list[ReceivedMessage]:
        """Assert that exactly `count` messages of this description become visible `within` so long (a number: seconds), and return them.

        More than `count` fail at once. What comes after this returned is not seen; `wait_until_settled` before it makes
        sure that nothing does.
        """
        __tracebackhide__ = True
        if count < 1:
            right = "1 or more; assert_nothing_published asks for none"
            raise ConfigError("that there is none is another question", name="count", value=count, expected=right)
        expected = Expected(value=value, key=key, headers=headers or {}, txn_id=txn_id, where=where)
        view = self._view(topic)
        found: list[ReceivedMessage] = []

        def is_there() -> bool:
            self.coordinator.check()
            found[:] = [message for message in view.messages() if expected.fits(message)]
            return len(found) >= count

        is_enough = comes_true(is_there, within=within, poll_s=LOOK_S)
        if len(found) == count and is_enough:
            return found
        late = "" if is_enough else f" within {seconds(within):g} s"
        raise AssertionError(
            f"published {len(found)} times{late}, not {count}: {expected}\n"
            f"visible on {topic}:\n{shown(view.messages())}{self._why_not()}"
        )

    def assert_nothing_published(
        self,
        *topics: str,
        value: Wanted = ...,
        key: Wanted = ...,
        headers: Mapping[str, Text | None] | None = None,
        txn_id: str | None = None,
        where: Callable[[ReceivedMessage], bool] | None = None,
        within: timedelta | float = WITHIN_S,
    ) -> None:
        """Assert that no message of this description is visible, or will become visible from what is prepared so far.

        It waits until every transaction of the namespace is settled (or parked) and carried out, and until no open Kafka
        transaction hides anything, and looks then: no length of time is guessed. When something stays undecided for
        `within` it fails, because the outcome is not known. What your code has not prepared yet it cannot know either:
        call it when your code has returned. Without `topics` it looks at all that `topic` created; what else describes a
        message is as in `assert_published`.
        """
        __tracebackhide__ = True
        if not topics and not self._topics:
            raise ConfigError("nothing to look at", name="topics", expected="a topic's name")
        expected = Expected(value=value, key=key, headers=headers or {}, txn_id=txn_id, where=where)
        self.wait_until_settled(within=within)
        for topic in topics or self._topics:
            view = self._view(topic)
            reach = view.reach()
            if not comes_true(lambda v=view, r=reach: not v.is_hanging(r), within=within):  # type: ignore[misc]  # lambdas take no types
                raise AssertionError(f"a Kafka transaction on {topic} stays open: what it hides is not known")
            found = [message for message in view.messages() if expected.fits(message)]
            if found:
                raise AssertionError(f"published on {topic}, though nothing should be: {expected}\n{shown(found)}")

    def wait_until_settled(self, *, within: timedelta | float = WITHIN_S) -> None:
        """Wait until every transaction that is prepared by now is settled or parked, and the coordinator has stored that."""
        __tracebackhide__ = True

        def is_settled() -> bool:
            self.coordinator.check()
            return not unsettled(self._looking)

        if not comes_true(is_settled, within=within, poll_s=LOOK_S):
            raise AssertionError(f"not settled within {seconds(within):g} s{self._why_not()}")

    def _why_not(self) -> str:
        said = ""
        if open_ones := unsettled(self._looking):
            said += "\nnot settled:\n" + "\n".join(f"  {_unsettled_line(each)}" for each in open_ones)
        if trouble := self.coordinator.trouble():
            said += "\nthe coordinator says:\n" + "\n".join(f"  {line}" for line in trouble[-5:])
        return said

    # --- how ----------------------------------------------------------------------------------------------------------

    def _where(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "namespace": self.namespace,
            "client_settings": self.kafka.client_settings,
            "is_insecure_allowed": self.kafka.is_insecure_allowed,
        }

    def _view(self, topic: str) -> TopicView:
        if topic not in self._views:
            self._views[topic] = self._opened.enter_context(closing(TopicView(topic, self._looking)))
        return self._views[topic]

    def _writer(self) -> TransactionalWriter:
        if self._plain_writer is None:
            self._plain_writer = self._looking.make_writer(unique_name("tests"), batch_bytes_max=_WRITER_BATCH_BYTES)
            self._opened.callback(self._plain_writer.close)
            self._plain_writer.initialise(timeout_s=_WRITE_S)
        return self._plain_writer

    def _remove(self) -> None:
        groups = [self._config.topics.coordinator_group, *self._names]
        self.kafka.remove(self._made, groups)
