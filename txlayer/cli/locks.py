"""`txlayer locks list|show|release`: which consumer holds which queue, and an operator's word that ends a lease."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from txlayer.adapters.connect import connect_consumer
from txlayer.adapters.telemetry import printable
from txlayer.cli import lock_rows
from txlayer.cli.exits import ExitCode
from txlayer.cli.operators import signed_reason
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Json,
    Namespace,
    client_config,
)
from txlayer.cli.tables import console
from txlayer.config import ConsumerConfig, milliseconds, parse_duration
from txlayer.consumer.locks_by_hand import LocksByHand, LockState
from txlayer.core.leases import LeaseEffect
from txlayer.core.lock_codec import parse_queue
from txlayer.errors import UsageError

app = typer.Typer(
    no_args_is_help=True,
    help="Which consumer holds which queue (a topic-partition of a consumer group), and ending a lease by hand.",
)

Queue = Annotated[
    str, typer.Argument(metavar="GROUP/TOPIC/PARTITION", help="A queue.", show_default=False)
]
Expiry = Annotated[
    str | None,
    typer.Option(
        "--lease-expiry",
        metavar="60s",
        help="The consumers' setting of this name; default TXLAYER_LEASE_EXPIRY, then 60s.",
        show_default=False,
    ),
]


@app.command("list")
def list_locks(
    *,
    group: Annotated[
        str | None,
        typer.Option("--group", help="Of this consumer group alone.", show_default=False),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Of this topic alone.", show_default=False)
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="Also leases that ended, as far as the log tells.")
    ] = False,
    lease_expiry: Expiry = None,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show who holds which queue, since which claim, and for how long without a renewal.

    Ages are told by this machine's clock against the brokers'.
    """
    config = _config(bootstrap_servers, namespace, client_setting, insecure, lease_expiry)
    with _by_hand(config) as locks:
        found = [lock_rows.standing_json(s) for s in locks.read()]
    rows = [
        row
        for row in found
        if group in (None, row["group"])
        and topic in (None, row["topic"])
        and (is_all or row["state"] == LockState.HELD.value)
    ]
    if as_json:
        typer.echo(json.dumps(rows))
    elif rows:
        console().print(lock_rows.list_table(rows))
    else:
        of = "".join(
            f" of {what} {name}" for what, name in (("group", group), ("topic", topic)) if name
        )
        typer.echo(f"nobody holds a queue{of} in {config.namespace}")


@app.command()
def show(
    queue: Queue,
    *,
    lease_expiry: Expiry = None,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show a queue's lease and its newest records in the lock log, with what each of them changed.

    Exit code 1: the log does not tell of this queue.
    """
    _check_queue(queue)
    config = _config(bootstrap_servers, namespace, client_setting, insecure, lease_expiry)
    with _by_hand(config) as locks:
        locks.read()
        standing = locks.standing(queue)
        history = [lock_rows.record_json(folded) for folded in locks.history(queue)]
    if standing is None:
        _unknown(queue, as_json=as_json)
        raise typer.Exit(ExitCode.FINDING)
    row = {**lock_rows.standing_json(standing), "records": history}
    if as_json:
        typer.echo(json.dumps(row))
    else:
        console().print(lock_rows.detail(row))


@app.command()
def release(
    queue: Queue,
    *,
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="TEXT", help="Why; recorded.", show_default=False),
    ] = "",
    operator: Annotated[
        str | None,
        typer.Option(
            "--operator", metavar="NAME", help="Who; default USER@host.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, also when it is held.")] = False,
    lease_expiry: Expiry = None,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """End a queue's lease: whoever waits for it claims it at once.

    Its holder starts no handler any more when it reads the release; what still runs has a stale token. A member that the
    group still gives the queue to claims it again, under a new token, after a renewal's time. Exit codes: 0 nobody
    holds it (also when nobody did before), 1 somebody else does by now, or the log does not tell of the queue.
    """
    _check_queue(queue)
    signed = signed_reason("txlayer locks release", operator=operator, reason=reason)
    config = _config(bootstrap_servers, namespace, client_setting, insecure, lease_expiry)
    with _by_hand(config) as locks:
        locks.read()
        standing = locks.standing(queue)
        if standing is None:
            _unknown(queue, as_json=as_json)
            raise typer.Exit(ExitCode.FINDING)
        lease, state = standing.lease, standing.state
        effect = LeaseEffect.RELEASED
        is_written = state is LockState.HELD or (yes and state is LockState.EXPIRED)
        if state is LockState.HELD and not yes:
            _confirm(lock_rows.sentence(standing))
        if is_written:
            effect = locks.release(lease, reason=signed)
            standing = locks.standing(queue) or standing
    row = {**lock_rows.standing_json(standing), "is_written": is_written, "effect": effect.value}
    if as_json:
        typer.echo(json.dumps(row))
    elif not is_written:
        typer.echo(f"nobody holds {queue}: its lease is {state.value}; nothing was written")
    elif effect is LeaseEffect.RELEASED:
        typer.echo(
            printable(f"released {queue}: the lease {lease.token} of {lease.holder} is over")
        )
    else:
        typer.echo(f"not released: {lock_rows.sentence(standing)} by now", err=True)
    if effect is not LeaseEffect.RELEASED:
        raise typer.Exit(ExitCode.FINDING)


def _confirm(sentence: str) -> None:
    """Ask a person who sees what would happen.

    Raises:
        UsageError: nobody is there to be asked. Nothing was written.
        typer.Abort: the answer was no. Nothing was written.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"txlayer locks release: {sentence}, and nobody to ask; say --yes")
    typer.confirm(f"{sentence}. End this lease?", abort=True, err=True)


def _check_queue(queue: str) -> None:
    try:
        parse_queue(queue)
    except ValueError as exc:
        raise UsageError(f"{queue[:80]!r} names no queue: GROUP/TOPIC/PARTITION") from exc


def _unknown(queue: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo("null")
    typer.echo(f"the lock log does not tell of {queue}; `txlayer locks list --all` does", err=True)


def _config(
    bootstrap_servers: str | None,
    namespace: str | None,
    client_setting: list[str] | None,
    insecure: bool,  # noqa: FBT001 - an option, passed on
    lease_expiry: str | None,
) -> ConsumerConfig:
    expiry = None if lease_expiry is None else parse_duration("--lease-expiry", lease_expiry)
    return client_config(
        ConsumerConfig, bootstrap_servers=bootstrap_servers, namespace=namespace,
        client_setting=client_setting, insecure=insecure, lease_expiry=expiry,
        lease_renewal=None if expiry is None else expiry / 3,
    )  # fmt: skip


@contextmanager
def _by_hand(config: ConsumerConfig) -> Iterator[LocksByHand]:
    connections = connect_consumer(config)
    try:
        locks = LocksByHand(
            connections, topics=config.topics, expiry_ms=milliseconds(config.lease_expiry)
        )
        try:
            yield locks
        finally:
            locks.close()
    finally:
        connections.close()
