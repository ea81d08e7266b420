"""The doubt topic of one partition: its transactions, its low-water mark, what must be rewritten, and quarantined records.

`DormantTransactions` holds open transactions on doubt that nothing has touched since a restart, as the bytes of their
summaries. A restart may find a million of them. They need no object until an op line, a half record or their time names them:
each costs its key, its summary and some numbers. One that is named or due is loaded: it becomes a `Transaction` and is never
dormant again. Only plain transactions are dormant: undecided, without reason, ordering key, own immunity, second copies or
`check_with`.
So no order between transactions depends on a dormant one.

`DoubtFold` reads the topic from its low-water mark; it keeps the offset and size of a transaction's content, not the content. Of
quarantined records, `QuarantineFold` keeps sizes and names, not bytes: their content may be confidential.
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
from txlayer.core.checks import NEVER_MS, CheckPolicies, pause_after
from txlayer.core.ledger.transaction import ANY_SIZE, RECORD_BYTES, UNKNOWN_TARGET, Target, Transaction, from_summary
from txlayer.core.ledger.transitions import SETTLED, TxnState
from txlayer.core.messages import DoubtSummary, HalfHeader, Headers, OpMessage, Origin

_N = rb"[0-9]{1,18}"  # the class `\d` takes twice as long
_SUMMARY_FORM = re.compile(
    rb"1\|open\|\|[A-Za-z0-9._-]{1,200}\|%b\|%b\|%b\|%b\|%b\|%b\|\|commit\|\|\|%b\|[A-Za-z0-9._,-]+\|%b/%b/%b/%b"
    % ((_N,) * 11)
)
_NEVER_ASKED = b"0/"
"""Start of the checks in a summary without a check-back."""
_OFFSET_MARK = b"@"
"""Separates a summary from the offset of its content; no summary contains it."""


def may_be_dormant(summary: bytes) -> bool:
    """True if a summary is well formed and describes a plain open transaction."""
    return _SUMMARY_FORM.fullmatch(summary) is not None


def with_doubt_offset(summary: bytes, doubt_offset: int, size: int = 0) -> bytes:
    """Encode a dormant transaction: its summary, the doubt offset of its content, and the content's size in bytes."""
    return b"%b@%d:%d" % (summary, doubt_offset, size)


def doubt_offset_of(encoded: bytes) -> int:
    """Doubt offset of a dormant transaction's content."""
    return int(encoded[encoded.rindex(_OFFSET_MARK) + 1 : encoded.rindex(b":")])


def bytes_of(encoded: bytes) -> int:
    """Size of a dormant transaction's content in bytes."""
    return int(encoded[encoded.rindex(b":") + 1 :])


def transaction_of(key: str, encoded: bytes) -> Transaction:
    """Decode a dormant transaction."""
    raw = encoded[: encoded.rindex(_OFFSET_MARK)]
    summary = codec.decode_summary(key, raw)
    assert isinstance(summary, DoubtSummary)  # `may_be_dormant` is stricter than the codec
    return from_summary(summary, doubt_offset=doubt_offset_of(encoded), size=bytes_of(encoded))


class _Waiting(NamedTuple):
    """The dormant transactions of one producer group; the last one is due first."""

    keys: list[str]
    due_ms: array[int]
    end_ms: array[int]  # when their age is over


