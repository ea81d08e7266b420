"""`txlayer consumer`: run a program's consumer, pause and resume what a group handles, say where a group goes on."""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Annotated, Any

import typer

from txlayer import __version__
from txlayer.adapters.connect import kafka_clients
from txlayer.adapters.readers import log_time
from txlayer.adapters.telemetry import printable
from txlayer.cli import options, output
from txlayer.cli.coordinator import store_reset
from txlayer.cli.exits import ExitCode, saying
from txlayer.cli.services import GC_THRESHOLD, Observing, StopSignal, WatchParent, Workers, load, observed, run_workers
from txlayer.config import ClientConfig, parse_duration
from txlayer.consumer.aio import AsyncOrderedConsumer
from txlayer.consumer.consumer import ConcurrentConsumer, ConsumerService, OrderedConsumer
from txlayer.consumer.metrics import ObservedConsumer
from txlayer.core.codec import WHOLE_MAX
from txlayer.core.dead_letters import ReplayKind, ReplayRecord
from txlayer.core.messages import check_group
from txlayer.errors import ConfigError, OutcomeUnknownError, RetriableError
from txlayer.operate.dead_letters import opened_logs
from txlayer.operate.replay import (
    RequestWriter,
    WrittenRequest,
    ask_queues,
    author_of,
    overruled,
    standing,
    wait_until_taken,
)
from txlayer.operate.topics import check_consumed, plan_reset

app = typer.Typer(no_args_is_help=True, help="Run consumers; pause and resume what they handle.")

# --- run ---------------------------------------------------------------------------------------------------------------

LOOK_S = 0.5  # how often it is looked whether an asyncio consumer shall stop

_SAID = frozenset(
    f"TXLAYER_{name}"
    for name in ("BOOTSTRAP_SERVERS", "CLIENT_SETTINGS", "CLIENT_SETTINGS_FILE", "IS_INSECURE_ALLOWED")
)
"""How to reach the cluster, said by the environment."""


@options.command(app)
def run(  # every option is a parameter
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CONSUMER",
            help="An OrderedConsumer, AsyncOrderedConsumer or ConcurrentConsumer with its handlers; found from here, as Python finds modules.",
        ),
    ],
    *,
    workers: Workers = 1,
    cluster: options.ClusterOptions,
    observing: Observing,
    watch_parent: WatchParent = False,
) -> None:
    """Handle messages until SIGTERM or Ctrl-C; then let handlers end, store what ended, and leave the group.

    A second signal ends it at once. What is given here, or by the environment, wins over what the program says.

    Exit codes: 0 stopped as asked, 2 usage or configuration, 3 no broker, 4 fenced, 5 not authorised, 70 broken invariant.
    """
    observing.set_up_logging()
    stop = StopSignal()
    metrics = observing.metrics()
    if workers > 1:
        stop.install()
        run_workers(metrics, workers, stop, patience_s=None)  # its `close_timeout` says how long handlers may take
    consumer = load(reference, name="MODULE:CONSUMER", kind="consumer")
    if not isinstance(consumer, ConsumerService):
        why = f"it is {type(consumer).__name__}"
        raise ConfigError(why, name="MODULE:CONSUMER", value=reference, expected="a consumer")
    _reach(consumer, cluster)
    asked = observing.tracer()
    if asked.is_on:
        consumer.trace(asked)
    stop.install()
    if watch_parent:
        stop.watch(sys.stdin.buffer)
    # Records and messages end by their reference counts; looking for cycles among those that wait costs much.
    gc.set_threshold(GC_THRESHOLD)
    figures = ObservedConsumer(consumer.stats, group=consumer.group, version=__version__)
    with observed(metrics, lambda: figures):
        if isinstance(consumer, AsyncOrderedConsumer):
            threading.Thread(target=_stop_when, args=(consumer, stop), daemon=True).start()
            asyncio.run(consumer.run())
        elif isinstance(consumer, OrderedConsumer | ConcurrentConsumer):
            consumer.run(should_stop=stop.is_set)


def _reach(consumer: ConsumerService[Any, Any], cluster: options.ClusterOptions) -> None:
    """Let the command line and the environment say how to reach the cluster, where they do."""
    if cluster == options.ClusterOptions() and not _SAID.intersection(os.environ):
        return
    own = consumer.config
    given = cluster.config(
        ClientConfig,
        bootstrap_servers=cluster.bootstrap_servers
        or os.environ.get("TXLAYER_BOOTSTRAP_SERVERS")
        or own.bootstrap_servers,
        insecure=cluster.insecure or own.is_insecure_allowed,
        beneath=own.client_settings,
    )
    consumer.configure(
        bootstrap_servers=given.bootstrap_servers,
        client_settings=given.client_settings,
        is_insecure_allowed=given.is_insecure_allowed,
    )


def _stop_when(consumer: ConsumerService[Any, Any], stop: StopSignal) -> None:
    while not stop.wait(LOOK_S):
        pass
    consumer.stop()


# --- pause and resume --------------------------------------------------------------------------------------------------

