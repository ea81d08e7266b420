"""A made-up history of one partition: producers, garbage, time, broken targets and crashes, out of a list of numbers.

Every append is held against the naive model, and against what a restart would find there. The naive model is what one partition
must do, slowly and obviously: lists of all records, looked through again for every line. It knows positions in the two logs and
what is known of the targets, and nothing of batches, crashes, doubt records, replays, budgets or fast paths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from tests.support.core_records import FAR_AWAY, PARTITION, PARTITION_COUNT, half_header, op_line, options, txn_key
from tests.support.partition_driver import (
    ACCEPTS,
    FORBIDDEN,
    MANY,
    MISSING,
    Applied,
    Fact,
    Kept,
    Mended,
    PartitionDriver,
    Tick,
    lines_between,
)
from tests.support.partition_log import Appended, PartitionLog
from txlayer.core import codec
from txlayer.core.codec import NEXT_VERSION
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.transaction import OpPosition, Target, Transaction, held_bytes, record_size, records_of
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import NO_OPTIONS, HalfHeader, HalfOptions, OpMessage, OrderMode, Resolution, Source
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


STEPS = (
    "nothing",  # the first, so that hypothesis shrinks to it
    *("begin",) * 6,
    *("half",) * 4,
    *("op",) * 10,
    *("turn",) * 8,
    *("read",) * 6,
    *("tick",) * 3,
    *("target",) * 3,
    *("crash",) * 2,
    "twin",
    "bad half",
    "bad op",
    "ghost",
    "early",
    "early",
    "give up",
    "give up",
    "drop",
    "compact",
)
TOPICS = ("orders", "stock")
ORDERS: tuple[HalfOptions, ...] = (
    NO_OPTIONS,
    NO_OPTIONS,
    options("red"),
    options("red"),
    options("red", order=OrderMode.PREPARE),
    options("red", order=OrderMode.PREPARE),
    options("blue", order=OrderMode.PREPARE),
    options(immunity_ms=5),
)
TARGETS = (ACCEPTS, MISSING, MISSING, FORBIDDEN)
DAY_MS = 24 * 3_600_000


Steps = Sequence[tuple[str, int, int]]
"""What happens, one after the other: a step's name and two numbers that choose its details."""


def made_up_steps(seed: int, *, count: int) -> Steps:
    """A history out of a seed, the same on every machine."""
    dice = Random(seed)
    return [(dice.choice(STEPS[1:]), dice.randrange(100), dice.randrange(100)) for _ in range(count)]


@dataclass(slots=True)
class Prepared:
    """A transaction as its producer knows it."""

    key: str
    topics: tuple[str, ...]
    options: HalfOptions
    offsets: list[int] = field(default_factory=list)
    newest: int = -1
    is_resolved: bool = False
    is_plain: bool = True  # neither kept twice by the broker nor a ghost: its lines may name any place


