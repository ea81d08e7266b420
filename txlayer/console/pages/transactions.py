"""The transactions that are not settled: a list with a stable address for every view of it, and the search. And one transaction:
what the topics say about it, in the order of time; its messages' values only when they are asked for.
"""

from __future__ import annotations

import logging
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from txlayer.adapters.ports import HistoryStart
from txlayer.adapters.telemetry import trace_context_of
from txlayer.config import milliseconds, parse_duration
from txlayer.console.acting import route
from txlayer.console.show import LENGTH_MAX, fields_of, number_of, query, transaction_query
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, TxnState
from txlayer.core.messages import ParkReason, Resolution, user_headers
from txlayer.core.partitions import key_hash
from txlayer.errors import UsageError
from txlayer.operate import Json
from txlayer.operate.history import (
    HALF_COUNT_MAX,
    are_applied,
    forwarded_json,
    hidden_note,
    histories_at,
    histories_of,
    history_json,
    parse_position,
    read_half_records,
    read_on_doubt,
    timeline,
)
from txlayer.operate.rows import SORTS, UNREADABLE, Wanted
from txlayer.operate.settle import OperatorAction
from txlayer.operate.settle_requests import actions_for, rows_of
from txlayer.operate.unsettled import Filter, unsettled_json

if TYPE_CHECKING:
    from txlayer.console.app import Console
    from txlayer.operate.unsettled import UnsettledTransaction

PAGE_COUNT = 100
ATTEMPTS_SHOWN_MAX = (
    10  # of one id: whoever may write half may use it in any number, and each is looked for in the real topics
)
EVENTS_SHOWN_MAX = 1_000  # of one transaction: whoever may write op may name it in any number of lines
STATES = [*(state.value for state in TxnState if state not in SETTLED), COMMITTING, UNREADABLE]
FIELDS = ("group", "state", "topic", "reason", "older", "key", "query", "sort", "after")
SINCE = ("1h", "1d", "7d")
"""How far back pages offer to look; a search looks back the first. Half and op are kept for 7 days."""


async def transactions(console: Console, request: Request) -> Response:
    asked = fields_of(request.query_params, FIELDS)
    wanted = wanted_of(asked)
    now_ms = console.now_ms()
    at_ms = await console.brokers_ms() if asked["older"] else now_ms
    page = await console.desk.call(console.view.rows.page, wanted, now_ms=at_ms)
    rows = [unsettled_json(found, now_ms=now_ms) for found in page.rows]
    kept = {name: value for name, value in asked.items() if name != "after"}
    return console.page(
        request,
        "transactions.html",
        rows=rows,
        page=page,
        asked=asked,
        states=STATES,
        reasons=[reason.value for reason in ParkReason],
        has_more=console.view.rows.has_more,
        actions=[action.value for action in OperatorAction],
        sorts={name: _sort_link(kept, name) for name in SORTS},
        next_link="?" + query(kept | {"after": page.after}) if page.after else "",
        first_link="?" + query(kept) if asked["after"] else "",
        searched=request.query_params.get("searched", ""),
        offered=SINCE,
    )


def wanted_of(asked: dict[str, str]) -> Wanted:
    """The rows that the fields ask for; UsageError: a field says nothing that there is."""
    older_ms = milliseconds(parse_duration("older", asked["older"])) if asked["older"] else None
    wanted = Filter.of_fields(asked, older_ms=older_ms)
    if unknown := sorted(wanted.states - frozenset(STATES)):
        raise UsageError(f"no state is called {unknown[0][:40]!r}")
    hashed = key_hash(asked["key"].encode(errors="replace")) if asked["key"] else None
    return Wanted(wanted, key_hash=hashed, sort=asked["sort"] or "age", after=asked["after"], limit=PAGE_COUNT)


def _sort_link(kept: dict[str, str], name: str) -> dict[str, Any]:
    """The link of a column's head: by this column, and the other way round where it is so already."""
    current = kept["sort"] or "age"
    turned = f"-{name}" if current == name else name
    mark = {name: "ascending", f"-{name}": "descending"}.get(current, "")
    return {"link": "?" + query(kept | {"sort": turned}), "mark": mark}


