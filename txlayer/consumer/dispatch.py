"""Hands messages to the pool, fairly between queues, and processes their outcomes."""

from asyncio import CancelledError
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any

from txlayer.adapters.ports import TopicPartition
from txlayer.adapters.telemetry import Log
from txlayer.consumer.handlers import Handler, Route
from txlayer.consumer.offsets import OwnedPartition
from txlayer.consumer.pools import (
    ATTEMPT_TIMEOUT,
    Chunk,
    Failed,
    Job,
    JobOutcome,
    Pool,
    items_of,
    log_fields_of,
    without_reported,
)
from txlayer.core.dead_letters import MESSAGE_LENGTH_MAX
from txlayer.core.key_queue import Chain, Failure, Item
from txlayer.core.retry import Breaker, BreakerPolicy, Later, NotBegun, Retry

SIDE_BY_SIDE_COUNT_MAX = 250  # jobs of one chunk that run side by side; it lets queues take turns
KEY_GROUP_COUNT_MAX = 1_000
"""Names of `key_group` that are counted per topic, the first ones seen: one name per key would fill the memory."""
KEY_GROUP_LENGTH_MAX = 200  # characters of such a name that are kept: it may hold a key of any length
OTHER_KEY_GROUPS = "(other)"  # the name for all later ones
NO_KEY_GROUP = "(failed)"  # the name for messages whose `key_group` call raised or returned no text
REASON_LENGTH_MAX = 500  # characters of a handler's reason in a log line
REMARK_LENGTH_MAX = 200  # characters of what a lease says of its queue

logger = Log("txlayer.consumer")


class Breakers:
    """The breakers of one consumer: one for each topic that has a policy, and one for each handler with a policy of its own.

    A handler with its own is under that one alone, in all its topics.
    """

    def __init__(
        self, policies: Mapping[str, BreakerPolicy] | None = None, routes: Mapping[str, Route] | None = None
    ) -> None:
        self.by_topic = {topic: Breaker(policy) for topic, policy in (policies or {}).items()}
        """For topics whose messages are all under one breaker."""
        self._by_handler: dict[str, dict[Handler, Breaker | None]] = {}  # for the others
        self._own = own = dict[Handler, Breaker]()
        for topic, route in (routes or {}).items():
            for handler in route.handlers:
                if handler.breaker is not None and handler not in own:
                    own[handler] = Breaker(handler.breaker)
            if own.keys().isdisjoint(route.handlers):
                continue
            of_topic = self.by_topic.pop(topic, None)
            if len(route.handlers) == 1:
                self.by_topic[topic] = own[route.handlers[0]]
            else:
                self._by_handler[topic] = {handler: own.get(handler, of_topic) for handler in route.handlers}
        self._all = {topic: [breaker] for topic, breaker in self.by_topic.items()}
        for topic, found in self._by_handler.items():
            self._all[topic] = [breaker for breaker in dict.fromkeys(found.values()) if breaker is not None]

    def of(self, owned: OwnedPartition, job: Job) -> Breaker | None:
        """The breaker that these messages are under; None: they begin at any time."""
        of_handlers = self._by_handler.get(owned.topic)
        if of_handlers is None:
            return self.by_topic.get(owned.topic)
        handler = owned.route.handler_of(items_of(job)[0].record)
        return None if handler is None else of_handlers[handler]

    def of_topic(self, topic: str) -> Sequence[Breaker]:
        """Every breaker that messages of this topic are under."""
        return self._all.get(topic, ())

    def handler_of(self, breaker: Breaker) -> str | None:
        """The name of the handler whose own breaker it is; None: it is a topic's."""
        return next((handler.name for handler, own in self._own.items() if own is breaker), None)

    def remark_on(self, topic: str) -> str:
        """What operators are to know of messages of this topic; "": all of its breakers are closed."""
        found = [self.handler_of(breaker) for breaker in self.of_topic(topic) if not breaker.is_closed]
        whose = ", ".join(name for name in found if name is not None)
        return f"breaker open{whose and f': {whose}'}"[:REMARK_LENGTH_MAX] if found else ""

    def is_by_handler(self, topic: str) -> bool:
        """True if messages of this topic are under different breakers, and one of these is not closed."""
        return topic in self._by_handler and any(not breaker.is_closed for breaker in self._all[topic])


