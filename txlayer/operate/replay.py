"""Dead letters handled again or dropped, and topics paused: what is asked, and what became of it."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

from txlayer.core.dead_letters import DeadLetterHistory, DeadLetterState, ReplayKind, ReplayRecord, is_request_id
from txlayer.errors import UsageError
from txlayer.operate import Json
from txlayer.operate.dead_letters import (
    DeadLetterFilter,
    DeadLetterLog,
    DeadLetterPosition,
    DeadLetterResult,
    DeadLetterSelection,
    FoundLetter,
    choose,
    newcomers,
    position_json,
    still_able,
)
from txlayer.operate.operators import check_choice, signature_of
from txlayer.operate.requests import Request, RequestWriter, WrittenRequest, requests_for


class Author(NamedTuple):
    """Who asks and why, as every request keeps it, and under which name."""

    text: str
    request_id: str


def author_of(command: str, *, operator: str | None, reason: str, request_id: str | None) -> Author:
    text = signature_of(command, operator=operator, reason=reason, recorded="it is recorded in the request")
    drawn = request_id or secrets.token_hex(6)
    if not is_request_id(drawn):
        raise UsageError(f"{command}: --request-id takes 1 to 64 of A-Z a-z 0-9 . _ -")
    return Author(text, drawn)


ROUND_COUNT_MAX = 10
"""How often those that joined a parked key meanwhile are asked for: then it never ends by itself."""


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """What an operator asked for."""

    kind: ReplayKind
    group: str
    topics: tuple[str, ...]
    names: tuple[DeadLetterPosition, ...]
    is_all: bool
    wanted: DeadLetterFilter
    limit: int | None
    rate: float | None
    author: Author
    patience_s: float
    is_again: bool = False
    is_only: bool = False

    @property
    def command(self) -> str:
        return f"txlayer dlq {'replay' if self.kind is ReplayKind.REPLAY else 'drop'}"

    def check(self) -> None:
        check_choice(
            self.command,
            "dead letters",
            is_any_named=bool(self.names),
            is_all=self.is_all,
            is_filtered=not self.wanted.is_empty,
            limit=self.limit,
        )
        if self.is_all and self.is_again:
            raise UsageError(f"{self.command}: --again goes with names: handling many twice is no accident to risk")

    @property
    def is_whole(self) -> bool:
        """True when parked keys are replayed whole."""
        return self.kind is ReplayKind.REPLAY and not self.is_only


_DONE = {ReplayKind.REPLAY: DeadLetterResult.HANDLED, ReplayKind.DROP: DeadLetterResult.DROPPED}


class DeadLetterOutcome(NamedTuple):
    """What became of one dead letter."""

    position: DeadLetterPosition
    result: DeadLetterResult
    state: DeadLetterState | None
    text: str = ""


def answered(position: DeadLetterPosition, history: DeadLetterHistory, request_id: str) -> DeadLetterOutcome:
    """Of one that was asked for, with what its owner answered."""
    said = history.results.get(request_id)
    if said is None or said.record.outcome is None:
        return DeadLetterOutcome(position, DeadLetterResult.REQUESTED, history.state)
    return DeadLetterOutcome(position, DeadLetterResult[said.record.outcome.name], history.state, said.record.text)


def not_asked(
    position: DeadLetterPosition, why: DeadLetterResult, history: DeadLetterHistory | None
) -> DeadLetterOutcome:
    """Of one that nothing was asked for."""
    if history is None:
        return DeadLetterOutcome(position, why, None)
    return DeadLetterOutcome(position, why, history.state, ", ".join(sorted(history.unanswered)))


def is_good(outcome: DeadLetterOutcome, kind: ReplayKind, *, is_waiting: bool) -> bool:
    if outcome.result is DeadLetterResult.ALREADY:
        return kind is ReplayKind.DROP or outcome.state is DeadLetterState.HANDLED
    good = {_DONE[kind], DeadLetterResult.PLANNED}
    return outcome.result in good or (not is_waiting and outcome.result is DeadLetterResult.REQUESTED)


Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""(what, total) → a function that gets the number of those done, for the time of a block."""


