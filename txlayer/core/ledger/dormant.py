"""Transactions on doubt that wait for nothing but their time, in a short form: undecided ones after a restart, and scheduled ones.

A partition may have a million of them. They need no object until an op line, a half record or their time names them: each costs
its short key, a row of at most 55 bytes and some numbers. What repeats (group, topics, …) is stored once, as a shape. One that is named or
due is loaded: it becomes a `Transaction`. Only plain transactions are dormant: an undecided one without ordering key, own immunity or
second copies; a scheduled one with one time, whose messages without a time are forwarded. So no order between transactions depends on a
dormant one.
"""

from __future__ import annotations

import re
from array import array
from binascii import hexlify, unhexlify
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import chain, compress, islice, takewhile
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from txlayer.core.checks import NEVER_MS, CheckPolicies, pause_after
from txlayer.core.ledger.transaction import OpPosition, Transaction, from_summary
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import DoubtSummary, OrderMode, ShortKey, full_key, short_key

_N = rb"[0-9]{1,18}"  # the class `\d` takes twice as long
_PLACES = rb"[A-Za-z0-9._-]{1,200}(\|%b){6}" % _N
_OPEN_FORM = re.compile(rb"1\|open\|\|%b\|\|commit\|\|\|%b\|[A-Za-z0-9._,-]+\|%b/%b/%b/%b" % (_PLACES, *[_N] * 5))
"""The summary of an undecided one."""
_SCHEDULED_FORM = re.compile(
    rb"3\|scheduled\|\|%b\|([0-9a-f]{16})?\|(commit|prepare)\|\|(?P<at>[0-9]{1,18}:[0-9]{1,5})\|%b\|[A-Za-z0-9._,-]+\|"
    rb"0/%b/0/%b\|(?P<sent>[01])/(?P=sent)/%b/(?P=at)" % (_PLACES, *[_N] * 4)
)
"""The same of a scheduled one that was never released or decided anew: at most its messages without a time are forwarded."""
_NO_TIMES = (b"0", b"0", b"0", b"")

_WIDTHS = (5, 3, 3, 5, 6, 6, 4, 3)
"""Bytes of the first numbers of a row: the offset of the first half record, and the distance of the last one; the shape; the doubt offset;
the append time; the time since the birth, and until it moved to doubt; the size of its content."""
_OPEN_WIDTHS = (*_WIDTHS, 4)  # the same of an undecided one, and the time from its append until its last check-back
_SCHEDULED_WIDTHS = (*_WIDTHS, 7, 5)
"""The same of a scheduled one, with the op position of its commit, and the time from its append until it is due. The hash of an ordering key follows."""
_OPEN_ROW, _SCHEDULED_ROW = Struct("<QQQIIHBI"), Struct("<QQQIIHBQI")
"""Both rows, with neighbours as one number: one call instead of a call for each number. A number below 0 or above the last one's width
is an error."""
_LAG_MS = 1 << 47  # added to the time since the birth: a producer's clock may be wrong by any time
_LINE_BITS = 16


def _slices(widths: tuple[int, ...]) -> tuple[slice, ...]:
    ends = [sum(widths[: number + 1]) for number in range(len(widths))]
    return tuple(slice(end - width, end) for end, width in zip(ends, widths, strict=True))


_OPEN_SLICES, _SCHEDULED_SLICES = _slices(_OPEN_WIDTHS), _slices(_SCHEDULED_WIDTHS)
_, _, _SHAPE, _DOUBT, _APPENDED, _, _MOVED, _SIZE, _ASKED = _OPEN_SLICES
_COMMITTED, _TIME = _SCHEDULED_SLICES[-2:]
_KEY_HASH = slice(_TIME.stop, None)

SHAPES_SPARE_MAX = 10_000
"""Shapes of which no transaction may be left, in addition to as many as there are transactions."""


