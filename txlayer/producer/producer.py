"""`TransactionalProducer`: one producer, many threads. Never: a step of its own."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import timedelta
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast

from txlayer.adapters.connect import ConnectProducer, connect_producer
from txlayer.adapters.ports import Barrier
from txlayer.adapters.tracing import NO_TRACING, Tracing
from txlayer.config import ProducerConfig
from txlayer.core.history import TransactionHistory
from txlayer.core.ids import NONCE_LENGTH, check_group
from txlayer.core.messages import Message, OrderMode, Resolution, UserHeaders
from txlayer.errors import LifecycleError, TxLayerError, UsageError
from txlayer.producer import steps
from txlayer.producer.barrier import check_kind, joinable, part_of
from txlayer.producer.check_handlers import CheckHandler, handling_of
from txlayer.producer.encoding import headers_of
from txlayer.producer.engine import SINCE, Engine, open_engine
from txlayer.producer.identity import (
    ANYWHERE,
    BY_MESSAGES,
    OF_MESSAGES,
    OrderingKey,
    Placement,
    now_ms,
)
from txlayer.producer.metrics import ProducerMetrics, measured
from txlayer.producer.pipeline import (
    LOOK_S,
    PendingTransaction,
    Pipeline,
    PipelineState,
    TransactionSendResult,
)
from txlayer.producer.questions import RefusedResolution, ResponderStats
from txlayer.producer.responder import Answering
from txlayer.producer.submitted import LocalTransaction, LocalWork, SubmittedTransaction
from txlayer.producer.tracing import assemble_traced, traced_handling
from txlayer.producer.waiting import BarrierCall, Blocking, Steps, ask


class TransactionPhase(Enum):
    """What the user has done with a transaction so far."""

    GATHERING = "gathering messages"  #: `send` may be called
    PREPARING = "preparing"  #: half messages are under way
    PREPARED = "prepared"  #: the local transaction may run
    RESOLVED = "resolved"  #: its resolution is said
    DROPPED = "dropped"  #: rolled back before anything was sent
    FAILED = "failed"  #: `prepare` raised


GATHERING, PREPARING, PREPARED, RESOLVED, DROPPED, FAILED = TransactionPhase
# By these names, because a member looked up at its class takes longer than comparing it.


class OpenTransaction:
    """One transaction of one thread or task; threads and asyncio differ only in how they wait for its steps."""

    __slots__ = (
        "_engine", "_flight", "_key", "_local", "_may_wait", "_messages", "_phase", "_place",
    )  # fmt: skip

    def __init__(
        self, engine: Engine, *, barrier: Barrier | None, place: Placement, key: str, may_wait: bool
    ) -> None:
        self._engine = engine
        self._local = part_of(barrier, group=engine.pipeline.group)
        self._place = place
        self._key = key
        self._may_wait = may_wait
        self._messages: list[Message] = []
        self._flight: PendingTransaction | None = None
        self._phase = GATHERING

    @property
    def txn_id(self) -> str:
        """The transaction id."""
        return self._key[: -NONCE_LENGTH - 1]

    @property
    def nonce(self) -> str:
        """The nonce of this attempt: together with the id it is the transaction."""
        return self._key[-NONCE_LENGTH:]

    @property
    def resolution(self) -> Resolution | None:
        """What was said; None before."""
        return None if self._flight is None else self._flight.resolution

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
    ) -> None:
        """Add a message; it is kept until `prepare`. Text is UTF-8; a null key or value is forwarded as it is.

        Raises:
            LifecycleError: it is prepared already. The transaction goes on without this message.
            ForbiddenTopicError, ReservedHeaderError, UsageError: the message cannot be sent. The same.
        """
        if self._phase is not GATHERING:
            raise self._misfit("send")
        self._engine.encoder.check_topic(topic)
        if headers is not None:
            headers = headers_of(headers)
        limit = self._engine.config.transaction_messages_max
        if len(self._messages) >= limit:
            raise UsageError(
                f"transaction_messages_max={limit} messages are in this transaction already"
            )
        self._messages.append(Message(topic, key, value, headers, tags, partition, timestamp))

    def commit(self) -> None:
        """Say commit now rather than at the end of the block; it is sent without waiting.

        Raises:
            LifecycleError: it is not prepared, or said already, or the local transaction that joined has not reported
                its commit. Nothing changed.
        """
        self._resolve(Resolution.COMMIT, "commit")

    def rollback(self) -> None:
        """Say that the local transaction is gone; it is sent without waiting. Before `prepare` nothing is sent at all.

        A joined local transaction that is still open refuses its commit from now on.

        Raises:
            LifecycleError: it is said already, or the joined local transaction is committed or may be. Nothing changed.
        """
        if self._phase is GATHERING:
            self._phase = DROPPED
            self._messages = []
        else:
            self._resolve(Resolution.ROLLBACK, "rollback")

    def unknown(self) -> None:
        """Say that nobody can say yet: a check-back settles it; it is sent without waiting.

        Raises:
            LifecycleError: it is not prepared, or said already. Nothing changed.
        """
        self._resolve(Resolution.UNKNOWN, "unknown")

    # --- for the drivers ----------------------------------------------------------------------------------------------

    def _prepare_steps(self) -> Steps[None]:
        if self._phase is not GATHERING:
            raise self._misfit("prepare")
        self._phase = PREPARING
        engine = self._engine
        try:
            flight = self._flight = yield from steps.launch(
                engine,
                PendingTransaction,
                self._messages,
                self._place,
                self._key,
                may_wait=self._may_wait,
            )
            yield from steps.stored(engine, flight)
        except Exception:
            if self._flight is None:
                # Nothing is under way: `prepare` may be called again, as an attempt of its own.
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
        if self._phase is not RESOLVED or self._flight is None:
            raise LifecycleError("result: nothing was said yet", state=self._phase.value)
        return steps.result(self._engine, self._flight, with_decision=with_decision)

    def _leave_steps(self, error: BaseException | None) -> Steps[None]:
        """`leave`, where a barrier may have to be asked what became of the local transaction."""
        if self._phase is PREPARED and self._local is not None:
            try:
                ending = yield from self._local.end_steps(
                    txn_id=self.txn_id, nonce=self.nonce, has_failed=error is not None
                )
            except BaseException:  # interrupted or cancelled while it asked
                self._say(Resolution.UNKNOWN)
                raise
            self._say(ending.resolution)
            if ending.misfit is not None:
                raise LifecycleError(ending.misfit, state=PREPARED.value)
            return
        self.leave(error)

    def leave(self, error: BaseException | None) -> None:
        """The end of the block, by `error` or normally, where no barrier need be asked.

        Raises:
            LifecycleError: it ended normally, but nothing can be committed; what happened is said.
        """
        phase, flight = self._phase, self._flight
        if phase is PREPARED:
            # After an error nobody here knows what became of the local transaction.
            self._say(Resolution.COMMIT if error is None else Resolution.UNKNOWN)
            return
        if phase is PREPARING and flight is not None:
            self._engine.pipeline.post(flight.abandon)
        if error is not None or phase in (RESOLVED, DROPPED):
            return
        if phase is GATHERING:
            raise LifecycleError(
                "left without prepare: nothing was sent (publish() serves messages without a local transaction)",
                state=phase.value,
            )
        raise LifecycleError(
            "prepare did not succeed: nothing is committed", state=phase.value
        ) from (None if flight is None else flight.error)

    def _resolve(self, resolution: Resolution, call: str) -> None:
        if self._phase is not PREPARED:
            raise self._misfit(call)
        if self._local is not None:
            self._local.check_said(resolution)
        self._say(resolution)

    def _say(self, resolution: Resolution) -> None:
        assert self._flight is not None
        self._phase = RESOLVED
        if self._local is not None:
            self._local.end()
        steps.resolve(self._engine, self._flight, resolution)

    def _misfit(self, call: str) -> LifecycleError:
        return LifecycleError(
            f"{call}() does not fit: the transaction is {self._phase.value}",
            state=self._phase.value,
        )


class ProducerSettings(TypedDict, total=False):
    """The optional settings of a producer, by their names in `ProducerConfig`, which says what each one means."""

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


__all__ = ["ProducerConfig", "ProducerSettings"]


T = TypeVar("T")


class TransactionalProducer:
    """Sends messages that become visible if, and only if, a local transaction commits.

    Any number of threads may share one; a transaction belongs to one thread. It connects at its first use (or `start`,
    or `with`), and `close` waits for what is in flight; one that is not closed is closed when the interpreter ends.

    Args:
        bootstrap_servers: brokers, HOST:PORT with commas between.
        group: the producer group: producers that can answer for each other.
        namespace: whose half and op topics are used.
        barrier: the user's table that makes check-backs race-free; transactions then `join` a session, and check-backs
            are answered from it.
        check: without a barrier: answers check-backs of the whole group, on threads of its own, from the start on. Without
            both this producer answers none, and hears of no limit.
        on_refused: told when a resolution of the group came too late and was refused, where there is a barrier or `check`;
            it is called on the thread that hears questions, and returns at once.
        serializer: any confluent-kafka serializer for values; without one values are bytes, str or None.
        connect: makes the clients of the cluster.
        tracing: makes spans (`txlayer.adapters.otel`), and gives messages a `traceparent` that have none.
        metrics: counts what becomes of transactions; several producers may share one.
        settings: limits and time-outs, see `ProducerConfig`.

    Raises:
        ConfigError, UsageError: a setting has no usable value.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        group: str,
        namespace: str = "txlayer",
        barrier: Barrier | None = None,
        check: CheckHandler | None = None,
        on_refused: Callable[[RefusedResolution], object] | None = None,
        serializer: Any = None,
        connect: ConnectProducer = connect_producer,
        tracing: Tracing = NO_TRACING,
        metrics: ProducerMetrics | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._config = ProducerConfig(
            bootstrap_servers=bootstrap_servers, namespace=namespace, **settings
        )
        self._group = check_group(group)
        check_kind(barrier, is_async=False)
        self._barrier = barrier
        handling = handling_of(
            check, barrier, worker_count=self._config.check_workers, is_async=False
        )
        handling = traced_handling(handling, tracing, check_topic=self._config.topics.check)
        self._answering = None if handling is None else Answering(handling, on_refused)
        self._serializer = serializer
        self._connect = connect
        self._assemble = measured(assemble_traced(tracing), metrics)
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._is_closed = False

    # --- lifecycle ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and check the namespace's topics; nothing when that is done already.

        Raises:
            BrokerUnavailableError: nobody answered within `start_timeout`; it may be called again.
            NotAuthorisedError, TopicMismatchError: the cluster is not ready for this producer.
            LifecycleError: it is closed, or of another process.
        """
        self._started()

    def close(self, timeout: float | None = None) -> None:
        """Refuse new transactions, wait for those in flight for `timeout` seconds (`close_timeout`), and end.

        Nothing that was acknowledged is lost by it. In a forked process it does nothing.

        Raises:
            OutcomeUnknownError: not all ended in time; the producer is closed, check-backs settle the rest.
            LifecycleError: called from a local transaction on the producer's own thread, which would wait for itself.
        """
        with self._lock:
            engine = self._engine
            if engine is not None:
                if engine.pipeline.state is PipelineState.FORKED:
                    return  # its client belongs to the parent process: not even giving it back is ours
                if engine.pipeline.is_own_thread:
                    raise LifecycleError(
                        "close() inside a local transaction would wait for it", state="open"
                    )
            self._is_closed = True
            self._engine = None
        if engine is not None:
            timeout_s = self._config.close_timeout.total_seconds() if timeout is None else timeout
            try:
                drive(steps.close(engine, timeout_s), engine.pipeline)
            finally:
                atexit.unregister(self.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- transactions -------------------------------------------------------------------------------------------------

    def transaction(
        self,
        txn_id: str | None = None,
        *,
        ordering_key: OrderingKey = OF_MESSAGES,
        order: str | OrderMode = "commit",
        immunity: timedelta | None = None,
        block: bool = True,
    ) -> Transaction:
        """A transaction as a `with` block: `send` any number of messages, `prepare` (or `join`), then do the local work.

        Args:
            txn_id: an id of your own, unique per transaction; None: a UUIDv7.
            ordering_key: messages of transactions with one key arrive in order. Unless it is given, it is the key that all
                messages of the transaction have, if they have one and the same; None: no order, and no key's partition.
            order: "commit": in the order of decisions; "prepare": in the order of `prepare`.
            immunity: no check-back before this age.
            block: False: `prepare` raises RetriableError instead of waiting while `in_flight_max` are in flight.

        Raises:
            UsageError: an argument cannot be. Nothing was sent.
            OpenTransactionLimitError: the group has too many open transactions. Nothing was sent.
            BrokerUnavailableError, …: what `start` raises.
        """
        engine = self._started()
        engine.check_entry()
        place = engine.identity.place(ordering_key, order, immunity)
        key = engine.identity.draw(txn_id, now_ms())
        return Transaction(engine, barrier=self._barrier, place=place, key=key, may_wait=block)

    def publish(
        self,
        messages: Sequence[Message] | Message,
        *,
        txn_id: str | None = None,
        ordering_key: OrderingKey = OF_MESSAGES,
        order: str | OrderMode = "commit",
        block: bool = True,
    ) -> TransactionSendResult:
        """One transaction without a local one: all messages or none; returns when its commit is acknowledged.

        Raises:
            TxLayerError: what `submit` raises, and what the result of its future raises.
        """
        flight = self.submit(
            messages, txn_id=txn_id, ordering_key=ordering_key, order=order, block=block
        )
        return flight.result()

    def submit(
        self,
        messages: Sequence[Message] | Message,
        local_transaction: LocalTransaction | None = None,
        *,
        txn_id: str | None = None,
        ordering_key: OrderingKey = OF_MESSAGES,
        order: str | OrderMode = "commit",
        immunity: timedelta | None = None,
        executor: Executor | None = None,
        block: bool = True,
    ) -> SubmittedTransaction:
        """Send a transaction without waiting for it; thousands may be in flight from one thread.

        When its half messages are acknowledged, `local_transaction(tx)` is called, in the order of acknowledgements on
        the producer's thread, or on `executor`. It returns COMMIT (or nothing), ROLLBACK or UNKNOWN; what it raises is
        raised by the future, and the resolution is UNKNOWN. Without one the transaction commits at once. With a barrier
        it calls `tx.join(session)`, and the database decides as in a `with` block.

        Returns:
            A future (it goes with `concurrent.futures` and `asyncio.wrap_future`) of the `TransactionSendResult`, done
            when the resolution is acknowledged.

        Raises:
            UsageError and its kinds, RefusedRecordError: nothing was sent.
            RetriableError: `in_flight_max` are in flight, and `block` is False or none ended in `prepare_timeout`.
            OpenTransactionLimitError: the group has too many open transactions. Nothing was sent.
        """
        engine = self._engine
        if engine is None:
            engine = self._started()
        if engine.limit is not None:
            engine.check_entry()
        several = (messages,) if isinstance(messages, Message) else messages
        work = None
        if local_transaction is not None:
            work = LocalWork(local_transaction, executor, several, self._barrier)
        identity = engine.identity
        place = identity.place(ordering_key, order, immunity)
        if (place is BY_MESSAGES or place is ANYWHERE) and txn_id is None and len(several) == 1:
            plain = engine.launch_plain(several[0], place, work)
            if plain is not None:
                if plain.unsent is not None:
                    drive(steps.store_rest(engine, plain), engine.pipeline)
                return plain
        make = SubmittedTransaction if work is None else partial(SubmittedTransaction, work=work)
        key = identity.draw(txn_id, now_ms())
        launch = steps.launch(engine, make, several, place, key, may_wait=block)
        return cast("SubmittedTransaction", drive(launch, engine.pipeline))

    def status(
        self,
        txn_id: str,
        *,
        since: timedelta = SINCE,
        ordering_key: bytes | str | None = None,
    ) -> list[TransactionHistory]:
        """Ask the topics what became of a transaction: one history per nonce, the oldest first.

        Half and op are read from `since` on; all partitions, unless the ordering key is given.

        Raises:
            UsageError: it is no transaction id.
            BrokerUnavailableError: the topics cannot be read.
        """
        return self._started().status(txn_id, since=since, ordering_key=ordering_key)

    def responder_stats(self) -> ResponderStats | None:
        """What this producer answered so far; None when it answers nothing, or is not started."""
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
                self._engine = open_engine(
                    self._config,
                    group=self._group,
                    serializer=self._serializer,
                    connect=self._connect,
                    answering=self._answering,
                    assemble_engine=self._assemble,
                )
                # A program that forgets to close still has its last resolutions sent.
                atexit.register(self.close)
            return self._engine


class Transaction(OpenTransaction):
    """One transaction of one thread, as a `with` block.

    Leaving normally after `prepare` commits. An exception passes through as it is, and the resolution is UNKNOWN: a
    check-back settles it (`rollback` says it outright). With a barrier and `join` the database decides in both cases.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._local is None:
            self.leave(exc)
        else:
            drive(self._leave_steps(exc), self._engine.pipeline)

    def prepare(self) -> None:
        """Store the messages; returns when all replicas have them. Now do the local transaction.

        Raises:
            UsageError and its kinds, RefusedRecordError: a message cannot be sent. Nothing was sent.
            RetriableError: nothing was stored; it may be called again.
            RollbackRequiredError: this transaction is lost, what is stored of it is rolled back.
            OutcomeUnknownError: nobody acknowledged in `prepare_timeout`. Do not do the local transaction: nothing was
                decided, and a half message that may be stored is settled by a check-back.
        """
        drive(self._prepare_steps(), self._engine.pipeline)

    def join(self, session: Any) -> None:
        """Prepare, unless that is done, then write the barrier's row as a part of the session's local transaction.

        The resolution is that of the database from now on: commit when it reports the commit of this local transaction,
        else what the row says. End the local transaction inside the block.

        Raises:
            UsageError: the producer has no barrier, or the session cannot be joined (autocommit, another database,
                a savepoint's). Nothing was sent.
            TxLayerError: what `prepare` raises. The session holds nothing of ours.
            BarrierRefusedError: a check-back came first: roll back; the session refuses to commit.
            Exception: the database's own, as it was; the session refuses to commit.
        """
        drive(self._join_steps(session), self._engine.pipeline)

    def result(
        self, timeout: float | None = None, *, with_decision: bool = False
    ) -> TransactionSendResult:
        """Wait until the resolution is acknowledged.

        `with_decision` also reads what was decided, which another word may have come first to do: half and op of the
        transaction's partition from its first half record on, with clients of their own, outside of `timeout`. It
        needs the rights of the role reader. After a commit or a rollback the answer is final.

        Raises:
            TimeoutError: it is not, after `timeout` seconds; it goes on.
            OutcomeUnknownError: it may not be stored; a check-back settles it.
            LifecycleError: nothing was said yet.
            BrokerUnavailableError, NotAuthorisedError: the resolution is stored, and the decision cannot be read.
        """
        run = self._result_steps(with_decision=with_decision)
        return drive(run, self._engine.pipeline, timeout_s=timeout)


def drive(run: Steps[T], pipeline: Pipeline, *, timeout_s: float | None = None) -> T:
    """Run steps to their end; this thread waits for what they yield.

    Raises:
        TimeoutError: they did not end within `timeout_s`.
        LifecycleError: this is the producer's thread, which would wait for itself.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        wait = next(run)
        while True:
            if isinstance(wait, BarrierCall):
                wait = ask(run, wait)
                continue
            if isinstance(wait, Blocking):
                try:
                    answer = wait.call()
                except TxLayerError as exc:
                    wait = run.throw(exc)
                else:
                    wait = run.send(answer)
                continue
            if pipeline.is_own_thread:
                raise LifecycleError(
                    "the producer's own thread would wait for itself", state="open"
                )
            lock = threading.Lock()
            lock.acquire()
            if wait(lock.release):
                # Never longer than a moment, so that steps see their own limits and the end of the producer.
                left_s = LOOK_S if deadline is None else min(deadline - time.monotonic(), LOOK_S)
                if not lock.acquire(timeout=max(left_s, 0)) and left_s < LOOK_S:
                    raise TimeoutError(f"not acknowledged within {timeout_s} s")
            wait = next(run)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        run.close()
