"""The coordinator's loop, in one plain thread: read, fold, collect a batch, publish it in one Kafka transaction, repeat.

Crash-only: after any failure, the ledgers and both writers are discarded and rebuilt from the stored offsets, which show
what was committed. The loop itself decides nothing; the ledger does.

At a rebalance (`_take_rebalance`) nothing more is stored: the ledgers and both writers of the former assignment are given up.
`_take_over` fences the writers of the former owners, reads the stored offsets, and builds the ledgers of the new assignment.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import LOG_APPEND_TIME, Assignment
from txlayer.adapters.readers import COORDINATOR_ADVICE
from txlayer.adapters.telemetry import Log, Tracing
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.contents import Contents
from txlayer.coordinator.metrics import CoordinatorCounts, CoordinatorSpans, CoordinatorView, log_reports
from txlayer.coordinator.op_ends import OpEnds
from txlayer.coordinator.publish import Publisher
from txlayer.coordinator.read_ahead import ReadAhead
from txlayer.coordinator.recovery import (
    Recovery,
    assigned_partitions,
    empty_ledgers,
    encode_stored,
    first_partition_count,
    got_more_partitions,
    ledger_settings,
)
from txlayer.coordinator.refusals import Refusals
from txlayer.coordinator.shard import (
    PROBE_S,
    LogTime,
    ReadResult,
    Shard,
    keep_within_memory,
    known_ends,
    latest_ms,
    pause_those_too_full,
)
from txlayer.coordinator.targets import Availability, GroupPresence, Targets
from txlayer.core import codec
from txlayer.core.ledger.batch import Batch, BatchSize, ReleaseLines
from txlayer.core.ledger.ledger import RELEASE_LINES_MAX, RELEASE_OFFSETS_MAX, Ledger
from txlayer.core.messages import ParkReason
from txlayer.errors import (
    BrokerUnavailableError,
    ForbiddenTopicError,
    InvariantError,
    MemberFencedError,
    RetriableError,
    TopicMismatchError,
    TxLayerError,
    UsageError,
)
from txlayer.runtime.environment import REAL, Environment, wait_before_rebuild

logger = Log("txlayer.coordinator")

READ_COUNT_MAX = 10_000  # Records per read. Limits the time between two Kafka transactions.
IDLE_WAIT_S = 0.1  # how long a read waits if there is nothing to do; a record ends the wait
STORE_IDLE_S = 1.0  # Interval for storing progress without a batch. If it is lost, only the next replay is longer.
STORE_ALWAYS_S = 60.0
"""Positions are stored again at least this often, so that an idle group does not lose them to retention."""
QUICK_REBUILD_COUNT = 25
"""So many rebuilds may follow one another quickly although nothing goes through between them: a search for a refused record halves the
batch in each. Then their pauses grow, because brokers remember two transactional ids of each for a week."""
GATHER_COUNT = 100
"""After a Kafka transaction with so many forwarded transactions the next one waits for `publish_interval`."""
CLOCKS_WARN_S = 60.0  # interval of the log line about clocks that differ
TICK_S = 0.5  # how often the loop checks what is due by time
RELEASE_TICK_S = 0.1  # the same while the time of a scheduled transaction has come
ANSWER_WAIT_S = 0.01  # how long a read waits while an end of op is asked for


class Coordinator:
    """Owns one group member, two writers and the ledgers of its partitions."""

    make_publisher = Publisher
    make_recovery = Recovery
    make_ledger = Ledger
    make_read_ahead = ReadAhead
    log_reports: Callable[..., None] = staticmethod(log_reports)
    """The parts that it is built from; a subclass may replace them."""

    def __init__(
        self,
        config: CoordinatorConfig,
        connections: CoordinatorConnections,
        *,
        environment: Environment = REAL,
        observer: CoordinatorSpans | None = None,
    ) -> None:
        self._observer = observer
        self._traces = {} if observer is None else observer.remembered
        self._config = config
        self._connections = connections
        self._environment = environment
        self._clock = environment.clock
        self._topics = config.topics
        self._targets = Targets(config, connections, clock=self._clock)
        self._refusals = Refusals(config.topics, clock=self._clock)
        self._batch_size = BatchSize()
        self._release_lines = ReleaseLines(RELEASE_LINES_MAX)
        self._ahead = self.make_read_ahead(config, connections, clock=self._clock)
        self._contents = Contents(config, connections, clock=self._clock, read_ahead=self._ahead.take)
        self._presence = GroupPresence(connections, config.topics, environment=environment)
        self._availability = Availability(connections, config.topics, environment=environment)
        patience_s = config.kafka_transaction_timeout.total_seconds()
        self._op_ends = OpEnds(connections, config.topics, environment=environment, patience_s=patience_s)
        self._left_out: frozenset[int] = frozenset()  # assigned partitions that are not available
        self._group = connections.make_group_reader()
        self._assignment: Assignment | None = None
        self._shards: dict[int, Shard] = {}
        self._times: dict[int, LogTime] = {}  # by partition; a rebuild does not stop the clock
        self._publisher: Publisher | None = None
        self._partition_count = 0
        self._writer_name = ""
        self._stored_at = 0.0
        self._ticked_at = self._peak_ticked_at = 0.0
        self._present: frozenset[str] = frozenset()  # groups with a live responder
        self._clocks_warned_at = float("-inf")
        self._has_more = False
        self._gather_until = 0.0
        self._fruitless_count = 0  # rebuilds since a batch went through
        self._learning_from = 0  # the partition whose unknown topics came first
        # Transactions that are to be parked as too large, and topics of theirs that were asked about since.
        self._asked_too_large = set[tuple[str, str]]()
        self.counts = CoordinatorCounts()

    def view(self) -> CoordinatorView:
        """A view of its counts and its state; any thread may call this."""
        return CoordinatorView(
            self._config.namespace, self.counts, dict(self._shards), self._assignment, dict(self._targets.targets)
        )

    # --- life ---------------------------------------------------------------------------------------------------------

    def run(self, *, should_stop: Callable[[], bool]) -> None:
        """Work until `should_stop` returns True, then finish the Kafka transaction and leave the group.

        Raises:
            UsageError: topics or stored offsets are not as required. Nothing was forwarded from them.
            BrokerUnavailableError: no broker answered at the start.
            InvariantError: txlayer has a bug; what is stored is correct.
        """
        self._partition_count = first_partition_count(self._connections, self._config, clock=self._clock)
        self._group.start([self._topics.half, self._topics.op])
        failure_count = 0
        try:
            while not should_stop():
                try:
                    self._turn()
                    failure_count = 0
                except (UsageError, InvariantError) as exc:
                    if not isinstance(exc, ForbiddenTopicError):  # a target refuses: its transactions will be held
                        raise
                    failure_count += 1
                    self._start_over(exc, failure_count)
                except TxLayerError as exc:
                    failure_count += 1
                    self._start_over(exc, failure_count)
            self._stop_cleanly()
        finally:
            self._give_up_state()
            self._group.close()
            self._connections.close()

    def _turn(self) -> None:
        self.counts.turned_at = self._clock()
        self._gather()
        has_postponed = any(shard.ledger.has_postponed_half for shard in self._shards.values())
        count_max = 1 if has_postponed else self._refusals.count_max(READ_COUNT_MAX)
        wait_s = ANSWER_WAIT_S if self._op_ends.is_awaited else IDLE_WAIT_S
        is_waiting = not self._has_more and not self._op_ends.has_answer
        records = self._group.read(record_count_max=count_max, timeout_s=wait_s if is_waiting else 0.0)
        read_result = (
            ReadResult.FULL if len(records) >= count_max else ReadResult.DRAINED if records else ReadResult.EMPTY
        )
        if self._take_rebalance():
            self._give_up_state()
            records = ()
        if self._assignment is not None and self._publisher is None:
            self._take_over(self._assignment)
            return
        if self._publisher is None:
            return
        self._fold(records)
        self._publish_what_follows(self._publisher, read_result=read_result)

    def _gather(self) -> None:
        """Under load, wait a little before the next batch is read: a Kafka transaction costs the broker the same for one message or 500."""
        wait_s, self._gather_until = self._gather_until - self._clock(), 0.0
        if wait_s > 0:
            self._environment.sleep(wait_s)

    def _start_over(self, reason: TxLayerError, failure_count: int) -> None:
        logger.warning("coordinator.rebuild", extra={"reason": str(reason), "failure_count": failure_count})
        self.counts.rebuild_count += 1
        self._fruitless_count += 1
        self._refusals.learn(
            reason,
            {p: s.ledger.batch for p, s in self._shards.items()},
            self._targets,
            unanswered=self._publisher.unanswered if self._publisher is not None else (),
        )
        self._give_up_state()
        wait_before_rebuild(
            reason,
            failure_count=max(failure_count, self._fruitless_count - QUICK_REBUILD_COUNT),
            session_timeout_s=self._config.session_timeout.total_seconds(),
            serve_group=lambda wait_s: self._serve_group(wait_s=wait_s),
            environment=self._environment,
            logger=logger,
        )

    def _serve_group(self, *, wait_s: float) -> bool:
        """Serve the group without reading. Returns True if it assigned partitions."""
        self._group.read(record_count_max=1, timeout_s=wait_s)
        is_assigned = self._take_rebalance() and self._assignment is not None
        self.counts.turned_at = self._clock()
        return is_assigned

    def _take_rebalance(self) -> bool:
        """Take what the group said. Returns True if the former assignment ended; one read may bring the next one with it."""
        is_revoked, assignment = self._group.take_revocation(), self._group.take_assignment()
        if not is_revoked and assignment is None:
            return False
        self._assignment = assignment
        self._refusals.forget_transactions()
        self.counts.rebalance_count += assignment is not None
        return True

    def _give_up_state(self) -> None:
        if self._publisher is not None:
            self._publisher.abandon()
            self._publisher = None
        if self._shards:
            self._group.resume_at({})
        self._shards = {}
        self._op_ends.forget()
        self._asked_too_large.clear()
        self._has_more = False
        self._contents.close()
        self._ahead.close()

    # --- take over ----------------------------------------------------------------------------------------------------

    def _take_over(self, assignment: Assignment) -> None:
        assigned = assigned_partitions(assignment, self._topics, partition_count=self._partition_count)
        partitions = self._available_of(assigned)
        if not partitions:
            return
        self._environment.keep_for_long()  # the ledgers of before are freed now: there is memory for one set
        name = self._config.topics.transactional_id(self._environment.draw_name())
        self._targets.learn_own()
        publisher = self.make_publisher(
            self._config,
            name=name,
            make_writer=self._connections.make_writer,
            targets=self._targets,
            environment=self._environment,
            stats=self.counts.publishing,
            doubt_bytes_max=self._targets.limit_of(self._topics.doubt),
            op_bytes_max=self._targets.limit_of(self._topics.op),
            observer=self._observer,
        )
        ledgers = empty_ledgers(
            partitions,
            settings=ledger_settings(self._config, partition_count=self._partition_count),
            targets=self._targets.targets,
            refusals=self._refusals.reasons,
            make=self.make_ledger,
        )
        recovery = self.make_recovery(
            self._config, self._connections, is_still_ours=self._raise_if_rebalanced, environment=self._environment
        )
        # What this process left open may not be in the stored offsets yet.
        stored = recovery.rebuild(ledgers, former_writer=self._writer_name)
        self._writer_name, self._publisher = name, publisher
        publisher.start()
        self._times = {p: self._times.get(p) or LogTime(self._clock) for p in ledgers}
        ends = self._connections.end_offsets([(t, p) for p in ledgers for t in (self._topics.half, self._topics.op)])
        for p, ledger in ledgers.items():
            half_end, op_end = ends[self._topics.half, p], ends[self._topics.op, p]
            self._shards[p] = Shard(ledger, stored[p].positions, half_end, op_end, self._times[p])
            ledger.op_read_to_end_ms = 0
            ledger.has_at_hand = partial(self._ahead.has, p)
            ledger.record_of_lines = publisher.record_of_lines
        self._ahead.begin(ledgers)
        # The first Kafka transaction only stores the offsets: from now on successors know our name and can fence us.
        self._publish(publisher, [])
        resume = {}
        for p, shard in self._shards.items():
            resume[self._topics.half, p] = shard.ledger.half_next
            resume[self._topics.op, p] = shard.ledger.op_next[0]
        self._environment.keep_for_long()
        self._group.resume_at(resume)
        logger.info(
            "partitions.taken_over",
            extra={"partitions": sorted(ledgers), "generation": assignment.generation, "writer": name},
        )

    def _available_of(self, partitions: list[int]) -> list[int]:
        """Those that can be taken over now; all, if none can: then the take-over fails until one can."""
        # Nearly always all are available: the question is worth its time after a failure.
        is_asked = self._fruitless_count or self._left_out
        missing = self._availability.missing().intersection(partitions) if is_asked else frozenset[int]()
        self._left_out = missing if len(missing) < len(partitions) else frozenset()
        if self._left_out:
            logger.error("partitions.unavailable", extra={"partitions": sorted(self._left_out)})
        return [p for p in partitions if p not in self._left_out]

    def _raise_if_rebalanced(self) -> None:
        if self._serve_group(wait_s=0.0) or self._assignment is None:
            raise MemberFencedError(
                "the group moved the partitions during recovery", group=self._topics.coordinator_group
            )

    # --- work ---------------------------------------------------------------------------------------------------------

    def _fold(self, records: Sequence[Any]) -> None:
        half_topic, ledgers = self._topics.half, {p: s.ledger for p, s in self._shards.items()}
        header_name, latest = codec.HALF_HEADER, latest_ms(self._environment.wall_clock)
        for ledger in ledgers.values():
            ledger.times.believe_until(latest)
            ledger.batch_bytes_max = self._bytes_max
            ledger.batch_size = self._batch_size
            ledger.may_write_op = not self._refusals.are_lines_paused
            ledger.may_ask = not self._refusals.are_questions_paused
        for record in records:
            ledger = ledgers[record.partition()]
            kind, appended_ms = record.timestamp()
            if kind != LOG_APPEND_TIME:
                appended_ms = latest + 1  # as young as possible, and not used as a time
            if record.topic() == half_topic:
                headers = record.headers()
                if headers and headers[-1][0] == header_name:
                    ledger.fold_half(record.offset(), appended_ms, headers[-1][1], record)
                else:
                    ledger.fold_half(record.offset(), appended_ms, codec.half_header_of(headers), record)
            else:
                ledger.add_ops(record.offset(), appended_ms, record.value(), record)
        for shard in self._shards.values():
            shard.pass_append_times()
            shard.pass_markers(self._group, self._topics)
        if records:
            self._keep_within_memory()

    def _keep_within_memory(self) -> None:
        ledgers = [shard.ledger for shard in self._shards.values()]
        keep_within_memory(ledgers, self._config.content_bytes_max - self._ahead.byte_count)

    def _read_ahead(self) -> None:
        self._ahead.read_on({p: (shard.ledger, shard.time.peek_ms()) for p, shard in self._shards.items()})
        if self._ahead.byte_count:
            self._keep_within_memory()

    def _publish_what_follows(self, publisher: Publisher, *, read_result: ReadResult) -> None:
        now = self._clock()
        self._op_ends.take()
        ended = [shard for shard in self._shards.values() if shard.note_op_end(self._group, self._topics)]
        is_due = self._share_releases()
        is_tick = (is_due and bool(ended)) or now - self._ticked_at >= (RELEASE_TICK_S if is_due else TICK_S)
        is_peak_tick = now - self._peak_ticked_at >= TICK_S
        if is_peak_tick:
            self._peak_ticked_at = now
        self._has_more = False
        self._learn_topics()
        batches: list[tuple[int, Batch]] = []
        for p, shard in self._in_turn():
            ledger = shard.ledger
            if is_peak_tick:
                self._do_what_is_due_in_a_peak(shard)
            lines_max = self._batch_size.of(self._config.batch_lines_max)
            lines_max = self._refusals.line_count_max(p, lines_max)
            batch = ledger.advance(line_count_max=lines_max, byte_count_max=ledger.batch_bytes_max)
            shard.pause_op_far_ahead(
                self._group,
                self._topics,
                line_count_max=self._config.ahead_lines_max,
                byte_count_max=self._content_share,
            )
            self._has_more |= ledger.has_more
            if not batch.is_empty:
                batches.append((p, batch))
        pause_those_too_full(self._shards, self._group, self._topics, bytes_max=self._config.unsettled_bytes_max)
        if is_tick:
            self._ticked_at = now
            self._on_tick(batches, read_result=read_result)
        batches = self._without_those_to_ask(batches)
        if batches or self._is_time_to_store(now):
            self._publish(publisher, batches)
        self._read_ahead()

    def _share_releases(self) -> bool:
        """Tell the ledgers their shares of the lines that release messages. True if one has a message that is due."""
        count = sum(shard.ledger.is_release_due(shard.time.peek_ms()) for shard in self._shards.values())
        for shard in self._shards.values():
            # The time of all may come before they are shared anew.
            shard.ledger.release_lines_max = max(1, self._release_lines.count // (count or len(self._shards)))
            shard.ledger.release_offsets_max = RELEASE_OFFSETS_MAX // (count or len(self._shards))
        return count > 0

    def _learn_topics(self) -> None:
        """Ask about topics that ledgers do not know, for `LOOK_TIME_S` a turn, whatever the number of partitions and names."""
        ledgers = [shard.ledger for _, shard in self._in_turn() if shard.ledger.unknown_topics]
        if not ledgers:
            return
        # Another one first each time: the first may have more names than there is time for.
        self._learning_from = (self._learning_from + 1) % len(ledgers)
        ledgers = ledgers[self._learning_from :] + ledgers[: self._learning_from]
        # A transaction committed before its topic was known is held, and tried once it is known: its topic comes first.
        names = [*_one_of_each([one.committed_topics for one in ledgers])]
        names += _one_of_each([sorted(one.unknown_topics) for one in ledgers])
        known = self._targets.learn(names)
        for ledger in ledgers:
            ledger.unknown_topics -= known
            for topic in known & ledger.committed_topics.keys():
                del ledger.committed_topics[topic]
            self._has_more |= bool(ledger.unknown_topics)
        if self._targets.has_too_many:
            ledgers = [shard.ledger for shard in self._shards.values()]
            self._targets.forget(needed={topic for one in ledgers for topic in one.topics_needed()})

    @property
    def _bytes_max(self) -> int:
        """Per partition: the contents fetched for all of them must fit into memory together."""
        return self._batch_size.of(min(self._config.batch_bytes_max, self._content_share))

    @property
    def _content_share(self) -> int:
        """A partition's share of the memory for content."""
        return max(1, self._config.content_bytes_max // max(1, len(self._shards)))

    def _in_turn(self) -> list[tuple[int, Shard]]:
        busy = [p for p, s in self._shards.items() if s.is_busy]
        suspect = self._refusals.partition_in_turn(busy)
        return list(self._shards.items()) if suspect is None else [(suspect, self._shards[suspect])]

    @property
    def _moves_max(self) -> int:
        return self._refusals.count_max(self._batch_size.of(self._config.batch_moves_max))

    def _do_what_is_due_in_a_peak(self, shard: Shard) -> None:
        """Let time go on although lines come faster than batches take them; before the lines, or they would take all the room."""
        peak_ms = shard.peak_ms()
        if peak_ms is not None:
            now_ms = min(peak_ms, shard.time.now_ms())
            shard.ledger.let_time_pass(now_ms=now_ms, move_count_max=self._moves_max, present=self._present)

    def _on_tick(self, batches: list[tuple[int, Batch]], *, read_result: ReadResult) -> None:
        self._report_untimely()
        self._contents.rest()
        mended = self._targets.mended(
            {topic for s in self._shards.values() for topic in s.ledger.doubt_index.held_topics()}
        )
        if self._targets.has_widened(self._environment.background):
            # Clients would learn of it later and refuse the new partition until then; new clients know it at once.
            raise RetriableError("a topic has more partitions by now")
        if self._left_out and self._availability.has_any_again(self._left_out):
            raise RetriableError("a partition is available again")
        patience_s = self._config.misplaced_after.total_seconds()
        moves_max = self._moves_max
        seen = {p for p, _ in batches}
        self.counts.ends = known_ends(self._group, self._shards, self._topics)
        self._present = self._presence.of(s.ledger.schedule for s in self._shards.values())
        if self._refusals.are_questions_paused:
            self._present = frozenset()  # due check-backs stay due, as those of a group without members
        wall_ms, to_ask = self._wall_ms(), list[Shard]()
        for p, shard in self._in_turn():
            ledger = shard.ledger
            if mended:
                ledger.mended(mended)
            now = self._clock()
            shard.give_up_misplaced_lines(self._topics, connections=self._connections, now=now, patience_s=patience_s)
            if shard.is_read_to_the_ends(self._group, self._topics):
                shard.is_caught_up |= not shard.is_half_paused
                now_ms = shard.time.now_ms()
                counted_ms = shard.counted_ms(now_ms, self._group, self._topics, read_result=read_result, now=now)
                ledger.let_time_pass(now_ms=counted_ms, move_count_max=moves_max, present=self._present)
                probed_ms = min(wall_ms, shard.op_read_wall_ms)
                if now - shard.probed_at >= PROBE_S and ledger.probe_time(now_ms=now_ms, wall_ms=probed_ms):
                    shard.probed_at = now
                self._has_more |= len(ledger.batch.to_doubt) >= moves_max or ledger.batch.byte_count >= self._bytes_max
                if ledger.batch.is_empty and ledger.waits_for_half is None:
                    self._refusals.is_quiet(p, now)
            if not ledger.batch.is_empty and p not in seen:
                batches.append((p, ledger.batch))
            if shard.needs_op_end(shard.time.peek_ms(), wall_ms=wall_ms, now=now):
                to_ask.append(shard)
        self._op_ends.ask(to_ask, wall_ms=wall_ms)
        if self._has_more or any(shard.ledger.has_more_due for shard in self._shards.values()):
            self._ticked_at = 0.0

    def _wall_ms(self) -> int:
        return round(self._environment.wall_clock() * 1000)

    def _report_untimely(self) -> None:
        """Log and count append times that did not count. Nothing else follows from them, so an operator has to know."""
        counts = {p: n for p, s in self._shards.items() if (n := s.ledger.times.take_untimely_count())}
        self.counts.untimely_count += sum(counts.values())
        if counts and self._clock() - self._clocks_warned_at >= CLOCKS_WARN_S:
            self._clocks_warned_at = self._clock()
            logger.warning("clocks.apart", extra={"records_by_partition": counts})

    def _is_time_to_store(self, now: float) -> bool:
        age_s = now - self._stored_at
        if age_s < STORE_IDLE_S:
            return False
        if age_s >= STORE_ALWAYS_S:
            return True
        return any(shard.ledger.positions() != shard.stored for shard in self._shards.values())

    def _publish(self, publisher: Publisher, batches: list[tuple[int, Batch]]) -> None:
        if self._assignment is None:
            raise InvariantError("nothing can be published without an assignment")
        included = {p for p, _ in batches}
        positions = {
            p: shard.ledger.positions()
            for p, shard in self._shards.items()
            if self.is_stored(shard, is_included=p in included)
        }
        offsets = {}
        for p, position in positions.items():
            time_ms = self._shards[p].time.peek_ms()
            offsets.update(
                encode_stored(position, writer=publisher.name, topics=self._topics, partition=p, time_ms=time_ms)
            )
        precautions = self._refusals.precautions(included, is_watched=self._targets.is_doubtful, times=self._times)
        began = self._clock()
        try:
            ledgers = {p: shard.ledger for p, shard in self._shards.items()}
            self._contents.fill(batches, ledgers)
            doubt_offsets = publisher.publish(batches, offsets, self._assignment.member, precautions)
        except TxLayerError as exc:
            if batches and (isinstance(exc, BrokerUnavailableError) or self._took_long(began)):
                self._batch_size.failed()
                if self._batch_size.is_stuck:
                    self._refusals.suspect_largest(batches)
            raise
        if batches:
            self._batch_size.passed()
            self._fruitless_count = 0
        self._stored_at = self._clock()
        if written_count := sum(len(batch.policy_lines) for _, batch in batches):
            turn_ms = int((self._stored_at - (self.counts.turned_at or began)) * 1000)
            self._release_lines.took(turn_ms, written_count=written_count)
        interval_s = self._config.publish_interval.total_seconds()
        if written_count >= GATHER_COUNT:  # read the lines of all partitions together
            self._gather_until = self._stored_at + interval_s
        elif not self._has_more and sum(len(batch.forwards) for _, batch in batches) >= GATHER_COUNT:
            self._gather_until = began + interval_s
        self._targets.written(publisher.watched)
        for p, batch in batches:
            self._refusals.passed(p, batch, is_asked=precautions.question_bytes_max > 0)
        for p, position in positions.items():
            ledger, now_ms = self._shards[p].ledger, self._shards[p].time.peek_ms()
            # Also if nothing had to be written: a refused resolution leaves only a report.
            self.log_reports(logger, p, ledger.batch, known=self._traces)
            self.counts.stored(ledger.batch, self._shards[p].stored, position, now_ms=now_ms)
            self._ahead.published(p, ledger.batch, now_ms=now_ms)
            self._raise_if_doubt_is_another(p, doubt_offsets.get(p, {}))
            ledger.published(doubt_offsets.get(p, {}))
            self._shards[p].stored = position

    def _raise_if_doubt_is_another(self, partition: int, written_at: dict[str, int]) -> None:
        expected = self._shards[partition].ledger.doubt_index.next_offset
        found = min(written_at.values(), default=expected)
        if found < expected:  # a restart would begin behind what is written now
            raise TopicMismatchError(
                f"doubt was made anew under its coordinators, or brokers lost its end; find out which, then {COORDINATOR_ADVICE}",
                topic=self._topics.doubt,
                expected=f"an offset from {expected} on in partition {partition}",
                found=str(found),
            )

    def _without_those_to_ask(self, batches: list[tuple[int, Batch]]) -> list[tuple[int, Batch]]:
        """The batches that may be published. One that parks a transaction as too large waits until its topics were asked about again.

        Raises:
            RetriableError: one takes larger messages now. Start over, so that the transaction is decided again.
            TopicMismatchError: half has more partitions than at the start: what seems misplaced is not.
        """
        if any(each.why.reason is ParkReason.MISPLACED for _, batch in batches for each in batch.quarantined):
            limits = self._connections.topic_limits(self._topics.half)
            if limits is not None and limits.partition_count != self._partition_count:
                found = f"{limits.partition_count} partitions"
                raise got_more_partitions(self._topics, partition_count=self._partition_count, found=found)
        parked = {
            p: {
                (keep.txn.key, topic)
                for keep in batch.to_doubt.values()
                if keep.txn.extras is not None and keep.txn.extras.reason is ParkReason.TOO_LARGE
                for topic in keep.txn.topics
                if topic in self._targets.targets
            }
            for p, batch in batches
        }
        to_ask = {topic for pairs in parked.values() for _, topic in pairs - self._asked_too_large}
        wanted = to_ask.copy()
        if to_ask and self._targets.has_grown(to_ask):
            raise RetriableError("a topic takes larger messages by now")
        asked = wanted - to_ask
        self._asked_too_large |= {pair for pairs in parked.values() for pair in pairs if pair[1] in asked}
        ready = [(p, batch) for p, batch in batches if parked[p] <= self._asked_too_large]
        self._asked_too_large -= {pair for p, _ in ready for pair in parked[p]}
        self._has_more |= len(ready) < len(batches)
        return ready

    def _took_long(self, began: float) -> bool:
        """True if a Kafka transaction may have failed because of its size: the broker ends one that takes too long, and its
        writer then gets the error that it was fenced.
        """
        return self._clock() - began >= self._config.kafka_transaction_timeout.total_seconds() / 2

    @staticmethod
    def is_stored(shard: Shard, *, is_included: bool) -> bool:
        """False for a partition whose batch waits for its turn: positions beyond that batch must not be stored."""
        return is_included or shard.ledger.batch.is_empty

    def _stop_cleanly(self) -> None:
        """Store what was folded, so that the successor begins exactly there."""
        publisher = self._publisher
        if publisher is None or not self._shards:
            return
        ledgers = {p: s.ledger for p, s in self._shards.items()}
        batches = [(p, led.batch) for p, led in ledgers.items() if not led.batch.is_empty]
        try:
            self._publish(publisher, self._without_those_to_ask(batches))
        except InvariantError:
            raise
        except TxLayerError as exc:
            logger.info("coordinator.not_stored", extra={"reason": str(exc)})
            return  # the successor begins where the last Kafka transaction ended
        publisher.close()
        self._publisher = None


def _one_of_each(lists: Iterable[Iterable[str]]) -> Iterator[str]:
    """The first of each list, then the second of each, and so on."""
    return (name for row in zip_longest(*lists) for name in row if name is not None)


def make_coordinator(
    config: CoordinatorConfig, connections: CoordinatorConnections, *, tracing: Tracing, environment: Environment = REAL
) -> Coordinator:
    """A coordinator whose forwards and questions make spans; with a tracing that is off nothing listens to it."""
    spans = CoordinatorSpans(tracing, check_topic=config.topics.check) if tracing.is_on else None
    return Coordinator(config, connections, environment=environment, observer=spans)
