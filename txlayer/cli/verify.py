"""`txlayer verify`: a window of the topics read by plain clients, and what it proves of P1 to P6."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from txlayer.adapters.verification import Telling, Verification
from txlayer.adapters.verification import verify as verify_window
from txlayer.adapters.window import Asked
from txlayer.cli import tables, verify_rows
from txlayer.cli.bars import two_step_progress
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Json,
    Namespace,
    client_config,
)
from txlayer.config import ClientConfig, milliseconds, parse_duration
from txlayer.errors import UsageError

Since = Annotated[
    str,
    typer.Option(
        "--since", metavar="2h|TIME", help="Judge transactions that were stored since then."
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="10m|TIME",
        help="Judge those that were stored before that; default: now. What became of them is read up to now.",
        show_default=False,
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topics",
        metavar="TOPIC",
        help="Real topics to read; may be repeated. Default: those that the half messages name.",
        show_default=False,
    ),
]
Grace = Annotated[
    str,
    typer.Option("--grace", metavar="60s", help="What is younger may still be on its way."),
]
OverdueAfter = Annotated[
    str,
    typer.Option(
        "--overdue-after",
        metavar="15m",
        help="Report what is undecided or held for longer, after its immunity.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show so many findings.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        file_okay=False,
        exists=True,
        help="Where its file stands while it runs, some 100 bytes per record; default: the system's own for such files.",
        show_default=False,
    ),
]


def verify(
    *,
    since: Since = "2h",
    until: Until = None,
    topics: Topics = None,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    grace: Grace = "60s",
    overdue_after: OverdueAfter = "15m",
    limit: Limit = 100,
    folder: Folder = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Prove or refute P1 to P6 for the transactions of a window; exit code 1 when a promise is refuted.

    It reads with plain consumers and changes nothing. docs/howto/verify.md explains every line.
    """
    config = client_config(
        ClientConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    asked = make_asked(
        since=since, until=until, topics=topics, grace=grace, overdue_after=overdue_after,
        now_ms=int(time.time() * 1000),
    )  # fmt: skip
    found = _verified(config, asked, folder)
    if as_json:
        typer.echo(json.dumps(verify_rows.verification_json(found, asked=asked, config=config)))
    else:
        console = tables.console()
        for part in verify_rows.verification_tables(found, config=config, limit=limit):
            console.print(part)
    if found.proof.is_refuted:
        raise typer.Exit(ExitCode.FINDING)


def make_asked(
    *,
    since: str,
    until: str | None,
    topics: list[str] | None,
    grace: str,
    overdue_after: str,
    now_ms: int,
) -> Asked:
    """The options as the window that they mean.

    Raises:
        ConfigError: a length of time has the wrong form.
        UsageError: the window ends before it begins. Nothing was read.
    """
    since_ms = _instant("--since", since, now_ms=now_ms)
    until_ms = None if until is None else _instant("--until", until, now_ms=now_ms)
    if until_ms is not None and until_ms <= since_ms:
        raise UsageError(f"the window ends before it begins: --since {since} --until {until}")
    return Asked(
        since_ms, until_ms, tuple(sorted(set(topics or ()))),
        milliseconds(parse_duration("--grace", grace)),
        milliseconds(parse_duration("--overdue-after", overdue_after)),
    )  # fmt: skip


def _instant(option: str, text: str, *, now_ms: int) -> int:
    at_ms = verify_rows.parse_time(text)
    if at_ms is None:
        at_ms = now_ms - milliseconds(parse_duration(option, text))
    return max(at_ms, 0)  # Kafka knows no earlier time


def _verified(config: ClientConfig, asked: Asked, folder: Path | None) -> Verification:
    # Here, so that `txlayer --help` does not load the Kafka client.
    from txlayer.adapters.kafka.admin import KafkaAdmin
    from txlayer.adapters.kafka.client import PlainReader

    with two_step_progress("reading", "judging") as (read, judged):
        return verify_window(
            config,
            asked,
            make_admin=lambda: KafkaAdmin(config),
            make_reader=lambda isolation: PlainReader(config, isolation=isolation, is_sparing=True),
            folder=folder,
            telling=Telling(read, judged),
        )
