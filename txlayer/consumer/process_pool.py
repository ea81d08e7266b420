"""Handlers in separate processes, for CPU-bound work.

Each process has a thread here that sends it chunks and waits for the outcomes. A process that dies is replaced as soon as
the machine can start another one. The message that it was handling counts as a failed attempt, because it may have caused
the crash. A process whose handler has not returned by its deadline is killed. In shared memory a process notes when it begins
a message, so that no other message of its chunk counts as failed, and reads before each how many of the chunk may begin:
what a chunk that takes long, is cut, or has lost its lease holds goes back while its message runs. A process whose parent
is dead or frozen ends the message that it handles, and begins no other: the next owner of the queue may have begun.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

from txlayer.adapters.telemetry import Log, kind_of
from txlayer.consumer.context import FOR_EVER, Lease
from txlayer.consumer.offsets import CHUNK_COUNT_MAX
from txlayer.consumer.pools import (
    START_PAUSE_S,
    Caller,
    Chunk,
    Failed,
    Job,
    JobOutcome,
    Workers,
    items_of,
    take_apart,
    timed_out,
)
from txlayer.core.key_queue import Item, ItemExtras
from txlayer.core.messages import Headers
from txlayer.core.retry import Retry
from txlayer.errors import ConfigError

logger = Log("txlayer.consumer")

PROCESS_CHUNK_S = 0.05
"""Work of one chunk for a process: a round trip of the pipe and the engine's turn cost 1 to 2 ms on a busy machine."""
CHUNKS_EACH = 2
"""Chunks started for each process: one that it runs, and the next one, so that no process waits for the engine."""
LOOK_S = 0.05  # how often a thread looks after what its process holds
SILENT_S = 2.0
"""A process begins nothing when its parent has not looked after it for so long: the parent is frozen, and the group may have given its
queues to another consumer."""
LONG_S = 4 * PROCESS_CHUNK_S  # a chunk that runs for so long is taken apart
START_S = 60.0
"""How long a process may take until it begins a message, imports included; then it is killed and replaced."""
END_S = 1.0  # how long an idle process may take to end
TRACEBACK_LENGTH_MAX = 8_000  # characters of a traceback that a process sends: its beginning and its end
SAFE_PATH = "PYTHONSAFEPATH"
_SAFE_FOR_START = "while-txlayer-starts-it"
_starting = threading.Lock()  # the environment is shared by the process: two pools must not change it at once


class SentRecord(NamedTuple):
    """A record as it is sent to a process; it has the methods of the client's records."""

    origin: tuple[str, int, int]
    raw_key: bytes | None
    raw_value: bytes | None
    raw_headers: Headers | None
    stamp: tuple[int, int]

    def topic(self) -> str:
        return self.origin[0]

    def partition(self) -> int:
        return self.origin[1]

    def offset(self) -> int:
        return self.origin[2]

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def headers(self) -> Headers | None:
        return self.raw_headers

    def timestamp(self) -> tuple[int, int]:
        return self.stamp


SentFailure = tuple[int, Failed]  # a failed job of a chunk, by its index; the job itself is not sent


class RaisedElsewhereError(Exception):
    """A handler's exception in its process; the text is the traceback from there."""


class SentOutcome(NamedTuple):
    """How a chunk ended; its failures were sent before."""

    ran_count: int
    seconds: float


