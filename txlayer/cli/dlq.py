"""`txlayer dlq`: what a consumer group gave up, why, and what became of it; have it handled again, or drop it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from txlayer.adapters.connect import connect_consumer, connect_producer
from txlayer.cli import dlq_rows, output
from txlayer.cli.options import (
    AsJson,
    Bundle,
    ClusterOptions,
    Connection,
    Operator,
    Reason,
    administration,
    command,
    current_ms,
    option,
    parse_instant,
)
from txlayer.config import ClientConfig, ConsumerConfig, ProducerConfig, parse_duration
from txlayer.consumer.dead_letters import DeadLetterReader
from txlayer.core.dead_letters import DeadLetterState
from txlayer.core.ids import check_group, is_topic_name
from txlayer.core.retry import DeadLetterReason, ReplayKind
from txlayer.errors import ConfigError, UsageError
from txlayer.operate import dead_letters as letters_
from txlayer.operate import replay as replaying
from txlayer.operate.dead_letters import (
    KIND_WORDS,
    DeadLetterFilter,
    DeadLetterLog,
    DeadLetterPlace,
    DeadLetterSelection,
)
from txlayer.operate.replay import DeadLetterOutcome, Listener, ReplayOrder, author_of
from txlayer.operate.requests import Republisher, RequestWriter, transactional_id
from txlayer.runtime.kafka_transactions import KafkaTransactions

app = typer.Typer(no_args_is_help=True, help="Look at what consumers gave up, have it handled again, or drop it.")

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
    key_hex: Annotated[str | None, option("--key-hex", "Only this key, as bytes in hex.", "HEX")] = None
    reason_code: Annotated[
        list[DeadLetterReason] | None, option("--reason-code", "Only those given up for this reason; may be repeated.")
    ] = None
    since: Annotated[
        str | None,
        option(
            "--since", "Only those given up since: so long ago, or a time such as 2026-11-21T10:00:00+00:00.", "2h|TIME"
        ),
    ] = None
    until: Annotated[
        str | None, option("--until", "Only those given up before: so long ago, or a time.", "2h|TIME")
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
                raise ConfigError("not a key", name="--key-hex", value=self.key_hex, expected="hex digits") from exc
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


@command(app, "list")
def list_(
    *,
    group: Group,
    topic: Topics = None,
    filters: DeadLetterFilters,
    state: Annotated[list[DeadLetterState] | None, option("--state", "Only this state; may be repeated.")] = None,
    is_all: Annotated[bool, option("--all", "Those that were handled or dropped, too.")] = False,
    limit: Annotated[int, option("--limit", "Show so many, the oldest first.", min=1)] = LIMIT,
    has_keys: Annotated[bool, option("--keys", "Show the messages' keys.")] = False,
    cluster: ClusterOptions,
    as_json: AsJson = False,
) -> None:
    """List a group's dead letters, the oldest first; those that were handled or dropped only when asked for."""
    check_names(group, topic)
    now_ms = current_ms()
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
    for count, said in (
        (found.listed_count - len(rows), "more; --limit shows more"),
        (found.ended_count, "were handled or dropped; --all shows them"),
        (found.undecodable_count, "records are no dead letters of the group; `txlayer dlq show` tells why"),
    ):
        if count:
            typer.echo(f"{count:,} {said}", err=True)


