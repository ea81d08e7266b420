"""What `txlayer dlq replay|drop` say of each dead letter: results as words, as JSON values and as one sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from txlayer.adapters.telemetry import printable
from txlayer.cli.dlq_rows import place_json
from txlayer.cli.tx_rows import Json
from txlayer.consumer.dead_letter_log import Place
from txlayer.consumer.letter_choice import Unable
from txlayer.core.handling import ReplayKind, ReplayOutcome
from txlayer.core.letter_states import LetterHistory, LetterState, Said


class Result(Enum):
    """What became of one dead letter, in the words of --json."""

    PLANNED = "planned"  #: it would be asked for
    REQUESTED = "requested"  #: asked for, and nobody answered yet
    HANDLED = "handled"  #: its handler succeeded
    FAILED = "failed"  #: its handler failed again, and it stays
    DROPPED = "dropped"  #: nobody will handle it
    REPUBLISHED = "republished"  #: a copy is in the topic that was asked for
    ALREADY = "already"  #: it was handled or dropped before
    REQUESTED_ALREADY = "requested-already"  #: another request about it has no answer yet
    MISSING = "missing"  #: it was gone when its turn came
    UNKNOWN = "unknown"  #: the group's consumers do not know such a request
    NOT_FOUND = "not-found"  #: no record stands there
    UNDECODABLE = "undecodable"  #: the record there is no dead letter of the group
    LAST_OF_KEY = (
        "last-of-key"  #: its drop would release its parked key past earlier ones that are open
    )


_OF_OUTCOME = {
    ReplayOutcome.HANDLED: Result.HANDLED,
    ReplayOutcome.FAILED: Result.FAILED,
    ReplayOutcome.DROPPED: Result.DROPPED,
    ReplayOutcome.MISSING: Result.MISSING,
    ReplayOutcome.UNKNOWN: Result.UNKNOWN,
    ReplayOutcome.REPUBLISHED: Result.REPUBLISHED,
}
_OF_UNABLE = {
    Unable.NOT_FOUND: Result.NOT_FOUND,
    Unable.UNDECODABLE: Result.UNDECODABLE,
    Unable.ENDED: Result.ALREADY,
    Unable.REQUESTED: Result.REQUESTED_ALREADY,
    Unable.LAST_OF_KEY: Result.LAST_OF_KEY,
}
_DONE = {ReplayKind.REPLAY: Result.HANDLED, ReplayKind.DROP: Result.DROPPED}


class Outcome(NamedTuple):
    """What became of one dead letter."""

    place: Place
    result: Result
    state: LetterState | None
    request_id: str
    text: str = ""


def answered(place: Place, said: Said | None, *, state: LetterState, request_id: str) -> Outcome:
    """Of one that was asked for, with what its owner answered."""
    if said is None or said.record.outcome is None:
        return Outcome(place, Result.REQUESTED, state, request_id)
    return Outcome(place, _OF_OUTCOME[said.record.outcome], state, request_id, said.record.text)


def not_asked(
    place: Place, why: Unable, history: LetterHistory | None, *, request_id: str
) -> Outcome:
    """Of one that nothing was asked for."""
    others = "" if history is None else ", ".join(sorted(history.unanswered))
    state = None if history is None else history.state
    return Outcome(place, _OF_UNABLE[why], state, request_id, others)


def is_good(outcome: Outcome, kind: ReplayKind, *, is_waiting: bool) -> bool:
    """True when it is as the operator asked."""
    if outcome.result is Result.ALREADY:
        return kind is ReplayKind.DROP or outcome.state is LetterState.HANDLED
    good = {_DONE[kind], Result.PLANNED, Result.REPUBLISHED}
    return outcome.result in good or (not is_waiting and outcome.result is Result.REQUESTED)


def outcome_json(outcome: Outcome, kind: ReplayKind) -> Json:
    """One object of `dlq replay --json` and `dlq drop --json`."""
    return {
        **place_json(outcome.place),
        "act": "replay" if kind is ReplayKind.REPLAY else "drop",
        "result": outcome.result.value,
        "state": None if outcome.state is None else outcome.state.value,
        "request_id": outcome.request_id,
        "text": outcome.text or None,
    }


_SENTENCES: Mapping[Result, str] = {
    Result.PLANNED: "would be asked for",
    Result.REQUESTED: "is asked for, and no consumer of the group has answered yet; it is done when one runs",
    Result.HANDLED: "was handled",
    Result.FAILED: "failed again and stays",
    Result.DROPPED: "is dropped",
    Result.REPUBLISHED: "is published",
    Result.REQUESTED_ALREADY: "is asked for already and not answered yet",
    Result.MISSING: "was not there any more when its turn came",
    Result.UNKNOWN: "was not understood: the group's consumers do not know such a request",
    Result.NOT_FOUND: "is not found: no record stands there (any more)",
    Result.UNDECODABLE: "is no dead letter of the group; `txlayer dlq show` tells why",
    Result.LAST_OF_KEY: "is the last dead letter of a parked key and was not dropped: earlier ones of the key are open; "
    "drop or replay them first",
}


def sentence(outcome: Outcome, kind: ReplayKind) -> str:
    """What became of one dead letter, in one line without control characters."""
    if outcome.result is Result.ALREADY:
        state = "" if outcome.state is None else outcome.state.value
        more = "; --again asks all the same" if kind is ReplayKind.REPLAY else ""
        return f"{outcome.place} was {state} already{more}"
    text = f": {outcome.text}" if outcome.text else ""
    return printable(f"{outcome.place} {_SENTENCES[outcome.result]}{text}")
