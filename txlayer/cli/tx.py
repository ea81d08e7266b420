"""`txlayer tx`: what is open, what became of a transaction, its export, and settling it by hand.

What reads whole topics is imported when a command runs: `--help` and completion stay quick.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from errno import EEXIST
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txlayer.adapters.telemetry import printable
from txlayer.cli import output
from txlayer.cli.exits import ExitCode, saying
from txlayer.cli.options import (
    AsJson,
    Bundle,
    Connection,
    Operator,
    Reason,
    command,
    current_ms,
    declared,
    option,
    parse_instant,
)
from txlayer.config import CoordinatorConfig, milliseconds, parse_duration
from txlayer.core import codec
from txlayer.core.ledger.transitions import COMMITTING, SETTLED, TxnState
from txlayer.core.messages import Origin, ParkReason, check_txn_id
from txlayer.errors import BrokerUnavailableError, UsageError
from txlayer.operate import Json, time_text

if TYPE_CHECKING:
    from txlayer.adapters.connect import CoordinatorConnections
    from txlayer.core.history import TransactionHistory
    from txlayer.operate.live import LiveView
    from txlayer.operate.settle import OperatorAction, SettlementOrder, SettlementPlan
    from txlayer.operate.unsettled import Filter

app = typer.Typer(no_args_is_help=True, help="Look at transactions, and settle by hand those that need a person.")

# --- which transactions ------------------------------------------------------------------------------------------------

# Members of an enumeration, so that a wrong state is refused with the list of right ones.
ListedState = Enum(  # type: ignore[misc]  # made from the table of states, which a class body could only repeat
    "ListedState", {s.name: s.value for s in TxnState if s not in SETTLED} | {"COMMITTING": COMMITTING}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilters(Bundle):
    """Which of the transactions that are not settled a command is about."""

    is_open: bool = option("--open", "Only open ones, as --state open.", default=False)
    is_parked: bool = option("--parked", "Only parked ones, as --state parked --state parked-committed.", default=False)
    is_held: bool = option("--held", "Only held ones, as --state held.", default=False)
    is_scheduled: bool = option("--scheduled", "Only scheduled ones, as --state scheduled.", default=False)
    group: str | None = option("--group", "Only this producer group.", "GROUP")
    topic: str | None = option("--topic", "Only those with a message for it.", "TOPIC")
    state: list[ListedState] | None = option("--state", "Only this state; may be repeated.")
    reason_code: list[ParkReason] | None = option(
        "--reason-code", "Only those parked or held for this reason; may be repeated."
    )
    older_than: str | None = option("--older-than", "Only those prepared longer ago.", "1h")
    query_id: str | None = option("--query-id", "Only those with this id of the user's own.", "TEXT")

    def read(self) -> Filter:
        """What the options say together: states add up, everything else narrows."""
        from txlayer.operate.unsettled import PARKED, Filter

        states = {s.value for s in self.state or ()}
        states |= {TxnState.OPEN.value} if self.is_open else set()
        states |= PARKED if self.is_parked else set()
        states |= {TxnState.HELD.value} if self.is_held else set()
        states |= {TxnState.SCHEDULED.value} if self.is_scheduled else set()
        return Filter(
            self.group,
            self.topic,
            frozenset(states),
            frozenset(self.reason_code or ()),
            _age("--older-than", self.older_than),
            self.query_id,
        )


def _age(option: str, text: str | None) -> int | None:
    return None if text is None else milliseconds(parse_duration(option, text))


def _now_ms(connections: CoordinatorConnections, wanted: Filter) -> int:
    """The brokers' time, where an age says which transactions are meant; else this machine's, which nobody is asked for."""
    return current_ms() if wanted.older_ms is None else connections.history().time().latest_ms


# --- looking -----------------------------------------------------------------------------------------------------------

LIMIT = 100  # transactions that `list` shows: a page of a terminal or two

SHOWN_MAX = 20  # transactions with one id of the user's that `show` reads

What = Annotated[
    str | None,
    typer.Argument(
        metavar="ID|PARTITION:OFFSET|ORIGIN",
        help="A transaction id; the position of one of its half messages (as in the header txl-origin); "
        "or a quarantined record, as `list --kept-aside` names it.",
    ),
]


@command(app, "list")
def list_(
    *,
    filters: TransactionFilters,
    kept_aside: bool = option(
        "--kept-aside", "Show instead the records that cannot be read, or that were in the wrong place.", default=False
    ),
    limit: int = option("--limit", "Show so many, the oldest first.", min=1, default=LIMIT),
    watch: bool = option("--watch", "Keep the list current until Ctrl-C.", default=False),
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Show the transactions that are not settled, the oldest first; or the records that were quarantined.

    They are read from the low-water mark on. Ages count from the broker's append time of the first half message.
    """
    from txlayer.operate import unsettled

    wanted = filters.read()
    if watch:
        if kept_aside:
            raise UsageError("--watch: it shows transactions; leave out --kept-aside")
        _watch(connection.config(CoordinatorConfig), wanted, limit, as_json=as_json)
        return
    if kept_aside and wanted != unsettled.Filter(group=wanted.group, older_ms=wanted.older_ms):
        why = "--kept-aside: such a record has neither topic, state nor reason code; of the filters it takes --group and --older-than"
        raise UsageError(why)
    config = connection.config(CoordinatorConfig)
    with _connected(config) as connections:
        now_ms = _now_ms(connections, wanted)
        quarantined = unsettled.read_quarantined(connections)
        if kept_aside:
            found = [a for a in quarantined if now_ms - a.kept_ms >= (wanted.older_ms or 0)]
            found = [a for a in found if wanted.group in (None, a.producer_group)]
            oldest = sorted(found, key=lambda a: (a.kept_ms, a.doubt_origin))[:limit]
            rows = [unsettled.quarantined_json(a, now_ms=now_ms) for a in oldest]
            count, kind, draw = len(found), "quarantined", quarantined_list
        else:
            listed = unsettled.Overview(connections).unsettled()
            found_open = [s for s in listed if wanted.lets_through(s, now_ms=now_ms)]
            rows = [unsettled.unsettled_json(s, now_ms=now_ms) for s in unsettled.oldest(found_open, limit)]
            count, kind, draw = len(found_open), "open", list_table
    those = "" if kept_aside or wanted.is_empty else " of this kind"
    nothing = f"nothing{those} is {kind} in {config.namespace}"
    output.show(rows, draw, as_json=as_json, nothing=nothing)
    output.note_counts(
        (count - len(rows), "more, younger than these; --limit shows more"),
        (0 if kept_aside else len(quarantined), "quarantined; --kept-aside shows what"),
        err=as_json,
    )


