"""`txlayer dlq`: what a consumer group gave up, why, and what became of it; have it handled again, or drop it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from txlayer.adapters.connect import connect_producer
from txlayer.cli import dlq_rows, output
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import (
    AsJson,
    Bundle,
    ClusterOptions,
    Connection,
    Operator,
    Reason,
    option,
    parse_instant,
    with_bundles,
)
from txlayer.config import ClientConfig, ProducerConfig, parse_duration
from txlayer.core.dead_letters import DeadLetterState
from txlayer.core.ids import check_group, is_topic_name
from txlayer.core.retry import DeadLetterReason, ReplayKind
from txlayer.errors import ConfigError, UsageError
from txlayer.operate import dead_letters as letters_
from txlayer.operate import replay as replaying
from txlayer.operate.dead_letters import (
    DeadLetterFilter,
    DeadLetterLog,
    DeadLetterPlace,
    DeadLetterSelection,
)
from txlayer.operate.replay import DeadLetterOutcome, ReplayOrder, author_of
from txlayer.operate.requests import RequestWriter, transactional_id
from txlayer.runtime.kafka_transactions import KafkaTransactions

if TYPE_CHECKING:
    from txlayer.adapters.kafka.admin import KafkaAdmin
    from txlayer.adapters.kafka.client import PlainReader
    from txlayer.adapters.kafka.writers import KafkaTransactionalWriter

app = typer.Typer(
    no_args_is_help=True,
    help="Look at what consumers gave up, have it handled again, or drop it.",
)

KAFKA_TRANSACTION_MS = 10_000
"""The broker ends a command's Kafka transaction that hangs; readers of its target wait for so long at most."""

LIMIT = 100
"""Dead letters that `list` shows: a page of a terminal or two."""

# --- which dead letters ------------------------------------------------------------------------------------------------

Group = Annotated[str, option("--group", "The consumer group that gave the messages up.", "GROUP")]

Topics = Annotated[
    list[str] | None,
    option(
        "--topic",
        "Only messages of this topic; may be repeated. Default: every topic that the group has dead letters of.",
        "TOPIC",
    ),
]

Letters = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="LETTER…",
        help="Dead letters as `list` names them: TOPIC/PARTITION:OFFSET, with one --topic PARTITION:OFFSET.",
        show_default=False,
    ),
]