class _Shape(NamedTuple):
    """What many transactions have in common."""

    state: TxnState
    producer_group: str
    seen: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which has no caller
    order: OrderMode
    topics: tuple[str, ...]
    checked_count: int
    answered_count: int
    answered_number: int
    sent_to: int  # 1: it had messages without a time


_ShapeName = tuple[bytes, ...]
"""What makes a shape, as a summary says it: version, state, group, counts, order, topics, numbers of checks and of the newest answer, and
whether messages are forwarded."""


class _Waiting(NamedTuple):
    """The undecided ones of one producer group; the last one is due first."""

    keys: list[ShortKey]
    due_ms: array[int]
    end_ms: array[int]  # when their age is over


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


class DormantTransactions:
    """The dormant transactions of one partition, and when the undecided ones are due."""

    def __init__(self) -> None:
        self.rows: dict[ShortKey, bytes] = {}  # By short key. Only this class changes it.
        self.counts: dict[str, tuple[int, int]] = {}
        """Undecided ones by producer group: all, and those with a check-back."""
        self._shapes: list[_Shape] = []
        self._of_one_moment = (
            self._shapes,
            self.rows,
        )  # for other threads: numbers in these rows are those of these shapes
        self._shape_numbers: dict[_ShapeName, int] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._next_end_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: str) -> bool:
        return bool(self.rows) and short_key(key) in self.rows

    @property
    def shape_count(self) -> int:
        return len(self._shapes)

    @property
    def topics(self) -> set[str]:
        return {topic for shape in self._shapes for topic in shape.topics}

    def put(self, key: str, summary: bytes, *, doubt_offset: int, size: int) -> bool:
        """Take a transaction, by its summary, and the place and size of its content. False: it has no short form."""
        try:
            row = self._row_of(summary, doubt_offset, size)
        except (ValueError, StructError):  # it is out of form, or a number is larger than usual
            return False
        if row is not None:
            self.rows[short_key(key)] = row
        return row is not None

    def _row_of(self, summary: bytes, doubt_offset: int, size: int) -> bytes | None:  # hot path: a million at a restart
        # What makes the shape is checked once, with the first of that shape; only numbers can be out of form then.
        # fmt: off
        version, state, reason, group, first, last, seen, count, appended, born, hashed, order, immunity, decided, moved, \
            topics, checks, *times = summary.split(b"|")
        # fmt: on
        checked, answered, asked, newest = checks.split(b"/")
        sent, released, time, committed = times[0].split(b"/") if times else _NO_TIMES
        name = (version, state, group, seen, count, order, topics, checked, answered, newest, sent)
        number = self._shape_numbers.get(name)
        if number is None:
            if (_SCHEDULED_FORM if times else _OPEN_FORM).fullmatch(summary) is None:
                return None
            number = self._add_shape(name)
        elif reason or immunity or decided != committed or sent != released or len(times) > 1:
            return None
        offset, _, line = decided.partition(b":")
        if not b"".join((first, last, appended, born, moved, asked, time, offset, line)).isdigit():
            return None
        is_checked = checked != b"0"
        if not is_checked and asked != b"0":
            return None
        first_offset, appended_ms = int(first), int(appended)
        if first_offset >> 40 or number >> 24 or appended_ms >> 48:
            return None  # one of them is larger than usual
        lag = appended_ms - int(born) + _LAG_MS
        numbers = (
            first_offset | (int(last) - first_offset if last != first else 0) << 40,
            number | doubt_offset << 24,
            appended_ms | (lag & 0xFFFF) << 48,
            lag >> 16,
            int(moved) - appended_ms,
            size & 0xFFFF,
            size >> 16,
        )
        if not times:
            return None if hashed else _OPEN_ROW.pack(*numbers, int(asked) - appended_ms * is_checked)
        line_number, wait_ms = int(line), int(time) - appended_ms
        position = int(offset) << _LINE_BITS | line_number
        if is_checked or position >> 56 or line_number >> _LINE_BITS:
            return None
        row = _SCHEDULED_ROW.pack(*numbers, position | (wait_ms & 0xFF) << 56, wait_ms >> 8)
        if hashed:
            key_hash = unhexlify(hashed)
            return row + key_hash if hexlify(key_hash) == hashed and len(hashed) == 16 else None
        return row

    def _add_shape(self, name: _ShapeName) -> int:
        if len(self._shapes) > len(self.rows) + SHAPES_SPARE_MAX:
            self._forget_shapes()
        _, state, group, seen, count, order, topics, *numbers = (field.decode("ascii") for field in name)
        checked, answered, newest, sent = map(int, numbers)
        shape = _Shape(
            TxnState(state),
            group,
            int(seen),
            int(count),
            OrderMode(order),
            tuple(topics.split(",")),
            checked,
            answered,
            newest,
            sent,
        )
        self._shapes.append(shape)
        self._shape_numbers[name] = len(self._shapes) - 1
        return len(self._shapes) - 1

    def _forget_shapes(self) -> None:
        """Forget the shapes of which no transaction is left: half records may invent any number of them."""
        used = {raw: number for number, raw in enumerate({row[_SHAPE]: None for row in self.rows.values()})}
        numbers = {_number(raw): number for raw, number in used.items()}
        self._shapes = [self._shapes[number] for number in numbers]
        self._shape_numbers = {name: numbers[n] for name, n in self._shape_numbers.items() if n in numbers}
        begin, end = _SHAPE.start, _SHAPE.stop
        raw_numbers = {raw: number.to_bytes(end - begin, "little") for raw, number in used.items()}
        self.rows = {k: row[:begin] + raw_numbers[row[_SHAPE]] + row[end:] for k, row in self.rows.items()}
        self._of_one_moment = self._shapes, self.rows

    def drop(self, key: str) -> None:
        """Forget one that is settled, or that has no short form any more."""
        if self.rows:
            self.rows.pop(short_key(key), None)

    def load(self, key: str) -> Transaction | None:
        """Load a dormant transaction: it is returned and is no longer dormant. None: no transaction of this key is dormant."""
        row = self.rows.pop(short_key(key), None) if self.rows else None
        if row is None:
            return None
        txn = _transaction(key, row, self._shapes)
        if not self.rows:
            self._forget_shapes()
        if txn.state is TxnState.OPEN and txn.group in self.counts:
            count, asked_count = self.counts[txn.group]
            self.counts[txn.group] = count - 1, asked_count - (txn.ensure_extras().checked_count > 0)
        return txn

    def place_of(self, key: str) -> tuple[int, int] | None:
        """Doubt offset and size of its content; None: no transaction of this key is dormant."""
        row = self._row(key)
        return None if row is None else (_number(row[_DOUBT]), _number(row[_SIZE]))

    def _row(self, key: str) -> bytes | None:
        return self.rows.get(short_key(key)) if self.rows else None

    def doubt_offsets(self) -> Iterator[int]:
        """Doubt offsets of their contents, in the order of `rows`."""
        number = int.from_bytes
        return (number(row[_DOUBT], "little") for row in self.rows.values())

    def look_at(self, key: str) -> Transaction | None:
        """A dormant transaction, for reading only: it stays dormant."""
        row = self._row(key)
        return None if row is None else _transaction(key, row, self._shapes)

    @property
    def further_count(self) -> int:
        """Number of their contents beyond the first of each."""
        further = {n: shape.seen - 1 for n, shape in enumerate(self._shapes) if shape.seen > 1}
        return sum(further.get(_number(row[_SHAPE]), 0) for row in self.rows.values()) if further else 0

    def committed_at(self, key: str) -> OpPosition:
        """Op position of the commit of a scheduled one."""
        committed = _number((self._row(key) or b"")[_COMMITTED])
        return committed >> _LINE_BITS, committed & (1 << _LINE_BITS) - 1

    def time_of(self, key: str) -> int | None:
        """The time of a scheduled one; None: it is none."""
        row = self._row(key) or b""
        return _number(row[_APPENDED]) + _number(row[_TIME]) if len(row) >= _TIME.stop else None

    def sample(self, count_max: int) -> Iterator[tuple[Transaction, int]]:
        """At most about so many of them, each with the number of those that it stands for. They stay dormant; any thread may call it."""
        shapes, rows = self._of_one_moment
        rows = rows.copy()  # the interpreter runs it as one step, also when it collects garbage
        step = len(rows) // count_max + 1
        for number, (key, row) in zip(range(0, len(rows), step), islice(rows.items(), 0, None, step), strict=True):
            yield _transaction(full_key(key), row, shapes), min(step, len(rows) - number)

    def all_unsettled(self) -> Iterator[Transaction]:
        """All of them as transactions, for reading only: they stay dormant."""
        return (_transaction(full_key(key), row, self._shapes) for key, row in self.rows.items())

    # --- time ---

    def begin(self, policies: CheckPolicies, release_times: ReleaseTimes) -> int:
        """Note when those that a restart found are due. Returns when the last of them moved to doubt, or was decided there."""
        newest_ms = 0
        waiting: dict[str, _Waiting] = {}
        asked_counts: dict[str, int] = {}
        of_shapes = []
        for shape in self._shapes:
            policy, group = policies.of(shape.producer_group), shape.producer_group
            is_open = shape.state is TxnState.OPEN
            of_group = waiting.setdefault(group, _Waiting([], array("q"), array("q"))) if is_open else None
            pause_ms = pause_after(shape.checked_count, policy) if shape.checked_count else 0
            of_shapes.append((of_group, group, policy.check_immunity_ms, policy.transaction_age_max_ms, pause_ms))
        times, committed, keys = array("q"), array("q"), list[ShortKey]()
        number = int.from_bytes
        for key, row in self.rows.items():  # hot path: a million of them
            of_group, group, immunity_ms, age_max_ms, pause_ms = of_shapes[number(row[_SHAPE], "little")]
            appended_ms = number(row[_APPENDED], "little")
            moved_ms = appended_ms + number(row[_MOVED], "little")
            if moved_ms > newest_ms:
                newest_ms = moved_ms
            if of_group is None:
                times.append(appended_ms + number(row[_TIME], "little"))
                committed.append(number(row[_COMMITTED], "little"))
                keys.append(key)
                continue
            due_ms = appended_ms + immunity_ms
            end_ms = due_ms + age_max_ms
            if pause_ms:
                asked_counts[group] = asked_counts.get(group, 0) + 1
                due_ms = min(appended_ms + number(row[_ASKED], "little") + pause_ms, end_ms)
            of_group.keys.append(key)
            of_group.due_ms.append(due_ms)
            of_group.end_ms.append(end_ms)
        release_times.add_run(times, committed, keys)
        for group, found in waiting.items():
            if found.keys:
                self.counts[group] = len(found.keys), asked_counts.get(group, 0)
                self._wait(group, found)
        return newest_ms

    @property
    def group_count(self) -> int:
        return len(self._waiting)

    @property
    def groups(self) -> list[str]:
        """Groups that may still have dormant undecided transactions."""
        return list(self._waiting)

    def due(self, group: str, now_ms: int, count_max: int) -> list[str]:
        """At most `count_max` keys of a group that are due, the earliest first. The caller must load each of them."""
        keys, due_ms, end_ms = self._waiting[group]
        found: list[str] = []
        while keys and due_ms[-1] <= now_ms and len(found) < count_max:
            key = keys.pop()
            due_ms.pop()
            end_ms.pop()
            if key in self.rows:
                found.append(full_key(key))
        if not keys:
            del self._waiting[group], self._next_end_ms[group]
        return found

    def too_old(self, group: str, now_ms: int, count_max: int) -> list[str]:
        """At most `count_max` keys of a group whose age is over, due or not."""
        if self._next_end_ms[group] > now_ms:
            return []
        # Scans all of them, but only when the age of one is over.
        keys, _, end_ms = self._waiting[group]
        found = [k for k in compress(keys, (end <= now_ms for end in end_ms)) if k in self.rows]
        if len(found) <= count_max:
            later = (end for end in end_ms if end > now_ms)
            self._next_end_ms[group] = min(later, default=NEVER_MS)
        return [full_key(key) for key in found[:count_max]]

    def _wait(self, group: str, found: _Waiting) -> None:
        # They arrive in the order in which they moved to doubt, which is nearly the order of their times: sorting is cheap.
        due_ms = found.due_ms
        order = sorted(range(len(due_ms)), key=due_ms.__getitem__)
        order.reverse()
        self._waiting[group] = _Waiting(
            [found.keys[index] for index in order],
            array("q", [due_ms[index] for index in order]),
            array("q", [found.end_ms[index] for index in order]),
        )
        self._next_end_ms[group] = min(found.end_ms)


