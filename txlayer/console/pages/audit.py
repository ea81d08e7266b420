"""Audit: who did what, when and why, read from the logs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from txlayer.console.acting import route
from txlayer.console.show import query
from txlayer.errors import UsageError
from txlayer.operate.audit import Entry, read_audit

if TYPE_CHECKING:
    from txlayer.console.app import Console

SPANS = {"1h": 3_600_000, "1d": 86_400_000, "7d": 7 * 86_400_000}  # windows that the page offers; op is kept for 7 days
SHOWN_COUNT_MAX = 500
AHEAD_MS = 60_000  # a broker's clock may be so far ahead of the console's
_DECISIONS = frozenset({"commit", "rollback", "abandon", "ask", "move"})


async def audit(console: Console, request: Request) -> Response:
    given = request.query_params
    span, until, who = given.get("span", "") or "1d", given.get("until", ""), given.get("who", "").strip()[:200]
    if span not in SPANS or re.fullmatch(r"[0-9]{0,15}", until) is None:
        raise UsageError("a window is 1h, 1d or 7d, and ends at a number of milliseconds since 1970")

    if until:
        until_ms, span_ms = int(until), SPANS[span]
    else:  # this machine's clock may be wrong
        time = await console.desk.call(console.clients.history().time)
        until_ms = max(time.latest_ms, console.now_ms()) + AHEAD_MS
        span_ms = until_ms - time.earliest_ms - AHEAD_MS + SPANS[span]
    found = await console.desk.call(read_audit, console.clients, until_ms=until_ms, span_ms=span_ms)
    entries = [entry for entry in found.entries if who in ("", entry.newest.operator)]
    older_ms = min(found.since_ms, found.until_ms - 1)
    return console.page(
        request,
        "audit.html",
        found=found,
        entries=[(entry, _link(entry)) for entry in entries[:SHOWN_COUNT_MAX]],
        left_count=max(len(entries) - SHOWN_COUNT_MAX, 0),
        spans=[(name, query({"span": name, "until": until, "who": who})) for name in SPANS],
        until_ms=min(found.until_ms, console.now_ms()),
        span=span,
        who=who,
        older=query({"span": span, "until": older_ms, "who": who}),
        newest=query({"span": span, "who": who}) if until else "",
    )


def _link(entry: Entry) -> str:
    act = entry.newest
    if act.what in _DECISIONS:
        return "/transaction?" + query({"id": act.example})
    if act.what == "release":
        return "/queue?" + query({"name": act.about})
    group, _, topic = act.about.partition(" ")
    if act.what in ("pause", "resume"):
        return "/queues?" + query({"group": group, "topic": topic})
    return "/letters/request?" + query({"group": group, "id": act.request_id})


ROUTES = [route("/audit", audit)]
