"""The engine of every consumer: read → queues → handlers → outcomes → store, in one thread. The rules are in `core`.

Crash-only, like the coordinator: after any error of its own the engine drops the queues and rebuilds them from the stored
offsets, which show what has ended. A handler's exception is not such an error.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.ports import TopicPartition
from txlayer.adapters.telemetry import Log
from txlayer.config import ConsumerConfig, milliseconds
from txlayer.consumer.assignments import Assignments
from txlayer.consumer.completions import Completions
from txlayer.consumer.context import FOR_EVER
from txlayer.consumer.dead_letters import DeadLetterReader
from txlayer.consumer.dispatch import Breakers, Dispatcher
from txlayer.consumer.ingest import Ingest, ReadLimits
from txlayer.consumer.lease_keeper import LeaseKeeper
from txlayer.consumer.metrics import ConsumerStats, TopicCounts, TopicStats
from txlayer.consumer.offsets import OffsetStorer, OwnedPartition
from txlayer.consumer.plan import ConsumerPlan, check_topics
from txlayer.consumer.pools import Pool
from txlayer.core.key_queue import ItemSource
from txlayer.core.retry import Breaker, BreakerState
from txlayer.errors import (
    ForbiddenTopicError,
    InstanceFencedError,
    InvariantError,
    RetriableError,
    TxLayerError,
    UsageError,
)
from txlayer.runtime.environment import REAL, Environment, wait_before_rebuild

logger = Log("txlayer.consumer")

READ_COUNT_MAX = 5_000  # records of one read; it limits how long results wait meanwhile
IDLE_WAIT_S = 0.1  # how long an idle read waits; a record ends the wait
BUSY_WAIT_S = 0.005
"""How long the engine waits for handlers before it looks for records again; half a chunk, if that is longer and no worker is
free: then only an outcome lets a job start, and it ends the wait."""
READY_FACTOR = 4  # reading goes on while fewer than this many times `in_flight_max` messages could start
AHEAD_FACTOR = 10
"""Records in memory, in multiples of `in_flight_max`; beyond it only a consumer with too few runnable messages reads on. Records
used long after they were read have left the processor's caches, and an empty handler then costs a quarter more."""
FILLED_SHARE = 0.9
"""The share of `in_flight_max` that counts as filled: the last slots may wait for failed keys that return by themselves, and
reading on for them would fill the memory."""
STORING_WAIT_S = 0.002  # the same during a store: next attempts wait for its acknowledgement
DRAIN_LOOK_S = 0.02  # how often a drain serves the group
LAST_ANSWERS_S = 0.5
"""How long the workers of messages that a program took may need to say that these were answered, or given back."""
LATE_STORE_S = 1.0
"""How long the last store waits for one under way: the client sends a refused one again some 0.1 s later, and it would land behind."""
POOL_END_S = 0.5  # how long the pool may take to end after handlers in flight were given up


