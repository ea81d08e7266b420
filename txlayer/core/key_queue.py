"""The queue of one partition of a consumer group: schedules items, orders them by key, and tracks which ends must be written.

A queue has two sources: its topic, and the requests to replay its dead letters. Items of both wait in the same chains, one
chain per key. Only the first item of a chain is handed out (with those behind it, if handlers take batches); it stays
first until it ends. First come, first served: a key has one turn, however many of its records wait.

A postponed item waits for its time, and its chain with it; nothing of it is stored. A failed attempt blocks its chain until its count is stored and its back-off is over. A dead letter, or the answer to a
request, blocks its chain until it is written: `take_due` → `ending` → one Kafka transaction → `written`. If that
transaction fails before it stored anything, they are due again (`not_written`); if it fails in any other way, the queue is
discarded and rebuilt from the stored offsets. The states of an item: queued →
(ready → in flight → failed → counted → waits for its time)* → finished, or due → written.

The messages of a parked key follow it into the dead letters. While requests to replay its dead letters are in its chain,
they wait beside the chain: the last of these requests may release the key.

Measured (CPython 3.11, one core of a busy machine, batches of 500 records of 100 B): add, take and handled together take 0.65
to 1.1 µs a record; 1.5 µs while one key of a thousand always fails; 3.5 µs while keys are parked (each key's hash is looked
up); 7 µs if each record waits for the one before and is taken alone (`take_runs` and `take_batches` return such runs at once).
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from txlayer.core.codec import WHOLE_MAX
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.progress import (
    METADATA_BYTES_MAX,
    NO_KEY,
    NOTHING,
    Attempts,
    Progress,
    Snapshot,
    StoredProgress,
    hash_of_key,
)
from txlayer.core.retry import (
    AfterExhausted,
    GiveUp,
    Later,
    Reject,
    Retry,
    RetryPolicy,
    TryAgain,
    Verdict,
    decide,
    resume_at_ms,
    why_not_later,
)
from txlayer.errors import ConfigError

R = TypeVar("R")  # the caller's type of record; the queue does not look into it

Chain = bytes | int | None
"""The chain of an item: a key, None for the null key, or an offset for a record that has no order with others."""


class ItemSource(Enum):
    """The topic from which an item was read."""

    TOPIC = "topic"  #: the partition itself
    REPLAY = "replay"  #: requests to handle its dead letters again


class QueueOrder(Enum):
    """Which records wait for each other."""

    KEY = "key"  #: records of one key
    PARTITION = "partition"  #: all records of the partition
    NONE = "none"  #: nothing


class NullKeys(Enum):
    """What records without a key wait for, if records with a key are ordered by key."""

    ORDERED = "ordered"  #: for each other, as if null were a key
    FREE = "free"  #: for nothing


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a queue; ConfigError: parking keys is configured without an order, or a limit is out of range."""

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    order: QueueOrder = QueueOrder.KEY
    null_keys: NullKeys = NullKeys.ORDERED
    metadata_bytes_max: int = METADATA_BYTES_MAX
    parked_keys_max: int = 64
    """Each parked key takes 19 bytes of the stored metadata. At this number, the partition waits for replays."""

    def __post_init__(self) -> None:
        if self.order is QueueOrder.NONE and self.policy.after_exhausted is AfterExhausted.PARK:
            raise ConfigError(name="after_exhausted", value="park", expected="go-on: without order no key is parked")
        if self.parked_keys_max < 1:
            raise ConfigError(name="parked_keys_max", value=self.parked_keys_max, expected="at least 1")


class Start(NamedTuple):
    """Where a source starts: the stored offset and its decoded metadata."""

    offset: int
    stored: StoredProgress = NOTHING


class Failure(NamedTuple):
    """The handler's result for an attempt that failed; an exception counts as `Retry`."""

    result: Retry | Reject
    started_ms: int
    error_type: str = ""
    error_message: str = ""


class Snapshots(NamedTuple):
    """The offsets and metadata of both sources, to be stored together."""

    topic: Snapshot
    replays: Snapshot


class QueueFigures(NamedTuple):
    """Figures of a queue, for operators."""

    unfinished_count: int  # records and requests that have not ended
    size_bytes: int
    in_flight_count: int
    ready_count: int  # chains whose first item could be taken
    retry_count: int
    """Items that wait for their back-off or were postponed, or wait for the count of their attempts to be stored."""
    due_count: int  # chains whose first item's end must be written
    parked_count: int
    oldest_added_ms: int | None
    """When the oldest unfinished record of the topic was added, as of the last snapshot; None if there is none."""
    is_full: bool
    is_paused: bool


End = DeadLetterReason | ReplayOutcome  # why a record becomes a dead letter, or the result of a request


@dataclass(slots=True)
class ItemExtras:
    """Fields that few items need: failed attempts, a request to replay, an end to be written."""

    request: ReplayRecord | None = None
    attempt_count: int = 0  # attempts that have ended
    first_ms: int = 0  # start of the first one; in whole seconds after a restart
    last_ms: int = 0  # end of the last one
    error_type: str = ""
    error_message: str = ""
    verdict: Verdict | None = None
    end: End | None = None
    is_counted: bool = True  # False: the count of its last attempt is not stored
    is_waiting: bool = False  # it is first in its chain and waits for that
    later_count: int = 0  # how often its handler postponed it
    later_since_ms: int = 0  # when it was postponed first, less the operator's pauses before

    def note_failure(self, failure: Failure, *, now_ms: int) -> None:
        self.first_ms = self.first_ms or failure.started_ms
        self.last_ms = max(now_ms, failure.started_ms)  # a suspended machine's clock falls behind the one of the start
        self.error_type, self.error_message = failure.error_type, failure.error_message

    def remember(self, attempts: Attempts, policy: RetryPolicy, *, offset: int, taken_over_ms: int) -> None:
        """Restore the state from before a restart. The last error is lost, and the back-off begins anew."""
        self.attempt_count = attempts.ended_count
        self.first_ms = self.last_ms = attempts.first_at_s * 1000
        if attempts.is_rejected:
            self.verdict, self.error_type = GiveUp(DeadLetterReason.REJECTED), Reject.__name__
            return
        if self.attempt_count >= policy.attempt_count_max:
            self.verdict = GiveUp(DeadLetterReason.ATTEMPTS_EXHAUSTED)
            return
        at_ms = resume_at_ms(
            self.attempt_count,
            first_at_s=attempts.first_at_s,
            offset=offset,
            taken_over_ms=taken_over_ms,
            policy=policy,
        )
        self.verdict = TryAgain(at_ms)


