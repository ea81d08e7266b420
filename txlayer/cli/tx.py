"""`txlayer tx`: what is open, since when, and what became of a transaction; its other commands stand in files of their own."""

from __future__ import annotations

import heapq
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from txlayer.adapters.connect import connect_coordinator
from txlayer.adapters.coordinator_status import read_status
from txlayer.adapters.history import HalfPlace
from txlayer.adapters.history_port import HistoryStart
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.connections import KafkaHistoryReader
from txlayer.adapters.telemetry import printable
from txlayer.cli import aside_rows, tables, tx_export, tx_rows, tx_settle, tx_show_rows
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Json,
    Namespace,
    client_config,
)
from txlayer.cli.tx_filters import (
    Filter,
    GroupFilter,
    IsHeld,
    IsOpen,
    IsParked,
    OlderThan,
    ReasonCode,
    StateFilter,
    TopicFilter,
    YoungerThan,
    make_filter,
)
from txlayer.config import ClientConfig, CoordinatorConfig, milliseconds, parse_duration
from txlayer.coordinator.overview import Overview, Standing
from txlayer.coordinator.stored import decode_stored
from txlayer.core import codec
from txlayer.core.asides import Aside
from txlayer.core.history import TransactionHistory
from txlayer.core.ids import check_txn_id
from txlayer.core.messages import Origin
from txlayer.errors import ConfigError, UsageError

app = typer.Typer(
    no_args_is_help=True, help="Look at transactions, and settle by hand what nobody else settles."
)
tx_settle.add_to(app)
tx_export.add_to(app)

LIMIT = 100
"""Transactions that `list` shows: a page of a terminal or two."""

PREPARE_TIME_MS = 10 * 60 * 1000
"""Half records of one transaction lie closer together than this: a producer gives up after `prepare_timeout`."""

KeptAside = Annotated[
    bool,
    typer.Option(
        "--kept-aside",
        help="Show instead the records that nobody can read, or that stood in the wrong place.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Show so many, the oldest first.")]
What = Annotated[
    str,
    typer.Argument(
        metavar="ID|PARTITION:OFFSET|ORIGIN",
        help="A transaction id; where one of its half messages stands (as in the header txl-origin); "
        "or a record kept aside, as `list --kept-aside` names it.",
    ),
]
Since = Annotated[
    str, typer.Option("--since", metavar="1h", help="Read half, op and check from so long ago.")
]
IsId = Annotated[
    bool, typer.Option("--id", help="It is an id, even if it looks like PARTITION:OFFSET.")
]


