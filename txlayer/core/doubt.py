"""What one partition has on the doubt topic: its low-water mark, what must be written again, what waits for a topic.

Never here: what may happen to a transaction (transitions.py says it).
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import compress, islice
from operator import gt, itemgetter
from typing import Any, NamedTuple

from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, pause_after
from txlayer.core.messages import DoubtSummary, HalfHeader, Headers, OpMessage, Origin
from txlayer.core.transaction import RECORD_BYTES, UNKNOWN_TARGET, Target, Transaction, from_summary
from txlayer.core.transitions import SETTLED, TxnState

_N = rb"[0-9]{1,18}"  # the class `\d` takes twice as long
_SLEEPER = re.compile(
    rb"1\|open\|\|[A-Za-z0-9._-]{1,200}\|%b\|%b\|%b\|%b\|%b\|%b\|\|commit\|\|\|%b\|[A-Za-z0-9._,-]+\|%b/%b/%b/%b"
    % ((_N,) * 11)
)
_NEVER_ASKED = b"0/"
"""How the checks in a summary begin when nobody was asked yet."""
_PLACE = b"@"
"""Between a summary and the offset of its content; no summary holds one."""

_NEVER_MS = 1 << 62


def may_sleep(summary: bytes) -> bool:
    """True when a summary is well formed and says nothing out of the ordinary."""
    return _SLEEPER.fullmatch(summary) is not None


def with_place(summary: bytes, doubt_offset: int, size: int = 0) -> bytes:
    """A sleeper: its summary, where its content stands, and how many bytes that has."""
    return b"%b@%d:%d" % (summary, doubt_offset, size)


def place_of(sleeper: bytes) -> int:
    """Where a sleeper's content stands."""
    return int(sleeper[sleeper.rindex(_PLACE) + 1 : sleeper.rindex(b":")])


def bytes_of(sleeper: bytes) -> int:
    """How many bytes a sleeper's content has."""
    return int(sleeper[sleeper.rindex(b":") + 1 :])


def transaction_of(key: str, sleeper: bytes) -> Transaction:
    """A sleeper as a transaction."""
    raw = sleeper[: sleeper.rindex(_PLACE)]
    summary = codec.decode_summary(key, raw)
    assert isinstance(summary, DoubtSummary)  # `may_sleep` is stricter than the codec
    return from_summary(summary, doubt_offset=place_of(sleeper), size=bytes_of(sleeper))


class _Waiting(NamedTuple):
    """The sleepers of one producer group; the last one is due first."""

    keys: list[str]
    due_ms: array[int]
    end_ms: array[int]  # of their age


