"""`txlayer dlq`: what a consumer group gave up, why, and what became of it; have it handled again, or drop it."""

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Group as Below
from rich.console import RenderableType
from rich.table import Table

from txlayer.adapters.connect import kafka_clients
from txlayer.adapters.telemetry import printable
from txlayer.cli import output
from txlayer.cli.exits import ExitCode, saying
from txlayer.cli.options import (
    AsJson,
    Bundle,
    ClusterOptions,
    Operator,
    Reason,
    brokers_ms,
    command,
    current_ms,
    declared,
    option,
    parse_instant,
)
from txlayer.config import ClientConfig, parse_duration
from txlayer.core.dead_letters import DeadLetterReason, DeadLetterState, ReplayKind
from txlayer.errors import ConfigError, OutcomeUnknownError, RetriableError, UsageError
from txlayer.operate import Json, dead_letters, time_text
from txlayer.operate import replay as replaying
from txlayer.operate.dead_letters import DeadLetterFilter, Logs, opened_logs, parse_letter

app = typer.Typer(no_args_is_help=True, help="Look at what consumers gave up, have it handled again, or drop it.")

LIMIT = 100  # dead letters that `list` shows: a page of a terminal or two

# --- which dead letters ------------------------------------------------------------------------------------------------

Group = Annotated[str, declared("--group", "The consumer group that gave the messages up.", "GROUP")]

