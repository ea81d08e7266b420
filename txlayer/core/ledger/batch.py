"""The content of one Kafka transaction for one partition; how much it takes after one that took too long, and the search for a refused record."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from txlayer.core.ledger.transaction import Transaction
from txlayer.core.messages import CheckRecord, Headers, Origin, Resolution, Undecodable

NO_LIMIT = 1 << 62  # greater than any offset, and than any number of bytes or lines


class ReportKind(Enum):
    """Events for operators; the service counts and logs them."""

    REPEAT = "repeat"  #: a resolution that was there already
    CONFLICT = "conflict"  #: contrary to the decision, refused
    UNMATCHED = "unmatched"  #: an op line for a transaction that was settled long ago, or never existed
    WRONG_OFFSET = "wrong-offset"  #: an op line that names no half record of its transaction
    WRONG_GROUP = "wrong-group"  #: an op line that names another producer group than its transaction's
    LATE_HALF = "late-half"  #: a half record of a transaction that is settled
    QUARANTINED = "kept-aside"  #: a malformed record or line, or one in the wrong partition
    PARKED = "parked"  #: a transaction was parked on the doubt topic for an operator
    HELD = "held"  #: a transaction waits for its target topic
    CHECKED = "checked"  #: a check-back was sent to a producer group
    POLICY = "policy"  #: the coordinator wrote a resolution by its configured policy
    LIMITED = "limited"  #: a producer group has too many open transactions, or no longer has
    MOVED = "moved"  #: an undecided transaction became old enough for the doubt topic


class Report(NamedTuple):
    """One event to report."""

    kind: ReportKind
    key: str  # "id/nonce"; "" if there is none
    detail: str


class RecordToQuarantine(NamedTuple):
    """A record to quarantine on the doubt topic under its origin, with the reason."""

    origin: Origin
    record: Any  # opaque: key(), value(), headers(); None for an op line
    line: str | None
    number: int  # of the line within its record
    why: Undecodable


class MoveToDoubt(NamedTuple):
    """A transaction to write to the doubt topic."""

    txn: Transaction
    is_whole: bool  # with all contents; otherwise with those that joined since it was written last
    has_summary: bool = True  # False: the one on doubt says that what joined belongs to it

    @property
    def content_count(self) -> int:
        return self.txn.seen if self.is_whole else len(self.txn.joined)


class Positions(NamedTuple):
    """Everything that must be stored so that a successor continues at the same point."""

    low_water: int  # lowest half offset that is still needed
    half_next: int
    op_offset: int
    op_line: int
    replay_offset: int  # op position from which op is folded again, without effect
    replay_line: int
    doubt_low: int  # lowest doubt offset that is still needed
    copies_from: int = 0  # half from here to `low_water` is read again for its keys only


class LinesOfRecord(NamedTuple):
    """How many of the coordinator's own lines are one record of op, and so have one append time."""

    bytes_max: int  # with a line feed each
    count_max: int


