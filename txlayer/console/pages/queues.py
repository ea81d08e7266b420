"""Queues and keys: who holds which queue, what is paused, which keys are parked; release, pause and resume."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from txlayer.console.acting import Action, act, route
from txlayer.console.show import query
from txlayer.core.dead_letters import ReplayKind, ReplayRecord
from txlayer.core.leases import parse_queue
from txlayer.errors import UsageError
from txlayer.operate.dead_letters import opened_logs
from txlayer.operate.operators import signature_of
from txlayer.operate.overall import Look
from txlayer.operate.queues import LockState, Queues, check_queue, opened_locks, read_queues, record_json
from txlayer.operate.replay import RequestWriter, ask_queues, author_of

if TYPE_CHECKING:
    from txlayer.console.app import Console

QUEUES = "queues"
AGE_S = 15.0  # the picture is read again when it is older, and somebody asks for the page
WORDS = {"pause": ReplayKind.PAUSE, "resume": ReplayKind.RESUME}


def queues_now(console: Console) -> Look:
    """The queues, as they were seen last; read again beside the page if that is long ago."""
    return console.looks.newest(QUEUES, lambda: read_queues(console.clients, console.consumers), age_s=AGE_S)


async def queues(console: Console, request: Request) -> Response:
    look = queues_now(console)
    asked = {name: request.query_params.get(name, "").strip()[:300] for name in ("group", "topic")}
    found: Queues = look.result or Queues()
    shown = [q for q in found.queues if asked["group"] in ("", q.group) and asked["topic"] in ("", q.topic)]
    return console.page(
        request,
        "queues.html",
        look=look,
        queues=shown,
        parked=[(q, key) for q in shown for key in q.parked],
        pausable=sorted({(q.group, q.topic) for q in shown if q.is_paused is not None}),
        found=found,
        asked=asked,
        is_pending=_is_pending,
    )


def _is_pending(asked: Any, *, is_paused: bool) -> bool:
    """True if the newest request to pause or to resume is not carried out yet."""
    return asked is not None and (asked.record.kind is ReplayKind.PAUSE) != is_paused


def request_writer(console: Console, group: str) -> AbstractContextManager[RequestWriter]:
    """Writes requests to the replay topics of a group, for one thread."""
    return closing(RequestWriter(console.clients, group=group, environment=console.environment))


# --- one queue --------------------------------------------------------------------------------------------------------


async def queue(console: Console, request: Request) -> Response:
    name = check_queue(request.query_params.get("name", ""))

    def read() -> tuple[Any, list[Any]]:
        with opened_locks(console.clients, console.consumers) as locks:
            locks.read()
            return locks.status(name), [record_json(folded) for folded in locks.history(name)]

    status, records = await console.desk.call(read)
    group, topic, partition = parse_queue(name)
    return console.page(
        request,
        "queue.html",
        status=200 if status is not None else 404,
        name=name,
        lease=status,
        records=records[::-1],
        group=group,
        topic=topic,
        partition=partition,
    )


async def release(console: Console, request: Request) -> Response:
    """End the lease that the page showed."""
    form = request.state.form
    name, token, reason = check_queue(form.get("queue", "")), form.get("token", ""), form.get("reason", "")

    def carry_out(operator: str) -> str:
        signature = signature_of("console", operator=operator, reason=reason)
        with opened_locks(console.clients, console.consumers) as locks:
            locks.read()
            status = locks.status(name)
            if status is None or str(status.lease.token) != token or status.state is LockState.RELEASED:
                raise UsageError("the lease has changed meanwhile; nothing was released. Look at the queue again")
            locks.release(status.lease, reason=signature)
        console.looks.forget(QUEUES)
        return "/queue?" + query({"name": name})

    return await act(console, request, Action(f"release the lease {token[:20]} of {name}", reason, carry_out))


async def pause(console: Console, request: Request) -> Response:
    """Ask the owners of partitions to pause, or to go on."""
    form = request.state.form
    group, topic, number, word = (form.get(name, "").strip() for name in ("group", "topic", "partition", "act"))
    reason = form.get("reason", "")
    kind = WORDS.get(word)
    if kind is None or (number and not (number.isascii() and number.isdigit() and len(number) < 10)):
        raise UsageError("the form says neither pause nor resume, or no partition")
    where = f"partition {number}" if number else "all partitions"

    def carry_out(operator: str) -> str:
        author = author_of("console", operator=operator, reason=reason, request_id=None)
        record = ReplayRecord(kind, author.request_id, None, text=author.text)
        with opened_logs(console.clients, group, [topic]) as logs, request_writer(console, group) as writer:
            ask_queues(logs[topic], writer, record, partitions=[int(number)] if number else [])
        console.looks.forget(QUEUES)
        return "/queues?" + query({"group": group, "topic": topic})

    return await act(console, request, Action(f"{word} {where} of {topic[:250]} for {group[:250]}", reason, carry_out))


ROUTES = [
    route("/queues", queues),
    route("/queues/release", release, "POST"),
    route("/queues/pause", pause, "POST"),
    route("/queue", queue),
]
