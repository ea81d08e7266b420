"""Where handlers run: the port of all pools, and the one of threads. Never what follows from how a handler ended.

A handler that has not come back by its deadline is hung. Its attempt has failed, and another worker replaces its
own: a process is killed; a thread or a task cannot be ended, so it is given up and counted until it comes back.
"""

from __future__ import annotations

import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from txlayer.adapters.bodies import Deserializer
from txlayer.adapters.telemetry import Log, kind_of, text_of
from txlayer.consumer.context import Context, Deserializers, Lease, ReceivedMessage, context_of, is_passing
from txlayer.consumer.handlers import Handler, Interceptor, Route
from txlayer.core.dead_letters import MESSAGE_LENGTH_MAX
from txlayer.core.key_queue import Item
from txlayer.core.retry import Ack, Later, NotBegun, Reject, Retry, WrongResult, checked

logger = Log("txlayer.consumer")

ATTEMPT_TIMEOUT = "AttemptTimeout"  # the error type of an attempt whose handler has not come back by its deadline

Job = Item[Any] | list[Item[Any]]
"""What one call of a handler is given: one message, or for a batch handler several of one key."""


def items_of(job: Job) -> list[Item[Any]]:
    return job if isinstance(job, list) else [job]


GONE: Job = []
"""Takes the place of a job that a chunk no longer keeps."""


class Turns(Protocol):
    """The jobs of a chunk that have not begun, as a deque."""

    def popleft(self) -> Job:
        """The next one, which begins now; IndexError: there is none."""

    def pop(self) -> Job:
        """The last one, which does not begin; IndexError: there is none."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Jobs of one queue that go to a worker together, to be done one after the other."""

    owner: Any  # whose it is; opaque here
    lease: Lease
    jobs: Sequence[Job]
    lasts: Sequence[Item[Any]] | None = None  # the last message of each key; None: each has a key of its own
    begun_at: float = 0.0  # when the job that runs began, of the monotonic clock; 0: none has begun
    is_cut: bool = False  # True: what has not begun shall not begin
    is_given_up: bool = False  # True: its handler hangs
    turns: Turns = field(init=False)
    """The jobs that have not begun. The worker takes them from the left; what another thread takes from the right does not begin."""
    given: dict[int, int] = field(default_factory=dict)
    """Messages of a batch that its handler was given, by the identity of the job; only of batches that were not given whole."""
    failed: list[Failed] = field(default_factory=list)
    not_run: list[Job] = field(default_factory=list)
    rest: list[Job] = field(default_factory=list)  # what `take_rest` took
    told: frozenset[int] = frozenset()  # the identities of jobs that were reported before its end
    left: Mapping[int, Job] | None = None  # of jobs that run side by side, those that have not ended; None: they do not
    _ends: list[None] = field(default_factory=lambda: [None])  # who pops it ends the chunk: atomic without a lock

    def __post_init__(self) -> None:
        self.turns = deque(self.jobs)

    def take_rest(self) -> list[Job]:
        """The jobs that have not begun. They do not begin any more, and the worker calls them not run."""
        with suppress(IndexError):
            while True:  # from the right: what the worker takes meanwhile is before it
                self.rest.insert(0, self.turns.pop())
        return self.rest

    def open_jobs(self) -> list[Job]:
        """Those that have not ended, and perhaps others."""
        return list(self.jobs if self.left is None else self.left.values())

    def let_go(self, told: JobOutcome) -> None:
        """Keep none of these jobs, whatever the worker that handles another one keeps: the chunk. The engine's thread calls it."""
        gone = {id(job) for job in (*told.done, *told.not_run, *(f.job for f in told.failed))}
        gone -= {id(f.job) for f in told.failed if f.error_type == ATTEMPT_TIMEOUT}  # its handler is known by it
        for jobs in (self.jobs, self.rest):
            if isinstance(jobs, list):  # in place: the worker has the same one
                jobs[:] = [GONE if id(job) in gone else job for job in jobs]
        self.lasts = self.lasts and [item for item in self.lasts if id(item) not in gone]
        if self.is_given_up:  # its worker says nothing of these any more
            self.failed.clear()
            self.not_run.clear()

    def end(self) -> bool:
        """True for the first caller, of any thread: it alone says how the chunk ended."""
        try:
            self._ends.pop()
        except IndexError:
            return False
        return True


