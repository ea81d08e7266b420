"""`txlayer topics plan|apply|check`: the topics of a namespace compared with what they must be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from txlayer.adapters.topic_files import read_topic_files
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Json,
    Namespace,
    client_config,
)
from txlayer.config import ClientConfig
from txlayer.core.topicspec import AlterSetting, Change, CreateTopic, Difference

app = typer.Typer(
    no_args_is_help=True,
    help="Compare a namespace's topics with what they must be, and create them; never deletes, never shrinks.",
)

Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        min=1,
        help="Partitions of half, op and doubt, fixed for life; default: what the namespace has, 8 for a new one.",
        show_default=False,
    ),
]
ReplicationFactor = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        min=1,
        help="Replicas of new topics; from 3 on, 2 must be in sync; default: the broker's own.",
        show_default=False,
    ),
]


@app.command()
def plan(
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    partitions: Partitions = None,
    replication_factor: ReplicationFactor = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show what `apply` would do; exit code 1 when something differs that only a person can change."""
    config = client_config(
        ClientConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    changes = _planned(config, partitions, replication_factor)
    _show(changes, config=config, as_json=as_json)
    if _by_hand(changes):
        raise typer.Exit(ExitCode.FINDING)


@app.command()
def apply(
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    partitions: Partitions = None,
    replication_factor: ReplicationFactor = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Create missing topics and alter settings; safe to repeat; exit code 1 when something is left to a person."""
    from txlayer.adapters.kafka.admin import KafkaAdmin
    from txlayer.adapters.namespace import Namespace as KafkaNamespace

    config = client_config(
        ClientConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    with KafkaAdmin(config) as admin:
        applied = KafkaNamespace(admin, topics=config.topics, files=read_topic_files()).apply(
            partition_count=partitions, replication_factor=replication_factor
        )
    _show([*applied.done, *applied.left], config=config, as_json=as_json)
    if applied.left:
        raise typer.Exit(ExitCode.FINDING)


@app.command()
def check(
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    partitions: Partitions = None,
    replication_factor: ReplicationFactor = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show what is missing or different; exit code 1 when anything is."""
    config = client_config(
        ClientConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    changes = _planned(config, partitions, replication_factor)
    _show(changes, config=config, as_json=as_json)
    if changes:
        raise typer.Exit(ExitCode.FINDING)


def _planned(
    config: ClientConfig, partitions: int | None, replication_factor: int | None
) -> list[Change]:
    # Here, so that `txlayer --help` does not load the Kafka client.
    from txlayer.adapters.kafka.admin import KafkaAdmin
    from txlayer.adapters.namespace import Namespace as KafkaNamespace

    with KafkaAdmin(config) as admin:
        return KafkaNamespace(admin, topics=config.topics, files=read_topic_files()).plan(
            partition_count=partitions, replication_factor=replication_factor
        )


def _by_hand(changes: Sequence[Change]) -> list[Difference]:
    return [change for change in changes if isinstance(change, Difference)]


def _show(changes: Sequence[Change], *, config: ClientConfig, as_json: bool) -> None:
    if as_json:
        rows = [{"change": type(change).__name__, **asdict(change)} for change in changes]
        typer.echo(json.dumps({"namespace": config.namespace, "changes": rows}, indent=2))
        return
    if not changes:
        typer.echo(f"{config.namespace}: every topic is as it must be")
        return
    table = Table("topic", "what", "is", "must be", "why", title=f"namespace {config.namespace}")
    for change in changes:
        table.add_row(*_row(change))
    Console().print(table)


def _row(change: Change) -> tuple[str, str, str, str, str]:
    match change:
        case CreateTopic():
            replicas = change.replication_factor or "the broker's"
            settings = "".join(f"\n{name}={value}" for name, value in change.settings.items())
            must = f"{change.partition_count} partitions, {replicas} replicas{settings}"
            return change.topic, "create", "missing", must, change.why
        case AlterSetting():
            return (
                change.topic,
                f"alter {change.setting}",
                change.found or "",
                change.wanted,
                change.why,
            )
        case Difference():
            what = f"{change.what} (cannot be changed here)"
            return change.topic, what, change.found, change.wanted, change.why
