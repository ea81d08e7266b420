"""Handlers in processes of their own, for those that compute. Never what follows from how a handler ended.

Each process has a thread here that gives it a chunk and waits for the answer. A process that dies is replaced; what it
was doing counts as a failed attempt, because the message may be what killed it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import pickle
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from txlayer.consumer.calls import Caller, Chunk, Failed, Job, Outcome, items_of
from txlayer.consumer.context import Lease
from txlayer.consumer.pools import ThreadPool
from txlayer.core.handling import Reject, Retry
from txlayer.core.items import Item, More
from txlayer.core.messages import Headers
from txlayer.errors import ConfigError

logger = logging.getLogger("txlayer.consumer")

PROCESS_CHUNK_S = 0.05
"""Work of one chunk for a process: a pipe there and back, and the engine's turn, cost 1 to 2 ms of waiting on a full machine."""
CHUNKS_EACH = 2
"""Chunks begun for each process: the next one stands ready when it ends one, whatever the engine does meanwhile."""
LOOK_S = 0.05
"""How often a thread that waits for its process looks whether the lease was lost."""
START_S = 60.0
"""How long a process may take to import what it needs."""
END_S = 1.0
"""How long an idle process may take to end."""


class SentRecord(NamedTuple):
    """A record as a process gets it; it answers as the client's records do."""

    place: tuple[str, int, int]
    raw_key: bytes | None
    raw_value: bytes | None
    raw_headers: Headers | None
    stamp: tuple[int, int]

    def topic(self) -> str:
        """Its topic."""
        return self.place[0]

    def partition(self) -> int:
        """Its partition."""
        return self.place[1]

    def offset(self) -> int:
        """Its offset."""
        return self.place[2]

    def key(self) -> bytes | None:
        """Its key."""
        return self.raw_key

    def value(self) -> bytes | None:
        """Its value."""
        return self.raw_value

    def headers(self) -> Headers | None:
        """Its headers."""
        return self.raw_headers

    def timestamp(self) -> tuple[int, int]:
        """(kind, milliseconds)."""
        return self.stamp


class SentFailure(NamedTuple):
    """A job of a chunk that failed, by its place."""

    place: int
    result: Retry | Reject
    error_type: str
    error_text: str
    started_ms: int
    place_in_batch: int
    is_undecodable: bool


class SentOutcome(NamedTuple):
    """How a chunk ended."""

    ran_count: int
    failed: tuple[SentFailure, ...]
    seconds: float


class ProcessPool(ThreadPool):
    """A `Pool` of processes; the threads that serve them are those of the parent class."""

    chunk_s = PROCESS_CHUNK_S

    def __init__(self, caller: Caller, *, worker_count: int) -> None:
        super().__init__(self._run_there, worker_count=worker_count, name="txlayer-process")
        try:
            self._caller = pickle.dumps(caller)
        except Exception as exc:
            raise ConfigError(
                f"a handler, interceptor or deserializer cannot go to another process: {exc}",
                name="workers", value="processes", expected="functions at the top of a module",
            ) from exc  # fmt: skip
        self._local = threading.local()
        self._processes: list[_Process] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def free_count(self) -> int:
        """Chunks that would find a process now, or be the next of one."""
        return self._worker_count * CHUNKS_EACH - self._begun_count

    def close(self, timeout_s: float) -> None:
        """End; a process that is still in a handler then is killed."""
        give_up_at = time.monotonic() + timeout_s
        with self._lock:
            self._is_closed = True
        super().close(timeout_s)
        with self._lock:
            processes, self._processes = self._processes, []
        for process in processes:
            process.end(max(give_up_at - time.monotonic(), END_S))

    def _run_there(self, chunk: Chunk) -> Outcome:
        chunk.begun_at = time.monotonic()
        process: _Process | None = getattr(self._local, "process", None)
        if process is None or not process.is_alive():
            process = self._local.process = self._new_process()
            if process is None:
                return Outcome(chunk, (), not_run=chunk.jobs)
        try:
            sent = process.run(chunk)
        except (EOFError, OSError):
            process.end(0)
            logger.error(  # noqa: TRY400 - no traceback helps
                "process.died", extra={"pid": process.pid, "exit_code": process.exit_code}
            )
            return _died(chunk, process.exit_code)
        jobs = chunk.jobs
        failed = [Failed(jobs[f.place], *f[1:]) for f in sent.failed]
        gone = {f.place for f in sent.failed}
        done = [job for place, job in enumerate(jobs[: sent.ran_count]) if place not in gone]
        return Outcome(chunk, done, failed, jobs[sent.ran_count :], sent.seconds)

    def _new_process(self) -> _Process | None:
        with self._lock:
            if self._is_closed:
                return None
            process = _Process(self._caller)
            self._processes.append(process)
        return process