class Item(Generic[R]):
    """A record between reading and its end. Only the queue changes it."""

    __slots__ = ("chain", "follower", "more", "offset", "record", "size_bytes")

    def __init__(self, record: R, offset: int, chain: Chain, size_bytes: int) -> None:
        self.record = record
        self.offset = offset
        self.chain = chain
        self.size_bytes = size_bytes
        self.follower: Item[R] | None = None  # the next item of its chain
        self.more: ItemExtras | None = None

    @property
    def is_replay(self) -> bool:
        return self.more is not None and self.more.request is not None

    @property
    def source(self) -> ItemSource:
        return ItemSource.REPLAY if self.is_replay else ItemSource.TOPIC

    @property
    def attempt_count(self) -> int:
        return 0 if self.more is None else self.more.attempt_count

    def __repr__(self) -> str:
        return f"Item({self.source.value} {self.offset}, chain {self.chain!r}, {self.more})"


RETRY_EVERY = 10
"""While new records wait, one of so many items that start is a retry or a replay: failing keys get a tenth of the calls."""


class Lanes(Generic[R]):
    """Items that may start, first come, first served, in two lanes: new records, and retries with replays. So retries can continue while no
    new record may start, and thousands of failing keys delay the others little (`RETRY_EVERY`). Retries without a place
    (`has_place`) are set apart until `bring_back`.
    """

    def __init__(self) -> None:
        self.ready: deque[Item[R]] = deque()  # new records
        self.again: deque[Item[R]] = deque()  # retries and replays
        self._apart: dict[int, Item[R]] = {}  # of `again`, in their order, by offset
        self._timers: list[tuple[int, int, Item[R]]] = []
        self._timer_count = 0  # orders equal times: items have no order
        self._held: list[Item[R]] = []  # in the order in which they were held
        self._held_until_ms = 0
        self._turn = 0

    def __len__(self) -> int:
        return len(self.ready) + len(self.again)

    @property
    def waiting_count(self) -> int:
        """Number of items that wait for a time."""
        return len(self._timers) + len(self._held)

    @property
    def retry_count(self) -> int:
        """Number of these that failed or were postponed."""
        return len(self._timers) + sum(item.more is not None for item in self._held)

    @property
    def next_at_ms(self) -> int | None:
        """Earliest time at which a waiting item may start; None if none waits."""
        if not self._held:
            return self._timers[0][0] if self._timers else None
        return min(self._held_until_ms, self._timers[0][0]) if self._timers else self._held_until_ms

    def wait(self, item: Item[R], *, not_before_ms: int) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (not_before_ms, self._timer_count, item))

    def hold(self, item: Item[R], *, until_ms: int) -> None:
        """Let the item start again at that time, when another held one may, or at `release`: before those that wait until then."""
        self._held_until_ms = min(until_ms, self._held_until_ms) if self._held else until_ms
        self._held.append(item)

    def release(self) -> None:
        held, self._held = self._held, []
        for item in held:
            (self.ready if item.more is None else self.again).append(item)

    def wake(self, now_ms: int) -> None:
        if self._held_until_ms <= now_ms:
            self.release()
        timers = self._timers
        while timers and timers[0][0] <= now_ms:
            self.again.append(heapq.heappop(timers)[2])

    def take(self, count_max: int, has_place: Callable[[Item[R]], bool]) -> list[Item[R]]:
        """Take the next items: new records first, and retries in every tenth turn, or if no new record may start."""
        ready, again = self.ready, self.again
        if not again:
            return self.take_new(count_max)
        taken: list[Item[R]] = []
        while len(taken) < count_max and (ready or again):
            # Kept between calls: a caller that takes one item at a time must get both lanes, too.
            self._turn = (self._turn + 1) % RETRY_EVERY
            if again and (not self._turn or not ready):
                taken += self.take_again(1, has_place)
            else:
                taken.append(ready.popleft())
        return taken

    def take_new(self, count_max: int) -> list[Item[R]]:
        pick = self.ready.popleft
        return [pick() for _ in range(min(count_max, len(self.ready)))]

    def take_again(self, count_max: int, has_place: Callable[[Item[R]], bool]) -> list[Item[R]]:
        taken: list[Item[R]] = []
        while self.again and len(taken) < count_max:
            item = self.again.popleft()
            if has_place(item):
                taken.append(item)
            else:
                self._apart[item.offset] = item
        return taken

    def is_apart(self, offset: int) -> bool:
        return offset in self._apart

    def take_apart(self, offset: int) -> list[Item[R]]:
        """The item there if it was set apart."""
        found = self._apart.pop(offset, None)
        return [] if found is None else [found]

    def take_at(self, offset: int) -> list[Item[R]]:
        for index, item in enumerate(self.ready):
            if item.offset == offset:
                del self.ready[index]
                return [item]
        return []

    def bring_back(self) -> None:
        """Those without a place may have one now."""
        self.again.extendleft(reversed(self._apart.values()))
        self._apart.clear()

    def clear(self) -> list[Item[R]]:
        """Forget all items; returns them."""
        timed = (item for _, _, item in self._timers)
        found = [*self.ready, *self.again, *self._apart.values(), *self._held, *timed]
        self.ready.clear()
        self.again.clear()
        self._apart.clear()
        self._timers.clear()
        self._held.clear()
        return found


_KNOWN_MAX = 10_000  # hashes in the cache: to compute one costs ten times as much as a look-up in a dict
_KNOWN_BYTES_MAX = 256
"""A longer key is hashed anew each time: the cache would keep it for long, and nothing counts its bytes."""
_RELEASING = frozenset({ReplayOutcome.HANDLED, ReplayOutcome.DROPPED})
_FREEING = _RELEASING | {ReplayOutcome.MISSING}
"""Ends that free a key from a failed replay: a dead letter that is gone blocks no later one of its key."""


