"""Routes, whose handlers get the console; actions of people; and work that is not done in the event loop.

Each action has an author and a reason, and waits for a second person where the console asks for one. Questions to the cluster
have a deadline, and long jobs run beside the pages.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from txlayer.errors import BrokerUnavailableError, NotAuthorisedError, OutcomeUnknownError, RetriableError, UsageError
from txlayer.operate import problem_of
from txlayer.operate.operators import REASON_LENGTH_MAX

if TYPE_CHECKING:
    from txlayer.console.app import Console

WAITING = "/waiting"


def route(path: str, handler: Callable[[Any, Request], Awaitable[Response]], method: str = "GET") -> Route:

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        request.state.read_ms = console.now_ms()  # what the page reads is as new, or newer
        return await handler(console, request)

    return Route(path, endpoint, methods=[method])


class Action(NamedTuple):
    """What a person asks for."""

    says: str  # one sentence for the second person: what happens
    reason: str
    carry_out: Callable[[str], str]
    """Does it, in a thread, with the operator's name for the records; returns the address that shows what the log says of it."""


async def act(console: Console, request: Request, action: Action) -> Response:
    """Carry it out and lead to what came of it; with `--second-person` keep it until another person confirms it.

    Raises:
        UsageError: without a reason, or of a person who may not settle. Nothing was done.
        OutcomeUnknownError: no answer came in time; it may be done.
    """
    person = request.state.person
    if not person.may_settle:
        raise UsageError(f"{person.name} may look, and not settle")
    if not action.reason.strip() or len(action.reason) > REASON_LENGTH_MAX:
        raise UsageError(f"say why in at most {REASON_LENGTH_MAX:,} characters; the record keeps it")
    if console.rules.needs_second_person:
        console.second_person.propose(action, by=person, now_s=console.environment.clock())
        return RedirectResponse(WAITING, 303)
    return await _carry_out(console, action, person.name)


async def _carry_out(console: Console, action: Action, operator: str) -> Response:
    try:
        return RedirectResponse(await console.desk.call(action.carry_out, operator), 303)
    except OverdueError as exc:
        why = f"{exc}: it may be in the log, or come into it yet; look before you ask again"
        raise OutcomeUnknownError(why) from exc


async def waiting(console: Console, request: Request) -> Response:
    found = console.second_person.waiting(now_s=console.environment.clock())
    return console.page(request, "waiting.html", proposals=found)


async def confirm(console: Console, request: Request) -> Response:
    """A second person confirms an action: it is carried out with both names. If it did not happen, it waits again."""
    person, name = request.state.person, request.state.form.get("proposal", "")
    found = console.second_person.confirm(name, by=person, now_s=console.environment.clock())
    try:
        return await _carry_out(console, found.action, found.operator(person))
    except (RetriableError, NotAuthorisedError):
        console.second_person.put_back(found)
        raise


async def withdraw(console: Console, request: Request) -> Response:
    console.second_person.withdraw(request.state.form.get("proposal", ""), by=request.state.person)
    return RedirectResponse(WAITING, 303)


ROUTES = [
    route(WAITING, waiting),
    route(f"{WAITING}/confirm", confirm, "POST"),
    route(f"{WAITING}/withdraw", withdraw, "POST"),
]


# --- work that is not done in the event loop -------------------------------------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("txlayer.console")

THREAD_COUNT = 8
LONG_COUNT_MAX = 4  # threads that read further back than `LONG_MS`; the others are for the other pages
LONG_MS = 2 * 60 * 60_000
WAITING_MAX = 32  # questions that are asked or wait for a thread; a further one is refused
DEADLINE_S = 15.0
"""How long a page waits for an answer. The question goes on: its thread is free when the client gives up."""


class OverdueError(BrokerUnavailableError):
    """No answer came within the deadline, and the question goes on."""


