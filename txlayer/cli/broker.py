"""`txlayer broker`: a real Kafka on this machine, without Docker and without an installed Java."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.broker import BackgroundCluster, ClusterStatus, WantedCluster
from txlayer.adapters.kafka.local.jars import BROKER
from txlayer.adapters.kafka.local.runtime import Runtime, prepare_runtime
from txlayer.cli import output
from txlayer.cli.exits import ExitCode
from txlayer.cli.output import fetch_progress
from txlayer.config import parse_settings

app = typer.Typer(
    help="A real Apache Kafka on this machine: no Docker, no installed Java.", no_args_is_help=True
)

Brokers = Annotated[
    int | None,
    typer.Option(
        help="1 or 3 brokers.  [default: what the folder holds, else 1]", show_default=False
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        min=1024, max=65533,
        help="Port of the first broker, the others follow.  [default: the folder's last one, else 9092]",
        show_default=False,
    ),
]  # fmt: skip
Data = Annotated[
    Path | None,
    typer.Option(
        help="Data folder.  [default: a folder of the user's cache]",
        show_default=False,
        file_okay=False,
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", metavar="NAME=VALUE", help="A further setting of the broker; may be repeated."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def start(
    *,
    brokers: Brokers = None,
    port: Port = None,
    data: Data = None,
    properties: Properties = None,
    as_json: AsJson = False,
) -> None:
    """Start in the background and wait until it is ready; does nothing when it is running."""
    config = LocalConfig.from_environ(os.environ)
    wanted = _wanted(config, brokers=brokers, port=port, properties=properties)
    _show(BackgroundCluster(_folder(config, data)).start(wanted), as_json=as_json)


@app.command()
def run(
    *,
    brokers: Brokers = None,
    port: Port = None,
    data: Data = None,
    properties: Properties = None,
    as_json: AsJson = False,
) -> None:
    """Run in the foreground until Ctrl-C or SIGTERM."""
    config = LocalConfig.from_environ(os.environ)
    wanted = _wanted(config, brokers=brokers, port=port, properties=properties)
    signal.signal(signal.SIGTERM, _end_cleanly)
    signal.signal(signal.SIGINT, _end_cleanly)
    BackgroundCluster(_folder(config, data)).run(
        wanted, on_ready=lambda status: _show(status, as_json=as_json)
    )


@app.command()
def status(*, data: Data = None, as_json: AsJson = False) -> None:
    """Say what runs. Exit code 0: running; 1: not (all) running; 3: running but not answering."""
    config = LocalConfig.from_environ(os.environ)
    folder = _folder(config, data)
    found = BackgroundCluster(folder).status()
    if found is None:
        _say(
            as_json=as_json,
            text=f"not running: no data in {folder}",
            data=str(folder),
            state="absent",
        )
        raise typer.Exit(ExitCode.FINDING)
    _show(found, as_json=as_json)
    if not found.is_running:
        raise typer.Exit(ExitCode.FINDING)
    if not found.is_answering:
        raise typer.Exit(ExitCode.UNAVAILABLE)


@app.command()
def stop(*, data: Data = None, as_json: AsJson = False) -> None:
    """Stop cleanly; the data stay."""
    config = LocalConfig.from_environ(os.environ)
    count = BackgroundCluster(_folder(config, data)).stop()
    _say(as_json=as_json, text=f"stopped {count}" if count else "was not running", stopped=count)


@app.command()
def wipe(
    *,
    data: Data = None,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop, and remove the data for ever."""
    config = LocalConfig.from_environ(os.environ)
    folder = _folder(config, data)
    if not is_sure:
        typer.confirm(f"Remove all topics and messages in {folder}?", abort=True)
    was_there = BackgroundCluster(folder).wipe()
    _say(as_json=as_json, text="removed" if was_there else "nothing to remove", removed=was_there)


@app.command()
def fetch(*, as_json: AsJson = False) -> None:
    """Bring Kafka's jars and find a Java now, so that a later start needs no network."""
    with fetch_progress(BROKER) as progress:
        runtime = prepare_runtime(LocalConfig.from_environ(os.environ), progress=progress)
    _say(
        as_json=as_json,
        text=f"Kafka {runtime.kafka_version} in {runtime.command.jar_folder}, Java {runtime.command.java}",
        kafka_version=runtime.kafka_version,
        jar_folder=str(runtime.command.jar_folder),
        java=str(runtime.command.java),
    )


def _folder(config: LocalConfig, data: Path | None) -> Path:
    return (data or config.home / "broker").resolve()


def _wanted(
    config: LocalConfig, *, brokers: int | None, port: int | None, properties: list[str] | None
) -> WantedCluster:
    def runtime() -> Runtime:
        with fetch_progress(BROKER) as progress:
            return prepare_runtime(config, progress=progress)

    return WantedCluster(
        runtime=runtime,
        broker_count=brokers,
        port=port,
        properties=parse_settings("--property", properties or []),
    )


def _end_cleanly(_number: int, _frame: FrameType | None) -> None:
    # Leaves the wait in `run`, whose end stops the brokers; to be stopped is what `run` is for.
    raise SystemExit(ExitCode.GOOD)


def _show(found: ClusterStatus, *, as_json: bool) -> None:
    cluster = found.cluster
    if as_json:
        _print_json(
            {
                "state": _state(found),
                "bootstrap_servers": cluster.bootstrap_servers,
                "kafka_version": cluster.kafka_version,
                "cluster_id": cluster.cluster_id,
                "brokers": [
                    {
                        "id": n.node.node_id,
                        "address": n.node.address,
                        "pid": n.pid,
                        "log": str(n.log_file),
                    }
                    for n in found.nodes
                ],
            }
        )
        return
    typer.echo(f"{_state(found)}: {cluster.bootstrap_servers} (Kafka {cluster.kafka_version})")
    table = output.table("broker", "address", "process", "log")
    for n in found.nodes:
        table.add_row(
            *map(output.cell, (n.node.node_id, n.node.address, n.pid or "not running", n.log_file))
        )
    output.console().print(table)


def _state(found: ClusterStatus) -> str:
    if found.is_running:
        return "running" if found.is_answering else "not answering"
    return "partly running" if found.running_count else "not running"


def _say(*, as_json: bool, text: str, **fields: object) -> None:
    if as_json:
        _print_json(fields)
    else:
        typer.echo(text)


def _print_json(fields: dict[str, object]) -> None:
    typer.echo(json.dumps(fields))