def _watch(config: CoordinatorConfig, wanted: Filter, limit: int, *, as_json: bool) -> None:
    from txlayer.cli.health import WATCH_S, watch
    from txlayer.operate import unsettled
    from txlayer.operate.rows import Wanted

    def look(view: LiveView) -> Json:
        now_ms, state = current_ms(), view.state
        page = view.rows.page(Wanted(wanted, limit=limit), now_ms=now_ms)
        rows = [unsettled.unsettled_json(found, now_ms=now_ms) for found in page.rows]
        return {"true_ms": state.true_ms, "problem": state.problem or None, "count": page.count, "transactions": rows}

    def draw(body: Json) -> RenderableType:
        shown, count = len(body["transactions"]), body["count"]
        said = f"{count:,} not settled, true at {time_text(body['true_ms'])}"
        said += f"; the oldest {shown:,}" if shown < count else ""
        said += f"; not known now: {body['problem']}" if body["problem"] else ""
        return Group(Text(printable(said)), list_table(body["transactions"]))

    watch(config, look, draw, interval_s=WATCH_S, as_json=as_json)


@command(app)
def stats(*, connection: Connection, as_json: AsJson = False) -> None:
    """Count what is not settled, by group and state, and what was quarantined; name groups that no responder answers for."""
    from txlayer.operate import unsettled

    with _connected(connection.config(CoordinatorConfig)) as connections:
        body = unsettled.stats_json(connections, now_ms=current_ms())
    output.show(body, stats_table, as_json=as_json)
    for group in (found["producer_group"] for found in body["responders"] if found["is_answered"] is False):
        typer.echo(f"no responder answers check-backs for the group {printable(group)}", err=as_json)


