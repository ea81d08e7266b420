"""What every consumer shares: registration of handlers, settings, start, stop, end. And `OrderedConsumer` and `ConcurrentConsumer`: plain
handlers on threads or in processes.
"""

import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Generic, Literal, Required, Self, TypedDict, TypeVar, Unpack, overload

from txlayer.adapters.bodies import Codec, Deserializer, function_of
from txlayer.adapters.connect import ConnectConsumer, ConsumerConnections, connect_consumer
from txlayer.adapters.telemetry import NO_TRACING, Log, Tracing
from txlayer.config import ConsumerConfig, milliseconds
from txlayer.consumer.engine import Engine
from txlayer.consumer.handlers import (
    BATCH_COUNT_MAX,
    BatchHandlerFunction,
    F,
    HandlerSet,
    Handling,
    HandlingOf,
    Interceptor,
    R,
    Registration,
    T,
)
from txlayer.consumer.lease_keeper import LeaseKeeper, LockRegistry, NoLeases
from txlayer.consumer.metrics import ConsumerStats, attempt_span
from txlayer.consumer.plan import ConsumerPlan, StartAt, check_start
from txlayer.consumer.pools import Caller, Pool, ThreadPool
from txlayer.consumer.pull import Desk, PulledMessage
from txlayer.core.dead_letters import DeadLetter
from txlayer.core.key_queue import NullKeys, QueueOrder
from txlayer.core.messages import DLQ_SUFFIX, check_group, check_topic
from txlayer.core.retry import BreakerPolicy, HandlerResult, NotBegun, RetryPolicy
from txlayer.errors import ConfigError, LifecycleError, UsageError
from txlayer.runtime.environment import draw_name, is_coroutine_function

logger = Log("txlayer.consumer")

LOOK_S = 0.1  # how often a thread that waits for the end looks for signals


B = TypeVar("B", bound=Callable[..., Any])


class ConsumerSettings(TypedDict, total=False):
    """The optional settings of a consumer; `ConsumerConfig` describes each one under the same name."""

    client_settings: Mapping[str, Any]
    is_insecure_allowed: bool
    in_flight_max: int
    worker_count: int
    record_count_max: int
    record_bytes_max: int
    attempt_count_max: int
    attempt_timeout: timedelta
    hung_handlers_max: int
    store_interval: timedelta
    store_timeout: timedelta
    metadata_bytes_max: int
    parked_keys_max: int
    revoke_timeout: timedelta
    close_timeout: timedelta
    session_timeout: timedelta
    lease_renewal: timedelta
    lease_expiry: timedelta
    kafka_transaction_timeout: timedelta
    recycle_after: timedelta
    start_timeout: timedelta
    instance_id: str


class ConsumerOptions(ConsumerSettings, total=False):
    """What every consumer takes: its settings, and what `OrderedConsumer` describes under the same names."""

    bootstrap_servers: str
    group: Required[str]
    topics: Required[Sequence[str]]
    start_at: StartAt | None
    retry: RetryPolicy | None
    breaker: BreakerPolicy | Mapping[str, BreakerPolicy] | None
    is_broadcast: bool
    interceptors: Iterable[Interceptor]
    codec: Codec | None
    key_deserializer: Deserializer | None
    key_group: Callable[[bytes | None], str] | None
    namespace: str
    connect: ConnectConsumer
    tracing: Tracing