class DormantTransactions:
    """The dormant transactions of one partition, and when they are due."""

    def __init__(self) -> None:
        self.summaries: dict[str, bytes] = {}
        """By key. Only this class changes it."""
        self.counts: dict[str, tuple[int, int]] = {}
        """Dormant transactions by producer group: all, and those with a check-back."""
        self.byte_count = 0
        """Size of the summaries."""
        self.topics: frozenset[str] = frozenset()
        """Real topics of the dormant transactions that a restart found."""
        self.newest_ms = 0
        """When the last of them moved to doubt, or was decided there."""
        self._waiting: dict[str, _Waiting] = {}
        self._next_end_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.summaries)

    def fill(self, dormant: dict[str, bytes], policies: CheckPolicies) -> None:
        """Take over the dormant transactions that a restart found."""
        self.summaries = dormant
        self.byte_count = sum(map(len, dormant.values()))
        newest_ms = 0
        topics: set[bytes] = set()
        waiting: dict[bytes, _Waiting] = {}
        policy, current, of_group = policies.default, None, _Waiting([], array("q"), array("q"))
        asked_counts: dict[bytes, int] = {}
        last_names: bytes | None = None
        for key, encoded in dormant.items():  # hot path: a million of them
            # `may_be_dormant` checked the form; splitting costs a fifth of matching it again.
            (_, _, _, group, _, _, _, _, appended, _, _, _, _, _, moved, names, checks) = encoded.split(b"|")
            if group != current:
                current, policy = group, policies.of(group.decode("ascii"))
                of_group = waiting.setdefault(group, _Waiting([], array("q"), array("q")))
            if names != last_names:
                topics.add(last_names := names)
            moved_ms = int(moved)
            if moved_ms > newest_ms:
                newest_ms = moved_ms
            due_ms = int(appended) + policy.check_immunity_ms
            end_ms = due_ms + policy.transaction_age_max_ms
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

    def load(self, key: str) -> Transaction | None:
        """Load a dormant transaction: it is returned and is no longer dormant. None: no transaction of this key is dormant."""
        encoded = self.summaries.pop(key, None)
        if encoded is None:
            return None
        self.byte_count -= len(encoded)
        txn = transaction_of(key, encoded)
        count, asked_count = self.counts[txn.group]
        self.counts[txn.group] = count - 1, asked_count - (txn.ensure_extras().checked_count > 0)
        return txn

    def all_unsettled(self) -> Iterator[Transaction]:
        """All of them as transactions, for reading only: they stay dormant."""
        return (transaction_of(key, encoded) for key, encoded in self.summaries.items())

    # --- time ---

    @property
    def group_count(self) -> int:
        """Number of groups."""
        return len(self._waiting)

    @property
    def groups(self) -> list[str]:
        """Groups that may still have dormant transactions."""
        return list(self._waiting)

    def due(self, group: str, now_ms: int, count_max: int) -> list[str]:
        """At most `count_max` keys of a group that are due, the earliest first. The caller must load each of them."""
        keys, due_ms, end_ms = self._waiting[group]
        found: list[str] = []
        while keys and due_ms[-1] <= now_ms and len(found) < count_max:
            key = keys.pop()
            due_ms.pop()
            end_ms.pop()
            if key in self.summaries:
                found.append(key)
        if not keys:
            del self._waiting[group], self._next_end_ms[group]
        return found

    def too_old(self, group: str, now_ms: int, count_max: int) -> list[str]:
        """At most `count_max` keys of a group whose age is over, due or not."""
        if self._next_end_ms[group] > now_ms:
            return []
        # Scans all of them, but only when the age of one is over.
        keys, _, end_ms = self._waiting[group]
        found = [k for k in compress(keys, (end <= now_ms for end in end_ms)) if k in self.summaries]
        if len(found) <= count_max:
            later = (end for end in end_ms if end > now_ms)
            self._next_end_ms[group] = min(later, default=NEVER_MS)
        return found[:count_max]

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


PASSED_MAX = 1_024
"""Obsolete entries of the index, in addition to as many as there are transactions on doubt."""

REWRITE_LAG_MIN = 200_000
"""Obsolete doubt records that a restart may have to read before the oldest live transactions are written again."""