@command(app)
def show(
    what: What = None,
    *,
    query_id: str | None = option(
        "--query-id", "Show instead the transactions with this id of the user's own.", "TEXT"
    ),
    since: str = option(
        "--since",
        "Read half, op and check from so long ago; of what is on doubt, from its first half message.",
        "1h|TIME",
        default="1h",
    ),
    is_id: bool = option("--id", "It is an id, even if it looks like PARTITION:OFFSET.", default=False),
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Show what the topics say about one transaction: half messages, check-backs, resolutions, its place on doubt.

    One id may have had several attempts, each with its nonce: every one is shown. Exit code 1 when nothing is found.
    """
    from txlayer.adapters.connect import kafka_clients
    from txlayer.adapters.ports import HistoryStart
    from txlayer.operate import history as histories

    if (what is None) is (query_id is None):
        raise UsageError("name a transaction, or --query-id")
    config = connection.config(CoordinatorConfig)
    what = what or ""
    position = None if is_id else histories.parse_position(what)
    wanted = codec.parse_quarantine_key(what.encode(errors="replace"))
    if position is not None:
        wanted = Origin(config.topics.half, *position), None
    if wanted is not None and _show_quarantined(config, wanted, as_json=as_json):
        return
    reader = kafka_clients(config).history()
    if position is None and wanted is None:  # report a wrong argument before asking a broker
        if query_id is None:
            check_txn_id(what)
        parse_instant("--since", since, now_ms=current_ms)
    note = histories.hidden_note(reader)
    found: Sequence[TransactionHistory] = []
    if position is not None:
        found, searched = histories.histories_at(reader, *position)
    elif wanted is not None:
        searched = f"{config.topics.doubt} holds nothing under {what}"
    else:
        since_ms = parse_instant("--since", since, now_ms=reader.now_ms)
        ids = [what] if query_id is None else reader.ids_of(query_id, start=HistoryStart(since_ms))
        found = [each for i in ids[:SHOWN_MAX] for each in histories.histories_of(reader, i, since_ms=since_ms)[0]]
        output.note_counts((len(ids[SHOWN_MAX:]), "more ids; the oldest are shown"), err=as_json)
        searched = (
            f"half, op and check of the last {since}, and doubt, of the namespace {config.namespace} hold nothing about "
            f"the id {query_id or what}; --since goes further back"
        )
    if not found and note:
        raise BrokerUnavailableError(note)
    if not found:
        if as_json:
            output.print_json([])
        typer.echo(printable(f"not found: {searched}"), err=True)
        raise typer.Exit(ExitCode.FINDING)
    with _connected(config) as connections:
        applied = list(histories.are_applied(connections, found))
    rows = [histories.history_json(h, is_applied=a) for h, a in zip(found, applied, strict=True)]
    output.show(rows, lambda rows: Group(*map(history_tables, rows)), as_json=as_json)
    if note:
        typer.echo(note, err=True)


def _show_quarantined(config: CoordinatorConfig, wanted: tuple[Origin, int | None], *, as_json: bool) -> bool:
    """Print the quarantined record that was there; False: there is none."""
    from txlayer.operate import unsettled

    with _connected(config) as connections:
        quarantined = unsettled.read_quarantined(connections, [wanted[0].partition])
    found = next((a for a in quarantined if (a.origin, a.line) == wanted), None)
    if found is None:
        return False
    row = unsettled.quarantined_json(found, now_ms=current_ms())
    output.show([row], lambda _rows: quarantined_table(row), as_json=as_json)
    return True


# --- export ------------------------------------------------------------------------------------------------------------

STDOUT = "-"


@command(app)
def export(
    *,
    output_: Annotated[str, declared("--output -o", "A new file; - is standard output.", "FILE|-")],
    filters: TransactionFilters,
    limit: int | None = option("--limit", "So many, the oldest.", min=1),
    connection: Connection,
) -> None:
    """Write transactions whole into a file, one JSON object per line; parked ones, unless a state is named.

    Keys, values and headers of users are in it. Nothing is changed: what is exported stays where it is. Exit code 1: one of which a message
    is gone is left out.
    """
    from txlayer.operate import history as histories
    from txlayer.operate import unsettled

    wanted = filters.read()
    states = wanted.states or unsettled.PARKED
    path = None if output_ == STDOUT else Path(output_)
    config = connection.config(CoordinatorConfig)
    with _opened(path) as file, _connected(config) as connections:
        now_ms = _now_ms(connections, wanted)
        found = (
            each
            for each in unsettled.Overview(connections).unsettled()
            if each.state in states and wanted.lets_through(each, now_ms=now_ms)
        )
        oldest = unsettled.oldest(found, limit)
        gone = []
        for each, contents in histories.read_with_contents(connections, oldest):
            if contents is None:
                gone.append(each.txn.key)
            else:
                file.write(json.dumps(histories.export_json(each, contents, now_ms=now_ms)) + "\n")
    where = "standard output" if path is None else str(path)
    typer.echo(f"{len(oldest) - len(gone):,} transactions written to {where}", err=True)
    for key in gone:
        why = f"{config.topics.half} alone had a message of it whole, and does not hold it any more"
        typer.echo(printable(f"{key} is left out: {why}"), err=True)
    if gone:
        raise typer.Exit(ExitCode.FINDING)


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """A new file, which is there when it is whole; only its owner may read it, as it holds users' data."""
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        _refuse_existing(path)
        handle, made = mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as exc:
        raise UsageError(f"--output {path}: {exc.strerror}; name a new file in a folder that may be written") from exc
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _refuse_existing(path)  # another program may have been quicker
        Path(made).rename(path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise UsageError(f"--output {path}: {os.strerror(EEXIST)}; name a new file in a folder that may be written")


# --- by hand -----------------------------------------------------------------------------------------------------------

HELP = {
    "check-now": """Have the producer group asked at once what became of the local transaction.

    Of an open transaction without waiting for its turn, of a parked one once. The answer decides, not you.""",
    "commit": """Commit transactions: their messages are forwarded.

    Open and parked ones; of those that are committed and held or parked, try again.""",
    "rollback": """Roll transactions back: consumers never see their messages.

    Open and parked ones. What is committed already is refused: `txlayer tx abandon` gives it up.""",
    "abandon": """Give transactions up, also those that are committed and cannot be forwarded.

    Their messages are gone for good: `txlayer tx export` keeps them in a file.""",
    "cancel": """Cancel scheduled transactions: consumers never see the messages whose time has not come.

    With --all: scheduled ones alone. `txlayer tx export --scheduled` keeps them in a file.""",
    "reschedule": """Give scheduled transactions another time: all of their messages that are left become visible then.""",
}
_RESCHEDULE = "reschedule"

TxnIds = Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Transaction ids.", show_default=False)]

_EXITS = """

    The op log records it with your name and reason, and the first decision there wins. Exit codes: 0 it is so
    (also when it was before), 1 not all are (the output names the decision), 2 usage, 3 no broker, 5 not authorised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling(TransactionFilters):
    """Which transactions a person settles, why, and how."""

    is_all: bool = option(
        "--all", "All that the filters let through; those parked, unless a state is named.", default=False
    )
    limit: int | None = option(
        "--limit",
        "With --all: so many, the oldest of those that are there now; the same command again counts anew.",
        min=1,
    )
    nonce: str | None = option("--nonce", "Which attempt, where an id has several.")
    reason: Reason = ""
    operator: Operator = None
    dry_run: bool = option("--dry-run", "Show what would be written, write nothing.", default=False)
    yes: bool = option("--yes", "With --all: do not ask.", default=False)
    wait: str = option(
        "--wait",
        "How long coordinators may stand still before the command ends; 0s: do not wait.",
        "10s",
        default="10s",
    )
    since: str = option("--since", "How far back to look for a transaction that is settled.", "1h", default="1h")

    def order(self, action: str, txn_ids: Sequence[str] | None, time_ms: int | None = None) -> SettlementOrder:
        from txlayer.operate.operators import signature_of
        from txlayer.operate.settle import OperatorAction, SettlementOrder

        signature = signature_of(
            f"txlayer tx {action}",
            operator=self.operator,
            reason=self.reason,
            recorded="it is recorded in the op log",
            may_be_silent=action == OperatorAction.CHECK_NOW.value,
        )
        return SettlementOrder(
            OperatorAction(action),
            tuple(txn_ids or ()),
            self.nonce,
            self.is_all,
            self.read(),
            self.limit,
            signature,
            time_ms,
        )


def _add(action: str) -> None:
    @command(app, action, help=HELP[action] + _EXITS)
    def settle(txn_ids: TxnIds = None, *, settling: Settling, connection: Connection, as_json: AsJson = False) -> None:
        _settle(settling.order(action, txn_ids), settling, connection, as_json=as_json)


for _word in [word for word in HELP if word != _RESCHEDULE]:
    _add(_word)


@command(app, _RESCHEDULE, help=HELP[_RESCHEDULE] + _EXITS)
def reschedule(
    txn_ids: TxnIds = None,
    *,
    to: Annotated[str, declared("--to", "The new time; or how long from now.", "TIME|2h")],
    settling: Settling,
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    from txlayer.operate.settle import time_of

    order = settling.order(_RESCHEDULE, txn_ids, time_of("--to", to, now_ms=current_ms()))
    _settle(order, settling, connection, to=to, as_json=as_json)


def _settle(
    order: SettlementOrder, settling: Settling, connection: Connection, *, to: str | None = None, as_json: bool
) -> None:
    from txlayer.operate import settle as settles

    patience_s = parse_duration("--wait", settling.wait).total_seconds()
    since_ms = milliseconds(parse_duration("--since", settling.since))
    config = connection.config(CoordinatorConfig)
    with _connected(config) as connections:
        settlement = settles.ManualSettlement(connections)
        history = connections.history()
        latest_ms = 0
        if to is not None:
            latest_ms = history.time().latest_ms
            order = replace(order, time_ms=settles.time_of("--to", to, now_ms=latest_ms))
        since_ms = 0 if order.is_all else max(history.now_ms() - since_ms, 0)
        now_ms = _now_ms(connections, order.wanted)
        plan = settles.plan_of(order, settlement, since_ms=since_ms, now_ms=now_ms)
        if to is not None and plan.lines and (order.time_ms or 0) < latest_ms:
            raise settles.has_passed("--to", to)  # the same command once more finds nothing that is scheduled
        outcomes = list(plan.known)
        if settling.dry_run:
            outcomes += settles.planned(plan)
        elif plan.lines:
            if order.is_all and not settling.yes:
                _confirm(order.action, plan)
            again = "" if order.limit is None else "the same command counts --limit anew; "
            with (
                saying(f"lines that were written take effect; {again}`txlayer tx list` shows what is not settled"),
                output.two_step_progress("written", "partitions carried out") as (written, reached),
            ):
                outcomes += settles.carry_out(
                    order.action,
                    settlement,
                    plan,
                    patience_s=patience_s,
                    on_written=lambda count: written(count, len(plan.lines)),
                    on_reached=reached,
                )
    is_due = to is not None and (order.time_ms or 0) <= latest_ms
    outcomes = [settles.of_time(outcome, is_due=is_due) for outcome in outcomes]
    decided = f"skipped: {order.action.value} says nothing about what is in their state; `txlayer tx list` shows them"
    output.note_counts((plan.skipped_count, decided))
    # Without --wait it is no finding that no coordinator has come to the line yet.
    good = settles.GOOD if patience_s else settles.GOOD | {settles.SettlementResult.WRITTEN}
    output.report(
        outcomes,
        is_good=lambda o: o.result in good,
        sentence=lambda o: settles.sentence(order.action, o, op_topic=config.topics.op),
        to_json=lambda o: settles.outcome_json(order.action, o),
        nothing="no transaction is as the filters say; nothing was written",
        as_json=as_json,
    )


def _confirm(action: OperatorAction, plan: SettlementPlan) -> None:
    from txlayer.operate import unsettled

    now_ms, count = current_ms(), len(plan.lines)
    sample = [unsettled.unsettled_json(s, now_ms=now_ms) for s, _ in plan.lines[: output.SAMPLE_COUNT]]
    them = "this transaction" if count == 1 else f"these {count:,} transactions"
    output.confirm(
        f"txlayer tx {action.value} --all: {count:,} transactions",
        f"{action.value} {them}? It cannot be taken back.",
        sample=list_table(sample),
        more_count=count - len(sample),
    )


@contextmanager
def _connected(config: CoordinatorConfig) -> Iterator[CoordinatorConnections]:
    from txlayer.adapters.connect import connect_coordinator

    with closing(connect_coordinator(config, is_one_shot=True)) as connections:
        yield connections


# --- what is printed; never users' keys and values --------------------------------------------------------------------

_STYLES = {
    TxnState.HELD.value: "yellow",
    TxnState.PARKED.value: "red",
    TxnState.PARKED_COMMITTED.value: "red",
    TxnState.COMMITTED.value: "green",
}


def list_table(rows: Sequence[Json]) -> Table:
    columns: output.Columns = {
        "id": "txn_id",
        "nonce": "nonce",
        "group": "producer_group",
        "state": _state,
        "reason": "reason",
        "age": output.ages("age_ms"),
        "messages": lambda row: f"{row['seen_count']}/{row['message_count']}",
        "topics": lambda row: ", ".join(row["topics"]),
        "half": lambda row: f"{row['partition']}:{_first_half_offset(row)}",
        "in": "stands_in",
        "checks": lambda row: f"{row['answered_count']}/{row['checked_count']}",
        "last asked": output.times("asked_ms"),
    }
    if any(row["query_id"] is not None for row in rows):
        columns = {**columns, "query id": "query_id"}
    if any(row["due_ms"] is not None for row in rows):
        columns = {**columns, "due": output.times("due_ms")}
    right = ("age", "messages", "half", "checks")
    return output.rows_table(rows, columns, right=right, whole=("nonce",))


def _state(row: Json) -> Text:
    return output.cell(row["state"], _STYLES.get(row["state"], ""))


_first_half_offset = output.number_or_none("first_half_offset")


def stats_table(body: Json) -> RenderableType:
    quarantined_count = body["kept_aside_count"]
    quarantined = f", {quarantined_count:,} quarantined" if quarantined_count else ""
    if not body["states"]:
        return f"nothing is open{quarantined}"
    columns: output.Columns = {
        "group": "producer_group",
        "state": _state,
        "transactions": lambda row: f"{row['count']:,}",
        "oldest": output.ages("oldest_age_ms"),
    }
    title = f"{body['namespace']}: {body['transaction_count']:,} not settled{quarantined}"
    return output.rows_table(body["states"], columns, title=title, right=("transactions", "oldest"))


_SETTLED = frozenset(state.value for state in SETTLED)


def history_tables(row: Json) -> RenderableType:
    from txlayer.operate.history import timeline

    columns: output.Columns = {
        "when": lambda event: time_text(event.at_ms),
        "what": lambda event: event.what,
        "where": lambda event: event.place,
        "more": lambda event: event.detail,
    }
    return Group(output.grid(_head(row)), output.rows_table(timeline(row), columns, whole=("where",)))


def _head(row: Json) -> list[tuple[str, object]]:
    state = row["state"] or "settled; what decided it is older than what was read"
    said = ""
    if row["state"] in _SETTLED and row["is_applied"] is not None:
        said = " (carried out)" if row["is_applied"] else " (not carried out yet)"
    reason = f": {row['reason']}" if row["reason"] else ""
    messages = f"{len(row['half_records'])} half records read, of {row['message_count']}"
    head: list[tuple[str, object]] = [
        ("transaction", f"{row['txn_id']} / {row['nonce']}"),
        ("state", output.cell(state + said + reason, _STYLES.get(state, ""))),
        ("group", row["producer_group"]),
        ("partition", row["partition"]),
    ]
    if row["query_id"] is not None:
        head.insert(1, ("query id", row["query_id"]))
    if row["born_ms"] is not None:
        head.append(("born", time_text(row["born_ms"]) + " by its producer's clock"))
    if row["message_count"] is None:
        messages = "no half record read"
    head.append(("messages", messages))
    doubt = row["doubt"]
    if doubt is not None:
        text = f"since {time_text(doubt['moved_ms'])}, {doubt['seen_count']} messages to {', '.join(doubt['topics'])}"
        text += f"; {doubt['answered_count']} of {doubt['checked_count']} checks answered"
        if doubt["asked_ms"] is not None:
            text += f", the last asked {time_text(doubt['asked_ms'])}"
        head.append(("on doubt", text))
    elif row["left_doubt_ms"] is not None:
        head.append(("on doubt", f"until {time_text(row['left_doubt_ms'])}"))
    return head


def quarantined_list(rows: Sequence[Json]) -> Table:
    columns: output.Columns = {
        "quarantined": "name",
        "reason": "reason",
        "what is wrong": "why",
        "names group": "producer_group",
        "names transaction": _named,
        "age": output.ages("age_ms"),
    }
    return output.rows_table(rows, columns, right=("age",), whole=("reason",))


def quarantined_table(row: Json) -> Table:
    what = "record" if row["line"] is None else f"line {row['line']} of the record"
    return output.grid(
        (
            ("quarantined", f"{what} {row['topic']}-{row['partition']}@{row['offset']}"),
            ("why", f"{row['reason'] or 'unknown reason'}: {row['why']}"),
            ("transaction", _named(row) or "it names none that can be read"),
            ("group", row["producer_group"] or "it names none that can be read"),
            ("since", time_text(row["kept_ms"])),
            ("key", _size(row["key_bytes"])),
            ("value", _size(row["value_bytes"])),
            ("headers", ", ".join(row["header_names"]) or "none"),
            ("bytes", f"on doubt, partition {row['doubt_partition']}, offset {row['doubt_offset']}"),
        )
    )


def _named(row: Json) -> str:
    return f"{row['txn_id']} / {row['nonce']}" if row["txn_id"] else ""


def _size(byte_count: int | None) -> str:
    return "null" if byte_count is None else f"{byte_count:,} bytes"
