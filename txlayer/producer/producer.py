"""`TransactionalProducer` and `Transaction`: the producer for threads."""

from __future__ import annotations

import atexit
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack, cast

from txlayer.adapters.bodies import Codec, function_of
from txlayer.adapters.connect import LINGER_MS, LINGER_OF_TASKS_MS, ConnectProducer, connect_producer
from txlayer.adapters.ports import Barrier
from txlayer.adapters.telemetry import HEADER_BYTES, NO_TRACING, Tracing
from txlayer.config import ProducerConfig, seconds
from txlayer.core.history import TransactionHistory
from txlayer.core.messages import NONCE_LENGTH, Message, Resolution, UserHeaders, check_group
from txlayer.errors import LifecycleError, UsageError
from txlayer.producer import steps
from txlayer.producer.barrier import check_kind, joinable, part_of
from txlayer.producer.check_handlers import AsyncCheckHandler, CheckHandler, handling_of
from txlayer.producer.encoding import PartitionSelector, headers_of, new_time_ms
from txlayer.producer.engine import SINCE, Engine, open_engine
from txlayer.producer.identity import Entry, TransactionOptions, check_with_option, now_ms
from txlayer.producer.interceptors import ProducerInterceptor, intercepting, traced, traced_handling
from txlayer.producer.metrics import ProducerMetrics
from txlayer.producer.pipeline import PendingTransaction, PipelineState, TransactionSendResult, call_in_forked_child
from txlayer.producer.questions import ParkedTransaction, RefusedResolution, ResponderStats
from txlayer.producer.responder import Answering, OnParked
from txlayer.producer.submitted import LocalTransaction, LocalWork, SubmittedTransaction
from txlayer.producer.waiting import Steps, drive
from txlayer.runtime.environment import is_coroutine_function


class TransactionPhase(Enum):
    """The phase of a transaction, as its caller drives it."""

    GATHERING = "gathering messages"  #: `send` may be called
    PREPARING = "preparing"  #: `prepare` is writing the half messages
    PREPARED = "prepared"  #: the half messages are stored; the local transaction may run
    RESOLVED = "resolved"  #: the resolution was given
    DROPPED = "dropped"  #: rolled back before anything was sent
    FAILED = "failed"  #: `prepare` raised


GATHERING, PREPARING, PREPARED, RESOLVED, DROPPED, FAILED = TransactionPhase
# Module-level names, because a lookup on the enum class costs more than the comparison.