class Dispatcher:
    """Dispatches the messages of the owned queues. The engine's thread uses it.

    Args:
        in_flight_max: messages handed over at a time.
        clock, now_ms, draw: monotonic seconds; milliseconds since 1970 that never decrease; random numbers.
        key_group: maps a message to the name it is counted under in the metrics; None: not counted by key.
        give_back: called when jobs are cut or a queue is dropped: what waits for the program to take it has not begun.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        in_flight_max: int,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        draw: Callable[[], float],
        key_group: Callable[[bytes | None], str] | None = None,
        breakers: Breakers | None = None,
        give_back: Callable[[], object] = bool,
    ) -> None:
        self._pool = pool
        self._in_flight_max = in_flight_max
        self._clock = clock
        self._now_ms = now_ms
        self._draw = draw
        self._key_group = key_group
        self._is_key_group_logged = False
        self.breakers = breakers or Breakers()
        self._give_back = give_back
        self._probes: dict[Chunk, Breaker] = {}
        self._has_closed = False  # a breaker, since the last `begin`
        self._turn = 0
        self._stale: dict[TopicPartition, dict[Chunk, int]] = {}
        self._begun: dict[Chunk, int] = {}
        self.in_flight_count = 0  # messages handed over without an outcome so far, including those of lost queues
        self.stale_count = 0

    # --- handing over -------------------------------------------------------------------------------------------------

    def begin(self, queues: Collection[OwnedPartition]) -> None:
        """Start runnable messages: one chunk of each queue in turn, while workers and room are free."""
        pool, found = self._pool, list(queues)
        if pool.free_count() <= 0 or not found:
            return
        if self._has_closed:
            self._has_closed = False
            for owned in found:
                owned.queue.release()
        self._turn += 1
        first = self._turn % len(found)
        waiting = found[first:] + found[:first]
        now, now_ms = self._clock(), self._now_ms()
        while waiting:
            again = []
            for owned in waiting:
                free, before = pool.free_count(), self.in_flight_count
                room = self._in_flight_max - before
                if free <= 0 or room <= 0:
                    return
                if now >= owned.lease.valid_until or owned.lease.lost.is_set():
                    continue
                if (breaker := self.breakers.by_topic.get(owned.topic)) is not None:
                    room = min(room, breaker.room(now_ms))
                    if not room:
                        continue
                if pool.chunk_s:
                    self._begin_chunk(owned, min(owned.chunk_size.count, room), now_ms)
                elif jobs := self._taken(owned, min(SIDE_BY_SIDE_COUNT_MAX, room, free), now_ms):
                    self._submit(owned, jobs)
                if self.in_flight_count > before:
                    again.append(owned)
            waiting = again

    def _begin_chunk(self, owned: OwnedPartition, count_max: int, now_ms: int) -> None:
        """Start one chunk of consecutive jobs, and one for each job that failed before."""
        lasts: list[Item[Any]] | None = None
        is_by_handler = self.breakers.is_by_handler(owned.topic)
        if self._pool.has_runs and not owned.route.batch_count_max and not is_by_handler:
            taken, lasts = owned.queue.take_runs(count_max, now_ms=now_ms)
            jobs: list[Job] = list(taken)
        else:
            jobs = self._taken(owned, count_max, now_ms)
        if not jobs:
            return
        if owned.route.batch_count_max:
            alone = [job for job in jobs if items_of(job)[0].more is not None]
        else:
            alone = [job for job in jobs if job.more is not None]  # type: ignore[union-attr]  # no batches here
        if not alone:
            self._submit(owned, jobs, lasts)
            return
        # A job that failed before may be slow or kill its process, so no other job waits behind it.
        together = [job for job in jobs if items_of(job)[0].more is None]
        if together:
            self._submit(owned, together, lasts)
        for job in alone:
            self._submit(owned, [job])

    def _taken(self, owned: OwnedPartition, count_max: int, now_ms: int) -> list[Job]:
        batch_max = owned.route.batch_count_max
        if self.breakers.is_by_handler(owned.topic):
            return self._taken_by_handler(owned, count_max, now_ms)
        if not batch_max:
            return list(owned.queue.take(count_max, now_ms=now_ms))
        batch_count = max(count_max // batch_max, 1)
        return list(owned.queue.take_batches(batch_count, records_max=batch_max, now_ms=now_ms))

    def _taken_by_handler(self, owned: OwnedPartition, count_max: int, now_ms: int) -> list[Job]:
        """Take what handlers with a closed breaker get. Start a probe of each other one; the rest waits until the next probe."""
        queue, found, left = owned.queue, list[Job](), count_max
        while taken := queue.take(left, now_ms=now_ms):
            for item in taken:
                breaker = self.breakers.of(owned, item)
                if breaker is not None and not breaker.room(now_ms):
                    queue.hold(item, until_ms=min(breaker.next_at_ms, now_ms + breaker.policy.probe_interval_ms))
                    continue
                left -= 1
                if breaker is None or breaker.is_closed:
                    found.append(item)
                else:
                    self._submit(owned, [item])
        return found

    def _submit(self, owned: OwnedPartition, jobs: list[Job], lasts: list[Item[Any]] | None = None) -> None:
        chunk = Chunk(owned, owned.lease, jobs, lasts=lasts)
        count = len(jobs) if not owned.route.batch_count_max else sum(map(len, map(items_of, jobs)))
        self._begun[chunk] = count
        self.in_flight_count += count
        breaker = self.breakers.of(owned, jobs[0])
        if breaker is not None and not breaker.is_closed:
            breaker.begin_probe()
            self._probes[chunk] = breaker
        self._pool.submit(chunk)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def take(self) -> int:
        """Process what has ended; returns the number of outcomes."""
        outcomes = self._pool.take()
        for outcome in outcomes:
            if (rest := without_reported(outcome)) is not None:
                self._take(rest)
                chunk = rest.chunk
                if chunk.left is None and (chunk in self._begun or chunk.is_given_up):
                    chunk.let_go(rest)
            if outcome.chunk not in self._begun:
                # Else an error would live until the collector of garbage looks: it knows the frame that knows this list.
                outcome.chunk.failed.clear()
        return len(outcomes)

    def wait(self, timeout_s: float) -> None:
        """Return when a chunk has ended, or after `timeout_s`."""
        self._pool.wait(timeout_s)

    def cut(self, owned: OwnedPartition | None = None) -> int:
        """Start no more of the queued jobs, or of those of one queue; the running ones go on. Returns the number of messages in flight."""
        for chunk in self._begun:
            if owned is None or chunk.owner is owned:
                chunk.is_cut = True
        self._give_back()
        return self.in_flight_count

    def is_clear(self, tp: TopicPartition, *, since: float) -> bool:
        """True if no handler of an earlier lease of this queue is running, except those started before `since`."""
        return all(0 < chunk.begun_at < since for chunk in self._stale.get(tp, ()))

    def forget(self, owned: OwnedPartition) -> None:
        """Drop the queue, whose lease is lost; outcomes of its running handlers are discarded."""
        stale = {chunk: n for chunk, n in self._begun.items() if chunk.owner is owned}
        if stale:
            self._stale.setdefault(owned.topic_partition, {}).update(stale)
            self._give_back()
            # What waits behind them is not this process's any more, however long their handlers take.
            for item in (item for chunk in stale for job in chunk.open_jobs() for item in items_of(job)):
                item.follower = None

    def _take(self, outcome: JobOutcome) -> None:
        chunk = outcome.chunk
        owned: OwnedPartition = chunk.owner
        self._learn(owned, outcome)
        for failed in outcome.failed:
            _log_failure(failed, is_over=owned.is_over)
        is_batch = bool(owned.route.batch_count_max)
        done: list[Item[Any]] = (
            list(chain.from_iterable(map(items_of, outcome.done))) if is_batch else list(outcome.done)  # type: ignore[arg-type]  # no batches there
        )
        failed_count = sum(len(items_of(f.job)) for f in outcome.failed)
        not_run_count = sum(len(items_of(job)) for job in outcome.not_run)
        count = len(done) + failed_count + not_run_count
        self.in_flight_count -= count
        left = self._begun[chunk] - count
        if left:
            self._begun[chunk] = left
        else:
            del self._begun[chunk]
        if owned.is_over:
            self.stale_count += len(done) + failed_count
            stale = self._stale.get(owned.topic_partition)
            if stale is not None and not left:
                stale.pop(chunk, None)
                if not stale:
                    del self._stale[owned.topic_partition]
            return
        # Those of a batch before one that cannot be read are handled, too.
        before = [item for failed in outcome.failed for item in items_of(failed.job)[: failed.index_in_batch]]
        self._count(owned, outcome, [*done, *before] if before else done)
        if chunk.lasts is not None and (not_run_count or failed_count or chunk.told):
            self._take_cut(owned, outcome, done, chunk.lasts)
            return
        if done:
            owned.queue.handled(done, chunk.lasts)
        for failed in outcome.failed:
            self._fail(owned, failed)
        for job in reversed(outcome.not_run):
            owned.queue.put_back(items_of(job))

    def _learn(self, owned: OwnedPartition, outcome: JobOutcome) -> None:
        """Let breakers see how these attempts ended."""
        chunk, breakers = outcome.chunk, self.breakers
        if (probed := self._probes.pop(chunk, None)) is not None:
            self._teach(probed, outcome, is_probe=True)
        elif owned.is_over:
            return  # the consumer itself may have ended them
        elif (of_topic := breakers.by_topic.get(owned.topic)) is not None:
            self._teach(of_topic, outcome)
        elif found := breakers.of_topic(owned.topic):
            done = [(breakers.of(owned, job), job) for job in outcome.done]
            failed = [(breakers.of(owned, each.job), each) for each in outcome.failed]
            for breaker in found:
                of_it = (
                    [job for which, job in done if which is breaker],
                    [each for which, each in failed if which is breaker],
                )
                self._teach(breaker, JobOutcome(chunk, *of_it))

    def _teach(self, breaker: Breaker, outcome: JobOutcome, *, is_probe: bool = False) -> None:
        """Let one breaker see how these attempts ended; log it, and begin nothing more that is under it, if it opens."""
        chunk, was_closed, now_ms = outcome.chunk, breaker.is_closed, self._now_ms()
        failed_count = sum(isinstance(f.result, Retry) and not f.is_undecodable for f in outcome.failed)
        if is_probe:
            is_later = any(isinstance(f.result, Later) for f in outcome.failed)
            breaker.probed(is_well=bool(outcome.done) or (False if failed_count or is_later else None), now_ms=now_ms)
        else:
            said_count = sum(not isinstance(f.result, Later | NotBegun) for f in outcome.failed)
            breaker.ended(count=len(outcome.done) + said_count, failed_count=failed_count, now_ms=now_ms)
        if was_closed is breaker.is_closed:
            return
        fields = {"group": chunk.lease.group, "topic": chunk.lease.topic}
        if (name := self.breakers.handler_of(breaker)) is not None:
            fields["handler"] = name
        if breaker.is_closed:
            self._has_closed = True
            logger.warning("breaker.closed", extra=fields)
            return
        logger.error("breaker.opened", extra=fields)
        for other in self._begun:
            other.is_cut = other.is_cut or breaker in self.breakers.of_topic(other.lease.topic)
        self._give_back()

    def _take_cut(
        self, owned: OwnedPartition, outcome: JobOutcome, done: list[Item[Any]], lasts: Sequence[Item[Any]]
    ) -> None:
        """Not all messages of a chunk were handled so far: for each key, the first that was not goes next, has failed, or runs."""
        queues, ended = owned.queue, set(map(id, done))
        queues.handled(done, [item for item in lasts if id(item) in ended])
        behind: dict[Chain, list[Item[Any]]] = {}
        for job in outcome.not_run:
            for item in items_of(job):
                behind.setdefault(item.chain, []).append(item)
        for failed in outcome.failed:
            first = items_of(failed.job)
            queues.shorten([*first, *behind.pop(first[0].chain, ())], 1)
            self._fail(owned, failed)
        for items in reversed(behind.values()):
            queues.put_back(items)

    def _count(self, owned: OwnedPartition, outcome: JobOutcome, done: list[Item[Any]]) -> None:
        tally = owned.tally
        job_count = len(outcome.done) + sum(not isinstance(f.result, NotBegun) for f in outcome.failed)
        tally.handled += len(done)
        tally.timed_out += sum(f.error_type == ATTEMPT_TIMEOUT for f in outcome.failed)
        tally.attempt_count += job_count
        if job_count:
            together = job_count if self._pool.chunk_s else 1
            tally.durations.observe(outcome.seconds / together, job_count)
        if self._pool.chunk_s:
            owned.chunk_size.learn(job_count, outcome.seconds)
        if self._key_group is not None:
            groups = tally.by_key_group
            for item in done:
                name = self._group_of(item)
                if name not in groups and len(groups) >= KEY_GROUP_COUNT_MAX:
                    name = OTHER_KEY_GROUPS
                groups[name] = groups.get(name, 0) + 1

    def _group_of(self, item: Item[Any]) -> str:
        """The metrics name of the message's key; an error in `key_group` must not stop the consumer."""
        assert self._key_group is not None
        try:
            name = self._key_group(item.record.key())
            if isinstance(name, str):
                return str(name)[:KEY_GROUP_LENGTH_MAX]
            raise TypeError(f"key_group returned {type(name).__name__}, not a text")
        except BaseException:
            if not self._is_key_group_logged:
                self._is_key_group_logged = True  # log once: it would fail for every message
                logger.exception("key_group.failed", extra=log_fields_of(item.record))
            return NO_KEY_GROUP

    def _fail(self, owned: OwnedPartition, failed: Failed) -> None:
        queues, items, now_ms = owned.queue, items_of(failed.job), self._now_ms()
        result, error_text = failed.result, failed.error_text
        if isinstance(result, NotBegun):
            queues.put_back(items)
            return
        if failed.is_undecodable or failed.index_in_batch:
            items = [queues.end_before(items, failed.index_in_batch)]
        else:
            # Only what the handler was given: those behind it have had no attempt.
            items = list(queues.shorten(items, failed.given_count or len(items)))
        breaker = self.breakers.of(owned, items[0])
        if isinstance(result, Retry) and not failed.is_undecodable and breaker is not None and not breaker.is_closed:
            # The outage failed it, not the message.
            result = Later(delay_ms=max(breaker.policy.probe_interval_ms, result.delay_ms or 0))
        if isinstance(result, Later):
            why = queues.postpone(items, result, now_ms=now_ms, is_asked=isinstance(failed.result, Later))
            if not why:
                owned.tally.postponed += 1
                if result.is_of_partition:
                    self.cut(owned)
                return
            logger.warning("handler.failed", extra=log_fields_of(items[0].record) | {"reason": why})
            result, error_text = Retry(), f"{why}: {error_text}"[:MESSAGE_LENGTH_MAX]
        owned.tally.failed += 1
        failure = Failure(result, failed.started_ms, failed.error_type, error_text)
        if failed.is_undecodable:
            queues.undecodable(items[0], failure, now_ms=now_ms)
        else:
            queues.failed(items, failure, now_ms=now_ms, draw=self._draw())


def _log_failure(failed: Failed, *, is_over: bool) -> None:
    """Log one line per failed attempt, and only here; a handler's own Retry or Reject is not a warning."""
    first = items_of(failed.job)[failed.index_in_batch]
    where = log_fields_of(first.record) | {"attempt": first.attempt_count + 1, "error_type": failed.error_type}
    if failed.error is not None and is_over and issubclass(type(failed.error), CancelledError):
        return  # the consumer cancelled it, because its queue has another owner
    if failed.error is not None:
        event = "message.undecodable" if failed.is_undecodable else "handler.raised"
        logger.warning(event, exc_info=failed.error, extra=where)
    elif isinstance(failed.result, NotBegun):
        return
    elif failed.error_type in ("Retry", "Reject", "Later"):
        logger.info("handler.refused", extra=where | {"reason": failed.error_text[:REASON_LENGTH_MAX]})
    else:
        event = "handler.timed_out" if failed.error_type == ATTEMPT_TIMEOUT else "handler.failed"
        logger.warning(event, extra=where | {"reason": failed.error_text[:REASON_LENGTH_MAX]})