class ParkedKeys:
    """Hashes of the parked keys, each with the offset of its last dead letter.

    With `AfterExhausted.PARK`, a key is parked when a dead letter of it is written, whatever the reason. The messages behind it become
    dead letters, too. It is released when the last of them is handled or dropped (`after`).

    A key is stuck at a dead letter whose replay failed, or that no handler takes: later ones of the key are not tried until that one is
    handled or dropped, or retention deletes it. This is stored: requests outlive the process that answered the first.
    """

    def __init__(self, parked: Mapping[bytes, int], *, count_max: int, stuck: Mapping[bytes, int]) -> None:
        self.parked = dict(parked)  # offset of the last dead letter, by hash of the key
        self.stuck = dict(stuck)  # offset of the dead letter whose replay failed, by hash of the key
        self._count_max = count_max
        self._known: dict[Chain, bytes] = {}
        self._coming: set[bytes] = set()  # their first dead letter is being written

    def __len__(self) -> int:
        return len(self.parked)

    def stuck_at(self, chain: Chain) -> int | None:
        """Offset of the dead letter whose replay failed; None if no replay failed, or if the key is not parked."""
        if not self.stuck or isinstance(chain, int):
            return None
        return self.stuck.get(self.key_hash(chain))

    def is_of_another(self, key: bytes, offset: int) -> bool:
        """True if another key is parked, or stuck, at this dead letter."""
        own = self.key_hash(key)
        return any(
            at == offset and key_hash != own for each in (self.parked, self.stuck) for key_hash, at in each.items()
        )

    @property
    def has_room(self) -> bool:
        return len(self.parked) + len(self._coming) < self._count_max

    def holds(self, chain: Chain) -> bool:
        if not self.parked or isinstance(chain, int):
            return False
        return self.key_hash(chain) in self.parked

    def make_room(self, chain: Chain) -> bool:
        """Reserve room to park the key of `chain`. Returns False, and changes nothing, if there is none."""
        if isinstance(chain, int):
            return True  # no order with others: no key to park
        key_hash = self.key_hash(chain)
        if key_hash not in self.parked and key_hash not in self._coming:
            if not self.has_room:
                return False
            self._coming.add(key_hash)
        return True

    def after(
        self, ends: Collection[tuple[Item[R], int]], *, is_parking: bool
    ) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """The parked keys, and the stuck ones, after the ends of these items are written, each at its offset.

        The end of its last dead letter releases a key. If a copy takes its place, or the key is stuck at an earlier one, the
        end of that one releases it. The first dead letter in a topic that was made anew releases those of the one before.
        """
        # Offsets only grow: what is known at one that is written now, or behind it, was in the topic before that was made anew.
        first = min((offset for item, offset in ends if not item.is_replay), default=WHOLE_MAX)
        parked = {key_hash: at for key_hash, at in self.parked.items() if at < first}
        stuck = {key_hash: at for key_hash, at in self.stuck.items() if at < first}
        for item, offset in ends:
            more = item.more
            key_hash = self._named_by(item, parked)
            if more is None or key_hash is None:
                continue
            if more.request is None:
                if is_parking or key_hash in parked:
                    parked[key_hash] = offset
                continue
            offset_of_request = more.request.dead_letter_offset
            if more.end in _FREEING and stuck.get(key_hash) == offset_of_request:
                del stuck[key_hash]
            elif more.end is ReplayOutcome.UNKNOWN and offset_of_request is not None:
                stuck[key_hash] = min(offset_of_request, stuck.get(key_hash, offset_of_request))
            is_last = parked.get(key_hash, -1) == offset_of_request
            if more.end in _RELEASING and is_last:
                copy = more.request.replaced_by
                last = stuck.get(key_hash) if copy is None else copy
                if last is None:
                    del parked[key_hash]
                else:
                    parked[key_hash] = last
        return parked, {key_hash: at for key_hash, at in stuck.items() if key_hash in parked}

    def _named_by(self, item: Item[R], parked: Mapping[bytes, int]) -> bytes | None:
        """The hash of an item's key. A dead letter without one may be of the key that is parked at it: its topic refused the key."""
        if item.is_replay and not isinstance(item.chain, bytes):
            at = _dead_letter(item)
            for key_hash, last in parked.items():
                if last == at:
                    return key_hash
        return None if isinstance(item.chain, int) else self.key_hash(item.chain)

    def become(self, parked: dict[bytes, int], stuck: dict[bytes, int]) -> None:
        """Apply the result of `after`, which is stored now."""
        self.parked = parked
        self.stuck = stuck
        self._coming -= parked.keys()

    def forget(self, there: range) -> int:
        """Release the keys whose last dead letter is not at one of these offsets. Returns their number."""
        gone = {key_hash for key_hash, last in self.parked.items() if last not in there}
        self.parked = {key_hash: last for key_hash, last in self.parked.items() if key_hash not in gone}
        self.stuck = {key_hash: at for key_hash, at in self.stuck.items() if key_hash not in gone}
        return len(gone)

    def key_hash(self, chain: Chain) -> bytes:
        """Eight bytes that represent the key in stored metadata."""
        if not isinstance(chain, bytes):
            return NO_KEY
        known = self._known.get(chain)
        if known is None:
            if len(chain) > _KNOWN_BYTES_MAX:
                return hash_of_key(chain)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[chain] = hash_of_key(chain)
        return known


def lone_request_key(offset: int) -> bytes:
    """The key of a request that waits for no other: it counts as a key of its own."""
    return b"\0request %d" % offset


PARTITION_REQUESTS = frozenset({ReplayKind.PAUSE, ReplayKind.RESUME})  # requests that wait for no other item
SETTLED_REQUESTS = {
    ReplayKind.DROP: ReplayOutcome.DROPPED,
    ReplayKind.PAUSE: ReplayOutcome.HANDLED,
    ReplayKind.RESUME: ReplayOutcome.HANDLED,
    ReplayKind.RESULT: ReplayOutcome.UNKNOWN,
}
"""Results of requests that need no handler."""
AN_EARLIER_FAILED = "an earlier dead letter of its key failed"
"""Error message of a request that was not tried for this reason."""


