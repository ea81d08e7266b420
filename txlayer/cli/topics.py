"""`txlayer topics`: a namespace's topics and a principal's rights compared with what they must be; more partitions."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Annotated

import typer
from rich.text import Text

from txlayer.adapters.connect import CoordinatorConnections, connect_coordinator
from txlayer.adapters.ports import Administration
from txlayer.cli import output
from txlayer.cli.exits import ExitCode, saying
from txlayer.cli.options import AsJson, Bundle, Connection, Yes, administration, command, declared, option
from txlayer.config import ClientConfig, CoordinatorConfig, parse_duration
from txlayer.core.acls import EVERY_HOST, AclChange, CreateAcl, OtherAcl
from txlayer.core.acls import plan as plan_acls
from txlayer.core.topics import AlterSetting, Change, CreateTopic, Difference, StoreFirstOffsets
from txlayer.errors import BrokerUnavailableError, RetriableError
from txlayer.operate import Json, time_text
from txlayer.operate import topics as topics_
from txlayer.operate.topics import Drain

app = typer.Typer(
    no_args_is_help=True,
    help="Compare the topics of a namespace, or with --group those of a consumer group, with what they must be, and "
    "create them; never deletes, never shrinks.",
)
acls_app = typer.Typer(
    no_args_is_help=True,
    help="Compare the rights of a principal with what its roles need, and create what is missing; never takes one away.",
)
app.add_typer(acls_app, name="acls")

PARTITION_COUNT_MAX = 100_000  # of a topic: the Kafka client raises for more
REPLICAS_MAX = 10_000  # more the client takes for a slip

LOOK_S = 1.0  # how often it is looked whether the namespace is drained

# --- apply and check ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Bundle):
    """Whose topics are meant, and what they must be like."""

    partitions: int | None = option(
        "--partitions",
        "Partitions of half, op and doubt, fixed for life; default: what the namespace has, 4 for a new one.",
        min=1,
        max=PARTITION_COUNT_MAX,
    )
    replication_factor: int | None = option(
        "--replication-factor",
        "Replicas of new topics; from 3 on, 2 must be in sync; default: the broker's own.",
        min=1,
        max=REPLICAS_MAX,
    )
    group: str | None = option(
        "--group",
        "Instead of the namespace's: the topics of this consumer group, for dead letters and replays.",
        "GROUP",
    )
    topic: list[str] | None = option("--topic", "With --group: a topic that it consumes; may be repeated.", "TOPIC")


@command(app)
def apply(*, wanted: Wanted, connection: Connection, as_json: AsJson = False) -> None:
    """Create missing topics and alter settings; safe to repeat; exit code 1 when something is left to a person."""
    _fail_when(_compare(wanted, connection, as_json=as_json, applies=True))


@command(app)
def check(*, wanted: Wanted, connection: Connection, as_json: AsJson = False) -> None:
    """Show what is missing or different, as `apply` would change it; exit code 1 when anything is."""
    _fail_when(_compare(wanted, connection, as_json=as_json))


def _compare(wanted: Wanted, connection: Connection, *, as_json: bool, applies: bool = False) -> Sequence[Change]:
    config = connection.config(ClientConfig)
    with administration(config) as admin:
        done, left = topics_.compare_topics(
            admin,
            config.topics,
            partitions=wanted.partitions,
            replication_factor=wanted.replication_factor,
            group=wanted.group,
            topics=wanted.topic or (),
            applies=applies,
        )
    show_changes(left, done=done, config=config, group=wanted.group, as_json=as_json)
    return left


def _fail_when(found: Sequence[object]) -> None:
    if found:
        raise typer.Exit(ExitCode.FINDING)


def show_changes(
    left: Sequence[Change], *, config: ClientConfig, group: str | None, as_json: bool, done: Sequence[Change] = ()
) -> None:
    owner, name = ("namespace", config.namespace) if group is None else ("group", group)
    rows = [{"change": type(change).__name__, **asdict(change)} for change in (*done, *left)]
    parts = ((done, "done", "was", "is now"), (left, "to do", "is", "must be"))

    def draw(_body: Json) -> output.Drawn:
        return [
            output.rows_table(
                map(_topic_row, shown),
                {header: itemgetter(n) for n, header in enumerate(("topic", "what", before, after, "why"))},
                title=f"{owner} {name}: {word}",
            )
            for shown, word, before, after in parts
            if shown
        ] or f"{name}: every topic is as it must be"

    output.show({owner: name, "changes": rows}, draw, as_json=as_json)


def _topic_row(change: Change) -> tuple[object, ...]:
    match change:
        case CreateTopic():
            replicas = change.replication_factor or "the broker's"
            settings = "".join(f"\n{name}={value}" for name, value in change.settings.items())
            must: object = Text(f"{change.partition_count} partitions, {replicas} replicas{settings}", overflow="fold")
            found, what = "missing", "create"
        case AlterSetting():
            must, found, what = change.wanted, change.found or "", f"alter {change.setting}"
        case StoreFirstOffsets():
            must = f"0 in {len(change.partitions)} partitions"
            found, what = "missing", f"store offsets for {change.group}"
        case Difference():
            must, found = change.wanted, change.found
            what = f"{change.what} (cannot be changed here)"
    return change.topic, what, found, must, change.why


# --- acls --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights(Bundle):
    """Whose rights are meant, and for which roles."""

    role: Annotated[
        list[str],
        declared(
            "--role", "producer, responder, coordinator, consumer, reader, operator or spark; may be repeated.", "ROLE"
        ),
    ]
    principal: Annotated[
        str, declared("--principal", "Whose rights; as the brokers name the client that connects.", "User:NAME")
    ]
    group: str | None = option("--group", "The producer's or the consumer's group.")
    topic: list[str] | None = option("--topic", "A real topic of the role (orders, shop.*); may be repeated.", "TOPIC")
    host: str = option("--host", "From where; * is everywhere.", default=EVERY_HOST)


@command(acls_app, "apply")
def apply_acls(*, rights: Rights, connection: Connection, as_json: AsJson = False) -> None:
    """Create what is missing; safe to repeat; exit code 1 when the principal may do more than its roles."""
    changes = _compare_acls(rights, connection, as_json=as_json, creates=True)
    _fail_when([change for change in changes if isinstance(change, OtherAcl)])


@command(acls_app, "check")
def check_acls(*, rights: Rights, connection: Connection, as_json: AsJson = False) -> None:
    """Show what is missing or more than the roles need; exit code 1 when anything is."""
    _fail_when(_compare_acls(rights, connection, as_json=as_json))


def _compare_acls(rights: Rights, connection: Connection, *, as_json: bool, creates: bool = False) -> list[AclChange]:
    config = connection.config(ClientConfig)
    wanted = topics_.wanted_rights(
        config.namespace, rights.role, rights.principal, group=rights.group, topics=rights.topic or (), host=rights.host
    )
    with administration(config) as cluster:
        changes = plan_acls(wanted, cluster.acls(), namespace=config.namespace)
        if creates:
            cluster.create_acls([change.acl for change in changes if isinstance(change, CreateAcl)])
    _show_acls(config.namespace, rights.principal, len(wanted), changes, as_json=as_json)
    return changes


def _show_acls(
    namespace: str, principal: str, wanted_count: int, changes: Sequence[AclChange], *, as_json: bool
) -> None:
    rows = [{"change": type(change).__name__, **_acl_fields(change)} for change in changes]
    body = {"namespace": namespace, "principal": principal, "wanted": wanted_count, "changes": rows}
    columns: output.Columns = {
        "what": lambda row: "create" if row["change"] == CreateAcl.__name__ else "is there (cannot be removed here)",
        "resource": lambda row: f"{row['resource']} {row['name']}{'…' if row['pattern'] == 'prefixed' else ''}",
        "operation": lambda row: f"{row['permission']} {row['operation']}",
        "why": "why",
    }

    def draw(_body: Json) -> output.Drawn:
        if not rows:
            return f"{principal}: all {wanted_count} rights are there, and no other"
        return output.rows_table(rows, columns, title=f"rights of {principal}")

    output.show(body, draw, as_json=as_json)


def _acl_fields(change: AclChange) -> dict[str, str]:
    acl = change.acl
    return {
        "resource": acl.resource.value,
        "name": acl.name,
        "pattern": acl.pattern.value,
        "operation": acl.operation.value,
        "principal": acl.principal,
        "host": acl.host,
        "permission": "deny" if acl.is_denied else "allow",
        "why": change.why,
    }


# --- more partitions ---------------------------------------------------------------------------------------------------


@command(app)
def accept(
    *,
    is_on: Annotated[
        bool | None, typer.Option("--on/--off", help="Whether producers may begin transactions; without it: only say.")
    ] = None,
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Let producers begin transactions, or not: with --off their next one raises NotAcceptingError, within 10 s everywhere.

    Transactions that have begun go on, and are answered for, forwarded and settled. Safe to repeat.
    """
    config = connection.config(ClientConfig)
    with administration(config) as admin:
        found = topics_.accept(admin, config.topics, wanted=is_on, now_ms=int(time.time() * 1000))
    body = {
        "namespace": config.namespace,
        "is_accepting": found.is_on,
        "closed_at_ms": found.closed_at_ms,
        "is_changed": found.is_changed,
    }
    since = "" if found.is_on else f" since {time_text(found.closed_at_ms)}"
    said = f"{config.namespace}: {'accepts' if found.is_on else 'does not accept'} new transactions{since}"
    output.show(body, lambda _body: said, as_json=as_json)


