"""`txlayer consumer run|reset`: run a program's consumer until a signal; say where a group goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from txlayer import __version__
from txlayer.adapters.administration import Administration
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.adapters.telemetry import set_up_logging
from txlayer.cli import tables
from txlayer.cli.coordinator import (
    GC_THRESHOLD,
    DryRun,
    LogFormat,
    LogLevel,
    To,
    WatchParent,
    Workers,
    Yes,
    parse_position,
)
from txlayer.cli.handlers import load_object
from txlayer.cli.observing import (
    MetricsHost,
    MetricsPort,
    given_metrics,
    observed,
    ports_of_workers,
)
from txlayer.cli.options import BootstrapServers, ClientSetting, Insecure, Json, client_config
from txlayer.cli.tracing import TracingOption, tracing_of
from txlayer.config import ClientConfig
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.figures import ObservedConsumer
from txlayer.consumer.ordered import ConcurrentConsumer, OrderedConsumer
from txlayer.consumer.service import ConsumerService
from txlayer.coordinator.workers import PROGRAM, StopSignal, supervise
from txlayer.core.fields import WHOLE_MAX
from txlayer.core.ids import check_group
from txlayer.core.progress import Progress
from txlayer.core.progress_codec import StoredProgress, decode
from txlayer.errors import ConfigError, LifecycleError, TopicMismatchError

LOOK_S = 0.5
"""How often the files of a program are looked at with --reload."""

_SAID = frozenset(
    f"TXLAYER_{name}"
    for name in (
        "BOOTSTRAP_SERVERS",
        "CLIENT_SETTINGS",
        "CLIENT_SETTINGS_FILE",
        "IS_INSECURE_ALLOWED",
    )
)
"""How to reach the cluster, said by the environment."""

Place = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:CONSUMER",
        help="An OrderedConsumer, AsyncOrderedConsumer or ConcurrentConsumer with its handlers; found from here, as Python finds modules.",
    ),
]
Reload = Annotated[
    bool,
    typer.Option(
        "--reload",
        help="For development: begin again whenever a .py file below this folder changes.",
    ),
]
Group = Annotated[str, typer.Option("--group", "-g", help="The consumer group.")]
Topic = Annotated[
    list[str], typer.Option("--topic", "-t", help="A topic that it consumes; may be repeated.")
]
TokenAbove = Annotated[
    int | None,
    typer.Option(
        min=0, max=WHOLE_MAX // 2,
        help="Fencing tokens of these topics begin above it: the highest one in your tables, on a new cluster.",
    ),
]  # fmt: skip


def add_to(app: typer.Typer) -> None:
    """Both commands."""
    app.command()(run)
    app.command()(reset)


def run(  # every option is a parameter
    place: Place,
    *,
    workers: Workers = 1,
    reload: Reload = False,
    bootstrap_servers: BootstrapServers = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    tracing: TracingOption = None,
    watch_parent: WatchParent = False,
) -> None:
    """Handle messages until SIGTERM or Ctrl-C; then let handlers end, store what ended, and leave the group.

    A second signal ends it at once. What is given here, or by the environment, wins over what the program says.

    Exit codes: 0 stopped as asked, 2 usage or configuration, 3 no broker, 4 fenced, 5 not authorised, 70 broken invariant.
    """
    set_up_logging(
        log_format=log_format or os.environ.get("TXLAYER_LOG_FORMAT", "text"),
        level=log_level or os.environ.get("TXLAYER_LOG_LEVEL", "INFO"),
    )
    stop = StopSignal()
    metrics = given_metrics(metrics_port, metrics_host)
    if workers > 1 or reload:
        stop.install()
        command = [*PROGRAM, *_without_reload(sys.argv[1:])]
        command += ["--workers", "1", "--watch-parent"]
        if reload:
            raise typer.Exit(_run_again(command, stop, folder=Path.cwd()))
        ports = ports_of_workers(metrics, workers)
        raise typer.Exit(
            supervise(command, worker_count=workers, wait=stop.wait, own_arguments=ports)
        )
    consumer = load_object(
        place,
        ConsumerService,  # type: ignore[type-abstract]  # nobody makes one
        folder=str(Path.cwd()),
    )
    if bootstrap_servers or client_setting or insecure or _SAID.intersection(os.environ):
        own = consumer.config
        given = client_config(
            ClientConfig,
            bootstrap_servers=bootstrap_servers
            or os.environ.get("TXLAYER_BOOTSTRAP_SERVERS")
            or own.bootstrap_servers,
            client_setting=client_setting,
            insecure=insecure or own.is_insecure_allowed,
            beneath=own.client_settings,
        )
        consumer.configure(
            bootstrap_servers=given.bootstrap_servers,
            client_settings=given.client_settings,
            is_insecure_allowed=given.is_insecure_allowed,
        )
    asked = tracing_of(tracing, os.environ)
    if asked.is_on:
        consumer.trace(asked)
    stop.install()
    if watch_parent:
        stop.watch(sys.stdin.buffer)
    # Records and messages end by their reference counts; looking for cycles among those that wait costs much.
    gc.set_threshold(GC_THRESHOLD)
    told = ObservedConsumer(consumer.stats, group=consumer.group, version=__version__)
    with observed(metrics, lambda: told):
        _run_until(consumer, stop)


def _run_until(consumer: ConsumerService[Any, Any], stop: StopSignal) -> None:
    if isinstance(consumer, AsyncOrderedConsumer):
        watch = threading.Thread(target=_stop_when, args=(consumer, stop), daemon=True)
        watch.start()
        asyncio.run(consumer.run())
    elif isinstance(consumer, OrderedConsumer | ConcurrentConsumer):
        consumer.run(should_stop=stop.is_set)


def _stop_when(consumer: ConsumerService[Any, Any], stop: StopSignal) -> None:
    while not stop.wait(LOOK_S):
        pass
    consumer.stop()


# --- development ------------------------------------------------------------------------------------------------------


def _without_reload(arguments: Iterable[str]) -> list[str]:
    return [argument for argument in arguments if argument != "--reload"]


def _run_again(command: list[str], stop: StopSignal, *, folder: Path) -> int:
    """Run a program, and again whenever a file changed, until a signal; the code of the last run that ended by itself."""
    code = 0
    while not stop.is_set():
        seen = file_times(folder)
        process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - our own program
        _wait_for_change(process, stop, lambda seen=seen: file_times(folder) != seen)  # type: ignore[misc]  # a lambda's own argument
        if process.poll() is not None:
            code = process.returncode
            Console(stderr=True).print(f"[yellow]ended with {code};[/] waiting for a change")
            while file_times(folder) == seen and not stop.wait(LOOK_S):
                pass
            continue
        code = _end(process)
    return code


def _wait_for_change(
    process: subprocess.Popen[bytes], stop: StopSignal, is_changed: Callable[[], bool]
) -> None:
    while process.poll() is None and not stop.wait(LOOK_S) and not is_changed():
        pass


def _end(process: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    return process.wait()


def file_times(folder: Path) -> dict[str, int]:
    """When each Python file below a folder was changed; hidden folders are passed over."""
    times = {}
    for path in folder.rglob("*.py"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            with contextlib.suppress(FileNotFoundError):
                times[str(path)] = path.stat().st_mtime_ns
    return times


# --- where a group goes on --------------------------------------------------------------------------------------------


def reset(
    *,
    group: Group,
    topic: Topic,
    to: To,
    bootstrap_servers: BootstrapServers = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    token_above: TokenAbove = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Say where a group goes on with its topics; refused while one of its consumers runs.

    What it had finished beyond the stored offsets, counts of attempts, and parked keys are forgotten. Fencing tokens go on growing;
    where the group's progress is lost, `--token-above` says the highest one that your tables hold.
    """
    config = client_config(
        ClientConfig, bootstrap_servers=bootstrap_servers, client_setting=client_setting, insecure=insecure
    )  # fmt: skip
    check_group(group)
    position = parse_position(to)
    with KafkaAdmin(config) as admin:
        if admin.group(group).members:
            raise LifecycleError(f"{group} has running consumers; stop them first", state="running")
        after = _positions(admin, topic, position)
        before = admin.stored_offsets(group, list(after))
        rows = [
            (t, p, None if (old := before[t, p]) is None else old.offset, offset)
            for (t, p), offset in sorted(after.items())
        ]
        _show(rows, as_json=as_json)
        if dry_run:
            return
        if not yes and not as_json:
            typer.confirm("Store these offsets?", abort=True)
        stored = {
            place: StoredOffset(offset, _metadata(offset, before[place], token_above))
            for place, offset in after.items()
        }
        admin.store_offsets(group, stored)


