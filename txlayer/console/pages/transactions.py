"""The transactions that are not settled: a list with a stable address for every view of it, and the search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from txlayer.adapters.ports import HistoryStart
from txlayer.config import milliseconds, parse_duration
from txlayer.console.acting import route
from txlayer.console.show import query
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, TxnState
from txlayer.core.messages import ParkReason
from txlayer.core.partitions import key_hash
from txlayer.errors import UsageError
from txlayer.operate.rows import SORTS, UNREADABLE, Wanted
from txlayer.operate.settle import OperatorAction
from txlayer.operate.unsettled import Filter, unsettled_json

if TYPE_CHECKING:
    from txlayer.console.app import Console

PAGE_COUNT = 100
STATES = [*(state.value for state in TxnState if state not in SETTLED), COMMITTING, UNREADABLE]
FIELDS = ("group", "state", "topic", "reason", "older", "key", "query", "sort", "after")
SINCE_MS = 3_600_000
"""How far back the search for an id of the user's own reads half, if nothing unsettled has it."""
LENGTH_MAX = 2_000
"""Characters of one field of an address."""


async def transactions(console: Console, request: Request) -> Response:
    asked = fields_of(request)
    wanted = wanted_of(asked)
    now_ms = console.now_ms()
    page = await console.desk.call(console.view.rows.page, wanted, now_ms=now_ms)
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
        is_cut=console.view.rows.is_cut,
        actions=[action.value for action in OperatorAction],
        sorts={name: _sort_link(kept, name) for name in SORTS},
        next_link="?" + query(kept | {"after": page.after}) if page.after else "",
        first_link="?" + query(kept) if asked["after"] else "",
    )


def fields_of(request: Request) -> dict[str, str]:
    """The fields of the address that say which rows; an unknown field is ignored."""
    found = {name: request.query_params.get(name, "").strip() for name in FIELDS}
    if any(len(value) > LENGTH_MAX for value in found.values()):
        raise UsageError(f"a field of the address has at most {LENGTH_MAX:,} characters")
    return found


def wanted_of(asked: dict[str, str]) -> Wanted:
    """The rows that the fields ask for.

    Raises:
        UsageError: a field says nothing that there is.
    """
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
        ids = await console.desk.call(_settled_ids, console, what)
        found = {"id": ids[-1]} if ids else {"query": what}
        return RedirectResponse(("/transaction?" if ids else "/transactions?") + query(found), 303)
    return RedirectResponse("/transaction?" + query({"id": what}), 303)


def _settled_ids(console: Console, query_id: str) -> list[str]:
    """The transactions with this id of the user's, the oldest first; none if the list shows some."""
    if console.view.rows.page(Wanted(Filter(query_id=query_id), limit=1), now_ms=console.now_ms()).count:
        return []
    return console.clients.history().ids_of(query_id, start=HistoryStart(console.now_ms() - SINCE_MS))


ROUTES = [route("/transactions", transactions), route("/search", search)]