class ProcessPool(Workers):
    """A `Pool` of processes; one thread here serves each."""

    chunk_s = PROCESS_CHUNK_S
    has_runs = False  # what a process that dies has not handled is put back job by job

    def __init__(self, caller: Caller, *, worker_count: int) -> None:
        super().__init__(worker_count=worker_count, name="txlayer-process")
        self.busy_count = worker_count * CHUNKS_EACH * CHUNK_COUNT_MAX
        try:
            self._caller = pickle.dumps(caller)
        except Exception as exc:
            raise ConfigError(
                f"a handler, interceptor or deserializer cannot go to another process: {exc}",
                name="workers",
                value="processes",
                expected="functions at the top of a module",
            ) from exc
        self._attempt_timeout_s = caller.attempt_timeout_s
        self._processes: list[_Process] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        # Processes ignore SIGTERM, by which Python ends them before it waits for them: a program that ends without `close` never would.
        self._at_exit = Finalize(None, self._kill_all, exitpriority=10)

    def free_count(self) -> int:
        """Chunks that a process would start at once, or as its next one."""
        return self._worker_count * CHUNKS_EACH - self._begun_count

    def take(self) -> list[JobOutcome]:
        """As in `Pool`; kills processes that do not read a large chunk: the threads that send it can only wait."""
        for process in list(self._processes):
            process.kill_if_it_does_not_read()
        return super().take()

    def close(self, timeout_s: float) -> None:
        """End; kill processes that are still in a handler after `timeout_s`."""
        give_up_at = time.monotonic() + timeout_s
        with self._lock:
            self._closed.set()
        super().close(timeout_s)
        with self._lock:
            processes, self._processes = self._processes, []
        for process in processes:
            process.end(max(give_up_at - time.monotonic(), END_S))
        self._at_exit.cancel()

    def _kill_all(self) -> None:
        with self._lock:
            self._closed.set()
            for process in self._processes:
                process.kill()

    def _work(self) -> None:
        process: _Process | None = None
        while (chunk := self._chunks.get()) is not None:
            if process is not None and not process.is_alive():
                self._discard(process)  # it died while it was idle
                process = None
            if process is None:
                process = self._new_process()
            if process is None:
                self._outcomes.put(JobOutcome(chunk, (), not_run=chunk.jobs))
                continue
            try:
                process.give(chunk)
                del chunk  # or its messages would be kept as long as others follow
                self._run_there(process)
            except (EOFError, OSError):
                self._bury(process)
            except Exception:
                logger.exception("process.unusable", extra={"pid": process.pid})
                self._bury(process)

    def _run_there(self, process: _Process) -> None:
        """Run the chunk that it has.

        Raises:
            EOFError, OSError: the process died; its chunk is `process.given`.
        """
        while process.given is not None:
            if process.wait():
                self._put(process.take())
            else:
                for _ in map(self._put, process.look()):
                    """None of it is kept here beside a handler that takes long."""
                process.kill_if_hung(self._attempt_timeout_s)

    def _put(self, outcome: JobOutcome | None) -> None:
        if outcome is not None:
            self._outcomes.put(outcome)

    def _bury(self, process: _Process) -> None:
        for outcome in process.drained():
            self._outcomes.put(outcome)
        self._discard(process)
        logger.error("process.died", extra={"pid": process.pid, "exit_code": process.exit_code})
        if process.given is not None:
            self._outcomes.put(process.last_outcome(process.given, self._attempt_timeout_s))

    def _discard(self, process: _Process) -> None:
        """End a dead process, and keep nothing of it: it holds files and shared memory, and handlers may kill thousands."""
        process.end(0)
        with self._lock:
            if process in self._processes:
                self._processes.remove(process)

    def _new_process(self) -> _Process | None:
        with self._lock:
            if self._closed.is_set():
                return None
            try:
                process = _Process(self._caller)
            except Exception:
                # The machine may be unable to start a process right now: nothing was run, and it is tried again.
                logger.exception("process.not_started")
            else:
                self._processes.append(process)
                return process
        self._closed.wait(START_PAUSE_S)
        return None


