"""`txlayer consumer`: consumers of a group, and what an operator asks of them."""

from __future__ import annotations

import typer

from txlayer.cli import consumer_requests, consumer_run

app = typer.Typer(no_args_is_help=True, help="Run consumers; pause and resume what they handle.")
consumer_run.add_to(app)
consumer_requests.add_to(app)