class History:
    """Plays steps; `finish` mends everything, so that what is committed must be visible.

    With `restart_at` a new process goes on behind the n-th append: whatever it does not find in the logs it never knew.
    """

    def __init__(self, *, is_restart_tried: bool = True, restart_at: int = -1) -> None:
        self.driver = PartitionDriver(targets=dict.fromkeys(TOPICS, ACCEPTS), on_append=self._judge)
        self.naive = NaivePartition(self.driver.log)
        self._is_restart_tried = is_restart_tried
        self._restart_at = restart_at
        self._prepared: list[Prepared] = []
        self._lines: list[str] = []

    def play(self, steps: Steps) -> None:
        """Let it happen, and finish."""
        for what, a, b in steps:
            getattr(self, "_" + what.replace(" ", "_"))(a, b)
        self._finish()

    def _nothing(self, _a: int, _b: int) -> None:
        pass

    # --- producers ----------------------------------------------------------------------------------------------------

    def _begin(self, a: int, b: int) -> None:
        number = len(self._prepared)
        name = f"t{max(number - 2, 0) if a % 7 == 6 else number}"  # some ids come again, with another nonce
        count = (1, 1, 1, 2, 3, 6)[b % 6] if a % 3 == 0 else 1
        topics = tuple(TOPICS[(b >> i) % 2] for i in range(count))
        key = txn_key(name, nonce=f"{number:08x}")
        self._prepared.append(Prepared(key, topics, ORDERS[a % len(ORDERS)]))
        self._write(self._prepared[-1], is_big=b % 23 == 22)
        if count > 1 and b % 2:
            self._half(0, b)

    def _half(self, a: int, b: int) -> None:
        unfinished = [t for t in self._prepared if len(t.offsets) < len(t.topics)]
        if unfinished:
            self._write(unfinished[-1 - a % len(unfinished)], is_big=b % 23 == 22)

    def _write(self, prepared: Prepared, *, is_big: bool = False) -> None:
        index = len(prepared.offsets)
        value = b"x" * (9_600 if is_big else index)
        prepared.newest = self.driver.half(
            prepared.key,
            index=index,
            count=len(prepared.topics),
            topic=prepared.topics[index],
            options=prepared.options,
            value=value or None,
        )
        prepared.offsets.append(prepared.newest)

    def _twin(self, a: int, b: int) -> None:
        # The broker keeps a batch twice: before its producer resolves it, or so late that all is over.
        fates = self.naive.fates
        begun = [
            t
            for t in self._prepared
            if t.offsets and (not t.is_resolved or (t.key in fates and fates[t.key].state not in UNSETTLED))
        ]
        if begun:
            twin = begun[-1 - a % len(begun)]
            index = b % len(twin.offsets)
            twin.is_plain = False
            twin.newest = self.driver.half(
                twin.key, index=index, count=len(twin.topics), topic=twin.topics[index], options=twin.options
            )

    def _bad_half(self, a: int, b: int) -> None:
        other = self._prepared[-1 - b % len(self._prepared)].key if self._prepared else "none"
        raw: tuple[bytes | None, ...] = (
            None,
            b"\xff\xfe",
            b"1|" + txn_key("g").encode() + b"|shop|orders|0/1|soon|",
            half_header(txn_key("away", is_home=False)),
            half_header(txn_key(f"headless{a}"), index=1, count=2),
            half_header(other, index=4, count=5),
            b"1|a/b" + txn_key("g").encode() + b"|shop|orders|0/1|5|",
            b"1|" + b"y" * 140 + b"/0000000a|shop|orders|0/1|5|",
        )
        self.driver.half_raw(raw[a % len(raw)])

    def _op(self, a: int, b: int) -> None:
        begun = [t for t in self._prepared if t.offsets]
        if not begun:
            return
        prepared = begun[-1 - min(a % 13, a % len(begun))]
        resolution = "CCCCCCCRRRUUUAA"[b % 15]
        offset = prepared.newest
        if a % 11 == 10 and prepared.is_plain:
            offset = prepared.offsets[b % len(prepared.offsets)]
        elif a % 17 == 16 and prepared.is_plain:
            offset = a % len(self.driver.log.half)  # may be anybody's
        prepared.is_resolved = True
        source, number = Source.PRODUCER, None
        if resolution == "U" or a % 4 == 3:
            source = (Source.CHECK, Source.CHECK, Source.CHECK, Source.OPERATOR)[a % 4]
            fate = self.naive.fates.get(prepared.key)
            if source is Source.CHECK:
                number = max(0, (0 if fate is None else fate.asked) - (a % 5 == 4))
        line = op_line(resolution, prepared.key, offset, source=source, check_number=number)
        self._lines.append(line if a % 19 < 18 else NEXT_VERSION + line[1:])
        if b % 3:
            self._flush(a)

    def _flush(self, a: int) -> None:
        if self._lines:
            self.driver.op_lines(*self._lines, gap=a % 3)
            self._lines = []

    def _bad_op(self, a: int, b: int) -> None:
        self._flush(b)
        if a % 4 == 0:
            self.driver.log.add_op((None, b"", b"\xff", b"\n")[b % 4], appended_ms=self.driver.now_ms)
        elif self._prepared:
            prepared = self._prepared[-1 - b % len(self._prepared)]
            good = op_line("C", prepared.key, prepared.newest)
            self._lines.append((good + "|", good.replace("|shop|", "||"), "3" + good[1:])[a % 3])

    def _ghost(self, a: int, b: int) -> None:
        """A line far beyond half's end; its half records may come later."""
        number = len(self._prepared)
        key = txn_key(f"ghost{number}", nonce=f"{number:08x}")
        self._lines.append(op_line("CRU"[b % 3], key, FAR_AWAY))
        self._flush(a)
        self._prepared.append(
            Prepared(key, TOPICS[: 1 + a % 2], ORDERS[b % len(ORDERS)], is_resolved=True, is_plain=False)
        )

    def _early(self, a: int, b: int) -> None:
        """A line that names a half offset which is there only later: some wait for it, some are given up before."""
        # Of one that is settled a restart may know nothing any more, and park it anew.
        unfinished = [t for t in self._prepared if 0 < len(t.offsets) < len(t.topics) and not t.is_resolved]
        if unfinished:
            prepared = unfinished[-1 - a % len(unfinished)]
            prepared.is_resolved, prepared.is_plain = True, False
            place = len(self.driver.log.half) + (0, 0, 0, 1, 2)[b % 5]
            self._lines.append(op_line("CCCRU"[a % 5], prepared.key, place))
            self._flush(b)

    # --- coordinator --------------------------------------------------------------------------------------------------

    def _read(self, a: int, b: int) -> None:
        counts = (0, 0, 1, 2, 5, None)
        self.driver.read(half=counts[a % 6], op=counts[b % 6])

    def _turn(self, a: int, b: int) -> None:
        if a % 3:
            self.driver.read()
        batch = self.driver.advance(lines=(1, 2, 3, MANY)[a % 4], byte_count=(1, 100, MANY)[b % 3])
        if not batch.is_empty or b % 5 == 0:
            self.driver.publish(is_answered=b % 7 != 6)

    def _tick(self, a: int, b: int) -> None:
        after_ms = (0, 1_000, 61_000, 61_000, 8 * DAY_MS)[a % 5]
        self.driver.tick(after_ms=after_ms, moves=(1, 100)[b % 2], is_present=b % 3 > 0)
        if not self.driver.ledger.batch.is_empty:
            self.driver.publish(is_answered=b % 7 != 6)

    def _target(self, a: int, b: int) -> None:
        self.driver.set_target(TOPICS[a % 2], TARGETS[b % len(TARGETS)], is_told=a % 3 > 0)

    def _give_up(self, _a: int, _b: int) -> None:
        self.driver.give_up()

    def _drop(self, a: int, _b: int) -> None:
        self.driver.ledger.drop_content(1 + a % 5)

    def _crash(self, _a: int, b: int) -> None:
        self.driver.crash(is_new_process=b % 2 == 0)

    def _compact(self, _a: int, _b: int) -> None:
        self.driver.log.compact_doubt()

    def _finish(self) -> None:
        """Heal everything and answer for every open transaction: then nothing may wait or be held any more."""
        self._flush(0)
        for topic in TOPICS:
            self.driver.set_target(topic, ACCEPTS, is_told=False)
        self._work_off()
        for txn in list(self.driver.ledger.all_unsettled()):
            if txn.state in (TxnState.OPEN, TxnState.PARKED) and txn.seen:
                self.driver.op("R", txn.key, txn.last_offset)
        self._work_off()
        left = self.driver.ledger
        assert not left.has_more
        assert left.waits_for_half is None
        stuck = {TxnState.OPEN, TxnState.WAITING, TxnState.HELD}
        assert [] == [t.key for t in left.all_unsettled() if t.state in stuck]
        assert 0 == left.content_bytes

    def _work_off(self) -> None:
        for _ in range(100):
            before = self.driver.log.stored
            self.driver.read()
            self.driver.advance()
            self.driver.give_up()
            self.driver.tick()
            is_idle = self.driver.ledger.batch.is_empty
            self.driver.publish()
            if is_idle and before == self.driver.log.stored:
                return
        raise AssertionError("no end")

    # --- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, facts: list[Fact], appended: Appended) -> None:
        log, ledger, positions = self.driver.log, self.driver.ledger, appended.positions
        before = len(self.naive.forwarded)
        self.naive.happened(facts, half_next=positions.half_next)
        self._judge_forwarded(appended, self.naive.forwarded[before:])
        unsettled = self.naive.unsettled(half_next=positions.half_next)
        expected = {key: (fate.state, fate.asked, fate.answered, fate.decided) for key, fate in unsettled.items()}
        assert expected == {t.key: _standing(t) for t in ledger.all_unsettled()}
        on_doubt = log.on_doubt()
        for txn in ledger.all_unsettled():
            if txn.key in on_doubt:
                contents = log.contents_on_doubt(txn.key)
                assert list(range(txn.seen)) == sorted(contents), txn.key
            else:
                assert positions.low_water <= txn.first_offset, txn.key
        assert {t.key for t in ledger.all_unsettled() if t.is_in_doubt} == set(on_doubt)
        assert len(on_doubt) == ledger.doubt_index.count
        assert sum(max(txn.seen - 1, 0) for txn in on_doubt.values()) == ledger.doubt_index.further_count
        if len(log.appended) > 1:
            _judge_progress(log.appended[-2], appended)
        _judge_memory(ledger)
        if self._is_restart_tried:
            again = log.rebuild(targets=self.driver.book, refusals=self.driver.refusals)
            assert _snapshot(ledger) == _snapshot(again)
        if len(log.appended) == self._restart_at + 1:
            self.driver.crash(is_new_process=True)

    def _judge_forwarded(self, appended: Appended, expected: list[str]) -> None:
        halves = self.naive.halves()
        messages: list[Any] = [
            (key, half.header.index, half.header.topic, half.offset) for key in expected for half in halves[key][0]
        ]
        found = [(m.txn_key, m.index, m.topic, m.half_offset) for m in appended.messages]
        assert sorted(messages) == sorted(found)
        for message in appended.messages:
            half = self.driver.log.half[message.half_offset].record
            assert (half.key(), half.value()) == (message.key, message.value)
        for name in {self.naive._key_hash(key) for key in expected} - {None}:
            in_order = [m for m in messages if self.naive._key_hash(m[0]) == name]
            assert in_order == [m for m in found if self.naive._key_hash(m[0]) == name]