class Chains(Generic[R]):
    """The order of the items: one chain per key. Items whose turn it is go to `lanes`, or become due: their ends must be written."""

    def __init__(self, *, lanes: Lanes[R], parked: ParkedKeys, is_parking: bool) -> None:
        self.tails: dict[Chain, Item[R]] = {}  # The last item of each chain. The queue's fast paths write here, too.
        self._lanes = lanes
        self._parked = parked
        self._is_parking = is_parking
        self._answers: deque[Item[R]] = deque()  # due: requests
        self._due: deque[Item[R]] = deque()  # due: dead letters
        self._no_room: list[Item[R]] = []  # due, but no more keys can be parked
        self._no_place: dict[Chain, Item[R]] = {}
        """Dead letters that are due, but whose ends may have no room in the metadata, by chain."""
        self._beside: dict[Chain, list[Item[R]]] = {}  # messages of parked keys, while replays run

    @property
    def has_due(self) -> bool:
        """True if an item is due, apart from those that wait for room to park their key."""
        return len(self._due) + len(self._answers) > 0

    @property
    def due_sources(self) -> list[ItemSource]:
        """The sources of the items that are due, apart from those that wait for room to park their key."""
        return [ItemSource.REPLAY] * bool(self._answers) + [ItemSource.TOPIC] * bool(self._due)

    @property
    def due_count(self) -> int:
        """Chains whose first item is due and not taken."""
        return len(self._due) + len(self._answers) + len(self._no_room) + len(self._no_place)

    @property
    def is_without_room(self) -> bool:
        """True if a key has to be parked and no more can be."""
        return bool(self._no_room)

    @property
    def is_quick(self) -> bool:
        """True if no key is parked. Items then need no look-up of their key at their turn."""
        return not self._parked and not self._beside

    def line_up(self, item: Item[R]) -> None:
        if item.is_replay:
            if self._parked.holds(item.chain):
                self._beside.setdefault(item.chain, [])
        elif item.chain in self._beside:
            self._beside[item.chain].append(item)
            return
        tail = self.tails.get(item.chain)
        self.tails[item.chain] = item
        if tail is None:
            self.turn(item)
            return
        tail.follower = item
        if item.is_replay:
            self._let_replays_pass(item.chain)

    def _let_replays_pass(self, chain: Chain) -> None:
        """Messages of a parked key that have no place as dead letters wait beside the replays behind them, as later ones do."""
        beside = self._beside.get(chain)
        item = None if beside is None else self._no_place.pop(chain, None)
        if beside is None or item is None:
            return
        while not item.is_replay:
            beside.append(item)
            if item.more is not None and item.more.end is DeadLetterReason.KEY_PARKED:
                item.more.end = None
            follower, item.follower = item.follower, None
            assert follower is not None, item  # the last item of a chain with others beside it is a replay
            item = follower
        beside.sort(key=lambda each: each.offset)
        self.turn(item)

    def go_on(self, ended: Sequence[Item[R]]) -> None:
        """Advance the chains of these items, which have ended. Consecutive items of a chain are adjacent.

        The last one of each lets go of its follower: a thread that hangs holds its items for ever.
        """
        for index, item in enumerate(ended):
            follower = item.follower
            if follower is None:
                del self.tails[item.chain]
                for other in self._beside.pop(item.chain, ()):
                    self.line_up(other)
            elif index + 1 == len(ended) or ended[index + 1] is not follower:
                item.follower = None
                self.turn(follower)

    def go_on_behind(self, lasts: Sequence[Item[R]]) -> None:
        """Advance the chains of these items, each the last one of its chain that has ended. No key of these chains is parked."""
        tails, start = self.tails, self._lanes.ready.append
        for item in lasts:
            follower = item.follower
            if follower is None:
                del tails[item.chain]
                continue
            item.follower = None
            if follower.more is None:
                start(follower)
            else:
                self.turn(follower)

    def turn(self, item: Item[R]) -> None:
        """Schedule `item`: it is the first of its chain, or what it waited for has happened."""
        more = item.more
        if more is None or more.request is None:
            if self._parked.holds(item.chain):
                more = item.more = more or ItemExtras()
                more.end = DeadLetterReason.KEY_PARKED
        elif self._is_behind_a_failed_one(item):
            more.end, more.error_message = ReplayOutcome.FAILED, AN_EARLIER_FAILED
        else:
            self._refuse_drop_of_another_key(item)
        if more is None:
            self._lanes.ready.append(item)
        elif more.end is not None:
            self._is_due(item)
        elif not more.is_counted:
            more.is_waiting = True
        elif isinstance(more.verdict, GiveUp):
            self.give_up(item, more.verdict.reason)
        elif isinstance(more.verdict, TryAgain):
            self._lanes.wait(item, not_before_ms=more.verdict.not_before_ms)
        else:
            self._lanes.again.append(item)

    def give_up(self, item: Item[R], reason: DeadLetterReason) -> None:
        """Give up the first item of its chain: it becomes a dead letter, or the answer is that its replay failed."""
        more = item.more = item.more or ItemExtras()
        more.end = ReplayOutcome.FAILED if item.is_replay else reason
        self._is_due(item)
        if item.is_replay and self._parked.holds(item.chain):
            self._parked.stuck[self._parked.key_hash(item.chain)] = _dead_letter(item)

    def answer(self, items: Sequence[Item[R]]) -> list[Item[R]]:
        """These items were handled. Requests become due; returns the others."""
        ended = [item for item in items if item.more is None]
        if len(ended) < len(items):
            ended = []
            for item in items:
                if not item.is_replay:
                    ended.append(item)
                    continue
                more = item.more = item.more or ItemExtras()
                more.end = ReplayOutcome.HANDLED
                self._is_due(item)
        return ended

    def _is_due(self, item: Item[R]) -> None:
        (self._answers if item.is_replay else self._due).append(item)

    def take_due(
        self,
        count_max: int,
        *,
        bytes_max: int,
        place_count: int,
        lowest: int,
        counted: Container[int],
        of_requests: bool | None = None,
    ) -> list[Item[R]]:
        """`place_count`: dead letters that have room, besides those `counted` and the one at `lowest`; others wait for `place`."""
        taken: list[Item[R]] = []
        size_bytes = 0
        while len(taken) < count_max and size_bytes < bytes_max:
            if self._answers and of_requests is not False:
                item = self._answers.popleft()
            elif self._due and not of_requests:
                item = self._due.popleft()
            else:
                break
            needs_place = item.offset != lowest and _needs_place(item, counted)
            if needs_place and not place_count:
                self._no_place[item.chain] = item
                self._let_replays_pass(item.chain)
                continue
            parks = not item.is_replay and (self._is_parking or self._parked.holds(item.chain))
            if parks and not self._parked.make_room(item.chain):
                self._no_room.append(item)
                continue
            place_count -= needs_place
            taken.append(item)
            size_bytes += letter_bytes(item)
            # Also take followers whose end is certain; otherwise each would need a Kafka transaction of its own.
            while len(taken) < count_max and size_bytes < bytes_max and (follower := item.follower) is not None:
                needs_place = _needs_place(follower, counted)
                if (needs_place and not place_count) or not self._ends_with(item, follower, parks=parks):
                    break
                place_count -= needs_place
                item = follower
                taken.append(item)
                size_bytes += letter_bytes(item)
        return taken

    def written(self, items: Sequence[Item[R]], offsets: Sequence[int]) -> None:
        """The ends of these items, taken by `take_due`, are written at these offsets."""
        self._parked.become(*self.parked_after(items, offsets))
        self._use_room()
        self.go_on(items)

    def forget_parked(self, there: range) -> int:
        count = self._parked.forget(there)
        self._use_room()
        return count

    def place(self, lowest: int, lowest_chain: Chain, *, has_room: bool) -> None:
        """Dead letters without a place are due again; if there is no room, only the one at `lowest`, whose end makes some."""
        if has_room:
            self._due.extend(self._no_place.values())
            self._no_place.clear()
        elif (item := self._no_place.get(lowest_chain)) is not None and item.offset == lowest:
            self._due.append(self._no_place.pop(lowest_chain))

    def _use_room(self) -> None:
        if self._parked.has_room:
            self._due.extend(self._no_room)
            self._no_room.clear()

    def not_written(self, items: Sequence[Item[R]]) -> None:
        """The ends of these items, taken by `take_due`, were not written: they are due again, before all others."""
        for index in range(len(items) - 1, -1, -1):
            item = items[index]
            if not index or items[index - 1].follower is not item:
                (self._answers if item.is_replay else self._due).appendleft(item)

    def parked_after(
        self, items: Sequence[Item[R]], offsets: Sequence[int]
    ) -> tuple[dict[bytes, int], dict[bytes, int]]:
        return self._parked.after(list(zip(items, offsets, strict=True)), is_parking=self._is_parking)

    def clear(self) -> list[Item[R]]:
        """Forget all items; returns those that are due."""
        found = [*self._answers, *self._due, *self._no_room, *self._no_place.values()]
        for each in (self._answers, self._due, self._no_room, self._no_place, self.tails, self._beside):
            each.clear()
        return found

    def _ends_with(self, item: Item[R], follower: Item[R], *, parks: bool) -> bool:
        """True if the end of `item` determines the end of its follower; sets the follower's end then."""
        more = follower.more
        if follower.is_replay:
            self._refuse_drop_of_another_key(follower)
            return more is not None and more.end is not None
        if parks and not item.is_replay:
            more = follower.more = more or ItemExtras()
            more.end = DeadLetterReason.KEY_PARKED
            return True
        if item.is_replay or more is None or not more.is_counted:
            return False
        if isinstance(more.verdict, GiveUp):
            more.end = more.verdict.reason
        return more.end is not None

    def _refuse_drop_of_another_key(self, item: Item[R]) -> None:
        """A drop that another program wrote under a wrong key would end the dead letter, and leave its key parked for good."""
        more, key = item.more, item.chain
        if more is None or more.end is not ReplayOutcome.DROPPED or not isinstance(key, bytes):
            return
        if self._parked.is_of_another(key, _dead_letter(item)):
            more.end = ReplayOutcome.MISSING

    def _is_behind_a_failed_one(self, item: Item[R]) -> bool:
        stuck_at = self._parked.stuck_at(item.chain)
        if stuck_at is None or item.more is None or item.more.end is not None:
            return False
        request = item.more.request
        is_replay = request is not None and request.kind is ReplayKind.REPLAY
        return is_replay and _dead_letter(item) > stuck_at


