"""`txlayer broker`: a real Kafka on this machine, without Docker and without an installed Java."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.runtime import Runtime, prepare_runtime
from txlayer.adapters.kafka.local.server import BackgroundBroker, BrokerStatus
from txlayer.cli import output
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import AsJson, Yes, command, declared, option
from txlayer.config import parse_settings

app = typer.Typer(help="A real Apache Kafka on this machine: no Docker, no installed Java.", no_args_is_help=True)

Port = Annotated[
    int | None,
    declared("--port", "Port of the broker.  [default: the folder's last one, else 9092]", min=1024, max=65535),
]
Data = Annotated[
    Path | None, declared("--data", "Data folder.  [default: a folder of the user's cache]", file_okay=False)
]


@command(app)
def start(
    *,
    port: Port = None,
    data: Data = None,
    properties: list[str] | None = option(
        "--property", "A further setting of the broker; may be repeated.", "NAME=VALUE"
    ),
    as_json: AsJson = False,
) -> None:
    """Start in the background and wait until it is ready; does nothing when it is running."""
    started = BackgroundBroker(_folder(data)).start(
        _runtime, port=port, properties=parse_settings("--property", properties or [])
    )
    _show(started, as_json=as_json)


@command(app)
def status(*, data: Data = None, as_json: AsJson = False) -> None:
    """Say what runs. Exit code 0: running; 1: not running; 3: running but not answering."""
    folder = _folder(data)
    found = BackgroundBroker(folder).status()
    if found is None:
        _say(f"not running: no data in {folder}", as_json=as_json, data=str(folder), state="absent")
        raise typer.Exit(ExitCode.FINDING)
    _show(found, as_json=as_json)
    if found.pid is None:
        raise typer.Exit(ExitCode.FINDING)
    if not found.is_answering:
        raise typer.Exit(ExitCode.UNAVAILABLE)


@command(app)
def stop(*, data: Data = None, as_json: AsJson = False) -> None:
    """Stop cleanly; the data stay."""
    count = BackgroundBroker(_folder(data)).stop()
    _say(f"stopped {count}" if count else "was not running", as_json=as_json, stopped=count)


@command(app)
def wipe(*, data: Data = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Stop, and remove the data for ever."""
    folder = _folder(data)
    if not yes:
        output.ask(f"Remove all topics and messages in {folder}?")
    was_there = BackgroundBroker(folder).wipe()
    _say("removed" if was_there else "nothing to remove", as_json=as_json, removed=was_there)


@command(app)
def fetch(*, as_json: AsJson = False) -> None:
    """Bring Kafka's jars and find a Java now, so that a later start needs no network."""
    runtime = _runtime()
    _say(
        f"Kafka {runtime.kafka_version} in {runtime.jar_folder}, Java {runtime.java}",
        as_json=as_json,
        kafka_version=runtime.kafka_version,
        jar_folder=str(runtime.jar_folder),
        java=str(runtime.java),
    )


def _folder(data: Path | None) -> Path:
    return (data or LocalConfig.from_environ(os.environ).home / "broker").resolve()


def _runtime() -> Runtime:
    return prepare_runtime(LocalConfig.from_environ(os.environ), say=partial(typer.echo, err=True))


def _show(found: BrokerStatus, *, as_json: bool) -> None:
    server = found.server
    state = "not running" if found.pid is None else "running" if found.is_answering else "not answering"
    row = {"id": 1, "address": server.address, "pid": found.pid, "log": str(found.log_file)}
    body = {
        "state": state,
        "bootstrap_servers": server.address,
        "kafka_version": server.kafka_version,
        "cluster_id": server.cluster_id,
        "brokers": [row],
    }
    columns: output.Columns = {
        "broker": "id",
        "address": "address",
        "process": lambda row: row["pid"] or "not running",
        "log": "log",
    }
    said = f"{state}: {server.address} (Kafka {server.kafka_version})"
    output.show(body, lambda body: [said, output.rows_table(body["brokers"], columns)], as_json=as_json)


def _say(text: str, *, as_json: bool, **fields: object) -> None:
    output.show(fields, lambda _: text, as_json=as_json)