class DoubtIndex:
    """The transactions on doubt, by the offset of their content."""

    def __init__(self) -> None:
        self.next_offset = 0  # lower bound of the next doubt record's offset
        self.kept_readable_from: int | None = None
        """Doubt offset from which there are transactions that only a later release can read; a restart must find them."""
        self.held: dict[str, Transaction] = {}
        # Two sequences instead of pairs: there may be a million entries.
        self._offsets: deque[int] = deque()
        self._transactions: deque[Transaction] = deque()
        self.count = 0  # transactions on doubt, with the dormant ones
        # Transactions that were dormant after a restart: by key, loaded or not, and the first of them that may still be there.
        self._dormant_offsets: array[int] = array("q")
        self._dormant_keys: list[str] = []
        self._first_dormant = 0
        self._dormant: Mapping[str, bytes] = {}
        self._loaded: Mapping[str, Transaction] = {}

    def wrote(self, record_count: int) -> None:
        """Note that `record_count` more records are on doubt: whole transactions, summaries, tombstones, quarantined records."""
        self.next_offset += record_count

    def put(self, txn: Transaction, doubt_offset: int) -> None:
        """`txn` is at `doubt_offset` now (moved there, or written again)."""
        extras = txn.ensure_extras()
        if not txn.is_in_doubt:
            self.count += 1
        extras.doubt_offset = doubt_offset
        self._offsets.append(doubt_offset)
        self._transactions.append(txn)
        self.next_offset = max(self.next_offset, doubt_offset + 1)
        if len(self._offsets) > 2 * self.count + PASSED_MAX:
            self._compact()

    def put_restored(self, txn: Transaction) -> None:
        """Add a transaction that a restart found on doubt. Call it in offset order."""
        self.count += 1
        self._offsets.append(txn.ensure_extras().doubt_offset)
        self._transactions.append(txn)
        if txn.state is TxnState.HELD:
            self.held[txn.key] = txn

    def put_dormant(self, dormant: Mapping[str, bytes], *, loaded: Mapping[str, Transaction]) -> None:
        """Add the dormant transactions that a restart found. `loaded` contains the loaded ones until they are settled."""
        offsets, keys = array("q", map(doubt_offset_of, dormant.values())), list(dormant)
        if any(map(gt, offsets, islice(offsets, 1, None))):
            # Rare: a restart reads them in the order in which they moved to doubt.
            in_order = sorted(range(len(keys)), key=offsets.__getitem__)
            offsets = array("q", [offsets[index] for index in in_order])
            keys = [keys[index] for index in in_order]
        self._dormant_offsets, self._dormant_keys = offsets, keys
        self._dormant, self._loaded = dormant, loaded
        self.count += len(keys)

    def _compact(self) -> None:
        """Forget those that are no longer where they were put: one that stays must not keep all later ones in memory."""
        entries = zip(self._offsets, self._transactions, strict=True)
        living = [(offset, txn) for offset, txn in entries if _is_at(offset, txn)]
        self._offsets = deque(offset for offset, _ in living)
        self._transactions = deque(txn for _, txn in living)

    def ended(self) -> None:
        """One of them is settled."""
        self.count -= 1

    @property
    def low(self) -> int:
        """The lowest doubt offset that a restart must read."""
        low = self._own_low()
        return low if self.kept_readable_from is None else min(low, self.kept_readable_from)

    def _own_low(self) -> int:
        offsets, transactions = self._offsets, self._transactions
        while offsets and not _is_at(offsets[0], transactions[0]):
            offsets.popleft()
            transactions.popleft()
        low = offsets[0] if offsets else self.next_offset
        while self._first_dormant < len(self._dormant_keys):
            offset = self._dormant_offsets[self._first_dormant]
            if self._is_still_at(offset, self._dormant_keys[self._first_dormant]):
                return min(low, offset)
            self._first_dormant += 1
        return low

    def to_write_again(self, count_max: int) -> list[str]:
        """Keys of the oldest transactions, if they keep far more records readable than there are live ones."""
        if self.next_offset - self._own_low() < max(REWRITE_LAG_MIN, 8 * self.count):
            return []
        living = (
            (offset, txn.key)
            for offset, txn in zip(self._offsets, self._transactions, strict=True)
            if _is_at(offset, txn)
        )
        oldest = islice(merge(living, self._dormant_left(), key=itemgetter(0)), count_max)
        return [key for _, key in oldest]

    def _dormant_left(self) -> Iterator[tuple[int, str]]:
        for index in range(self._first_dormant, len(self._dormant_keys)):
            offset, key = self._dormant_offsets[index], self._dormant_keys[index]
            if self._is_still_at(offset, key):
                yield offset, key

    def _is_still_at(self, offset: int, key: str) -> bool:
        if key in self._dormant:
            return True
        txn = self._loaded.get(key)
        return txn is not None and _is_at(offset, txn)

    def held_topics(self) -> set[str]:
        """Real topics of held transactions."""
        return {topic for txn in self.held.values() for topic in txn.topics}

    def held_for(self, topics: Iterable[str]) -> list[Transaction]:
        """Held transactions that wait for one of `topics`, in the order of their decisions."""
        wanted = set(topics)
        return _by_decision(t for t in self.held.values() if not wanted.isdisjoint(t.topics))

    def held_in_vain(self, targets: Mapping[str, Target]) -> list[Transaction]:
        """Held transactions whose topics all accept now, or refuse for good, in the order of their decisions."""
        known = {topic: targets.get(topic, UNKNOWN_TARGET) for topic in self.held_topics()}
        refusing = {topic for topic, target in known.items() if target.refusal is not None and not target.is_for_good}
        slow = {topic: target for topic, target in known.items() if target.slow_bytes_min < ANY_SIZE}
        return _by_decision(
            t
            for t in self.held.values()
            if refusing.isdisjoint(t.topics)
            and not any(topic in slow and slow[topic].refusal_of(t) for topic in t.topics)
        )

    def held_too_long(self, *, now_ms: int, age_max_ms: int, targets: Mapping[str, Target]) -> list[Transaction]:
        """Held transactions older than `age_max_ms` of which a topic is known to refuse. The others are tried first."""
        old = (t for t in self.held.values() if now_ms - t.ensure_extras().moved_ms >= age_max_ms)
        return [t for t in old if any(topic in targets and targets[topic].refusal_of(t) for topic in t.topics)]