FailedResult = Retry | Reject | Later | NotBegun  # what a handler answers whose message is not handled


class Failed(NamedTuple):
    """A job whose message was not handled."""

    job: Job
    result: FailedResult
    error_type: str
    error_text: str
    started_ms: int  # by this machine's clock
    index_in_batch: int = 0  # in a batch, of the message that cannot be read; those before it are done
    is_undecodable: bool = False
    given_count: int = 0  # messages of the batch that the attempt concerns, from its first one on; 0: all
    error: BaseException | None = None  # what was raised; None: nothing was


class JobOutcome(NamedTuple):
    """How jobs of a chunk ended; it may be reported in parts."""

    chunk: Chunk
    done: Sequence[Job]
    failed: Sequence[Failed] = ()
    not_run: Sequence[Job] = ()  # lease or chunk ended first, or one of their key failed
    seconds: float = 0.0  # that the calls took together
    is_part: bool = False  # reported before the chunk's end


AttemptObserver = Callable[[Job, Lease], AbstractContextManager[Callable[[Any], None]]]
"""Surrounds one attempt, interceptors included: give what it hands out the result; an exception passes through. It does not raise.

Any number of threads and tasks may use it at a time.
"""


class Caller:
    """Calls the handlers of one consumer. Any number of threads may use it at a time."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        interceptors: Sequence[Interceptor] = (),
        deserializer: Deserializer | None = None,
        key_deserializer: Deserializer | None = None,
        attempt_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        observer: AttemptObserver | None = None,
    ) -> None:
        self._observer = observer
        self._routes = routes
        self._interceptors = tuple(interceptors)
        self._deserializers = Deserializers(key_deserializer, deserializer)
        self._key_deserializer = key_deserializer
        self.attempt_timeout_s = attempt_timeout_s  # how long an attempt may take
        self._clock = clock
        self._wall_clock = wall_clock

    def run(self, chunk: Chunk) -> JobOutcome:
        """Do the jobs of a chunk; nothing that a handler raises leaves this call."""
        clock, lease, timeout_s = self._clock, chunk.lease, self.attempt_timeout_s
        route, function = self._routes[lease.topic], self.bare_function(lease.topic)
        call = self._call if self._observer is None else self._call_observed
        jobs, failed, not_run = chunk.jobs, chunk.failed, chunk.not_run
        began = now = clock()
        chunk.begun_at = now  # before a turn is taken: `give_up` sees by it that another job may have begun
        is_lost = lease.lost.is_set
        taken_count = 0
        next_job = chunk.turns.popleft
        while True:
            try:
                job = next_job()
            except IndexError:
                break
            if now >= lease.valid_until or chunk.is_cut or is_lost():
                break
            taken_count += 1
            if failed and chunk.lasts is not None and any(f.job.chain == job.chain for f in failed):  # type: ignore[union-attr]  # no batches there
                not_run.append(job)
                continue
            deadline = now + timeout_s
            try:
                if function is not None:
                    more = job.more  # type: ignore[union-attr]  # no batches here
                    attempt = 1 if more is None else more.attempt_count + 1
                    context = context_of(job.record, attempt, deadline, lease)  # type: ignore[union-attr]  # nor here
                    result = function(context.message, context)
                else:
                    result = call(route, job, deadline, chunk)
            except BaseException as exc:  # noqa: BLE001 - the user's code; whatever it raised is reported
                failed.append(self.failure(chunk, job, exc, now))
            else:
                if result is not None and type(result) is not Ack:
                    failed.append(self.refusal(chunk, job, result, now))
            now = clock()
            chunk.begun_at = now
        if taken_count < len(jobs):
            not_run = [*not_run, *jobs[taken_count:]]
        if not failed and not not_run:
            return JobOutcome(chunk, jobs, seconds=now - began)
        gone = {id(f.job) for f in failed}.union(map(id, not_run))
        done = [job for job in jobs if id(job) not in gone]
        return JobOutcome(chunk, done, failed, not_run, now - began)

    async def run_async(self, chunk: Chunk, job: Job, deadline: float) -> Failed | None:
        """Do one job of an asynchronous consumer; None: it was handled. Cancellation is told as a failure."""
        now = self._clock()
        route, observer = self._routes[chunk.lease.topic], self._observer
        try:
            if observer is None:
                result = await self._call_async(route, job, deadline, chunk)
            else:
                with observer(job, chunk.lease) as ended:
                    result = await self._call_async(route, job, deadline, chunk)
                    ended(result)
        except BaseException as exc:  # noqa: BLE001 - the user's code; whatever it raised is reported
            return self.failure(chunk, job, exc, now)
        if result is None or type(result) is Ack:
            return None
        return self.refusal(chunk, job, result, now)

    def bare_function(self, topic: str) -> Callable[..., Any] | None:
        """What handles each message of a topic with nothing around it; None: something is to be done besides."""
        route = self._routes[topic]
        if self._observer is not None or self._interceptors or self._deserializers.is_any:
            return None
        if route.batch_count_max or route.only is None or route.only.takes_count:
            return None
        return route.only.function

    # --- with everything around it ------------------------------------------------------------------------------------

    def _call_observed(self, route: Route, job: Job, deadline: float, chunk: Chunk) -> Any:
        assert self._observer is not None
        with self._observer(job, chunk.lease) as ended:
            result = self._call(route, job, deadline, chunk)
            ended(result)
        return result

    def _call(self, route: Route, job: Job, deadline: float, chunk: Chunk) -> Any:
        handler, messages, unreadable = self._opened(route, job, chunk)
        message = messages[0]
        context = Context(message, items_of(job)[0].attempt_count + 1, deadline, chunk.lease)
        entered: list[Interceptor] = []
        try:
            for interceptor in self._interceptors:
                entered.append(interceptor)
                interceptor.before(message, context)
            result = handler.function(messages, context) if handler.batch_count_max else handler.call(message, context)
            for interceptor in reversed(self._interceptors):
                interceptor.after(message, context, result)
        except BaseException as exc:
            unreadable.clear()
            for interceptor in reversed(entered):
                _call_on_error(interceptor, message, context, exc)
            raise
        return _with_rest(result, unreadable)

    async def _call_async(self, route: Route, job: Job, deadline: float, chunk: Chunk) -> Any:
        handler, messages, unreadable = self._opened(route, job, chunk)
        message = messages[0]
        context = Context(message, items_of(job)[0].attempt_count + 1, deadline, chunk.lease)
        entered: list[Interceptor] = []
        try:
            for interceptor in self._interceptors:
                entered.append(interceptor)
                await _awaited(interceptor.before(message, context))
            call = handler.function(messages, context) if handler.batch_count_max else handler.call(message, context)
            result = await call
            for interceptor in reversed(self._interceptors):
                await _awaited(interceptor.after(message, context, result))
        except BaseException as exc:
            unreadable.clear()
            for interceptor in reversed(entered):
                result = _call_on_error(interceptor, message, context, exc)
                try:
                    await _awaited(result)
                except Exception:
                    logger.exception("interceptor.raised", extra=ids_of(context))
            raise
        return _with_rest(result, unreadable)

    def _opened(
        self, route: Route, job: Job, chunk: Chunk
    ) -> tuple[Handler, list[ReceivedMessage], list[_UnreadableError]]:
        """The handler, its messages, and why not the rest of a batch; _UnreadableError: the first is unreadable.

        No frame may keep that error: it knows the frames, and both would live until the collector of garbage looks.
        """
        items = items_of(job)
        handler = route.handler_of(items[0].record)
        assert handler is not None  # a message without a handler is never queued
        deserializers = self._deserializers
        if handler.deserializer is not None:
            deserializers = Deserializers(self._key_deserializer, handler.deserializer)
        if not deserializers.is_any:
            return handler, [ReceivedMessage(item.record) for item in items], []
        messages: list[ReceivedMessage] = []
        for item in items:
            try:
                messages.append(deserializers.read(item.record))
            except Exception as exc:
                if handler.is_of_dead_letters and not is_passing(exc):
                    # That may be why it was given up: the handler hears of it all the same.
                    messages.append(ReceivedMessage(item.record))
                    continue
                chunk.given[id(job)] = max(len(messages), 1)
                if not messages:
                    raise _UnreadableError(0, exc) from exc
                return handler, messages, [_UnreadableError(len(messages), exc)]  # what is before it is handled first
        return handler, messages, []

    # --- how it ended -------------------------------------------------------------------------------------------------

    def failure(self, chunk: Chunk, job: Job, error: BaseException, began: float) -> Failed:
        """What the handler raised, begun at `began` of the monotonic clock."""
        result: Retry | Reject = Retry()
        index, is_undecodable, count = 0, False, chunk.given.get(id(job), 0)
        if type(error) is _UnreadableError:  # not isinstance: it would ask the error itself
            index, error, count = error.index, error.reason, 1
            if not is_passing(error):
                result, is_undecodable = Reject("nobody can read it"), True
        # An error may quote megabytes, and many messages may wait with theirs.
        text = text_of(error)[:MESSAGE_LENGTH_MAX]
        started_ms = self._started_ms(began)
        return Failed(job, result, kind_of(error), text, started_ms, index, is_undecodable, count, error)

    def refusal(self, chunk: Chunk, job: Job, result: Any, began: float) -> Failed:
        """What the handler returned, which is neither nothing nor an Ack. If it suspends the partition, nothing else of the chunk begins."""
        started_ms, count = self._started_ms(began), chunk.given.get(id(job), 0)
        said = checked(result)
        if isinstance(said, FailedResult):
            chunk.is_cut |= isinstance(said, Later) and said.is_of_partition
            text = said.reason[:MESSAGE_LENGTH_MAX]
            return Failed(job, said, type(said).__name__, text, started_ms, given_count=count)
        text = said.why if isinstance(said, WrongResult) else ""
        return Failed(job, Retry(reason=text), "TypeError", text, started_ms, given_count=count)

    def _started_ms(self, began: float) -> int:
        return int((self._wall_clock() - (self._clock() - began)) * 1000)


class _UnreadableError(Exception):
    """The deserializer raised `reason` for the message at this index of a batch."""

    def __init__(self, index: int, reason: Exception) -> None:
        super().__init__(str(index))
        self.index = index
        self.reason = reason


def _with_rest(result: Any, unreadable: list[_UnreadableError]) -> Any:
    if unreadable and (result is None or type(result) is Ack):
        raise unreadable.pop()
    unreadable.clear()
    return result


def log_fields_of(record: Any) -> dict[str, object]:
    """Where a record is, for log lines; its key and value are the user's, and stay out of them."""
    topic, partition, offset = record.topic(), record.partition(), record.offset()
    return {"topic": topic, "partition": partition, "offset": offset}


