"""The overview: is it well? And what the doctor and verify say, run beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from txlayer.console import show
from txlayer.console.acting import route
from txlayer.console.pages.queues import queues_now
from txlayer.operate.dead_letters import read_consumed_topics
from txlayer.operate.overall import groups_of, remarks
from txlayer.operate.queues import Queues, consumption_json

if TYPE_CHECKING:
    from txlayer.console.app import Console

CONSUMERS = "consumers"
CONSUMERS_S = 30.0  # a look at the consumer groups is repeated when it is older, and somebody asks for the overview
VERIFY_MS = 15 * 60 * 1000  # the window of `verify` that the overview runs


async def overview(console: Console, request: Request) -> Response:
    """Is it well? In one line, and in numbers."""
    counts = await console.desk.call(console.view.rows.counts)
    consumers = console.looks.newest(CONSUMERS, lambda: read_consumed_topics(console.clients), age_s=CONSUMERS_S)
    queues = queues_now(console)
    state, now_ms = console.view.state, console.now_ms()
    consumed = consumption_json(consumers.result or (), queues.result or Queues())
    owners = {partition: member for member in state.members for _, partition in member.partitions}
    # Of the time after the last picture nothing is known: it is no time without transactions.
    known_ms = min(now_ms, state.true_ms)
    return console.page(
        request,
        "overview.html",
        remarks=remarks(state, counts, now_ms=now_ms, consumed=consumed),
        groups=groups_of(state, counts),
        owners=owners,
        has_more=console.view.rows.has_more,
        charts=[
            show.rate_chart(state.minutes, since_ms=state.since_ms, now_ms=known_ms),
            show.latency_chart(state.minutes, now_ms=known_ms),
        ],
        consumers=consumers,
        queues=queues,
        consumed=consumed,
        jobs=[console.jobs.newest(name) for name in WORK],
        job_names=list(WORK),
    )


# --- what runs beside -------------------------------------------------------------------------------------------------


def _examine(console: Console, note: Any) -> Any:
    from txlayer.operate import doctor  # what a job alone needs is imported when it runs

    note("reading the cluster", 0, 0)
    return doctor.examine(console.inspect(), console.config)


def _verify(console: Console, note: Any) -> Any:
    from txlayer.operate.verify import WantedWindow, verify

    return verify(
        console.clients,
        WantedWindow(max(console.clients.history().now_ms() - VERIFY_MS, 0)),
        on_read=lambda done, total: note("reading", done, total),
        on_judged=lambda count: note("judging", count, 0),
    )


WORK = {"doctor": _examine, "verify": _verify}


async def start(console: Console, request: Request) -> Response:
    """Begin a job, and show the overview, which shows its progress."""
    name = request.path_params["name"]
    work = WORK.get(name)
    if work is None:
        raise HTTPException(404)
    console.jobs.start(name, lambda note: work(console, note))
    return RedirectResponse(f"/#{name}", 303)


ROUTES = [route("/", overview), route("/run/{name:str}", start, "POST")]