def choose_for(order: ReplayOrder, logs: Mapping[str, DeadLetterLog]) -> DeadLetterSelection:
    return choose(
        logs,
        wanted=order.wanted,
        names=order.names,
        request_id=order.author.request_id,
        limit=order.limit,
        is_again=order.is_again,
        is_whole=order.is_whole,
        is_dropping=order.kind is ReplayKind.DROP,
    )


def planned(order: ReplayOrder, choice: DeadLetterSelection) -> list[DeadLetterOutcome]:
    return [
        *(not_asked(*each) for each in choice.unable),
        *(DeadLetterOutcome(c.position, DeadLetterResult.PLANNED, c.history.state) for c in choice.in_turn),
        *(answered(c.position, c.history, order.author.request_id) for c in choice.asked_before),
    ]


STEP_COUNT = 50
STEP_S = 2.0
"""A step of a watched order: so many dead letters, or those of so long at its rate."""


@dataclass(slots=True)
class Watch:
    """Lets an order go on in steps. Each is asked for when the one before it is answered, unless something stops the order."""

    should_stop: Callable[[], bool]
    failed_count_max: int
    """More replays than this that fail stop it."""
    note: Callable[[int, int, int], None]
    """Called with how many were asked for, were answered, and failed."""
    stopped: str = ""
    """Why it stopped; empty: it did not."""
    _failed_before: int = 0

    def begin(self, order: ReplayOrder, logs: Mapping[str, DeadLetterLog], asked: Sequence[FoundLetter]) -> None:
        """Failures before this do not count."""
        self._failed_before = self._results(order, logs, asked)[DeadLetterResult.FAILED]

    def look(self, order: ReplayOrder, logs: Mapping[str, DeadLetterLog], asked: Sequence[FoundLetter]) -> None:
        """Note how far it is, and stop it where that is due."""
        results = self._results(order, logs, asked)
        waiting, failed = results[DeadLetterResult.REQUESTED], results[DeadLetterResult.FAILED] - self._failed_before
        self.note(len(asked), len(asked) - waiting, failed)
        if self.should_stop():
            self.stopped = "a person stopped it"
        elif failed > self.failed_count_max:
            self.stopped = f"{failed:,} failed again, and it was to go on after {self.failed_count_max:,} at most"
        elif waiting and order.patience_s:
            self.stopped = f"no consumer of the group answered for {order.patience_s:g} s"

    def _results(
        self, order: ReplayOrder, logs: Mapping[str, DeadLetterLog], asked: Sequence[FoundLetter]
    ) -> Counter[DeadLetterResult]:
        name = order.author.request_id
        return Counter(answered(c.position, logs[c.position.topic].history(c.position), name).result for c in asked)


def _steps(order: ReplayOrder, fresh: Sequence[FoundLetter], watch: Watch | None) -> list[Sequence[FoundLetter]]:
    """All at once, or those of one step after the other; one empty step for none."""
    if watch is None:
        return [fresh]
    count = STEP_COUNT if order.rate is None else max(1, min(STEP_COUNT, int(order.rate * STEP_S)))
    return [fresh[start : start + count] for start in range(0, max(len(fresh), 1), count)]


