"""`OrderedConsumer` and `ConcurrentConsumer`: plain handlers on threads or in processes."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Literal, Self, Unpack

from txlayer.consumer.handlers import BatchHandlerFunction
from txlayer.consumer.pools import Caller, Pool, ThreadPool
from txlayer.consumer.process_pool import ProcessPool
from txlayer.consumer.pull import PulledMessage
from txlayer.consumer.service import LOOK_S, ConsumerOptions, ConsumerService, one_of, order_of
from txlayer.core.key_queue import QueueOrder
from txlayer.core.retry import HandlerResult
from txlayer.errors import LifecycleError

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
        codec: what makes values of their bytes, such as `txlayer.JSON`. If it raises, the message becomes a dead letter, or is
            retried if a service did not answer. None: values are bytes or None. A handler with a body of its own type needs
            none, if the body is JSON.
        deserializer: the same as `codec=Codec(deserializer=…)`: any confluent-kafka deserializer for values, or a function
            (bytes, `SerializedField`).
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
