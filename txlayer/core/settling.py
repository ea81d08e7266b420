"""What follows when something happens to a transaction: try it, forward it, keep it on doubt, let the next one go.

The state of one partition lives here; `HalfFold` and `Ledger` build on it. Never here: reading records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from txlayer.core.asleep import Asleep
from txlayer.core.batch import Batch, Keep, KeptAside, Report, ReportKind
from txlayer.core.checks import CheckPolicies, CheckSchedule
from txlayer.core.doubt_shelf import DoubtShelf
from txlayer.core.forward_order import ForwardOrder
from txlayer.core.messages import HalfOptions, Origin, ParkReason, Undecodable
from txlayer.core.second_copies import DISTANCE_MAX, HalfMarks
from txlayer.core.target import UNKNOWN_TARGET, Target
from txlayer.core.transaction import OpPosition, Transaction, records_of, user_size
from txlayer.core.transitions import SETTLED, Effect, Kind, TxnState, transition
from txlayer.core.unsettled import UnsettledTransactions

UNSETTLED_BYTES, SLEEPER_BYTES, GROUP_BYTES, FURTHER_BYTES = 750, 250, 350, 300
"""Measured: an unsettled transaction that stands on doubt, or sleeps there beside its summary; a producer group that some of them name; each half
record of it beyond the first, with a topic of its own. In half it takes 500, and goes to doubt while half waits for memory: it counts in full."""

RELEASE_COUNT_MAX = 2_000
"""Transactions on doubt that one batch tries beside those that its lines name: one mended topic or settled transaction may
free a hundred thousand, and a Kafka transaction has an end."""

KEY_IN_HALF_MAX = 5_000
"""With more transactions of one ordering key those that wait go to doubt at once: from there they can go in pieces."""

NEVER_MS = 1 << 62
"""Later than every time."""

PlainTail = tuple[str, str, str]
"""(producer group, real topic, born) of a half header of a single message; interned where they repeat."""

PlainOptions = tuple[HalfOptions, int]
"""Options that name an ordering key alone, and the key's checksum, which tells the partition."""


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The names and limits of one namespace that the fold needs."""

    half_topic: str
    op_topic: str
    partition_count: int
    doubt_after_ms: int
    held_age_max_ms: int
    transaction_messages_max: int
    checks: CheckPolicies = field(default_factory=CheckPolicies)
    transaction_bytes_max: int = 1 << 62


class Settling:
    """The transactions of one partition, and what follows from what happens to them."""

    batch_bytes_max = 1 << 62
    """Bytes of a batch from which on nothing joins it that no op line asks for: moves, questions, releases."""

    def __init__(
        self,
        partition: int,
        *,
        settings: LedgerSettings,
        targets: Mapping[str, Target],
        refusals: Mapping[str, ParkReason] | None = None,
        plain_tails: dict[str, PlainTail] | None = None,
        plain_options: dict[str, PlainOptions] | None = None,
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.targets = targets
        self.unknown_topics: set[str] = set()
        self.committed_topics: dict[str, None] = {}  # those that something committed waits for
        self.refusals = {} if refusals is None else refusals  # by key; they outlive a rebuild
        # What was found of headers' ends; the ledgers of a process may share it: it depends on nothing else.
        self.plain_tails = {} if plain_tails is None else plain_tails
        self.plain_options = {} if plain_options is None else plain_options
        self.transactions = UnsettledTransactions()
        self.asleep = Asleep()  # the rest of them, of whom nobody needs an object yet
        self.order = ForwardOrder()
        self.batch = Batch()
        self.half_next = 0
        self.op_next: OpPosition = (0, 0)
        self.newest_ms = self._half_ms = 0  # newest append time that counts; the same of half alone
        self.latest_ms, self.now_ms = NEVER_MS, 0  # no append time beyond it counts; `due`'s last
        self._untimely_count = self._beyond_ms = 0  # records whose time did not count; the newest
        self.content_bytes = self.half_bytes = 0  # in memory; of all half since the marks began
        self._bare_until = -1  # half offset; no content in memory of those in half up to here
        # The half offset that the next op line names, when it is not read yet.
        self.waits_for_half: int | None = None
        self.ahead_line_count = 0
        self.is_replaying = False
        self._replay_low = self._replay_end = 0  # the replay of half
        self._leave_before = 0  # who must leave half
        self.shelf = DoubtShelf()
        self.schedule = CheckSchedule(settings.checks)
        # In half, by offset: those whose immunity is over, and the others; settled and moved ones are dropped lazily.
        self._old: deque[Transaction] = deque()
        self._young: deque[Transaction] = deque()
        self._limited: dict[str, int] = {}  # groups with too many open transactions, and how many
        self._limits_looked_at_ms = self._further_count = 0  # further: half records beyond a first
        self._twins: deque[tuple[int, int, OpPosition]] = deque()  # offset of a copy, of the first
        # Half records, read and not folded: what they bring to doubt is too much for the batch.
        self._behind: list[tuple[int, int, bytes | None, Any]] = []
        self._ops: deque[tuple[int, int, list[str]]] = deque()  # read ahead: offset, time, lines
        self._unreadable_ops: dict[int, tuple[Undecodable, Any]] = {}  # those of them without lines
        self._hopeless_before = 0  # op records before it waited long enough for half
        # Lines kept aside that a replay would read again: the last of some, and where on doubt a restart finds them.
        self._doubt_held_back: deque[tuple[OpPosition, int]] = deque()
        self._lines_aside: Mapping[int, bytearray] = {}  # in a replay: op offset → 1 by line
        self._recent: dict[str, int | None] = {}  # settled ones; `_began_at` says what stands here
        self._recent_before: dict[str, int | None] = {}
        self._recent_before_end = 0  # half was read so far when the last of those was settled
        self._recalled_tails: dict[bytes, tuple[bool, str | None]] = {}  # begins one, key hash
        self.half_marks = HalfMarks()
        self._keys_to_try: dict[str, None] = {}  # in order; who waits there may be free now
        self._keys_to_go_on_with: dict[str, None] = {}  # the same, too many for one batch
        self._mended: deque[Transaction] = deque()  # held until now, in the order of the decisions

    def believe_until(self, latest_ms: int) -> None:
        """Append times beyond `latest_ms` are one broker's word alone: nothing follows from them before that time comes."""
        self.latest_ms = latest_ms
        if self.newest_ms < self._beyond_ms <= latest_ms:
            self.newest_ms = self._beyond_ms

    def _saw(self, appended_ms: int) -> None:
        """A record was appended at a time that is newer than the newest."""
        if appended_ms <= self.latest_ms:
            self.newest_ms = appended_ms
        else:
            self._untimely_count += 1
            self._beyond_ms = appended_ms

    def take_untimely_count(self) -> int:
        """How many records came since the last call whose append time did not count."""
        count, self._untimely_count = self._untimely_count, 0
        return count

    @property
    def _has_room(self) -> bool:
        return self.batch.byte_count < self.batch_bytes_max

    @property
    def _has_room_for_releases(self) -> bool:
        return self.batch.release_count < RELEASE_COUNT_MAX and self._has_room

    @property
    def open_count(self) -> int:
        """Transactions that are not settled."""
        return len(self.transactions) + len(self.asleep)

    @property
    def unsettled_bytes(self) -> int:
        """About what they take in memory, or will on doubt, without content: by number, as measured with names of usual length."""
        return (
            UNSETTLED_BYTES * len(self.transactions)
            + SLEEPER_BYTES * len(self.asleep)
            + self.asleep.byte_count
            + GROUP_BYTES * (self.schedule.group_count + 2 * self.asleep.group_count)
            + FURTHER_BYTES * (self._further_count + len(self._twins))
        )

    @property
    def limited_groups(self) -> list[str]:
        """Producer groups that have too many open transactions."""
        return list(self._limited)

    def topics_needed(self) -> set[str]:
        """Real topics that held transactions wait for, or that the batch forwards to."""
        return {t for txn in (*self.shelf.held.values(), *self.batch.forwards) for t in txn.topics}

    def everybody(self) -> Iterator[Transaction]:
        """Every transaction that is not settled, for whoever only looks."""
        return chain(self.transactions.values(), self.asleep.everybody())

    def find(self, key: str) -> Transaction | None:
        """The transaction of this key that is not settled, woken when it sleeps."""
        return self.transactions.get(key) or self._wake(key)

    def _wake(self, key: str) -> Transaction | None:
        txn = self.asleep.wake(key)
        if txn is not None:
            self.transactions[key] = txn
            self._further_count += max(txn.seen - 1, 0)
            self.schedule.add(txn)
        return txn

    def _recent_state(self, key: str) -> TxnState | None:
        """How a transaction was settled, as far as it is remembered."""
        place = self._recent.get(key, self._recent_before.get(key))
        if place is None:
            return None
        return TxnState.COMMITTED if place >= 0 else TxnState.ROLLED_BACK

    def _is_known(self, key: str) -> bool:
        """True when a transaction of this key was settled, whether or not it is remembered how."""
        return key in self._recent or key in self._recent_before

    def _forget_what_is_far(self) -> None:
        """Make room among the settled ones, of whom those near enough for a second copy stay."""
        near = self.half_next - DISTANCE_MAX
        before = self._recent
        if self._recent_before_end > near:
            kept = {k: v for k, v in self._recent_before.items() if self._began_at(v) >= near}
            before = kept | before
        self._recent_before, self._recent = before, {}
        self._recent_before_end = self.half_next

    def _began_at(self, place: int | None) -> int:
        """Where a settled one began: committed there, or rolled back at -1 less it; None: before the replay of half ended."""
        if place is None:
            return self._replay_end
        return place if place >= 0 else -1 - place

    def _decided(self, txn: Transaction, before: TxnState, position: OpPosition) -> None:
        more = txn.extra()
        if (
            before is not TxnState.HELD
        ):  # a held one keeps its place among the decisions, and its age
            more.decided_at = position
            if txn.is_in_doubt:
                more.moved_ms = self._now_for(txn)
        if before in (TxnState.PARKED, TxnState.PARKED_COMMITTED):
            self.order.put_back(txn)
            self._take_along(txn)

    def _try(self, txn: Transaction, *, is_complete: bool = True) -> None:
        """Find out what a decided transaction may do now, and let it."""
        was_held = self.shelf.held.pop(txn.key, None) is not None
        kind, reason = self._fate(txn, is_complete=is_complete)
        txn.state, effect = transition(txn.state, kind, txn_id=txn.key)
        if effect is Effect.FORWARD:
            self.batch.forwards.append(txn)
            self.batch.byte_count += txn.size
            self._settle(txn)
            return
        if txn.state is TxnState.WAITING:
            self._wait(txn)
            if was_held:  # it holds nobody any more; who waits for nobody else goes first
                self._try_next(txn.key_hash)
            return
        txn.extra().reason = reason
        if txn.state is TxnState.HELD:
            if not was_held:  # however long it waited before
                txn.extra().moved_ms = self._now_for(txn)
            self.order.stuck(txn)
            self.shelf.held[txn.key] = txn
            self._report(ReportKind.HELD, txn.key, reason.value if reason else "")
        else:
            self._leave_order(txn)
            self._report(ReportKind.PARKED, txn.key, reason.value if reason else "")
        self._keep(txn)

    def _wait(self, txn: Transaction) -> None:
        self.order.stuck(txn)
        count = self.order.count(txn.key_hash)
        # What waits in half goes at once when it may, however much it is: no more waits there than one batch takes.
        is_hot = count > KEY_IN_HALF_MAX or count * txn.size > self.batch_bytes_max
        if txn.is_in_doubt or is_hot or self.order.is_on_doubt(txn.key_hash):
            self._keep(txn)

    def _fate(self, txn: Transaction, *, is_complete: bool) -> tuple[Kind, ParkReason | None]:
        if not is_complete:
            return Kind.INCOMPLETE, ParkReason.INCOMPLETE
        if not self.order.is_free(txn):
            return Kind.BLOCKED, None
        if self.is_replaying:  # whatever refused then is on doubt, or was settled since
            return Kind.GO, None
        if txn.key in self.refusals:
            return Kind.RECORD_REFUSED, self.refusals[txn.key]
        if txn.count > self.settings.transaction_messages_max or self.is_beyond_limit(txn):
            return Kind.RECORD_REFUSED, ParkReason.LIMIT
        held: ParkReason | None = None
        for topic in txn.topics:
            target = self.targets.get(topic, UNKNOWN_TARGET)
            if target is UNKNOWN_TARGET:
                self.unknown_topics.add(topic)
                self.committed_topics[topic] = None
            if target.refusal is not None and target.is_for_good:
                return Kind.RECORD_REFUSED, target.refusal
            held = held or target.refusal
        if held is not None:
            return Kind.TARGET_REFUSES, held
        if self._is_too_large(txn):
            return Kind.RECORD_REFUSED, ParkReason.TOO_LARGE
        return Kind.GO, None

    def is_beyond_limit(self, txn: Transaction) -> bool:
        """True when it has more bytes than one Kafka transaction is to carry: doubt gets only where they are."""
        return txn.size > self.settings.transaction_bytes_max

    def _is_too_large(self, txn: Transaction) -> bool:
        # Only what cannot fit: what headers of ours and a batch add, and content that was dropped, is measured by the broker,
        # and a refusal found by bisection.
        return any(
            user_size(record) > self.targets.get(topic, UNKNOWN_TARGET).message_bytes_max
            for topic, record in records_of(txn)
        )

    def _settle(self, txn: Transaction) -> None:
        del self.transactions[txn.key]
        if txn.seen > 1:
            self._further_count -= txn.seen - 1
        began = max(txn.first_offset, 0)
        self._recent[txn.key] = began if txn.state is TxnState.COMMITTED else -1 - began
        if txn.content is not None:
            self.content_bytes -= txn.size
        self.batch.keeps.pop(txn.key, None)
        self.batch.checks.pop(txn.key, None)
        self.batch.policy_lines.pop(txn.key, None)
        self.shelf.held.pop(txn.key, None)
        if txn.is_in_doubt:
            self.shelf.ended()
            self.batch.ends.append(txn)
        self._leave_order(txn)

    def _leave_order(self, txn: Transaction) -> None:
        self.order.remove(txn)
        self._try_next(txn.key_hash)

    def _now_for(self, txn: Transaction) -> int:
        """The newest time that counts; never before the transaction was appended, whoever is believed."""
        return max(self.newest_ms, self.now_ms, txn.appended_ms)

    def _try_next(self, key_hash: str | None) -> None:
        if key_hash is not None:
            self._keys_to_try[key_hash] = None

    def _try_those_behind(self) -> None:
        """Let go who may go now; of those on doubt as many as one batch takes."""
        while self._keys_to_try:
            key_hash = next(iter(self._keys_to_try))
            free = self.order.next_free(key_hash)
            if free is None:
                del self._keys_to_try[key_hash]
            elif free.is_in_doubt and not self._has_room_for_releases:
                del self._keys_to_try[key_hash]
                self._keys_to_go_on_with[key_hash] = None
            else:
                self.batch.release_count += free.is_in_doubt
                self._try(free)

    def _go_on_leaving(self) -> None:
        """Move those that must leave half, as many as one batch takes."""
        if not self._leave_before or self.is_replaying:
            return
        for txn in chain(self._old, self._young):
            if txn.first_offset >= self._leave_before:
                break
            if txn.state in SETTLED or txn.is_in_doubt or txn.key in self.batch.keeps:
                continue
            if not self._has_room or len(self.batch.keeps) >= RELEASE_COUNT_MAX:
                return
            txn.state, _ = transition(txn.state, Kind.MOVE, txn_id=txn.key)
            self._keep(txn)
        self._leave_before = 0

    def _go_on(self) -> None:
        """Try more of those on doubt that were too many for the batches before."""
        self._go_on_leaving()
        if self._leave_before:
            return
        while self._mended and self._has_room_for_releases:
            txn = self._mended.popleft()
            if txn.state is TxnState.HELD:
                self.batch.release_count += 1
                txn.state, _ = transition(txn.state, Kind.MENDED, txn_id=txn.key)
                self._try(txn)
        self._try_those_behind()
        while self._keys_to_go_on_with and self._has_room_for_releases:
            key_hash = next(iter(self._keys_to_go_on_with))
            del self._keys_to_go_on_with[key_hash]
            self._try_next(key_hash)
            self._try_those_behind()

    def _keep(self, txn: Transaction) -> None:
        """It goes to the doubt topic, or its summary there is written again; who waits for it goes along."""
        if self.is_replaying:
            return  # it was kept then
        before = self.batch.keeps.get(txn.key)
        if txn.is_in_doubt or before is not None:
            self.batch.keeps[txn.key] = Keep(txn, is_whole=before is not None and before.is_whole)
        else:
            self.batch.keeps[txn.key] = Keep(txn, is_whole=True)
            self.batch.byte_count += txn.size
            if self.is_beyond_limit(txn) and txn.content is not None:
                self.content_bytes -= txn.size
                txn.content = None
            txn.extra().moved_ms = self._now_for(txn)
            self._take_along(txn)

    def _take_along(self, txn: Transaction) -> None:
        # Who waits for one on doubt must stand there too: a replay of half and op cannot know what it waits for.
        if self.order.goes_to_doubt(txn):
            for other in self.order.waiting(txn.key_hash):
                if not other.is_in_doubt and other.key not in self.batch.keeps:
                    self._keep(other)

    def _keep_aside(
        self,
        topic: str,
        offset: int,
        why: Undecodable,
        *,
        record: Any = None,
        line: str | None = None,
        number: int = 0,
    ) -> None:
        self.batch.asides.append(
            KeptAside(Origin(topic, self.partition, offset), record, line, number, why)
        )
        self._report(ReportKind.KEPT_ASIDE, "", f"{topic}-{self.partition}@{offset}: {why.why}")

    def _report(self, kind: ReportKind, key: str, detail: str) -> None:
        if not self.is_replaying:
            self.batch.reports.append(Report(kind, key, detail))