class OpenTransaction:
    """One transaction of one thread or task; the subclasses differ only in how they wait for its steps."""

    __slots__ = ("_decider", "_engine", "_entry", "_key", "_local", "_messages", "_phase", "_txn")

    def __init__(self, engine: Engine, barrier: Barrier | None, entry: Entry) -> None:
        self._engine = engine
        self._local = part_of(barrier, group=engine.pipeline.group)
        self._entry = entry
        self._key = engine.identity.draw(entry.txn_id, now_ms())
        self._messages: list[Message] = []
        self._txn: PendingTransaction | None = None
        self._phase = GATHERING
        self._decider = ""  # what alone resolves it, if not its caller

    @property
    def txn_id(self) -> str:
        """The transaction id."""
        return self._key[: -NONCE_LENGTH - 1]

    @property
    def nonce(self) -> str:
        """The nonce of this attempt: id and nonce together identify the transaction."""
        return self._key[-NONCE_LENGTH:]

    @property
    def resolution(self) -> Resolution | None:
        """The resolution that was given; None before."""
        return None if self._txn is None else self._txn.resolution

    @property
    def is_dropped(self) -> bool:
        """True if it was rolled back before anything was sent."""
        return self._phase is DROPPED

    def send(
        self,
        topic: str,
        *,
        key: bytes | str | None = None,
        value: Any = None,
        headers: UserHeaders | None = None,
        tags: str | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> None:
        """Add a message; `prepare` sends it. Text is encoded as UTF-8; a null key or value is forwarded as null.

        With `deliver_at` (a datetime with a time zone) or `delay` (from `prepare` on) no consumer sees it before that
        time, although the transaction is committed.

        Raises:
            LifecycleError: the transaction is prepared already. It goes on without this message.
            ForbiddenTopicError, ReservedHeaderError, UsageError: the message cannot be sent. The transaction goes on
                without it.
        """
        if self._phase is not GATHERING:
            raise self._misfit("send")
        self._engine.encoder.check_topic(topic)
        if headers is not None:
            headers = headers_of(headers)
        limit = self._engine.config.transaction_messages_max
        if len(self._messages) >= limit:
            raise UsageError(f"transaction_messages_max={limit} messages are in this transaction already")
        self._messages.append(Message(topic, key, value, headers, tags, partition, timestamp, deliver_at, delay))

    def commit(self) -> None:
        """Commit now instead of at the end of the block. Queues the resolution and returns at once.

        Raises:
            LifecycleError: the transaction is not prepared or already resolved, or the joined local transaction has
                not reported its commit. Nothing changed.
        """
        self._resolve(Resolution.COMMIT, "commit")

    def rollback(self) -> None:
        """Roll back. Queues the resolution and returns at once; before `prepare` there is nothing to send.

        A joined local transaction that is still open can no longer commit.

        Raises:
            LifecycleError: the transaction is already resolved, or the joined local transaction is committed or may
                be. Nothing changed.
        """
        if self._phase is GATHERING:
            self._phase = DROPPED
            self._messages = []
        else:
            self._resolve(Resolution.ROLLBACK, "rollback")

    def unknown(self) -> None:
        """Leave the resolution to a check-back. Queues the resolution UNKNOWN and returns at once.

        Raises:
            LifecycleError: the transaction is not prepared or already resolved. Nothing changed.
        """
        self._resolve(Resolution.UNKNOWN, "unknown")

    # --- for the drivers ----------------------------------------------------------------------------------------------

    def leave_to(self, decider: str) -> None:
        """Refuse its caller's `commit`, `rollback` and `unknown` once it is prepared: the decider ends it with `leave`."""
        self._decider = decider

    def _enter(self) -> None:
        if self._local is not None:
            self._local.enter()

    def _prepare_steps(self) -> Steps[None]:
        if self._phase is not GATHERING:
            raise self._misfit("prepare")
        engine = self._engine
        steps.check_may_wait(engine)
        self._phase = PREPARING
        try:
            txn = self._txn = yield from steps.launch(
                engine, PendingTransaction, self._messages, self._entry, self._key
            )
            yield from steps.stored(engine, txn)
        except Exception:
            if self._txn is None:
                # Nothing was sent: `prepare` may be called again, with a new nonce.
                self._phase = GATHERING
                self._key = self._engine.identity.draw(self.txn_id, now_ms())
            else:
                self._phase = FAILED
            raise
        self._messages = []
        self._phase = PREPARED
        if self._local is not None:
            self._local.begin()

    def _join_steps(self, session: Any) -> Steps[None]:
        local = joinable(self._local)
        if self._phase is not GATHERING and self._phase is not PREPARED:
            raise self._misfit("join")
        yield from local.check_steps(session)
        if self._phase is GATHERING:
            yield from self._prepare_steps()
        yield from local.write_steps(session, txn_id=self.txn_id, nonce=self.nonce)

    def _result_steps(self, *, with_decision: bool) -> Steps[TransactionSendResult]:
        if self._phase is not RESOLVED or self._txn is None:
            raise LifecycleError("result: nothing was said yet", state=self._phase.value)
        return steps.result(self._engine, self._txn, with_decision=with_decision)

    def _leave_steps(self, error: BaseException | None) -> Steps[None]:
        """Like `leave`, but asks the barrier, if there is one, how the local transaction ended."""
        if self._phase is PREPARED and self._local is not None:
            try:
                ending = yield from self._local.end_steps(
                    txn_id=self.txn_id, nonce=self.nonce, has_failed=error is not None
                )
            except BaseException:  # interrupted or cancelled during the question
                self._say(Resolution.UNKNOWN)
                raise
            self._say(ending.resolution)
            if ending.misfit is not None:
                raise LifecycleError(ending.misfit, state=PREPARED.value)
            return
        self.leave(error)

    def leave(self, error: BaseException | None) -> None:
        """End the block, after `error` or normally, without asking a barrier.

        Raises:
            LifecycleError: the block ended normally, but there is nothing to commit; the message says why.
        """
        phase, txn = self._phase, self._txn
        if phase is PREPARED:
            # After an error, only a check-back can find out how the local transaction ended.
            self._say(Resolution.COMMIT if error is None else Resolution.UNKNOWN)
            return
        self._abandon()
        if error is not None or phase in (RESOLVED, DROPPED):
            return
        if phase is GATHERING:
            raise LifecycleError(
                "left without prepare: nothing was sent (publish() serves messages without a local transaction)",
                state=phase.value,
            )
        raise LifecycleError("prepare did not succeed: nothing is committed", state=phase.value) from (
            None if txn is None else txn.error
        )

    def _abandon(self) -> None:
        """Nobody will say how it ends, unless that was said already: an interrupt may come before every word."""
        if self._txn is not None and self._txn.resolution is None:
            self._engine.pipeline.post(self._txn.abandon)

    def _resolve(self, resolution: Resolution, call: str) -> None:
        if self._phase is not PREPARED:
            raise self._misfit(call)
        if self._decider:
            raise LifecycleError(f"{call}() does not fit: {self._decider} decides", state=self._phase.value)
        if self._local is not None:
            self._local.check_said(resolution)
        self._say(resolution)

    def _say(self, resolution: Resolution) -> None:
        assert self._txn is not None
        self._phase = RESOLVED
        if self._local is not None:
            self._local.end()
        steps.resolve(self._engine, self._txn, resolution)

    def _misfit(self, call: str) -> LifecycleError:
        return LifecycleError(f"{call}() does not fit: the transaction is {self._phase.value}", state=self._phase.value)


class ProducerSettings(TypedDict, total=False):
    """The optional settings of a producer; `ProducerConfig` describes each one under the same name."""

    client_settings: Mapping[str, Any]
    is_insecure_allowed: bool
    in_flight_max: int
    transaction_messages_max: int
    transaction_bytes_max: int
    prepare_timeout: timedelta
    resolution_timeout: timedelta
    close_timeout: timedelta
    start_timeout: timedelta
    check_timeout: timedelta
    check_workers: int
    check_session_timeout: timedelta


CheckT = TypeVar("CheckT", bound=AsyncCheckHandler)


class ConfiguredProducer(Generic[CheckT]):
    """What the producers for threads and for asyncio are made of before they start."""

    _is_async = False

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        group: str,
        namespace: str = "txlayer",
        barrier: Barrier | None = None,
        check: CheckT | None = None,
        on_refused: Callable[[RefusedResolution], object] | None = None,
        on_parked: Callable[[ParkedTransaction], Any] | None = None,
        codec: Codec | None = None,
        check_with: Iterable[str] = (),
        check_executor: Executor | None = None,
        partition_selector: PartitionSelector | None = None,
        is_group_named: bool = False,
        interceptors: Iterable[ProducerInterceptor] = (),
        connect: ConnectProducer = connect_producer,
        tracing: Tracing = NO_TRACING,
        metrics: ProducerMetrics | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._config = ProducerConfig(bootstrap_servers=bootstrap_servers, namespace=namespace, **settings)
        self._group = check_group(group)
        check_kind(barrier, is_async=self._is_async)
        self._barrier = barrier
        handling = handling_of(
            check, barrier, worker_count=self._config.check_workers, is_async=self._is_async, executor=check_executor
        )
        self._handling = traced_handling(handling, tracing, check_topic=self._config.topics.check)
        if not self._is_async and is_coroutine_function(on_parked):
            raise UsageError("a coroutine function for on_parked needs an event loop: use AsyncTransactionalProducer")
        if is_coroutine_function(on_refused):
            raise UsageError("on_refused is a plain function: nothing awaits what it returns")
        self._on_refused, self._on_parked = on_refused, on_parked
        if partition_selector is not None and not callable(partition_selector):
            raise UsageError("partition_selector is called with a message and the number of its topic's partitions")
        self._connect = connect
        self._connected = partial(
            open_engine,
            self._config,
            group=group,
            serializer=function_of(codec, "serializer"),
            metrics=metrics,
            linger_ms=LINGER_OF_TASKS_MS if self._is_async else LINGER_MS,
            check_with=check_with_option(check_with),
            select=partition_selector,
            is_group_named=is_group_named,
            watchers=[*intercepting(interceptors), *traced(tracing)],
            spare_bytes=HEADER_BYTES if tracing.is_on else 0,
        )
        self._set_up()

    @property
    def group(self) -> str:
        """The producer group."""
        return self._group

    @property
    def barrier(self) -> Barrier | None:
        """The barrier that it was made with."""
        return self._barrier

    def _set_up(self) -> None:
        raise NotImplementedError

    def _told_of_parked(self, loop: AbstractEventLoop | None) -> OnParked | None:
        """How the responder's thread calls `on_parked`."""
        del loop
        on_parked = self._on_parked
        return None if on_parked is None else lambda parked, say: say(on_parked(parked))

    def _open_engine(self, on_refused: Callable[..., object] | None, loop: AbstractEventLoop | None = None) -> Engine:
        answering = None
        if self._handling is not None:
            answering = Answering(self._handling, on_refused, loop, self._told_of_parked(loop))
        return self._connected(connect=self._connect, answering=answering)


class TransactionalProducer(ConfiguredProducer[CheckHandler]):
    """Sends messages that become visible if, and only if, a local transaction commits.

    Threads may share a producer; each transaction belongs to one thread. The producer connects at its first use, or in
    `start` or `with`. `close` waits for the transactions in flight; at interpreter exit an open producer is closed.

    Args:
        bootstrap_servers: brokers, HOST:PORT with commas between.
        group: the producer group: producers that can answer for each other.
        namespace: the namespace of the half, op and check topics.
        barrier: the user's table that makes check-backs race-free. Transactions `join` a session, and check-backs are
            answered from the table.
        check: the handler that answers the group's check-backs, without a barrier. It runs on its own threads, from the
            start of the producer. Without `barrier` and `check` this producer answers no check-backs and learns of no
            open-transaction limit.
        on_refused: called when a resolution of the group arrived too late and was refused; needs `barrier` or `check`.
            It runs on the thread that receives check-backs and must return at once.
        on_parked: called, at least once, when a transaction of the group is parked because no answer came, and again
            after growing pauses while it stays parked. Returns COMMIT or ROLLBACK to settle it, or None. It runs where
            `on_refused` does; needs `barrier` or `check`.
        codec: what makes bytes of values, such as `txlayer.JSON`; without one, values are bytes, str or None.
        check_with: what check-backs carry unless a transaction says otherwise, see `transaction`.
        check_executor: runs the calls of the handler or of a `SqlBarrier`, in place of `check_workers` threads. It stays yours.
        partition_selector: called with a message that names no partition, and the number of its topic's partitions when
            the producer first sent to it; returns a partition, or None: by the key.
        is_group_named: messages tell consumers this group, in a header of some 20 bytes, so that the group can hear of their
            dead letters (`on_dead_letter` of a consumer).
        interceptors: code that runs around the send and the end of each transaction.
        connect: makes the Kafka clients.
        tracing: makes spans (`txlayer.adapters.otel`), and adds a `traceparent` to messages that have none.
        metrics: counts the results of transactions; producers may share one.
        settings: limits and time-outs, see `ProducerConfig`.

    Raises:
        ConfigError, UsageError: a setting is not valid. Nothing was connected.
    """

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def _set_up(self) -> None:
        self._renew_lock()
        # A thread of the parent may hold the lock while it starts the producer; in the child nothing would release it.
        call_in_forked_child(self._renew_lock)
        self._engine: Engine | None = None
        self._is_closed = False

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and check the namespace's topics. Does nothing if the producer is started.

        Raises:
            BrokerUnavailableError: no broker answered within `start_timeout`; you may call it again.
            NotAuthorisedError, TopicMismatchError: the cluster is not set up for this producer; it is not started.
            LifecycleError: the producer is closed, or was started in another process.
        """
        self._started()

    def close(self, timeout: timedelta | float | None = None) -> None:
        """Refuse new transactions, wait up to `timeout` (`close_timeout`) for those in flight, and close.

        Everything that was acknowledged stays stored. In a forked process the call does nothing.

        Raises:
            OutcomeUnknownError: some did not end in time. The producer is closed; check-backs settle the rest.
            LifecycleError: called from a local transaction on the producer's own thread, which would wait for itself.
                The producer stays open.
        """
        with self._lock:
            engine = self._engine
            if engine is not None:
                if engine.pipeline.state is PipelineState.FORKED:
                    return  # the client belongs to the parent process; this one must not even release it
                if engine.pipeline.is_own_thread:
                    raise LifecycleError("close() inside a local transaction would wait for it", state="open")
            self._is_closed = True
            self._engine = None
        if engine is not None:
            timeout_s = seconds(self._config.close_timeout if timeout is None else timeout)
            try:
                drive(steps.close(engine, timeout_s), engine.pipeline)
            finally:
                atexit.unregister(self.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- transactions -------------------------------------------------------------------------------------------------

    def transaction(self, txn_id: str | None = None, **options: Unpack[TransactionOptions]) -> Transaction:
        """Open a transaction as a `with` block: `send` messages, `prepare` (or `join`), then do the local work.

        Args:
            txn_id: your own id, unique per transaction; None: a UUIDv7.
            ordering_key: messages of transactions with the same key arrive in order. Default: the key of the messages,
                if all have the same one. None: no order, and the partition does not depend on a key.
            order: "commit": in the order of decisions; "prepare": in the order of `prepare`.
            immunity: the age before which no check-back is sent.
            unresolved: "park", "rollback" or "commit": what happens if it stays without an answer, instead of the
                coordinators' `unresolved`.
            check_with: what check-backs carry: any of "key", "tags" and "content" (of the first message), "query_id", and
                "headers:NAME" (its header). Default: that of the producer.
            query_id: your own id of what this is about, such as an order. `txlayer tx list --query-id` finds it.
            block: False: `prepare` raises RetriableError instead of waiting when `in_flight_max` are in flight.

        Raises:
            UsageError: an argument is not valid. Nothing was sent.
            OpenTransactionLimitError: the group has too many open transactions. Nothing was sent.
            NotAcceptingError: an operator closed the namespace to new transactions. Nothing was sent.
            BrokerUnavailableError, …: what `start` raises.
        """
        engine = self._started()
        return Transaction(engine, self._barrier, engine.enter(txn_id, **options))

    def publish(
        self, messages: Sequence[Message] | Message, *, txn_id: str | None = None, **options: Unpack[TransactionOptions]
    ) -> TransactionSendResult:
        """Send messages without a local transaction, all or none; returns when the commit is acknowledged.

        Options: see `transaction`.

        Raises:
            TxLayerError: what `submit` raises, and what the result of its future raises.
            LifecycleError: called from a local transaction on the producer's own thread, which would wait for itself.
                Nothing was sent.
        """
        steps.check_may_wait(self._started())
        return self.submit(messages, txn_id=txn_id, **options).result()

    def submit(
        self,
        messages: Sequence[Message] | Message,
        local_transaction: LocalTransaction | None = None,
        *,
        txn_id: str | None = None,
        executor: Executor | None = None,
        **options: Unpack[TransactionOptions],
    ) -> SubmittedTransaction:
        """Send a transaction without waiting; one thread may have thousands in flight.

        When the half messages are acknowledged, `local_transaction(tx)` runs on the producer's thread, in the order of
        acknowledgements, or on `executor`. It returns COMMIT (or None), ROLLBACK or UNKNOWN. If it raises, the
        resolution is UNKNOWN and the future raises the same exception. Without `local_transaction` the transaction
        commits at once. With a barrier it calls `tx.join(session)`, and the database decides as in a `with` block.
        Options: see `transaction`.

        Returns:
            A future of the `TransactionSendResult` (works with `concurrent.futures` and `asyncio.wrap_future`), done
            when the resolution is acknowledged. Where a signal's handler may raise, wait with `result`: an exception
            inside `wait` or `as_completed` may leave its futures locked for ever (CPython), and the producer with them.

        Raises:
            UsageError and its subclasses, RefusedRecordError: a message or argument is not valid. Nothing was sent.
            RetriableError: `in_flight_max` are in flight, and `block` is False or none ended in `prepare_timeout`.
                Nothing was sent.
            OpenTransactionLimitError: the group has too many open transactions. Nothing was sent.
            NotAcceptingError: an operator closed the namespace to new transactions. Nothing was sent.
        """
        engine = self._engine
        if engine is None:
            engine = self._started()
        several = (messages,) if isinstance(messages, Message) else messages
        work = None
        if local_transaction is not None:
            work = LocalWork(local_transaction, executor, several, self._barrier)
        entry = engine.entry
        if options or txn_id is not None or engine.limit is not None:
            entry = engine.enter(txn_id, **options)
        if entry.is_plain and len(several) == 1:
            plain = engine.launch_plain(several[0], entry.placement, work)
            if plain is not None:
                return plain
        make = SubmittedTransaction if work is None else partial(SubmittedTransaction, work=work)
        launch = steps.launch(engine, make, several, entry, engine.identity.draw(txn_id, now_ms()))
        return cast("SubmittedTransaction", drive(launch, engine.pipeline))

    def status(self, txn_id: str, *, since: timedelta = SINCE) -> list[TransactionHistory]:
        """Read what happened to a transaction from the topics: one history per nonce, the oldest first.

        Reads half and op from `since` on.

        Raises:
            UsageError: `txn_id` is not a valid transaction id.
            RetriableError, NotAuthorisedError: the topics cannot be read, which takes the rights of the role reader.
        """
        return self._started().status(txn_id, since=since)

    def cancel(self, txn_id: str, *, since: timedelta = SINCE) -> bool:
        """End a scheduled transaction: no consumer ever sees those of its messages whose time has not come.

        Returns True if there are such messages; False: it has none, all are released already, or it is not committed.

        It reads like `status`, writes a line into the op log, and reads what was there first. The first word wins.

        Raises:
            UsageError: `txn_id` is not a valid transaction id.
            OutcomeUnknownError: the line may be stored, or not, or what was there first cannot be read. Call it again.
            RetriableError, NotAuthorisedError: the topics cannot be read, which takes the rights of the role reader, or op
                cannot be written.
            LifecycleError: called from a local transaction on the producer's own thread. Nothing was written.
        """
        return self._change_time(txn_id, None, since)

    def reschedule(
        self,
        txn_id: str,
        *,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
        since: timedelta = SINCE,
    ) -> bool:
        """Give a scheduled transaction another time: all of its messages that are left become visible together then.

        Returns True if there are such messages; False: it has none, all are released already, or it is not committed.

        Args:
            txn_id: its id. It may belong to any instance of the group.
            deliver_at: the new time, with a time zone.
            delay: or how long from now, by this machine's clock.
            since: as `status`.

        Raises:
            UsageError: not exactly one of `deliver_at` and `delay` is given, or it is no time.
            TxLayerError: as `cancel`.
        """
        return self._change_time(txn_id, new_time_ms(deliver_at, delay), since)

    def _change_time(self, txn_id: str, time_ms: int | None, since: timedelta) -> bool:
        engine = self._started()
        run = steps.change_time(engine, txn_id, time_ms=time_ms, since=since)
        return drive(run, engine.pipeline)

    def responder_stats(self) -> ResponderStats | None:
        """Counts of the check-backs this producer answered; None if it answers none or is not started."""
        engine = self._engine
        return None if engine is None or engine.responder is None else engine.responder.stats()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _started(self) -> Engine:
        engine = self._engine
        if engine is not None:
            engine.pipeline.check_open()
            return engine
        with self._lock:
            if self._is_closed:
                raise LifecycleError("this producer is closed; make a new one", state="closed")
            if self._engine is None:
                self._engine = self._open_engine(self._on_refused)
                # If the program does not close the producer, its last resolutions are still sent at exit.
                atexit.register(self.close)
            return self._engine


class Transaction(OpenTransaction):
    """One transaction of one thread, as a `with` block.

    If the block ends normally after `prepare`, the transaction commits. If it raises, the exception propagates
    unchanged and the resolution is UNKNOWN: a check-back settles it (call `rollback` to decide it yourself). With a
    barrier and `join`, the database decides in both cases.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(self, _kind: object, exc: BaseException | None, _trace: object) -> None:
        try:
            if self._local is None:
                self.leave(exc)
            else:
                drive(self._leave_steps(exc), self._engine.pipeline)
        finally:
            self._abandon()

    def prepare(self) -> None:
        """Store the half messages; returns when all replicas have them. Then do the local transaction.

        Raises:
            UsageError and its subclasses, RefusedRecordError: a message cannot be sent. Nothing was sent.
            RetriableError: nothing was stored; you may call it again.
            RollbackRequiredError: this transaction is lost; what is stored of it is rolled back.
            OutcomeUnknownError: no acknowledgement within `prepare_timeout`. Do not do the local transaction: nothing
                was decided, and a check-back settles a half message that may be stored.
        """
        drive(self._prepare_steps(), self._engine.pipeline)

    def join(self, session: Any) -> None:
        """Prepare, if not done yet, then write the barrier's row inside the session's local transaction.

        From now on the database decides: commit if it reports the commit of this local transaction, otherwise what the
        row says. End the local transaction inside the block.

        Raises:
            UsageError: the producer has no barrier, or the session cannot be joined (autocommit, another database,
                a savepoint). Nothing was sent; of a session that has left its engine's mode for autocommit, that is seen
                behind `prepare`: leave the block with the error, and the barrier rolls the messages back.
            TxLayerError: what `prepare` raises. Nothing was written to the session.
            BarrierRefusedError: a check-back came first. Roll back; the session refuses to commit.
            Exception: the database's own error, unchanged; the session refuses to commit.
        """
        drive(self._join_steps(session), self._engine.pipeline)

    def result(self, timeout: timedelta | float | None = None, *, with_decision: bool = False) -> TransactionSendResult:
        """Wait until the resolution is acknowledged.

        With `with_decision`, also read the decision, which may differ from this resolution if another came first. It
        reads half and op of the transaction's partition from the first half record on, with separate clients, outside
        of `timeout`, and needs the rights of the role reader. After a commit or a rollback the answer is final.

        Raises:
            TimeoutError: not acknowledged within `timeout`; the transaction goes on.
            OutcomeUnknownError: the resolution may not be stored; a check-back settles it.
            LifecycleError: no resolution was given yet.
            RetriableError, NotAuthorisedError: the resolution is stored, but the decision cannot be read.
        """
        run = self._result_steps(with_decision=with_decision)
        return drive(run, self._engine.pipeline, timeout_s=None if timeout is None else seconds(timeout))