class DormantTransactions:
    """The sleepers of one partition, and when their time comes."""

    def __init__(self) -> None:
        self.dormant: dict[str, bytes] = {}
        """By key; nobody but this class changes it."""
        self.counts: dict[str, tuple[int, int]] = {}
        """Sleepers by producer group: all, and those about which members were asked."""
        self.byte_count = 0
        """What they take themselves."""
        self.topics: frozenset[str] = frozenset()
        """Real topics of those that a restart found."""
        self.newest_ms = 0
        """When the last of them came to doubt, or was decided there."""
        self._waiting: dict[str, _Waiting] = {}
        self._next_end_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.dormant)

    def fill(self, dormant: dict[str, bytes], policies: CheckPolicies) -> None:
        """Take over what a restart found."""
        self.dormant = dormant
        self.byte_count = sum(map(len, dormant.values()))
        newest_ms = 0
        topics: set[bytes] = set()
        waiting: dict[bytes, _Waiting] = {}
        policy, current, of_group = policies.default, None, _Waiting([], array("q"), array("q"))
        asked_counts: dict[bytes, int] = {}
        last_names: bytes | None = None
        for key, sleeper in dormant.items():  # hot path: a million of them
            # `may_sleep` was asked: the form is known, and splitting costs a fifth of matching it again.
            (_, _, _, group, _, _, _, _, appended, _, _, _, _, _, moved, names, checks) = sleeper.split(b"|")  # fmt: skip
            if group != current:
                current, policy = group, policies.of(group.decode("ascii"))
                of_group = waiting.setdefault(group, _Waiting([], array("q"), array("q")))
            if names != last_names:
                topics.add(last_names := names)
            moved_ms = int(moved)
            if moved_ms > newest_ms:
                newest_ms = moved_ms
            due_ms = int(appended) + policy.immunity_ms
            end_ms = due_ms + policy.age_max_ms
            if not checks.startswith(_NEVER_ASKED):
                asked_counts[group] = asked_counts.get(group, 0) + 1
                checked, _, asked, _ = checks.split(b"/")
                due_ms = min(int(asked) + pause_after(int(checked), policy), end_ms)
            of_group.keys.append(key)
            of_group.due_ms.append(due_ms)
            of_group.end_ms.append(end_ms)
        self.newest_ms = newest_ms
        self.topics = frozenset(name for t in topics for name in t.decode("ascii").split(","))
        for name, of_group in waiting.items():
            group_name = name.decode("ascii")
            self.counts[group_name] = len(of_group.keys), asked_counts.get(name, 0)
            self._wait(group_name, of_group)

    def wake(self, key: str) -> Transaction | None:
        """The sleeper as a transaction, and a sleeper no longer; None: nobody of this key sleeps."""
        sleeper = self.dormant.pop(key, None)
        if sleeper is None:
            return None
        self.byte_count -= len(sleeper)
        txn = transaction_of(key, sleeper)
        count, asked_count = self.counts[txn.group]
        self.counts[txn.group] = count - 1, asked_count - (txn.extra().checked_count > 0)
        return txn

    def everybody(self) -> Iterator[Transaction]:
        """All of them as transactions, for whoever only looks: they sleep on."""
        return (transaction_of(key, sleeper) for key, sleeper in self.dormant.items())

    # --- time ---

    @property
    def group_count(self) -> int:
        """How many groups that are."""
        return len(self._waiting)

    @property
    def groups(self) -> list[str]:
        """Groups of whom somebody may still sleep."""
        return list(self._waiting)

    def due(self, group: str, now_ms: int, count_max: int) -> list[str]:
        """At most so many keys of a group whose time has come, the earliest first. Whoever is told must be woken."""
        keys, due_ms, end_ms = self._waiting[group]
        found: list[str] = []
        while keys and due_ms[-1] <= now_ms and len(found) < count_max:
            key = keys.pop()
            due_ms.pop()
            end_ms.pop()
            if key in self.dormant:
                found.append(key)
        if not keys:
            del self._waiting[group], self._next_end_ms[group]
        return found

    def too_old(self, group: str, now_ms: int, count_max: int) -> list[str]:
        """At most so many keys of a group whose age is over, due or not."""
        if self._next_end_ms[group] > now_ms:
            return []
        # A look at all of them, and only when one of them ends.
        keys, _, end_ms = self._waiting[group]
        found = [k for k in compress(keys, (end <= now_ms for end in end_ms)) if k in self.dormant]
        if len(found) <= count_max:
            later = (end for end in end_ms if end > now_ms)
            self._next_end_ms[group] = min(later, default=_NEVER_MS)
        return found[:count_max]

    def _wait(self, group: str, found: _Waiting) -> None:
        # They come in the order in which they went to doubt, nearly that of their time: sorting has little to do.
        due_ms = found.due_ms
        order = sorted(range(len(due_ms)), key=due_ms.__getitem__)
        order.reverse()
        self._waiting[group] = _Waiting(
            [found.keys[place] for place in order],
            array("q", [due_ms[place] for place in order]),
            array("q", [found.end_ms[place] for place in order]),
        )
        self._next_end_ms[group] = min(found.end_ms)


REWRITE_LAG_MIN = 200_000
"""Doubt records that may be read in vain at a restart before the oldest living ones are written again."""