class SharedEvent(threading.Event):
    """An event that the parent sets in shared memory, as its process sees it.

    It takes no lock. The `set` of an event of `multiprocessing` waits for the processes that wait for it, and never returns if one was killed.
    """

    def __init__(self, is_set: Any) -> None:
        self._is_set = is_set

    def __repr__(self) -> str:
        return f"SharedEvent({'set' if self.is_set() else 'unset'})"

    def is_set(self) -> bool:
        return bool(self._is_set.value)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; returns False after `timeout` seconds."""
        give_up_at = FOR_EVER if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            rest_s = give_up_at - time.monotonic()
            if rest_s <= 0:
                return False
            time.sleep(min(rest_s, LOOK_S))
        return True


class Shared(NamedTuple):
    """Memory that is shared with a process, for the chunk that it has."""

    is_lost: Any  # True: the lease is lost
    begun: Any  # when each job began; 0: not begun
    counts: Any  # how many messages of a batch its handler was given; 0: all
    limit: Any  # so many jobs may begin
    until: Any
    """Monotonic seconds until which jobs may begin; the parent moves it on while it runs."""


class _Process:
    """One process and its pipe. Not thread-safe, except for `kill` and `kill_if_it_does_not_read`."""

    def __init__(self, caller: bytes) -> None:
        # Not fork: the Kafka client has threads, and a fork would copy their locks in any state.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        with _starting_safely():
            self._begins = context.Lock()  # for `begun` and `limit`, so that no job begins that goes back
            number, array, count = context.RawValue, context.RawArray, CHUNK_COUNT_MAX
            self._shared = Shared(number("b"), array("d", count), array("i", count), number("i"), number("d"))
            self._process = context.Process(
                target=serve, args=(theirs, self._shared, self._begins, caller), name="txlayer-handlers", daemon=True
            )
            self._process.start()
        theirs.close()
        self.pid = self._process.pid
        self.given: Chunk | None = None  # without an outcome
        self._given_at = 0.0
        self._failed: list[SentFailure] = []  # of its jobs
        self._running_index = 0
        self._look_at = 0.0
        self._killed_at: tuple[Chunk, int] | None = None  # the chunk and job whose handler hung
        self._sending: tuple[Chunk, float] | None = None  # the chunk that is being sent, and since when

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()

    def give(self, chunk: Chunk) -> None:
        """Send a chunk to a process that has none."""
        self.given, self._given_at = chunk, time.monotonic()
        count, shared, lease = len(chunk.jobs), self._shared, chunk.lease
        is_lost = lease.lost.is_set()
        shared.is_lost.value = is_lost
        shared.begun[:count] = [0.0] * count
        shared.counts[:count] = [0] * count
        shared.limit.value = 0 if is_lost or chunk.is_cut else count
        shared.until.value = self._given_at + SILENT_S
        fields = (lease.group, lease.topic, lease.partition, lease.token, lease.valid_until)
        sent = pickle.dumps((fields, [_sent_job(job) for job in chunk.jobs]), pickle.HIGHEST_PROTOCOL)
        self._sending = chunk, time.monotonic()
        self._pipe.send_bytes(sent)
        self._sending = None

    def wait(self) -> bool:
        """Wait a moment; True: there is an answer, False: it is time to look; EOFError, OSError: the process died."""
        rest_s = self._look_at - time.monotonic()
        if rest_s > 0 and self._pipe.poll(rest_s):
            return True
        self._look_at = time.monotonic() + LOOK_S
        # A process that a handler forked keeps the pipe open.
        if not self.is_alive() and not self._pipe.poll(0):
            raise EOFError
        return False

    def look(self) -> Iterator[JobOutcome]:
        """Take apart what takes long, is cut, or has lost its lease; returns that, and what has ended."""
        now, chunk, shared = time.monotonic(), self.given, self._shared
        assert chunk is not None
        shared.until.value = now + SILENT_S
        began_at = shared.begun[0]
        shared.is_lost.value = is_lost = chunk.lease.lost.is_set()
        is_over = 0 < began_at <= now - LONG_S or is_lost or chunk.is_cut
        is_closed = is_over and not chunk.told and self._close(chunk)
        yield from self.drained()  # failures of what it began, too
        if is_closed and self.given is chunk:
            chunk.failed = self._failures(chunk)
            part = take_apart(chunk, now - began_at if began_at else 0.0)
            if part is not None:
                yield part

    def _close(self, chunk: Chunk) -> bool:
        """Let no further job begin. False: the process was stopped in between, or died."""
        if not self._begins.acquire(timeout=LOOK_S):
            return False
        self._shared.limit.value = 0
        self._begins.release()
        begun = self._shared.begun[: len(chunk.jobs)]
        chunk.turns, chunk.rest = deque(), list(chunk.jobs[len(begun) - begun.count(0.0) :])
        return True

    def take(self) -> JobOutcome | None:
        """The outcome of its chunk; None: it has sent a part of it."""
        answer: SentOutcome | SentFailure = self._pipe.recv()
        if not isinstance(answer, SentOutcome):
            self._failed.append(answer)
            return None
        chunk, self.given = self.given, None
        assert chunk is not None
        return self._outcome(chunk, answer.ran_count, answer.seconds)

    def drained(self) -> Iterator[JobOutcome]:
        """The outcomes that it sent before it died."""
        with contextlib.suppress(EOFError, OSError):
            while self._pipe.poll(0):
                outcome = self.take()
                if outcome is not None:
                    yield outcome

    def kill_if_hung(self, timeout_s: float) -> None:
        """Kill it if its handler takes longer than `timeout_s`; outcomes that it has sent can still be taken."""
        if self.given is None:
            return
        index, begun_at = self._running(self.given)
        limit_s = timeout_s if begun_at else START_S
        begun_at = begun_at or self._given_at
        if time.monotonic() - begun_at >= limit_s and self._killed_at is None:
            self._killed_at = self.given, index
            logger.error("process.hung", extra={"pid": self.pid, "limit_s": limit_s})
            self._process.kill()

    def kill_if_it_does_not_read(self) -> None:
        """Kill it if it has not read a chunk for `START_S`, for example because something hangs while it imports; any thread may."""
        sending = self._sending
        if sending is not None and time.monotonic() - sending[1] >= START_S and self._killed_at is None:
            self._killed_at = sending[0], 0
            logger.error("process.hung", extra={"pid": self.pid, "limit_s": START_S})
            self._process.kill()

    def last_outcome(self, chunk: Chunk, timeout_s: float) -> JobOutcome:
        """The outcome of the chunk of a dead process that sent no further answer."""
        code, now = self.exit_code, time.monotonic()
        index, begun_at = self._running(chunk)
        if not begun_at and self._killed_at is not None:
            return JobOutcome(chunk, (), not_run=chunk.jobs)
        started_ms = int((time.time() - (now - (begun_at or self._given_at))) * 1000)
        text = f"the handler's process ended with {code}"
        count = self._shared.counts[index]
        last = Failed(chunk.jobs[index], Retry(reason=text), "ProcessDied", text, started_ms, given_count=count)
        if not begun_at:
            # One is charged, so that what kills each process before it begins comes to an end.
            return JobOutcome(chunk, (), [last], chunk.jobs[1:], now - self._given_at)
        has_failed = any(failed_index == index for failed_index, _ in self._failed)
        if has_failed or self._killed_at not in (None, (chunk, index)):  # it died behind that one
            return self._outcome(chunk, index + has_failed, now - self._given_at)
        if self._killed_at is not None:
            why = f"no answer within {timeout_s:g} s (attempt_timeout): its process was killed"
            last = timed_out(chunk.jobs[index], why=why, started_ms=started_ms, count=count)
        outcome = self._outcome(chunk, index, now - self._given_at)
        return outcome._replace(failed=[*outcome.failed, last], not_run=list(outcome.not_run)[1:])

    def _running(self, chunk: Chunk) -> tuple[int, float]:
        """(index of the running job, its start); (0, 0.0): no job of the chunk has begun."""
        begun, count = self._shared.begun, len(chunk.jobs)
        while self._running_index + 1 < count and begun[self._running_index + 1]:
            self._running_index += 1
        return self._running_index, begun[self._running_index]

    def _outcome(self, chunk: Chunk, ran_count: int, seconds: float) -> JobOutcome:
        jobs, failed = chunk.jobs, self._failures(chunk)
        gone = {index for index, _ in self._failed}
        self._failed, self._running_index = [], 0
        done = [job for index, job in enumerate(jobs[:ran_count]) if index not in gone]
        return JobOutcome(chunk, done, failed, jobs[ran_count:], seconds)

    def _failures(self, chunk: Chunk) -> list[Failed]:
        return [failed._replace(job=chunk.jobs[index]) for index, failed in self._failed]

    def end(self, timeout_s: float) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextlib.contextmanager
def _starting_safely() -> Iterator[None]:
    """A block in which new processes import no module from the working directory before they have their parent's path.

    `multiprocessing` starts them with `-c`, which searches there first, and takes no option of the interpreter.
    """
    with _starting:
        if sys.flags.safe_path:
            yield  # children get the flag from their parent
            return
        before = os.environ.get(SAFE_PATH)
        os.environ[SAFE_PATH] = _SAFE_FOR_START
        try:
            yield
        finally:
            if before is None:
                del os.environ[SAFE_PATH]
            else:
                os.environ[SAFE_PATH] = before


class _Turns:
    """The jobs of a chunk in their process: each is noted before it begins, after earlier failures were sent."""

    def __init__(self, chunk: Chunk, shared: Shared, begins: Any, pipe: Connection) -> None:
        self._chunk = chunk
        self._shared = shared
        self._begins = begins
        self._pipe = pipe
        self._sent_count = 0
        self._indexes = {id(job): index for index, job in enumerate(chunk.jobs)}
        self._next_index = 0
        parent = multiprocessing.parent_process()
        self._parent_pid = None if parent is None else parent.pid

    def popleft(self) -> Job:
        """The next job, which begins now."""
        self.send_failed()
        index, shared = self._next_index, self._shared
        with self._begins:
            now = time.monotonic()
            # A parent that is dead or frozen does not say any more how many may begin.
            if index >= shared.limit.value or now >= shared.until.value or os.getppid() != self._parent_pid:
                raise IndexError
            shared.begun[index] = now
        self._next_index += 1
        return self._chunk.jobs[index]

    def pop(self) -> Job:
        """Nothing: the parent says how many may begin."""
        raise IndexError

    def send_failed(self) -> None:
        for failed in self._chunk.failed[self._sent_count :]:
            self._sent_count += 1
            error = None if failed.error is None else RaisedElsewhereError(_traceback_of(failed.error))
            self._pipe.send((self._indexes[id(failed.job)], failed._replace(job=[], error=error)))


class _Given(dict[int, int]):
    """How much of its batches a chunk's handler was given, told to the parent as well."""

    def __init__(self, jobs: Sequence[Job], counts: Any) -> None:
        super().__init__()
        self._indexes = {id(job): index for index, job in enumerate(jobs)}
        self._counts = counts

    def __setitem__(self, name: int, count: int) -> None:
        super().__setitem__(name, count)
        self._counts[self._indexes[name]] = count


