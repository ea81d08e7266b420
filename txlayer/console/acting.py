"""Routes, whose handlers get the console; and actions of people.

Each action has an author and a reason, and waits for a second person where the console asks for one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from txlayer.console.work import OverdueError
from txlayer.errors import OutcomeUnknownError, RetriableError, UsageError
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
        raise OutcomeUnknownError(
            f"{exc}: it may be in the log, or come into it yet; look before you ask again"
        ) from exc


async def waiting(console: Console, request: Request) -> Response:
    found = console.second_person.waiting(now_s=console.environment.clock())
    return console.page(request, "waiting.html", proposals=found)


async def confirm(console: Console, request: Request) -> Response:
    """A second person confirms an action: it is carried out with both names. If it did not happen, it waits again."""
    person, name = request.state.person, request.state.form.get("proposal", "")
    found = console.second_person.confirm(name, by=person, now_s=console.environment.clock())
    try:
        return await _carry_out(console, found.action, found.operator(person))
    except RetriableError:
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
