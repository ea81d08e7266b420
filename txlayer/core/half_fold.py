"""How a half record becomes part of a transaction. Never op lines, never time."""

from __future__ import annotations

import re
import zlib
from sys import intern
from typing import Any

from txlayer.core import codec
from txlayer.core.batch import Keep, ReportKind
from txlayer.core.cluster_facts import CLOCK_ERROR_MS
from txlayer.core.fields import KEY_HASH, VERSION, is_key
from txlayer.core.ids import GROUP_LENGTH_MAX, NONCE_LENGTH, TXN_ID_LENGTH_MAX
from txlayer.core.messages import NO_OPTIONS, HalfHeader, HalfOptions, ParkReason, Undecodable
from txlayer.core.partitions import partition_of_key_hash
from txlayer.core.settling import PlainOptions, PlainTail, Settling
from txlayer.core.transaction import (
    RECORD_BYTES,
    Content,
    Place,
    Transaction,
    held_bytes,
)
from txlayer.core.transitions import Kind, transition

BORN_DIGITS_MAX = 19
"""Milliseconds with fewer digits fit into 64 bits."""

PLAIN_TAILS_MAX = 1_000
"""Tails that are remembered: under load many transactions are born in one millisecond."""

PLAIN_OPTIONS_MAX = 10_000
"""Ordering keys whose options are remembered."""

UNKNOWN_TOPICS_MAX = 1_000
"""Real topics of a partition that were not asked about yet: half records may invent any number of names."""

_START = f"{VERSION}|"
_PLAIN_OPTIONS, _PLAIN_LENGTH = re.compile(f"k{KEY_HASH.pattern}"), 17
_PLAIN_BYTES = RECORD_BYTES + len(codec.HALF_HEADER) + 2

TOPICS_BYTES_MAX = 256 * 1024
"""Names of real topics that one transaction may have: its summary on doubt lists them, and must fit there."""

TOPICS_MAX = 10_000
"""How many real topics one transaction may have. No setting: what belongs to a transaction must not depend on who reads."""

TWINS_MAX = 64
"""Second copies of one transaction's half records that are remembered, and so many more of its last one, which a producer's
line names. The first ones: a line that named one must count in a replay too, however many copies came after it."""