@command(app)
def drain(
    *,
    timeout: str = option("--timeout", "How long to wait; 0s: look once, and say.", "60s", default="60s"),
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Wait until nothing is open and nothing is left to read; says what still is. It writes nothing.

    Stop the producers first, or `txlayer topics accept --off`. Leave the coordinators and the responders running. What is
    parked must be settled by a person. Safe to repeat.

    Exit codes: 0 drained, 1 something is left, 2 usage or configuration, 3 no broker, 5 not authorised.
    """
    config = connection.config(CoordinatorConfig)
    give_up_at = time.monotonic() + parse_duration("--timeout", timeout).total_seconds()
    before: Drain | None = None
    while True:
        is_over = time.monotonic() >= give_up_at
        try:
            with administration(config) as admin, closing(connect_coordinator(config, is_one_shot=True)) as connections:
                count = topics_.partition_counts(admin, config.topics)[config.topics.half]
                found = topics_.look(connections, partition_count=count)
        except BrokerUnavailableError:
            # A broker may be away for a while of the time that there is.
            if is_over:
                raise
        else:
            if found.is_drained or is_over:
                break
            before = found
        time.sleep(LOOK_S)
    is_growing = before is not None and found.half_ends != before.half_ends
    show_drain(config.namespace, found, is_growing=is_growing, as_json=as_json)
    if not found.is_drained:
        raise typer.Exit(ExitCode.FINDING)


@command(app)
def widen(
    *,
    partitions: Annotated[
        int, declared("--partitions", "How many half, op and doubt shall have.", min=1, max=PARTITION_COUNT_MAX)
    ],
    dry_run: bool = option("--dry-run", "Say what would be done; change nothing.", default=False),
    yes: Yes = False,
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Give half, op and doubt more partitions; refused while a coordinator runs or the namespace is not drained.

    Safe to repeat, also after it was interrupted: while the counts differ no coordinator and no producer starts.

    Exit codes: 0 done or so already, 1 not drained, 2 usage, a coordinator runs, 3 no broker, 5 not authorised.
    """
    config = connection.config(CoordinatorConfig)
    with administration(config) as admin, closing(connect_coordinator(config, is_one_shot=True)) as connections:
        found = _planned_widening(admin, connections, partitions, as_json=as_json)
        if not dry_run:
            if found.wanted and not yes:
                output.ask(f"Widen {', '.join(found.wanted)} to {partitions} partitions?")
                # Meanwhile a role may have started.
                found = _planned_widening(admin, connections, partitions, as_json=as_json)
            with saying(
                "some topics may be widened; no coordinator and no producer starts until the same command is done",
                RetriableError,
            ):
                admin.widen(found.wanted)
                topics_.store_first_offsets(admin, config.topics, partitions)
    said = f"{'would be widened' if dry_run else 'widened'} to {partitions} partitions: {', '.join(found.wanted)}"
    said = said if found.wanted else f"every topic has {partitions} partitions already"
    body = {"before": found.before, "widened": found.wanted, "is_dry_run": dry_run}
    output.show(body, lambda _: said, as_json=as_json)


def _planned_widening(
    admin: Administration, connections: CoordinatorConnections, partitions: int, *, as_json: bool
) -> topics_.Widening:
    """What it would take; the command ends with what is not drained, where the topics must not be widened."""
    found = topics_.plan_widening(admin, connections, partition_count=partitions)
    if found.left is not None:
        show_drain(connections.config.namespace, found.left, is_growing=False, as_json=as_json)
        raise typer.Exit(ExitCode.FINDING)
    late = "half records of producers that were not stopped; `txlayer tx list --kept-aside` will show those in the wrong partition"
    output.note_counts((found.late_count, late))
    return found


def show_drain(namespace: str, found: Drain, *, is_growing: bool, as_json: bool) -> None:
    body = {
        "namespace": namespace,
        "is_drained": found.is_drained,
        "is_growing": is_growing,
        "is_accepting": found.closed_at_ms is None,
        "half_unread": found.half_unread,
        "op_unread": found.op_unread,
        "open": found.open,
    }
    columns: output.Columns = {
        "group": "producer_group",
        "state": "state",
        "count": "count",
        "oldest": lambda row: f"{row['oldest_ms'] // 1000} s",
        "for instance": lambda row: " ".join(row["txn_ids"]),
    }

    def draw(_body: Json) -> output.Drawn:
        if found.is_drained:
            return f"{namespace}: drained; nothing of before is needed any more"
        return [
            output.rows_table(found.open, columns, title=f"{namespace}: open"),
            f"half records still needed: {found.half_unread}; op records not applied: {found.op_unread}",
            *(["half is growing: producers still begin transactions; `txlayer topics accept --off`"] * is_growing),
        ]

    output.show(body, draw, as_json=as_json)