def _by_decision(transactions: Iterable[Transaction]) -> list[Transaction]:
    return sorted(transactions, key=lambda t: t.ensure_extras().decided_at or (0, 0))


def _is_at(offset: int, txn: Transaction) -> bool:
    return txn.state not in SETTLED and txn.extras is not None and txn.extras.doubt_offset == offset


LINES_MAX = 1 << 24
"""Greater than the number of lines in an op record."""

_FIRST_CONTENT = b"/0"
"""Suffix of the key of a transaction's first content."""


def _none() -> Headers | None:
    return None


class DoubtFold:
    """Folds one partition of the doubt topic. Records come in offset order; the newest one under a key wins."""

    def __init__(self, *, op_offset: int = 0) -> None:
        self._op_offset = op_offset
        self.quarantined_lines: dict[int, bytearray] = {}
        """By op offset, from `op_offset` on: one byte per line, 1 if it was quarantined, even if an operator has removed the
        record since.
        """
        self.transactions: dict[str, Transaction] = {}
        self.dormant: dict[str, bytes] = {}
        """Transactions that need no object yet. A key is either here or in `transactions`."""
        self.rolled_back: set[str] = set()
        """Transactions known from an op line only that were rolled back: a half record that comes later begins nothing."""
        self.unreadable: dict[str, int] = {}
        """Doubt offset of the content, by key, of transactions whose newest summary this release cannot read; a later one may.

        An older summary of them says nothing any more: such a key is neither in `transactions` nor in `dormant`.
        """
        # Key → (offset of content 0, size of the contents, what questions carry), until its summary comes.
        self._content_at: dict[bytes, tuple[int, int, str]] = {}
        self._with_content = ""  # the newest transaction whose contents ended; its summary ends right behind them

    def fold(
        self, offset: int, raw_key: bytes | None, value: bytes | None, headers: Callable[[], Headers | None] = _none
    ) -> None:
        """Fold one record; a null value is a tombstone. `headers` is called only for contents, because they cost memory too."""
        if raw_key is not None and value is not None and raw_key.endswith(_FIRST_CONTENT):
            # Half of a million records that a restart reads; malformed keys are never looked up.
            found = headers()
            place = offset, _size(value, found), codec.asked_options_of(found).check_with
            self._content_at[raw_key[: -len(_FIRST_CONTENT)]] = place
            return
        parsed = codec.parse_doubt_key(raw_key)
        if raw_key is None or parsed is None:
            self._fold_quarantined(raw_key)
            return
        key = parsed[0]
        if parsed[1] is not None:  # the content of a further message
            if value is None:
                self._with_content = key
            elif (first := self._content_at.get(key.encode())) is not None:
                self._content_at[key.encode()] = (first[0], first[1] + _size(value, headers()), first[2])
            return
        if value is None:
            self.transactions.pop(key, None)
            if key != self._with_content:
                self.rolled_back.add(key)
            self.dormant.pop(key, None)
            self.unreadable.pop(key, None)
            self._content_at.pop(raw_key, None)
        else:
            content_at = self._content_at.pop(raw_key, None)
            self._fold_summary(key, value, *(self._content_before(key, offset) if content_at is None else content_at))

    def _fold_quarantined(self, raw_key: bytes | None) -> None:
        origin, line = codec.parse_quarantine_key(raw_key) or (None, None)
        if origin is None or line is None or origin.offset < self._op_offset or line >= LINES_MAX:
            return
        marks = self.quarantined_lines.setdefault(origin.offset, bytearray())
        if line >= len(marks):
            marks.extend(bytes(line + 1 - len(marks)))
        marks[line] = 1

    def in_offset_order(self) -> list[Transaction]:
        """The transactions on doubt that are not dormant, by offset."""
        return sorted(self.transactions.values(), key=lambda t: t.ensure_extras().doubt_offset)

    def all_unsettled(self) -> dict[str, Transaction]:
        """All transactions on doubt, the dormant ones decoded."""
        loaded = {key: transaction_of(key, encoded) for key, encoded in self.dormant.items()}
        return {**self.transactions, **loaded}

    def _fold_summary(self, key: str, value: bytes, doubt_offset: int, size: int, check_with: str) -> None:
        self.unreadable.pop(key, None)
        if not check_with and may_be_dormant(value):
            self.dormant[key] = with_doubt_offset(value, doubt_offset, size)
            if self.transactions:
                self.transactions.pop(key, None)
            return
        summary = codec.decode_summary(key, value)
        try:
            if isinstance(summary, DoubtSummary):
                txn = from_summary(summary, doubt_offset=doubt_offset, size=size, check_with=check_with)
                self.transactions[key] = txn
                self.dormant.pop(key, None)
                return
        except ValueError:
            pass  # a state or reason that only a later version knows
        self.transactions.pop(key, None)
        self.dormant.pop(key, None)
        self.unreadable[key] = doubt_offset
        self._content_at[key.encode()] = (doubt_offset, size, check_with)  # a summary of an older release may follow

    def _content_before(self, key: str, offset: int) -> tuple[int, int, str]:
        if (encoded := self.dormant.get(key)) is not None:
            return doubt_offset_of(encoded), bytes_of(encoded), ""
        before = self.transactions.get(key)
        if before is None:
            return offset, 0, ""
        return before.ensure_extras().doubt_offset, before.size, before.options.check_with