def _transaction(key: str, row: bytes, shapes: Sequence[_Shape]) -> Transaction:
    is_open = len(row) == _OPEN_ROW.size
    places, others, times, lag, moved_ms, size, size_high, *rest = (
        _OPEN_ROW if is_open else _SCHEDULED_ROW
    ).unpack_from(row)
    shape = shapes[others & 0xFFFFFF]
    first_offset, appended_ms = places & (1 << 40) - 1, times & (1 << 48) - 1
    committed: OpPosition | None = None
    asked_ms, due_at = 0, tuple[int, ...]()
    if is_open:
        asked_ms = appended_ms + rest[0] if shape.checked_count else 0
    else:
        position = rest[0] & (1 << 56) - 1
        committed = position >> _LINE_BITS, position & (1 << _LINE_BITS) - 1
        due_at = (appended_ms + (rest[0] >> 56 | rest[1] << 8),)
    summary = DoubtSummary(
        key=key,
        state=shape.state.value,
        reason="",
        producer_group=shape.producer_group,
        first_offset=first_offset,
        last_offset=first_offset + (places >> 40),
        seen=shape.seen,
        count=shape.count,
        appended_ms=appended_ms,
        born_ms=appended_ms - (times >> 48 | lag << 16) + _LAG_MS,
        key_hash=hexlify(row[_KEY_HASH]).decode("ascii") or None,
        order=shape.order,
        immunity_ms=None,
        decided_at=committed,
        moved_ms=appended_ms + moved_ms,
        topics=shape.topics,
        checked_count=shape.checked_count,
        answered_count=shape.answered_count,
        asked_ms=asked_ms,
        answered_number=shape.answered_number,
        sent_to=shape.sent_to,
        released_to=shape.sent_to,
        times=due_at,
        committed_at=committed,
    )
    return from_summary(summary, doubt_offset=others >> 24, size=size | size_high << 16)