HELP = {
    ReplayKind.PAUSE: """Stop all consumers of a group from handling a topic until it is resumed.

    Messages wait in the topic; a pause survives restarts. What is being handled is finished.""",
    ReplayKind.RESUME: """Let a group's consumers go on with a topic that was paused.""",
}
_EXITS = """

    The replay topic records it with your name and reason. Exit codes: 0 every partition's owner took it,
    1 not all did within --wait (it takes effect when they run), or another person says the contrary since then, 2 usage, 3 no broker, 5 not authorised."""


def _add(kind: ReplayKind) -> None:
    @options.command(app, kind.name.lower(), help=HELP[kind] + _EXITS)
    def ask(
        group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")],
        topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that it consumes.")],
        *,
        reason: options.Reason = "",
        operator: options.Operator = None,
        request_id: str | None = options.option(
            "--request-id", "Name of the request in the replay topic. Default: a new one.", "ID"
        ),
        partition: list[int] | None = options.option("--partition", "Only this partition; may be repeated.", min=0),
        wait: str = options.option(
            "--wait", "How long to wait for the partitions' owners; 0s: do not wait.", "10s", default="10s"
        ),
        cluster: options.ClusterOptions,
        as_json: options.AsJson = False,
    ) -> None:
        author = author_of(
            f"txlayer consumer {kind.name.lower()}", operator=operator, reason=reason, request_id=request_id
        )
        patience_s = parse_duration("--wait", wait).total_seconds()
        clients = kafka_clients(cluster.config(ClientConfig))
        record = ReplayRecord(kind, author.request_id, None, text=author.text)
        with (
            opened_logs(clients, group, [topic]) as logs,
            saying(standing(author), RetriableError, OutcomeUnknownError),
            closing(RequestWriter(clients, group=group)) as writer,
        ):
            log = logs[topic]
            paused = {number for number, queue in log.queues().items() if queue.is_paused}
            written = ask_queues(log, writer, record, partitions=partition or ())
            taken = wait_until_taken(log, written, patience_s=patience_s, paused=paused)
            contrary = overruled(log, written)
        _show(kind, group, written, taken, contrary, as_json=as_json)
        if contrary or (patience_s and len(taken) < len(written)):
            raise typer.Exit(ExitCode.FINDING)


for _kind in HELP:
    _add(_kind)


def _show(
    kind: ReplayKind,
    group: str,
    written: Sequence[WrittenRequest],
    taken: set[int],
    contrary: Mapping[int, ReplayRecord],
    *,
    as_json: bool,
) -> None:
    def result(partition: int) -> str:
        return "overruled" if partition in contrary else "taken" if partition in taken else "requested"

    rows: list[dict[str, Any]] = [
        {
            "group": group,
            "topic": w.request.topic,
            "partition": w.request.partition,
            "act": kind.name.lower(),
            "request_id": w.request.record.request_id,
            "written_at": w.offset,
            "result": result(w.request.partition),
        }
        for w in sorted(written, key=lambda w: w.request.partition)
    ]
    if as_json:
        output.print_json(rows)
        return
    word = f"{kind.name.lower()}d"
    for row in rows:
        name = f"{row['topic']}-{row['partition']}"
        if row["result"] == "taken":
            typer.echo(f"{name} is {word}")
        elif row["result"] == "overruled":
            later = contrary[row["partition"]]
            typer.echo(
                printable(f"{name} is asked to be {later.kind.name.lower()}d since then, by {later.text}"), err=True
            )
        else:
            typer.echo(f"{name} is asked to be {word}; no consumer of {group} has taken it yet", err=True)


# --- where a group goes on ---------------------------------------------------------------------------------------------

Group = Annotated[str, options.declared("--group -g", "The consumer group.")]


@options.command(app)
def reset(
    *,
    group: Group,
    topic: Annotated[list[str], options.declared("--topic -t", "A topic that it consumes; may be repeated.")],
    to: options.To,
    token_above: int | None = options.option(
        "--token-above",
        "Fencing tokens of these topics begin above it: the highest one in your tables, on a new cluster.",
        min=0,
        max=WHOLE_MAX // 2,
    ),
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    cluster: options.ClusterOptions,
    as_json: options.AsJson = False,
) -> None:
    """Say where a group goes on with its topics; refused while one of its consumers runs.

    What it had finished beyond the stored offsets, counts of attempts, and parked keys are forgotten. A pause stays. Fencing tokens go on growing;
    where the group's progress is lost, `--token-above` says the highest one that your tables hold.
    """
    config = cluster.config(ClientConfig)
    check_group(group)
    check_consumed(config.topics, group, topic)
    with options.administration(config) as admin:
        begin = options.parse_start(
            to, now_ms=lambda: log_time(admin, config.topics, wall_ms=options.current_ms()).latest_ms
        )
        plan = plan_reset(admin, group, topic, to=begin, token_above=token_above)
        store_reset(admin, group, plan, "Store these offsets?", is_dry_run=dry_run, is_sure=yes, as_json=as_json)
