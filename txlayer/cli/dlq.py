"""`txlayer dlq`: what a consumer group gave up, why, and what became of it; its other commands stand in dlq_requests.py."""

from __future__ import annotations

import heapq
import json
import time
from collections import Counter
from typing import Annotated

import typer

from txlayer.cli import dlq_requests, dlq_rows
from txlayer.cli.dlq_logs import open_logs
from txlayer.cli.dlq_options import (
    Group,
    Key,
    KeyHex,
    ReasonCode,
    Since,
    States,
    Topics,
    Until,
    check_names,
    make_filter,
    parse_letter,
)
from txlayer.cli.options import BootstrapServers, ClientSetting, Insecure, Json, client_config
from txlayer.cli.tables import console
from txlayer.config import ClientConfig
from txlayer.consumer.dead_letter_log import FoundLetter
from txlayer.core.letter_states import ENDED
from txlayer.core.messages import Undecodable
from txlayer.errors import UsageError

app = typer.Typer(
    no_args_is_help=True,
    help="Look at what consumers gave up, have it handled again, or drop it.",
)
dlq_requests.add_to(app)

LIMIT = 100
"""Dead letters that `list` shows: a page of a terminal or two."""

Limit = Annotated[int, typer.Option("--limit", min=1, help="Show so many, the oldest first.")]
IsAllStates = Annotated[
    bool, typer.Option("--all", help="Those that were handled or dropped, too.")
]
HasKeys = Annotated[bool, typer.Option("--keys", help="Show the messages' keys.")]
HasValue = Annotated[bool, typer.Option("--value", help="Show the message's value.")]


@app.command("list")
def list_(
    *,
    group: Group,
    topic: Topics = None,
    key: Key = None,
    key_hex: KeyHex = None,
    reason_code: ReasonCode = None,
    since: Since = None,
    until: Until = None,
    state: States = None,
    is_all: IsAllStates = False,
    limit: Limit = LIMIT,
    has_keys: HasKeys = False,
    bootstrap_servers: BootstrapServers = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """List a group's dead letters, the oldest first; those that were handled or dropped only when asked for."""
    check_names(group, topic)
    now_ms = _now_ms()
    wanted = make_filter(
        key=key, key_hex=key_hex, reason_code=reason_code, since=since, until=until, state=state, now_ms=now_ms
    )  # fmt: skip
    config = client_config(
        ClientConfig, bootstrap_servers=bootstrap_servers, client_setting=client_setting, insecure=insecure
    )  # fmt: skip
    oldest = _Oldest(limit)
    counts: Counter[str] = Counter()

    def take(found: FoundLetter) -> None:
        if isinstance(found.letter, Undecodable):
            counts["undecodable"] += 1
        elif wanted.lets_through(found):
            counts["found"] += 1
            if is_all or state or found.history.state not in ENDED:
                counts["listed"] += 1
                oldest.add(found)

    with open_logs(config, group, topic or ()) as logs:
        for log in logs.values():
            log.each(take, since_ms=wanted.since_ms)
    rows = [dlq_rows.letter_json(f, now_ms=now_ms, has_key=has_keys) for f in oldest.in_order()]
    if as_json:
        typer.echo(json.dumps(rows))
    elif rows:
        console().print(dlq_rows.list_table(rows, has_key=has_keys))
    else:
        typer.echo("no dead letter is as the filters say")
    _tell_the_rest(counts, shown=len(rows))


@app.command()
def show(
    letter: Annotated[
        str,
        typer.Argument(
            metavar="LETTER", help="TOPIC/PARTITION:OFFSET, with one --topic PARTITION:OFFSET."
        ),
    ],
    *,
    group: Group,
    topic: Topics = None,
    has_value: HasValue = False,
    bootstrap_servers: BootstrapServers = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show one dead letter: where it came from, what went wrong, who asked for what, and what became of it."""
    check_names(group, topic)
    place = parse_letter(letter, topics=topic or ())
    config = client_config(
        ClientConfig, bootstrap_servers=bootstrap_servers, client_setting=client_setting, insecure=insecure
    )  # fmt: skip
    with open_logs(config, group, [place.topic]) as logs:
        log = logs[place.topic]
        found = log.at(place.partition, place.offset)
        if found is None:
            raise UsageError(
                f"{place}: no record stands there in {log.dead_letters} (any more); `txlayer dlq list --group {group}` "
                "shows what there is"
            )  # fmt: skip
        row = dlq_rows.show_json(
            found, log.said_about(place), now_ms=_now_ms(), has_value=has_value
        )
    if as_json:
        typer.echo(json.dumps(row))
    else:
        console().print(dlq_rows.show_tables(row))


class _Oldest:
    """The oldest of many, no more than `limit` in memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[int, int, FoundLetter]] = []  # the newest of them first
        self._count = 0

    def add(self, found: FoundLetter) -> None:
        self._count += 1
        entry = (-found.at_ms, -self._count, found)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, entry)
        elif entry[:2] > self._heap[0][:2]:
            heapq.heapreplace(self._heap, entry)

    def in_order(self) -> list[FoundLetter]:
        return [found for _, _, found in sorted(self._heap, key=lambda e: e[:2], reverse=True)]


def _tell_the_rest(counts: Counter[str], *, shown: int) -> None:
    more, ended = counts["listed"] - shown, counts["found"] - counts["listed"]
    told = []
    if more:
        told.append(f"{more:,} more; --limit shows more")
    if ended:
        told.append(f"{ended:,} were handled or dropped; --all shows them")
    if counts["undecodable"]:
        told.append(
            f"{counts['undecodable']:,} records are no dead letters of the group; `txlayer dlq show` tells why"
        )
    for line in told:
        typer.echo(line, err=True)


def _now_ms() -> int:
    return int(time.time() * 1000)