async def search(console: Console, request: Request) -> Response:
    """Where a search leads: to the transaction of an id or a position, or to those of an ordering key or of the user's own id."""
    what = request.query_params.get("what", "").strip()
    if not what or len(what) > LENGTH_MAX:
        return RedirectResponse("/transactions", 303)
    if request.query_params.get("by") == "key":
        return RedirectResponse("/transactions?" + query({"key": what}), 303)
    if request.query_params.get("by") == "query":
        since = request.query_params.get("since", SINCE[0])
        ids = await console.desk.call(_settled_ids, console, what, milliseconds(parse_duration("since", since)))
        if ids:
            further = since if since != SINCE[0] else None
            return RedirectResponse("/transaction?" + transaction_query(ids[-1], further), 303)
        return RedirectResponse("/transactions?" + query({"query": what, "searched": since}), 303)
    return RedirectResponse("/transaction?" + query({"id": what}), 303)


def _settled_ids(console: Console, query_id: str, length_ms: int) -> list[str]:
    """The transactions with this id of the user's, the oldest first; none if the list shows some."""
    if console.view.rows.page(Wanted(Filter(query_id=query_id), limit=1), now_ms=console.now_ms()).count:
        return []
    reader = console.clients.history()
    with console.desk.reading(length_ms):
        return reader.ids_of(query_id, start=HistoryStart(max(reader.now_ms() - length_ms, 0)))


# --- one of them ------------------------------------------------------------------------------------------------------

logger = logging.getLogger("txlayer.console")

VERDICT = "verdict"
VERDICT_MS = 1_000  # around the moment at which a transaction was prepared; what became of it is read up to now
MARGIN_MS = 10 * 60_000
_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class Found(NamedTuple):
    """What was found of an id."""

    attempts: list[Json]  # a history each, with its timeline
    rows: list[Json]  # of those that are not settled
    since_ms: int | None  # half and op were read from here; None: from the half message itself
    hidden: str = ""  # what no reader sees now
    left_count: int = 0  # attempts that are not shown: older ones, those that are settled first


async def transaction(console: Console, request: Request) -> Response:
    return await _answer(console, request, dict(request.query_params), has_values=False)


async def values(console: Console, request: Request) -> Response:
    """The same page with the messages' values. That somebody has seen them is logged."""
    form = dict(request.state.form)
    return await _answer(console, request, form | {"id": unquote(form.get("id", ""))}, has_values=True)


async def verdict(console: Console, request: Request) -> Response:
    """Begin to verify the moment at which it was prepared, and show the page again, which shows the progress."""
    form = dict(request.state.form)
    what, at_ms = unquote(form.get("id", "")), number_of(form, "at", digit_count_max=18)
    console.jobs.start(VERDICT, lambda note: _verdicts(console, what, at_ms, note), subject=what)
    return RedirectResponse("/transaction?" + transaction_query(what, form.get("since")) + "#verdict", 303)


def _verdicts(console: Console, txn_id: str, at_ms: int, note: Any) -> Any:
    from txlayer.operate.verify import WantedWindow, verdicts_of  # imported when a job needs it

    return verdicts_of(
        console.clients,
        txn_id,
        WantedWindow(max(at_ms - VERDICT_MS, 0), at_ms + VERDICT_MS),
        on_read=lambda done, total: note("reading", done, total),
    )


async def _answer(console: Console, request: Request, fields: dict[str, str], *, has_values: bool) -> Response:
    what, since, by = fields.get("id", "").strip(), fields.get("since", ""), fields.get("by", "")
    found = await console.desk.call(_look_up, console, what, since=since, is_id=by == "id", has_values=has_values)
    if has_values:
        shown = [f"{attempt['txn_id']}/{attempt['nonce']}" for attempt in found.attempts]
        logger.info("console.values_shown", extra={"person": request.state.person.name, "transactions": shown})
    status = 200 if found.attempts or found.rows or found.hidden else 404
    return console.page(
        request,
        "transaction.html",
        status=status,
        what=what,
        found=found,
        since=since,
        by=by,
        offered=SINCE,
        has_values=has_values,
        job=console.jobs.newest(VERDICT),
        trace_address=console.trace_address,
        actions_for=actions_for,
    )


