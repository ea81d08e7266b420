"""`txlayer topics drain|widen`: more partitions for half, op and doubt, when nothing of before is needed any more."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated

import typer

from txlayer.adapters.administration import Administration
from txlayer.adapters.connect import connect_coordinator
from txlayer.adapters.namespace import START_OF_LOG
from txlayer.cli import tables
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Json,
    Namespace,
    client_config,
)
from txlayer.config import CoordinatorConfig, SystemTopics, parse_duration
from txlayer.coordinator.draining import Drain, look, unread
from txlayer.errors import BrokerUnavailableError, LifecycleError, TopicMismatchError, UsageError

LOOK_S = 1.0
"""How often it is looked whether the namespace is drained."""

DrainTimeout = Annotated[
    str,
    typer.Option("--timeout", metavar="60s", help="How long to wait; 0s: look once, and say."),
]
Wanted = Annotated[
    int, typer.Option("--partitions", min=1, help="How many half, op and doubt shall have.")
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def add_to(app: typer.Typer) -> None:
    """Both commands."""
    app.command()(drain)
    app.command()(widen)


def drain(
    *,
    timeout: DrainTimeout = "60s",
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Wait until nothing stands open and nothing is left to read; says what still is. It writes nothing.

    Stop the producers first, and leave the coordinators and whoever answers check-backs running. What is parked must be
    settled by a person. Safe to repeat.

    Exit codes: 0 drained, 1 something is left, 2 usage or configuration, 3 no broker, 5 not authorised.
    """
    config = _config(bootstrap_servers, namespace, client_setting, insecure=insecure)
    give_up_at = time.monotonic() + parse_duration("--timeout", timeout).total_seconds()
    before: Drain | None = None
    while True:
        is_over = time.monotonic() >= give_up_at
        try:
            found = _look(config)
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