def ask(
    order: ReplayOrder,
    writer: RequestWriter,
    logs: Mapping[str, DeadLetterLog],
    choice: DeadLetterSelection,
    *,
    say: Callable[[str], None],
    progress: Progress,
    watch: Watch | None = None,
) -> list[DeadLetterOutcome]:
    """Ask the group's consumers for the chosen, wait for their answers, and return what became of each.

    With a `watch` it goes on in steps, and may stop: then `watch.stopped` says why, and those behind are left.

    Raises:
        TxLayerError: it could not be done; the same order goes on where it was.
    """
    author = order.author
    # A person may have thought for long: another operator may have asked meanwhile.
    fresh, taken = still_able(logs, choice.in_turn, is_again=order.is_again)
    followed, left = [*choice.asked_before], list[FoundLetter]()
    if watch is not None:
        watch.begin(order, logs, followed)
    if fresh:
        say(f"request id {author.request_id}")  # the name to run it again with
    for _ in range(ROUND_COUNT_MAX):
        for step in _steps(order, fresh, watch):
            if watch is not None and watch.stopped:
                left += step
                continue
            with progress("asked for", len(step)) as on_progress:
                requests = requests_for(step, logs, kind=order.kind, request_id=author.request_id, text=author.text)
                writer.write(requests, rate_max=order.rate, on_progress=on_progress)
            followed += step
            if order.patience_s:
                with progress("answered", len(followed)) as on_progress:
                    _wait_for_answers(order, logs, followed, on_progress, watch)
            if watch is not None:
                watch.look(order, logs, followed)
        is_over = not order.is_whole or (watch is not None and watch.stopped)
        fresh = [] if is_over else newcomers(logs, followed, request_id=author.request_id)
        if not fresh:
            break
        say(f"{len(fresh):,} more followed their parked keys meanwhile and are asked for too")
    return [
        *(not_asked(*each) for each in choice.unable),
        *(not_asked(t.position, DeadLetterResult.REQUESTED_ALREADY, t.history) for t in taken),
        *(not_asked(c.position, DeadLetterResult.LEFT, c.history) for c in left),
        *(answered(c.position, logs[c.position.topic].history(c.position), author.request_id) for c in followed),
    ]


LOOK_AGAIN_S = 0.2
"""Between two looks at how far the owners of the partitions are."""


def _wait_for_answers(
    order: ReplayOrder,
    logs: Mapping[str, DeadLetterLog],
    asked: Sequence[FoundLetter],
    on_progress: Callable[[int], None],
    watch: Watch | None,
) -> None:
    """Return when all have a result, when for the order's patience none came, or when the watch is to stop."""
    give_up_at, answered_before = time.monotonic() + order.patience_s, -1
    while True:
        for topic in {each.position.topic for each in asked}:
            logs[topic].follow()
        positions = (each.position for each in asked)
        answered = sum(order.author.request_id in logs[p.topic].history(p).results for p in positions)
        on_progress(answered)
        if answered > answered_before:
            give_up_at, answered_before = time.monotonic() + order.patience_s, answered
        if answered >= len(asked) or time.monotonic() >= give_up_at or (watch is not None and watch.should_stop()):
            return
        time.sleep(LOOK_AGAIN_S)


def ask_queues(
    log: DeadLetterLog, writer: RequestWriter, record: ReplayRecord, *, partitions: Sequence[int]
) -> list[WrittenRequest]:
    """Ask the owners of partitions, or of all, to pause or to resume."""
    count = log.partition_count
    for number in partitions:
        if number >= count:
            raise UsageError(f"--partition {number}: {log.topic} has the partitions 0 to {count - 1}")
    return writer.write(Request(log.topic, p, None, record) for p in sorted(set(partitions or range(count))))


def wait_until_taken(log: DeadLetterLog, written: Sequence[WrittenRequest], *, patience_s: float) -> set[int]:
    """The partitions whose owners have stored that they took the request."""
    give_up_at = time.monotonic() + patience_s
    while True:
        queues = log.queues()
        taken = {w.request.partition for w in written if queues[w.request.partition].has_taken(w.offset)}
        if len(taken) == len(written) or time.monotonic() >= give_up_at:
            return taken
        time.sleep(LOOK_AGAIN_S)


def outcome_json(outcome: DeadLetterOutcome, kind: ReplayKind, request_id: str) -> Json:
    return {
        **position_json(outcome.position),
        "act": "replay" if kind is ReplayKind.REPLAY else "drop",
        "result": outcome.result.value,
        "state": None if outcome.state is None else outcome.state.value,
        "request_id": request_id,
        "text": outcome.text or None,
    }
