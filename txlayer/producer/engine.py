"""What a started producer consists of, and how it is put together. Both producers, threads and asyncio, hold one."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from txlayer.adapters.connect import LINGER_MS, ConnectProducer, ProducerConnections
from txlayer.adapters.ports import HistoryStart, TopicLimits, limits_of
from txlayer.adapters.readers import LogHistoryReader
from txlayer.adapters.telemetry import Log
from txlayer.config import ProducerConfig
from txlayer.core import codec
from txlayer.core.history import TransactionHistory
from txlayer.core.messages import Message, OrderMode, Resolution, check_txn_id
from txlayer.errors import NotAcceptingError, TopicMismatchError, TxLayerError
from txlayer.producer.encoding import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Encoder,
    HalfRecord,
    PartitionSelector,
)
from txlayer.producer.identity import (
    ANYWHERE,
    BY_MESSAGES,
    OF_MESSAGES,
    Entry,
    Identity,
    OrderingKey,
    Placement,
    asked_options,
    check_with_option,
    now_ms,
)
from txlayer.producer.interceptors import Watch, Watcher
from txlayer.producer.metrics import ProducerMetrics
from txlayer.producer.pipeline import LINE_BYTES_MAX, NAMED_MAX, OPEN, UNSTORED, OpQueue, PendingTransaction, Pipeline
from txlayer.producer.questions import OpenLimit
from txlayer.producer.responder import Answering, AnswerWriter, Responder
from txlayer.producer.submitted import LocalWork, SubmittedTransaction

logger = Log("txlayer.producer")

MARGIN_MS = 60_000  # by so much a producer's clock may be ahead of the broker's until half is read from its start
AGAIN_S = 0.5


def in_a_thread(look: Callable[[], None]) -> None:
    threading.Thread(target=look, name="txlayer-offsets", daemon=True).start()


class OffsetLookup:
    """Finds the offsets of half messages that are stored at an offset that the client did not report.

    librdkafka takes records for stored when a later batch of their partition is acknowledged, for example after a broker
    was cut off between two answers. An op line names an offset, and only reading half tells it. The threads of the lookup
    read; the producer's thread gets the results through `post`.
    """

    def __init__(
        self,
        make_history: Callable[[], LogHistoryReader],
        *,
        post: Callable[[Callable[[], None]], None],
        patience_s: float,
        start: Callable[[Callable[[], None]], None] = in_a_thread,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_history = make_history
        self._post = post
        self._patience_s = patience_s
        self._start = start
        self._clock = clock
        self._is_over = threading.Event()
        self._sought: set[PendingTransaction] = set()

    # --- on the producer's thread -------------------------------------------------------------------------------------

    def find(self, txns: Sequence[PendingTransaction]) -> None:
        """Search for the transactions' offsets; each gets its offset, or `UNSTORED` when the patience is over."""
        named = " ".join(txn.txn_id for txn in txns[:NAMED_MAX])
        logger.warning("half.placeless", extra={"txn_count": len(txns), "txn_id": named})
        self._sought.update(txns)
        of_partition: dict[int, list[PendingTransaction]] = {}
        for txn in txns:
            of_partition.setdefault(txn.half_partition, []).append(txn)
        for partition, sought in of_partition.items():
            try:
                self._start(partial(self._look_up, partition, sought))
            except RuntimeError:
                # The machine may have no room for another thread just now: what nobody looks up is settled by a check-back.
                logger.exception("thread.not_started")
                for txn in sought:
                    self._report(txn, UNSTORED)

    def end(self) -> None:
        """The producer ends: the offsets still sought are reported as not found."""
        self._is_over.set()
        for txn in list(self._sought):
            self._report(txn, UNSTORED)

    def _report(self, txn: PendingTransaction, offset: int) -> None:
        try:
            self._sought.remove(txn)
        except KeyError:
            return  # it was reported already: the producer has ended meanwhile
        txn.offset_found(offset)

    # --- on the lookup's threads --------------------------------------------------------------------------------------

    def _look_up(self, partition: int, sought: Sequence[PendingTransaction]) -> None:
        keys = {txn.key for txn in sought}
        at_ms = min(txn.born_ms for txn in sought) - MARGIN_MS
        found: Mapping[str, int] = {}
        give_up_at = self._clock() + self._patience_s
        while not self._is_over.is_set():
            try:
                found = self._make_history().half_offsets(partition, keys, at_ms=at_ms)
                break
            except TxLayerError as exc:
                reason = str(exc)
            if self._clock() > give_up_at:
                logger.error("half.not_found", extra={"partition": partition, "txn_count": len(keys), "reason": reason})
                break
            self._is_over.wait(AGAIN_S)
        for txn in sought:
            self._post(partial(self._report, txn, found.get(txn.key, UNSTORED)))


