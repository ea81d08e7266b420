"""What an operator asked of dead letters, carried out: chosen, confirmed, asked for, followed, told."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import typer
from rich.console import Console

from txlayer.cli import dlq_rows
from txlayer.cli.bars import progress
from txlayer.cli.dlq_logs import open_logs, request_writer
from txlayer.cli.dlq_options import Author
from txlayer.cli.dlq_outcomes import (
    Outcome,
    Result,
    answered,
    is_good,
    not_asked,
    outcome_json,
    sentence,
)
from txlayer.cli.dlq_republish import Republishing, check_target
from txlayer.cli.exits import ExitCode
from txlayer.config import ProducerConfig
from txlayer.consumer.dead_letter_log import DeadLetterLog, Place
from txlayer.consumer.letter_choice import (
    Choice,
    Chosen,
    LetterFilter,
    Unable,
    choose,
    newcomers,
    still_able,
)
from txlayer.consumer.replaying import Replaying
from txlayer.consumer.requests import RequestWriter
from txlayer.core.handling import ReplayKind
from txlayer.core.letter_states import LetterState
from txlayer.errors import UsageError

SAMPLE_COUNT = 10
"""Dead letters shown before a bulk is confirmed."""

SENTENCE_COUNT_MAX = 100
"""Good outcomes told one by one: a page or two of a terminal; those of more are counted."""

ROUND_COUNT_MAX = 10
"""How often those that joined a parked key meanwhile are asked for: then it never ends by itself."""


@dataclass(frozen=True, slots=True)
class Order:
    """What an operator asked for."""

    kind: ReplayKind
    group: str
    topics: tuple[str, ...]
    names: tuple[Place, ...]
    is_all: bool
    wanted: LetterFilter
    limit: int | None
    rate: float | None
    author: Author
    patience_s: float
    is_again: bool = False
    is_only: bool = False
    to: str | None = None

    @property
    def command(self) -> str:
        """Its name in errors."""
        return f"txlayer dlq {'replay' if self.kind is ReplayKind.REPLAY else 'drop'}"

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: the options contradict each other. Nothing was read.
        """
        if self.is_all == bool(self.names):
            raise UsageError(f"{self.command}: name dead letters, or say --all with filters")
        if self.names and not self.wanted.is_empty:
            raise UsageError(
                f"{self.command}: filters choose among --all; with names leave them out"
            )
        if self.names and self.limit is not None:
            raise UsageError(f"{self.command}: --limit goes with --all")
        if self.is_all and self.is_again:
            raise UsageError(
                f"{self.command}: --again goes with names: handling many twice is no accident to risk"
            )

    @property
    def is_whole(self) -> bool:
        """True when parked keys are replayed whole."""
        return self.kind is ReplayKind.REPLAY and self.to is None and not self.is_only