class ConsumerService(ABC, Generic[R, B]):
    """One consumer: handlers are registered, then it runs once. Its engine has a thread of its own."""

    is_async: ClassVar[bool] = False
    keeps_order: ClassVar[bool] = True

    def __init__(
        self,
        *,
        bootstrap_servers: str = "127.0.0.1:9092",
        group: str,
        topics: Sequence[str],
        order: QueueOrder,
        null_keys: str = "free",
        start_at: StartAt | None = None,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | Mapping[str, BreakerPolicy] | None = None,
        is_broadcast: bool = False,
        interceptors: Iterable[Interceptor] = (),
        codec: Codec | None = None,
        key_deserializer: Deserializer | None = None,
        key_group: Callable[[bytes | None], str] | None = None,
        namespace: str = "txlayer",
        connect: ConnectConsumer = connect_consumer,
        tracing: Tracing = NO_TRACING,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        config = ConsumerConfig(bootstrap_servers=bootstrap_servers, namespace=namespace, **settings)
        self._name = check_group(group)
        self._is_broadcast = is_broadcast
        self._use(config)
        self._topics = check_topic_names(topics)
        self._order = order
        self._null_keys = NullKeys(one_of("null_keys", null_keys, "ordered", "free"))
        self._start_at = check_start(start_at)
        self._retry = retry
        self._breakers = breakers_of(breaker, self._topics)
        self._interceptors = check_interceptors(interceptors, is_async=self.is_async)
        self._deserializer: Deserializer | None = function_of(codec, "deserializer")
        self._key_deserializer = key_deserializer
        self._key_group = key_group
        self._connect = connect
        self._tracing = tracing
        self._handlers = HandlerSet(is_async=self.is_async, deserializer=self._deserializer)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._desk: Desk | None = None
        self._engine: Engine | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._is_failure_reported = False

    def _use(self, config: ConsumerConfig) -> None:
        """Take these settings, and the group that follows from them; ConfigError: it may be another's group."""
        instance_id, group = config.instance_id, self._name
        if self._is_broadcast:
            if "." in instance_id:
                raise ConfigError(
                    "the instance of another group may have the same group of its own",
                    name="instance_id",
                    value=instance_id,
                    expected="no dot, in a broadcast",
                )
            # Its only member gets all partitions.
            group = check_group(f"{group}.{instance_id or draw_name()}")
        if config.topics.is_own_group(group):
            raise ConfigError(
                "this group is txlayer's own: it would join the coordinators, or a producer group's check-backs",
                name="group",
                value=group,
                expected="a group of your own",
            )
        self._config, self._group = config, group

    # --- handlers -----------------------------------------------------------------------------------------------------

    @overload
    def handler(self, function: Handling[R], /) -> Callable[..., R]: ...

    @overload
    def handler(
        self,
        function: str | None = None,
        /,
        *,
        body: type[T],
        tags: str = "*",
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
    ) -> Callable[[HandlingOf[T, R]], Callable[..., R]]: ...

    @overload
    def handler(
        self,
        function: str | None = None,
        /,
        *,
        tags: str = "*",
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
    ) -> Registration[R]: ...

    def handler(
        self,
        function: Handling[R] | str | None = None,
        /,
        *,
        body: Any = None,
        tags: str = "*",
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
    ) -> Any:
        """Register a function that handles single messages; a decorator, with or without arguments.

        It is called with a `ReceivedMessage` and a `Context`, and returns nothing (or `Ack`), `Retry`, `Later` or `Reject`; an
        exception is a `Retry`, and so is any other value, whose reason then says what was returned. Of several handlers of a topic the
        first whose tags accept a message gets it; a message that none accepts counts as handled.

        With `body`, or if its first parameter is annotated with a type of your own, it is called with the body, the message and
        the context instead, as many of them as it takes. A body that cannot be read as that type makes a dead letter at once.
        The body is JSON, or what the consumer's codec makes of the value.

        Args:
            function: what is decorated, or the topic; by default every topic of the consumer.
            body: the type of the body: a dataclass, a model of pydantic or msgspec, or plain values of JSON such as
                `dict[str, int]`. None: what the first parameter is annotated with.
            tags: "TagA || TagC", or "*".
            retry: instead of the consumer's own policy; the same for all handlers of a topic.
            breaker: of this function alone, over all its topics, instead of the consumer's: other handlers of the topic go on.

        Raises:
            ConfigError: a wrong expression of tags, the wrong kind of function, one that cannot be called with what it would be
                given, or a body that cannot be read.
            LifecycleError: it runs already.
        """
        topic = None
        if isinstance(function, str):
            if function not in self._topics:
                expected = f"a function, or one of {', '.join(self._topics)}"
                raise ConfigError("no function and no topic", name="handler", value=function, expected=expected)
            function, topic = None, function
        return self._registration(function, topic=topic, tags=tags, retry=retry, body=body, breaker=breaker)

    def on_dead_letter(
        self,
        *,
        producer_group: str | None,
        topic: str | None = None,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
    ) -> Callable[[HandlingOf[DeadLetter, R]], Callable[..., R]]:
        """Register a function that hears, at least once, which consumer group gave which message up, and why; a decorator.

        It is called with the `DeadLetter`, the message that was given up and the context, as many of them as it takes, for
        dead letters in the consumer's topics `<group>.<topic>.dlq`. Attempts, retries and what it returns are as of any handler;
        a dead letter that it gives up is a dead letter of this consumer's group.

        Args:
            producer_group: only messages of this group, whose producers have `is_group_named`; None: all.
            topic: only this one; None: every dead-letter topic of the consumer.
            retry: as `handler`.
            breaker: as `handler`.

        Raises:
            UsageError: the consumer reads no dead-letter topic, or the group is not valid.
            ConfigError, LifecycleError: as `handler`.
        """
        topics = [name for name in self._topics if name.endswith(DLQ_SUFFIX) and topic in (None, name)]
        if not topics:
            raise UsageError(f"{topic or ', '.join(self._topics)}: no topic of dead letters (GROUP.TOPIC{DLQ_SUFFIX})")
        if producer_group is not None:
            check_group(producer_group)
        given = {"topics": topics, "retry": retry, "breaker": breaker, "producer_group": producer_group}
        register: Any = self._registration(None, topic=topic, body=DeadLetter, **given)
        return register  # type: ignore[no-any-return]  # the same for functions of each form

    @overload
    def batch_handler(self, function: B, /) -> B: ...

    @overload
    def batch_handler(
        self,
        function: None = None,
        /,
        *,
        topic: str | None = None,
        count_max: int = BATCH_COUNT_MAX,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
    ) -> Callable[[B], B]: ...

    def batch_handler(
        self,
        function: B | None = None,
        /,
        *,
        topic: str | None = None,
        count_max: int = BATCH_COUNT_MAX,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
    ) -> B | Callable[[B], B]:
        """Register a function that handles several messages of one key together; a decorator, as `handler`.

        In a `ConcurrentConsumer` they are messages of any keys. It is called with a list of `ReceivedMessage`, at most `count_max`, in order, and the `Context` of the first. What it returns or
        raises counts for all of them. What failed before comes alone. It must be the only handler of its topics.

        Raises:
            ConfigError: `count_max` is below 1, or the function is refused as `handler` refuses it.
            LifecycleError: it runs already.
        """
        if count_max < 1:
            raise ConfigError(name="count_max", value=count_max, expected="at least 1")
        return self._registration(function, topic=topic, retry=retry, batch_count_max=count_max, breaker=breaker)

    def _registration(self, function: F | None, *, topic: str | None, **given: Any) -> F | Callable[[F], F]:
        if self._thread is not None:
            raise LifecycleError("handlers are registered before the start", state="running")

        def add(handler: F) -> F:
            topics = () if topic is None else (topic,)
            return self._handlers.add(handler, **{"topics": topics, "tags": "*", **given})

        return add if function is None else add(function)

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """Its consumer group."""
        return self._group

    @property
    def config(self) -> ConsumerConfig:
        """Its settings."""
        return self._config

    def trace(self, tracing: Tracing) -> None:
        """Make spans by `tracing` instead of what it was made with, before the start.

        Raises:
            LifecycleError: it runs already.
        """
        if self._thread is not None:
            raise LifecycleError("settings are changed before the start", state="running")
        self._tracing = tracing

    def configure(self, **settings: Any) -> None:
        """Replace settings by their names in `ConsumerConfig`, before the start; None leaves one as it is.

        Raises:
            UsageError: a value has no use. LifecycleError: it runs already.
        """
        if self._thread is not None:
            raise LifecycleError("settings are changed before the start", state="running")
        given = {name: value for name, value in settings.items() if value is not None}
        self._use(replace(self._config, **given))

    def stop(self) -> None:
        """Begin the end: nothing new is begun, what runs may end. Any thread, and any handler, may call it; it returns at once."""
        self._stopping.set()

    def stats(self) -> ConsumerStats:
        """Its figures; any thread may ask, also before the start and after the end."""
        if self._engine is None:
            return ConsumerStats({}, (), 0, 0)
        stats = self._engine.stats()
        if not self._ended.is_set():
            return stats
        failure = self._failure
        return stats._replace(has_ended=True, failure="" if failure is None else type(failure).__name__)

    @property
    def is_running(self) -> bool:
        """True from the start until the end."""
        return self._thread is not None and not self._ended.is_set()

    @property
    def failure(self) -> BaseException | None:
        """Why it ended by itself; None: it has not. `join` and `close` raise it."""
        return self._failure

    def _launch(self, *, is_waited_for: bool = False) -> None:
        """Start the engine's thread; what ends it is logged unless a caller waits for it.

        Raises:
            LifecycleError: it ran before.
            UsageError, ConfigError: no handler for a topic, or settings that do not go together.
        """
        if self._thread is not None:
            raise LifecycleError("a consumer runs once; make a new one", state="started")
        if self.may_be_polled and not is_waited_for and not any(True for _ in self._handlers):
            self._desk = Desk()
            hand_over = self._desk.hand_over_async if self.is_async else self._desk.hand_over
            self._handlers.add(hand_over, topics=(), tags="*", retry=None)
        routes = self._handlers.routes(self._topics)
        config = self._config
        policy = self._retry or RetryPolicy(attempt_count_max=config.attempt_count_max)
        keeps_position = not self._is_broadcast or bool(config.instance_id)
        plan = ConsumerPlan(
            group=self._group,
            topics=self._topics,
            routes=routes,
            order=self._order,
            null_keys=self._null_keys,
            start_at=self._start_at if keeps_position else self._start_at or "latest",
            policy=policy,
            key_group=self._key_group,
            is_broadcast=self._is_broadcast,
            keeps_position=keeps_position,
            breakers=self._breakers,
            desk=self._desk,
        )
        for topic in self._topics:
            plan.settings_of(topic, config)
        caller = Caller(
            routes,
            interceptors=self._interceptors,
            deserializer=self._deserializer,
            key_deserializer=self._key_deserializer,
            attempt_timeout_s=config.attempt_timeout.total_seconds(),
            observer=partial(attempt_span, self._tracing) if self._tracing.is_on else None,
        )
        pool = self._make_pool(caller)
        connections = self._connect(config)
        self._engine = Engine(
            config, plan, connections=connections, pool=pool, make_leases=partial(self._make_leases, connections)
        )
        self._thread = threading.Thread(
            target=self._run_engine,
            args=(self._engine, is_waited_for),
            name=f"txlayer-consumer-{self._group}",
            daemon=True,
        )
        self._thread.start()

    @property
    def may_be_polled(self) -> bool:
        """True if the program may take messages itself."""
        return True

    def _is_idle(self, worker: object) -> bool:
        """True if the program has not taken the message of this thread or task, or has answered it: its time is not over."""
        return self._desk is not None and self._desk.is_idle(worker)

    def _answer_of(self, worker: object) -> HandlerResult | NotBegun:
        """How the program answered the message of this task; None: it did not, or an interceptor may still make the attempt fail."""
        return None if self._desk is None or self._interceptors else self._desk.answer_of(worker)

    def _opened_desk(self) -> Desk:
        if self._desk is None:
            state = "new" if self._thread is None else "running"
            raise LifecycleError("messages are polled after `start()` of a consumer without handlers", state=state)
        return self._desk

    def _stop_and_close_desk(self) -> None:
        self._stopping.set()
        if self._desk is not None:
            self._desk.close()

    @abstractmethod
    def _make_pool(self, caller: Caller) -> Pool:
        """Where its handlers run."""

    def _make_leases(self, connections: ConsumerConnections) -> LeaseKeeper:
        if self._is_broadcast or not self.keeps_order:
            return NoLeases()
        return make_leases(self._config, connections, group=self._group)

    def _run_engine(self, engine: Engine, is_waited_for: bool) -> None:  # noqa: FBT001 - a thread's argument
        try:
            engine.run(should_stop=self._stopping.is_set)
        except BaseException as exc:  # border of a thread: `join` and `close` raise it
            self._failure = exc
            if not is_waited_for:
                logger.critical("consumer.failed", exc_info=exc, extra={"group": self._group})
        finally:
            self._ended.set()
            self._notify_end()

    @abstractmethod
    def _notify_end(self) -> None:
        """Wake who waits for the end on an event loop."""

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._is_failure_reported = True
            raise self._failure

    def _raise_unreported_failure(self) -> None:
        if not self._is_failure_reported:  # `run` or `join` has raised it already
            self._raise_failure()


def make_leases(config: ConsumerConfig, connections: ConsumerConnections, *, group: str) -> LeaseKeeper:
    """A lock registry under a new name; `txlayer locks` shows it, so it says where the holder is."""
    return LockRegistry(
        connections,
        group=group,
        holder=f"{socket.gethostname()}/{os.getpid()}/{draw_name()[:12]}",
        instance_id=config.instance_id,
        topics=config.topics,
        lease_renewal_ms=milliseconds(config.lease_renewal),
        lease_expiry_ms=milliseconds(config.lease_expiry),
    )


def check_topic_names(topics: Sequence[str]) -> tuple[str, ...]:
    """The topics themselves; UsageError: there is none, one is given twice, or Kafka would not accept a name."""
    if isinstance(topics, str):
        raise UsageError(f"topics={topics!r} is one text; a list of topics is needed")
    found = tuple(topics)
    if not found or len(set(found)) < len(found):
        raise UsageError(f"topics {found}: each once, and at least one")
    for topic in found:
        check_topic(topic)
    return found


def check_interceptors(interceptors: Iterable[Interceptor], *, is_async: bool) -> tuple[Interceptor, ...]:
    """The interceptors themselves; ConfigError: nothing would await a hook of one."""
    found = tuple(interceptors)
    for each in () if is_async else found:
        for hook in ("before", "after", "on_error"):
            if is_coroutine_function(getattr(each, hook, None)):
                name = f"{type(each).__name__}.{hook}"
                raise ConfigError(
                    name="interceptors", value=name, expected="a plain function, or an AsyncOrderedConsumer"
                )
    return found


def breakers_of(
    breaker: BreakerPolicy | Mapping[str, BreakerPolicy] | None, topics: Sequence[str]
) -> dict[str, BreakerPolicy]:
    """{topic: the policy of its breaker}, of those that have one; UsageError: one is of a topic that is not read."""
    if breaker is None or isinstance(breaker, BreakerPolicy):
        return {} if breaker is None else dict.fromkeys(topics, breaker)
    if others := set(breaker) - set(topics):
        raise UsageError(f"a breaker for {', '.join(sorted(others))}, which this consumer does not read")
    return dict(breaker)


def one_of(name: str, value: str, *words: str) -> str:
    """The value of this setting, which is one of these words; ConfigError: it is another."""
    if value not in words:
        raise ConfigError(name=name, value=value, expected=" or ".join(map(repr, words)))
    return value


def order_of(parallel_by: str) -> QueueOrder:
    """The queue order that `parallel_by` names; ConfigError: it names none."""
    return QueueOrder(one_of("parallel_by", parallel_by, "key", "partition"))


Workers = Literal["threads", "processes"]


class _PlainConsumer(ConsumerService[HandlerResult, BatchHandlerFunction]):
    """Workers, and waiting for the end on a thread; shared by both consumers."""

    def __init__(self, *, workers: Workers = "threads", **options: Any) -> None:
        super().__init__(**options)
        one_of("workers", workers, "threads", "processes")
        self._workers = workers

    def run(self, should_stop: Callable[[], bool] | None = None) -> None:
        """Handle messages until `stop`, `should_stop` or Ctrl-C; then let running handlers end, store and leave the group.

        Raises:
            UsageError: topics, settings or stored offsets are not valid.
            BrokerUnavailableError: no broker answered within `start_timeout`.
            LifecycleError: the consumer ran before.
        """
        self._launch(is_waited_for=True)
        try:
            while not self._ended.wait(LOOK_S):
                if should_stop is not None and should_stop():
                    self._stopping.set()
        finally:
            self._stopping.set()
            self._ended.wait()
        self._raise_failure()

    def start(self) -> None:
        """Start in the background; `close` ends it. If it fails, the error is logged and `failure` holds it.

        Without handlers, `poll` takes its messages.

        Raises:
            UsageError: as `run`; `join` and `close` raise the errors that only the cluster can report.
        """
        self._launch()

    def poll(self, timeout: timedelta | None = None) -> PulledMessage | None:
        """Take the next message, instead of handlers; answer it by `ack`, `retry`, `later` or `reject`. Any thread may.

        None: there was none within `timeout`, or the consumer has ended. Order, leases, attempts and stored progress are those of
        handlers: the next message of a key comes when the one before is answered.

        Raises:
            LifecycleError: it was not started, or has handlers.
            TxLayerError: the error that ended the consumer.
        """
        timeout_s = None if timeout is None else timeout.total_seconds()
        found = self._opened_desk().take(timeout_s, has_ended=self._ended.is_set)
        if found is None and self._ended.is_set():
            self._raise_failure()
        return found

    @property
    def may_be_polled(self) -> bool:
        """True if the program may take messages itself: not what goes to other processes."""
        return self._workers == "threads"

    def join(self, timeout: timedelta | None = None) -> bool:
        """Wait until the consumer has ended, for at most `timeout`; True if it has. This does not stop it.

        Raises:
            TxLayerError: the error that ended it.
            LifecycleError: it was not started.
        """
        if self._thread is None:
            raise LifecycleError("it was not started", state="new")
        has_ended = self._ended.wait(None if timeout is None else timeout.total_seconds())
        if has_ended:
            self._raise_failure()
        return has_ended

    def close(self) -> None:
        """Let running handlers end within `close_timeout`, store, and leave the group; later results are discarded.

        Messages that were polled and not answered are given back at once: answer them before. A handler calls `stop`, because this
        would wait for the handler.

        Raises:
            TxLayerError: the error that ended the consumer, unless `run` or `join` raised it before.
        """
        self._stop_and_close_desk()
        if self._thread is not None:
            self._ended.wait()
            self._raise_unreported_failure()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _notify_end(self) -> None:
        """Do nothing: waiting threads watch the event."""

    def _make_pool(self, caller: Caller) -> Pool:
        count = self._config.worker_count
        if self._workers == "processes":
            # Consumers on threads, and those of asyncio, need no processes.
            from txlayer.consumer.process_pool import ProcessPool

            return ProcessPool(caller, worker_count=count)
        return ThreadPool(
            caller.run,
            worker_count=count,
            attempt_timeout_s=caller.attempt_timeout_s,
            hung_max=self._config.hung_handlers_max,
            is_idle=self._is_idle,
        )


class OrderedConsumer(_PlainConsumer):
    """Handles messages in order: one message of a key at a time, many keys in parallel.

    The order is that of the topic, through retries, restarts, rebalances, dead letters and replays. A message whose
    handler succeeded and whose offset was stored is not handled again. A message that was interrupted is, so handlers
    that change a database use an inbox or the context's fencing token.

    Args:
        bootstrap_servers: brokers, HOST:PORT with commas between.
        group: the consumer group.
        topics: the topics to consume. Each needs its dead-letter and replay topics
            (`txlayer topics apply --group … --topic …`).
        parallel_by: "key": one message of a key at a time; "partition": one message of a partition at a time.
        null_keys: messages without a key keep order among themselves ("ordered") or have no order ("free").
        start_at: where to begin if the group has stored no offset: "earliest", "latest" or a datetime. None: a missing
            offset is an error.
        workers: where handlers run: "threads", or "processes" for CPU-bound handlers; `worker_count` of them.
        retry: how often and when a failed message is tried again. None: `attempt_count_max` attempts with back-off.
        breaker: while most attempts of a topic fail, only one message of it is tried at a time, and no attempt is counted.
            A `BreakerPolicy` for every topic, or one for each as {topic: policy}. None: no breaker.
        is_broadcast: each instance gets every message, as the only member of a group of its own, `<group>.<instance_id>`. There are no
            leases (the token is None) and no dead letters: after its last attempt a message is given up, with a line in the log. Without an
            `instance_id` its position is not kept on the broker, and it begins at "latest" unless `start_at` says otherwise.
        interceptors: code that runs around each attempt.
        codec: what makes values of their bytes, such as `txlayer.JSON`; any confluent-kafka deserializer in a `Codec`, or a
            function (bytes, `SerializedField`). If it raises, the message becomes a dead letter, or is
            retried if a service did not answer. None: values are bytes or None. A handler with a body of its own type needs
            none, if the body is JSON.
        key_deserializer: the same for keys, called first. The order always goes by the bytes of the key.
        key_group: maps a key to the name it is counted under in the metrics.
        namespace: the namespace of the lock topic.
        connect: makes the Kafka clients.
        tracing: makes a span of each attempt (`txlayer.adapters.otel`); it is the current span while the handler runs.
        settings: limits and time-outs, see `ConsumerConfig`.

    Raises:
        ConfigError, UsageError: a setting is not valid. Nothing was connected.
    """

    def __init__(
        self,
        *,
        parallel_by: Literal["key", "partition"] = "key",
        null_keys: Literal["ordered", "free"] = "ordered",
        workers: Workers = "threads",
        **options: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__(order=order_of(parallel_by), null_keys=null_keys, workers=workers, **options)


class ConcurrentConsumer(_PlainConsumer):
    """Handles messages in no order, each as soon as a worker is free; otherwise like `OrderedConsumer`.

    It holds no leases: the context's token is None, and after the process was paused longer than the session time-out,
    two members may handle the same message. Keys are not parked.
    """

    keeps_order: ClassVar[bool] = False

    def __init__(self, *, workers: Workers = "threads", **options: Unpack[ConsumerOptions]) -> None:
        super().__init__(order=QueueOrder.NONE, workers=workers, **options)