@dataclass(slots=True)
class Batch:
    """What follows from the lines that were applied since the last batch."""

    forwards: list[Transaction] = field(default_factory=list)
    to_doubt: dict[str, MoveToDoubt] = field(default_factory=dict)
    ends: list[Transaction] = field(default_factory=list)
    quarantined: list[RecordToQuarantine] = field(default_factory=list)
    checks: dict[str, CheckRecord] = field(default_factory=dict)
    details: dict[str, Headers] = field(default_factory=dict)  # of questions: what they carry; read by the service
    policy_lines: dict[str, str] = field(default_factory=dict)
    lines_bytes: int = 0  # of these, with a line feed each
    release_keys: dict[str, int] = field(default_factory=dict)  # by ordering key: the latest of their times
    reports: list[Report] = field(default_factory=list)
    line_count: int = 0
    byte_count: int = 0
    release_count: int = 0  # transactions on doubt that were tried without an op line
    parked: set[str] = field(default_factory=set)  # with an ordering key: those behind them may go; and scheduled ones
    returned: set[str] = field(default_factory=set)  # doubt says already that they were parked
    rollback_count: int = 0  # transactions that stay invisible for good
    answers: dict[Resolution, int] = field(default_factory=dict)  # to check-backs
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(n, append time): the op lines of forward n and of those after it were appended at that time."""

    def has_room_in_first_record(self, line: str, limit: LinesOfRecord) -> bool:
        """True if a further line of its own is in one record with all before it."""
        return self.lines_bytes + len(line) < limit.bytes_max and len(self.policy_lines) < limit.count_max

    @property
    def is_empty(self) -> bool:
        return not (self.forwards or self.to_doubt or self.ends or self.quarantined or self.checks or self.policy_lines)

    @property
    def doubt_record_count(self) -> int:
        """Number of records for the doubt topic, as the publisher writes them."""
        kept = sum(keep.content_count + keep.has_summary for keep in self.to_doubt.values())
        ends = sum(txn.seen + 1 for txn in self.ends)
        return kept + ends + len(self.quarantined)

    @property
    def suspect_count(self) -> int:
        """Number of parts that may be refused, as `Bisection` halves it: op lines, or records without an op line."""
        return max(
            self.line_count,
            len(self.quarantined),
            len(self.to_doubt),
            len(self.checks),
            len(self.policy_lines),
            len(self.ends),
        )


PASSES_TO_GROW = 20  # Kafka transactions that must succeed before the size limit doubles again

HALVINGS_MAX = 12


class BatchSize:
    """Halves the size of the next Kafka transactions after one that took too long, until they succeed."""

    def __init__(self) -> None:
        self._halvings = 0
        self._pass_count = 0
        self.is_stuck = False  # True if the smallest ones take too long as well

    def of(self, limit: int) -> int:
        """The part of `limit` that is allowed now, at least one."""
        return max(1, limit >> self._halvings)

    def failed(self) -> None:
        self.is_stuck = self._halvings == HALVINGS_MAX
        self._halvings, self._pass_count = min(self._halvings + 1, HALVINGS_MAX), 0

    def passed(self) -> None:
        if not self._halvings:
            return
        self.is_stuck = False
        self._pass_count += 1
        if self._pass_count >= PASSES_TO_GROW:
            self._halvings, self._pass_count = self._halvings - 1, 0


RELEASE_LINES_MIN = 500
"""So many lines that release scheduled messages are allowed however long a Kafka transaction takes."""
RELEASE_TURN_MS = 300
"""How long a turn with such lines may take: a message of others waits for about two of them, and must not be later than a second."""


class ReleaseLines:
    """How many lines that release scheduled messages may be written and not applied: what one turn of the coordinator has time for."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.count = min(2_000, count_max)

    def took(self, turn_ms: int, *, written_count: int) -> None:
        if turn_ms > RELEASE_TURN_MS:
            self.count = max(self.count * 3 // 4, min(RELEASE_LINES_MIN, self._count_max))
        elif turn_ms < RELEASE_TURN_MS * 3 // 4 and written_count >= self.count // 2:
            self.count = min(self.count * 5 // 4, self._count_max)


class Bisection:
    """Finds the one op line or record whose writes a broker refuses, by halving the number in a Kafka transaction.

    A run of n lines failed: call `failed(n)`. Then `line_count_max` is the number to try; `passed(n)` and `failed(n)` narrow it
    down until a run of one fails. That line's transaction, or that record, is the refused one, and `failed` returns True.
    """

    def __init__(self) -> None:
        self._suspect_count = 0

    @property
    def is_active(self) -> bool:
        return self._suspect_count > 0

    @property
    def line_count_max(self) -> int:
        return max(1, self._suspect_count // 2)

    def failed(self, line_count: int) -> bool:
        """A run of so many lines was refused; True if it was a single one. Any run halves what is allowed: one line may bring many records."""
        if self.is_active:
            line_count = min(line_count, self.line_count_max)
        self._suspect_count = max(line_count, 1)
        return line_count <= 1

    def passed(self, line_count: int) -> None:
        self._suspect_count = max(0, self._suspect_count - line_count)