@command(app)
def show(
    letter: Annotated[
        str, typer.Argument(metavar="LETTER", help="TOPIC/PARTITION:OFFSET, with one --topic PARTITION:OFFSET.")
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
        row = letters_.show_json(found, log.said_about(place), now_ms=current_ms(), has_value=has_value)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking(DeadLetterFilters):
    """For which dead letters something is asked, by whom, and how."""

    topic: Topics = None
    is_all: Annotated[bool, option("--all", "All that the filters let through and that were not asked for yet.")] = (
        False
    )
    limit: Annotated[int | None, option("--limit", "With --all: so many, the oldest.", min=1)] = None
    reason: Reason = ""
    operator: Operator = None
    request_id: RequestId = None
    rate: Annotated[float | None, option("--rate", "At most so many a second.", min=0.001)] = None
    dry_run: Annotated[bool, option("--dry-run", "Show what would be asked for, ask nothing.")] = False
    yes: Annotated[bool, option("--yes", "With --all: do not ask me.")] = False
    wait: Annotated[
        str, option("--wait", "How long no result may come before the command ends; 0s: do not wait.", "30s")
    ] = "30s"

    def order(self, kind: ReplayKind, group: str, letters: Sequence[str] | None, **more: Any) -> ReplayOrder:
        """What the options say together.

        Raises:
            ConfigError, UsageError: one has the wrong form, or two contradict each other.
        """
        topics = tuple(self.topic or ())
        check_names(group, topics)
        order = ReplayOrder(
            kind,
            group,
            topics,
            tuple(parse_letter(text, topics=topics) for text in letters or ()),
            self.is_all,
            self.read(now_ms=current_ms()),
            self.limit,
            self.rate,
            author_of(
                f"txlayer dlq {KIND_WORDS[kind.value]}",
                operator=self.operator,
                reason=self.reason,
                request_id=self.request_id,
            ),
            parse_duration("--wait", self.wait).total_seconds(),
            **more,
        )
        order.check()
        return order


IsAgain = Annotated[bool, option("--again", "Also those named that were handled, dropped or asked for already.")]
IsOnly = Annotated[
    bool, option("--only", "Of a parked key, only those chosen: later ones may be handled before earlier ones then.")
]
To = Annotated[
    str | None,
    option(
        "--to", "Publish copies there instead, with the header txl-replay; the dead letters stay as they are.", "TOPIC"
    ),
]


@command(app, "replay", help=HELP[ReplayKind.REPLAY] + _EXITS)
def _replay(
    letters: Letters = None,
    *,
    group: Group,
    asking: Asking,
    is_again: IsAgain = False,
    is_only: IsOnly = False,
    to: To = None,
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    order = asking.order(ReplayKind.REPLAY, group, letters, is_again=is_again, is_only=is_only, to=to)
    _carry_out(order, asking, connection, as_json=as_json)


@command(app, "drop", help=HELP[ReplayKind.DROP] + _EXITS)
def _drop(
    letters: Letters = None, *, group: Group, asking: Asking, cluster: ClusterOptions, as_json: AsJson = False
) -> None:
    order = asking.order(ReplayKind.DROP, group, letters)
    _carry_out(order, asking, cluster, as_json=as_json)


def _carry_out(order: ReplayOrder, asking: Asking, cluster: ClusterOptions, *, as_json: bool) -> None:
    """Do what was asked, and print what became of each.

    Raises:
        typer.Exit: not all are as they were asked to be.
        TxLayerError: it could not be done; run again with the same request id, it goes on where it was.
    """
    config = cluster.config(ProducerConfig)
    topics = order.topics or tuple(dict.fromkeys(name.topic for name in order.names))
    with open_logs(config, order.group, topics) as logs:
        if order.to is not None:
            outcomes = _republish(order, order.to, cluster.config(ConsumerConfig), logs, asking)
        elif asking.dry_run:
            outcomes = replaying.planned(order, _confirmed(order, logs, asking))
        else:
            choice = _confirmed(order, logs, asking)
            with request_writer(config, order.group) as writer:
                outcomes = replaying.ask(order, writer, logs, choice, _listener())
    is_waiting = order.patience_s > 0
    output.report(
        outcomes,
        is_good=lambda o: replaying.is_good(o, order.kind, is_waiting=is_waiting),
        sentence=lambda o: dlq_rows.sentence(o, order.kind),
        to_json=lambda o: replaying.outcome_json(o, order.kind),
        nothing="no dead letter is as the filters say; nothing was asked for",
        as_json=as_json,
    )


def _republish(
    order: ReplayOrder, to: str, config: ConsumerConfig, logs: Mapping[str, DeadLetterLog], asking: Asking
) -> list[DeadLetterOutcome]:
    with administration(config) as admin:
        replaying.check_target(to, logs, admin=admin, topics=config.topics)
    with closing(connect_consumer(config)) as connections:
        request_id = order.author.request_id
        name = transactional_id(order.group, request_id)
        with closing(KafkaTransactions(connections, name=name)) as transactions:
            republisher = Republisher(
                transactions, group=order.group, request_id=request_id, to=to, text=order.author.text
            )
            if not asking.dry_run:
                republisher.start()
                for log in logs.values():
                    log.follow()  # what an earlier run did, whose end is known now
            choice = _confirmed(order, logs, asking)
            if asking.dry_run:
                return replaying.planned(order, choice)
            with closing(DeadLetterReader(connections)) as reader:
                return replaying.republish(order, republisher, reader, logs, choice, _listener())


def _listener() -> Listener:
    """Says on standard error how far a request is, and the name to run it again with."""

    def say(sentence: str) -> None:
        typer.echo(sentence, err=True)

    return Listener(
        begun=lambda request_id: say(f"request id {request_id}"),
        joined=lambda count: say(f"{count:,} more followed their parked keys meanwhile and are asked for too"),
        progress=output.progress,
    )


def _confirmed(order: ReplayOrder, logs: Mapping[str, DeadLetterLog], asking: Asking) -> DeadLetterSelection:
    """The dead letters that the order is about; many are asked for only when a person says so.

    Raises: as `output.confirm`.
    """
    choice = replaying.choose_for(order, logs)
    keys = f"{choice.parked_key_count:,} parked keys"
    for count, said in (
        (
            choice.added_count,
            f"more dead letters of {keys} go with them, so that their order is kept; --only leaves them out",
        ),
        (
            choice.undecodable_count,
            "records are no dead letters of the group and left out; `txlayer dlq show` tells why",
        ),
    ):
        if count:
            typer.echo(f"{count:,} {said}", err=True)
    if choice.left_count and order.kind is ReplayKind.REPLAY and order.to is None:
        said = f"dead letters of {keys} are left out: these keys lose their order"
        typer.echo(f"warning: {choice.left_count:,} {said}", err=True)
    count = len(choice.chosen)
    if order.is_all and count and not (asking.yes or asking.dry_run):
        first = choice.in_turn[: output.SAMPLE_COUNT]
        sample = [letters_.chosen_json(c, now_ms=current_ms()) for c in first]
        output.confirm(
            f"{order.command} --all: {count:,} dead letters",
            f"{KIND_WORDS[order.kind.value]} these {count:,} dead letters?",
            sample=dlq_rows.list_table(sample, has_key=False),
            more_count=count - len(sample),
        )
    return choice


# --- the cluster -------------------------------------------------------------------------------------------------------


@contextmanager
def open_logs(config: ClientConfig, group: str, topics: Sequence[str] = ()) -> Iterator[dict[str, DeadLetterLog]]:
    """As `operate.dead_letters.open_logs`, with clients of its own."""
    from txlayer.adapters.kafka.client import PlainReader

    with administration(config) as admin:
        yield letters_.open_logs(admin, group, topics, make_reader=lambda: PlainReader(config))


@contextmanager
def request_writer(config: ProducerConfig, group: str) -> Iterator[RequestWriter]:
    """What writes requests to a group's replay topics."""
    with closing(connect_producer(config)) as connections:
        yield RequestWriter(lambda batch_bytes: connections.make_half_writer(batch_bytes_max=batch_bytes), group=group)