class _Process:
    """One process and its pipe. One thread speaks to it."""

    def __init__(self, caller: bytes) -> None:
        # Not fork: the Kafka client has threads, and their locks would be copied as they stand.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._lost = context.Event()
        self._process = context.Process(
            target=serve, args=(theirs, self._lost, caller), name="txlayer-handlers", daemon=True
        )
        self._process.start()
        theirs.close()
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Why it ended; below 0: by a signal."""
        return self._process.exitcode

    def is_alive(self) -> bool:
        """True until it ends."""
        return self._process.is_alive()

    def run(self, chunk: Chunk) -> SentOutcome:
        lease = chunk.lease
        self._lost.clear()
        self._pipe.send((_lease_fields(lease), [_sent_job(job) for job in chunk.jobs]))
        is_told = False
        while not self._pipe.poll(LOOK_S):
            if lease.lost.is_set() and not is_told:
                self._lost.set()
                is_told = True
        answer: SentOutcome = self._pipe.recv()
        return answer

    def end(self, timeout_s: float) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def serve(pipe: Connection, lost: Any, caller: bytes) -> None:
    """What a process does: run chunks until the pipe ends, as it does when the parent ends, however."""
    # Ctrl-C goes to the whole process group; the parent says when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    calls: Caller = pickle.loads(caller)  # noqa: S301 - from our own parent
    while True:
        try:
            fields, sent = pipe.recv()
        except EOFError:
            return
        group, topic, partition, token, valid_until = fields
        lease = Lease(group, topic, partition, token=token)
        lease.valid_until = valid_until
        lease.lost = lost
        jobs = [_job(records, attempt_count) for records, attempt_count in sent]
        outcome = calls.run(Chunk(None, lease, jobs))
        places = {id(job): place for place, job in enumerate(jobs)}
        failed = tuple(SentFailure(places[id(f.job)], *f[1:]) for f in outcome.failed)
        try:
            pipe.send(SentOutcome(len(jobs) - len(outcome.not_run), failed, outcome.seconds))
        except BrokenPipeError:
            return


def _lease_fields(lease: Lease) -> tuple[str, str, int, int | None, float]:
    return lease.group, lease.topic, lease.partition, lease.token, lease.valid_until


SentJob = tuple[list[SentRecord], int]
"""The records of a call, and how many attempts have ended."""


def _sent_job(job: Job) -> SentJob:
    items = items_of(job)
    records = [
        SentRecord((r.topic(), r.partition(), r.offset()), r.key(), r.value(), r.headers(), r.timestamp())
        for r in (item.record for item in items)
    ]  # fmt: skip
    return records, items[0].attempt_count


def _job(records: list[SentRecord], attempt_count: int) -> Job:
    items: list[Item[Any]] = [Item(record, record.offset(), None, 0) for record in records]
    if attempt_count:
        items[0].more = More(attempt_count=attempt_count)
    return items if len(items) > 1 else items[0]


def _died(chunk: Chunk, exit_code: int | None) -> Outcome:
    text = f"the handler's process ended with {exit_code}"
    started_ms = int((time.time() - (time.monotonic() - chunk.begun_at)) * 1000)
    failed: Sequence[Failed] = [
        Failed(job, Retry(reason=text), "ProcessDied", text, started_ms) for job in chunk.jobs
    ]
    return Outcome(chunk, (), failed, seconds=time.monotonic() - chunk.begun_at)
