"""What the ledgers of an assignment are built from: the number of partitions, settings and check policies. And recovery: it builds
them from the stored offsets, with the same fold that live reading uses.

The steps are those of docs/explanation/protocol.md, "Recovery": end the Kafka transactions that former owners left open,
wait for stable offsets, read doubt, fold half and then op without effect. The form of stored positions: "Stored offsets" there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import fields
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import Assignment, StoredOffset, TopicPartition, append_time_of, limits_of, no_append_time
from txlayer.adapters.readers import COORDINATOR_ADVICE, Range, records_of
from txlayer.adapters.telemetry import Log
from txlayer.config import CoordinatorConfig, SystemTopics, milliseconds, parse_value
from txlayer.coordinator.shard import latest_ms
from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.codec import NEXT_VERSION, VERSION, PlainHeaders, known_fields, whole
from txlayer.core.ledger.batch import NO_LIMIT, Positions
from txlayer.core.ledger.doubt import DoubtFold
from txlayer.core.ledger.ledger import Ledger, LedgerSettings
from txlayer.core.ledger.transaction import Target
from txlayer.core.messages import ParkReason, UnresolvedAction
from txlayer.errors import BrokerUnavailableError, ConfigError, RetriableError, TopicMismatchError
from txlayer.runtime.environment import REAL, Environment
from txlayer.runtime.kafka_transactions import SMALL_BATCH_BYTES, STABLE_PATIENCE_S, close_in_background, stable_offsets

CHECK_SETTINGS = tuple(field.name.removesuffix("_ms") for field in fields(CheckPolicy))
"""Settings that a producer group may have of its own; a `CheckPolicy` holds them under the same names, lengths in ms."""


def check_policies(config: CoordinatorConfig) -> CheckPolicies:
    """The check policy of each producer group; ConfigError: a setting is none of these, or malformed."""
    values = {name: getattr(config, name) for name in CHECK_SETTINGS}
    own: dict[str, dict[str, Any]] = {}
    for name, text in config.group_policies.items():
        group, _, setting = name.rpartition(".")
        if not group or setting not in CHECK_SETTINGS:
            raise ConfigError(
                "no check setting of a producer group",
                name=name,
                value=text,
                expected="GROUP.NAME=VALUE, NAME one of " + ", ".join(CHECK_SETTINGS),
            )
        value = parse_value(name, setting, text, CoordinatorConfig)
        own.setdefault(group, dict(values))[setting] = value
    return CheckPolicies(_policy(values), {group: _policy(v) for group, v in own.items()})


def _policy(values: dict[str, Any]) -> CheckPolicy:
    try:
        unresolved = UnresolvedAction(values["unresolved"])
    except ValueError as exc:
        raise ConfigError(
            "no end for a transaction that nobody resolves",
            name="unresolved",
            value=values["unresolved"],
            expected=" or ".join(action.value for action in UnresolvedAction),
        ) from exc
    made: dict[str, Any] = {"unresolved": unresolved}
    for name, value in values.items():
        if isinstance(value, str):
            continue
        is_length = isinstance(value, timedelta)
        number = milliseconds(value) if is_length else value
        if number < 1:
            raise ConfigError("not possible as a limit", name=name, value=number, expected="more than 0")
        made[f"{name}_ms" if is_length else name] = number
    return CheckPolicy(**made)


def first_partition_count(
    connections: CoordinatorConnections, config: CoordinatorConfig, *, clock: Callable[[], float]
) -> int:
    """`count_partitions` for a cluster that may just be starting: retries until `start_timeout` is over."""
    patience_s = config.start_timeout.total_seconds()
    give_up_at = clock() + patience_s
    while True:
        connections.wait_until_reachable(config.topics.half, timeout_s=patience_s)
        try:
            return count_partitions(connections, config.topics)
        except BrokerUnavailableError:
            if clock() >= give_up_at:
                raise


def count_partitions(connections: CoordinatorConnections, topics: SystemTopics) -> int:
    """Number of partitions of half, op and doubt.

    Raises:
        TopicMismatchError: a topic is missing, the numbers differ, or the broker does not set append times. Nothing was read.
    """
    counts = {}
    for topic in (topics.half, topics.op, topics.doubt, topics.check):
        limits = limits_of(connections.topic_limits, topic)
        if topic in (topics.half, topics.op) and limits.is_append_time is False:
            raise no_append_time(topic, why="transactions grow old by the broker's clock alone")
        counts[topic] = limits.partition_count
    del counts[topics.check]  # its records name the partition that they concern
    for topic, count in counts.items():
        if count != counts[topics.half]:
            raise TopicMismatchError(
                "half, op and doubt must have equally many partitions; transactions would be torn apart",
                topic=topic,
                expected=str(counts[topics.half]),
                found=str(count),
            )
    return counts[topics.half]


def assigned_partitions(assignment: Assignment, topics: SystemTopics, *, partition_count: int) -> list[int]:
    """The assigned partitions, the same for half and op.

    Raises:
        TopicMismatchError: they differ, or there are more than `partition_count` by now; nothing may be read.
    """
    halves = {p for topic, p in assignment.partitions if topic == topics.half}
    ops = {p for topic, p in assignment.partitions if topic == topics.op}
    if halves != ops:
        raise TopicMismatchError(
            "half and op were not assigned alike; every member must subscribe to both with equal partition counts",
            topic=topics.op,
            expected=str(sorted(halves)),
            found=str(sorted(ops)),
        )
    if max(halves, default=0) >= partition_count:
        raise got_more_partitions(topics, partition_count=partition_count, found=f"partition {max(halves)}")
    return sorted(halves)


def got_more_partitions(topics: SystemTopics, *, partition_count: int, found: str) -> TopicMismatchError:
    return TopicMismatchError(
        "the topics of the namespace got more partitions while this coordinator ran; records would seem to be in the wrong "
        "one. Start it again",
        topic=topics.half,
        expected=str(partition_count),
        found=found,
    )


def ledger_settings(config: CoordinatorConfig, *, partition_count: int) -> LedgerSettings:
    return LedgerSettings(
        half_topic=config.topics.half,
        op_topic=config.topics.op,
        partition_count=partition_count,
        doubt_after_ms=milliseconds(config.doubt_after),
        held_age_max_ms=milliseconds(config.held_age_max),
        transaction_messages_max=config.transaction_messages_max,
        checks=check_policies(config),
        transaction_bytes_max=config.transaction_bytes_max,
    )


def empty_ledgers(
    partitions: Sequence[int],
    *,
    settings: LedgerSettings,
    targets: Mapping[str, Target],
    refusals: Mapping[str, ParkReason],
    make: type[Ledger] = Ledger,
) -> dict[int, Ledger]:
    """One ledger per partition, to be filled by a recovery."""
    headers = PlainHeaders(targets)
    ledgers = {p: make(p, settings=settings, targets=targets, refusals=refusals, headers=headers) for p in partitions}
    for ledger in ledgers.values():
        ledger.settled.share_memory(partition_count=len(ledgers))
    return ledgers


_OP_FIELDS = 6


class StoredPositions(NamedTuple):
    """The stored positions of one partition, and the writer that stored them."""

    positions: Positions
    writer: str  # "" if no coordinator has written yet
    time_ms: int = 0  # the partition's time then; 0: not known


def encode_stored(
    positions: Positions, *, writer: str, topics: SystemTopics, partition: int, time_ms: int = 0
) -> dict[TopicPartition, StoredOffset]:
    p = positions
    metadata = f"{VERSION}|{writer}|{p.half_next}|{p.op_line}|{p.replay_offset}:{p.replay_line}|{max(p.doubt_low, 0)}"
    return {
        (topics.half, partition): StoredOffset(p.low_water, f"{VERSION}|{writer}|{p.copies_from}|{time_ms}"),
        (topics.op, partition): StoredOffset(p.op_offset, metadata),
    }


def decode_stored(half: StoredOffset | None, op: StoredOffset | None, *, partition: int) -> StoredPositions:
    """Decode the positions of one partition.

    Raises:
        ConfigError: nothing is stored, or another program stored it. Nothing was read; the message names the command to run.
    """
    if half is None or op is None:
        raise ConfigError(
            f"no stored offset for partition {partition}: a new namespace needs `txlayer topics apply`, and an interrupted widening "
            "`txlayer topics widen` once more; after a loss say where to begin with `txlayer coordinator reset --to earliest|latest|TIME`",
            name="stored offsets",
            value=None,
            expected="an offset for half and op",
        )
    if not op.metadata:
        low_water, op_next = half.offset, op.offset
        return StoredPositions(Positions(low_water, low_water, op_next, 0, op_next, 0, 0, low_water), "")
    try:
        known = known_fields(op.metadata.split("|"), _OP_FIELDS)
        if known is None:
            raise ValueError(f"metadata {op.metadata[:20]!r}")
        version, *of_half = half.metadata.split("|")
        _, copies_from, time_ms, *_ = [*of_half, "", "", ""]
        if version not in (VERSION, NEXT_VERSION):
            copies_from = time_ms = ""
        _, writer, half_next, line, replay, doubt_low = known
        replay_offset, _, replay_line = replay.partition(":")
        further = map(whole, (replay_offset, replay_line, doubt_low, copies_from or str(half.offset)))
        positions = Positions(half.offset, whole(half_next), op.offset, whole(line), *further)
        return StoredPositions(positions, writer, whole(time_ms or "0"))
    except ValueError as exc:
        raise ConfigError(
            f"the stored offset of partition {partition} was not written by this coordinator; "
            "`txlayer coordinator reset` says where to begin",
            name="offset metadata",
            value=op.metadata[:200],
            expected="1|writer|…",
        ) from exc


logger = Log("txlayer.coordinator")


class Recovery:
    """Builds the ledgers of newly assigned partitions."""

    def __init__(
        self,
        config: CoordinatorConfig,
        connections: CoordinatorConnections,
        *,
        is_still_ours: Callable[[], None],
        environment: Environment = REAL,
        make_fold: Callable[[int, int], DoubtFold] = lambda _partition, op_offset: DoubtFold(op_offset=op_offset),
    ) -> None:
        """`make_fold` gets the partition, and the op offset that a replay begins at."""
        self._make_fold = make_fold
        self._clock = environment.clock
        self._wall_clock = environment.wall_clock
        self._background = environment.background
        self._config = config
        self._connections = connections
        self._is_still_ours = is_still_ours
        self._timeout_s = config.kafka_transaction_timeout.total_seconds()

    def rebuild(self, ledgers: dict[int, Ledger], *, former_writer: str = "") -> dict[int, StoredPositions]:
        """Bring empty ledgers to the stored positions. `former_writer` is fenced too, whatever is stored.

        Returns the positions of each partition, from which reading continues.

        Raises:
            ConfigError: no offsets are stored; nothing was changed.
            TxLayerError: the broker or the group stopped it; discard the ledgers and begin again.
        """
        started = self._clock()
        stored = self._stored_after_fencing(sorted(ledgers), former_writer)
        self.replay(ledgers, stored)
        for partition, ledger in ledgers.items():
            ledger.end_replay(stored[partition].positions)
        open_count, took_ms = sum(each.open_count for each in ledgers.values()), int((self._clock() - started) * 1000)
        extra = {"partitions": sorted(ledgers), "open_count": open_count, "took_ms": took_ms}
        logger.info("recovery.done", extra=extra)
        return stored

    def _stored_after_fencing(self, partitions: Sequence[int], former_writer: str) -> dict[int, StoredPositions]:
        topics = self._config.topics
        stored = stable_offsets(
            self._connections,
            topics.coordinator_group,
            [(topic, p) for p in partitions for topic in (topics.half, topics.op)],
            writers_of=self._writers_of,
            fence=self._end_what_is_open,
            former_writers=[former_writer],
            is_still_ours=self._is_still_ours,
            clock=self._clock,
        )
        return self._decoded(stored)

    def _writers_of(self, stored: Mapping[TopicPartition, StoredOffset | None]) -> AbstractSet[str]:
        return {positions.writer for positions in self._decoded(stored).values()}

    def _decoded(self, stored: Mapping[TopicPartition, StoredOffset | None]) -> dict[int, StoredPositions]:
        half, op = self._config.topics.half, self._config.topics.op
        return {p: decode_stored(stored[half, p], stored[op, p], partition=p) for topic, p in stored if topic == half}

    def _end_what_is_open(self, names: Sequence[str]) -> None:
        ids = [f"{name}.{letter}" for name in names for letter in "ab"]
        # One init takes 0.06 s, with a Kafka transaction to end 0.56 s: in parallel, all take as long as one.
        self._background.run_parallel([partial(self._fence, transactional_id) for transactional_id in ids])
        logger.info("recovery.fenced", extra={"transactional_ids": ids})

    def _fence(self, transactional_id: str) -> None:
        writer = self._connections.make_writer(transactional_id, batch_bytes_max=SMALL_BATCH_BYTES)
        try:
            writer.initialise(timeout_s=self._timeout_s)
        except BrokerUnavailableError:
            raise
        except RetriableError as exc:
            # Its last Kafka transaction is decided, and a marker waits for a partition that accepts no writes: a real topic below
            # `min.insync.replicas` would stop all other topics with it. The writer can add nothing to that Kafka transaction; when it
            # may begin another one, the group's generation fences it.
            logger.warning("recovery.still_ending", extra={"transactional_id": transactional_id, "reason": str(exc)})
        finally:
            close_in_background(writer, self._background)

    def replay(self, ledgers: dict[int, Ledger], stored: dict[int, StoredPositions]) -> None:
        """Fold empty ledgers to stored positions, without fencing or writing. Call `end_replay` afterwards.

        Raises:
            ConfigError: retention deleted records that must be read; nothing was changed.
            BrokerUnavailableError: a range did not arrive; discard the ledgers.
        """
        topics = self._config.topics
        with closing(self._connections.make_reader("read_committed")) as reader:
            tps = [(t, p) for t in (topics.doubt, topics.half, topics.op) for p in stored]
            starts = self._connections.start_offsets(tps)
            # The last stable offset may still wait for markers: the high watermark shows how far there are records.
            ends = self._connections.end_offsets(tps, is_committed=False)
            doubts = self._read_doubt(reader, stored, starts, ends)
            for partition, ledger in ledgers.items():
                fold, end = doubts[partition]
                ledger.times.believe_until(latest_ms(self._wall_clock))
                at = stored[partition]
                ledger.start_replay(at.positions, fold, doubt_next=end, time_ms=at.time_ms)

            def fold_half(record: Any) -> None:
                ledger = ledgers[record.partition()]
                header = codec.half_header_of(record.headers())
                if record.offset() < stored[record.partition()].positions.low_water:
                    ledger.recall_half(header, record)
                    return
                ledger.fold_half(record.offset(), _appended_ms(record, ledger), header, record)
                if ledger.content_bytes * len(ledgers) > self._config.content_bytes_max:
                    ledger.drop_content(ledger.content_bytes // 4)

            def fold_op(record: Any) -> None:
                ledger = ledgers[record.partition()]
                positions = stored[record.partition()].positions
                value = record.value()
                if record.offset() == positions.op_offset:
                    value = self.applied_lines(value, positions.op_line)
                ledger.add_ops(record.offset(), _appended_ms(record, ledger), value, record)
                ledger.advance(line_count_max=NO_LIMIT, byte_count_max=NO_LIMIT)
                ledger.forget_batch()

            halves: dict[TopicPartition, Range] = {}
            ops: dict[TopicPartition, Range] = {}
            for partition in ledgers:
                p = stored[partition].positions
                # Retention may have deleted records that are needed only to recognise second copies.
                copies_from = max(p.copies_from, starts[topics.half, partition])
                halves[topics.half, partition] = (min(copies_from, p.low_water), p.half_next)
                ops[topics.op, partition] = (p.replay_offset, p.op_offset + (1 if p.op_line else 0))
                _check_is_there((topics.half, partition), (p.low_water, p.half_next), starts, ends)
                _check_is_there((topics.op, partition), ops[topics.op, partition], starts, ends)
            for record in self._records(reader, halves):
                fold_half(record)
            for record in self._records(reader, ops):
                fold_op(record)

    @staticmethod
    def applied_lines(value: bytes | None, line_count: int) -> bytes:
        """The first lines of an op record: the applied part of the record at the stored position."""
        return b"\n".join((value or b"").split(b"\n")[:line_count])

    def _read_doubt(
        self,
        reader: Any,
        stored: dict[int, StoredPositions],
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> dict[int, tuple[DoubtFold, int]]:
        topic = self._config.topics.doubt
        folds: dict[int, tuple[DoubtFold, int]] = {}
        ranges: dict[TopicPartition, Range] = {}
        for partition, (positions, _, _) in stored.items():
            high = ends[topic, partition]
            if positions.doubt_low > high:
                raise _is_cut_short((topic, partition), positions.doubt_low, high)
            low = max(starts[topic, partition], positions.doubt_low)
            folds[partition] = (self._make_fold(partition, positions.replay_offset), high)
            ranges[topic, partition] = (low, high)

        fold_of = {partition: fold.fold for partition, (fold, _) in folds.items()}
        for record in self._records(reader, ranges):
            fold_of[record.partition()](record.offset(), record.key(), record.value(), record.headers)
        for partition, (done, _) in folds.items():
            if done.unreadable:
                logger.error("doubt.unreadable", extra={"partition": partition, "count": len(done.unreadable)})
        return folds

    def _records(self, reader: Any, ranges: dict[TopicPartition, Range]) -> Iterator[Any]:
        return records_of(
            reader, ranges, is_still_ours=self._is_still_ours, patience_s=STABLE_PATIENCE_S, clock=self._clock
        )


def _appended_ms(record: Any, ledger: Ledger) -> int:
    appended_ms = append_time_of(record)
    # Without an append time: as young as possible, and not used as a time.
    return ledger.times.latest_ms + 1 if appended_ms is None else appended_ms


def _check_is_there(
    tp: TopicPartition, wanted: Range, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> None:
    if wanted[0] < min(starts[tp], wanted[1]):
        raise ConfigError(
            f"{tp[0]}-{tp[1]} begins at {starts[tp]}, and must be read from {wanted[0]} on; what was there is lost to "
            f"the coordinator: {COORDINATOR_ADVICE}",
            name="stored offset",
            value=wanted[0],
            expected="an offset within the topic's retention",
        )
    if wanted[1] > ends[tp]:
        raise _is_cut_short(tp, wanted[1], ends[tp])


def _is_cut_short(tp: TopicPartition, position: int, end: int) -> ConfigError:
    return ConfigError(
        f"{tp[0]}-{tp[1]} ends at {end}, and was read up to {position} before: it was made anew, or brokers lost its end; "
        f"find out which, then {COORDINATOR_ADVICE}",
        name="stored offset",
        value=position,
        expected="an offset that the topic has",
    )