@app.command("list")
def list_(
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    is_open: IsOpen = False,
    is_parked: IsParked = False,
    is_held: IsHeld = False,
    group: GroupFilter = None,
    topic: TopicFilter = None,
    state: StateFilter = None,
    reason_code: ReasonCode = None,
    older_than: OlderThan = None,
    younger_than: YoungerThan = None,
    kept_aside: KeptAside = False,
    limit: Limit = LIMIT,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show the transactions that are not settled, the oldest first; or the records that were kept aside.

    They are read from the low-water mark on. Ages count from the broker's append time of the first half message.
    """
    wanted = make_filter(
        group=group, topic=topic, state=state, is_open=is_open, is_parked=is_parked, is_held=is_held,
        reason_code=reason_code, older_than=older_than, younger_than=younger_than,
    )  # fmt: skip
    if kept_aside and wanted != Filter(older_ms=wanted.older_ms):
        raise UsageError(
            "--kept-aside: such a record has neither group, topic, state nor reason code; of the filters it takes "
            "--older-than alone"
        )
    config = client_config(
        CoordinatorConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    now_ms = _now_ms()
    with _overview(config) as overview:
        asides = overview.kept_aside()
        if kept_aside:
            _list_asides(
                [a for a in asides if now_ms - a.kept_ms >= (wanted.older_ms or 0)],
                config=config, limit=limit, now_ms=now_ms, as_json=as_json,
            )  # fmt: skip
            return
        matching = _Counted(
            found for found in overview.standing() if wanted.lets_through(found, now_ms=now_ms)
        )
        # Never all of them at once: of a million only the oldest hundred are wanted.
        oldest = heapq.nsmallest(limit, matching, key=_by_age)
    rows = [tx_rows.standing_json(found, now_ms=now_ms) for found in oldest]
    if as_json:
        typer.echo(json.dumps(rows))
    elif not rows:
        kind = "" if wanted.is_empty else " of this kind"
        typer.echo(f"nothing{kind} is open in {config.namespace}")
    else:
        tables.console().print(tx_rows.list_table(rows))
    _say_more(matching.count - len(rows), as_json=as_json)
    if asides:
        typer.echo(f"{len(asides):,} kept aside; --kept-aside shows what", err=as_json)


def _list_asides(
    asides: list[Aside], *, config: ClientConfig, limit: int, now_ms: int, as_json: bool
) -> None:
    oldest = heapq.nsmallest(limit, asides, key=lambda a: (a.kept_ms, a.place))
    rows = [aside_rows.aside_json(found, now_ms=now_ms) for found in oldest]
    if as_json:
        typer.echo(json.dumps(rows))
    elif not rows:
        typer.echo(f"nothing is kept aside in {config.namespace}")
    else:
        tables.console().print(aside_rows.aside_list(rows))
    _say_more(len(asides) - len(rows), as_json=as_json)


def _say_more(left_count: int, *, as_json: bool) -> None:
    if left_count:
        typer.echo(f"{left_count:,} more, younger than these; --limit shows more", err=as_json)


@app.command()
def stats(
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Count what is not settled, by group and state, and what was kept aside; and say how far half, op and doubt reach."""
    config = client_config(
        CoordinatorConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    with KafkaAdmin(config) as admin:
        status = read_status(admin, config.topics)
    now_ms = _now_ms()
    counts: Counter[tuple[str, str]] = Counter()
    oldest_ms: dict[tuple[str, str], int] = {}
    doubt_counts: Counter[int] = Counter()
    with _overview(config) as overview:
        aside_counts = Counter(found.place.partition for found in overview.kept_aside())
        for partition, state, txn in overview.standing():
            kind = (txn.group, state)
            counts[kind] += 1
            oldest_ms[kind] = min(txn.appended_ms, oldest_ms.get(kind, txn.appended_ms))
            doubt_counts[partition] += txn.is_in_doubt
    body = {
        "namespace": config.namespace,
        "transaction_count": counts.total(),
        "oldest_age_ms": max((now_ms - at_ms for at_ms in oldest_ms.values()), default=None),
        "kept_aside_count": aside_counts.total(),
        "states": [
            {
                "producer_group": group,
                "state": state,
                "count": count,
                "oldest_age_ms": max(now_ms - oldest_ms[group, state], 0),
            }
            for (group, state), count in sorted(counts.items())
        ],
        "partitions": [
            tx_rows.partition_json(
                p, doubt_count=doubt_counts[p.partition], aside_count=aside_counts[p.partition]
            )
            for p in status.partitions
        ],
    }
    if as_json:
        typer.echo(json.dumps(body))
    else:
        tables.console().print(tx_rows.stats_tables(body))


@app.command()
def show(
    what: What,
    *,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    since: Since = "1h",
    is_id: IsId = False,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show what the topics say about one transaction: half messages, check-backs, resolutions, its place on doubt.

    One id may have had several attempts, each with its nonce: every one is shown. Exit code 1 when nothing is found.
    """
    config = client_config(
        CoordinatorConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    place = None if is_id else parse_place(what)
    wanted = codec.parse_kept_aside_key(what.encode(errors="replace"))
    if place is not None:
        wanted = Origin(config.topics.half, *place), None
    if wanted is not None and _show_aside(config, wanted, as_json=as_json):
        return
    if place is not None:
        histories, searched = _histories_at(config, *place)
    elif wanted is not None:
        histories, searched = [], f"{config.topics.doubt} holds nothing under {what}"
    else:
        start = HistoryStart(parse_since(since, now_ms=_now_ms()))
        reader = KafkaHistoryReader(config)
        histories = reader.read(check_txn_id(what), start=start, with_checks=True)
        searched = (
            f"half, op and check of the last {since}, and doubt, of the namespace {config.namespace} hold nothing about "
            f"the id {what}; --since goes further back"
        )
    if not histories:
        typer.echo(printable(f"not found: {searched}"), err=True)
        raise typer.Exit(ExitCode.FINDING)
    rows = [
        tx_show_rows.history_json(h, is_applied=applied)
        for h, applied in zip(histories, _are_applied(config, histories), strict=True)
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        tables.console().print(tx_show_rows.history_tables(row))


def parse_since(text: str, *, now_ms: int) -> int:
    """When the time began that `--since` names; 1970 when it is longer ago, because Kafka knows no earlier time.

    Raises:
        ConfigError: it is no length of time.
    """
    return max(now_ms - milliseconds(parse_duration("--since", text)), 0)


def parse_place(text: str) -> tuple[int, int] | None:
    """(partition, offset) of `7:16`, or of a whole header `txl-origin`; None: it is neither."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,18})(\|.*)?", text, re.ASCII)
    return None if match is None else (int(match[1]), int(match[2]))


def _show_aside(
    config: CoordinatorConfig, wanted: tuple[Origin, int | None], *, as_json: bool
) -> bool:
    """Print the record kept aside that stood there; False: there is none."""
    with _overview(config) as overview:
        asides = overview.kept_aside([wanted[0].partition])
    found = next((a for a in asides if (a.origin, a.line) == wanted), None)
    if found is None:
        return False
    row = aside_rows.aside_json(found, now_ms=_now_ms())
    if as_json:
        typer.echo(json.dumps([row]))
    else:
        tables.console().print(aside_rows.aside_table(row))
    return True


def _histories_at(
    config: ClientConfig, partition: int, offset: int
) -> tuple[list[TransactionHistory], str]:
    """The one transaction whose half message stands there, and what was found when it is none."""
    reader = KafkaHistoryReader(config)
    found = reader.half_at(partition, offset)
    if not isinstance(found, HalfPlace):
        return [], found
    start = HistoryStart(found.appended_ms, position=(partition, offset))
    if found.index:
        start = HistoryStart(found.appended_ms - PREPARE_TIME_MS)
    histories = reader.read(found.txn_id, start=start, partitions=[partition], with_checks=True)
    return [h for h in histories if h.nonce == found.nonce], ""


def _are_applied(
    config: ClientConfig, histories: list[TransactionHistory]
) -> Iterator[bool | None]:
    """For each: whether the stored offsets are beyond its decision; None without one, or where nothing is stored."""
    topics = config.topics
    partitions = {h.partition for h in histories}
    wanted = [(topic, p) for p in partitions for topic in (topics.half, topics.op)]
    with KafkaAdmin(config) as admin:
        stored = admin.stored_offsets(topics.coordinator_group, wanted)
    for history in histories:
        half, op = (stored[topic, history.partition] for topic in (topics.half, topics.op))
        if history.decided_at is None or half is None or op is None:
            yield None
            continue
        try:
            positions = decode_stored(half, op, partition=history.partition).positions
        except ConfigError:
            yield None  # stored by somebody else: nobody knows what it means
        else:
            yield history.decided_at < (positions.op_offset, positions.op_line)


@contextmanager
def _overview(config: CoordinatorConfig) -> Iterator[Overview]:
    connections = connect_coordinator(config, is_one_shot=True)
    try:
        yield Overview(config, connections)
    finally:
        connections.close()


class _Counted:
    """Counts what passes through."""

    def __init__(self, found: Iterable[Standing]) -> None:
        self._found = found
        self.count = 0

    def __iter__(self) -> Iterator[Standing]:
        for found in self._found:
            self.count += 1
            yield found


def _by_age(found: Standing) -> tuple[int, int, int]:
    return found.txn.appended_ms, found.partition, found.txn.first_offset


def _now_ms() -> int:
    return int(time.time() * 1000)
