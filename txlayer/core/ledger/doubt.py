"""The doubt topic of one partition: its transactions, its low-water mark, what must be rewritten, and quarantined records.

`DoubtFold` reads the topic from its low-water mark; it keeps the offset and size of a transaction's content, not the content. Of
quarantined records, `QuarantineFold` keeps sizes and names, not bytes: their content may be confidential.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from txlayer.core import codec
from txlayer.core.ledger.dormant import DormantTransactions
from txlayer.core.ledger.transaction import ANY_SIZE, RECORD_BYTES, UNKNOWN_TARGET, Target, Transaction, from_summary
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import DoubtSummary, HalfHeader, Headers, OpMessage, Origin, ShortKey, full_key, short_key

PASSED_MAX = 1_024  # obsolete entries of the index, in addition to as many as there are transactions on doubt
REWRITE_LAG_MIN = 200_000
"""Obsolete doubt records that a restart may have to read before the oldest live transactions are written again."""
SMALL_OFFSET_MAX = (1 << 32) - 1  # up to here a doubt offset takes 4 bytes in the index, and 8 beyond


class _Held(NamedTuple):
    """The held transactions with the same real topics."""

    topics: tuple[str, ...]
    transactions: dict[str, Transaction]


class DoubtIndex:
    """The transactions on doubt, by the offset of their content. `offset_of` tells where the content of a transaction is now, by its key."""

    def __init__(self, offset_of: Callable[[str], int]) -> None:
        self.next_offset = 0  # lower bound of the next doubt record's offset
        self.kept_readable_from: int | None = None
        """Doubt offset from which there are transactions that only a later release can read; a restart must find them."""
        # Held ones by their real topics: of one that refuses there may be hundreds of thousands, and all are looked for twice a second.
        self._held: dict[str, _Held] = {}
        self._held_for: dict[tuple[str, ...], _Held] = {}
        self._held_since_ms = 0  # none of them has been held for longer
        self.count = 0  # transactions on doubt, with the dormant ones
        self.further_count = 0  # their contents beyond the first of each
        self._offset_of = offset_of
        # Two sequences instead of pairs: there may be a million entries. The keys of dormant ones are short; an object has its key anyway.
        self._offsets = _offsets_of(())
        self._keys: list[ShortKey] = []
        self._first = 0  # of the entries; those before it left

    def wrote(self, record_count: int) -> None:
        """Note that `record_count` more records are on doubt: whole transactions, summaries, tombstones, quarantined records."""
        self.next_offset += record_count

    def put(self, txn: Transaction, doubt_offset: int) -> None:
        """`txn` is at `doubt_offset` now (moved there, or written again)."""
        if not txn.is_in_doubt:
            self.count += 1
            self.further_count += max(txn.seen - 1, 0)
        txn.ensure_extras().doubt_offset = doubt_offset
        if doubt_offset > SMALL_OFFSET_MAX and self._offsets.typecode == "I":
            self._offsets = array("Q", self._offsets)
        self._offsets.append(doubt_offset)
        self._keys.append(short_key(txn.key) if txn.state is TxnState.SCHEDULED else txn.key)
        self.next_offset = max(self.next_offset, doubt_offset + 1)
        if len(self._keys) > 2 * self.count + PASSED_MAX:
            # One that stays must not keep all later ones in memory.
            living = list(self._living())
            self._offsets, self._keys = _offsets_of([self._offsets[n] for n in living]), [self._keys[n] for n in living]
            self._first = 0

    def restore(self, transactions: Mapping[str, Transaction], dormant: DormantTransactions) -> None:
        keys = [*transactions, *dormant.rows]
        offsets = array("q", chain(map(self._offset_of, transactions), dormant.doubt_offsets()))
        order = sorted(range(len(keys)), key=offsets.__getitem__)
        self._offsets, self._keys = _offsets_of([offsets[n] for n in order]), [keys[n] for n in order]
        self.count = len(keys)
        self.further_count = dormant.further_count + sum(max(txn.seen - 1, 0) for txn in transactions.values())
        for txn in transactions.values():
            if txn.state is TxnState.HELD:
                self.hold(txn)

    @property
    def held(self) -> dict[str, Transaction]:
        return {key: of.transactions[key] for key, of in self._held.items()}

    def hold(self, txn: Transaction) -> None:
        topics = txn.topics
        of = self._held_for.get(topics) or self._held_for.setdefault(topics, _Held(topics, {}))
        of.transactions[txn.key] = txn
        self._held[txn.key] = of
        self._held_since_ms = min(self._held_since_ms, txn.ensure_extras().moved_ms)

    def let_go(self, txn: Transaction) -> bool:
        """It is not held any more. False: it was not."""
        of = self._held.pop(txn.key, None)
        if of is None:
            return False
        del of.transactions[txn.key]
        if not of.transactions:
            del self._held_for[of.topics]
        return True

    def ended(self, txn: Transaction) -> None:
        self.count -= 1
        self.further_count -= max(txn.seen - 1, 0)

    def _living(self) -> Iterator[int]:
        """The numbers of the entries whose transactions are still where they were put."""
        for number in range(self._first, len(self._keys)):
            if self._offset_of(full_key(self._keys[number])) == self._offsets[number]:
                yield number

    @property
    def low(self) -> int:
        """The lowest doubt offset that a restart must read."""
        low = self._own_low()
        return low if self.kept_readable_from is None else min(low, self.kept_readable_from)

    def _own_low(self) -> int:
        while self._first < len(self._keys):
            offset = self._offsets[self._first]
            if self._offset_of(full_key(self._keys[self._first])) == offset:
                return offset
            self._first += 1
        return self.next_offset

    def to_write_again(self, count_max: int) -> list[str]:
        """Keys of the oldest transactions, if they keep far more records readable than there are live ones."""
        if self.next_offset - self._own_low() < max(REWRITE_LAG_MIN, 8 * (self.count + self.further_count)):
            return []
        return [full_key(self._keys[number]) for number in islice(self._living(), count_max)]

    def held_topics(self) -> set[str]:
        return {topic for topics in self._held_for for topic in topics}

    def held_for(self, topics: Iterable[str]) -> list[Transaction]:
        """Held transactions that wait for one of `topics`, in the order of their decisions."""
        wanted = set(topics)
        return _by_decision(
            t for of in self._held_for.values() if not wanted.isdisjoint(of.topics) for t in of.transactions.values()
        )

    def held_in_vain(self, targets: Mapping[str, Target]) -> list[Transaction]:
        """Held transactions whose topics all accept now, or refuse for good, in the order of their decisions."""
        known = {topic: targets.get(topic, UNKNOWN_TARGET) for topic in self.held_topics()}
        refusing = {topic for topic, target in known.items() if target.refusal is not None and not target.is_for_good}
        slow = {topic: target for topic, target in known.items() if target.slow_bytes_min < ANY_SIZE}
        return _by_decision(
            t
            for of in self._held_for.values()
            if refusing.isdisjoint(of.topics)
            for t in of.transactions.values()
            if not any(topic in slow and slow[topic].refusal_of(t) for topic in of.topics)
        )

    def held_too_long(self, *, now_ms: int, age_max_ms: int, targets: Mapping[str, Target]) -> list[Transaction]:
        """Held transactions older than `age_max_ms` of which a topic is known to refuse. The others are tried first."""
        if now_ms - self._held_since_ms < age_max_ms:
            return []
        held = [t for of in self._held_for.values() for t in of.transactions.values()]
        self._held_since_ms = min((t.ensure_extras().moved_ms for t in held), default=now_ms)
        old = (t for t in held if now_ms - t.ensure_extras().moved_ms >= age_max_ms)
        return [t for t in old if any(topic in targets and targets[topic].refusal_of(t) for topic in t.topics)]


def _offsets_of(offsets: Sequence[int]) -> "array[int]":
    """These offsets, in 4 bytes each if that is enough."""
    return array("I" if max(offsets, default=0) <= SMALL_OFFSET_MAX else "Q", offsets)


def _by_decision(transactions: Iterable[Transaction]) -> list[Transaction]:
    return sorted(transactions, key=lambda t: t.ensure_extras().decided_at or (0, 0))


LINES_MAX = 1 << 24  # greater than the number of lines in an op record

_Run = tuple[int, int]  # (index, doubt offset) of a content that is not right behind the one before it

_Place = tuple[int, int, str, tuple[_Run, ...]]
"""Contents of a transaction: the doubt offset of the first, their size, what questions carry, and those apart from it."""

_FIRST_CONTENT = b"/0"  # suffix of the key of a transaction's first content


HeadersOf = Callable[[], Headers | None]


class DoubtFold:
    """Folds one partition of the doubt topic. Records come in offset order; the newest one under a key wins."""

    def __init__(self, *, op_offset: int = 0) -> None:
        self._op_offset = op_offset
        self.quarantined_lines: dict[int, bytearray] = {}
        """By op offset, from `op_offset` on: one byte per line, 1 if it was quarantined, even if an operator has removed the
        record since.
        """
        self.transactions: dict[str, Transaction] = {}
        self.dormant = DormantTransactions()
        """Transactions that need no object yet. A key is either here or in `transactions`."""
        self.rolled_back: set[str] = set()
        """Transactions known from an op line only that were rolled back: a half record that comes later begins nothing."""
        self.unreadable: dict[str, int] = {}
        """Doubt offset of the content, by key, of transactions whose newest summary this release cannot read; a later one may.

        An older summary of them says nothing any more: such a key is neither in `transactions` nor in `dormant`.
        """
        self.grown: dict[str, None] = {}
        """Growing transactions to which contents belong that stand behind their summary."""
        self._content_at: dict[bytes, _Place] = {}  # by key, until its summary comes
        self._with_content = ""  # the newest transaction whose contents ended; its summary ends right behind them

    def fold(self, offset: int, raw_key: bytes | None, value: bytes | None, headers: HeadersOf = lambda: None) -> None:
        """Fold one record; a null value is a tombstone. `headers` is called only for contents, because they cost memory too."""
        if raw_key is not None and value is not None and raw_key.endswith(_FIRST_CONTENT):
            # Half of a million records that a restart reads; malformed keys are never looked up.
            found = headers()
            asked = codec.asked_options_of(found).check_with
            self._content_at[raw_key[: -len(_FIRST_CONTENT)]] = offset, _size(value, found), asked, ()
            return
        parsed = codec.parse_doubt_key(raw_key)
        if raw_key is None or parsed is None:
            self._fold_quarantined(raw_key)
            return
        key = parsed[0]
        if parsed[1] is not None:  # the content of a further message; it may have joined later
            if value is None:
                self._with_content = key
            elif (place := self._content_at.get(key.encode()) or self._place_of(key)) is not None:
                first_offset, size, check_with, further_at = place
                index, at = further_at[-1] if further_at else (0, first_offset)
                if offset - at != parsed[1] - index:
                    further_at = (*further_at, (parsed[1], offset))
                found = headers()
                place = first_offset, size + _size(value, found), check_with, further_at
                if key.encode() in self._content_at or not self._join(key, parsed[1], found, place):
                    self._content_at[key.encode()] = place
            return
        if value is None:
            self.transactions.pop(key, None)
            if key != self._with_content:
                self.rolled_back.add(key)
            self.dormant.drop(key)
            self.unreadable.pop(key, None)
            self._content_at.pop(raw_key, None)
        else:
            content_at = self._content_at.pop(raw_key, None) or self._place_of(key) or (offset, 0, "", ())
            self._fold_summary(key, value, *content_at)

    def _fold_quarantined(self, raw_key: bytes | None) -> None:
        origin, line = codec.parse_quarantine_key(raw_key) or (None, None)
        if origin is None or line is None or origin.offset < self._op_offset or line >= LINES_MAX:
            return
        marks = self.quarantined_lines.setdefault(origin.offset, bytearray())
        if line >= len(marks):
            marks.extend(bytes(line + 1 - len(marks)))
        marks[line] = 1

    def all_unsettled(self) -> dict[str, Transaction]:
        return {**self.transactions, **{txn.key: txn for txn in self.dormant.all_unsettled()}}

    def _fold_summary(
        self, key: str, value: bytes, doubt_offset: int, size: int, check_with: str, further_at: tuple[_Run, ...]
    ) -> None:
        self.unreadable.pop(key, None)
        self.grown.pop(key, None)
        if not check_with and not further_at and self.dormant.put(key, value, doubt_offset=doubt_offset, size=size):
            self.transactions.pop(key, None)
            return
        self.dormant.drop(key)
        summary = codec.decode_summary(key, value)
        try:
            if isinstance(summary, DoubtSummary):
                txn = from_summary(
                    summary, doubt_offset=doubt_offset, size=size, check_with=check_with, further_at=further_at
                )
                self.transactions[key] = txn
                return
        except ValueError:
            pass  # a state or reason that only a later version knows
        self.transactions.pop(key, None)
        self.unreadable[key] = doubt_offset
        # A summary of an older release may follow.
        self._content_at[key.encode()] = (doubt_offset, size, check_with, further_at)

    def _join(self, key: str, index: int, headers: Headers | None, place: _Place) -> bool:
        """Let a content behind the summary of a growing transaction belong to it. False: it is none of that."""
        txn, half, origin = self.transactions.get(key), codec.half_of(headers), codec.origin_of(headers)
        if txn is None or half is None or origin is None:
            return False
        extras = txn.ensure_extras()
        # A large one may be there twice, first with its origin alone.
        if not extras.is_growing or not txn.seen - 1 <= index <= txn.seen:
            return False
        txn.add_topic(half.topic)
        txn.seen, txn.last_offset, txn.size = index + 1, origin[1], place[1]
        extras.offsets, extras.further_at = [txn.first_offset, txn.last_offset], place[3]
        self.grown[key] = None
        return True

    def _place_of(self, key: str) -> _Place | None:
        """The contents of a transaction that an earlier summary told of."""
        if (place := self.dormant.place_of(key)) is not None:
            return *place, "", ()
        if (before := self.transactions.get(key)) is None:
            return None
        extras = before.ensure_extras()
        return extras.doubt_offset, before.size, before.options.check_with, extras.further_at


def _size(value: bytes, headers: Headers | None) -> int:
    return RECORD_BYTES + codec.content_bytes(value, headers)


class QuarantinedRecord(NamedTuple):
    """A record of half or op, or a line of an op record, that was quarantined."""

    origin: Origin
    line: int | None  # of an op record; None: the whole record
    reason: str  # a ParkReason's value, or a later version's
    why: str
    key: str  # "id/nonce" that it names; "" if it names none
    producer_group: str  # that it names; "" if it names none
    kept_ms: int  # when it was written to doubt
    doubt_origin: Origin  # where its bytes are on doubt
    key_bytes: int | None  # of the record; None: its key is null
    value_bytes: int | None
    header_names: tuple[str, ...]


class QuarantineFold:
    """Folds the quarantined records of doubt, in offset order within a partition; about 1 KB per key, for its newest record."""

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
    txn_key, group = named_by(line, value, headers)
    return QuarantinedRecord(
        origin,
        line,
        reason,
        why,
        key=txn_key,
        producer_group=group,
        kept_ms=record.timestamp()[1],
        doubt_origin=Origin(record.topic(), record.partition(), record.offset()),
        key_bytes=None if key is None else len(key),
        value_bytes=None if value is None else len(value),
        header_names=tuple(name for name, _ in headers),
    )


def named_by(line: int | None, value: bytes | None, headers: Headers | None) -> tuple[str, str]:
    """The transaction and the producer group that a line, or a header `txl`, names, if it is readable."""
    named = codec.half_of(headers) if line is None else codec.decode_op((value or b"").decode("ascii", "replace"))
    return (named.key, named.producer_group) if isinstance(named, OpMessage | HalfHeader) else ("", "")
