"""`txlayer coordinator run|status|reset`."""

from __future__ import annotations

import gc
import json
import os
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from txlayer import __version__
from txlayer.adapters.administration import GroupMember
from txlayer.adapters.connect import connect_coordinator
from txlayer.adapters.coordinator_status import (
    CoordinatorStatus,
    PartitionStatus,
    read_status,
)
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.namespace import Namespace as KafkaNamespace
from txlayer.adapters.namespace import OffsetReset, StartPosition
from txlayer.adapters.telemetry import set_up_logging
from txlayer.adapters.topic_files import read_topic_files
from txlayer.cli import tables
from txlayer.cli.exits import ExitCode
from txlayer.cli.observing import (
    MetricsHost,
    MetricsPort,
    given_metrics,
    observed,
    ports_of_workers,
)
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Json,
    Namespace,
    client_config,
)
from txlayer.cli.tracing import TracingOption, tracing_of
from txlayer.config import ClientConfig, CoordinatorConfig, parse_duration
from txlayer.coordinator.policies import check_policies
from txlayer.coordinator.traced import make_coordinator
from txlayer.coordinator.view import ObservedCoordinator
from txlayer.coordinator.workers import PROGRAM, StopSignal, supervise
from txlayer.core.doctor_findings import counted

GC_THRESHOLD = 100_000
"""New objects between two looks of Python's garbage collector; its default is 700."""

_LIBRARY_NAME = "rdkafka"

app = typer.Typer(
    no_args_is_help=True,
    help="Forward what was committed; look at the coordinators; say where they begin.",
)

LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        help="text or json; default TXLAYER_LOG_FORMAT, then text.",
        show_default=False,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        help="DEBUG, INFO, WARNING or ERROR; default TXLAYER_LOG_LEVEL, then INFO.",
        show_default=False,
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers", min=1, max=64, help="Processes; the group shares the partitions among them."
    ),
]
TargetTopic = Annotated[
    list[str] | None,
    typer.Option(
        "--target-topic",
        metavar="PATTERN",
        help="Forward only to topics of this pattern (orders, shop.*); may be repeated. None: to every topic that is no system topic.",
        show_default=False,
    ),
]
DoubtAfter = Annotated[
    str | None,
    typer.Option(
        "--doubt-after",
        metavar="60s",
        help="Age at which an undecided transaction moves to the doubt topic.",
        show_default=False,
    ),
]
StartTimeout = Annotated[
    str | None,
    typer.Option(
        "--start-timeout",
        metavar="60s",
        help="How long to wait for a broker at the start.",
        show_default=False,
    ),
]
WatchParent = Annotated[
    bool, typer.Option("--watch-parent", hidden=True, help="Stop when standard input ends.")
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="earliest|latest|TIME",
        help="Where to begin; TIME as 2026-11-21T10:00:00+00:00.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be stored, store nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command()
def run(  # every option is a parameter
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    workers: Workers = 1,
    target_topic: TargetTopic = None,
    doubt_after: DoubtAfter = None,
    start_timeout: StartTimeout = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    tracing: TracingOption = None,
    watch_parent: WatchParent = False,
) -> None:
    """Forward committed messages until SIGTERM or Ctrl-C.

    Exit codes: 0 stopped as asked, 2 usage or configuration, 3 no broker, 4 fenced, 5 not authorised, 70 broken invariant.
    """
    set_up_logging(
        log_format=log_format or os.environ.get("TXLAYER_LOG_FORMAT", "text"),
        level=log_level or os.environ.get("TXLAYER_LOG_LEVEL", "INFO"),
    )
    config = client_config(
        CoordinatorConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
        target_topics=tuple(target_topic) if target_topic else None,
        doubt_after=parse_duration("--doubt-after", doubt_after) if doubt_after else None,
        start_timeout=parse_duration("--start-timeout", start_timeout) if start_timeout else None,
    )
    check_policies(config)  # a wrong setting ends here, before any worker starts
    metrics = given_metrics(metrics_port, metrics_host)
    stop = StopSignal()
    stop.install()
    if workers > 1:
        # The same command line, once per worker: a later --workers wins, everything else is as it was said.
        command = [*PROGRAM, *sys.argv[1:], "--workers", "1", "--watch-parent"]
        code = supervise(
            command, worker_count=workers, wait=stop.wait, own_arguments=ports_of_workers(metrics, workers),
        )  # fmt: skip
        raise typer.Exit(code)
    if watch_parent:
        stop.watch(sys.stdin.buffer)
    if not config.target_topics:
        Console(stderr=True).print(
            "[yellow]warning:[/] no --target-topic: whoever may write the half topic may send to every topic that this "
            "coordinator may write"
        )
    # Records and transactions end by their reference counts. Looking for cycles among those that live took a tenth of the
    # CPU (bench/README.md); what an error leaves behind is still found.
    gc.set_threshold(GC_THRESHOLD)
    coordinator = make_coordinator(
        config, connect_coordinator(config), tracing=tracing_of(tracing, os.environ)
    )
    with observed(metrics, lambda: ObservedCoordinator(coordinator.view, version=__version__)):
        coordinator.run(should_stop=stop.is_set)


@app.command()
def status(
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Group, members, lag and positions, from any machine; exit code 1 when no coordinator is a member."""
    config = client_config(
        ClientConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    with KafkaAdmin(config) as admin:
        found = read_status(admin, config.topics)
    _show_status(found, as_json=as_json)
    if not found.members:
        raise typer.Exit(ExitCode.FINDING)


@app.command()
def reset(
    *,
    to: To,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Say where the coordinators begin; refused while one is running."""
    config = client_config(
        ClientConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    position = parse_position(to)
    with KafkaAdmin(config) as admin:
        kafka = KafkaNamespace(admin, topics=config.topics, files=read_topic_files())
        changes = kafka.reset_offsets(to=position, is_dry_run=True)
        if not dry_run:
            if not yes and not as_json:
                _show_reset(changes, as_json=False)
                typer.confirm(
                    "Store these offsets? Transactions that are open before them stay undecided.",
                    abort=True,
                )
            changes = kafka.reset_offsets(to=position)
    _show_reset(changes, as_json=as_json)


def parse_position(text: str) -> StartPosition:
    """What `--to` names: earliest, latest, or milliseconds since 1970.

    Raises:
        typer.BadParameter: it is none of them.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        at = datetime.fromisoformat(text)
    except ValueError as exc:
        raise typer.BadParameter(
            f"{text!r} is neither earliest, latest nor a time such as 2026-11-21T10:00:00+00:00"
        ) from exc
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    if at.timestamp() < 0:  # Kafka takes numbers below 0 for other things than times
        raise typer.BadParameter(f"{text!r} is before 1970; earliest is what is meant")
    return int(at.timestamp() * 1000)


def _show_status(found: CoordinatorStatus, *, as_json: bool) -> None:
    total_lag = sum(p.op_lag for p in found.partitions)
    if as_json:
        body = found._asdict() | {
            "op_lag": total_lag,
            "members": [m._asdict() for m in found.members],
            "partitions": [
                p._asdict() | {"op_lag": p.op_lag, "half_span": p.half_span}
                for p in found.partitions
            ],
        }
        typer.echo(json.dumps(body))
        return
    tables.console().print(status_table(found))


def status_table(found: CoordinatorStatus) -> tables.Parted:
    """Positions and owners of every partition; in a narrow terminal those of op, then those of half."""
    owners = {p: owner_name(m) for m in found.members for _, p in m.partitions}
    columns: dict[str, list[RenderableType]] = {
        "partition": [_number(p.partition) for p in found.partitions],
        "op next": [_number(p.op_next) for p in found.partitions],
        "op end": [_number(p.op_end) for p in found.partitions],
        "op lag": [_number(p.op_lag) for p in found.partitions],
        "low water": [_number(p.low_water) for p in found.partitions],
        "half end": [_number(p.half_end) for p in found.partitions],
        "read again": [_number(p.half_span) for p in found.partitions],
        "doubt": [_doubt(p) for p in found.partitions],
        "owner": [tables.cell(owners.get(p.partition, "nobody")) for p in found.partitions],
    }
    lag = sum(p.op_lag for p in found.partitions)
    return tables.Parted(
        columns,
        parts=(
            ("partition", "op next", "op end", "op lag", "owner"),
            ("partition", "low water", "half end", "read again", "doubt"),
        ),
        title=f"{found.group}: {found.state}, {counted(len(found.members), 'member')}, op lag {lag}",
        right=set(columns) - {"owner"},
    )


def owner_name(member: GroupMember) -> str:
    """A member, so that two of them differ: its host and what the group drew for it; before it the name that somebody gave it.

    Clients of one library have one name unless somebody gives them others (`client.id`).
    """
    drawn = member.member_id.removeprefix(f"{member.client_id}-")[:8]
    given = "" if member.client_id in ("", _LIBRARY_NAME) else f"{member.client_id}@"
    return f"{given}{member.host}/{drawn}"


def _number(value: int | None) -> str:
    return "none" if value is None else str(value)


def _doubt(p: PartitionStatus) -> str:
    return "" if p.doubt_low is None else f"{p.doubt_low}-{p.doubt_end}"


def _show_reset(changes: dict[tuple[str, int], OffsetReset], *, as_json: bool) -> None:
    rows = [
        (topic, p, None if c.before is None else c.before.offset, c.after.offset)
        for (topic, p), c in sorted(changes.items())
    ]
    if as_json:
        typer.echo(
            json.dumps(
                [
                    dict(zip(("topic", "partition", "before", "after"), row, strict=True))
                    for row in rows
                ]
            )
        )
        return
    table = tables.table("topic", "partition", "before", "after", title="offsets")
    for row in rows:
        table.add_row(*("none" if v is None else str(v) for v in row))
    tables.console().print(table)
