"""The queues that this process owns: assigned by the group, leased, taken over, given up.

A queue is processed once the group has assigned it, its lease is held, and no handler of an earlier lease of it still
runs here. A take-over reads the stored offsets to learn which messages have ended; there is no other memory. Its steps are
the coordinator's (docs/explanation/protocol.md, "Recovery", 1 and 2).

At a rebalance:

1. The client calls `Engine._on_revoke`, unless the partitions are lost already: no handler starts, those that run have
   `revoke_timeout` to end, what ended is stored, and dead letters and answers that are due then are written.
2. `revoke` gives up every queue and its lease, and the writer of dead letters. The results of handlers that still run are discarded.
3. `take_rebalance` claims a lease for each assigned queue.
4. `look_at_leases` takes a queue over when its lease is held and no handler of an earlier lease runs here any more.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.ports import Assignment, StoringGroupReader, TopicPartition
from txlayer.adapters.telemetry import Log
from txlayer.config import ConsumerConfig
from txlayer.consumer.context import Lease
from txlayer.consumer.dead_letters import DeadLetterWriter
from txlayer.consumer.dispatch import Dispatcher
from txlayer.consumer.lease_keeper import NO_TOKEN, LeaseKeeper
from txlayer.consumer.metrics import TopicCounts
from txlayer.consumer.offsets import FailedTries, OffsetStorer, OwnedPartition
from txlayer.consumer.plan import ConsumerPlan, starts_of, writers_of
from txlayer.core.dead_letters import replay_topic, writer_name
from txlayer.core.key_queue import ItemSource, PartitionQueue, Start
from txlayer.core.leases import token_above
from txlayer.errors import MemberFencedError, NotAuthorisedError, RetriableError, TopicMismatchError, TxLayerError
from txlayer.runtime.environment import REAL, Background, Environment, Running
from txlayer.runtime.kafka_transactions import (
    ALONE,
    SMALL_BATCH_BYTES,
    STABLE_PATIENCE_S,
    TIMEOUT_S,
    WriterConnections,
    close_in_background,
    stable_offsets,
)

logger = Log("txlayer.consumer")

HARMLESS_S = 2.0
"""How long to try to end a writer that stores nothing: four times its usual time while its partitions accept a marker."""
HARMLESS_COUNT_MAX = 1_000
"""Names of such writers that are remembered, the last ones; metadata that name an older one are those of an unknown writer."""


def end_what_was_left(
    connections: WriterConnections,
    names: Iterable[str],
    *,
    timeout_s: float = TIMEOUT_S,
    background: Background = REAL.background,
) -> None:
    """Fence the writers of these names and abort their open Kafka transactions; returns when all are ended.

    This takes 0.06 s for each, or 0.56 s with an open Kafka transaction. Without it, readers of the dead-letter partition
    and of the stable offsets would wait for the broker's time-out.

    Raises:
        TxLayerError: a name could not be initialised; the state of it and of the following ones is unknown.
    """
    for name in names:
        writer = connections.make_writer(name, batch_bytes_max=SMALL_BATCH_BYTES)
        try:
            writer.initialise(timeout_s=timeout_s)
        finally:
            close_in_background(writer, background)
        logger.info("dead_letters.fenced", extra={"transactional_id": name})


PATIENCE_BESIDE_S = 2.0
"""The same beside owned queues, whose handlers begin only afterwards; then the take-over is tried again."""
ALONE_WAIT_MAX_MS = 5_000
"""Longest pause between two tries to take a queue over while no queue is owned: no handler waits then."""
APART_S = 600.0
"""How long a consumer bears that a topic and its replay topic are assigned apart: twice the interval at which clients look for
new partitions. Adding partitions to both topics takes time, and a rebalance may come in between."""
TOPICS_LOOK_S = 60.0
"""How often a consumer asks if its topics are still those that it began with: one question for each, of two requests."""
STORE_LOOK_S = 0.002  # how long one check for the acknowledgement of a store waits
LOG_ENDS_S = 1.0  # how often the ends of the topics are recorded


class Assignments:
    """The assigned, leased and owned queues. The engine's thread uses it."""

    def __init__(
        self,
        config: ConsumerConfig,
        plan: ConsumerPlan,
        *,
        connections: ConsumerConnections,
        reader: StoringGroupReader,
        make_leases: Callable[[], LeaseKeeper],
        storer: OffsetStorer,
        dispatcher: Dispatcher,
        chunk_s: float,
        environment: Environment,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._plan = plan
        self._connections = connections
        self._reader = reader
        self._make_leases = make_leases
        self._leases = make_leases()
        self._has_leases_failed = False
        self._storer = storer
        self._dispatcher = dispatcher
        self._chunk_s = chunk_s
        self._environment = environment
        self._clock = environment.clock
        self._now_ms = now_ms
        self._tokens: dict[TopicPartition, int] = {}
        # {queue: (its lease's token, the token given to handlers)}
        self._given: dict[TopicPartition, tuple[int, int]] = {}
        self._assigned: dict[TopicPartition, None] = {}  # an ordered set, the same in every process
        self._former_writers: list[str] = []  # to be ended by the next take-over
        self._harmless: dict[str, None] = {}  # what they left open stores no offset
        self._left_open: list[str] = []  # harmless ones that were not ended yet
        self._batch_bytes_max = SMALL_BATCH_BYTES  # of the writers
        self._failed_tries = FailedTries(now_ms)  # of queues that could not be taken over
        self._apart: TopicMismatchError | None = None
        self._apart_until = 0.0
        self.assignment: Assignment | None = None
        self.writer: DeadLetterWriter | None = None  # the writer of dead letters for all owned queues
        self.owned: dict[TopicPartition, OwnedPartition] = {}  # the owned queues, by queue
        self.by_source: dict[TopicPartition, OwnedPartition] = {}  # the owned queues, by both sources of each
        self.tallies = {topic: TopicCounts() for topic in plan.topics}
        self.ends: dict[TopicPartition, int] = {}  # the ends of the owned topics, as of the last fetches
        self.rebalance_count = 0
        self.lost_lease_count = 0
        self._replaced_count = 0
        self._log_ends_at = float("-inf")
        self.topic_ids: dict[str, str] = {}  # {topic: its id at the start}
        self._topics_seen_at = self._clock()
        self._look: Running[None] | None = None
        self._is_looking = False

    def start(self) -> None:
        """Read the current leases; TxLayerError: the lock topic is missing or cannot be read; you may call it again."""
        if self._has_leases_failed:
            self._renew_leases()
            return
        try:
            self._leases.start()
        except TxLayerError:
            self._has_leases_failed = True
            raise

    def close(self) -> None:
        try:
            self.revoke()
        finally:
            self._leases.close()

    # --- figures ------------------------------------------------------------------------------------------------------

    @property
    def assigned_count(self) -> int | None:
        """Queues that the group assigned to this member; None before the first assignment."""
        return None if self.assignment is None else len(self._assigned)

    @property
    def replaced_count(self) -> int:
        """Transactional producers that were replaced since the start."""
        writer = self.writer
        return self._replaced_count + (0 if writer is None else writer.replaced_count)

    def note_log_ends(self, now: float) -> None:
        """Record the ends of the topics, as known from fetches; without a request."""
        if now - self._log_ends_at >= LOG_ENDS_S:
            self._log_ends_at = now
            found = {tp: self._reader.known_end(tp) for tp in self.owned}
            self.ends = {tp: end for tp, end in found.items() if end is not None}

    # --- the group ----------------------------------------------------------------------------------------------------

    def take_rebalance(self) -> bool:
        """Take what the group said since the last call: give up what it revoked, claim what it assigned. True if it said something.

        Raises:
            TopicMismatchError: topics that belong together were not assigned together for `APART_S`.
        """
        is_changed = False
        if self._apart is not None and self._clock() >= self._apart_until:
            raise self._apart
        if self._reader.take_revocation():
            self.revoke()
            is_changed = True
        assignment = self._reader.take_assignment()
        if assignment is not None:
            self.revoke()
            self._assign(assignment)
            is_changed = True
        return is_changed

    def look_at_topics(self) -> None:
        """See now and then if the topics are still those of the start. The client does not tell. No handler waits for the answer.

        Raises:
            TopicMismatchError: one was deleted and made anew.
        """
        if self._look is not None and not self._is_looking:
            look, self._look = self._look, None
            try:
                look.result()
            except TopicMismatchError:
                self.give_up()  # the end must not store a place in the old topic for the new one
                raise
        if self._look is None and self._clock() - self._topics_seen_at >= TOPICS_LOOK_S:
            self._topics_seen_at, self._is_looking = self._clock(), True
            self._look = self._environment.background.start(self._look_in_background, name="txlayer-topics")

    def _look_in_background(self) -> None:
        try:
            for topic, known in self.topic_ids.items():
                limits = self._connections.topic_limits_in_background(topic)
                if limits is None:
                    raise RetriableError("it does not exist")
                if limits.topic_id != known:
                    raise TopicMismatchError(
                        "it was deleted and made anew under this consumer, which went on at its place in the old one: stop all "
                        f"consumers of {self._plan.group}, then say where it goes on by `txlayer consumer reset`",
                        topic=topic,
                        expected=known,
                        found=limits.topic_id,
                    )
        except (RetriableError, NotAuthorisedError) as exc:  # it reads on: perhaps only this question was refused
            extra = {"group": self._plan.group, "topic": topic, "reason": str(exc)}
            logger.warning("topics.not_seen", extra=extra)
        finally:
            self._is_looking = False

    def revoke(self) -> None:
        """Give up the whole assignment; the caller has stored before.

        Raises:
            TxLayerError: the leases failed and expire. The assignment is given up all the same.
        """
        self.give_up()
        self._storer.end()
        assigned, self._assigned = self._assigned, {}
        self._tokens.clear()
        self.assignment = None
        if assigned and not self._has_leases_failed:
            try:
                self._leases.revoked(assigned)
            except TxLayerError:
                self._has_leases_failed = True
                raise

    def _assign(self, assignment: Assignment) -> None:
        found: dict[str, set[int]] = {topic: set() for topic in self._plan.sources}
        for topic, partition in assignment.partitions:
            found.setdefault(topic, set()).add(partition)
        queues, apart = [], None
        for topic in sorted(self._plan.topics):
            if self._plan.is_broadcast:
                queues += [(topic, partition) for partition in sorted(found[topic])]
                continue
            own = replay_topic(self._plan.group, topic)
            usable = found[topic]
            if found[topic] != found[own]:
                # Another member may read none of these requests: that of the topic's partition does.
                usable = found[topic] & (found[own] | set(range(self._count_of(own))))
                apart = TopicMismatchError(
                    "a topic and the requests about its dead letters were assigned apart: their numbers of partitions, or "
                    "the subscriptions of the group's members, differ; `txlayer topics check --group … --topic …` says what is missing",
                    topic=own,
                    expected=f"partitions {sorted(found[topic])}",
                    found=f"{sorted(found[own])}",
                )
                extra = {"group": self._plan.group, "reason": str(apart)}
                logger.warning("queues.assigned_apart", extra=extra)
            queues += [(topic, partition) for partition in sorted(usable)]
        if apart is not None and self._apart is None:
            self._apart_until = self._clock() + APART_S
        self._apart = apart
        self.assignment = assignment
        self.rebalance_count += 1
        self._failed_tries.keep(queues)
        self._assigned = dict.fromkeys(queues)
        self._leases.assigned(self._assigned, generation=assignment.generation)
        logger.info(
            "queues.assigned",
            extra={"group": self._plan.group, "queue_count": len(self._assigned), "generation": assignment.generation},
        )

    def _count_of(self, topic: str) -> int:
        """How many partitions it has; 0 if the cluster does not say now."""
        try:
            limits = self._connections.topic_limits(topic)
        except (RetriableError, NotAuthorisedError):
            return 0
        return 0 if limits is None else limits.partition_count

    # --- leases -------------------------------------------------------------------------------------------------------

    def look_at_leases(self, is_still_ours: Callable[[], None]) -> None:
        """Give up lost queues and take over leased ones; `is_still_ours` is called meanwhile and may raise.

        A queue that cannot be taken over now waits, with growing pauses between the tries; the others go on.

        Raises:
            TxLayerError: the leases or a take-over failed; give up everything and start over.
        """
        self.keep_leases()
        if len(self.owned) == len(self._tokens):
            return
        due = [q for q in self._tokens if q not in self.owned and self._may_take(q)]
        found = [queue for queue in due if queue not in self._failed_tries]
        if found:
            self._try_to_take(found, is_still_ours)
        elif (again := self._failed_tries.first(due)) is not None:
            self._try_to_take([again], is_still_ours)

    def keep_leases(self) -> None:
        """Renew leases, and give up lost queues; take none over.

        Raises:
            TxLayerError: the leases failed; give up everything and start over.
        """
        if self._has_leases_failed:
            self._renew_leases()
        try:
            changes = self._leases.turn()
        except TxLayerError:
            self._has_leases_failed = True
            raise
        for queue in changes.lost:
            self._tokens.pop(queue, None)
        self._drop([self.owned[queue] for queue in changes.lost if queue in self.owned], is_told=True)
        self._tokens.update(changes.gained)
        renewed = [queue for queue in changes.gained if queue in self.owned]
        if renewed:
            self._renew(renewed)
        breakers = self._dispatcher.breakers
        for queue, owned in self.owned.items():
            owned.extend(self._leases.valid_until(queue) or 0.0)
            if breakers.of_topic(owned.topic):
                self._leases.remark(queue, breakers.remark_on(owned.topic))

    def _renew(self, queues: Collection[TopicPartition]) -> None:
        """These leases were written again, with new tokens; store the tokens before any handler starts under them."""
        tokens = {
            queue: self._token_for(queue, self._tokens[queue], last=self.owned[queue].queue.token) for queue in queues
        }
        for queue, token in tokens.items():
            self._dispatcher.cut(self.owned[queue])  # what has not begun shall not begin under the former token
            if token is not None:
                self.owned[queue].queue.token = token
        self._store_all()
        for queue, token in tokens.items():
            self.owned[queue].renew(token)

    def _renew_leases(self) -> None:
        """Replace the lock registry after an error, because the state of its leases is unknown; it claims under a new name.

        Raises:
            TxLayerError: the lock log cannot be read; nothing is held, and the next turn tries again.
        """
        self._tokens.clear()
        self._given.clear()  # the log may be a new one, whose offsets start again
        self._leases.close()
        self._leases = self._make_leases()
        self._leases.start()
        if self.assignment is not None:
            self._leases.assigned(self._assigned, generation=self.assignment.generation)
        self._has_leases_failed = False

    def _may_take(self, queue: TopicPartition) -> bool:
        # A handler of the former lease may be at the same key; a hanging one is waited for only until its deadline.
        since = self._clock() - self._config.attempt_timeout.total_seconds()
        return queue in self._assigned and self._dispatcher.is_clear(queue, since=since)

    def _try_to_take(self, queues: Sequence[TopicPartition], is_still_ours: Callable[[], None]) -> None:
        """Take these queues over. If the cluster does not answer, each of them waits, and is then tried alone."""
        began_ms = self._now_ms()
        stopped: list[TxLayerError] = []

        def watch() -> None:
            try:
                is_still_ours()
            except TxLayerError as exc:
                stopped.append(exc)
                raise

        # A store for a queue that was ours a moment ago may be in flight: it must finish before the stored offsets are read.
        self._storer.wait(lambda: self._serve(watch))
        if self.writer is None and not self._plan.is_broadcast:
            self.writer = self._make_writer()
        try:
            starts = self._starts(queues, watch)
        except RetriableError as exc:
            if exc in stopped:
                raise
            took_ms = self._now_ms() - began_ms if len(queues) == 1 else 0
            wait_max_ms = None if self.owned else ALONE_WAIT_MAX_MS
            for queue in queues:
                self._failed_tries.failed(queue, took_ms=took_ms, wait_max_ms=wait_max_ms)
            first = dict(zip(("topic", "partition"), queues[0], strict=True))
            extra = {"group": self._plan.group, "queue_count": len(queues), **first, "reason": str(exc)}
            logger.warning("queues.not_taken_over", extra=extra)
            return
        is_still_ours()
        self._take_over(queues, starts, began_ms=began_ms)
        for queue in queues:
            self._failed_tries.passed(queue)

    def _serve(self, is_still_ours: Callable[[], None]) -> None:
        is_still_ours()
        self._environment.sleep(STORE_LOOK_S)

    def _starts(
        self, queues: Sequence[TopicPartition], is_still_ours: Callable[[], None]
    ) -> dict[TopicPartition, Start]:
        """Where reading of both sources of these queues begins. Nothing has changed if it raises."""
        group = self._plan.group
        self._try_to_end_what_is_harmless()
        if not self._plan.keeps_position:
            stored = {queue: self._storer.own.get(queue) for queue in queues}
            return starts_of(self._connections, stored, group=group, replays=[], start_at=self._plan.start_at)
        replays = [(replay_topic(group, topic), partition) for topic, partition in queues]
        if self._plan.is_broadcast:
            replays = []
        # Our own writer has nothing open: its Kafka transactions begin and end within one call.
        harmless = {*self._harmless, *([] if self.writer is None else [self.writer.name])}
        stored = stable_offsets(
            self._connections,
            group,
            [*queues, *replays],
            writers_of=writers_of,
            fence=partial(end_what_was_left, self._connections, background=self._environment.background),
            # What this process itself left open may not be in the stored offsets yet.
            former_writers=self._former_writers,
            harmless=harmless,
            is_still_ours=is_still_ours,
            patience_s=PATIENCE_BESIDE_S if self.owned else STABLE_PATIENCE_S,
            clock=self._clock,
        )
        self._former_writers.clear()
        return starts_of(self._connections, stored, group=group, replays=replays, start_at=self._plan.start_at)

    def _take_over(
        self, queues: Collection[TopicPartition], starts: Mapping[TopicPartition, Start], *, began_ms: int
    ) -> None:
        group = self._plan.group
        taken = [
            self._owned_at(queue, starts[queue], starts.get((replay_topic(group, queue[0]), queue[1]), Start(0)))
            for queue in queues
        ]
        for owned in taken:
            self.owned[owned.topic_partition] = owned
            self.by_source[owned.topic_partition] = self.by_source[owned.replay_partition] = owned
        # From now on the next owner finds our writer's name and our start offset in the stored metadata.
        self._store_all()
        self._read_on()
        logger.info(
            "queues.taken_over", extra={"group": group, "queue_count": len(taken), "took_ms": self._now_ms() - began_ms}
        )

    def _store_all(self) -> None:
        self._storer.store_now(self.owned.values(), timeout_s=self._config.store_timeout.total_seconds())

    # --- the writer of dead letters -----------------------------------------------------------------------------------

    def replace_writer(self) -> None:
        """Dead letters could not be written, and no offset was sent: go on with another writer, and keep the queues.

        Raises:
            TxLayerError: its name may not be stored; the queues must be dropped.
        """
        self._retire_writer()
        self._replaced_count += 1
        self._try_to_end_what_is_harmless()
        self.writer = self._make_writer()
        for owned in self.owned.values():
            owned.queue.writer = self.writer.name
        self._store_all()

    def _make_writer(self) -> DeadLetterWriter:
        group = self._plan.group
        return DeadLetterWriter(
            self._connections,
            group=group,
            name=writer_name(group, self._environment.draw_name()),
            timeout_s=self._config.kafka_transaction_timeout.total_seconds(),
            recycle_after_s=self._config.recycle_after.total_seconds(),
            clock=self._clock,
            background=self._environment.background,
            batch_bytes_max=self._batch_bytes_max,
        )

    def _retire_writer(self) -> None:
        writer, self.writer = self.writer, None
        if writer is None:
            return
        if writer.has_sent_nothing:
            self._harmless[writer.name] = None
            self._left_open.append(writer.name)
            if len(self._harmless) > HARMLESS_COUNT_MAX:
                del self._harmless[next(iter(self._harmless))]
        else:
            self._former_writers.append(writer.name)
        self._replaced_count += writer.replaced_count
        if writer.has_refused_batch:
            self._batch_bytes_max = ALONE
        writer.close()

    def _try_to_end_what_is_harmless(self) -> None:
        """End writers that left nothing open that stores an offset, if that is quick.

        Otherwise the broker's time-out ends them, and only readers of those dead letters wait for it: a partition that accepts
        no record accepts no marker either.
        """
        names, self._left_open = self._left_open, []
        timeout_s = min(self._config.kafka_transaction_timeout.total_seconds(), HARMLESS_S)
        background = self._environment.background
        for name in names:
            try:
                end_what_was_left(self._connections, [name], timeout_s=timeout_s, background=background)
            except RetriableError as exc:
                reason = {"transactional_id": name, "reason": str(exc)}
                logger.warning("dead_letters.left_open", extra=reason)

    def _owned_at(self, queue: TopicPartition, topic: Start, replays: Start) -> OwnedPartition:
        token = self._token_for(queue, self._tokens[queue], last=topic.stored.token)
        lease = Lease(self._plan.group, *queue, token, self._leases.valid_until(queue) or 0.0)
        queues: PartitionQueue[Any] = PartitionQueue(
            topic=topic, replays=replays, settings=self._plan.settings_of(queue[0], self._config), now_ms=self._now_ms()
        )
        if self.writer is not None:
            queues.writer = self.writer.name
        if token is not None:
            queues.token = token
        queues.knows_replays = replays.stored.tells_ends
        next_offsets = {queue: topic.offset}
        if not self._plan.is_broadcast:
            next_offsets[replay_topic(self._plan.group, queue[0]), queue[1]] = replays.offset
        return OwnedPartition(
            lease,
            queues,
            route=self._plan.routes[queue[0]],
            tally=self.tallies[queue[0]],
            chunk_s=self._chunk_s,
            next_offsets=next_offsets,
            sources=(ItemSource.TOPIC,) if self._plan.is_broadcast else tuple(ItemSource),
        )

    def _token_for(self, queue: TopicPartition, lease_token: int, *, last: int | None) -> int | None:
        """The token that handlers get under this lease; larger than every earlier token of the queue, stored with the progress.

        It is stored before a handler starts under it. The next owner of the queue relies on the stored token only, because
        the lock log may be a new one.
        """
        if lease_token == NO_TOKEN:
            return None
        if last is not None and self._given.get(queue) == (lease_token, last):
            return last  # the same lease: the queue is taken over again after an error
        token = token_above(lease_token, last=last)
        if token != lease_token:
            logger.info(
                "token.raised",
                extra={"topic": queue[0], "partition": queue[1], "lease_token": lease_token, "token": token},
            )
        self._given[queue] = lease_token, token
        return token

    # --- giving up ----------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Stop processing all queues; those still held start over from the stored offsets."""
        self._retire_writer()
        self._storer.forget()
        self._drop(list(self.owned.values()))

    def _drop(self, queues: Iterable[OwnedPartition], *, is_told: bool = False) -> None:
        found = list(queues)
        for owned in found:
            owned.end()
            self._dispatcher.forget(owned)
            del self.owned[owned.topic_partition], self.by_source[owned.topic_partition]
            del self.by_source[owned.replay_partition]
            if is_told:
                self.lost_lease_count += 1
                logger.warning(
                    "lease.lost", extra={"topic": owned.topic, "partition": owned.partition, "token": owned.lease.token}
                )
        if found:
            self._read_on()

    def _read_on(self) -> None:
        positions: dict[TopicPartition, int] = {}
        for owned in self.owned.values():
            positions.update(owned.next_offsets)
            owned.is_reading_paused = owned.is_replay_paused = False  # an assignment resumes all partitions
        self._reader.resume_at(positions)

    def raise_if_rebalanced(self) -> None:
        """For `is_still_ours`: a rebalance counts here, too; MemberFencedError: the group moved the partitions."""
        if self.take_rebalance() or self.assignment is None:
            raise MemberFencedError("the group moved the partitions meanwhile", group=self._plan.group)