class Engine:
    """Owns one group member and the queues of its partitions. `make_leases` is called again after the lease keeper failed."""

    def __init__(
        self,
        config: ConsumerConfig,
        plan: ConsumerPlan,
        *,
        connections: ConsumerConnections,
        pool: Pool,
        make_leases: Callable[[], LeaseKeeper],
        environment: Environment = REAL,
    ) -> None:
        self._config = config
        self._plan = plan
        self._connections = connections
        self._pool = pool
        self._environment = environment
        self._clock = environment.clock
        self._wall_base = environment.wall_clock() - environment.clock()
        self._is_ending = False
        self.rebuild_count = 0
        self._turned_at: float | None = None
        self._reader = connections.make_group_reader(plan.group)
        self._storer = OffsetStorer(
            self._reader,
            interval_s=config.store_interval.total_seconds(),
            timeout_s=config.store_timeout.total_seconds(),
            clock=self._clock,
            is_kept=plan.keeps_position,
        )
        self._dispatcher = Dispatcher(
            pool,
            in_flight_max=config.in_flight_max,
            clock=self._clock,
            now_ms=self._now_ms,
            draw=environment.draw,
            key_group=plan.key_group,
            breakers=Breakers(plan.breakers, plan.routes),
            give_back=bool if plan.desk is None else plan.desk.give_back,
        )
        self._assignments = Assignments(
            config,
            plan,
            connections=connections,
            reader=self._reader,
            make_leases=make_leases,
            storer=self._storer,
            dispatcher=self._dispatcher,
            chunk_s=pool.chunk_s,
            environment=environment,
            now_ms=self._now_ms,
        )
        self._letters = DeadLetterReader(connections, clock=self._clock)
        self._ingest = Ingest(group=plan.group, letters=self._letters, now_ms=self._now_ms)
        timeout_ms = milliseconds(config.kafka_transaction_timeout)
        self._completions = Completions(
            group=plan.group, now_ms=self._now_ms, cut=self._dispatcher.cut, kafka_transaction_timeout_ms=timeout_ms
        )
        self._read_limits = ReadLimits(
            self._reader, record_count_max=config.record_count_max, record_bytes_max=config.record_bytes_max
        )

    # --- life ---------------------------------------------------------------------------------------------------------

    def run(self, *, should_stop: Callable[[], bool]) -> None:
        """Work until `should_stop`, then let handlers end, store what ended, and leave the group.

        Raises:
            UsageError: topics, settings or stored offsets are not valid.
            BrokerUnavailableError: no broker answered at the start.
            InstanceFencedError: another process has the same `instance_id`. What is stored is correct.
            InvariantError: a bug in txlayer; what is stored is correct.
        """
        failure_count = 0
        try:
            self.start()
            while not should_stop():
                try:
                    self.turn()
                    failure_count = 0
                except (UsageError, InstanceFencedError, InvariantError):
                    raise
                except TxLayerError as exc:
                    failure_count += 1
                    self._start_over(exc, failure_count)
            self._end()
        except BaseException as exc:
            if not isinstance(exc, TxLayerError) or isinstance(exc, InvariantError):
                # A fault of ours: the queues may not know what is stored, and would store over it.
                self._assignments.give_up()
            raise
        finally:
            self.close()

    def start(self) -> None:
        """Check the topics and join the group; retries until `start_timeout` while the cluster is starting.

        Raises:
            TopicMismatchError: a topic is missing, or topics that belong together have different partition counts.
            RetriableError, NotAuthorisedError: the cluster gave no answer.
        """
        timeout_s = self._config.start_timeout.total_seconds()
        give_up_at = self._clock() + timeout_s
        while True:
            self._connections.wait_until_reachable(self._plan.topics[0], timeout_s=timeout_s)
            try:
                self._assignments.topic_ids = check_topics(self._connections, self._plan)
                self._assignments.start()
                break
            except RetriableError as exc:  # also a leader that just moved and cannot report the end of its log yet
                if self._clock() >= give_up_at:
                    raise
                reason = {"group": self._plan.group, "reason": str(exc)}
                logger.warning("consumer.waiting", extra=reason)
        self._pool.start()
        self._reader.start(self._plan.sources, on_revoke=self._on_revoke)

    def _end(self) -> None:
        """Let running handlers end, and store their results while the member is in the group."""
        try:
            self._drain(self._config.close_timeout.total_seconds(), serve=self._serve_group)
            self._wait_for_store()
            self._store_what_ended()
        except (UsageError, InvariantError):
            raise
        except TxLayerError as exc:
            # The session is over, or no broker answers: the next owner repeats what is not stored.
            logger.warning("consumer.end_not_stored", extra={"group": self._plan.group, "reason": str(exc)})

    def turn(self) -> None:
        """One round; it waits for `IDLE_WAIT_S` at most; TxLayerError: the queues must be rebuilt."""
        assignments, dispatcher = self._assignments, self._dispatcher
        self._turned_at = self._clock()
        records = self._reader.read(record_count_max=self._read_count(), timeout_s=self._read_s())
        reached = self._reader.take_reached()
        if not assignments.take_rebalance():
            # Before anything else is read: a take-over reads on, and records that are added late count as ended.
            self._add(records, reached)
        assignments.look_at_topics()
        assignments.look_at_leases(self._serve_take_over)
        dispatcher.take()
        self._storer.look()
        self._write_letters_and_answers()
        owned = assignments.owned.values()
        count_max, bytes_max = self._read_limits.share(len(owned))
        self._ingest.add_waiting(owned, count_max=count_max, bytes_max=bytes_max)
        dispatcher.begin(owned)
        # Also while more ends are due: the other queues must not wait until all are written.
        self._storer.begin(owned)
        self._read_limits.apply(owned)
        now = self._clock()
        for tally in assignments.tallies.values():
            tally.roll(now)
        assignments.note_log_ends(now)
        if dispatcher.in_flight_count:
            half_a_chunk_s = 0.0 if self._pool.free_count() > 0 else self._pool.chunk_s / 2
            dispatcher.wait(min(max(BUSY_WAIT_S, half_a_chunk_s), self._next_s()))

    def close(self) -> None:
        """Store what ended, leave the group and close everything. Results of handlers that still run are discarded."""
        self._is_ending = True
        with ExitStack() as ending:  # from the last one on, also if one raises
            ending.callback(self._connections.close)
            ending.callback(self._pool.close, POOL_END_S)
            ending.callback(self._letters.close)
            ending.callback(self._assignments.close)
            ending.callback(self._reader.close)  # calls `_on_revoke`, which stores

    def stats(self) -> ConsumerStats:
        """The consumer's figures; thread-safe."""
        owned = list(self._assignments.owned.values())
        now_ms = self._now_ms()
        return ConsumerStats(
            topics={
                topic: _topic_stats(
                    tally,
                    [o for o in owned if o.topic == topic],
                    now_ms,
                    self._assignments.ends,
                    self._dispatcher.breakers.of_topic(topic),
                )
                for topic, tally in self._assignments.tallies.items()
            },
            partitions=tuple(sorted(o.topic_partition for o in owned)),
            rebuild_count=self.rebuild_count,
            stale_count=self._dispatcher.stale_count,
            assigned_count=self._assignments.assigned_count,
            rebalance_count=self._assignments.rebalance_count,
            lost_lease_count=self._assignments.lost_lease_count,
            replaced_count=self._assignments.replaced_count,
            turned_at=self._turned_at,
            hung_count=self._pool.hung_count,
            hung_count_max=self._config.hung_handlers_max,
        )

    # --- how long to wait ---------------------------------------------------------------------------------------------

    def _read_count(self) -> int:
        in_flight_max, now_ms = self._config.in_flight_max, self._now_ms()
        found, breakers = self._assignments.owned.values(), self._dispatcher.breakers.by_topic
        # What waits where nothing may begin holds up no reading: other partitions would wait with it.
        ready = sum(
            owned.queue.ready_count
            for owned in found
            if owned.queue.may_begin(now_ms)
            and not owned.queue.is_full
            and ((breaker := breakers.get(owned.topic)) is None or breaker.is_closed)
        )
        busy_count = min(int(in_flight_max * FILLED_SHARE), self._pool.busy_count)
        has_enough = ready >= READY_FACTOR * in_flight_max or (
            ready + self._dispatcher.in_flight_count >= busy_count
            and sum(owned.queue.count for owned in found) >= AHEAD_FACTOR * in_flight_max
        )
        # With enough runnable messages, read only as much as serving the group requires.
        return 1 if has_enough else READ_COUNT_MAX

    def _read_s(self) -> float:
        if self._dispatcher.in_flight_count:
            return 0.0  # results wake the engine, not records
        return min(STORING_WAIT_S if self._storer.is_under_way else IDLE_WAIT_S, self._next_s())

    def _next_s(self) -> float:
        """Seconds until the next action that no event triggers."""
        at, now, now_ms = FOR_EVER, self._clock(), self._now_ms()
        # At `in_flight_max` nothing starts even if workers are free; only an outcome changes that.
        has_room = self._dispatcher.in_flight_count < self._config.in_flight_max
        has_workers = has_room and self._pool.free_count() > 0
        for owned in self._assignments.owned.values():
            queues = owned.queue
            if queues.has_due and not self._storer.is_under_way:
                # Otherwise its end cannot be written before the acknowledgement.
                at = min(at, self._completions.not_before_ms(owned) / 1000 - self._wall_base)
            may_begin = has_workers and not queues.is_paused and owned.lease.valid_until > now
            breaker = self._dispatcher.breakers.by_topic.get(owned.topic)
            not_before_ms = max(queues.suspended_until_ms, 0 if breaker is None else breaker.next_at_ms)
            if may_begin and queues.ready_count and not queues.is_full:
                if not_before_ms <= now_ms:
                    return 0.0
                at = min(at, not_before_ms / 1000 - self._wall_base)
            if may_begin and queues.next_retry_at_ms is not None:
                at = min(at, max(queues.next_retry_at_ms, not_before_ms) / 1000 - self._wall_base)
            if not self._storer.is_under_way and any(map(queues.is_changed, ItemSource)):
                at = min(at, self._storer.next_at)
        return max(at - now, 0.0)

    def _has_due(self) -> bool:
        return any(map(self._completions.has_due, self._assignments.owned.values()))

    def _now_ms(self) -> int:
        # The wall clock at the start plus monotonic time: back-offs do not jump with the machine's clock.
        return int((self._wall_base + self._clock()) * 1000)

    # --- dead letters -------------------------------------------------------------------------------------------------

    def _write_letters_and_answers(self) -> None:
        if self._plan.is_broadcast:
            self._completions.drop(self._assignments.owned.values())
            return
        # The last append wins at the broker: during a store, no Kafka transaction may store the same offsets.
        if self._storer.is_under_way or not self._has_due():
            return
        assignments = self._assignments
        if assignments.writer is None or assignments.assignment is None:
            raise InvariantError("a dead letter is due, and nobody is there to write it")
        try:
            self._completions.write(assignments.owned.values(), assignments.writer, assignments.assignment.member)
        except TxLayerError as exc:
            if not assignments.writer.has_sent_nothing:
                assignments.give_up()  # nothing may be stored over what it may have stored
                raise
            if isinstance(exc, UsageError | InvariantError) and not isinstance(exc, ForbiddenTopicError):
                raise
            # The queues know what is due, and none of it was stored: only the writer is of no use any more.
            extra = {"group": self._plan.group, "reason": str(exc)}
            logger.warning("dead_letters.not_written", extra=extra)
            assignments.replace_writer()

    # --- serving the group --------------------------------------------------------------------------------------------

    def _serve_take_over(self) -> None:
        """Serve the group during a take-over; records that arrive belong to the other queues."""
        records = self._reader.read(record_count_max=READ_COUNT_MAX, timeout_s=0.0)
        reached = self._reader.take_reached()
        self._assignments.raise_if_rebalanced()
        self._add(records, reached)
        self._read_limits.apply(self._assignments.owned.values())

    def _add(self, records: Sequence[Any], reached: Mapping[TopicPartition, int]) -> None:
        if records:
            self._ingest.add(records, self._assignments.by_source)
        if reached:
            self._ingest.reach(reached, self._assignments.by_source)

    def _serve_group(self) -> None:
        """Serve the group, keep the leases and store results while the last handlers end; start nothing new."""
        self._stay_in_group(wait_s=0.0)
        self._storer.look()
        self._storer.begin(self._assignments.owned.values())

    def _stay_in_group(self, *, wait_s: float) -> None:
        self._reader.read(record_count_max=1, timeout_s=wait_s)
        self._assignments.take_rebalance()
        self._assignments.keep_leases()

    def _wait_for_store(self) -> None:
        """Let the store under way be answered; if it is not, or fails, the next one says all of it again."""
        give_up_at = self._clock() + LATE_STORE_S
        while self._storer.is_under_way and self._clock() < give_up_at:
            self._stay_in_group(wait_s=STORING_WAIT_S)
            with suppress(RetriableError):
                self._storer.look()

    def _on_revoke(self, is_lost: bool) -> None:  # noqa: FBT001 - the port's
        """Called from within a read: store what has ended before the group continues without these partitions."""
        assignments = self._assignments
        try:
            if assignments.owned and not is_lost:
                if not self._is_ending:
                    self._drain(self._config.revoke_timeout.total_seconds(), serve=self._assignments.keep_leases)
                self._dispatcher.take()
                self._store_what_ended()
        finally:
            assignments.revoke()

    def _store_what_ended(self) -> None:
        """Store what has changed, and write what is due then: the next owner knows of no rejection, nor that a replay was handled.

        What is stored already is not stored again: the topic may have been made anew since. No Kafka transaction of it begins
        after `revoke_timeout`, because the other members wait.

        Raises:
            TxLayerError: what is stored is not known. If it was to be written, the queues are given up: nothing may be stored over it.
        """
        owned, timeout_s = self._assignments.owned.values(), self._config.store_timeout.total_seconds()
        self._storer.store_now(owned, timeout_s=timeout_s, only_changed=True)
        give_up_at = self._clock() + self._config.revoke_timeout.total_seconds()
        try:
            while self._has_due() and self._clock() < give_up_at:
                self._write_letters_and_answers()
        except TxLayerError:
            self._assignments.give_up()
            raise
        if self._plan.is_broadcast:
            self._storer.store_now(owned, timeout_s=timeout_s, only_changed=True)

    def _drain(self, timeout_s: float, *, serve: Callable[[], None] = lambda: None) -> None:
        """Start nothing more and wait for the running handlers; give up those that do not end in time."""
        dispatcher, desk, give_up_at = self._dispatcher, self._plan.desk, self._clock() + timeout_s
        in_flight = dispatcher.cut()
        while self._assignments.owned and dispatcher.in_flight_count and self._clock() < give_up_at:
            if desk is not None:
                desk.give_back()
            serve()
            dispatcher.wait(min(DRAIN_LOOK_S, max(give_up_at - self._clock(), 0.0)))
            dispatcher.take()
        # What a program answered before counts; another answer of it would raise from now on.
        give_up_at = self._clock() + LAST_ANSWERS_S
        while desk is not None and dispatcher.in_flight_count and self._clock() < give_up_at:
            desk.give_back(is_late=True)
            dispatcher.wait(DRAIN_LOOK_S)
            dispatcher.take()
        if in_flight:
            logger.info(
                "handlers.drained",
                extra={"group": self._plan.group, "in_flight": in_flight, "given_up": dispatcher.in_flight_count},
            )

    # --- errors -------------------------------------------------------------------------------------------------------

    def _start_over(self, reason: TxLayerError, failure_count: int) -> None:
        logger.warning(
            "consumer.rebuild", extra={"group": self._plan.group, "reason": str(reason), "failure_count": failure_count}
        )
        self.rebuild_count += 1
        self._assignments.give_up()
        wait_before_rebuild(
            reason,
            failure_count=failure_count,
            session_timeout_s=self._config.session_timeout.total_seconds(),
            serve_group=self._serve_rebalance,
            environment=self._environment,
            logger=logger,
        )

    def _serve_rebalance(self, wait_s: float) -> bool:
        """Serve the group while nothing is owned. True if it revoked or assigned something."""
        self._reader.read(record_count_max=1, timeout_s=wait_s)
        self._dispatcher.take()
        return self._assignments.take_rebalance()