Topics = Annotated[
    list[str] | None,
    declared(
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
    declared(
        "--request-id",
        "Name of the request; the same again asks only for what was not asked for yet. Default: a new one.",
        "ID",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilters(Bundle):
    """Which dead letters a command is about."""

    key: str | None = option("--key", "Only this key, as UTF-8.", "TEXT")
    key_hex: str | None = option("--key-hex", "Only this key, as bytes in hex.", "HEX")
    reason_code: list[DeadLetterReason] | None = option(
        "--reason-code", "Only those given up for this reason; may be repeated."
    )
    since: str | None = option(
        "--since", "Only those given up since: so long ago, or a time such as 2026-11-21T10:00:00+00:00.", "2h|TIME"
    )
    until: str | None = option("--until", "Only those given up before: so long ago, or a time.", "2h|TIME")

    def read(
        self, *, states: Sequence[DeadLetterState] = (), now_ms: Callable[[], int] = current_ms
    ) -> DeadLetterFilter:
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


# --- looking -----------------------------------------------------------------------------------------------------------


@command(app, "list")
def list_(
    *,
    group: Group,
    topic: Topics = None,
    filters: DeadLetterFilters,
    state: list[DeadLetterState] | None = option("--state", "Only this state; may be repeated."),
    is_all: bool = option("--all", "Those that were handled or dropped, too.", default=False),
    limit: int = option("--limit", "Show so many, the oldest first.", min=1, default=LIMIT),
    has_keys: bool = option("--keys", "Show the messages' keys.", default=False),
    cluster: ClusterOptions,
    as_json: AsJson = False,
) -> None:
    """List a group's dead letters, the oldest first; those that were handled or dropped only when asked for."""
    filters.read()  # a slip is told before a broker is asked
    clients = kafka_clients(cluster.config(ClientConfig))
    with opened_logs(clients, group, topic or ()) as logs:
        wanted = filters.read(states=state or (), now_ms=brokers_ms(clients))
        found = dead_letters.list_letters(logs, wanted, with_ended=is_all or bool(state), limit=limit)
    now_ms = current_ms()
    rows = [dead_letters.letter_json(f, now_ms=now_ms, has_key=has_keys) for f in found.letters]
    output.show(
        rows,
        lambda rows: list_table(rows, has_key=has_keys),
        as_json=as_json,
        nothing="no dead letter is as the filters say",
    )
    output.note_counts(
        (found.listed_count - len(rows), "more; --limit shows more"),
        (found.ended_count, "were handled or dropped; --all shows them"),
        (found.undecodable_count, "records are no dead letters of the group; `txlayer dlq show` says why"),
    )


@command(app)
def show(
    letter: Annotated[
        str, typer.Argument(metavar="LETTER", help="TOPIC/PARTITION:OFFSET, with one --topic PARTITION:OFFSET.")
    ],
    *,
    group: Group,
    topic: Topics = None,
    has_value: bool = option("--value", "Show the message's value.", default=False),
    cluster: ClusterOptions,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: where it came from, what went wrong, who asked for what, and what became of it.

    Exit code 1 when it is not found.
    """
    position = parse_letter(letter, topics=topic or ())
    with opened_logs(kafka_clients(cluster.config(ClientConfig)), group, [position.topic]) as logs:
        log = logs[position.topic]
        found = log.at(position.partition, position.offset)
        if found is None:
            why = f"there is no record in {log.dead_letters} (any more); `txlayer dlq list --group {group}` shows what there is"
            typer.echo(f"not found: {position}: {why}", err=True)
            raise typer.Exit(ExitCode.FINDING)
        row = dead_letters.show_json(found, log.events_about(position), now_ms=current_ms(), has_value=has_value)
    output.show(row, show_tables, as_json=as_json)


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
    is_all: bool = option("--all", "All that the filters let through and that were not asked for yet.", default=False)
    limit: int | None = option("--limit", "With --all: so many, the oldest.", min=1)
    reason: Reason = ""
    operator: Operator = None
    request_id: RequestId = None
    rate: float | None = option("--rate", "At most so many a second.", min=0.001)
    dry_run: bool = option("--dry-run", "Show what would be asked for, ask nothing.", default=False)
    yes: bool = option("--yes", "With --all: do not ask me.", default=False)
    wait: str = option(
        "--wait", "How long no result may come before the command ends; 0s: do not wait.", "30s", default="30s"
    )

    def order(self, kind: ReplayKind, group: str, letters: Sequence[str] | None, **more: Any) -> replaying.ReplayOrder:
        topics = tuple(self.topic or ())
        author = replaying.author_of(
            f"txlayer dlq {kind.name.lower()}", operator=self.operator, reason=self.reason, request_id=self.request_id
        )
        order = replaying.ReplayOrder(
            kind,
            group,
            author,
            topics=topics,
            names=tuple(parse_letter(text, topics=topics) for text in letters or ()),
            is_all=self.is_all,
            wanted=self.read(),
            limit=self.limit,
            rate=self.rate,
            patience_s=parse_duration("--wait", self.wait).total_seconds(),
            **more,
        )
        order.check()
        return order


@command(app, "replay", help=HELP[ReplayKind.REPLAY] + _EXITS)
def _replay(
    letters: Letters = None,
    *,
    group: Group,
    asking: Asking,
    is_again: bool = option(
        "--again", "Also those named that were handled, dropped or asked for already.", default=False
    ),
    cluster: ClusterOptions,
    as_json: AsJson = False,
) -> None:
    order = asking.order(ReplayKind.REPLAY, group, letters, is_again=is_again)
    _carry_out(order, asking, cluster, as_json=as_json)


@command(app, "drop", help=HELP[ReplayKind.DROP] + _EXITS)
def _drop(
    letters: Letters = None, *, group: Group, asking: Asking, cluster: ClusterOptions, as_json: AsJson = False
) -> None:
    order = asking.order(ReplayKind.DROP, group, letters)
    _carry_out(order, asking, cluster, as_json=as_json)


def _carry_out(order: replaying.ReplayOrder, asking: Asking, cluster: ClusterOptions, *, as_json: bool) -> None:
    clients = kafka_clients(cluster.config(ClientConfig))
    topics = order.topics or tuple(dict.fromkeys(name.topic for name in order.names))
    with opened_logs(clients, order.group, topics) as logs:
        order = replace(order, wanted=asking.read(now_ms=brokers_ms(clients)))
        choice = _confirmed(order, logs, asking)
        if asking.dry_run:
            outcomes = replaying.planned(order, choice)
        else:
            with (
                closing(replaying.RequestWriter(clients, group=order.group)) as writer,
                saying(replaying.standing(order.author), RetriableError, OutcomeUnknownError),
                output.two_step_progress("asked for", "answered") as (asked, answered),
            ):
                say = partial(typer.echo, err=True)
                outcomes = replaying.ask(order, writer, logs, choice, say=say, on_asked=asked, on_answered=answered)
    is_waiting = order.patience_s > 0
    output.report(
        outcomes,
        is_good=lambda o: replaying.is_good(o, order.kind, is_waiting=is_waiting),
        sentence=lambda o: sentence(o, order.kind),
        to_json=lambda o: replaying.outcome_json(o, order.kind, order.author.request_id),
        nothing="no dead letter is as the filters say; nothing was asked for",
        as_json=as_json,
    )


def _confirmed(order: replaying.ReplayOrder, logs: Logs, asking: Asking) -> replaying.DeadLetterSelection:
    """The dead letters that the order is about; many are asked for only when a person says so."""
    choice = replaying.choose(order, logs)
    keys = f"{choice.parked_key_count:,} parked keys"
    kept = f"more dead letters of {keys} go with them, so that their order is kept"
    foreign = "records are no dead letters of the group and left out; `txlayer dlq show` says why"
    output.note_counts((choice.added_count, kept), (choice.undecodable_count, foreign))
    count = len(choice.chosen)
    if order.is_all and count and not (asking.yes or asking.dry_run):
        first = choice.in_turn[: output.SAMPLE_COUNT]
        sample = [dead_letters.letter_json(c, now_ms=current_ms(), has_key=False) for c in first]
        output.confirm(
            f"{order.command} --all: {count:,} dead letters",
            f"{order.kind.name.lower()} these {count:,} dead letters?",
            sample=list_table(sample, has_key=False),
            more_count=count - len(sample),
        )
    return choice


# --- what is printed; users' keys and values only when asked -----------------------------------------------------------


def list_table(rows: Sequence[Json], *, has_key: bool) -> Table:
    columns: dict[str, str | Callable[[Json], object]] = {
        "letter": "letter",
        "state": "state",
        "reason": _reason,
        "age": output.ages("age_ms"),
        "attempts": lambda row: row.get("attempt_count"),
        "error": _error,
        "came from": _origin,
    }
    if has_key:
        columns["key"] = lambda row: bytes_text(row["key"])
    return output.rows_table(rows, columns, right=("age", "attempts"), whole=("letter",))


def show_tables(row: Json) -> RenderableType:
    value = f"{row['value_bytes']:,} bytes; --value shows them"
    head = output.grid(
        (
            ("letter", row["letter"]),
            ("state", row["state"]),
            ("reason", _reason(row)),
            ("came from", _origin(row)),
            ("its time", time_text(row.get("origin_ms") or None)),
            ("attempts", row.get("attempt_count")),
            ("first", time_text(row.get("first_ms"))),
            ("last", time_text(row.get("last_ms"))),
            ("given up", time_text(row["written_ms"])),
            ("error", _error(row)),
            ("key", bytes_text(row["key"])),
            *((f"header {h['name']}", bytes_text(h["value"])) for h in row["headers"]),
            ("value", bytes_text(row["value"]) if "value" in row else value),
        )
    )
    if not row["history"]:
        return head
    columns: output.Columns = {
        "when": output.times("at_ms"),
        "what": "kind",
        "request": "request_id",
        "outcome": "outcome",
        "who": "operator",
        "text": "text",
    }
    return Below(head, output.rows_table(row["history"], columns))


def _reason(row: Json) -> object:
    return row["reason"] or row["why"]


def _origin(row: Json) -> str:
    origin = row.get("origin")
    return "" if origin is None else f"{origin['topic']}-{origin['partition']}@{origin['offset']}"


def bytes_text(raw: Json | None) -> str:
    """Bytes for a person: text where they are UTF-8, else hex."""
    if raw is None:
        return "null"
    if raw["text"] is not None:
        return str(raw["text"])
    return "0x" + base64.b64decode(raw["base64"]).hex()


def _error(row: Json) -> str:
    parts = (row.get("error_type"), row.get("error_message") or row.get("why"))
    return ": ".join(filter(None, parts))


_SENTENCES: Mapping[replaying.DeadLetterResult, str] = {
    replaying.DeadLetterResult.PLANNED: "would be asked for",
    replaying.DeadLetterResult.REQUESTED: "is asked for, and no consumer of the group has answered yet; it is done when one runs",
    replaying.DeadLetterResult.HANDLED: "was handled",
    replaying.DeadLetterResult.FAILED: "failed again and stays",
    replaying.DeadLetterResult.DROPPED: "is dropped",
    replaying.DeadLetterResult.REQUESTED_ALREADY: "is asked for already and not answered yet",
    replaying.DeadLetterResult.MISSING: "was not there any more when its turn came",
    replaying.DeadLetterResult.UNKNOWN: "was not handled: the owner of its partition has no handler for its tags, or does not know such a request; "
    "or its topic had refused its content",
    replaying.DeadLetterResult.NOT_FOUND: "is not found: there is no record (any more)",
    replaying.DeadLetterResult.UNDECODABLE: "is no dead letter of the group; `txlayer dlq show` says why",
    replaying.DeadLetterResult.LEFT: "was not asked for",
    replaying.DeadLetterResult.LAST_OF_KEY: "is the last dead letter of a parked key and was not dropped: earlier ones of the key are open; "
    "drop or replay them first",
}


def sentence(outcome: replaying.DeadLetterOutcome, kind: ReplayKind) -> str:
    """What became of one dead letter, in one line without control characters."""
    if outcome.result is replaying.DeadLetterResult.ALREADY:
        state = "" if outcome.state is None else outcome.state.value
        more = "; --again asks all the same" if kind is ReplayKind.REPLAY else ""
        return f"{outcome.position} was {state} already{more}"
    text = f": {outcome.text}" if outcome.text else ""
    return printable(f"{outcome.position} {_SENTENCES[outcome.result]}{text}")
