"""The order that is kept: of each chain one item is first, the others wait. Never offsets or attempts' counts.

A parked key's messages follow it into the dead letters, but while requests to replay its dead letters stand in its
chain they wait beside it: the last of these may release the key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic

from txlayer.core.attempts import GiveUp, TryAgain
from txlayer.core.handling import DeadLetterReason, ReplayKind, ReplayOutcome
from txlayer.core.items import Chain, Item, More, NullKeys, Order, QueueSettings, R
from txlayer.core.lanes import Lanes
from txlayer.core.parked_keys import ParkedKeys

PARTITION_REQUESTS = frozenset({ReplayKind.PAUSE, ReplayKind.RESUME})
"""Requests that wait for nobody."""
SETTLED_REQUESTS = {
    ReplayKind.DROP: ReplayOutcome.DROPPED,
    ReplayKind.PAUSE: ReplayOutcome.HANDLED,
    ReplayKind.RESUME: ReplayOutcome.HANDLED,
    ReplayKind.RESULT: ReplayOutcome.UNKNOWN,
}
"""What becomes of requests that need no handler."""
AN_EARLIER_FAILED = "an earlier dead letter of its key failed"
"""Told of a request that was not tried because of that."""


class Chains(Generic[R]):
    """Items in order. Those whose turn it is go to `lanes`, or are due: their ends are to be written."""

    def __init__(self, *, lanes: Lanes[R], parked: ParkedKeys, is_parking: bool) -> None:
        self.tails: dict[Chain, Item[R]] = {}
        """The last item of each chain; the queue's quick paths write here, too."""
        self._lanes = lanes
        self._parked = parked
        self._is_parking = is_parking
        self._answers: deque[Item[R]] = deque()  # due: requests
        self._due: deque[Item[R]] = deque()  # due: dead letters
        self._no_room: list[Item[R]] = []  # due, but no more keys can be parked
        self._beside: dict[Chain, list[Item[R]]] = {}  # messages of parked keys, while replays run

    @property
    def has_due(self) -> bool:
        """True when something is due that was not looked at for want of room."""
        return len(self._due) + len(self._answers) > 0

    @property
    def has_answers(self) -> bool:
        """True when the answer to a request is due."""
        return len(self._answers) > 0

    @property
    def has_letters(self) -> bool:
        """True when a dead letter is due that was not looked at for want of room."""
        return len(self._due) > 0

    @property
    def due_count(self) -> int:
        """Chains whose first item is due and was not taken."""
        return len(self._due) + len(self._answers) + len(self._no_room)

    @property
    def is_without_room(self) -> bool:
        """True: a key is to be parked, and no more can be."""
        return bool(self._no_room)

    @property
    def is_quick(self) -> bool:
        """True when no key is parked, so that an item needs no look at its key when its turn comes."""
        return not self._parked and not self._beside

    def line_up(self, item: Item[R]) -> None:
        """It was read: the last of its chain."""
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
        else:
            tail.follower = item

    def go_on(self, ended: Sequence[Item[R]]) -> None:
        """These have ended, consecutive ones of a chain beside each other; those behind them are first now."""
        for place, item in enumerate(ended):
            follower = item.follower
            if follower is None:
                del self.tails[item.chain]
                for other in self._beside.pop(item.chain, ()):
                    self.line_up(other)
            elif place + 1 == len(ended) or ended[place + 1] is not follower:
                self.turn(follower)

    def go_on_behind(self, lasts: Sequence[Item[R]]) -> None:
        """These have ended, each the last of its chain that did; of none of these chains the key is parked."""
        tails, start = self.tails, self._lanes.ready.append
        for item in lasts:
            follower = item.follower
            if follower is None:
                del tails[item.chain]
            elif follower.more is None:
                start(follower)
            else:
                self.turn(follower)

    def turn(self, item: Item[R]) -> None:
        """`item` is the first of its chain, or what it waited for has happened."""
        more = item.more
        if more is None or more.request is None:
            if self._parked.holds(item.chain):
                more = item.more = more or More()
                more.end = DeadLetterReason.KEY_PARKED
        elif self._is_behind_a_failed_one(item):
            more.end, more.error_message = ReplayOutcome.FAILED, AN_EARLIER_FAILED
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
        """The first of its chain will not be tried again: a dead letter, or the answer that its replay failed."""
        more = item.more = item.more or More()
        more.end = ReplayOutcome.FAILED if item.is_replay else reason
        self._is_due(item)
        if item.is_replay and self._parked.holds(item.chain):
            self._parked.stick(item.chain, _dead_letter(item))

    def answer(self, items: Sequence[Item[R]]) -> list[Item[R]]:
        """These were handled: requests are due now, the others are returned."""
        ended = [item for item in items if item.more is None]
        if len(ended) < len(items):
            ended = []
            for item in items:
                if not item.is_replay:
                    ended.append(item)
                    continue
                more = item.more = item.more or More()
                more.end = ReplayOutcome.HANDLED
                self._is_due(item)
        return ended

    def _is_due(self, item: Item[R]) -> None:
        (self._answers if item.is_replay else self._due).append(item)

    def take_due(
        self, count_max: int, *, bytes_max: int, of_requests: bool | None = None
    ) -> list[Item[R]]:
        """As `KeyQueues.take_due`."""
        taken: list[Item[R]] = []
        size_bytes = 0
        while len(taken) < count_max and size_bytes < bytes_max:
            if self._answers and of_requests is not False:
                item = self._answers.popleft()
            elif self._due and not of_requests:
                item = self._due.popleft()
            else:
                break
            parks = not item.is_replay and (self._is_parking or self._parked.holds(item.chain))
            if parks and not self._parked.make_room(item.chain):
                self._no_room.append(item)
                continue
            taken.append(item)
            size_bytes += letter_bytes(item)
            # What follows for certain goes along; else each would need a Kafka transaction of its own.
            while (
                len(taken) < count_max
                and size_bytes < bytes_max
                and (follower := item.follower) is not None
            ):
                if not self._ends_with(item, follower, parks=parks):
                    break
                item = follower
                taken.append(item)
                size_bytes += letter_bytes(item)
        return taken

    def written(self, items: Sequence[Item[R]], offsets: Sequence[int]) -> None:
        """The ends of these items, taken by `take_due`, are written at these offsets."""
        parked = self.parked_after(items, offsets)
        self._parked.become(parked, self._parked.stuck_after(items, parked))
        if self._parked.has_room:
            self._due.extend(self._no_room)
            self._no_room.clear()
        self.go_on(items)

    def parked_after(self, items: Sequence[Item[R]], offsets: Sequence[int]) -> dict[bytes, int]:
        """The parked keys as they will be then."""
        return self._parked.after(zip(items, offsets, strict=True), is_parking=self._is_parking)

    def drop_due(self) -> None:
        """Nothing is due any more."""
        self._answers.clear()
        self._due.clear()
        self._no_room.clear()

    def _ends_with(self, item: Item[R], follower: Item[R], *, parks: bool) -> bool:
        """True when the end of `item` brings that of the next of its chain; that one's end is then set."""
        more = follower.more
        if follower.is_replay:
            return more is not None and more.end is not None
        if parks and not item.is_replay:
            more = follower.more = more or More()
            more.end = DeadLetterReason.KEY_PARKED
            return True
        if item.is_replay or more is None or not more.is_counted:
            return False
        if isinstance(more.verdict, GiveUp):
            more.end = more.verdict.reason
        return more.end is not None

    def _is_behind_a_failed_one(self, item: Item[R]) -> bool:
        stuck_at = self._parked.stuck_at(item.chain)
        if stuck_at is None or item.more is None or item.more.end is not None:
            return False
        request = item.more.request
        is_replay = request is not None and request.kind is ReplayKind.REPLAY
        return is_replay and _dead_letter(item) > stuck_at


def runs_of(firsts: Sequence[Item[R]], count_max: int) -> tuple[list[Item[R]], list[Item[R]]]:
    """(`firsts` and so many behind them that they are at most `count_max`, the last one of each chain that never failed).

    Every chain has a turn before one has its next. What has failed before has nothing behind it, and is no last one.
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


def chains_of(
    keys: Sequence[bytes | None], offsets: Sequence[int], settings: QueueSettings
) -> Sequence[Chain]:
    """What each record is in order with; its own offset: with nothing."""
    if settings.order is Order.NONE:
        return offsets
    if settings.order is Order.PARTITION:
        return [None] * len(offsets)
    if settings.null_keys is NullKeys.FREE and None in keys:
        return [offset if key is None else key for key, offset in zip(keys, offsets, strict=True)]
    return keys


def letter_bytes(item: Item[R]) -> int:
    """Of the dead letter that is written for it; an answer to a request holds no content."""
    return 0 if item.is_replay else item.size_bytes


def _dead_letter(item: Item[R]) -> int:
    """The dead letter that a request is about; -1: none."""
    request = item.more.request if item.more is not None else None
    offset = request.dead_letter_offset if request is not None else None
    return -1 if offset is None else offset