def widen(
    *,
    partitions: Wanted,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Give half, op and doubt more partitions; refused while a coordinator runs or the namespace is not drained.

    Safe to repeat, also after it was interrupted: while the counts differ no coordinator and no producer starts.

    Exit codes: 0 done or so already, 1 not drained, 2 usage, a coordinator runs, 3 no broker, 5 not authorised.
    """
    # Here, so that `txlayer --help` does not load the Kafka client.
    from txlayer.adapters.kafka.admin import KafkaAdmin, widen_topics

    config = _config(bootstrap_servers, namespace, client_setting, insecure=insecure)
    topics = config.topics
    with KafkaAdmin(config) as admin:
        counts = _counts(admin, topics)
        if max(counts.values()) > partitions:
            raise UsageError(f"{counts}: a topic never gets fewer partitions than it has")
        members = admin.group(topics.coordinator_group)
        if members.is_active:
            raise LifecycleError(
                f"{len(members.members)} coordinators are members of {topics.coordinator_group}; stop them first",
                state=members.state,
            )
        known = _known_count(admin, topics, counts)
        left = _left(config, counts, known)
        if left is not None:
            show_drain(config.namespace, left, is_growing=False, as_json=as_json)
            raise typer.Exit(ExitCode.FINDING)
        # Half last: by its count producers and coordinators go, and until then they see that the counts differ.
        wanted = {t: partitions for t in (topics.doubt, topics.op, topics.half) if counts[t] < partitions}  # fmt: skip
        if not dry_run:
            if wanted and not yes and not as_json:
                typer.confirm(f"Widen {', '.join(wanted)} to {partitions} partitions?", abort=True)
            widen_topics(config, wanted)
            _store_first_offsets(admin, topics, partitions)
    _tell(counts, wanted, partitions, is_dry_run=dry_run, as_json=as_json)


def _config(
    bootstrap_servers: str | None,
    namespace: str | None,
    client_setting: list[str] | None,
    *,
    insecure: bool,
) -> CoordinatorConfig:
    return client_config(
        CoordinatorConfig, bootstrap_servers=bootstrap_servers, namespace=namespace,
        client_setting=client_setting, insecure=insecure,
    )  # fmt: skip


def _look(config: CoordinatorConfig) -> Drain:
    from txlayer.adapters.kafka.admin import KafkaAdmin

    with KafkaAdmin(config) as admin:
        count = _counts(admin, config.topics)[config.topics.half]
    connections = connect_coordinator(config, is_one_shot=True)
    try:
        return look(config, connections, partition_count=count)
    finally:
        connections.close()


def _left(config: CoordinatorConfig, counts: Mapping[str, int], known: int) -> Drain | None:
    """What is not drained; None: nothing."""
    if set(counts.values()) == {known}:
        found = _look(config)
        return None if found.is_drained else found
    # An earlier widening was interrupted behind its own look: since then nobody could begin anything.
    connections = connect_coordinator(config, is_one_shot=True)
    try:
        half, op, ends = unread(config, connections, partition_count=known)
    finally:
        connections.close()
    return Drain((), half, op, ends) if half or op else None


def _counts(admin: Administration, topics: SystemTopics) -> dict[str, int]:
    counts = {}
    for topic in (topics.half, topics.op, topics.doubt):
        count = admin.partition_count(topic)
        if count is None:
            raise TopicMismatchError(
                "a topic of the namespace is missing; `txlayer topics apply` makes it",
                topic=topic, expected="there", found="missing",
            )  # fmt: skip
        counts[topic] = count
    return counts


def _known_count(admin: Administration, topics: SystemTopics, counts: Mapping[str, int]) -> int:
    """Partitions that coordinators worked on: an earlier widening may have ended before it stored where they begin."""
    shared = range(min(counts.values()))
    places = [(t, p) for t in (topics.half, topics.op) for p in shared]
    stored = admin.stored_offsets(topics.coordinator_group, places)
    known = [p for p in shared if stored[topics.half, p] and stored[topics.op, p]]
    # Without the first one nothing was ever stored, or it was lost: whoever reads the positions says so.
    return max(len(known), 1)


def _store_first_offsets(admin: Administration, topics: SystemTopics, partitions: int) -> None:
    """Where the coordinators begin in new partitions: at the first record, if somebody wrote one already."""
    places = [(t, p) for t in (topics.half, topics.op) for p in range(partitions)]
    stored = admin.stored_offsets(topics.coordinator_group, places)
    missing = {place: START_OF_LOG for place in places if stored[place] is None}
    admin.store_offsets(topics.coordinator_group, missing)


def show_drain(namespace: str, found: Drain, *, is_growing: bool, as_json: bool) -> None:
    """What is not drained yet, for a person or a program."""
    if as_json:
        body = {
            "namespace": namespace, "is_drained": found.is_drained, "is_growing": is_growing,
            "half_unread": found.half_unread, "op_unread": found.op_unread,
            "open": [o._asdict() for o in found.open],
        }  # fmt: skip
        typer.echo(json.dumps(body))
        return
    if found.is_drained:
        typer.echo(f"{namespace}: drained; nothing of before is needed any more")
        return
    table = tables.table(
        "group", "state", "count", "oldest", "for instance", title=f"{namespace}: open"
    )
    for o in found.open:
        row = (o.producer_group, o.state, str(o.count), f"{o.oldest_ms // 1000} s")
        table.add_row(*map(tables.cell, row), tables.cell(" ".join(o.txn_ids)))
    tables.console().print(table)
    typer.echo(f"half records still needed: {found.half_unread}; op records not applied: {found.op_unread}")  # fmt: skip
    if is_growing:
        typer.echo("half is growing: producers still begin transactions; stop them")


def _tell(
    counts: Mapping[str, int],
    wanted: Mapping[str, int],
    partitions: int,
    *,
    is_dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        typer.echo(json.dumps({"before": counts, "widened": wanted, "is_dry_run": is_dry_run}))
    elif not wanted:
        typer.echo(f"every topic has {partitions} partitions already")
    else:
        word = "would be widened" if is_dry_run else "widened"
        typer.echo(f"{word} to {partitions} partitions: {', '.join(wanted)}")
