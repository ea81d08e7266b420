"""`txlayer coordinator run|status|reset`."""

import gc
import sys

import typer
from rich.console import Console, RenderableType

from txlayer import __version__
from txlayer.adapters.connect import connect_coordinator
from txlayer.adapters.ports import Administration, GroupMember
from txlayer.adapters.readers import log_time
from txlayer.cli import output, services
from txlayer.cli.exits import ExitCode, saying
from txlayer.cli.options import (
    AsJson,
    Connection,
    DryRun,
    To,
    Yes,
    administration,
    command,
    current_ms,
    duration,
    option,
    parse_start,
)
from txlayer.config import ClientConfig, CoordinatorConfig
from txlayer.coordinator.loop import make_coordinator
from txlayer.coordinator.metrics import ObservedCoordinator
from txlayer.coordinator.recovery import check_policies
from txlayer.errors import RetriableError
from txlayer.operate.doctor import counted
from txlayer.operate.topics import CoordinatorStatus, GroupReset, plan_reset, read_status, status_json

_LIBRARY_NAME = "rdkafka"

app = typer.Typer(
    no_args_is_help=True, help="Forward what was committed; look at the coordinators; say where they begin."
)


@command(app)
def run(  # every option is a parameter
    *,
    workers: services.Workers = 1,
    target_topic: list[str] | None = option(
        "--target-topic",
        "Forward only to topics of this pattern (orders, shop.*); may be repeated. None: to every topic that is no system topic.",
        "PATTERN",
    ),
    doubt_after: str | None = option(
        "--doubt-after", "Age at which an undecided transaction moves to the doubt topic.", "60s"
    ),
    start_timeout: services.StartTimeout = None,
    connection: Connection,
    observing: services.Observing,
    watch_parent: services.WatchParent = False,
) -> None:
    """Forward committed messages until SIGTERM or Ctrl-C.

    Exit codes: 0 stopped as asked, 2 usage or configuration, 3 no broker, 4 fenced, 5 not authorised, 70 broken invariant.
    """
    observing.set_up_logging()
    config = connection.config(
        CoordinatorConfig,
        target_topics=tuple(target_topic) if target_topic else None,
        doubt_after=duration("--doubt-after", doubt_after),
        start_timeout=duration("--start-timeout", start_timeout),
    )
    check_policies(config)  # a wrong setting ends here, before any worker starts
    metrics = observing.metrics()
    stop = services.StopSignal()
    stop.install()
    if workers > 1:
        services.run_workers(metrics, workers, stop)
    if watch_parent:
        stop.watch(sys.stdin.buffer)
    if not config.target_topics:
        Console(stderr=True).print(
            "[yellow]warning:[/] no --target-topic: every client that may write the half topic may send to every topic that this "
            "coordinator may write"
        )
    gc.set_threshold(services.GC_THRESHOLD)
    coordinator = make_coordinator(config, connect_coordinator(config), tracing=observing.tracer())
    with services.observed(metrics, lambda: ObservedCoordinator(coordinator.view, version=__version__)):
        coordinator.run(should_stop=stop.is_set)


@command(app)
def status(*, connection: Connection, as_json: AsJson = False) -> None:
    """Group, members, lag and positions, from any machine; exit code 1 when no coordinator is a member."""
    config = connection.config(ClientConfig)
    with administration(config) as admin:
        found = read_status(admin, config.topics)
    output.show(status_json(found), lambda _body: status_table(found), as_json=as_json)
    if not found.members:
        raise typer.Exit(ExitCode.FINDING)


@command(app)
def reset(
    *, to: To, connection: Connection, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Say where the coordinators begin; refused while one is running."""
    config = connection.config(ClientConfig)
    topics = config.topics
    with administration(config) as admin:
        begin = parse_start(to, now_ms=lambda: log_time(admin, topics, wall_ms=current_ms()).latest_ms)
        plan = plan_reset(admin, topics.coordinator_group, (topics.half, topics.op), to=begin, of_coordinators=True)
        store_reset(
            admin,
            topics.coordinator_group,
            plan,
            "Store these offsets? Transactions that are open before them stay undecided.",
            is_dry_run=dry_run,
            is_sure=yes,
            as_json=as_json,
        )


def store_reset(
    admin: Administration,
    group: str,
    plan: GroupReset,
    question: str,
    *,
    is_dry_run: bool,
    is_sure: bool,
    as_json: bool,
) -> None:
    """Show what a group has stored and would have, ask a person, and store it."""
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "before": None if (old := plan.before[topic, partition]) is None else old.offset,
            "after": new.offset,
        }
        for (topic, partition), new in sorted(plan.after.items())
    ]
    columns = {name: output.number_or_none(name) for name in ("topic", "partition", "before", "after")}
    table = output.rows_table(rows, columns, title="offsets")
    if not as_json or not (is_dry_run or is_sure):  # a program reads what is stored, a person what would be
        output.console(err=as_json).print(table)
    if not is_dry_run:
        if not is_sure:
            output.ask(question)
            if admin.stored_offsets(group, list(plan.after)) != plan.before:  # what was done since would be done again
                raise RetriableError(f"members of {group} worked while you were asked; nothing was stored; look again")
        with saying("the offsets may be stored; the same command with --dry-run says what is", RetriableError):
            admin.store_offsets(group, plan.after)
    if as_json:
        output.print_json(rows)


def status_table(found: CoordinatorStatus) -> RenderableType:
    """Positions and owners of every partition; in a narrow terminal those of op, then those of half."""
    owners = {p: owner_name(m) for m in found.members for _, p in m.partitions}
    names = {
        "partition": "partition",
        "op next": "op_next",
        "op end": "op_end",
        "op lag": "op_lag",
        "low water": "low_water",
        "half end": "half_end",
        "read again": "half_span",
    }
    columns: output.Columns = {
        **{header: output.number_or_none(name) for header, name in names.items()},
        "doubt": lambda p: "" if p["doubt_low"] is None else f"{p['doubt_low']}-{p['doubt_end']}",
        "owner": lambda p: owners.get(p["partition"], "none"),
    }
    body = status_json(found)
    closed = "" if found.closed_at_ms is None else "; no new transactions (`txlayer topics accept`)"
    return output.parted(
        body["partitions"],
        columns,
        parts=(
            ("partition", "op next", "op end", "op lag", "owner"),
            ("partition", "low water", "half end", "read again", "doubt"),
        ),
        title=f"{found.group}: {found.state}, {counted(len(found.members), 'member')}, op lag {body['op_lag']}{closed}",
        right=set(columns) - {"owner"},
    )


def owner_name(member: GroupMember) -> str:
    """A member, so that two differ: its host and what the group drew for it; before it the name that its settings give it (`client.id`)."""
    drawn = member.member_id.removeprefix(f"{member.client_id}-")[:8]
    given = "" if member.client_id in ("", _LIBRARY_NAME) else f"{member.client_id}@"
    return f"{given}{member.host}/{drawn}"