def _size(value: bytes, headers: Headers | None) -> int:
    return RECORD_BYTES + codec.content_bytes(value, headers)


class QuarantinedRecord(NamedTuple):
    """A record of half or op, or a line of an op record, that was quarantined."""

    origin: Origin
    line: int | None  # of an op record; None: the whole record
    reason: str  # a ParkReason's value, or a later version's
    why: str
    key: str  # "id/nonce" that it names; "" if it names none
    kept_ms: int  # when it was written to doubt
    doubt_origin: Origin  # where its bytes are on doubt
    key_bytes: int | None  # of the record; None: its key is null
    value_bytes: int | None
    header_names: tuple[str, ...]


class QuarantineFold:
    """Folds the records of doubt, in offset order within a partition; ignores those of transactions.

    Memory: about 1 KB per key, for its newest record.
    """

    def __init__(self) -> None:
        self._quarantined: dict[tuple[Origin, int | None], QuarantinedRecord] = {}

    def fold(self, record: Any) -> None:
        """Fold one record of doubt; a null value removes the record of its key."""
        parsed = codec.parse_quarantine_key(record.key())
        if parsed is None:
            return
        if record.value() is None:
            self._quarantined.pop(parsed, None)
        else:
            self._quarantined[parsed] = _quarantined_record(parsed, record)

    def quarantined(self) -> list[QuarantinedRecord]:
        """The records that are quarantined now, in the order of their first records on doubt."""
        return list(self._quarantined.values())


def _quarantined_record(parsed: tuple[Origin, int | None], record: Any) -> QuarantinedRecord:
    origin, line = parsed
    key, value, headers = codec.decode_content(value=record.value(), headers=record.headers())
    # Ours is the last one; the record may have another header of that name.
    own = headers.pop()[1] if headers and headers[-1][0] == codec.WHY_HEADER else None
    reason, why = codec.decode_why(own)
    return QuarantinedRecord(
        origin,
        line,
        reason,
        why,
        key=_named_by(line, value, headers),
        kept_ms=record.timestamp()[1],
        doubt_origin=Origin(record.topic(), record.partition(), record.offset()),
        key_bytes=None if key is None else len(key),
        value_bytes=None if value is None else len(value),
        header_names=tuple(name for name, _ in headers),
    )


def _named_by(line: int | None, value: bytes | None, headers: Headers) -> str:
    """The transaction that a line, or a header `txl`, names, if it is readable."""
    if line is not None:
        op = codec.decode_op((value or b"").decode("ascii", "replace"))
        return op.key if isinstance(op, OpMessage) else ""
    raw = codec.half_header_of(headers)
    header = None if raw is None else codec.decode_half_header(raw)
    return header.key if isinstance(header, HalfHeader) else ""
