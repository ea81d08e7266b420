"""What one partition must do, slowly and obviously: lists of all records, looked through again for every line.

It knows positions in the two logs and what is known of the targets, and nothing of batches, crashes, doubt records,
replays, budgets or fast paths: whatever a ledger went through, it must have come to this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.core_records import PARTITION, PARTITION_COUNT
from tests.support.partition_driver import MISSING, Applied, Fact, Kept, Mended, Tick, lines_between
from tests.support.partition_log import PartitionLog
from txlayer.core import codec
from txlayer.core.ledger.transaction import OpPosition, Target, record_size
from txlayer.core.messages import HalfHeader, OpMessage, OrderMode, Resolution, Source
from txlayer.core.partitions import half_partition, partition_of_key_hash

IN_ORDER = ("open", "waiting", "held")
UNSETTLED = (*IN_ORDER, "parked", "parked-committed")


class Half(NamedTuple):
    """A half record that belongs to a transaction."""

    offset: int
    header: HalfHeader
    user_bytes: int


@dataclass(slots=True)
class Fate:
    """What became of a transaction so far."""

    state: str = "open"
    decided: OpPosition | None = None
    asked: int = 0
    answered: int = 0
    answered_number: int = 0
    kept_at: int | None = None  # half was read so far when it was written to doubt, whole
    because: str = ""


@dataclass(slots=True)
class Surroundings:
    """What the coordinator knew when something happened."""

    targets: Mapping[str, Target] = field(default_factory=dict)
    refusals: Mapping[str, object] = field(default_factory=dict)


class NaivePartition:
    """All half records and all facts in; fates and the order of forwarding out."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self.fates: dict[str, Fate] = {}
        self.forwarded: list[str] = []
        self._now = Surroundings()
        self._asked_now: set[str] = set()  # in the Kafka transaction that is looked at
        self._halves: dict[str, tuple[list[Half], list[int]]] = {}
        self._half_count = 0

    # --- half ---------------------------------------------------------------------------------------------------------

    def halves(self) -> dict[str, tuple[list[Half], list[int]]]:
        """Of every transaction: its half records, and the offsets of those that stand there twice."""
        found = self._halves
        for entry in self._log.half[self._half_count :]:
            raw = codec.half_header_of(entry.record.headers())
            header = None if raw is None else codec.decode_half_header(raw)
            if not isinstance(header, HalfHeader) or _home(header) != PARTITION:
                continue
            mine, twins = found.get(header.key, ([], []))
            if mine and header.count != mine[0].header.count:
                continue
            if header.index == len(mine):
                own = len(codec.HALF_HEADER) + len(raw or b"") + 2
                mine.append(Half(entry.offset, header, record_size(entry.record) - own))
                found[header.key] = (mine, twins)
            elif header.index < len(mine):
                twins.append(entry.offset)
        self._half_count = len(self._log.half)
        return found

    # --- facts --------------------------------------------------------------------------------------------------------

    def happened(self, facts: Sequence[Fact], *, half_next: int) -> None:
        """What one append made final."""
        self._asked_now.clear()
        for fact in facts:
            if isinstance(fact, Applied):
                self._now = Surroundings(fact.targets, fact.refusals)
                for position, line in lines_between(self._log, fact.start, fact.end):
                    if position in fact.given_up:
                        self._given_up(line, half_end=fact.half_end)
                    else:
                        self._line(position, line)
            elif isinstance(fact, Mended):
                self._now = Surroundings(fact.targets, fact.refusals)
                self._mended(
                    [
                        key
                        for key, fate in self.fates.items()
                        if fate.state == "held" and {*fact.topics} & {*self._topics(key)}
                    ]
                )
            elif isinstance(fact, Tick):
                self._now = Surroundings(fact.targets, fact.refusals)
                self._time_passed(fact)
            elif isinstance(fact, Kept):
                for key in fact.keys:
                    self.fates.setdefault(key, Fate()).kept_at = half_next

    def _line(self, position: OpPosition, line: str) -> None:
        op = codec.decode_op(line)
        if not isinstance(op, OpMessage):
            return
        mine, twins = self.halves().get(op.key, ([], []))
        there = [half for half in mine if half.offset <= op.last_offset]
        fate = self.fates.get(op.key)
        if fate is None:
            if not there:
                return
            fate = self.fates.setdefault(op.key, Fate())
        if fate.state not in UNSETTLED or not _may_name(fate, mine, twins, op.last_offset):
            return
        self._said(op, fate, position, is_complete=len(there) == _count(mine))

    def _said(self, op: OpMessage, fate: Fate, position: OpPosition, *, is_complete: bool) -> None:
        is_decided = fate.state not in ("open", "parked")
        if op.is_abandon or (op.resolution is Resolution.ROLLBACK and not is_decided):
            fate.state = "rolled back"
        elif op.resolution is Resolution.UNKNOWN and not is_decided:
            self._unknown(op, fate)
        elif op.resolution is Resolution.COMMIT and fate.state != "waiting":
            if fate.state == "held":
                is_complete = True
            else:
                fate.decided = position
            self._try(op.key, fate, is_complete=is_complete)
        self._try_those_behind(op.key)

    def _given_up(self, line: str, *, half_end: int) -> None:
        op = codec.decode_op(line)
        assert isinstance(op, OpMessage)
        mine, _ = self.halves().get(op.key, ([], []))
        if op.key not in self.fates and not [half for half in mine if half.offset < half_end]:
            self.fates[op.key] = Fate(state="parked")

    def _mended(self, keys: Sequence[str]) -> None:
        held = [(self.fates[key].decided or (0, 0), key) for key in keys]
        for _, key in sorted(held):
            if self.fates[key].state == "held":
                self.fates[key].state = "waiting"
                self._try(key, self.fates[key])
        for _, key in sorted(held):
            self._try_those_behind(key)

    def _unknown(self, op: OpMessage, fate: Fate) -> None:
        if op.source is Source.OPERATOR:
            if op.key not in self._asked_now:  # one question at a time
                self._asked_now.add(op.key)
                fate.asked += 1
        elif op.source is Source.CHECK and op.check_number == fate.asked and op.check_number > fate.answered_number:
            fate.answered += 1
            fate.answered_number = op.check_number
            if fate.state == "open" and fate.answered >= self._log.settings.checks.default.check_max:
                fate.state, fate.because = "parked", "checks-exhausted"

    def _time_passed(self, tick: Tick) -> None:
        for key in tick.too_old:
            fate = self.fates.setdefault(key, Fate())
            assert "open" == fate.state
            fate.state, fate.because = "parked", "too-old"
        for key in tick.asked:
            fate = self.fates.setdefault(key, Fate())
            assert "open" == fate.state
            assert fate.answered < self._log.settings.checks.default.check_max
            fate.asked += 1
            self._asked_now.add(key)
        expired = tick.expired
        self._mended(
            [key for key, fate in self.fates.items() if fate.state == "held" and not self._refuses_for_now(key)]
        )
        for key in tick.too_old:
            self._try_those_behind(key)
        for key in expired:
            assert "held" == self.fates[key].state
            self.fates[key].state = "parked-committed"
            self.fates[key].because = "held-too-long"
        for key in expired:
            self._try_those_behind(key)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _try(self, key: str, fate: Fate, *, is_complete: bool = True) -> None:
        refusal = self._refusal(key)
        if not is_complete:
            fate.state, fate.because = "parked-committed", "incomplete"
        elif not self._is_free(key, fate):
            fate.state = "waiting"
        elif refusal == "hold":
            fate.state = "held"
        elif refusal:
            fate.state, fate.because = "parked-committed", refusal
        else:
            fate.state = "forwarded"
            self.forwarded.append(key)

    def _try_those_behind(self, key: str) -> None:
        name = self._key_hash(key)
        while name is not None:
            free = [
                (fate.decided or (0, 0), other)
                for other, fate in self.fates.items()
                if fate.state == "waiting" and self._key_hash(other) == name and self._is_free(other, fate)
            ]
            if not free:
                return
            _, first = min(free)
            self._try(first, self.fates[first])

    def _is_free(self, key: str, fate: Fate) -> bool:
        halves = self.halves()
        name = self._key_hash(key)
        if name is None:
            return True
        if halves[key][0][0].header.options.order is OrderMode.PREPARE:
            return not any(
                mine[0].offset < halves[key][0][0].offset
                and mine[0].header.options.key_hash == name
                and self.fates.get(other, Fate()).state in IN_ORDER
                for other, (mine, _) in halves.items()
            )
        for other, theirs in self.fates.items():
            if other == key or self._key_hash(other) != name or theirs.state not in IN_ORDER:
                continue
            is_in_line = halves[other][0][0].header.options.order is OrderMode.COMMIT
            if theirs.state == "held" or (theirs.state == "waiting" and is_in_line):
                assert fate.decided is not None
                if (theirs.decided or (0, 0)) < fate.decided:
                    return False
        return True

    def _refusal(self, key: str) -> str:
        mine, _ = self.halves().get(key, ([], []))
        if key in self._now.refusals:
            return "refused"
        if _count(mine) > self._log.settings.transaction_messages_max:
            return "limit"
        targets = [self._now.targets.get(topic, MISSING) for topic in self._topics(key)]
        if any(target.is_for_good for target in targets):
            return "forbidden-topic"
        if self._refuses_for_now(key):
            return "hold"
        for half in mine:
            limit = self._now.targets[half.header.topic].message_bytes_max
            if half.user_bytes > limit:
                return "too-large"
        return ""

    def _refuses_for_now(self, key: str) -> bool:
        targets = [self._now.targets.get(topic, MISSING) for topic in self._topics(key)]
        return any(t.refusal is not None and not t.is_for_good for t in targets)

    def _topics(self, key: str) -> list[str]:
        mine, _ = self.halves().get(key, ([], []))
        return [half.header.topic for half in mine]

    def _key_hash(self, key: str) -> str | None:
        mine, _ = self.halves().get(key, ([], []))
        return mine[0].header.options.key_hash if mine else None

    # --- what a ledger must hold --------------------------------------------------------------------------------------

    def unsettled(self, *, half_next: int) -> dict[str, Fate]:
        """Every transaction that is not over, as of a place in half."""
        begun = {k: Fate() for k, (mine, _) in self.halves().items() if mine[0].offset < half_next}
        known = {k: f for k, f in self.fates.items() if k in begun or f.state == "parked"}
        known.update((k, f) for k, f in self.fates.items() if f.state == "parked-committed")
        return {k: f for k, f in {**begun, **known}.items() if f.state in UNSETTLED}


def _home(header: HalfHeader) -> int:
    if header.options.key_hash is not None:
        return partition_of_key_hash(header.options.key_hash, partition_count=PARTITION_COUNT)
    return half_partition(ordering_key=None, txn_id=header.key.partition("/")[0], partition_count=PARTITION_COUNT)


def _count(mine: Sequence[Half]) -> int:
    return mine[0].header.count if mine else -1


def _may_name(fate: Fate, mine: Sequence[Half], twins: Sequence[int], offset: int) -> bool:
    """True when a line that names `offset` speaks of the transaction: doubt remembers the ends of what it holds only."""
    offsets = [half.offset for half in mine]
    if fate.kept_at is None:
        return offset in offsets or offset in twins
    early = [o for o in offsets if o < fate.kept_at]
    late = [o for o in offsets if o >= fate.kept_at]
    return offset in {*early[:1], *early[-1:], *late, *twins}