class HalfFold(Settling):
    """Folds half records into transactions."""

    def fold_half(  # hot path, kept in one piece
        self, offset: int, appended_ms: int, header: bytes | None, record: Any
    ) -> None:
        """One half record. `header` is the value of its `txl`; `record` is kept as its content."""
        if self._behind:
            self._behind.append((offset, appended_ms, header, record))
            return
        self.half_next = offset + 1
        key_bytes, record_headers = record.key(), record.headers()
        if header is None or len(record_headers) > 1:
            size = held_bytes(record)
        else:  # what `held_bytes` counts, in fewer steps
            size = _PLAIN_BYTES + len(header) + len(record) + (len(key_bytes) if key_bytes else 0)
        self.half_bytes += size
        if appended_ms > self.newest_ms:
            self._saw(appended_ms)
        if appended_ms != self._half_ms:
            appended_ms = self._time_of_half(appended_ms)
        # The common cases in few steps: a single message without options, or with an ordering key alone. What is let
        # through here must be well formed: a test holds it to the codec.
        try:
            text = header.decode("ascii")  # type: ignore[union-attr]  # None is caught
            end = text.find("|", 2)
            key = text[2:end]
            txn_id, nonce = key.split("/")
            if text[-1] == "|":
                tail, options, home = text[end:], NO_OPTIONS, zlib.crc32(txn_id.encode())
            else:
                tail, asked = text[end:-_PLAIN_LENGTH], text[-_PLAIN_LENGTH:]
                options, home = self.plain_options.get(asked) or self._plain_options(asked)
            plain = self.plain_tails.get(tail) or self._plain_tail(tail)
            transactions = self.transactions
        except (AttributeError, ValueError):
            self._fold_half_with_care(offset, appended_ms, header, record, size)
            return
        if (
            plain is not None
            and text[:2] == _START
            and key not in transactions.fresh
            and key not in transactions.rest
            and key not in self.asleep.sleepers
            and key not in self._recent
            and key not in self._recent_before
            and home % self.settings.partition_count == self.partition
            and len(nonce) == NONCE_LENGTH
            and 0 < len(txn_id) <= TXN_ID_LENGTH_MAX
            and "\n" not in key
        ):
            self.content_bytes += size
            group, topic, born = plain
            txn = Transaction(
                key, group, topic, offset, appended_ms, born, self.op_next, record, size, options
            )
            transactions.fresh[key] = txn
            self._young.append(txn)
            if options is not NO_OPTIONS and self.order.wants_all:
                self.order.add(txn)
        else:
            self._fold_half_with_care(offset, appended_ms, header, record, size)

    @property
    def is_behind(self) -> bool:
        """True when half records were read that are not folded yet."""
        return bool(self._behind)

    def _fold_those_behind(self) -> None:
        behind, self._behind = self._behind, []
        for half in behind:
            self.fold_half(*half)

    def _time_of_half(self, appended_ms: int) -> int:
        """The append time; the newest before it where the leader's clock is far behind: nobody is born hours old."""
        if self._half_ms < appended_ms <= self.latest_ms:
            self._half_ms = appended_ms
        elif appended_ms < self._half_ms - CLOCK_ERROR_MS:
            self._untimely_count += 1
            return self._half_ms
        return appended_ms

    def recall_half(self, header: bytes | None, record: Any) -> None:
        """One half record from before the replay: whoever began with it is settled, or stands on doubt."""
        self.half_bytes += held_bytes(record)
        if header is None:
            return
        start, _, rest = header[2:].partition(b"|")
        # Of many headers all but the key was seen before.
        begins = self._recalled_tails.get(rest)
        if begins is None or header[:2] != _START.encode() or b"\n" in start:
            half = codec.decode_half_header(header)
            if not isinstance(half, HalfHeader):
                return
            if len(self._recalled_tails) >= PLAIN_TAILS_MAX:
                self._recalled_tails.clear()
            begins = self._recalled_tails[rest] = (not half.index, half.options.key_hash)
        key = start.decode("ascii", "replace")
        if begins[0] and is_key(key) and self._home(key, begins[1]) == self.partition:
            self._recent_before[key] = None

    def _fold_half_with_care(
        self, offset: int, appended_ms: int, raw: bytes | None, record: Any, size: int
    ) -> None:
        header = (
            Undecodable("half record without a header txl")
            if raw is None
            else codec.decode_half_header(raw)
        )
        if isinstance(header, HalfHeader) and self._home_of(header) != self.partition:
            header = Undecodable(
                f"belongs into partition {self._home_of(header)}", ParkReason.MISPLACED
            )
        if isinstance(header, Undecodable):
            self._keep_aside(self.settings.half_topic, offset, header, record=record)
            return
        if header.topic not in self.targets and len(self.unknown_topics) < UNKNOWN_TOPICS_MAX:
            self.unknown_topics.add(header.topic)
        txn = self.find(header.key)
        if txn is None:
            self._begin(header, offset, appended_ms, record, size)
        elif self.is_replaying and txn.is_in_doubt:
            # Only a second copy of the first record could be taken for the beginning of a transaction.
            is_twin = header.index == 0 and offset != txn.first_offset
            if is_twin and txn.first_offset >= self._replay_low:
                self._twins.append((offset, txn.first_offset, self.op_next))
            elif is_twin:  # some of those before it were too many for the batches until then
                self._leave_before = max(self._leave_before, offset)
        elif txn.is_in_doubt and not self._has_room:
            self.half_next = offset
            self.half_bytes -= size
            self._behind.append((offset, appended_ms, raw, record))
        else:
            txn.state, _ = transition(txn.state, Kind.HALF, txn_id=txn.key)  # JOIN in every state
            self._join(txn, header, offset, appended_ms, record, size)

    def _has_too_many_topics(self, txn: Transaction, topic: str) -> bool:
        topics = txn.topics
        return len(topics) >= TOPICS_MAX or sum(map(len, topics)) + len(topic) > TOPICS_BYTES_MAX

    def _plain_tail(self, tail: str) -> PlainTail | None:
        """What follows the key in the header of a single message without options, for a known topic; else None."""
        try:
            _, group, topic, part, born, options = tail.split("|")
        except ValueError:
            return None
        if not (
            part == "0/1"
            and not options
            and topic in self.targets
            and 0 < len(group) <= GROUP_LENGTH_MAX
            and born.isdigit()
            and len(born) < BORN_DIGITS_MAX
            and "\n" not in tail
        ):
            return None
        if len(self.plain_tails) >= PLAIN_TAILS_MAX:
            self.plain_tails.clear()
        self.plain_tails[tail] = plain = (intern(group), intern(topic), born)
        return plain

    def _plain_options(self, asked: str) -> PlainOptions:
        """Options that name an ordering key and nothing else, and the key's place among the partitions.

        Raises:
            ValueError: they are others.
        """
        if _PLAIN_OPTIONS.fullmatch(asked) is None:
            raise ValueError("options that are not plain")
        if len(self.plain_options) >= PLAIN_OPTIONS_MAX:
            self.plain_options.clear()
        key_hash = asked[1:]
        plain = HalfOptions(key_hash), int(key_hash[:8], 16)
        self.plain_options[asked] = plain
        return plain

    def _home_of(self, header: HalfHeader) -> int:
        return self._home(header.key, header.options.key_hash)

    def _home(self, key: str, key_hash: str | None) -> int:
        count = self.settings.partition_count
        if key_hash is not None:
            return partition_of_key_hash(key_hash, partition_count=count)
        return zlib.crc32(key.partition("/")[0].encode()) % count

    def _begin(
        self, header: HalfHeader, offset: int, appended_ms: int, record: Any, size: int
    ) -> None:
        if header.index or self._is_known(header.key):
            # Its first record lies before the low-water mark, or was never written: settled, or never begun. Or it is
            # the second copy of a record (librdkafka #4953): taken for new it would be forwarded twice.
            self._report(
                ReportKind.LATE_HALF, header.key, f"half record {offset} of nothing that is open"
            )
            return
        txn = Transaction(
            header.key,
            header.producer_group,
            header.topic,
            offset,
            appended_ms,
            str(header.born_ms),
            self.op_next,
            record,
            size,
            header.options,
        )
        txn.count = header.count
        if header.count > 1:
            txn.extra().offsets = [offset]
        if header.count > 1 or header.options != HalfOptions(header.options.key_hash):
            txn.content = [
                Content(0, header.topic, offset, header.options, str(header.born_ms), record)
            ]
        self.content_bytes += size
        self.transactions[txn.key] = txn
        self._young.append(txn)
        if header.options.immunity_ms is not None:
            self.schedule.add(txn)
        self.order.add(txn)

    def _leave_half(self, *, before: int) -> None:
        """Whoever is older goes to doubt, so that no replay meets this second copy, whose first one it cannot meet."""
        self._leave_before = max(self._leave_before, before)
        self._go_on_leaving()

    def _join(
        self,
        txn: Transaction,
        header: HalfHeader,
        offset: int,
        appended_ms: int,
        record: Any,
        size: int,
    ) -> None:
        more = txn.extra()
        if (
            txn.count == 0 and header.index == 0
        ):  # kept on an op line's word alone: now its half record comes
            txn.count, txn.group, txn.topic, txn.options = (
                header.count, header.producer_group, header.topic, header.options,
            )  # fmt: skip
            txn.first_offset, txn.appended_ms, txn.born = offset, appended_ms, str(header.born_ms)
            more.offsets = []
        is_next = header.index == txn.seen and header.count == txn.count  # no call for most
        place = Place.NEXT if is_next else txn.place_of(header, offset)
        if place is Place.NONE:
            why = Undecodable(
                f"record {header.index}/{header.count} where {txn.seen}/{txn.count} is due"
            )
            self._keep_aside(self.settings.half_topic, offset, why, record=record)
            return
        if place is not Place.NEXT:
            self._join_copy(txn, offset, is_last=header.index == txn.count - 1)
            return
        is_new_topic = header.topic not in txn.topics
        if is_new_topic and self._has_too_many_topics(txn, header.topic):
            why = Undecodable(
                f"more real topics than a transaction may have ({TOPICS_BYTES_MAX} bytes of names)",
                ParkReason.LIMIT,
            )
            self._keep_aside(self.settings.half_topic, offset, why, record=record)
            return
        txn.seen += 1
        if txn.seen > 1:
            self._further_count += 1
        txn.size += size
        txn.last_offset = offset
        assert more.offsets is not None  # who has more than one half record has them
        more.offsets.append(offset)
        if is_new_topic:
            more.topics = (*txn.topics, header.topic)
        content = Content(
            header.index, header.topic, offset, header.options, str(header.born_ms), record
        )
        if txn.is_in_doubt:
            more.joined = [*(more.joined or ()), content]
            before = self.batch.keeps.get(txn.key)
            self.batch.keeps[txn.key] = Keep(txn, is_whole=True)
            self.batch.byte_count += size if before is not None and before.is_whole else txn.size
        elif txn.content is not None:  # else it was dropped, and comes back whole when it is needed
            txn.content.append(content)
            self.content_bytes += size

    def _join_copy(self, txn: Transaction, offset: int, *, is_last: bool) -> None:
        more = txn.extra()
        if len(more.twins or ()) < TWINS_MAX + TWINS_MAX * is_last:
            more.twins = [*(more.twins or ()), offset]
        if txn.is_in_doubt:
            self._keep(txn)  # a line may name any copy: its summary tells of them
            self._leave_half(before=offset)
        else:
            self._twins.append((offset, txn.first_offset, txn.replay_from))