ENTRY_LOOK_S = 5.0  # interval in which a producer asks whether its namespace accepts new transactions, and is as it was


class ClosedNamespace(NamedTuple):
    """An operator closed the namespace to new transactions; what has begun goes on."""

    namespace: str
    closed_at_ms: int

    def error(self, _group: str = "") -> NotAcceptingError:
        return NotAcceptingError(
            "the namespace accepts no new transactions until `txlayer topics accept --on`. Nothing was sent",
            namespace=self.namespace,
            closed_at_ms=self.closed_at_ms,
        )


class OtherPartitionCount(NamedTuple):
    """Half has another number of partitions than when the producer started: coordinators would quarantine what it sends."""

    topic: str
    expected: int
    found: int

    def error(self, _group: str = "") -> TopicMismatchError:
        return TopicMismatchError(
            "the number of partitions has changed since this producer was started; make a new one. Nothing was sent",
            topic=self.topic,
            expected=f"{self.expected} partitions",
            found=f"{self.found}",
        )


def watch_entry(
    ask: Callable[[], TopicLimits | None], tell: Callable[[TopicLimits], None], *, interval_s: float
) -> threading.Event:
    """Ask again and again, on a thread of its own, whether new transactions may begin, until the event is set."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(interval_s):
            look_at_entry(ask, tell)

    threading.Thread(target=run, name="txlayer-entry", daemon=True).start()
    return is_over


def look_at_entry(ask: Callable[[], TopicLimits | None], tell: Callable[[TopicLimits], None]) -> None:
    """Ask once. If nothing answers, the last answer counts: without a broker no transaction can begin anyway."""
    try:
        limits = ask()
    except TxLayerError as exc:
        logger.info("namespace.unknown", extra={"reason": str(exc)})
        return
    if limits is not None:
        tell(limits)


BATCH_BYTES_MAX = 1_000_000  # the client's own default for one request's records of a partition
OP_LINE_COUNT_MAX = 1_000  # lines of one op record: it stays well below any topic's largest message
SINCE = timedelta(hours=1)  # how far back `status` looks unless told


MakePending = Callable[[OpQueue, str, int, int], PendingTransaction]


@dataclass(kw_only=True, eq=False)
class Engine:
    """The parts of one started producer."""

    connections: ProducerConnections
    encoder: Encoder
    identity: Identity
    pipeline: Pipeline
    config: ProducerConfig
    check_with: str = ""
    watchers: Sequence[Watcher] = ()
    responder: Responder | None = None
    limit: OpenLimit | ClosedNamespace | OtherPartitionCount | None = None
    """Why no transaction may be entered. None: it may."""
    closed: ClosedNamespace | OtherPartitionCount | None = None
    is_unwatched: threading.Event | None = None
    """Set it to end the watch over whether the namespace accepts transactions."""

    def __post_init__(self) -> None:
        self._open_limit: OpenLimit | None = None
        self._asking = threading.Lock()
        is_plain = not self.check_with and not self.watchers
        self.entry = Entry(None, BY_MESSAGES, asked_options(self.check_with, None), may_wait=True, is_plain=is_plain)
        """That of a transaction without options."""

    def enter(
        self,
        txn_id: str | None = None,
        *,
        ordering_key: OrderingKey = OF_MESSAGES,
        order: str | OrderMode = "commit",
        immunity: timedelta | None = None,
        unresolved: str | None = None,
        check_with: Iterable[str] | None = None,
        query_id: str | None = None,
        block: bool = True,
    ) -> Entry:
        """Check the options of a new transaction, and that it may be entered. The defaults stand here alone.

        Raises:
            UsageError: an option is not valid. Nothing was sent.
            OpenTransactionLimitError: the group has too many open transactions. Nothing was sent.
        """
        self.check_entry()
        placement = self.identity.placement(ordering_key, order, immunity, unresolved)
        asked = self.entry.asked
        if check_with is not None or query_id is not None:
            own = self.check_with if check_with is None else check_with_option(check_with)
            asked = asked_options(own, query_id)
        is_plain = placement in (BY_MESSAGES, ANYWHERE) and txn_id is None and not asked and not self.watchers
        return Entry(txn_id, placement, asked, block, is_plain)

    def hear_limit(self, limit: OpenLimit | None) -> None:
        """What the coordinators say of the group's open transactions from now on; a responder hears it."""
        self._open_limit = limit
        self.limit = self.closed or limit

    def hear_half(self, limits: TopicLimits) -> None:
        """What the half topic is like now."""
        topic, own = self.pipeline.half_topic, len(self.pipeline.queues)
        if limits.partition_count == own:
            self.hear_closed(limits.closed_at_ms)
            return
        changed = OtherPartitionCount(topic, own, limits.partition_count)
        if changed != self.closed:
            extra = {"topic": topic, "expected": own, "found": limits.partition_count}
            logger.error("producer.outdated", extra=extra)
        self.closed = self.limit = changed

    def hear_closed(self, closed_at_ms: int | None) -> None:
        """Since when the namespace accepts no new transactions; None: it accepts them."""
        namespace = self.config.namespace
        closed = None if closed_at_ms is None else ClosedNamespace(namespace, closed_at_ms)
        if closed != self.closed:
            logger.warning("namespace.closed" if closed else "namespace.opened", extra={"namespace": namespace})
        self.closed = closed
        self.limit = closed or self._open_limit

    def check_entry(self) -> None:
        """Return when a transaction may be entered.

        Raises:
            NotAcceptingError: an operator closed the namespace to new ones. Nothing was sent.
            TopicMismatchError: half has another number of partitions than at the start. Nothing was sent.
            OpenTransactionLimitError: the group has too many that are open. Nothing was sent.
        """
        limit = self.limit
        if limit is not None:
            raise limit.error(self.pipeline.group)

    def launch_now(
        self, make: MakePending, records: list[HalfRecord], placement: Placement, key: str
    ) -> PendingTransaction | None:
        """Queue the half records of a new transaction; None: no slot in flight is free, nothing was sent.

        Where the client had no room for all of them, the transaction has `unsent` ones.

        Raises:
            LifecycleError, FencedError: the producer is closed or failed. Nothing was sent.
            TxLayerError: the client refused a record; what was queued before is rolled back.
        """
        pipeline = self.pipeline
        if pipeline.state is not OPEN:
            pipeline.check_open()
        watches: list[Watch] = []
        txn: PendingTransaction | None = None
        try:
            for _ in pipeline.taken_slots:
                break
        except IndexError:
            return None
        try:
            for begin in self.watchers:
                records, watch = begin(pipeline, records, key)
                watches.append(watch)
            queue = pipeline.queues[self.identity.partition(placement, key)]
            txn = make(queue, key, now_ms(), len(records))
            txn.watches = watches  # before anything is sent: reports come at once
            txn.unsent = (records, 0)
            queued_count = pipeline.store(txn, records)
            txn.unsent = (records, queued_count) if queued_count < len(records) else None
        except BaseException as exc:  # an interrupt, too: nobody has the transaction
            if txn is None:
                pipeline.give_back(1)
            else:
                pipeline.dropped(txn, exc)
            raise
        return txn

    def launch_plain(
        self, message: Message, placement: Placement, work: LocalWork | None
    ) -> SubmittedTransaction | None:  # longer than a screen's half, because each call saved is a share of the rate
        """`launch_now` for one message with nothing asked for; None: it is not that plain, or there is no room, nothing was sent.

        The same bytes as the way through `steps.launch` (a test holds both together), in a third of the time. It is
        what a bulk loader does millions of times.

        Raises:
            TxLayerError: what `launch_now` raises.
        """
        pipeline = self.pipeline
        if pipeline.state is not OPEN:
            pipeline.check_open()
        if message.key is None:
            placement = ANYWHERE
        elif placement is BY_MESSAGES:
            placement = self.identity.placement_of(placement, (message,))
        record = self.encoder.plain_record(message, placement)
        if record is None:
            return None
        txn: SubmittedTransaction | None = None
        try:
            for _ in pipeline.taken_slots:
                break
        except IndexError:
            return None
        try:
            topic, message_key, value, _, options = record
            born_ms = now_ms()
            if placement.partition is None:
                key, partition = self.identity.draw_with_partition(born_ms)
            else:
                key, partition = self.identity.draw(None, born_ms), placement.partition
            queue = pipeline.queues[partition]
            txn = SubmittedTransaction(queue, key, born_ms, 1, work)
            ours = (codec.HALF_HEADER, codec.half_header(key, pipeline.group, topic, 0, 1, born_ms, options))
            if pipeline.is_serving:
                pipeline.wait_at_gate()
            pipeline.produce(
                pipeline.half_topic, value, message_key, queue.partition, txn.half_reported, None, 0, [ours]
            )
        except BufferError:
            pipeline.slots.append(None)  # a call of Python's own: no interrupt comes before it
            return None
        except BaseException as exc:
            if txn is None:
                pipeline.give_back(1)
                raise
            raise pipeline.not_sent(txn, 1, exc) from exc
        return txn

    def learn(self, topic: str) -> None:
        """Ask the cluster about a topic; blocks.

        Raises:
            ForbiddenTopicError: there is no such topic. Nothing was sent.
            BrokerUnavailableError, NotAuthorisedError: no answer. Nothing was sent.
            LifecycleError, FencedError: the producer is closed, failed, or of another process. Nothing was sent.
        """
        self.pipeline.check_open()
        with self._asking:
            # A thousand tasks begin with the same topic: one asks, the others find the answer here.
            if not self.encoder.is_known(topic):
                self.encoder.learn(topic, self.connections.topic_limits(topic))

    def status(self, txn_id: str, *, since: timedelta, is_whole: bool = False) -> list[TransactionHistory]:
        """What the topics say of an id; blocks. `is_whole`: see `LogHistoryReader.read`."""
        check_txn_id(txn_id)
        history = self.connections.history()
        since_ms = max(history.now_ms() - since // timedelta(milliseconds=1), 0)
        return history.read(txn_id, start=HistoryStart(since_ms), is_whole=is_whole)

    def decision(self, txn: PendingTransaction) -> Resolution | None:
        """What was decided about a transaction whose op line is stored: what is before that line is read; blocks."""
        position = (txn.half_partition, txn.first_offset)
        histories = self.connections.history().read(
            txn.txn_id,
            start=HistoryStart(
                txn.born_ms - SINCE // timedelta(milliseconds=1), position if txn.first_offset >= 0 else None
            ),
            partitions=[txn.half_partition],
            is_whole=True,
        )
        lines = [line.op for h in histories if h.nonce == txn.nonce for line in h.op_lines if line.is_counted]
        # The first one is final, also if messages that it committed are given up later.
        return next((op.resolution for op in lines if op.is_decision), None)


def open_engine(
    config: ProducerConfig,
    *,
    group: str,
    serializer: Any,
    connect: ConnectProducer,
    answering: Answering | None = None,
    metrics: ProducerMetrics | None = None,
    **given: Any,
) -> Engine:
    """Connect, check the namespace's topics, and start the producer's thread, and its responder's; blocks. `given`: see `assemble`.

    Raises:
        BrokerUnavailableError: no broker answered within `start_timeout`.
        NotAuthorisedError: credentials or rights were refused.
        TopicMismatchError: half and op are missing or have unlike partition counts, or no broker can be asked.
    """
    connections = connect(config)
    try:
        half = limits_of(connections.topic_limits, config.topics.half)
        op = limits_of(connections.topic_limits, config.topics.op)
        if half.partition_count != op.partition_count:
            raise TopicMismatchError(
                "half and op records of a transaction share one partition number; nothing was started",
                topic=config.topics.op,
                expected=f"{half.partition_count} partitions, like {config.topics.half}",
                found=f"{op.partition_count}",
            )
        engine = assemble(config, connections, half, op, group=group, serializer=serializer, **given)
    except BaseException:
        connections.close()
        raise
    if metrics is not None:
        metrics.follow(engine)
    engine.pipeline.start()
    if answering is not None:
        try:
            engine.responder = Responder(
                answering,
                connections=connections,
                config=config,
                writer=AnswerWriter(engine.pipeline, line_count_max=_op_line_count_max(half, op)),
                group=group,
                on_limit=engine.hear_limit,
            )
            engine.responder.start()
        except BaseException:
            engine.pipeline.end(0.0)
            connections.close()
            raise
    engine.hear_closed(half.closed_at_ms)
    ask = partial(connections.topic_limits, config.topics.half)
    engine.is_unwatched = watch_entry(ask, engine.hear_half, interval_s=ENTRY_LOOK_S)
    return engine


def assemble(
    config: ProducerConfig,
    connections: ProducerConnections,
    half: TopicLimits,
    op: TopicLimits,
    *,
    group: str,
    serializer: Any,
    linger_ms: float = LINGER_MS,
    spare_bytes: int = 0,
    check_with: str = "",
    select: PartitionSelector | None = None,
    is_group_named: bool = False,
    watchers: Sequence[Watcher] = (),
) -> Engine:
    """The parts, of topics that fit together; the producer's thread is not started.

    `spare_bytes` of each message stay free for headers that come later.
    """
    pipeline = Pipeline(
        connections.make_half_writer(batch_bytes_max=_batch_bytes_max(half, op), linger_ms=linger_ms),
        group=group,
        half_topic=config.topics.half,
        op_topic=config.topics.op,
        partition_count=half.partition_count,
        op_line_count_max=_op_line_count_max(half, op),
        in_flight_max=config.in_flight_max,
        resolution_timeout_s=config.resolution_timeout.total_seconds(),
    )
    pipeline.offset_lookup = OffsetLookup(
        connections.history, post=pipeline.post, patience_s=config.resolution_timeout.total_seconds()
    )
    pipeline.is_watched = bool(watchers)
    encoder = Encoder(
        config,
        half_bytes_max=half.message_bytes_max,
        spare_bytes=spare_bytes,
        select=select,
        named_group=group if is_group_named else "",
        serialize=None if serializer is None else partial(connections.serialize, serializer),
    )
    return Engine(
        connections=connections,
        encoder=encoder,
        identity=Identity(partition_count=half.partition_count),
        pipeline=pipeline,
        config=config,
        check_with=check_with,
        watchers=watchers,
    )


def _batch_bytes_max(half: TopicLimits, op: TopicLimits) -> int:
    # A batch holds several records, and the broker refuses all of them when it is larger than one message may be.
    return min(_bytes_max(half), _bytes_max(op), BATCH_BYTES_MAX)


def _op_line_count_max(half: TopicLimits, op: TopicLimits) -> int:
    room = _batch_bytes_max(half, op) - BATCH_OVERHEAD_BYTES - RECORD_OVERHEAD_BYTES
    return max(1, min(OP_LINE_COUNT_MAX, room // LINE_BYTES_MAX))


def _bytes_max(limits: TopicLimits) -> int:
    return BATCH_BYTES_MAX if limits.message_bytes_max is None else limits.message_bytes_max
