"""Which of the transactions that are not settled a command of `txlayer tx` means: options, and what they select."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import typer

from txlayer.config import milliseconds, parse_duration
from txlayer.coordinator.overview import COMMITTING, Standing
from txlayer.core.messages import ParkReason
from txlayer.core.transitions import SETTLED, TxnState

PARKED = frozenset({TxnState.PARKED.value, TxnState.PARKED_COMMITTED.value})
"""What `--parked` means, and what many at once are when no state is named."""

# Members of an enumeration, so that a wrong state is refused with the list of right ones.
ListedState = Enum(  # type: ignore[misc]  # made from the table of states, which a class body could only repeat
    "ListedState",
    {s.name: s.value for s in TxnState if s not in SETTLED} | {"COMMITTING": COMMITTING},
)

GroupFilter = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="Only this producer group.", show_default=False),
]
TopicFilter = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="TOPIC", help="Only those with a message for it.", show_default=False
    ),
]
StateFilter = Annotated[
    list[ListedState] | None,
    typer.Option("--state", help="Only this state; may be repeated.", show_default=False),
]
IsOpen = Annotated[bool, typer.Option("--open", help="Only open ones, as --state open.")]
IsParked = Annotated[
    bool,
    typer.Option("--parked", help="Only parked ones, as --state parked --state parked-committed."),
]
IsHeld = Annotated[bool, typer.Option("--held", help="Only held ones, as --state held.")]
ReasonCode = Annotated[
    list[ParkReason] | None,
    typer.Option(
        "--reason-code",
        help="Only those parked or held for this reason; may be repeated.",
        show_default=False,
    ),
]
OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="1h", help="Only those prepared longer ago.", show_default=False
    ),
]
YoungerThan = Annotated[
    str | None,
    typer.Option(
        "--younger-than", metavar="1h", help="Only those prepared since.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True)
class Filter:
    """What a transaction must be like; the default lets every one through."""

    group: str | None = None
    topic: str | None = None
    states: frozenset[str] = frozenset()
    reasons: frozenset[ParkReason] = frozenset()
    older_ms: int | None = None
    younger_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """True when it lets every transaction through."""
        return self == Filter()

    def lets_through(self, found: Standing, *, now_ms: int) -> bool:
        """True for a transaction that is meant; ages count from the append time of its first half message."""
        txn, age_ms = found.txn, now_ms - found.txn.appended_ms
        reason = None if txn.more is None else txn.more.reason
        return (
            (self.group is None or txn.group == self.group)
            and (self.topic is None or self.topic in txn.topics)
            and (not self.states or found.state in self.states)
            and (not self.reasons or reason in self.reasons)
            and (self.older_ms is None or age_ms >= self.older_ms)
            and (self.younger_ms is None or age_ms < self.younger_ms)
        )


def make_filter(
    *,
    group: str | None,
    topic: str | None,
    state: Collection[ListedState] | None,
    is_open: bool,
    is_parked: bool,
    is_held: bool,
    reason_code: Collection[ParkReason] | None,
    older_than: str | None,
    younger_than: str | None,
) -> Filter:
    """What the options say together: states add up, everything else narrows.

    Raises:
        ConfigError: a length of time has the wrong form.
    """
    states = {s.value for s in state or ()}
    states |= {TxnState.OPEN.value} if is_open else set()
    states |= PARKED if is_parked else set()
    states |= {TxnState.HELD.value} if is_held else set()
    return Filter(
        group,
        topic,
        frozenset(states),
        frozenset(reason_code or ()),
        _age("--older-than", older_than),
        _age("--younger-than", younger_than),
    )


def _age(option: str, text: str | None) -> int | None:
    return None if text is None else milliseconds(parse_duration(option, text))