def _metadata(offset: int, before: StoredOffset | None, token_above: int | None) -> str:
    """What is stored with a new offset: the highest token so far, or that one, and nothing else."""
    found = None if before is None else decode(before.offset, before.metadata)
    known = found.token if isinstance(found, StoredProgress) else None
    tokens = [token for token in (known, token_above) if token is not None]
    return Progress(offset).snapshot(token=max(tokens)).metadata if tokens else ""


def _positions(
    admin: Administration, topics: list[str], position: str | int
) -> dict[TopicPartition, int]:
    places: list[TopicPartition] = []
    for topic in topics:
        count = admin.partition_count(topic)
        if count is None:
            raise TopicMismatchError("no such topic", topic=topic, expected="one", found="none")
        places += [(topic, p) for p in range(count)]
    if position == "earliest":
        return admin.start_offsets(places)
    if position == "latest":
        return admin.end_offsets(places)
    if not isinstance(position, int):
        raise ConfigError(name="--to", value=position, expected="earliest, latest or a time")
    return admin.offsets_at(places, at_ms=position)


def _show(rows: list[tuple[str, int, int | None, int]], *, as_json: bool) -> None:
    columns = ("topic", "partition", "before", "after")
    if as_json:
        typer.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]))
        return
    table = tables.table(*columns, title="offsets")
    for row in rows:
        table.add_row(*("none" if v is None else str(v) for v in row))
    tables.console().print(table)