RequestId = Annotated[
    str | None,
    option(
        "--request-id",
        "Name of the request; the same again asks only for what was not asked for yet. Default: a new one.",
        "ID",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilters(Bundle):
    """Which dead letters a command is about."""

    key: Annotated[str | None, option("--key", "Only this key, as UTF-8.", "TEXT")] = None
    key_hex: Annotated[
        str | None, option("--key-hex", "Only this key, as bytes in hex.", "HEX")
    ] = None
    reason_code: Annotated[
        list[DeadLetterReason] | None,
        option("--reason-code", "Only those given up for this reason; may be repeated."),
    ] = None
    since: Annotated[
        str | None,
        option(
            "--since",
            "Only those given up since: so long ago, or a time such as 2026-11-21T10:00:00+00:00.",
            "2h|TIME",
        ),
    ] = None
    until: Annotated[
        str | None,
        option("--until", "Only those given up before: so long ago, or a time.", "2h|TIME"),
    ] = None

    def read(self, *, states: Sequence[DeadLetterState] = (), now_ms: int) -> DeadLetterFilter:
        """What the options say together.

        Raises:
            ConfigError, UsageError: one has the wrong form, or two contradict each other.
        """
        if self.key is not None and self.key_hex is not None:
            raise UsageError("--key and --key-hex: name the key once")
        raw = None if self.key is None else self.key.encode("utf-8", "surrogateescape")
        if self.key_hex is not None:
            try:
                raw = bytes.fromhex(self.key_hex)
            except ValueError as exc:
                raise ConfigError(
                    "not a key", name="--key-hex", value=self.key_hex, expected="hex digits"
                ) from exc
        return DeadLetterFilter(
            raw,
            frozenset(self.reason_code or ()),
            None if self.since is None else parse_instant("--since", self.since, now_ms=now_ms),
            None if self.until is None else parse_instant("--until", self.until, now_ms=now_ms),
            frozenset(states),
        )


def parse_letter(text: str, *, topics: Sequence[str]) -> DeadLetterPlace:
    """`orders/3:17`, or `3:17` where `topics` has one.

    Raises:
        UsageError: it has another form.
    """
    match = re.fullmatch(r"(?:([^/]+)/)?(\d{1,9}):(\d{1,18})", text, re.ASCII)
    topic = None if match is None else match[1] or (topics[0] if len(topics) == 1 else None)
    if match is None or topic is None or not is_topic_name(topic):
        raise UsageError(
            f"{text[:80]!r} names no dead letter: TOPIC/PARTITION:OFFSET is asked for, as `txlayer dlq list` shows it, or "
            "PARTITION:OFFSET with one --topic"
        )
    return DeadLetterPlace(topic, int(match[2]), int(match[3]))


def check_names(group: str, topics: Sequence[str] | None) -> None:
    """Refuse what topics cannot be named after.

    Raises:
        UsageError: a name is out of form.
    """
    check_group(group)
    for topic in topics or ():
        if not is_topic_name(topic):
            raise UsageError(f"--topic {topic[:80]!r}: no topic can have this name")


# --- looking -----------------------------------------------------------------------------------------------------------


@app.command("list")
@with_bundles
def list_(
    *,
    group: Group,
    topic: Topics = None,
    filters: DeadLetterFilters,
    state: Annotated[
        list[DeadLetterState] | None, option("--state", "Only this state; may be repeated.")
    ] = None,
    is_all: Annotated[bool, option("--all", "Those that were handled or dropped, too.")] = False,
    limit: Annotated[int, option("--limit", "Show so many, the oldest first.", min=1)] = LIMIT,
    has_keys: Annotated[bool, option("--keys", "Show the messages' keys.")] = False,
    cluster: ClusterOptions,
    as_json: AsJson = False,
) -> None:
    """List a group's dead letters, the oldest first; those that were handled or dropped only when asked for."""
    check_names(group, topic)
    now_ms = _now_ms()
    wanted = filters.read(states=state or (), now_ms=now_ms)
    with open_logs(cluster.config(ClientConfig), group, topic or ()) as logs:
        found = letters_.list_letters(logs, wanted, is_all=is_all or bool(state), limit=limit)
    rows = [letters_.letter_json(f, now_ms=now_ms, has_key=has_keys) for f in found.letters]
    output.show_rows(
        rows,
        lambda rows: dlq_rows.list_table(rows, has_key=has_keys),
        as_json=as_json,
        nothing="no dead letter is as the filters say",
    )
    if found.listed_count > len(rows):
        typer.echo(f"{found.listed_count - len(rows):,} more; --limit shows more", err=True)
    if found.ended_count:
        typer.echo(f"{found.ended_count:,} were handled or dropped; --all shows them", err=True)
    if found.undecodable_count:
        typer.echo(
            f"{found.undecodable_count:,} records are no dead letters of the group; `txlayer dlq show` tells why",
            err=True,
        )


@app.command()
@with_bundles
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
    has_value: Annotated[bool, option("--value", "Show the message's value.")] = False,
    cluster: ClusterOptions,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: where it came from, what went wrong, who asked for what, and what became of it."""
    check_names(group, topic)
    place = parse_letter(letter, topics=topic or ())
    with open_logs(cluster.config(ClientConfig), group, [place.topic]) as logs:
        log = logs[place.topic]
        found = log.at(place.partition, place.offset)
        if found is None:
            raise UsageError(
                f"{place}: there is no record in {log.dead_letters} (any more); `txlayer dlq list --group {group}` "
                "shows what there is"
            )
        row = letters_.show_json(
            found, log.said_about(place), now_ms=_now_ms(), has_value=has_value
        )
    output.show(row, dlq_rows.show_tables, as_json=as_json)


# --- asking ------------------------------------------------------------------------------------------------------------

_EXITS = """

    The request is recorded on the replay topic with your name and reason, and the consumer that owns the partition carries
    it out. Exit codes: 0 it is so, 1 not all are (the output names each), 2 usage, 3 no broker, 5 not authorised."""


HELP = {
    ReplayKind.REPLAY: """Have dead letters handled again by their consumer group, in order per key.

    Nothing goes into their topic again. Those of a parked key are replayed whole, and then the key is released.""",
    ReplayKind.DROP: """Drop dead letters: no consumer handles them.

    They stay readable until the topic's retention removes them.""",
}

IsAll = Annotated[
    bool, option("--all", "All that the filters let through and that were not asked for yet.")
]

Limit = Annotated[int | None, option("--limit", "With --all: so many, the oldest.", min=1)]

DryRun = Annotated[bool, option("--dry-run", "Show what would be asked for, ask nothing.")]

Yes = Annotated[bool, option("--yes", "With --all: do not ask me.")]

Rate = Annotated[float | None, option("--rate", "At most so many a second.", min=0.001)]

Wait = Annotated[
    str,
    option(
        "--wait", "How long no result may come before the command ends; 0s: do not wait.", "30s"
    ),
]

IsAgain = Annotated[
    bool, option("--again", "Also those named that were handled, dropped or asked for already.")
]

IsOnly = Annotated[
    bool,
    option(
        "--only",
        "Of a parked key, only those chosen: later ones may be handled before earlier ones then.",
    ),
]

To = Annotated[
    str | None,
    option(
        "--to",
        "Publish copies there instead, with the header txl-replay; the dead letters stay as they are.",
        "TOPIC",
    ),
]


@app.command("replay", help=HELP[ReplayKind.REPLAY] + _EXITS)
@with_bundles
def _replay(
    letters: Letters = None,
    *,
    group: Group,
    reason: Reason = "",
    operator: Operator = None,
    request_id: RequestId = None,
    topic: Topics = None,
    is_all: IsAll = False,
    filters: DeadLetterFilters,
    limit: Limit = None,
    is_again: IsAgain = False,
    is_only: IsOnly = False,
    to: To = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = "30s",
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    check_names(group, topic)
    author = author_of(
        "txlayer dlq replay", operator=operator, reason=reason, request_id=request_id
    )
    order = ReplayOrder(
        ReplayKind.REPLAY,
        group,
        tuple(topic or ()),
        _names(letters, topic),
        is_all,
        filters.read(now_ms=_now_ms()),
        limit,
        rate,
        author,
        parse_duration("--wait", wait).total_seconds(),
        is_again=is_again,
        is_only=is_only,
        to=to,
    )
    _carry_out(order, connection.config(ProducerConfig), dry_run=dry_run, yes=yes, as_json=as_json)


@app.command("drop", help=HELP[ReplayKind.DROP] + _EXITS)
@with_bundles
def _drop(
    letters: Letters = None,
    *,
    group: Group,
    reason: Reason = "",
    operator: Operator = None,
    request_id: RequestId = None,
    topic: Topics = None,
    is_all: IsAll = False,
    filters: DeadLetterFilters,
    limit: Limit = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Wait = "30s",
    cluster: ClusterOptions,
    as_json: AsJson = False,
) -> None:
    check_names(group, topic)
    author = author_of("txlayer dlq drop", operator=operator, reason=reason, request_id=request_id)
    order = ReplayOrder(
        ReplayKind.DROP,
        group,
        tuple(topic or ()),
        _names(letters, topic),
        is_all,
        filters.read(now_ms=_now_ms()),
        limit,
        rate,
        author,
        parse_duration("--wait", wait).total_seconds(),
    )
    _carry_out(order, cluster.config(ProducerConfig), dry_run=dry_run, yes=yes, as_json=as_json)


def _carry_out(
    order: ReplayOrder, config: ProducerConfig, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Do what was asked, and print what became of each.

    Raises:
        typer.Exit: not all are as they were asked to be.
        TxLayerError: it could not be done; run again with the same request id, it goes on where it was.
    """
    order.check()
    topics = order.topics or tuple(dict.fromkeys(name.topic for name in order.names))
    with open_logs(config, order.group, topics) as logs:
        if order.to is not None:
            outcomes = _republish(order, order.to, config, logs, dry_run=dry_run, yes=yes)
        else:
            choice = replaying.choose_for(order, logs)
            _warn(order, choice)
            if dry_run:
                outcomes = replaying.planned(order, choice)
            else:
                _confirm(order, choice, yes=yes)
                with request_writer(config, order.group) as writer:
                    outcomes = replaying.ask(order, writer, logs, choice, _Telling())
    is_waiting = order.patience_s > 0
    good = [o for o in outcomes if replaying.is_good(o, order.kind, is_waiting=is_waiting)]
    bad = [o for o in outcomes if not replaying.is_good(o, order.kind, is_waiting=is_waiting)]
    if as_json:
        typer.echo(json.dumps([replaying.outcome_json(o, order.kind) for o in outcomes]))
    else:
        output.print_outcomes(
            (dlq_rows.sentence(o, order.kind) for o in good),
            (dlq_rows.sentence(o, order.kind) for o in bad),
            nothing="no dead letter is as the filters say; nothing was asked for",
        )
    if bad:
        raise typer.Exit(ExitCode.FINDING)


def _republish(
    order: ReplayOrder,
    to: str,
    config: ProducerConfig,
    logs: Mapping[str, DeadLetterLog],
    *,
    dry_run: bool,
    yes: bool,
) -> list[DeadLetterOutcome]:
    from txlayer.adapters.kafka.admin import KafkaAdmin

    with KafkaAdmin(config) as admin:
        replaying.check_target(to, logs, admin=admin, topics=config.topics)
        transactions = KafkaTransactions(
            _Writers(config), name=transactional_id(order.group, order.author.request_id)
        )
        try:
            copying = replaying.Republishing(
                transactions, _Sweeping(admin, config), order.group, order.author, to
            )
            if not dry_run:
                copying.start(logs)
            choice = replaying.choose_for(order, logs)
            _warn(order, choice)
            if dry_run:
                return replaying.planned(order, choice)
            _confirm(order, choice, yes=yes)
            return copying.publish(choice, logs, rate_max=order.rate, listener=_Telling())
        finally:
            transactions.close()


class _Telling:
    """Says on standard error how far a request is."""

    def begun(self, request_id: str) -> None:
        """The name to run it again with."""
        typer.echo(f"request id {request_id}", err=True)

    def joined(self, count: int) -> None:
        """More than were asked for at first."""
        typer.echo(
            f"{count:,} more followed their parked keys meanwhile and are asked for too", err=True
        )

    def progress(self, what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """A bar."""
        return output.progress(what, total)


def _warn(order: ReplayOrder, choice: DeadLetterSelection) -> None:
    if choice.added_count:
        typer.echo(
            f"{choice.added_count:,} more dead letters of {choice.parked_key_count:,} parked keys go with them, so that "
            "their order is kept; --only leaves them out",
            err=True,
        )
    if choice.left_count and order.kind is ReplayKind.REPLAY and order.to is None:
        typer.echo(
            f"warning: {choice.left_count:,} dead letters of {choice.parked_key_count:,} parked keys are left out: these "
            "keys lose their order",
            err=True,
        )
    if choice.undecodable_count:
        typer.echo(
            f"{choice.undecodable_count:,} records are no dead letters of the group and left out; `txlayer dlq show` "
            "tells why",
            err=True,
        )


def _confirm(order: ReplayOrder, choice: DeadLetterSelection, *, yes: bool) -> None:
    if not order.is_all or not choice.chosen or yes:
        return
    now_ms, count = _now_ms(), len(choice.chosen)
    sample = [letters_.chosen_json(c, now_ms=now_ms) for c in choice.in_turn[: output.SAMPLE_COUNT]]
    what = "drop" if order.kind is ReplayKind.DROP else "replay"
    output.confirm_bulk(
        f"{order.command} --all: {count:,} dead letters",
        f"{what} these {count:,} dead letters?",
        sample=dlq_rows.list_table(sample, has_key=False),
        more_count=count - len(sample),
    )


def _names(
    letters: Sequence[str] | None, topics: Sequence[str] | None
) -> tuple[DeadLetterPlace, ...]:
    return tuple(parse_letter(text, topics=topics or ()) for text in letters or ())


def _now_ms() -> int:
    return int(time.time() * 1000)


# --- the cluster -------------------------------------------------------------------------------------------------------


@contextmanager
def open_logs(
    config: ClientConfig, group: str, topics: Sequence[str] = ()
) -> Iterator[dict[str, DeadLetterLog]]:
    """As `operate.dead_letters.open_logs`, with clients of its own."""
    from txlayer.adapters.kafka.admin import KafkaAdmin
    from txlayer.adapters.kafka.client import PlainReader

    with KafkaAdmin(config) as admin:
        yield letters_.open_logs(admin, group, topics, make_reader=lambda: PlainReader(config))


@contextmanager
def request_writer(config: ProducerConfig, group: str) -> Iterator[RequestWriter]:
    """What writes requests to a group's replay topics."""
    connections = connect_producer(config)
    try:
        yield RequestWriter(
            lambda batch_bytes: connections.make_half_writer(batch_bytes_max=batch_bytes),
            group=group,
        )
    finally:
        connections.close()


class _Writers:
    """Makes transactional writers."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config

    def make_writer(
        self, transactional_id: str, *, batch_bytes_max: int
    ) -> KafkaTransactionalWriter:
        """A writer, not initialised yet."""
        from txlayer.adapters.kafka.writers import KafkaTransactionalWriter

        return KafkaTransactionalWriter(
            self._config,
            transactional_id=transactional_id,
            timeout_ms=KAFKA_TRANSACTION_MS,
            batch_bytes_max=batch_bytes_max,
        )


class _Sweeping:
    """What a sweep over dead letters asks of the cluster."""

    def __init__(self, admin: KafkaAdmin, config: ClientConfig) -> None:
        self._config = config
        self.start_offsets = admin.start_offsets
        self.end_offsets = admin.end_offsets

    def make_reader(self, isolation: str) -> PlainReader:
        """A reader that assigns itself."""
        from txlayer.adapters.kafka.client import PlainReader

        return PlainReader(self._config, isolation=isolation)