class DoubtIndex:
    """The transactions that stand on doubt, by the offset of their content."""

    def __init__(self) -> None:
        self.next_offset = 0  # where the next doubt record of this partition will stand, at least
        self.kept_readable_from: int | None = None
        """Doubt offset from which there are transactions that only a later release can read; it must find them."""
        self.held: dict[str, Transaction] = {}
        # Side by side rather than as pairs: there may be a million of them.
        self._offsets: deque[int] = deque()
        self._transactions: deque[Transaction] = deque()
        self.count = 0  # transactions that stand on doubt, the sleepers among them
        # Those that slept after a restart: by their keys, woken or not, and the first of them that may still stand.
        self._slept_offsets: array[int] = array("q")
        self._slept_keys: list[str] = []
        self._first_slept = 0
        self._sleepers: Mapping[str, bytes] = {}
        self._woken: Mapping[str, Transaction] = {}

    def wrote(self, record_count: int) -> None:
        """So many records more stand on doubt: whole transactions, summaries, ends, what is kept aside."""
        self.next_offset += record_count

    def put(self, txn: Transaction, doubt_offset: int) -> None:
        """`txn` stands at `doubt_offset` now (for the first time, or written again)."""
        more = txn.extra()
        if not txn.is_in_doubt:
            self.count += 1
        more.doubt_offset = doubt_offset
        self._offsets.append(doubt_offset)
        self._transactions.append(txn)
        self.next_offset = max(self.next_offset, doubt_offset + 1)

    def put_restored(self, txn: Transaction) -> None:
        """A transaction found on doubt at a restart, in offset order."""
        self.count += 1
        self._offsets.append(txn.extra().doubt_offset)
        self._transactions.append(txn)
        if txn.state is TxnState.HELD:
            self.held[txn.key] = txn

    def put_asleep(self, dormant: Mapping[str, bytes], *, woken: Mapping[str, Transaction]) -> None:
        """Those that a restart found asleep; whoever wakes is found in `woken`, as long as he is not settled."""
        offsets, keys = array("q", map(place_of, dormant.values())), list(dormant)
        if any(map(gt, offsets, islice(offsets, 1, None))):
            # Seldom: a restart reads them in the order in which they went to doubt.
            in_order = sorted(range(len(keys)), key=offsets.__getitem__)
            offsets = array("q", [offsets[place] for place in in_order])
            keys = [keys[place] for place in in_order]
        self._slept_offsets, self._slept_keys = offsets, keys
        self._sleepers, self._woken = dormant, woken
        self.count += len(keys)

    def ended(self) -> None:
        """One of them is over."""
        self.count -= 1

    @property
    def low(self) -> int:
        """Oldest doubt offset that a restart must read."""
        low = self._own_low()
        return low if self.kept_readable_from is None else min(low, self.kept_readable_from)

    def _own_low(self) -> int:
        offsets, transactions = self._offsets, self._transactions
        while offsets and not _stands_at(offsets[0], transactions[0]):
            offsets.popleft()
            transactions.popleft()
        low = offsets[0] if offsets else self.next_offset
        while self._first_slept < len(self._slept_keys):
            offset = self._slept_offsets[self._first_slept]
            if self._still_stands(offset, self._slept_keys[self._first_slept]):
                return min(low, offset)
            self._first_slept += 1
        return low

    def to_write_again(self, count_max: int) -> list[str]:
        """Keys of the oldest ones, when they keep far more records readable than there are living ones."""
        if self.next_offset - self._own_low() < max(REWRITE_LAG_MIN, 8 * self.count):
            return []
        living = (
            (offset, txn.key)
            for offset, txn in zip(self._offsets, self._transactions, strict=True)
            if _stands_at(offset, txn)
        )
        oldest = islice(merge(living, self._slept(), key=itemgetter(0)), count_max)
        return [key for _, key in oldest]

    def _slept(self) -> Iterator[tuple[int, str]]:
        for place in range(self._first_slept, len(self._slept_keys)):
            offset, key = self._slept_offsets[place], self._slept_keys[place]
            if self._still_stands(offset, key):
                yield offset, key

    def _still_stands(self, offset: int, key: str) -> bool:
        if key in self._sleepers:
            return True
        txn = self._woken.get(key)
        return txn is not None and _stands_at(offset, txn)

    def held_for(self, topics: Iterable[str]) -> list[Transaction]:
        """Held transactions that wait for one of `topics`, in the order of their decisions."""
        wanted = set(topics)
        return _by_decision(t for t in self.held.values() if not wanted.isdisjoint(t.topics))

    def held_in_vain(self, targets: Mapping[str, Target]) -> list[Transaction]:
        """Held transactions none of whose topics refuses for now, in the order of their decisions."""
        refusing = {
            topic
            for topic in {topic for txn in self.held.values() for topic in txn.topics}
            if (target := targets.get(topic, UNKNOWN_TARGET)).refusal is not None
            and not target.is_for_good
        }
        return _by_decision(t for t in self.held.values() if refusing.isdisjoint(t.topics))

    def held_too_long(self, *, now_ms: int, age_max_ms: int) -> list[Transaction]:
        """Held transactions older than `age_max_ms`."""
        return [t for t in self.held.values() if now_ms - t.extra().moved_ms >= age_max_ms]


