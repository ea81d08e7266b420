"""Settling transactions: what would happen, the request that coordinators work off, and what the logs say became of it."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from txlayer.config import milliseconds, parse_duration
from txlayer.console.acting import Action, Job, Note, act, route
from txlayer.console.pages.transactions import wanted_of
from txlayer.console.show import fields_of, number_of, query
from txlayer.errors import RetriableError, UsageError
from txlayer.operate import settle_requests as requests
from txlayer.operate import time_text
from txlayer.operate.operators import REASON_LENGTH_MAX
from txlayer.operate.settle import (
    ManualSettlement,
    OperatorAction,
    SettlementOutcome,
    SettlementResult,
    sentence,
    time_to_come,
)
from txlayer.operate.unsettled import PARKED, unsettled_json

if TYPE_CHECKING:
    from txlayer.console.app import Console

FILTERS = ("group", "state", "topic", "reason", "key", "query", "older")
_UNSORTED = {"sort": "age", "after": ""}
PLAN_MS = 60 * 60_000  # a person looks again at what would happen after this time
RUNNING_MAX = 4  # requests that are worked off at a time; each has a thread and a client
WORDS = {
    OperatorAction.CHECK_NOW: "Ask now",
    OperatorAction.COMMIT: "Commit",
    OperatorAction.ROLLBACK: "Roll back",
    OperatorAction.ABANDON: "Abandon",
    OperatorAction.CANCEL: "Cancel",
    OperatorAction.RESCHEDULE: "Move",
}
EFFECTS = {
    OperatorAction.CHECK_NOW: "The coordinator asks the producer group at once what became of the local transaction. The answer decides.",
    OperatorAction.COMMIT: "The messages are forwarded, once. What is committed already, and held or parked, is tried again. "
    "It cannot be taken back.",
    OperatorAction.ROLLBACK: "Consumers never see the messages. It cannot be taken back.",
    OperatorAction.ABANDON: "The messages are gone for good, also those of a transaction that is committed and cannot be "
    "forwarded: readers of its topics miss them. It cannot be taken back.",
    OperatorAction.CANCEL: "Of scheduled ones, consumers never see the messages whose time has not come. It cannot be taken back.",
    OperatorAction.RESCHEDULE: "Of scheduled ones, all messages that are left become visible at the new time.",
}


# --- what would happen ------------------------------------------------------------------------------------------------


async def plan(console: Console, request: Request) -> Response:
    """What would happen, and the form that asks for it; nothing is written."""
    form = request.state.form
    action, now_ms = _action(form), console.now_ms()
    keys, until_ms, edge = _keys(form), 0, dict[int, int]()
    asked = fields_of(form, FILTERS)
    _check_current(console)
    if keys:
        found = await console.desk.call(requests.rows_of, console.view, keys, now_ms=now_ms)
        rows = [found[key] for key in keys if key in found]
        states: Mapping[str, int] = Counter(row.state for row in rows)
        gone = [key for key in keys if key not in found]
    else:
        asked["state"] = asked["state"] or ",".join(sorted(PARKED))
        wanted = wanted_of(asked | _UNSORTED)
        at_ms = await console.brokers_ms() if asked["older"] else now_ms
        # Before what is counted; by the brokers' clock: this machine's may be ahead, and what comes later is not meant.
        until_ms, edge = await console.desk.call(console.view.rows.last, wanted, now_ms=at_ms)
        states = await console.desk.call(console.view.rows.states, wanted, now_ms=at_ms)
        page = await console.desk.call(console.view.rows.page, wanted, now_ms=at_ms)
        rows, gone = page.rows, []
    able = {state: number for state, number in states.items() if requests.is_able(action, state)}
    begun_ms = await console.desk.call(console.clients.history().now_ms)
    return console.page(
        request,
        "plan.html",
        action=action,
        word=WORDS[action],
        effect=EFFECTS[action],
        rows=[unsettled_json(row, now_ms=now_ms) | {"is_able": row.state in able} for row in rows],
        able=able,
        skipped={state: number for state, number in states.items() if state not in able},
        count=min(sum(able.values()), requests.REQUEST_COUNT_MAX),
        keys=[row.txn.key for row in rows if row.state in able] if keys else [],
        gone=gone,
        asked={} if keys else asked,
        until_ms=until_ms or now_ms,
        edge=requests.edge_text(edge),
        looked_ms=now_ms,
        request_id=requests.request_id_of(begun_ms, secrets.randbits(32)),
        reason_max=REASON_LENGTH_MAX,
    )


def _action(form: Mapping[str, str]) -> OperatorAction:
    action = next((action for action in WORDS if action.value == form.get("action", "")), None)
    if action is None:
        raise UsageError("the form does not say what to do")
    return action


def _keys(form: Any) -> tuple[str, ...]:
    keys = tuple(dict.fromkeys(map(unquote, form.getlist("key_of"))))
    if len(keys) > requests.SELECTED_COUNT_MAX or any(len(key) > 140 for key in keys):
        raise UsageError(f"choose at most {requests.SELECTED_COUNT_MAX} transactions")
    if (not keys and "is_view" not in form) or not all("/" in key for key in keys):
        raise UsageError("no transaction is chosen")
    return keys


def _check_current(console: Console) -> None:
    state = console.view.state
    if not state.is_ready or state.problem:
        raise RetriableError("the console does not know the state of now; nothing was written; try again")


# --- asking for it ----------------------------------------------------------------------------------------------------


async def settle(console: Console, request: Request) -> Response:
    """Begin the request, or keep it for a second person; what came of it is on its own page."""
    form = request.state.form
    action, keys = _action(form), _keys(form)
    count, until_ms = number_of(form, "count"), number_of(form, "until")
    now_ms = console.now_ms()
    if not form.get("why", "").strip():
        raise UsageError("say why; the op log keeps it")
    # The person's name takes its place, and that of a second one, when it is carried out.
    asked = requests.SettlementRequest(
        form.get("request", ""), action, request.state.person.name, form.get("why", "").strip(), count, keys
    )
    looked_ms = number_of(form, "looked")
    if not max(looked_ms, asked.begun_ms) <= now_ms <= looked_ms + PLAN_MS:
        raise UsageError("this was looked at long ago; look again at what would happen")
    if not keys:
        wanted = wanted_of(fields_of(form, FILTERS) | {"older": ""} | _UNSORTED)
        asked = replace(asked, wanted=wanted, until_ms=until_ms, edge=requests.edge_of_text(form.get("edge", "")))
    if action is OperatorAction.RESCHEDULE:
        time = await console.desk.call(console.clients.history().time)
        asked = replace(asked, time_ms=time_to_come("the new time", form.get("to", "").strip(), now_ms=time.latest_ms))
    if count > 1 and form.get("confirm", "").strip().replace(",", "") != str(count):
        raise UsageError(f"type the number of transactions, {count}, to confirm; nothing was written")
    _check_current(console)
    return await act(console, request, _as_action(console, asked))


def _as_action(console: Console, asked: requests.SettlementRequest, *, is_resumed: bool = False) -> Action:
    def carry_out(operator: str) -> str:
        _begin(console, replace(asked, operator=operator), is_resumed=is_resumed)
        return "/request?" + query({"id": asked.id})

    them = "1 transaction" if asked.count == 1 else f"{asked.count:,} transactions"
    to = "" if asked.time_ms is None else f" to {time_text(asked.time_ms)}"
    says = f"{'resume: ' if is_resumed else ''}{WORDS[asked.action].lower()} {them}{to}: {_which(asked)}"
    return Action(says, asked.reason, carry_out)


def _which(asked: requests.SettlementRequest) -> str:
    """What the request is about, in a few words."""
    if not asked.is_filter:
        return ", ".join(asked.keys[:3]) + (", …" if len(asked.keys) > 3 else "")
    key_hash = asked.wanted.key_hash
    parts = asked.wanted.filter.fields() | ({"ordering key": key_hash} if key_hash else {})
    return ", ".join(f"{name} {value}" for name, value in parts.items())


def _begin(console: Console, asked: requests.SettlementRequest, *, is_resumed: bool) -> None:
    name = _job_name(asked.id)
    before = console.jobs.newest(name)
    has_begun = before is not None and (before.is_running or before.result is not None)
    if has_begun and not is_resumed:
        begun = None if before is None or before.result is None else before.result.request.time_ms
        # `2h` of a form that was sent twice is two times near each other.
        if begun is not None and asked.time_ms is not None and abs(begun - asked.time_ms) > requests.MARGIN_MS:
            raise UsageError(f"this form has asked for {time_text(begun)} already; look again at what would happen")
        return  # the same form once more
    if sum(job.is_running for job in console.jobs.named(_job_name(""))) >= RUNNING_MAX:
        raise RetriableError(f"{RUNNING_MAX} requests are being worked off; nothing was written; try again")
    work = partial(_work_off, console, asked, is_resumed=is_resumed)
    console.jobs.start(name, work, subject=asked.id)


def _job_name(request_id: str) -> str:
    return f"settle {request_id}"


def _work_off(
    console: Console, asked: requests.SettlementRequest, note: Note, *, is_resumed: bool
) -> requests.RequestState:
    with closing(console.connect()) as connections:
        return requests.work_off(
            asked,
            console.view,
            ManualSettlement(connections, environment=console.environment),
            now_ms=console.now_ms,
            should_stop=lambda: note.should_stop,
            on_step=lambda state: note("working", state.line_count, asked.count, state),
            is_resumed=is_resumed,
        )


# --- what became of it ------------------------------------------------------------------------------------------------


async def one(console: Console, request: Request) -> Response:
    """One request: how far it is, and what the logs say became of its transactions."""
    request_id = request.query_params.get("id", "")
    job, state, found, lines, has_more = await _look_at(console, request_id)
    asked = state.request if state is not None else found.request if found is not None else None
    topic = console.config.topics.op
    return console.page(
        request,
        "request.html",
        status=200 if asked is not None or job is not None else 404,
        request_id=request_id,
        job=job,
        state=state,
        asked=asked,
        word="" if asked is None else WORDS[asked.action],
        which="" if asked is None else _which(asked) if asked.is_filter or state is not None else "chosen one by one",
        results=[] if state is None else sorted((each.value, number) for each, number in state.results.items()),
        said=[]
        if state is None
        else [(o, _said(o, state.request.action, topic)) for o in [*state.others, *state.good]],
        found=found,
        lines=lines,
        has_more=has_more,
        can_resume=_can_resume(job, state, found),
    )


def _said(outcome: SettlementOutcome, action: OperatorAction, topic: str) -> str:
    is_settled = outcome.result is SettlementResult.REFUSED and outcome.state is None
    if is_settled or outcome.result is SettlementResult.NOT_FOUND:
        return f"{outcome.key} is not waiting any more; its page says what became of it"
    return sentence(action, outcome, op_topic=topic)


def _can_resume(job: Job | None, state: requests.RequestState | None, found: requests.FoundRequest | None) -> bool:
    """True if lines may be missing, and it is known for which transactions."""
    if job is not None and job.is_running:
        return False
    if state is not None:
        return (bool(state.stopped) or bool(job is not None and job.problem)) and state.line_count < state.request.count
    return found is not None and found.request.is_filter and found.line_count < found.request.count


async def _look_at(
    console: Console, request_id: str
) -> tuple[Job | None, requests.RequestState | None, requests.FoundRequest | None, list[requests.FoundLine], bool]:
    """What this console knows of a request; where it knows nothing, what the op log says."""
    job = console.jobs.newest(_job_name(request_id[:40]))
    state: requests.RequestState | None = None if job is None else job.result
    if state is not None or (job is not None and job.is_running):
        return job, state, None, [], False
    return job, None, *await console.desk.call(_find, console, request_id)


def _find(console: Console, request_id: str) -> tuple[requests.FoundRequest | None, list[requests.FoundLine], bool]:
    begun_ms = requests.begun_ms_of(request_id)
    with closing(console.connect()) as connections:
        found, has_more = requests.read_requests(connections, since_ms=begun_ms, request_id=request_id)
        if not found:
            return None, [], has_more
        return found[0], requests.with_contrary_decisions(found[0], connections), has_more


async def all_of_them(console: Console, request: Request) -> Response:
    """The requests of this console, and those in the op log of the last hour or day."""
    since = request.query_params.get("since", "1h")
    length_ms = milliseconds(parse_duration("since", since))

    def read() -> requests.FoundRequests:
        since_ms = max(console.clients.history().now_ms() - length_ms, 0)
        with console.desk.reading(length_ms), closing(console.connect()) as connections:
            return requests.read_requests(connections, since_ms=since_ms)

    found, has_more = await console.desk.call(read)
    running = [job for job in console.jobs.named(_job_name("")) if job.is_running]
    return console.page(request, "requests.html", found=found, has_more=has_more, running=running, since=since)


async def stop(console: Console, request: Request) -> Response:
    """Stop a request after its step; what is written takes effect."""
    request_id = request.state.form.get("id", "")[:40]
    console.jobs.stop(_job_name(request_id))
    return RedirectResponse("/request?" + query({"id": request_id}), 303)


async def resume(console: Console, request: Request) -> Response:
    """Write the lines that are missing, under the name of the person who resumes."""
    request_id = request.state.form.get("id", "")[:40]
    job, state, found, *_ = await _look_at(console, request_id)
    if not _can_resume(job, state, found):
        raise UsageError("nothing is missing of this request, or it is not known of which transactions")
    asked = state.request if state is not None else found.request if found is not None else None
    assert asked is not None  # `_can_resume`
    return await act(console, request, _as_action(console, asked, is_resumed=True))


ROUTES = [
    route("/settle/plan", plan, "POST"),
    route("/settle", settle, "POST"),
    route("/request", one),
    route("/requests", all_of_them),
    route("/request/stop", stop, "POST"),
    route("/request/resume", resume, "POST"),
]
