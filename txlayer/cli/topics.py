"""`txlayer topics plan|apply|check`: the topics of a namespace compared with what they must be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.markup import escape

from txlayer.adapters.administration import Administration
from txlayer.adapters.group_topics import GroupTopics
from txlayer.adapters.namespace import Applied
from txlayer.adapters.namespace import Namespace as KafkaNamespace
from txlayer.adapters.topic_files import read_topic_files
from txlayer.cli import acls, tables, topics_widen
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
from txlayer.core.ids import check_group
from txlayer.core.topicspec import AlterSetting, Change, CreateTopic, Difference, StoreFirstOffsets
from txlayer.errors import UsageError

app = typer.Typer(
    no_args_is_help=True,
    help="Compare the topics of a namespace, or with --group those of a consumer group, with what they must be, and "
    "create them; never deletes, never shrinks.",
)
app.add_typer(acls.app, name="acls")

topics_widen.add_to(app)

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
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Instead of the namespace's: the topics of this consumer group, for dead letters and replays.",
        show_default=False,
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="With --group: a topic that it consumes; may be repeated.",
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
    group: Group = None,
    topic: Topics = None,
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
    wanted = _Wanted.of(config, partitions, replication_factor, group, topic)
    changes = _planned(wanted)
    show_changes(changes, config=config, group=group, as_json=as_json)
    if _by_hand(changes):
        raise typer.Exit(ExitCode.FINDING)


@app.command()
def apply(
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    partitions: Partitions = None,
    replication_factor: ReplicationFactor = None,
    group: Group = None,
    topic: Topics = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Create missing topics and alter settings; safe to repeat; exit code 1 when something is left to a person."""
    from txlayer.adapters.kafka.admin import KafkaAdmin

    config = client_config(
        ClientConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    wanted = _Wanted.of(config, partitions, replication_factor, group, topic)
    with KafkaAdmin(config) as admin:
        applied = wanted.apply(admin)
    show_changes(applied.left, done=applied.done, config=config, group=group, as_json=as_json)
    if applied.left:
        raise typer.Exit(ExitCode.FINDING)


@app.command()
def check(
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    partitions: Partitions = None,
    replication_factor: ReplicationFactor = None,
    group: Group = None,
    topic: Topics = None,
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
    wanted = _Wanted.of(config, partitions, replication_factor, group, topic)
    changes = _planned(wanted)
    show_changes(changes, config=config, group=group, as_json=as_json)
    if changes:
        raise typer.Exit(ExitCode.FINDING)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Whose topics are meant, and what was asked for."""

    config: ClientConfig
    partitions: int | None
    replication_factor: int | None
    group: str | None
    topics: tuple[str, ...]

    @staticmethod
    def of(
        config: ClientConfig,
        partitions: int | None,
        replication_factor: int | None,
        group: str | None,
        topics: Sequence[str] | None,
    ) -> _Wanted:
        """The options together.

        Raises:
            UsageError: they contradict each other. Nothing was asked.
        """
        if (group is None) != (not topics):
            raise UsageError("--group and --topic go together: each topic has dead letters for each group")  # fmt: skip
        if group is not None:
            check_group(group)
            if partitions is not None:
                raise UsageError("--partitions: a group's topics have as many as the topic that they belong to")  # fmt: skip
        return _Wanted(config, partitions, replication_factor, group, tuple(topics or ()))

    def plan(self, admin: Administration) -> list[Change]:
        """What is missing or different."""
        if self.group is not None:
            return self._group(admin, self.group).plan(replication_factor=self.replication_factor)
        return self._namespace(admin).plan(
            partition_count=self.partitions, replication_factor=self.replication_factor
        )

    def apply(self, admin: Administration) -> Applied:
        """Create and alter."""
        if self.group is not None:
            return self._group(admin, self.group).apply(replication_factor=self.replication_factor)
        return self._namespace(admin).apply(
            partition_count=self.partitions, replication_factor=self.replication_factor
        )

    def _namespace(self, admin: Administration) -> KafkaNamespace:
        return KafkaNamespace(admin, topics=self.config.topics, files=read_topic_files())

    def _group(self, admin: Administration, group: str) -> GroupTopics:
        return GroupTopics(admin, group=group, topics=self.topics, files=read_topic_files())


def _planned(wanted: _Wanted) -> list[Change]:
    # Here, so that `txlayer --help` does not load the Kafka client.
    from txlayer.adapters.kafka.admin import KafkaAdmin

    with KafkaAdmin(wanted.config) as admin:
        return wanted.plan(admin)


def _by_hand(changes: Sequence[Change]) -> list[Difference]:
    return [change for change in changes if isinstance(change, Difference)]


def show_changes(
    left: Sequence[Change],
    *,
    config: ClientConfig,
    group: str | None,
    as_json: bool,
    done: Sequence[Change] = (),
) -> None:
    """What was done and what is to do, for a person or a program."""
    changes = [*done, *left]
    owner = ("namespace", config.namespace) if group is None else ("group", group)
    if as_json:
        rows = [{"change": type(change).__name__, **asdict(change)} for change in changes]
        typer.echo(json.dumps({owner[0]: owner[1], "changes": rows}, indent=2))
        return
    if not changes:
        typer.echo(f"{owner[1]}: every topic is as it must be")
        return
    parts = ((done, "done", "was", "is now"), (left, "to do", "is", "must be"))
    for shown, word, before, after in parts:
        if shown:
            title = f"{' '.join(owner)}: {word}"
            table = tables.table("topic", "what", before, after, "why", title=title)
            for change in shown:
                table.add_row(*map(escape, _row(change)))
            tables.console().print(table)


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
        case StoreFirstOffsets():
            must = f"0 in {len(change.partitions)} partitions"
            return change.topic, f"store offsets for {change.group}", "missing", must, change.why
        case Difference():
            what = f"{change.what} (cannot be changed here)"
            return change.topic, what, change.found, change.wanted, change.why
