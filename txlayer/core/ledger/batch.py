"""The content of one Kafka transaction for one partition."""

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
    reports: list[Report] = field(default_factory=list)
    line_count: int = 0
    byte_count: int = 0
    release_count: int = 0  # transactions on doubt that were tried without an op line
    parked: set[str] = field(default_factory=set)  # with an ordering key: those behind them may go
    returned: set[str] = field(default_factory=set)  # doubt says already that they were parked
    rollback_count: int = 0  # transactions that stay invisible for good
    answers: dict[Resolution, int] = field(default_factory=dict)  # to check-backs
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(n, append time): the op lines of forward n and of those after it were appended at that time."""

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
