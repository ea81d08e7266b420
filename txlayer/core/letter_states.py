"""What a replay topic says about each dead letter: asked for, handled, failed again, dropped. A fold; never who asks.

The records of one partition are folded in the order of their offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from txlayer.core.handling import ReplayKind, ReplayOutcome, ReplayRecord


class LetterState(Enum):
    """What became of a dead letter."""

    OPEN = "open"  #: nobody asked for anything
    REQUESTED = "requested"  #: an operator asked, and the owner of its partition has not answered
    HANDLED = "handled"  #: replayed, and its handler succeeded
    FAILED = "failed"  #: replayed, and failed again; it stays
    DROPPED = "dropped"  #: as an operator asked


ENDED = frozenset({LetterState.HANDLED, LetterState.DROPPED})
"""Nothing more is to be done about these."""

_STATES = {
    ReplayOutcome.HANDLED: LetterState.HANDLED,
    ReplayOutcome.FAILED: LetterState.FAILED,
    ReplayOutcome.DROPPED: LetterState.DROPPED,
}


class Said(NamedTuple):
    """One record about a dead letter or a queue, and where it stands."""

    offset: int
    at_ms: int
    record: ReplayRecord


@dataclass(slots=True)
class LetterHistory:
    """What is known of one dead letter."""

    asked: dict[str, Said] = field(default_factory=dict)  # request id → the newest request
    unanswered: set[str] = field(default_factory=set)
    results: dict[str, Said] = field(default_factory=dict)  # request id → the newest result
    copies: dict[str, Said] = field(default_factory=dict)  # request id → where it was republished
    ended: ReplayOutcome | None = None  # the last outcome that says something of the letter

    @property
    def state(self) -> LetterState:
        """What became of it."""
        if self.unanswered:
            return LetterState.REQUESTED
        return LetterState.OPEN if self.ended is None else _STATES[self.ended]


UNKNOWN_LETTER = LetterHistory()
"""Of a dead letter that nobody said anything about; never changed."""


@dataclass(slots=True)
class PartitionStates:
    """The dead letters of one partition that were spoken of, and whether its queue is paused."""

    letters: dict[int, LetterHistory] = field(default_factory=dict)
    pause: Said | None = None  # the newest request to pause or to go on
    unreadable_count: int = 0

    def fold(self, said: Said) -> None:
        """Take the next record of the replay topic into account."""
        record = said.record
        if record.kind in (ReplayKind.PAUSE, ReplayKind.RESUME):
            self.pause = said
        elif record.dead_letter_offset is not None:
            history = self.letters.setdefault(record.dead_letter_offset, LetterHistory())
            _fold(history, said)

    def of(self, offset: int) -> LetterHistory:
        """What is known of the dead letter at this offset."""
        return self.letters.get(offset, UNKNOWN_LETTER)


def _fold(history: LetterHistory, said: Said) -> None:
    request_id, outcome = said.record.request_id, said.record.outcome
    if outcome is None:
        history.asked[request_id] = said
        history.unanswered.add(request_id)
        history.results.pop(request_id, None)  # it was asked again: an earlier answer is no answer
    elif outcome is ReplayOutcome.REPUBLISHED:
        history.copies[request_id] = said
    else:
        history.results[request_id] = said
        history.unanswered.discard(request_id)
        if outcome in _STATES:
            history.ended = outcome
