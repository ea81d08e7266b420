"""The pages: each module has the routes of one section. They ask `operate`, and show what it answers."""

from starlette.routing import Route

from txlayer.console import acting
from txlayer.console.pages import audit, letters, overview, queues, settle, transactions

ROUTES: list[Route] = [
    *overview.ROUTES,
    *transactions.ROUTES,
    *settle.ROUTES,
    *queues.ROUTES,
    *letters.ROUTES,
    *audit.ROUTES,
    *acting.ROUTES,
]

LOOKS = ("/run/[a-z]+", "/transaction/values", "/letter/values", "/transaction/verdict")
"""Patterns of the paths to which also a person who may only look can post: they change nothing."""

SECTIONS: list[tuple[str, str]] = [
    ("/", "Overview"),
    ("/transactions", "Transactions"),
    ("/requests", "Requests"),
    ("/queues", "Queues"),
    ("/letters", "Dead letters"),
    ("/audit", "Audit"),
]
"""(address, name) of what the navigation shows."""