def _by_decision(transactions: Iterable[Transaction]) -> list[Transaction]:
    return sorted(transactions, key=lambda t: t.extra().decided_at or (0, 0))


def _stands_at(offset: int, txn: Transaction) -> bool:
    return txn.state not in SETTLED and txn.more is not None and txn.more.doubt_offset == offset


LINES_MAX = 1 << 24
"""More lines than an op record can have."""

_FIRST_CONTENT = b"/0"
"""How the key of a transaction's first content ends."""


def _none() -> Headers | None:
    return None


class DoubtFold:
    """One partition of the doubt topic. Records come in offset order; the newest under a key wins."""

    def __init__(self, *, op_offset: int = 0) -> None:
        self._op_offset = op_offset
        self.lines_aside: dict[int, bytearray] = {}
        """Op offset, from the given one on → by line, 1 for one that was kept aside, also when a person has ended that record."""
        self.transactions: dict[str, Transaction] = {}
        self.dormant: dict[str, bytes] = {}
        """Those that need no object yet (doubt.py); a key stands here or among the transactions."""
        self.rolled_back: set[str] = set()
        """Those that stood there on a line's word alone and were rolled back: a half record that comes later begins nothing."""
        self.unreadable: dict[str, int] = {}
        """Key → where its content stands, for those whose newest summary nobody here can read: a later release may."""
        # Key → (offset of content 0, bytes of the contents), until its summary comes.
        self._content_at: dict[bytes, tuple[int, int]] = {}

    def fold(
        self,
        offset: int,
        raw_key: bytes | None,
        value: bytes | None,
        headers: Callable[[], Headers | None] = _none,
    ) -> None:
        """One record; a null value is a tombstone. A content's `headers` are asked for, because they cost memory too."""
        if raw_key is not None and value is not None and raw_key.endswith(_FIRST_CONTENT):
            # Half of a million records that a restart reads; whose key is out of form nobody will ask for.
            self._content_at[raw_key[: -len(_FIRST_CONTENT)]] = (offset, _size(value, headers))
            return
        parsed = codec.parse_doubt_key(raw_key)
        if raw_key is None or parsed is None:
            self._fold_aside(raw_key)
            return
        key = parsed[0]
        if parsed[1] is not None:  # the content of a further message
            if value is not None and (first := self._content_at.get(key.encode())) is not None:
                self._content_at[key.encode()] = (first[0], first[1] + _size(value, headers))
            return
        if value is None:
            ended = self.transactions.pop(key, None)
            if ended is not None and not ended.seen:
                self.rolled_back.add(key)
            self.dormant.pop(key, None)
            self.unreadable.pop(key, None)
            self._content_at.pop(raw_key, None)
        else:
            content_at = self._content_at.pop(raw_key, None)
            stands_at, size = self._stood_at(key, offset) if content_at is None else content_at
            self._fold_summary(key, value, stands_at, size)

    def _fold_aside(self, raw_key: bytes | None) -> None:
        origin, line = codec.parse_kept_aside_key(raw_key) or (None, None)
        if origin is None or line is None or origin.offset < self._op_offset or line >= LINES_MAX:
            return
        marks = self.lines_aside.setdefault(origin.offset, bytearray())
        if line >= len(marks):
            marks.extend(bytes(line + 1 - len(marks)))
        marks[line] = 1

    def in_offset_order(self) -> list[Transaction]:
        """What stands on doubt now and does not sleep."""
        return sorted(self.transactions.values(), key=lambda t: t.extra().doubt_offset)

    def everybody(self) -> dict[str, Transaction]:
        """What stands on doubt now, the sleepers as transactions too."""
        woken = {key: transaction_of(key, sleeper) for key, sleeper in self.dormant.items()}
        return {**self.transactions, **woken}

    def _fold_summary(self, key: str, value: bytes, doubt_offset: int, size: int) -> None:
        if self.unreadable:
            doubt_offset = min(doubt_offset, self.unreadable.pop(key, doubt_offset))
        if may_sleep(value):
            self.dormant[key] = with_place(value, doubt_offset, size)
            if self.transactions:
                self.transactions.pop(key, None)
            return
        summary = codec.decode_summary(key, value)
        try:
            if isinstance(summary, DoubtSummary):
                self.transactions[key] = from_summary(summary, doubt_offset=doubt_offset, size=size)
                self.dormant.pop(key, None)
                return
        except ValueError:
            pass  # a state or reason that a later version knows
        self.unreadable[key] = doubt_offset  # what was known of it before stands

    def _stood_at(self, key: str, offset: int) -> tuple[int, int]:
        if (sleeper := self.dormant.get(key)) is not None:
            return place_of(sleeper), bytes_of(sleeper)
        before = self.transactions.get(key)
        return (offset, 0) if before is None else (before.extra().doubt_offset, before.size)


