"""`txlayer consumer pause|resume`: an operator's word on a topic of a group, or on some of its partitions."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from txlayer.cli.dlq_logs import open_logs, request_writer
from txlayer.cli.dlq_options import Operator, Reason, RequestId, author_of, check_names
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import BootstrapServers, ClientSetting, Insecure, Json, client_config
from txlayer.config import ProducerConfig, parse_duration
from txlayer.consumer.dead_letter_log import DeadLetterLog
from txlayer.consumer.requests import Request, Written
from txlayer.core.handling import ReplayKind, ReplayRecord
from txlayer.errors import UsageError

LOOK_AGAIN_S = 0.2
"""Between two looks at how far the owners of the partitions are."""

WORDS = {ReplayKind.PAUSE: "pause", ReplayKind.RESUME: "resume"}

HELP = {
    ReplayKind.PAUSE: """Stop a group's consumers from handling a topic, whoever runs them, until it is resumed.

    Messages wait in the topic; a pause survives restarts. What is being handled is finished.""",
    ReplayKind.RESUME: """Let a group's consumers go on with a topic that was paused.""",
}
_EXITS = """

    The word is recorded on the replay topic with your name and reason. Exit codes: 0 every partition's owner took it,
    1 not all did within --wait (it takes effect when they run), 2 usage, 3 no broker, 5 not authorised."""

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that it consumes.")]
Partitions = Annotated[
    list[int] | None,
    typer.Option(
        "--partition", min=0, help="Only this partition; may be repeated.", show_default=False
    ),
]
Wait = Annotated[
    str,
    typer.Option(
        "--wait",
        metavar="10s",
        help="How long to wait for the partitions' owners; 0s: do not wait.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """The two commands; they have the same options."""
    for kind in WORDS:
        _add(app, kind)


def _add(app: typer.Typer, kind: ReplayKind) -> None:
    @app.command(WORDS[kind], help=HELP[kind] + _EXITS)
    def ask(
        group: GroupName,
        topic: TopicName,
        *,
        reason: Reason = "",
        operator: Operator = None,
        request_id: RequestId = None,
        partition: Partitions = None,
        wait: Wait = "10s",
        bootstrap_servers: BootstrapServers = None,
        client_setting: ClientSetting = None,
        insecure: Insecure = False,
        as_json: Json = False,
    ) -> None:
        check_names(group, [topic])
        author = author_of(
            f"txlayer consumer {WORDS[kind]}", operator=operator, reason=reason, request_id=request_id
        )  # fmt: skip
        patience_s = parse_duration("--wait", wait).total_seconds()
        config = client_config(
            ProducerConfig, bootstrap_servers=bootstrap_servers, client_setting=client_setting, insecure=insecure
        )  # fmt: skip
        record = ReplayRecord(kind, author.request_id, None, text=author.text)
        with open_logs(config, group, [topic]) as logs:
            log = logs[topic]
            requests = [Request(topic, p, None, record) for p in _chosen(log, partition)]
            with request_writer(config, group) as writer:
                written = writer.write(requests)
            taken = _wait(log, written, patience_s=patience_s)
        _tell(kind, group, written, taken, as_json=as_json)
        if patience_s and len(taken) < len(written):
            raise typer.Exit(ExitCode.FINDING)


def _chosen(log: DeadLetterLog, partitions: Sequence[int] | None) -> list[int]:
    there = range(log.partition_count)
    for number in partitions or ():
        if number not in there:
            raise UsageError(f"--partition {number}: {log.topic} has the partitions 0 to {len(there) - 1}")  # fmt: skip
    return sorted(set(partitions or there))


def _wait(log: DeadLetterLog, written: Sequence[Written], *, patience_s: float) -> set[int]:
    """The partitions whose owners have stored that they took the request."""
    give_up_at = time.monotonic() + patience_s
    while True:
        queues = log.queues()
        taken = {
            w.request.partition
            for w in written
            if (queues[w.request.partition].replayed_to or 0) > w.offset
        }
        if len(taken) == len(written) or time.monotonic() >= give_up_at:
            return taken
        time.sleep(LOOK_AGAIN_S)


def _tell(
    kind: ReplayKind, group: str, written: Sequence[Written], taken: set[int], *, as_json: bool
) -> None:
    if as_json:
        rows = [
            {
                "group": group,
                "topic": w.request.topic,
                "partition": w.request.partition,
                "act": WORDS[kind],
                "request_id": w.request.record.request_id,
                "written_at": w.offset,
                "result": "taken" if w.request.partition in taken else "requested",
            }
            for w in sorted(written, key=lambda w: w.request.partition)
        ]
        typer.echo(json.dumps(rows))
        return
    word = "paused" if kind is ReplayKind.PAUSE else "resumed"
    for w in sorted(written, key=lambda w: w.request.partition):
        place = f"{w.request.topic}-{w.request.partition}"
        if w.request.partition in taken:
            typer.echo(f"{place} is {word}")
        else:
            typer.echo(
                f"{place} is asked to be {word}; no consumer of {group} has taken it yet", err=True
            )
