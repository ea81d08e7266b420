"""What one Kafka transaction holds for one partition, and how a refused record is found. Never producing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from txlayer.core.messages import CheckRecord, Origin, Resolution, Undecodable
from txlayer.core.transaction import Transaction


class ReportKind(Enum):
    """What a person may want to know; counted and logged by the service."""

    REPEAT = "repeat"  #: a resolution that was there already
    CONFLICT = "conflict"  #: contrary to the decision, refused
    UNMATCHED = (
        "unmatched"  #: an op line for a transaction that is settled long since, or never was
    )
    WRONG_OFFSET = "wrong-offset"  #: an op line that names no half record of its transaction
    WRONG_GROUP = (
        "wrong-group"  #: an op line that names another producer group than its transaction's
    )
    LATE_HALF = "late-half"  #: a half record of a transaction that is settled
    KEPT_ASIDE = (
        "kept-aside"  #: a record or line that is none of ours, or stands in the wrong place
    )
    PARKED = "parked"  #: a transaction went to the doubt topic for a person
    HELD = "held"  #: a transaction waits for its target topic
    CHECKED = "checked"  #: a producer group was asked
    POLICY = "policy"  #: the coordinator wrote a resolution, as it is configured to
    LIMITED = "limited"  #: a producer group has too many open transactions, or not any more
    MOVED = "moved"  #: an undecided transaction became old enough for the doubt topic


class Report(NamedTuple):
    """One thing to report."""

    kind: ReportKind
    key: str  # "id/nonce", or "" when there is none
    detail: str


class RecordToQuarantine(NamedTuple):
    """A record that is kept on the doubt topic under its origin, with what was wrong with it."""

    origin: Origin
    record: Any  # opaque: key(), value(), headers(); None for an op line
    line: str | None
    number: int  # of the line within its record
    why: Undecodable


class MoveToDoubt(NamedTuple):
    """A transaction to write to the doubt topic."""

    txn: Transaction
    is_whole: bool  # contents too, not the summary alone


class Positions(NamedTuple):
    """Everything that must be stored so that a successor goes on exactly here."""

    low_water: int  # oldest half offset that is still needed
    half_next: int
    op_offset: int
    op_line: int
    replay_offset: int  # op position from which op is folded again, without effect
    replay_line: int
    doubt_low: int  # oldest doubt offset that is still needed
    copies_from: int = 0  # half from here to `low_water` is read again for its keys alone


@dataclass(slots=True)
class Batch:
    """What follows from the lines applied since the last one."""

    forwards: list[Transaction] = field(default_factory=list)
    keeps: dict[str, MoveToDoubt] = field(default_factory=dict)
    ends: list[Transaction] = field(default_factory=list)
    asides: list[RecordToQuarantine] = field(default_factory=list)
    checks: dict[str, CheckRecord] = field(default_factory=dict)
    policy_lines: dict[str, str] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    line_count: int = 0
    byte_count: int = 0
    release_count: int = 0  # transactions on doubt that were tried though no line named them
    rollback_count: int = 0  # transactions that nobody will ever see
    answers: dict[Resolution, int] = field(default_factory=dict)  # to check-backs
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(n, append time): the op lines that sent forwards n and following stand in the log since then."""

    @property
    def is_empty(self) -> bool:
        """True when nothing has to be written."""
        return not (
            self.forwards or self.keeps or self.ends or self.asides or self.checks
            or self.policy_lines
        )  # fmt: skip

    @property
    def doubt_record_count(self) -> int:
        """Records of the doubt topic, as the publisher writes them."""
        contents = sum(keep.txn.seen for keep in self.keeps.values() if keep.is_whole)
        ends = sum(txn.seen + 1 for txn in self.ends)
        return contents + len(self.keeps) + ends + len(self.asides)

    @property
    def suspect_count(self) -> int:
        """What may be refused, counted as `Bisection` halves it: op lines, or records that no line brought."""
        return max(
            self.line_count, len(self.asides), len(self.keeps), len(self.checks),
            len(self.policy_lines), len(self.ends),
        )  # fmt: skip


PASSES_TO_GROW = 20
"""Kafka transactions that must go through before the next may be twice as large again."""

HALVINGS_MAX = 12


class BatchSize:
    """After a Kafka transaction that took too long the next are half as large, and so on, until they go through."""

    def __init__(self) -> None:
        self._halvings = 0
        self._pass_count = 0

    def of(self, limit: int) -> int:
        """What is allowed of a limit now; never less than one."""
        return max(1, limit >> self._halvings)

    def failed(self) -> None:
        """One took too long."""
        self._halvings, self._pass_count = min(self._halvings + 1, HALVINGS_MAX), 0

    def passed(self) -> None:
        """One went through."""
        if not self._halvings:
            return
        self._pass_count += 1
        if self._pass_count >= PASSES_TO_GROW:
            self._halvings, self._pass_count = self._halvings - 1, 0


class Bisection:
    """Finds the one op line or record whose writes a broker refuses, by halving how many a Kafka transaction takes.

    A run of n of them failed: `failed(n)`. Then `line_count_max` says how many to try; `passed(n)` and `failed(n)` narrow
    it down, until a run of one fails: that line's transaction, or that record, is the one, and `failed` answers True.
    """

    def __init__(self) -> None:
        self._suspect_count = 0

    @property
    def is_active(self) -> bool:
        """True while there are suspects."""
        return self._suspect_count > 0

    @property
    def line_count_max(self) -> int:
        """How many lines the next run may take."""
        return max(1, self._suspect_count // 2)

    def failed(self, line_count: int) -> bool:
        """A run of `line_count` lines was refused; True when it was a single line.

        One line may bring more records than lines were allowed: the number that is allowed shrinks all the same.
        """
        if self.is_active:
            line_count = min(line_count, self.line_count_max)
        self._suspect_count = max(line_count, 1)
        return line_count <= 1

    def passed(self, line_count: int) -> None:
        """A run of `line_count` lines went through."""
        self._suspect_count = max(0, self._suspect_count - line_count)

    def found(self) -> None:
        """The refused line is known and will be parked: nobody is suspected any more."""
        self._suspect_count = 0