def _size(value: bytes, headers: Callable[[], Headers | None]) -> int:
    return RECORD_BYTES + codec.content_bytes(value, headers())


class QuarantinedRecord(NamedTuple):
    """One record of half or op, or one line of an op record, that was kept aside."""

    origin: Origin
    line: int | None  # of an op record; None: the whole record
    reason: str  # a ParkReason's value, or what a later version wrote
    why: str
    key: str  # "id/nonce" that it names; "" when it names none
    kept_ms: int  # when it came to doubt
    place: Origin  # where its bytes are on doubt
    key_bytes: int | None  # of the record; None: its key is null
    value_bytes: int | None
    header_names: tuple[str, ...]


class QuarantineFold:
    """Takes the records of doubt, in offset order within a partition; passes over those of transactions.

    Memory: the newest word under each key, some 1 KB.
    """

    def __init__(self) -> None:
        self._asides: dict[tuple[Origin, int | None], QuarantinedRecord] = {}

    def fold(self, record: Any) -> None:
        """One record of doubt; a null value ends what stood under its key."""
        parsed = codec.parse_kept_aside_key(record.key())
        if parsed is None:
            return
        if record.value() is None:
            self._asides.pop(parsed, None)
        else:
            self._asides[parsed] = _aside(parsed, record)

    def asides(self) -> list[QuarantinedRecord]:
        """What is kept aside now, in the order of the first word about each."""
        return list(self._asides.values())


def _aside(parsed: tuple[Origin, int | None], record: Any) -> QuarantinedRecord:
    origin, line = parsed
    key, value, headers = codec.decode_content(value=record.value(), headers=record.headers())
    # Ours is the last one; the record may have brought another of that name.
    own = headers.pop()[1] if headers and headers[-1][0] == codec.WHY_HEADER else None
    reason, why = codec.decode_why(own)
    return QuarantinedRecord(
        origin, line, reason, why,
        key=_named_by(line, value, headers),
        kept_ms=record.timestamp()[1],
        place=Origin(record.topic(), record.partition(), record.offset()),
        key_bytes=None if key is None else len(key),
        value_bytes=None if value is None else len(value),
        header_names=tuple(name for name, _ in headers),
    )  # fmt: skip


def _named_by(line: int | None, value: bytes | None, headers: Headers) -> str:
    """The transaction that a line, or a header `txl`, names where it can be read."""
    if line is not None:
        op = codec.decode_op((value or b"").decode("ascii", "replace"))
        return op.key if isinstance(op, OpMessage) else ""
    raw = codec.half_header_of(headers)
    header = None if raw is None else codec.decode_half_header(raw)
    return header.key if isinstance(header, HalfHeader) else ""
