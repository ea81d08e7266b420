"""`txlayer tx check-now|commit|rollback|abandon`: an operator's word on one transaction, or on many at once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from txlayer.adapters.connect import connect_coordinator, connect_producer
from txlayer.adapters.history_port import HistoryStart
from txlayer.adapters.kafka.connections import KafkaHistoryReader
from txlayer.cli import settle_rows, tx_rows
from txlayer.cli.exits import ExitCode
from txlayer.cli.operators import default_operator
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Json,
    Namespace,
    client_config,
)
from txlayer.cli.settle_plan import Order, Plan, plan_of
from txlayer.cli.tx_filters import (
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
from txlayer.config import CoordinatorConfig, ProducerConfig, milliseconds, parse_duration
from txlayer.coordinator.acts import GOOD, Act, Outcome, Result
from txlayer.coordinator.by_hand import ByHand
from txlayer.core import codec
from txlayer.core.history import TransactionHistory
from txlayer.errors import BrokerUnavailableError, UsageError

SAMPLE_COUNT = 10
"""Transactions shown before a bulk is confirmed."""

SENTENCE_COUNT_MAX = 100
"""Good outcomes told one by one: a page or two of a terminal; those of more are counted."""

HELP = {
    Act.CHECK_NOW: """Have the producer group asked at once what became of the local transaction.

    Of an open transaction without waiting for its turn, of a parked one once. The answer decides, not you.""",
    Act.COMMIT: """Commit transactions: their messages are forwarded.

    Open and parked ones; of those that are committed and held or parked, try again.""",
    Act.ROLLBACK: """Roll transactions back: nobody will ever see their messages.

    Open and parked ones. What is committed already is refused: `txlayer tx abandon` gives it up.""",
    Act.ABANDON: """Give transactions up, also those that are committed and cannot be forwarded.

    Their messages are gone for good: `txlayer tx export` keeps them in a file.""",
}
_EXITS = """

    The word is recorded in the op log with your name and reason, and the first decision there wins. Exit codes: 0 it is so
    (also when it was before), 1 not all are (the decision that stands is told), 2 usage, 3 no broker, 5 not authorised."""

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID…", help="Transaction ids.", show_default=False)
]
IsAll = Annotated[
    bool,
    typer.Option(
        "--all",
        help="All that the filters let through; those parked, unless a state is named.",
    ),
]
Nonce = Annotated[
    str | None,
    typer.Option("--nonce", help="Which attempt, where an id has several.", show_default=False),
]
Reason = Annotated[
    str,
    typer.Option("--reason", metavar="TEXT", help="Why; recorded.", show_default=False),
]
Operator = Annotated[
    str | None,
    typer.Option("--operator", metavar="NAME", help="Who; default USER@host.", show_default=False),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="With --all: so many, the oldest.", show_default=False),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be written, write nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", help="With --all: do not ask.")]
Wait = Annotated[
    str,
    typer.Option(
        "--wait",
        metavar="10s",
        help="How long coordinators may stand still before the command ends; 0s: do not wait.",
    ),
]
Since = Annotated[
    str,
    typer.Option(
        "--since", metavar="1h", help="How far back to look for a transaction that is settled."
    ),
]


def add_to(app: typer.Typer) -> None:
    """The four commands; they have the same options."""
    for act in Act:
        _add(app, act)


def _add(app: typer.Typer, act: Act) -> None:  # one command, with every option that it has
    @app.command(act.value, help=HELP[act] + _EXITS)
    def settle(  # every option is a parameter
        txn_ids: Ids = None,
        *,
        reason: Reason = "",
        operator: Operator = None,
        nonce: Nonce = None,
        is_all: IsAll = False,
        is_open: IsOpen = False,
        is_parked: IsParked = False,
        is_held: IsHeld = False,
        group: GroupFilter = None,
        topic: TopicFilter = None,
        state: StateFilter = None,
        reason_code: ReasonCode = None,
        older_than: OlderThan = None,
        younger_than: YoungerThan = None,
        limit: Limit = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        wait: Wait = "10s",
        since: Since = "1h",
        bootstrap_servers: BootstrapServers = None,
        namespace: Namespace = None,
        client_setting: ClientSetting = None,
        insecure: Insecure = False,
        as_json: Json = False,
    ) -> None:
        wanted = make_filter(
            group=group, topic=topic, state=state, is_open=is_open, is_parked=is_parked, is_held=is_held,
            reason_code=reason_code, older_than=older_than, younger_than=younger_than,
        )  # fmt: skip
        order = Order(
            act, tuple(txn_ids or ()), nonce, is_all, wanted, limit,
            default_operator() if operator is None else operator, reason,
        )  # fmt: skip
        order.check()
        patience_s = parse_duration("--wait", wait).total_seconds()
        since_ms = milliseconds(parse_duration("--since", since))
        where = {
            "bootstrap_servers": bootstrap_servers, "namespace": namespace, "client_setting": client_setting,
            "insecure": insecure,
        }  # fmt: skip
        config = client_config(CoordinatorConfig, **where)  # type: ignore[arg-type]  # as they were given
        writer = client_config(ProducerConfig, **where)  # type: ignore[arg-type]  # as they were given
        with _by_hand(config, writer) as hands:
            plan = plan_of(
                order,
                hands,
                read_histories=lambda txn_id: _histories(config, txn_id, since_ms=since_ms),
                now_ms=_now_ms(),
            )
            if dry_run:
                outcomes = [*plan.known, *_planned(plan)]
            else:
                if is_all and plan.lines and not yes:
                    _confirm(act, plan)
                outcomes = [*plan.known, *_carry_out(act, hands, plan, patience_s=patience_s)]
        _tell(act, outcomes, plan, op_topic=config.topics.op, as_json=as_json)
        # Who asked not to wait is not told of a failure when nobody came to the line yet.
        good = GOOD if patience_s else GOOD | {Result.WRITTEN}
        if not all(outcome.result in good for outcome in outcomes):
            raise typer.Exit(ExitCode.FINDING)


def _carry_out(act: Act, hands: ByHand, plan: Plan, *, patience_s: float) -> list[Outcome]:
    if not plan.lines:
        return []
    with _progress(len(plan.lines)) as bar:
        task = bar.add_task("written", total=len(plan.lines))
        written = hands.write(
            plan.lines, on_progress=lambda count: bar.update(task, completed=count)
        )
        bar.update(task, completed=len(written))
        partition_count = len({w.found.partition for w in written})
        task = bar.add_task("partitions carried out", total=partition_count)
        try:
            reached = hands.wait(
                written,
                patience_s=patience_s,
                on_progress=lambda count: bar.update(task, completed=count),
            )
            return hands.outcomes(act, written, plan.picture, reached=reached)
        except BrokerUnavailableError as exc:
            raise BrokerUnavailableError(
                f"{len(written):,} lines are stored, but what became of them could not be read; the same command tells "
                f"it later: {exc.detail}",
                bootstrap_servers=exc.bootstrap_servers,
                waited_ms=exc.waited_ms,
            ) from exc


def _planned(plan: Plan) -> list[Outcome]:
    return [
        Outcome(
            found.txn.key, found.txn.group, found.partition, found.state, Result.PLANNED, found.state,
            line=codec.encode_op(op),
        )
        for found, op in plan.lines
    ]  # fmt: skip


def _confirm(act: Act, plan: Plan) -> None:
    """Ask a person who sees what would happen.

    Raises:
        UsageError: nobody is there to be asked. Nothing was written.
        typer.Abort: the answer was no. Nothing was written.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            f"txlayer tx {act.value} --all: {len(plan.lines):,} transactions and nobody to ask; say --yes, or look first "
            "with --dry-run"
        )
    now_ms = _now_ms()
    sample = [tx_rows.standing_json(s, now_ms=now_ms) for s, _ in plan.lines[:SAMPLE_COUNT]]
    Console(stderr=True, highlight=False).print(tx_rows.list_table(sample))
    more = len(plan.lines) - len(sample)
    if more:
        typer.echo(f"and {more:,} more", err=True)
    count = len(plan.lines)
    them = "this transaction" if count == 1 else f"these {count:,} transactions"
    typer.confirm(
        f"{act.value} {them}? It cannot be taken back.",
        abort=True,
        err=True,
    )