def ids_of(context: Context) -> dict[str, object]:
    """Which message, for log lines: where it is, and the ids of its transaction and trace where it has them."""
    ids = {"txn_id": context.txn_id, "trace_id": context.trace_id}
    fields = {"topic": context.topic, "partition": context.partition, "offset": context.offset}
    return fields | {name: value for name, value in ids.items() if value is not None}


def _call_on_error(interceptor: Interceptor, message: ReceivedMessage, context: Context, error: BaseException) -> Any:
    try:
        return interceptor.on_error(message, context, error)
    except Exception:
        # The attempt has failed already, and for another reason.
        logger.exception("interceptor.raised", extra=ids_of(context))
        return None


async def _awaited(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def give_up(chunk: Chunk, *, timeout_s: float, now: float, wall_now: float, why: str) -> JobOutcome | None:
    """The outcome of a chunk whose handler has not come back within `timeout_s`; None: there is no such handler.

    Its attempt has failed, what was before it has ended as it did, what is behind it was not run. None of that begins any more,
    and what its worker says later counts for nothing. `chunk` is done by `Caller.run` on another thread.
    """
    begun_at, jobs = chunk.begun_at, chunk.jobs
    if not begun_at or now - begun_at < timeout_s:
        return None
    rest = chunk.take_rest()
    # A worker that comes back notes the time before it takes another turn: an old time means that it runs the last one taken.
    if chunk.begun_at != begun_at or len(rest) == len(jobs) or not chunk.end():
        return None
    chunk.is_given_up = True
    failed, not_run = list(chunk.failed), list(chunk.not_run)
    last = jobs[len(jobs) - len(rest) - 1]
    if all(job is not last for job in (*not_run, *(f.job for f in failed))):
        started_ms = int((wall_now - (now - begun_at)) * 1000)
        failed.append(timed_out(last, why=why, started_ms=started_ms, count=chunk.given.get(id(last), 0)))
    gone = {id(job) for job in (*not_run, *(f.job for f in failed))}
    done = [job for job in jobs[: len(jobs) - len(rest)] if id(job) not in gone]
    return JobOutcome(chunk, done, failed, [*not_run, *rest], now - begun_at)


def take_apart(chunk: Chunk, seconds: float) -> JobOutcome | None:
    """What can be reported of a chunk while its job runs: what ended, and what does not begin any more. None: nothing.

    The running job and others of its key wait for the end of the chunk, so that their order stays. Call it once.
    """
    jobs, rest = chunk.jobs, chunk.take_rest()
    ended = jobs[: len(jobs) - len(rest)]
    running = {items_of(job)[0].chain for job in ended[-1:]}
    failed = [f for f in chunk.failed if items_of(f.job)[0].chain not in running]
    not_run = [job for job in (*chunk.not_run, *rest) if items_of(job)[0].chain not in running]
    gone = {id(job) for job in (*chunk.not_run, *(f.job for f in chunk.failed), *ended[-1:])}
    done = [job for job in ended if id(job) not in gone]
    chunk.told = frozenset(id(job) for job in (*done, *not_run, *(f.job for f in failed)))
    return JobOutcome(chunk, done, failed, not_run, seconds, is_part=True) if chunk.told else None


def without_reported(outcome: JobOutcome) -> JobOutcome | None:
    """The outcome without what was reported before; None: nothing is left."""
    if outcome.is_part or not outcome.chunk.told:
        return outcome
    told = outcome.chunk.told | {id(GONE)}
    done = [job for job in outcome.done if id(job) not in told]
    failed = [f for f in outcome.failed if id(f.job) not in told]
    not_run = [job for job in outcome.not_run if id(job) not in told]
    if not (done or failed or not_run):
        return None
    return JobOutcome(outcome.chunk, done, failed, not_run, outcome.seconds)


def timed_out(job: Job, *, why: str, started_ms: int, count: int = 0) -> Failed:
    """The attempt at a job whose handler has not come back by its deadline."""
    return Failed(job, Retry(reason=why), ATTEMPT_TIMEOUT, why, started_ms, given_count=count)


START_PAUSE_S = 1.0  # pause after a thread or a process could not be started, before another one is
LOOK_S = 0.05
"""How often it is looked for handlers that hang, and for chunks that take long: one that two looks find is taken apart."""
THREAD_CHUNK_S = 0.001
"""Work of one chunk for a thread: handing over costs some 20 µs, and who waits behind a chunk waits for so long."""
THREAD_JOB_COUNT = 10
"""Jobs of 0.1 ms are that many a chunk. A quicker one never waits, so the interpreter's lock lets one thread at a time
run it, and jobs for the others make nothing quicker."""


class Pool(Protocol):
    """Runs chunks beside the engine's thread, which alone calls this."""

    chunk_s: float  # how much work a chunk should be; 0: jobs of a chunk run side by side, so its size does not matter
    has_runs: bool
    """True: a chunk may hold several messages of one key, for they are handled one after the other and all answered for."""
    busy_count: int  # jobs that keep every worker busy: with more of them nothing begins sooner

    @property
    def hung_count(self) -> int:
        """Handlers that were given up and have not come back."""

    def start(self) -> None:
        """Get ready."""

    def free_count(self) -> int:
        """Chunks that would find a worker now; jobs, where those of a chunk run side by side."""

    def submit(self, chunk: Chunk) -> None:
        """Begin a chunk."""

    def take(self) -> list[JobOutcome]:
        """What ended since the last call, in the order in which it ended."""

    def wait(self, timeout_s: float) -> None:
        """Return when something ended, at the latest after `timeout_s`."""

    def close(self, timeout_s: float) -> None:
        """End; wait for at most so long for what runs. What still runs then may go on, and is not reported."""


class JobOutcomes:
    """Where workers put what ended and the engine's thread takes it."""

    def __init__(self) -> None:
        self._ended: deque[JobOutcome] = deque()
        self._late: deque[JobOutcome] = deque()
        self._news = threading.Event()

    def put(self, outcome: JobOutcome) -> None:
        """Report the end of a chunk; any thread may."""
        self._ended.append(outcome)
        self._news.set()

    def take(self) -> list[JobOutcome]:
        self._news.clear()
        ended = self._ended
        return [ended.popleft() for _ in range(len(ended))]

    def put_late(self, outcome: JobOutcome) -> None:
        """Report that a handler that was given up has come back; any thread may."""
        self._late.append(outcome)
        self._news.set()

    def take_late(self) -> list[JobOutcome]:
        """Everything that came back since the last call."""
        return [self._late.popleft() for _ in range(len(self._late))]

    def wait(self, timeout_s: float) -> None:
        if not self._ended:
            self._news.wait(timeout_s)


class HungHandlers:
    """Handlers that were given up: counted, bounded, and reported. Used by the engine's thread.

    With `count_max` of them none is given up any more: each keeps a thread or a task, and what it holds.
    """

    def __init__(self, *, count_max: int) -> None:
        self._count_max = count_max
        # By both identities: a message that is tried again is the same job, in another chunk.
        self._given_up: dict[tuple[int, int], tuple[Chunk, float]] = {}

    @property
    def count(self) -> int:
        return len(self._given_up)

    @property
    def has_room(self) -> bool:
        return self.count < self._count_max

    def add(self, chunk: Chunk, job: Job, now: float) -> None:
        self._given_up[id(chunk), id(job)] = chunk, now
        if not self.has_room:
            logger.critical("handlers.hung", extra={"hung_count": self.count})

    def came_back(self, late: JobOutcome, now: float) -> None:
        """The handler of one of these jobs has come back; what it says counts for nothing."""
        ended = [(job, "handled") for job in late.done]
        for job, result in ended + [(f.job, f.error_type) for f in late.failed]:
            _, at = self._given_up.pop((id(late.chunk), id(job)), (None, None))
            if at is not None:
                where = log_fields_of(items_of(job)[0].record)
                extra = where | {"late_s": round(now - at, 3), "result": result}
                logger.warning("handler.ended_late", extra=extra)
        late.chunk.failed.clear()  # as `Dispatcher.take`


class Workers(ABC):
    """What pools of threads share. The threads are made when they are first needed."""

    def __init__(self, *, worker_count: int, name: str) -> None:
        self._worker_count = worker_count
        self._name = name
        self._chunks: SimpleQueue[Chunk | None] = SimpleQueue()
        self._outcomes = JobOutcomes()
        self._threads: list[threading.Thread] = []
        self._begun_count = 0
        self._start_at = 0.0
        self.wait = self._outcomes.wait

    def start(self) -> None:  # noqa: B027 - all there is to do
        """Nothing: threads begin with their first chunk."""

    @property
    def hung_count(self) -> int:
        return 0

    def free_count(self) -> int:
        return self._worker_count - self._begun_count

    def submit(self, chunk: Chunk) -> None:
        self._begun_count += 1
        self._chunks.put(chunk)
        self._add_thread()

    def take(self) -> list[JobOutcome]:
        outcomes = self._outcomes.take()
        self._begun_count -= sum(not outcome.is_part for outcome in outcomes)
        if not self._chunks.empty():
            self._add_thread()  # the machine may have refused the one that these wait for
        return outcomes

    def _add_thread(self) -> None:
        if not self._begun_count > len(self._threads) < self._worker_count:
            return
        now = time.monotonic()
        if now < self._start_at:
            return
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The machine may have no room for another one just now: the others do what they can, and it is tried again.
            logger.exception("thread.not_started")
            self._start_at = now + START_PAUSE_S
        else:
            self._threads.append(thread)

    def close(self, timeout_s: float) -> None:
        """End; threads that are still in a handler then are left behind (they do not hold the process up)."""
        give_up_at = time.monotonic() + timeout_s
        for _ in self._threads:
            self._chunks.put(None)
        for thread in self._threads:
            thread.join(max(give_up_at - time.monotonic(), 0))
        self._threads = []

    @abstractmethod
    def _work(self) -> None:
        """What a thread does: chunks of `_chunks` until a None, their outcomes to `_outcomes`."""


class ThreadPool(Workers):
    """A `Pool` of threads. One whose handler hangs is given up and replaced by another one.

    Args:
        attempt_timeout_s: a handler that takes longer is hung.
        hung_max: handlers that may be given up at a time.
        is_idle: says of which threads no attempt is under way: their time is not over, however long the interpreter was blocked.
    """

    chunk_s = THREAD_CHUNK_S
    has_runs = True

    def __init__(
        self,
        run: Callable[[Chunk], JobOutcome],
        *,
        worker_count: int,
        attempt_timeout_s: float,
        hung_max: int,
        is_idle: Callable[[object], bool],
    ) -> None:
        super().__init__(worker_count=worker_count, name="txlayer-handler")
        self.busy_count = worker_count * THREAD_JOB_COUNT
        self._run = run
        self._attempt_timeout_s = attempt_timeout_s
        self._is_idle = is_idle
        self._hung = HungHandlers(count_max=hung_max)
        self._begun: dict[Chunk, bool] = {}  # True: the last look found it begun
        self._at: dict[Chunk, threading.Thread] = {}
        self._look_at = 0.0

    @property
    def hung_count(self) -> int:
        return self._hung.count

    def submit(self, chunk: Chunk) -> None:
        self._begun[chunk] = False
        super().submit(chunk)

    def take(self) -> list[JobOutcome]:
        """What ended since the last call, and what hangs."""
        outcomes = super().take()
        for outcome in outcomes:
            del self._begun[outcome.chunk]
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            outcomes += self._give_up(now)
            outcomes += self._take_apart()
        return outcomes

    def _take_apart(self) -> list[JobOutcome]:
        found = []
        for chunk, is_long in self._begun.items():
            self._begun[chunk] = chunk.begun_at > 0
            if is_long and not chunk.told and len(chunk.jobs) > 1:
                found.append(take_apart(chunk, LOOK_S))
        return [part for part in found if part is not None]

    def _give_up(self, now: float) -> list[JobOutcome]:
        for late in self._outcomes.take_late():
            self._hung.came_back(late, now)
        found = []
        for chunk in list(self._begun):
            if self._is_idle(self._at.get(chunk)):
                continue
            outcome = self._hung.has_room and give_up(
                chunk,
                timeout_s=self._attempt_timeout_s,
                now=now,
                wall_now=time.time(),
                why=f"no answer within {self._attempt_timeout_s:g} s (attempt_timeout): its thread was given up",
            )
            if outcome:
                self._hung.add(chunk, outcome.failed[-1].job, now)
                self._threads.remove(self._at.pop(chunk))
                self._begun_count -= 1
                del self._begun[chunk]
                found.append(outcome)
        return found

    def _work(self) -> None:
        run, outcomes, at = self._run, self._outcomes, self._at
        thread = threading.current_thread()
        while (chunk := self._chunks.get()) is not None:
            at[chunk] = thread
            outcome = run(chunk)
            if not chunk.end():
                outcomes.put_late(outcome)
                return  # another one has replaced it
            del at[chunk]
            outcomes.put(outcome)
            del chunk, outcome  # or it would keep their messages until it gets the next chunk
