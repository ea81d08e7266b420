"""Pages that say why there is no page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from txlayer.errors import InvariantError, NotAuthorisedError, RetriableError, TxLayerError, UsageError

if TYPE_CHECKING:
    from txlayer.console.app import Console


async def refused(request: Request, error: TxLayerError) -> Response:
    """What a question to the cluster raised; the cluster's state is as it was."""
    console: Console = request.app.state.console
    if isinstance(error, InvariantError):
        return await failed(request, error)
    status, title = 502, "The cluster did not answer this"
    if isinstance(error, UsageError):
        status, title = 400, "This cannot be done" if request.method == "POST" else "This cannot be shown"
    elif isinstance(error, NotAuthorisedError):
        status, title = 403, "The broker refuses these credentials"
    elif isinstance(error, RetriableError):
        status, title = 503, "The cluster does not answer now"
    return console.page(request, "problem.html", status=status, title=title, detail=str(error))


async def missing(request: Request, _error: Exception) -> Response:
    """There is no such page."""
    console: Console = request.app.state.console
    return console.page(request, "problem.html", status=404, title="There is no such page", detail="")


async def failed(request: Request, _error: Exception) -> Response:
    """A defect; the log has its traceback, the page has nothing of it."""
    console: Console = request.app.state.console
    detail = "This is a defect of txlayer; the log of the console has the details."
    return console.page(request, "problem.html", status=500, title="The console failed", detail=detail)