def _look_up(console: Console, what: str, *, since: str, is_id: bool, has_values: bool) -> Found:
    position = None if is_id else parse_position(what)
    if position is None and (not what.isascii() or not 0 < len(what) <= 128 or re.search(r"[/|\n]", what)):
        raise UsageError("an id has 1 to 128 ASCII characters without / and |; a position is PARTITION:OFFSET of half")
    reader = console.clients.history()
    hidden = hidden_note(reader)
    rows: list[UnsettledTransaction] = []
    since_ms = None
    if position is not None:
        histories, _ = histories_at(reader, *position)
        keys = [f"{history.txn_id}/{history.nonce}" for history in histories]
        rows = list(rows_of(console.view, keys, now_ms=console.now_ms()).values())
    else:
        rows = console.view.rows.page(Wanted(txn_id=what), now_ms=console.now_ms()).rows
        now_ms = reader.now_ms()
        since_ms = _since_ms(now_ms, what, since, rows)
        partitions = sorted({row.partition for row in rows}) if rows and not since else None
        with console.desk.reading(now_ms - since_ms):
            histories, since_ms = histories_of(reader, what, since_ms=since_ms, partitions=partitions)
    attempts = []
    unsettled = {row.txn.key for row in rows}
    shown = sorted(histories, key=lambda history: f"{history.txn_id}/{history.nonce}" in unsettled)[
        -ATTEMPTS_SHOWN_MAX:
    ]
    on_doubt = {row.txn.key: row for row in rows if row.txn.is_in_doubt}
    with closing(console.connect()) as connections:
        for history, is_applied in zip(shown, are_applied(connections, shown), strict=True):
            offsets = [half.offset for half in history.half_records]
            records = read_half_records(connections, history.partition, offsets)
            row = on_doubt.get(f"{history.txn_id}/{history.nonce}")
            if row is not None and len(records) < min(row.txn.seen, HALF_COUNT_MAX):
                records = read_on_doubt(connections, row) | records
            body = history_json(history, is_applied=is_applied)
            body["messages"] = [_message(records[at], at, has_value=has_values) for at in sorted(records)]
            body["forwarded"], body["handled"], body["forwarded_problem"] = [], [], ""
            said = (line.op.resolution for line in history.op_lines if (line.offset, line.line) == history.decided_at)
            if history.state is TxnState.COMMITTED or Resolution.COMMIT in said:
                found = forwarded_json(console.clients, history, records)
                body["forwarded"], body["handled"], body["forwarded_problem"] = found
            events = timeline(body)
            body["timeline"], body["left_out"] = events[:EVENTS_SHOWN_MAX], events[EVENTS_SHOWN_MAX:]
            attempts.append(body)
    now_ms = console.now_ms()
    rows_json = [unsettled_json(row, now_ms=now_ms) for row in rows]
    return Found(attempts, rows_json, since_ms, hidden, len(histories) - len(shown))


def _since_ms(now_ms: int, txn_id: str, since: str, rows: list[UnsettledTransaction]) -> int:
    """Where reading begins: as asked, else before the first half record where something says when that was, else an hour ago."""
    if since:
        return max(now_ms - milliseconds(parse_duration("since", since)), 0)
    known = [row.txn.appended_ms for row in rows]
    if (uuid := _UUID7.fullmatch(txn_id)) is not None:
        known.append(int(uuid[1] + uuid[2], 16))
    known = [at_ms for at_ms in known if 0 < at_ms <= now_ms]
    return max(min(known) - MARGIN_MS, 0) if known else max(now_ms - 60 * 60_000, 0)


def _message(record: Any, offset: int, *, has_value: bool) -> Json:
    """A half record as the page shows it: sizes and names, and what a user wrote only if it was asked for."""
    headers = user_headers(record.headers())
    trace = trace_context_of(headers)
    key, value = record.key(), record.value()
    return {
        "offset": offset,
        "key_bytes": None if key is None else len(key),
        "value_bytes": None if value is None else len(value),
        "headers": [(name, value if has_value else None, len(value or b"")) for name, value in headers],
        "trace_id": None if trace is None else trace.trace_id,
        "key": key if has_value else None,
        "value": value if has_value else None,
    }


ROUTES = [
    route("/transactions", transactions),
    route("/search", search),
    route("/transaction", transaction),
    route("/transaction/values", values, "POST"),
    route("/transaction/verdict", verdict, "POST"),
]