def serve(pipe: Connection, shared: Shared, begins: Any, caller: bytes) -> None:
    """The main function of a process: run chunks until the pipe closes, which also happens when the parent dies."""
    # Ctrl-C goes to the whole process group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get(SAFE_PATH) == _SAFE_FOR_START:
        del os.environ[SAFE_PATH]  # it must not apply to processes that a handler starts
    calls: Caller = pickle.loads(caller)  # noqa: S301 - from our own parent
    while True:
        try:
            fields, sent = pipe.recv()
        except (EOFError, OSError):
            return
        group, topic, partition, token, valid_until = fields
        lease = Lease(group, topic, partition, token, valid_until, SharedEvent(shared.is_lost))
        jobs = [_job(records, attempt_count) for records, attempt_count in sent]
        chunk = Chunk(None, lease, jobs)
        chunk.turns = turns = _Turns(chunk, shared, begins, pipe)
        chunk.given = _Given(jobs, shared.counts)
        try:
            outcome = calls.run(chunk)
            turns.send_failed()
            pipe.send(SentOutcome(len(jobs) - len(outcome.not_run), outcome.seconds))
            chunk.failed.clear()  # as `Dispatcher.take`
        except BrokenPipeError:
            return


def _traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as exc:  # noqa: BLE001 - the user's code: its text may raise
        text = f"{kind_of(error)}, whose traceback raised {kind_of(exc)}"
    cut = TRACEBACK_LENGTH_MAX // 2
    return text if len(text) <= 2 * cut else f"{text[:cut]}\n[...]\n{text[-cut:]}"


SentJob = tuple[list[SentRecord], int]  # the records of a call, and how many attempts have ended


def _sent_job(job: Job) -> SentJob:
    items = items_of(job)
    records = [
        SentRecord((r.topic(), r.partition(), r.offset()), r.key(), r.value(), r.headers(), r.timestamp())
        for r in (item.record for item in items)
    ]
    return records, items[0].attempt_count


def _job(records: list[SentRecord], attempt_count: int) -> Job:
    items: list[Item[Any]] = [Item(record, record.offset(), None, 0) for record in records]
    if attempt_count:
        items[0].more = ItemExtras(attempt_count=attempt_count)
    return items if len(items) > 1 else items[0]