def carry_out(
    order: Order, config: ProducerConfig, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Do what was asked, and tell what became of each.

    Raises:
        typer.Exit: not all are as they were asked to be.
        TxLayerError: it could not be done; run again with the same request id, it goes on where it was.
    """
    order.check()
    topics = order.topics or tuple(dict.fromkeys(name.topic for name in order.names))
    with open_logs(config, order.group, topics) as logs:
        copying = None
        if order.to is not None:
            check_target(order.to, logs, config)
            copying = Republishing(config, order.group, order.author, order.to)
            if not dry_run:
                copying.start(logs)
        try:
            choice = choose(
                logs, wanted=order.wanted, names=order.names, request_id=order.author.request_id, limit=order.limit,
                is_again=order.is_again, is_whole=order.is_whole, is_copying=order.to is not None,
                is_dropping=order.kind is ReplayKind.DROP,
            )  # fmt: skip
            _warn(order, choice)
            if dry_run:
                outcomes = _planned(order, choice)
            else:
                if order.is_all and choice.chosen and not yes:
                    _confirm(order, choice)
                if copying is not None:
                    outcomes = copying.publish(choice, logs, rate_max=order.rate)
                else:
                    with request_writer(config, order.group) as writer:
                        outcomes = _ask(order, writer, logs, choice)
        finally:
            if copying is not None:
                copying.close()
    is_waiting = order.patience_s > 0
    good = [o for o in outcomes if is_good(o, order.kind, is_waiting=is_waiting)]
    bad = [o for o in outcomes if not is_good(o, order.kind, is_waiting=is_waiting)]
    if as_json:
        typer.echo(json.dumps([outcome_json(o, order.kind) for o in outcomes]))
    else:
        _tell(order.kind, good, bad)
    if bad:
        raise typer.Exit(ExitCode.FINDING)


def _ask(
    order: Order, writer: RequestWriter, logs: Mapping[str, DeadLetterLog], choice: Choice
) -> list[Outcome]:
    author = order.author
    asking = Replaying(
        logs, writer, kind=order.kind, request_id=author.request_id, text=author.text
    )  # fmt: skip
    # A person may have thought for long: somebody else may have asked meanwhile.
    fresh, taken = still_able(logs, choice.in_turn, is_again=order.is_again)
    followed = [*choice.asked_before, *fresh]
    if fresh:
        typer.echo(f"request id {author.request_id}", err=True)
    for _ in range(ROUND_COUNT_MAX):
        with progress("asked for", len(fresh)) as tell:
            asking.request(fresh, rate_max=order.rate, on_progress=tell)
        if order.patience_s:
            with progress("answered", len(followed)) as tell:
                asking.wait(followed, patience_s=order.patience_s, on_progress=tell)
        fresh = _newcomers(asking, logs, followed) if order.is_whole else []
        if not fresh:
            break
        typer.echo(
            f"{len(fresh):,} more followed their parked keys meanwhile and are asked for too", err=True
        )  # fmt: skip
        followed += fresh
    return [
        *(not_asked(*each, request_id=author.request_id) for each in choice.unable),
        *(not_asked(t.place, Unable.REQUESTED, t.history, request_id=author.request_id) for t in taken),
        *(
            answered(c.place, asking.result(c), state=asking.state(c), request_id=author.request_id)
            for c in followed
        ),
    ]  # fmt: skip


def _newcomers(
    asking: Replaying, logs: Mapping[str, DeadLetterLog], followed: Sequence[Chosen]
) -> list[Chosen]:
    handled = [c for c in followed if asking.state(c) is LetterState.HANDLED]
    others = [c for c in followed if asking.state(c) is not LetterState.HANDLED]
    return newcomers(logs, handled, others, request_id=asking.request_id).in_turn


def _planned(order: Order, choice: Choice) -> list[Outcome]:
    request_id = order.author.request_id
    outcomes = [not_asked(*each, request_id=request_id) for each in choice.unable]
    outcomes += [
        Outcome(c.place, Result.PLANNED, c.history.state, request_id) for c in choice.in_turn
    ]
    for each in choice.asked_before:
        said = each.history.results.get(request_id) or each.history.copies.get(request_id)
        outcomes.append(answered(each.place, said, state=each.history.state, request_id=request_id))
    return outcomes


def _warn(order: Order, choice: Choice) -> None:
    if choice.added_count:
        typer.echo(
            f"{choice.added_count:,} more dead letters of {choice.parked_key_count:,} parked keys go with them, so that "
            "their order is kept; --only leaves them out", err=True,
        )  # fmt: skip
    if choice.left_count and order.kind is ReplayKind.REPLAY and order.to is None:
        typer.echo(
            f"warning: {choice.left_count:,} dead letters of {choice.parked_key_count:,} parked keys are left out: these "
            "keys lose their order", err=True,
        )  # fmt: skip
    if choice.undecodable_count:
        typer.echo(
            f"{choice.undecodable_count:,} records are no dead letters of the group and left out; `txlayer dlq show` "
            "tells why", err=True,
        )  # fmt: skip


def _confirm(order: Order, choice: Choice) -> None:
    """Ask a person who sees what would happen.

    Raises:
        UsageError: nobody is there to be asked. Nothing was written.
        typer.Abort: the answer was no. Nothing was written.
    """
    count = len(choice.chosen)
    if not sys.stdin.isatty():
        raise UsageError(
            f"{order.command} --all: {count:,} dead letters and nobody to ask; say --yes, or look first with --dry-run"
        )
    now_ms = int(time.time() * 1000)
    sample = [dlq_rows.chosen_json(each, now_ms=now_ms) for each in choice.in_turn[:SAMPLE_COUNT]]
    Console(stderr=True, highlight=False).print(dlq_rows.list_table(sample, has_key=False))
    if count > len(sample):
        typer.echo(f"and {count - len(sample):,} more", err=True)
    what = "drop" if order.kind is ReplayKind.DROP else "replay"
    typer.confirm(f"{what} these {count:,} dead letters?", abort=True, err=True)


def _tell(kind: ReplayKind, good: Sequence[Outcome], bad: Sequence[Outcome]) -> None:
    for outcome in good[:SENTENCE_COUNT_MAX]:
        typer.echo(sentence(outcome, kind))
    if len(good) > SENTENCE_COUNT_MAX:
        typer.echo(f"and {len(good) - SENTENCE_COUNT_MAX:,} more alike; --json tells all")
    for outcome in bad:
        typer.echo(sentence(outcome, kind), err=True)
    if not good and not bad:
        typer.echo("no dead letter is as the filters say; nothing was asked for")
