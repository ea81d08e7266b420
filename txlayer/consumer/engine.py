"""The engine of every consumer: read → queues → handlers → what became of them → store. One plain thread. Never a rule.

Crash-only, like the coordinator: whatever goes wrong, the queues are thrown away and built again from the stored offsets,
which tell what has ended. A handler's own exception is nothing that goes wrong here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txlayer.adapters.consumer_ports import ConsumerConnections
from txlayer.adapters.ports import TopicPartition
from txlayer.config import ConsumerConfig, milliseconds
from txlayer.consumer.context import FOR_EVER
from txlayer.consumer.dead_letter_reader import DeadLetterReader
from txlayer.consumer.dispatch import Dispatcher
from txlayer.consumer.ends import Ends
from txlayer.consumer.holdings import Holdings
from txlayer.consumer.intake import Intake, ReadLimits
from txlayer.consumer.leases import Leases
from txlayer.consumer.owned import Owned
from txlayer.consumer.plan import ConsumerPlan, check_topics
from txlayer.consumer.pools import Pool
from txlayer.consumer.stats import ConsumerStats, Tally, TopicStats
from txlayer.consumer.storing import Storer
from txlayer.consumer.surroundings import REAL, Surroundings
from txlayer.core.items import ItemSource
from txlayer.errors import (
    FencedError,
    InvariantError,
    RetriableError,
    TxLayerError,
    UsageError,
)

logger = logging.getLogger("txlayer.consumer")

READ_COUNT_MAX = 5_000
"""Records of one read: bounds how long results wait meanwhile."""
IDLE_WAIT_S = 0.1
"""How long a read waits when nothing is to do; a record ends the wait."""
BUSY_WAIT_S = 0.005
"""How long the engine waits for handlers before it looks for records again; half a chunk, if that is longer and no
worker is free: then only an end lets something begin, and it ends the wait."""
READY_FACTOR = 4
"""More is read while fewer messages than so many times `in_flight_max` could start."""
AHEAD_FACTOR = 10
"""Records in memory, as so many times `in_flight_max`, beyond which only who has not enough to begin reads on: what is
used long after it was read has left the processor's caches, and an empty handler then costs a quarter more."""
FILLED_SHARE = 0.9
"""What of `in_flight_max` is enough to begin: the last slots may wait for keys that have failed and come back by themselves,
and who reads on for them fills the memory."""
STORING_WAIT_S = 0.002
"""The same while a store is under way: next attempts wait for its acknowledgement."""
DRAIN_LOOK_S = 0.02
"""How often a drain looks at the group."""
REBUILD_WAIT_MAX_S = 5.0
"""Longest pause between two rebuilds."""
POOL_END_S = 0.5
"""How long the pool may take to end once what was in flight is given up."""