class Desk:
    """Asks for pages, each question in a thread of a few."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="txlayer-page")
        self._long = threading.Semaphore(LONG_COUNT_MAX)
        self._count = 0

    async def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What the function returns or raises; RetriableError: too many questions wait; OverdueError: no answer within the deadline."""
        if self._count >= WAITING_MAX:
            raise RetriableError("many pages wait for the cluster; try again in a moment")
        self._count += 1
        future = self._threads.submit(partial(function, *arguments, **named))
        future.add_done_callback(self._is_done)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), DEADLINE_S)
        except TimeoutError:
            raise OverdueError("the cluster did not answer in time", waited_ms=int(DEADLINE_S * 1000)) from None

    @contextmanager
    def reading(self, length_ms: int) -> Iterator[None]:
        """In a question: around the reading of so much of a log. RetriableError: too many of them read that far back."""
        is_long = length_ms > LONG_MS
        if is_long and not self._long.acquire(blocking=False):
            raise RetriableError("other pages read far back just now; try again in a moment")
        try:
            yield
        finally:
            if is_long:
                self._long.release()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_done(self, _future: object) -> None:
        self._count -= 1  # one bytecode of one of eight threads; a page sees the new number a moment later


@dataclass(frozen=True, slots=True)
class Job:
    """A long piece of work, as it is now."""

    name: str
    started_ms: int
    subject: str = ""
    step: str = ""
    done: int = 0
    total: int = 0
    is_stopping: bool = False
    ended_ms: int | None = None
    result: Any = None  # what came of it; while it runs, what has come of it so far
    problem: str = ""

    @property
    def is_running(self) -> bool:
        return self.ended_ms is None


class Note:
    """What a job's work gets: it notes with it how far it is, and looks whether it should stop."""

    def __init__(self, change: Callable[..., None], is_stopping: Callable[[], bool]) -> None:
        self._change = change
        self._is_stopping = is_stopping

    def __call__(self, step: str, done: int, total: int, result: Any = None) -> None:
        """The work is at this step; so much of so much is done, with this result so far."""
        self._change(step=step, done=done, total=total, result=result)

    @property
    def should_stop(self) -> bool:
        return self._is_stopping()


ENDED_COUNT_MAX = 100  # jobs that have ended and are kept for their pages


class Jobs:
    """The newest job of each name. One of a name runs at a time; nobody waits for it."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def newest(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def named(self, prefix: str) -> list[Job]:
        """The jobs whose names begin so, the newest first."""
        with self._lock:
            found = [job for name, job in self._jobs.items() if name.startswith(prefix)]
        return sorted(found, key=lambda job: job.started_ms, reverse=True)

    def start(self, name: str, work: Callable[[Note], Any], *, subject: str = "") -> bool:
        """Begin it in a thread. False: it runs already."""
        with self._lock:
            before = self._jobs.pop(name, None)
            if before is not None and before.is_running:
                self._jobs[name] = before
                return False
            self._jobs[name] = Job(name, self._now_ms(), subject)
            ended = [each.name for each in self._jobs.values() if not each.is_running]
            for each in ended[: max(len(ended) - ENDED_COUNT_MAX, 0)]:
                del self._jobs[each]
        threading.Thread(target=self._run, args=(name, work), name=f"txlayer-{name}", daemon=True).start()
        return True

    def stop(self, name: str) -> None:
        """Ask a job to stop; work that does not look goes on to its end."""
        self._change(name, is_stopping=True)

    def _change(self, name: str, **values: Any) -> None:
        with self._lock:
            job = self._jobs.get(name)
            if job is not None and job.is_running:
                self._jobs[name] = replace(job, **values)

    def _run(self, name: str, work: Callable[[Note], Any]) -> None:
        end: dict[str, Any] = {}
        try:
            end["result"] = work(Note(partial(self._change, name), lambda: self._jobs[name].is_stopping))
        except Exception as exc:  # noqa: BLE001 - border of a thread
            end["problem"] = problem_of(exc, logger, "job.failed", job=name)
        self._change(name, ended_ms=self._now_ms(), **end)