def _topic_stats(
    tally: TopicCounts,
    owned: list[OwnedPartition],
    now_ms: int,
    ends: Mapping[TopicPartition, int],
    breakers: Sequence[Breaker],
) -> TopicStats:
    figures = [o.queue.figures() for o in owned]
    # Without a partition there is no probe that could close it.
    shown = breakers if owned else ()
    added = [f.oldest_added_ms for f in figures if f.oldest_added_ms is not None]
    in_flight = sum(f.in_flight_count for f in figures)
    return TopicStats(
        handled=tally.handled,
        failed=tally.failed,
        dead_lettered=tally.dead_lettered,
        passed_over=tally.passed_over,
        rate=tally.rate,
        attempt_ms=tally.mean_ms,
        in_flight=in_flight,
        waiting=sum(f.unfinished_count for f in figures) - in_flight,
        retrying=sum(f.retry_count for f in figures),
        parked_keys=sum(f.parked_count for f in figures),
        oldest_ms=max(now_ms - min(added), 0) if added else 0,
        paused_partitions=sum(
            o.is_reading_paused or f.is_paused or f.is_full or o.queue.suspended_until_ms > now_ms
            for o, f in zip(owned, figures, strict=True)
        ),
        handled_by_key_group=dict(tally.by_key_group),
        attempts=tally.attempt_count,
        attempt_s=tally.durations.total,
        attempt_durations=tally.durations.view(),
        timed_out=tally.timed_out,
        postponed=tally.postponed,
        failed_rate=tally.failed_rate,
        breaker=next((state.value for state in reversed(BreakerState) if any(b.state is state for b in shown)), ""),
        breaker_is_open=any(not breaker.is_closed for breaker in shown),
        breaker_opened=sum(breaker.opened_count for breaker in breakers),
        unread=sum(
            max(ends[o.topic_partition] - o.next_offsets[o.topic_partition], 0)
            for o in owned
            if o.topic_partition in ends
        ),
    )