def _needs_place(item: Item[R], counted: Container[int]) -> bool:
    """True if its end needs room in the metadata of the topic. Results of requests can be looked for; a count of attempts leaves its own room."""
    return not (item.is_replay or item.offset in counted)


def firsts_of(items: Sequence[Item[R]]) -> list[Item[R]]:
    """Those of a batch that are the first of their chain."""
    return [item for index, item in enumerate(items) if not index or items[index - 1].follower is not item]


def runs_of(firsts: Sequence[Item[R]], count_max: int) -> tuple[list[Item[R]], list[Item[R]]]:
    """Extend `firsts` by items behind them to at most `count_max`. Returns them and the last one of each chain without failures.

    Every chain has a turn before any has its next. An item that failed before is taken alone and is not a last one.
    """
    taken: list[Item[R]] = list(firsts)
    lasts: list[Item[R]] = []
    room = count_max - len(taken)
    layer = [item for item in firsts if item.more is None]
    while layer:
        following: list[Item[R]] = []
        follow, end = following.append, lasts.append
        for item in layer:
            follower = item.follower
            if follower is not None and room > 0 and follower.more is None:
                follow(follower)
                room -= 1
            else:
                end(item)
        taken += following
        layer = following
    return taken, lasts


def chains_of(keys: Sequence[bytes | None], offsets: Sequence[int], settings: QueueSettings) -> Sequence[Chain]:
    """The chain of each record; a record's own offset means no order."""
    if settings.order is QueueOrder.NONE:
        return offsets
    if settings.order is QueueOrder.PARTITION:
        return [None] * len(offsets)
    if settings.null_keys is NullKeys.FREE and None in keys:
        return [offset if key is None else key for key, offset in zip(keys, offsets, strict=True)]
    return keys


def letter_bytes(item: Item[R]) -> int:
    """Size of the dead letter that is written for the item; 0 for an answer to a request, which has no content."""
    return 0 if item.is_replay else item.size_bytes


def _dead_letter(item: Item[R]) -> int:
    """Offset of the dead letter that a request concerns; -1 if there is none."""
    request = item.more.request if item.more is not None else None
    offset = request.dead_letter_offset if request is not None else None
    return -1 if offset is None else offset


ARRIVALS_MAX = 1_000
"""Times of additions that are kept, for the age of the oldest record: one that waits for days has as many behind it as were read."""
_END_BYTES_MAX = 8
"""In base64url, of the end of one record among unfinished ones in the metadata: its length, and the distance to the next one."""
DUE_BYTES_MAX = 16 * 1024 * 1024
"""Total bytes of dead letters whose ends are taken together: the limit of one Kafka transaction."""