class Engine:
    """Owns one group member and the queues of its partitions.

    Args:
        plan: what is consumed, and how.
        connections: the cluster.
        pool: where handlers run.
        make_leases: who says that a queue may be worked off; asked for a new one after that one failed.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        plan: ConsumerPlan,
        *,
        connections: ConsumerConnections,
        pool: Pool,
        make_leases: Callable[[], Leases],
        surroundings: Surroundings = REAL,
    ) -> None:
        self._config = config
        self._plan = plan
        self._connections = connections
        self._pool = pool
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._wall_base = surroundings.wall_clock() - surroundings.clock()
        self._is_ending = False
        self.rebuild_count = 0
        self._turned_at: float | None = None
        self._reader = connections.make_group_reader(plan.group)
        self._storer = Storer(
            self._reader, interval_s=config.store_interval.total_seconds(),
            timeout_s=config.store_timeout.total_seconds(), clock=self._clock,
        )  # fmt: skip
        self._dispatcher = Dispatcher(
            pool, in_flight_max=config.in_flight_max, clock=self._clock, now_ms=self._now_ms,
            draw=surroundings.draw, key_group=plan.key_group,
        )  # fmt: skip
        self._holdings = Holdings(
            config, plan, connections=connections, reader=self._reader, make_leases=make_leases, storer=self._storer,
            dispatcher=self._dispatcher, chunk_s=pool.chunk_s, surroundings=surroundings, now_ms=self._now_ms,
        )  # fmt: skip
        self._letters = DeadLetterReader(connections, clock=self._clock)
        self._intake = Intake(group=plan.group, letters=self._letters, now_ms=self._now_ms)
        timeout_ms = milliseconds(config.kafka_transaction_timeout)
        self._ends = Ends(
            group=plan.group, now_ms=self._now_ms, kafka_transaction_timeout_ms=timeout_ms
        )
        self._limits = ReadLimits(
            self._reader, record_count_max=config.record_count_max, record_bytes_max=config.record_bytes_max,
        )  # fmt: skip

    # --- life ---------------------------------------------------------------------------------------------------------

    def run(self, *, should_stop: Callable[[], bool]) -> None:
        """Work until `should_stop`, then let handlers end, store what ended, and leave the group.

        Raises:
            UsageError: topics, settings or stored offsets are not as they must be.
            BrokerUnavailableError: no broker answered at the start.
            InvariantError: txlayer itself is wrong; what is stored is right.
        """
        failure_count = 0
        try:
            self.start()
            while not should_stop():
                try:
                    self.turn()
                    failure_count = 0
                except (UsageError, InvariantError):
                    raise
                except TxLayerError as exc:
                    failure_count += 1
                    self._start_over(exc, failure_count)
            self._end()
        finally:
            self.close()

    def start(self) -> None:
        """Check the topics and join the group; a cluster that may just be coming up is asked again until `start_timeout`.

        Raises:
            TopicMismatchError: a topic is missing, or those that belong together have different partitions.
            RetriableError, NotAuthorisedError: the cluster did not say.
        """
        timeout_s = self._config.start_timeout.total_seconds()
        give_up_at = self._clock() + timeout_s
        while True:
            self._connections.wait_until_reachable(topic=self._plan.topics[0], timeout_s=timeout_s)
            try:
                check_topics(self._connections, self._plan)
                self._holdings.start()
                break
            except (
                RetriableError
            ) as exc:  # also a leader that just moved, of which nobody says where its log ends
                if self._clock() >= give_up_at:
                    raise
                reason = {"group": self._plan.group, "reason": str(exc)}
                logger.warning("consumer.waiting", extra=reason)
        self._pool.start()
        self._reader.start(self._plan.sources, on_revoke=self._on_revoke)

    def _end(self) -> None:
        """Let what runs end, and store it while the group lets us."""
        try:
            self._drain(self._config.close_timeout.total_seconds(), serve=self._serve_group)
        except (UsageError, InvariantError):
            raise
        except TxLayerError as exc:
            # The session is over, or nobody answers: what is not stored is done again by whoever comes next.
            logger.warning(
                "consumer.end_not_stored", extra={"group": self._plan.group, "reason": str(exc)}
            )

    def turn(self) -> None:
        """One round; when there is nothing to do it waits, for at most `IDLE_WAIT_S`.

        Raises:
            TxLayerError: the queues must be built anew.
        """
        holdings, dispatcher = self._holdings, self._dispatcher
        self._turned_at = self._clock()
        records = self._reader.read(record_count_max=self._read_count(), timeout_s=self._read_s())
        reached = self._reader.take_reached()
        if not holdings.look_at_group():
            # Before anything else is read: taking a queue over reads on, and what is added late counts as ended.
            self._add(records, reached)
        holdings.look_at_leases(self._serve_take_over)
        dispatcher.take()
        self._storer.look()
        self._write_ends()
        owned = holdings.owned.values()
        count_max, bytes_max = self._limits.share(len(owned))
        self._intake.add_waiting(owned, count_max=count_max, bytes_max=bytes_max)
        dispatcher.begin(owned)
        if not self._has_due():
            self._storer.begin(owned)
        self._limits.apply(owned)
        now = self._clock()
        for tally in holdings.tallies.values():
            tally.roll(now)
        holdings.look_at_ends(now)
        if dispatcher.in_flight_count:
            dispatcher.wait(min(self._busy_wait_s(), self._next_s()))

    def close(self) -> None:
        """Store what ended, leave the group, give everything back. What still runs counts for nothing."""
        self._is_ending = True
        try:
            self._reader.close()  # calls `_on_revoke`, which stores
        finally:
            self._holdings.close()
            self._letters.close()
            self._pool.close(POOL_END_S)
            self._connections.close()

    def stats(self) -> ConsumerStats:
        """What it did and has before it; any thread may ask."""
        owned = list(self._holdings.owned.values())
        now_ms = self._now_ms()
        return ConsumerStats(
            topics={
                topic: _topic_stats(
                    tally, [o for o in owned if o.topic == topic], now_ms, self._holdings.ends
                )
                for topic, tally in self._holdings.tallies.items()
            },
            partitions=tuple(sorted(o.place for o in owned)),
            rebuild_count=self.rebuild_count,
            stale_count=self._dispatcher.stale_count,
            assigned_count=self._holdings.assigned_count,
            rebalance_count=self._holdings.rebalance_count,
            lost_lease_count=self._holdings.lost_lease_count,
            replaced_count=self._holdings.replaced_count,
            turned_at=self._turned_at,
            hung_count=self._pool.hung_count,
            hung_count_max=self._config.hung_handlers_max,
        )

    # --- how long nothing is to do ------------------------------------------------------------------------------------

    def _read_count(self) -> int:
        in_flight_max = self._config.in_flight_max
        found = [owned.queues for owned in self._holdings.owned.values()]
        ready = sum(queues.ready_count for queues in found)
        busy_count = min(int(in_flight_max * FILLED_SHARE), self._pool.busy_count)
        has_enough = ready >= READY_FACTOR * in_flight_max or (
            ready + self._dispatcher.in_flight_count >= busy_count
            and sum(queues.count for queues in found) >= AHEAD_FACTOR * in_flight_max
        )
        # Who has enough to begin serves the group, and reads no more than that takes.
        return 1 if has_enough else READ_COUNT_MAX

    def _read_s(self) -> float:
        if self._dispatcher.in_flight_count:
            return 0.0  # results wake the engine, not records
        return min(STORING_WAIT_S if self._storer.is_under_way else IDLE_WAIT_S, self._next_s())

    def _next_s(self) -> float:
        """Seconds until something is to be done that nobody wakes the engine for."""
        at, now = FOR_EVER, self._clock()
        # Without room for more in flight nothing begins although workers are free: only an end changes that.
        has_room = self._dispatcher.in_flight_count < self._config.in_flight_max
        has_workers = has_room and self._pool.free_count() > 0
        for owned in self._holdings.owned.values():
            queues = owned.queues
            if queues.has_due and not self._storer.is_under_way:
                # Else its end cannot be written before the acknowledgement.
                at = min(at, self._ends.not_before_ms(owned) / 1000 - self._wall_base)
            may_begin = has_workers and not queues.is_paused and owned.lease.valid_until > now
            if may_begin and queues.ready_count and not queues.is_full:
                return 0.0
            if may_begin and queues.next_retry_at_ms is not None:
                at = min(at, queues.next_retry_at_ms / 1000 - self._wall_base)
            if not self._storer.is_under_way and any(map(queues.is_changed, ItemSource)):
                at = min(at, self._storer.next_at)
        return max(at - now, 0.0)

    def _busy_wait_s(self) -> float:
        has_free_workers = self._pool.free_count() > 0
        return BUSY_WAIT_S if has_free_workers else max(BUSY_WAIT_S, self._pool.chunk_s / 2)

    def _has_due(self) -> bool:
        return any(map(self._ends.has_due, self._holdings.owned.values()))

    def _now_ms(self) -> int:
        # The wall clock of the start and the monotonic time since: back-offs do not jump with the machine's clock.
        return int((self._wall_base + self._clock()) * 1000)

    # --- dead letters -------------------------------------------------------------------------------------------------

    def _write_ends(self) -> None:
        # The newest append wins at the broker: while a store is under way no Kafka transaction may store the same.
        if self._storer.is_under_way or not self._has_due():
            return
        holdings = self._holdings
        if holdings.writer is None or holdings.assignment is None:
            raise InvariantError("a dead letter is due, and nobody is there to write it")
        try:
            self._ends.write(holdings.owned.values(), holdings.writer, holdings.assignment.member)
        except (UsageError, InvariantError):
            raise
        except TxLayerError:
            if holdings.writer.has_sent_nothing:
                self._keep_progress()
            raise

    # --- the group goes on --------------------------------------------------------------------------------------------

    def _serve_take_over(self) -> None:
        """The group is served also while a queue is taken over; what is read meanwhile belongs to the others."""
        records = self._reader.read(record_count_max=READ_COUNT_MAX, timeout_s=0.0)
        reached = self._reader.take_reached()
        self._holdings.raise_if_moved()
        self._add(records, reached)

    def _add(self, records: Sequence[Any], reached: Mapping[TopicPartition, int]) -> None:
        if records:
            self._intake.add(records, self._holdings.places)
        if reached:
            self._intake.reach(reached, self._holdings.places)

    def _serve_group(self) -> None:
        """The group is served, and what ends is stored, while the last handlers end; nothing new is begun."""
        self._reader.read(record_count_max=1, timeout_s=0.0)
        self._holdings.look_at_group()
        self._storer.look()
        self._storer.begin(self._holdings.owned.values())

    def _on_revoke(self, is_lost: bool) -> None:  # noqa: FBT001 - the port's
        """Called from within a read: what has ended is stored before the group goes on without these partitions."""
        holdings = self._holdings
        try:
            if holdings.owned and not is_lost:
                if not self._is_ending:
                    self._drain(self._config.revoke_timeout.total_seconds())
                self._dispatcher.take()
                self._storer.store_now(
                    holdings.owned.values(), timeout_s=self._config.store_timeout.total_seconds()
                )
        finally:
            holdings.revoke()

    def _drain(self, timeout_s: float, *, serve: Callable[[], None] = lambda: None) -> None:
        """Begin nothing more and wait for what was begun; what does not end in time is given up."""
        dispatcher, give_up_at = self._dispatcher, self._clock() + timeout_s
        in_flight = dispatcher.cut()
        while self._holdings.owned and dispatcher.in_flight_count and self._clock() < give_up_at:
            serve()
            dispatcher.wait(min(DRAIN_LOOK_S, max(give_up_at - self._clock(), 0.0)))
            dispatcher.take()
        if in_flight:
            logger.info(
                "handlers.drained",
                extra={"group": self._plan.group, "in_flight": in_flight, "given_up": dispatcher.in_flight_count},
            )  # fmt: skip

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _keep_progress(self) -> None:
        """Dead letters were not written, and no offset was sent: what else has ended is stored, so that it runs no second time."""
        try:
            self._drain(self._config.revoke_timeout.total_seconds())
            self._dispatcher.take()
            self._storer.store_now(
                self._holdings.owned.values(),
                timeout_s=self._config.store_timeout.total_seconds(),
            )
        except (UsageError, InvariantError):
            raise
        except TxLayerError as exc:
            logger.warning(
                "consumer.progress_not_stored",
                extra={"group": self._plan.group, "reason": str(exc)},
            )

    def _start_over(self, reason: TxLayerError, failure_count: int) -> None:
        logger.warning(
            "consumer.rebuild",
            extra={"group": self._plan.group, "reason": str(reason), "failure_count": failure_count},
        )  # fmt: skip
        self.rebuild_count += 1
        self._holdings.give_up()
        wait_s = min(0.05 * 2 ** min(failure_count, 10), REBUILD_WAIT_MAX_S)
        if isinstance(reason, FencedError):
            # Somebody else may own the queues already: let the group say so first.
            wait_s = max(wait_s, self._config.session_timeout.total_seconds() / 2)
        give_up_at = self._clock() + wait_s
        while self._clock() < give_up_at:
            try:
                self._reader.read(record_count_max=1, timeout_s=min(0.05, wait_s))
                self._dispatcher.take()
                if self._holdings.look_at_group():
                    return
            except (UsageError, InvariantError):
                raise
            except TxLayerError as exc:
                logger.info("group.unreadable", extra={"reason": str(exc)})
                self._surroundings.sleep(min(0.05, wait_s))


def _topic_stats(
    tally: Tally, owned: list[Owned], now_ms: int, ends: Mapping[TopicPartition, int]
) -> TopicStats:
    figures = [o.queues.figures() for o in owned]
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
            o.is_reading_paused or f.is_paused or f.is_full
            for o, f in zip(owned, figures, strict=True)
        ),
        handled_by_key_group=dict(tally.by_key_group),
        attempts=tally.attempt_count,
        attempt_s=tally.durations.total,
        attempt_durations=tally.durations.view(),
        timed_out=tally.timed_out,
        unread=sum(
            max(ends[o.place] - o.next_offsets[o.place], 0) for o in owned if o.place in ends
        ),
    )