RUN_COUNT = 10_000  # times in the heap of `ReleaseTimes` above which they become a run
RUNS_MAX = 64  # runs above which they become one
TIMES_MIN = 1_000  # times among which obsolete ones may stay; of more, as many as there are others


class _Run:
    """Times of scheduled transactions, the last one first. They take 4 bytes each, unless there are 49 days between them."""

    __slots__ = ("_begin_ms", "_times", "keys")

    def __init__(self, times: Sequence[int], keys: list[ShortKey]) -> None:
        self._begin_ms = begin_ms = min(times, default=0)
        fits = not times or times[0] - begin_ms < 1 << 32
        self._times = array("I" if fits else "Q", (time_ms - begin_ms for time_ms in times))
        self.keys = keys

    @property
    def first_ms(self) -> int:
        return self._begin_ms + self._times[-1]

    def pop(self) -> str:
        """Remove the first; its key."""
        self._times.pop()
        return full_key(self.keys.pop())

    def items(self) -> Iterator[tuple[int, str]]:
        """The times and keys, the earliest first."""
        both = zip(reversed(self._times), reversed(self.keys), strict=True)
        return ((self._begin_ms + passed_ms, full_key(key)) for passed_ms, key in both)


class ReleaseTimes:
    """The times of scheduled transactions: the earliest first, and of one time what was committed first. Some are obsolete.

    New ones are in a heap; of a million, all but some are in sorted runs of 12 bytes each. `committed_at` tells the op position of a
    transaction's commit, and `is_awaited` whether a time of it is not obsolete.
    """

    def __init__(self, committed_at: Callable[[str], OpPosition], is_awaited: Callable[[int, str], bool]) -> None:
        self._committed_at = committed_at
        self._is_awaited = is_awaited
        self._heap: list[tuple[int, OpPosition, str]] = []
        self._runs: list[_Run] = []
        self._count_max = TIMES_MIN

    def __len__(self) -> int:
        return len(self._heap) + sum(len(run.keys) for run in self._runs)

    @property
    def first_ms(self) -> int:
        """The earliest; later than any time if there is none."""
        heads = [run.first_ms for run in self._runs]
        if self._heap:
            heads.append(self._heap[0][0])
        return min(heads, default=NEVER_MS)

    def add(self, time_ms: int, committed_at: OpPosition, key: str) -> None:
        """Add a time of a transaction that was committed at this op position."""
        heappush(self._heap, (time_ms, committed_at, key))
        if len(self._heap) > RUN_COUNT:
            self._heap.sort(reverse=True)
            self._runs.append(_Run([time for time, _, _ in self._heap], [short_key(key) for _, _, key in self._heap]))
            self._heap.clear()
        if len(self._runs) > RUNS_MAX or len(self) > self._count_max:
            self._forget_obsolete()

    def _forget_obsolete(self) -> None:
        times, committed, keys = array("q"), list[int](), list[ShortKey]()
        in_heap = ((time_ms, key) for time_ms, _, key in self._heap)
        for time_ms, key in chain(in_heap, *(run.items() for run in self._runs)):
            if self._is_awaited(time_ms, key):
                offset, line = self._committed_at(key)
                times.append(time_ms)
                committed.append(offset << 32 | line)
                keys.append(short_key(key))
        self._heap, self._runs = [], []
        self.add_run(times, committed, keys)

    def add_run(self, times: Sequence[int], committed: Sequence[int], keys: Sequence[ShortKey]) -> None:
        """Add many; `committed` has a number for each that grows with the op position of its commit."""
        order = sorted(range(len(keys)), key=committed.__getitem__)
        order.sort(key=times.__getitem__)
        order.reverse()
        found: list[int] = []
        last_ms = -1
        last_key: ShortKey = ""
        for index in order:
            time_ms, key = times[index], keys[index]
            if (
                time_ms != last_ms or key != last_key
            ):  # one that was given another time, and then the first one again, is here twice
                found.append(index)
            last_ms, last_key = time_ms, key
        if found:
            self._runs.append(_Run([times[index] for index in found], [keys[index] for index in found]))
        self._count_max = max(2 * len(self), TIMES_MIN)

    def until(self, time_ms: int) -> Iterator[tuple[int, str]]:
        """Times up to this one, and their keys, the earliest first; some are obsolete."""
        heap = sorted((at_ms, key) for at_ms, _, key in self._heap if at_ms <= time_ms)
        return takewhile(lambda item: item[0] <= time_ms, merge(heap, *(run.items() for run in self._runs)))

    def take(self) -> tuple[int, str]:
        """Remove and return the first: its time and key."""
        first_ms = self.first_ms
        heads: list[tuple[OpPosition, _Run | None]] = []
        if self._heap and self._heap[0][0] == first_ms:
            heads.append((self._heap[0][1], None))
        heads += [(self._committed_at(full_key(run.keys[-1])), run) for run in self._runs if run.first_ms == first_ms]
        run = min(heads, key=lambda head: head[0])[1]
        if run is None:
            return first_ms, heappop(self._heap)[2]
        key = run.pop()
        if not run.keys:
            self._runs = [run for run in self._runs if run.keys]
        return first_ms, key