def _tell(act: Act, outcomes: list[Outcome], plan: Plan, *, op_topic: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([settle_rows.outcome_json(act, o) for o in outcomes]))
    good = [o for o in outcomes if o.result in GOOD]
    if not as_json:
        for outcome in good[:SENTENCE_COUNT_MAX]:
            typer.echo(settle_rows.sentence(act, outcome, op_topic=op_topic))
        if len(good) > SENTENCE_COUNT_MAX:
            typer.echo(f"and {len(good) - SENTENCE_COUNT_MAX:,} more alike; --json tells all")
        for outcome in outcomes:
            if outcome.result not in GOOD:
                typer.echo(settle_rows.sentence(act, outcome, op_topic=op_topic), err=True)
        if not outcomes:
            typer.echo("no transaction is as the filters say; nothing was written")
    if plan.skipped_count:
        typer.echo(
            f"{plan.skipped_count:,} skipped: they are decided already, and {act.value} says nothing about them; "
            "`txlayer tx list` shows them",
            err=True,
        )


@contextmanager
def _by_hand(config: CoordinatorConfig, writer: ProducerConfig) -> Iterator[ByHand]:
    connections = connect_coordinator(config, is_one_shot=True)
    try:
        producers = connect_producer(writer)
        try:
            yield ByHand(config, connections, producers)
        finally:
            producers.close()
    finally:
        connections.close()


@contextmanager
def _progress(line_count: int) -> Iterator[Progress]:
    """A bar on standard error for a person who waits for more than a few."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())  # fmt: skip
    console = Console(stderr=True)
    is_shown = console.is_terminal and line_count > 0
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as bar:
        yield bar


def _histories(
    config: CoordinatorConfig, txn_id: str, *, since_ms: int
) -> list[TransactionHistory]:
    return KafkaHistoryReader(config).read(txn_id, start=HistoryStart(_now_ms() - since_ms))


def _now_ms() -> int:
    return int(time.time() * 1000)