def _judge_progress(before: Appended, now: Appended) -> None:
    old, new = before.positions, now.positions
    assert old.low_water <= new.low_water <= new.half_next
    assert old.half_next <= new.half_next
    assert (old.op_offset, old.op_line) <= (new.op_offset, new.op_line)
    assert (old.replay_offset, old.replay_line) <= (new.replay_offset, new.replay_line)
    assert (new.replay_offset, new.replay_line) <= (new.op_offset, new.op_line)
    assert old.doubt_low <= new.doubt_low


def _judge_memory(ledger: Ledger) -> None:
    in_half = [t for t in ledger.transactions.values() if not t.is_in_doubt]
    in_memory = [t for t in ledger.transactions.values() if t.content is not None]
    assert sum(_size(t) for t in in_memory) == ledger.content_bytes
    assert all(not t.is_in_doubt for t in in_memory)
    assert len(ledger.in_half.past_immunity) + len(ledger.in_half.immune) <= 2 * len(in_half) + 1024


def _size(txn: Transaction) -> int:
    return sum(held_bytes(record) for _, record in records_of(txn))


def _standing(txn: Transaction) -> tuple[str, int, int, Any]:
    more = txn.extras
    if more is None:
        return txn.state.value, 0, 0, None
    return txn.state.value, more.checked_count, more.answered_count, more.decided_at


def _snapshot(ledger: Ledger) -> dict[str, Any]:
    return {t.key: (t.summary(), _place(t)) for t in ledger.all_unsettled()}


def _place(txn: Transaction) -> Any:
    """Where the contents of a transaction on doubt are."""
    more = txn.extras
    return None if more is None or not txn.is_in_doubt else txn.seen and (more.doubt_offset, more.further_at)