class PartitionQueue(Generic[R]):
    """One queue with both of its sources. Not thread-safe. Do not use it after one of its methods raised.

    `topic` and `replays` are the starts of its sources. Parked keys and the operator's pause come from `topic`.
    `now_ms` is the time of the take-over: the back-off of items that failed before begins then.

    Raises:
        ConfigError: the metadata have no room for what `settings` require.
    """

    def __init__(self, *, topic: Start, replays: Start, settings: QueueSettings, now_ms: int) -> None:
        self._settings = settings
        self._is_without_order = settings.order is QueueOrder.NONE
        self._taken_over_ms = now_ms
        limit, by_key = settings.metadata_bytes_max, settings.order is QueueOrder.KEY
        orders_null_keys = settings.null_keys is NullKeys.ORDERED
        self._topic = Progress(
            *topic,
            metadata_bytes_max=limit,
            parked_keys_max=settings.parked_keys_max,
            ends_by_key=by_key,
            orders_null_keys=orders_null_keys,
        )
        self._replays = Progress(
            *replays, metadata_bytes_max=limit, ends_by_key=by_key, orders_null_keys=orders_null_keys, is_replay=True
        )
        self._progress = {ItemSource.TOPIC: self._topic, ItemSource.REPLAY: self._replays}
        self._is_topic_full = False  # its last snapshot was
        self._place_count = limit // _END_BYTES_MAX
        """Ends of the topic that are sure to have room behind the last snapshot."""
        self._arrivals: deque[tuple[int, int]] = deque()  # (first offset, time) of additions of the topic
        self._parked = ParkedKeys(topic.stored.parked, count_max=settings.parked_keys_max, stuck=topic.stored.stuck)
        self._lanes: Lanes[R] = Lanes()
        self._chains: Chains[R] = Chains(
            lanes=self._lanes, parked=self._parked, is_parking=settings.policy.after_exhausted is AfterExhausted.PARK
        )
        self._uncounted: dict[tuple[ItemSource, int], Item[R]] = {}
        self._is_draining = False
        self._has_batches = False
        self._suspended_ms = 0  # for so long in all since an item succeeded
        self._paused_ms = 0  # by an operator, for so long in all
        self._paused_since_ms = 0  # 0: it is not paused
        self.suspended_until_ms = 0  # nothing is handed out before: a handler suspended the partition
        self.in_flight_count = 0  # items taken and not yet handled, failed or put back
        self.size_bytes = 0  # of all items that have not ended
        self.replay_bytes = 0  # of the dead letters among them
        self.is_paused = topic.stored.is_paused  # an operator paused the partition; nothing is handed out then
        self.had_progress = topic.stored is not NOTHING
        """False: nothing was stored, so requests to pause and to resume take effect again, even if they were answered."""
        self.knows_replays = True
        """False: which requests have ended is not stored, and has to be looked up in their topic. Until `learn_answered`, none is added."""
        self.writer = ""
        """Transactional id of the dead-letter writer. Set and store it before the writer writes for the first time."""
        self._token = topic.stored.token

    # --- reading ------------------------------------------------------------------------------------------------------

    def add(
        self,
        records: Sequence[R],
        *,
        offsets: Sequence[int],
        keys: Sequence[bytes | None],
        sizes: Sequence[int],
        now_ms: int,
    ) -> int:
        """Add records of the topic, in the order of their offsets. Returns how many of them were neither read before, nor ended before a restart."""
        fresh = self._topic.read(offsets, keys)
        if not fresh:
            return 0
        if len(self._arrivals) >= ARRIVALS_MAX:
            # A record between two counts as old as the one before.
            self._arrivals = deque(islice(self._arrivals, 0, None, 2))
        self._arrivals.append((fresh[0], now_ms))
        chains = chains_of(keys, offsets, self._settings)
        if len(fresh) == len(offsets) and self._chains.is_quick and offsets[0] >= self._topic.failed_until:
            tails, start = self._chains.tails, self._lanes.ready.append
            for record, offset, chain, size in zip(records, offsets, chains, sizes, strict=True):
                item = Item(record, offset, chain, size)
                tail = tails.get(chain)
                tails[chain] = item
                if tail is None:
                    start(item)
                else:
                    tail.follower = item
            self.size_bytes += sum(sizes)
            return len(fresh)
        wanted = set(fresh)
        for record, offset, chain, size in zip(records, offsets, chains, sizes, strict=True):
            if offset in wanted:
                self._add_one(Item(record, offset, chain, size))
        return len(fresh)

    def add_replay(
        self,
        request: ReplayRecord,
        *,
        offset: int,
        key: bytes | None,
        record: R,
        size_bytes: int,
        outcome: ReplayOutcome | None = None,
    ) -> bool:
        """Add a request that was read at `offset` of the replay topic. Returns False if it was answered before.

        `record` is its dead letter. `outcome` is the answer if there is nothing to handle: `MISSING`, `UNKNOWN`.
        Do not add results of others' requests.
        """
        is_alone = request.kind in PARTITION_REQUESTS
        if not self._replays.read([offset], [lone_request_key(offset) if is_alone else key]):
            return False
        # Negative: a request without an order must not share a chain with a record of the topic.
        alone = -1 - offset
        chain = alone if is_alone else chains_of([key], [alone], self._settings)[0]
        item = Item(record, offset, chain, size_bytes)
        item.more = ItemExtras(request=request, end=outcome or SETTLED_REQUESTS.get(request.kind))
        self._add_one(item)
        self.replay_bytes += size_bytes
        return True

    def learn_answered(self, runs: Sequence[tuple[int, int]]) -> None:
        """The requests in these runs were answered, whatever was stored."""
        self._replays.ended_before(runs)
        self.knows_replays = True

    def reach(self, source: ItemSource, position: int) -> None:
        """The reader of `source` is at `position`; records below it that were not added need no handling."""
        self._progress[source].reach(position)

    # --- handling -----------------------------------------------------------------------------------------------------

    def may_begin(self, now_ms: int) -> bool:
        """False: nothing is handed out now, because an operator or a handler stopped it."""
        return not (self.is_paused or self._is_draining or now_ms < self.suspended_until_ms)

    def take(self, count_max: int, *, now_ms: int) -> list[Item[R]]:
        """Take at most `count_max` items to handle now, one per chain."""
        lanes = self._lanes
        if lanes.next_at_ms is not None:
            lanes.wake(now_ms)
        if self.is_paused:
            self._paused_since_ms = self._paused_since_ms or now_ms
        elif self._paused_since_ms:
            self._paused_ms += now_ms - self._paused_since_ms
            self._paused_since_ms = 0
        if not self.may_begin(now_ms):
            return []
        taken: list[Item[R]] = []
        if self._is_topic_full and count_max:
            taken += lanes.take_apart(self._topic.lowest)
        if self.is_full:
            taken += lanes.take_again(count_max - len(taken), self._has_place)
            if not taken and not self.in_flight_count and count_max:
                # Any other end would need more room in the metadata; the end of the lowest record frees some.
                taken = lanes.take_at(self._topic.lowest) or lanes.take_apart(self._topic.lowest)
        else:
            taken += lanes.take(count_max - len(taken), self._has_place)
        self.in_flight_count += len(taken)
        return taken

    def _has_place(self, item: Item[R]) -> bool:
        """False: its end may have no room in the metadata, and the next owner would handle it again."""
        return not self._is_topic_full or not _needs_place(item, self._topic.counted)

    def take_runs(self, count_max: int, *, now_ms: int) -> tuple[list[Item[R]], list[Item[R]]]:
        """Take items for a worker that handles them one after the other: as `take`, plus the items behind them while there is room.

        Also returns the last item of each chain, for `handled`. An item that failed before comes alone and is not a last one.
        """
        firsts = self.take(count_max, now_ms=now_ms)
        taken, lasts = runs_of(firsts, 0 if self.is_full else count_max)
        self.in_flight_count += len(taken) - len(firsts)
        return taken, lasts

    def take_batches(self, count_max: int, *, records_max: int, now_ms: int) -> list[list[Item[R]]]:
        """Take at most `count_max` batches of at most `records_max` consecutive items of one chain, in order.

        Without an order, of any items. For batch handlers. An item that failed before comes alone.
        """
        self._has_batches = True
        batches: list[list[Item[R]]] = []
        if self._is_without_order:
            while len(batches) < count_max and (batch := self.take(1, now_ms=now_ms)):
                if batch[0].more is None and not self.is_full:
                    batch += self._lanes.take_new(records_max - 1)
                    self.in_flight_count += len(batch) - 1
                batches.append(batch)
            return batches
        for first in self.take(count_max, now_ms=now_ms):
            batch, item = [first], None if self.is_full else first.follower
            while item is not None and first.more is None and item.more is None and len(batch) < records_max:
                batch.append(item)
                item = item.follower
            self.in_flight_count += len(batch) - 1
            batches.append(batch)
        return batches

    def handled(self, items: Sequence[Item[R]], lasts: Sequence[Item[R]] | None = None) -> None:
        """The handler succeeded with these items; several batches may come together. Requests wait until their answers are written.

        `lasts`: those that `take_runs` returned as last; None: each item is the only one of its chain. InvariantError: one has ended before.
        """
        self.in_flight_count -= len(items)
        if items:
            self._suspended_ms = 0
        ended = items if lasts is not None else self._chains.answer(items)
        self._topic.finish([item.offset for item in ended])
        self.size_bytes -= sum([item.size_bytes for item in ended])
        if self._has_batches:
            self._chains.go_on(ended)
        else:
            # No key of these chains is parked: the queue hands out no item of a parked key, and no item that ends here parks one.
            self._chains.go_on_behind(ended if lasts is None else lasts)

    def failed(self, items: Sequence[Item[R]], failure: Failure, *, now_ms: int, draw: float) -> None:
        """Record a failed attempt at an item, or at all items of one batch.

        Each item continues when the count of its attempts is stored (`stored`), the first one first: after its back-off; or as
        a dead letter or an answer, if it is out of attempts or was rejected, and then it needs no room for the count. `draw` is
        uniform in [0, 1).
        """
        self.in_flight_count -= len(items)
        firsts = set(firsts_of(items))
        for item in items:
            source = item.source
            more = item.more = item.more or ItemExtras()
            is_rejected = isinstance(failure.result, Reject)
            attempts = self._progress[source].failed(
                item.offset, started_ms=failure.started_ms, is_rejected=is_rejected
            )
            more.note_failure(failure, now_ms=now_ms)
            more.attempt_count = attempts.ended_count
            more.is_counted, more.is_waiting = False, item in firsts
            more.verdict = decide(
                failure.result, attempt_count=more.attempt_count, policy=self._settings.policy, now_ms=now_ms, draw=draw
            )
            self._uncounted[source, item.offset] = item

    def postpone(self, items: Sequence[Item[R]], later: Later, *, now_ms: int, is_asked: bool = True) -> str:
        """Let an item, or a batch, wait without counting an attempt; with `is_of_partition`, all others of the queue, too.

        Returns why it may not wait, and then changes nothing: the attempt has failed. `is_asked`: the handler asked for it;
        otherwise only `later_max_ms` is a limit, and `later` may end behind it. An operator's pause does not count.
        """
        policy, until_ms = self._settings.policy, now_ms + max(later.delay_ms or 0, 0)
        unpaused_ms = now_ms - self._paused_ms
        firsts = firsts_of(items)
        found = [item.more or ItemExtras() for item in firsts]
        for more in found:
            count, since_ms = more.later_count if is_asked else -1, more.later_since_ms or unpaused_ms
            if why := why_not_later(count, since_ms=since_ms, now_ms=unpaused_ms, policy=policy):
                return why
        if later.is_of_partition:
            if why := why_not_later(0, since_ms=now_ms - self._suspended_ms, now_ms=now_ms, policy=policy):
                return f"the partition is {why}"
            before_ms = max(self.suspended_until_ms, now_ms)
            longer_ms = min(max(until_ms - before_ms, 0), policy.later_max_ms - self._suspended_ms)
            self._suspended_ms += longer_ms
            self.suspended_until_ms = before_ms + longer_ms
        self.in_flight_count -= len(items)
        for item, more in zip(firsts, found, strict=True):
            more.later_count += is_asked
            more.later_since_ms = more.later_since_ms or unpaused_ms
            item.more = more
            limit_ms = more.later_since_ms + self._paused_ms + policy.later_max_ms if is_asked else until_ms
            self._lanes.wait(item, not_before_ms=min(until_ms, limit_ms))
        return ""

    def end_before(self, batch: Sequence[Item[R]], index: int) -> Item[R]:
        """End the items before `index`, which the handler handled; the item there, which is returned, must end next. None behind it began."""
        before = batch[:index]
        if before:
            self._suspended_ms = 0
        self.in_flight_count -= len(before)
        self._topic.finish([item.offset for item in before])
        self.size_bytes -= sum(item.size_bytes for item in before)
        if self._is_without_order:
            self._chains.go_on(before)
        return self.shorten(batch[index:], 1)[0]

    def shorten(self, batch: Sequence[Item[R]], count: int) -> Sequence[Item[R]]:
        """Keep the first `count` (at least 1) items of a batch; those behind them wait again."""
        if self._is_without_order and len(batch) > count:
            self.put_back(batch[count:])
        else:
            self.in_flight_count -= len(batch) - count
        return batch[:count]

    def undecodable(self, item: Item[R], failure: Failure, *, now_ms: int) -> None:
        """Give up an item that cannot be decoded. No handler was called."""
        self.in_flight_count -= 1
        item.more = item.more or ItemExtras()
        item.more.note_failure(failure, now_ms=now_ms)
        self._chains.give_up(item, DeadLetterReason.UNDECODABLE)

    def put_back(self, items: Sequence[Item[R]]) -> None:
        """Return an item, or a batch, that was not started; it is next again."""
        self.in_flight_count -= len(items)
        for item in reversed(firsts_of(items)):
            lane = self._lanes.ready if item.more is None else self._lanes.again
            lane.appendleft(item)

    def hold(self, item: Item[R], *, until_ms: int) -> None:
        """Return an item that was not started; it may start from that time on, or after `release`, before those that failed since."""
        self.in_flight_count -= 1
        self._lanes.hold(item, until_ms=until_ms)

    def release(self) -> None:
        self._lanes.release()

    def drop_queued(self) -> None:
        """Hand out no more items, and keep none: a thread that hangs holds the queue, and its items, for ever."""
        self._is_draining = True
        for item in (*self._lanes.clear(), *self._chains.clear(), *self._uncounted.values()):
            item.follower = None
        self._uncounted.clear()

    # --- storing ------------------------------------------------------------------------------------------------------

    def is_changed(self, source: ItemSource) -> bool:
        """True if a snapshot of `source` would differ from the last one."""
        return self._progress[source].is_changed

    def snapshot(self, source: ItemSource) -> Snapshot:
        """What must be stored of `source` now. Do not call it while a transaction of `ending` is open."""
        return self._snapshot(source, self._known(self._parked.parked, self._parked.stuck, is_paused=self.is_paused))

    def _known(self, parked: Mapping[bytes, int], stuck: Mapping[bytes, int], *, is_paused: bool) -> StoredProgress:
        return StoredProgress(self.writer, is_paused, parked=parked, stuck=stuck, token=self._token)

    def _snapshot(self, source: ItemSource, known: StoredProgress, ended: Collection[int] = ()) -> Snapshot:
        """What must be stored of `source`, as if the items at the offsets `ended` had ended. `known`: of the topic alone."""
        behind: set[int] = set()
        given_up: set[int] = set()
        for (where, offset), item in self._uncounted.items():
            if where is source and item.more is not None:
                if not item.more.is_waiting:
                    behind.add(offset)
                if isinstance(item.more.verdict, GiveUp):
                    given_up.add(offset)
        if source is ItemSource.REPLAY:
            return self._replays.snapshot(ended=ended, given_up=given_up, knows_ends=self.knows_replays)
        taken = self._topic.snapshot(known, ended=ended, behind=behind, given_up=given_up)
        while len(self._arrivals) > 1 and self._arrivals[1][0] <= taken.offset:
            self._arrivals.popleft()
        if taken.is_full is not self._is_topic_full:
            self._is_topic_full = taken.is_full
            self._lanes.bring_back()
        room = self._settings.metadata_bytes_max - len(taken.metadata)
        self._place_count = 0 if taken.is_full else room // _END_BYTES_MAX
        self._place()
        return taken

    def _place(self) -> None:
        lowest = self._topic.lowest
        chain = chains_of([self._topic.key_of(lowest)], [lowest], self._settings)[0]
        self._chains.place(lowest, chain, has_room=self._place_count > 0)

    def stored(self, source: ItemSource, version: int) -> None:
        """The snapshot of that version is stored: items whose attempts it counts continue."""
        for offset in self._progress[source].stored(version):
            item = self._uncounted.pop((source, offset), None)
            if item is not None and item.more is not None:
                item.more.is_counted = True
                if item.more.is_waiting:
                    item.more.is_waiting = False
                    self._chains.turn(item)

    def take_due(
        self, count_max: int, *, bytes_max: int = DUE_BYTES_MAX, of_requests: bool | None = None
    ) -> list[Item[R]]:
        """Take at most `count_max` items whose ends must be written, in order: answers to requests, then dead letters.

        The dead letter that reaches `bytes_max` is the last one. `item.more` has the `end` and what to write of the attempts.
        `of_requests`: True takes answers only, False only runs that begin with a dead letter: one of their topics may refuse writes.
        """
        return self._chains.take_due(
            count_max,
            bytes_max=bytes_max,
            place_count=self._place_count,
            lowest=self._topic.lowest,
            counted=self._topic.counted,
            of_requests=of_requests,
        )

    def ending(self, items: Sequence[Item[R]], offsets: Sequence[int]) -> Snapshots:
        """What must be stored in the Kafka transaction that writes the ends of these items, each at its offset.

        The queue does not change until `written`.
        """
        known = self._known(*self._chains.parked_after(items, offsets), is_paused=self._is_paused_after(items))
        topic, replays = (
            self._snapshot(source, known, {item.offset for item in items if item.source is source})
            for source in ItemSource
        )
        return Snapshots(topic, replays)

    def written(self, items: Sequence[Item[R]], offsets: Sequence[int], snapshots: Snapshots | None) -> None:
        """That Kafka transaction is committed: the items have ended, and their chains continue. None: nothing was to be written."""
        self.is_paused = self._is_paused_after(items)
        for source in ItemSource:
            ended = [item.offset for item in items if item.source is source]
            self._progress[source].finish(ended)
            for offset in ended:
                self._uncounted.pop((source, offset), None)
        self.size_bytes -= sum(item.size_bytes for item in items)
        self.replay_bytes -= sum(item.size_bytes for item in items if item.is_replay)
        self._chains.written(items, offsets)
        self._place()
        if snapshots is not None:
            self.stored(ItemSource.TOPIC, snapshots.topic.version)
            self.stored(ItemSource.REPLAY, snapshots.replays.version)

    def _is_paused_after(self, items: Sequence[Item[R]]) -> bool:
        is_paused = self.is_paused
        for item in items:
            request = item.more.request if item.more is not None else None
            if request is not None and request.kind in PARTITION_REQUESTS:
                is_paused = request.kind is ReplayKind.PAUSE
        return is_paused

    def not_written(self, items: Sequence[Item[R]]) -> None:
        """That Kafka transaction stored nothing and never will: the ends of these items, as `take_due` gave them, are due again."""
        self._chains.not_written(items)
        for progress in self._progress.values():
            progress.is_changed = True  # the snapshot of `ending` was not stored

    def end_pause(self) -> None:
        """An operator's pause is over before the turn of the request that ends it; the next snapshot tells that."""
        self.is_paused = False
        self._topic.is_changed = True

    def forget_parked(self, there: range) -> int:
        """Release the parked keys whose last dead letter is not at one of these offsets of its topic. Returns their number.

        Retention removed it, or the topic was made anew: no request can release such a key, and others need its room.
        """
        count = self._chains.forget_parked(there)
        if count:
            self._topic.is_changed = True
        return count

    @property
    def token(self) -> int | None:
        """The highest known fencing token of this queue. Set and store it before the queue's lease issues another one."""
        return self._token

    @token.setter
    def token(self, token: int) -> None:
        self._token = token
        self._topic.is_changed = True

    # --- figures ------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """True if the metadata have no room for more; only retries, replays and the lowest record are handed out then."""
        return self._is_topic_full or self._chains.is_without_room

    @property
    def is_without_room(self) -> bool:
        """True if a key has to be parked and no more can be."""
        return self._chains.is_without_room

    @property
    def needs_requests(self) -> bool:
        """True if a key has to be parked, no more can be, and nothing that was read can change that."""
        # An attempt without room for its count changes nothing: keys that wait to be parked keep theirs.
        is_idle = not (self.in_flight_count or self._chains.has_due)
        # Nor does what was set apart: it begins when there is room, and the lowest one now.
        is_lowest_apart = self._lanes.is_apart(self._topic.lowest)
        has_retries = bool(self._lanes.again or self._lanes.waiting_count or is_lowest_apart)
        return self._chains.is_without_room and is_idle and not has_retries

    @property
    def count(self) -> int:
        """Number of records and requests that have not ended."""
        return self._topic.unfinished_count + self.replay_count

    @property
    def lowest_replay(self) -> int:
        """Offset of the lowest request that has not ended, or where the next one is read."""
        return self._replays.lowest

    @property
    def replay_count(self) -> int:
        return self._replays.unfinished_count

    @property
    def ready_count(self) -> int:
        """Chains whose first item could be taken, were it not for a pause or full metadata."""
        return len(self._lanes)

    @property
    def has_due(self) -> bool:
        return self._chains.has_due

    @property
    def due_sources(self) -> list[ItemSource]:
        """The sources of the items that `take_due` would look at: answers to requests, dead letters."""
        return self._chains.due_sources

    @property
    def next_retry_at_ms(self) -> int | None:
        """When the next back-off ends; None if no item waits for one."""
        return self._lanes.next_at_ms

    def figures(self) -> QueueFigures:
        return QueueFigures(
            unfinished_count=self.count,
            size_bytes=self.size_bytes,
            in_flight_count=self.in_flight_count,
            ready_count=len(self._lanes),
            retry_count=self._lanes.retry_count + len(self._uncounted),
            due_count=self._chains.due_count,
            parked_count=len(self._parked),
            oldest_added_ms=self._arrivals[0][1] if self._arrivals and self._topic.unfinished_count else None,
            is_full=self.is_full,
            is_paused=self.is_paused,
        )

    # --- items --------------------------------------------------------------------------------------------------------

    def _add_one(self, item: Item[R]) -> None:
        self.size_bytes += item.size_bytes
        # Its stored attempts count; its back-off begins anew.
        attempts = self._progress[item.source].attempts(item.offset)
        if attempts is not None:
            item.more = item.more or ItemExtras()
            item.more.remember(attempts, self._settings.policy, offset=item.offset, taken_over_ms=self._taken_over_ms)
        self._chains.line_up(item)
