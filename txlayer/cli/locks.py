"""`txlayer locks`: which consumer holds which queue, and ending a lease by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from txlayer.adapters.connect import kafka_clients
from txlayer.adapters.telemetry import printable
from txlayer.cli import output
from txlayer.cli.exits import ExitCode, saying
from txlayer.cli.options import AsJson, Connection, Operator, Reason, command, duration, option
from txlayer.cli.output import cell
from txlayer.config import ConsumerConfig
from txlayer.core.leases import LeaseEffect
from txlayer.operate import Json, length_text
from txlayer.operate.operators import signature_of
from txlayer.operate.queues import LeaseStatus, LockState, check_queue, lease_json, opened_locks, record_json

app = typer.Typer(
    no_args_is_help=True,
    help="Which consumer holds which queue (a topic-partition of a consumer group), and ending a lease by hand.",
)

_STYLES = {LockState.HELD.value: "green", LockState.EXPIRED.value: "yellow"}

Queue = Annotated[str, typer.Argument(metavar="GROUP/TOPIC/PARTITION", help="A queue.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockConnection(Connection):
    """A namespace whose leases are read."""

    lease_expiry: str | None = option(
        "--lease-expiry", "The consumers' setting of this name; default TXLAYER_LEASE_EXPIRY, then 60s.", "60s"
    )

    def consumer_config(self) -> ConsumerConfig:
        expiry = duration("--lease-expiry", self.lease_expiry)
        renewal = None if expiry is None else expiry / 3
        return self.config(ConsumerConfig, lease_expiry=expiry, lease_renewal=renewal)


@command(app, "list")
def list_locks(
    *,
    group: str | None = option("--group", "Of this consumer group alone."),
    topic: str | None = option("--topic", "Of this topic alone."),
    is_all: bool = option("--all", "Also leases that ended, as far as the log names them.", default=False),
    connection: LockConnection,
    as_json: AsJson = False,
) -> None:
    """Show who holds which queue, since which claim, and for how long without a renewal.

    Ages compare this machine's clock with the brokers'.
    """
    config = connection.consumer_config()
    with opened_locks(kafka_clients(config), config) as locks:
        found = [lease_json(s) for s in locks.read()]
        unreadable_count = locks.unreadable_count
    rows = [
        row
        for row in found
        if group in (None, row["group"])
        and topic in (None, row["topic"])
        and (is_all or row["state"] == LockState.HELD.value)
    ]
    of = "".join(f" of {what} {name}" for what, name in (("group", group), ("topic", topic)) if name)
    nothing = f"no consumer holds a queue{of} in {config.namespace}"
    output.show(rows, list_table, as_json=as_json, nothing=nothing)
    output.note_counts((unreadable_count, f"records of {config.topics.locks} cannot be read"))


@command(app)
def show(queue: Queue, *, connection: LockConnection, as_json: AsJson = False) -> None:
    """Show a queue's lease and its newest records in the lock log, with what each of them changed.

    Exit code 1: the log does not name this queue.
    """
    check_queue(queue)
    config = connection.consumer_config()
    with opened_locks(kafka_clients(config), config) as locks:
        locks.read()
        status = locks.status(queue)
        history = [record_json(folded) for folded in locks.history(queue)]
    if status is None:
        _end_unknown(queue, as_json=as_json)
    row = {**lease_json(status), "records": history}
    output.show(row, detail, as_json=as_json)


@command(app)
def release(
    queue: Queue,
    *,
    reason: Reason = "",
    operator: Operator = None,
    yes: bool = option("--yes", "Do not ask, also when it is held.", default=False),
    connection: LockConnection,
    as_json: AsJson = False,
) -> None:
    """End a queue's lease: a consumer that waits for it claims it at once.

    Its holder starts no handler any more when it reads the release; what still runs has a stale token. A member that the
    group still gives the queue to claims it again, under a new token, after a renewal's time. Exit codes: 0 it is
    free (also when it was before), 1 another consumer holds it by now, or the log does not name the queue.
    """
    check_queue(queue)
    signature = signature_of("txlayer locks release", operator=operator, reason=reason)
    config = connection.consumer_config()
    with opened_locks(kafka_clients(config), config) as locks:
        locks.read()
        status = locks.status(queue)
        if status is None:
            _end_unknown(queue, as_json=as_json)
        lease, state = status.lease, status.state
        effect = LeaseEffect.RELEASED
        # One that seems expired may be held, where this machine's clock is ahead of the brokers'.
        is_written = state is not LockState.RELEASED
        if state is LockState.HELD and not yes:
            held = sentence(status)
            output.confirm(f"txlayer locks release: {held},", f"{held}. End this lease?")
        if is_written:
            with saying(f"the release may be written; `txlayer locks show {queue}` says so"):
                effect = locks.release(lease, reason=signature)
            status = locks.status(queue) or status
    # Another person may have released it in the same moment.
    is_over = effect is LeaseEffect.RELEASED or status.state is LockState.RELEASED
    row = {**lease_json(status), "is_written": is_written, "effect": effect.value}
    if as_json:
        output.print_json(row)
    elif not is_written:
        typer.echo(f"no consumer holds {queue}: its lease is released; nothing was written")
    elif is_over:
        typer.echo(printable(f"released {queue}: the lease {lease.token} of {lease.holder} is over"))
    else:
        typer.echo(f"not released: {sentence(status)} by now", err=True)
    if not is_over:
        raise typer.Exit(ExitCode.FINDING)


def _end_unknown(queue: str, *, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo("null")
    typer.echo(f"the lock log does not name {queue}; `txlayer locks list --all` does", err=True)
    raise typer.Exit(ExitCode.FINDING)


# --- rows --------------------------------------------------------------------------------------------------------------


def list_table(rows: Sequence[Json]) -> Table:
    columns: output.Columns = {
        "queue": "queue",
        "state": lambda row: cell(row["state"], _STYLES.get(row["state"], "")),
        "holder": "holder",
        "instance": "instance_id",
        "generation": "generation",
        "token": "token",
        "expires in": _end_text,
    }
    return output.rows_table(rows, columns, right=("generation", "token", "expires in"))


def detail(row: Json) -> RenderableType:
    columns: output.Columns = {
        "offset": "offset",
        "appended": output.times("appended_ms"),
        "kind": "kind",
        "effect": "effect",
        "holder": "holder",
        "generation": "generation",
        "token": "token",
        "reason": "reason",
    }
    right = ("offset", "generation", "token")
    newest = output.rows_table(row["records"], columns, title="newest records", right=right)
    return Group(list_table([row]), newest)


def sentence(status: LeaseStatus) -> str:
    """One queue in words, in one line without control characters."""
    lease, state = status.lease, status.state
    if state is LockState.HELD:
        return printable(
            f"{lease.queue} is held by {lease.holder} (generation {lease.generation}, token {lease.token}), "
            f"renewed {length_text(status.age_ms)} ago"
        )
    return f"no consumer holds {lease.queue}: its lease is {state.value}"


def _end_text(row: Json) -> str:
    if row["state"] == LockState.RELEASED.value:
        return "released"
    left_ms = row["expires_in_ms"]
    return length_text(left_ms) if left_ms >= 0 else f"{length_text(-left_ms)} ago"
