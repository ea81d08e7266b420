"""Which dead letters an operator's command is about: named, or chosen by a filter; a parked key whole. Reads only."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from txlayer.consumer.dead_letter_log import DeadLetterLog, FoundLetter, Place, QueueStatus
from txlayer.core.handling import DeadLetter, DeadLetterReason
from txlayer.core.letter_states import ENDED, LetterHistory, LetterState
from txlayer.core.messages import Undecodable
from txlayer.core.progress_codec import KEY_HASH_BYTES

ABLE = frozenset({LetterState.OPEN, LetterState.FAILED})
"""States in which something can be asked for without asking twice."""

_NO_KEY = bytes(KEY_HASH_BYTES)
"""In stored metadata: null keys, or a partition that is handled in one order whatever the keys."""


class Unable(Enum):
    """Why nothing is asked for a dead letter."""

    NOT_FOUND = "not-found"  #: no record stands there
    UNDECODABLE = "undecodable"  #: the record there is no dead letter of the group
    ENDED = "already"  #: it was handled or dropped
    REQUESTED = "requested-already"  #: another request about it has no answer yet
    LAST_OF_KEY = (
        "last-of-key"  #: its end would release its parked key past earlier ones that are open
    )


class Chosen(NamedTuple):
    """A dead letter that something is asked for."""

    place: Place
    key: bytes | None
    at_ms: int
    letter: DeadLetter
    history: LetterHistory


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """What a dead letter must be like; the default lets every one through."""

    key: bytes | None = None
    reasons: frozenset[DeadLetterReason] = frozenset()
    since_ms: int | None = None  # written then or later
    until_ms: int | None = None  # written before
    states: frozenset[LetterState] = frozenset()

    @property
    def is_empty(self) -> bool:
        """True when it lets every dead letter through."""
        return self == LetterFilter()

    def lets_through(self, found: FoundLetter) -> bool:
        """True for one that is meant. A record that is no dead letter of ours has no reason."""
        reason = found.letter.reason if isinstance(found.letter, DeadLetter) else None
        return (
            (self.key is None or found.key == self.key)
            and (not self.reasons or reason in self.reasons)
            and (self.since_ms is None or found.at_ms >= self.since_ms)
            and (self.until_ms is None or found.at_ms < self.until_ms)
            and (not self.states or found.history.state in self.states)
        )


@dataclass(slots=True)
class Choice:
    """What a command is about."""

    chosen: list[Chosen] = field(default_factory=list)  # to be asked for
    asked_before: list[Chosen] = field(default_factory=list)  # by the same request id
    unable: list[tuple[Place, Unable, LetterHistory | None]] = field(default_factory=list)
    added_count: int = 0  # of the chosen: because their parked key is replayed whole
    left_count: int = 0  # of a parked key, and not chosen as asked for
    parked_key_count: int = 0
    undecodable_count: int = 0  # passed over by a filter

    @property
    def in_turn(self) -> list[Chosen]:
        """The chosen: those of one partition in the order of their offsets, partitions taking turns."""
        places: dict[tuple[str, int], int] = {}
        turns = []
        for each in sorted(self.chosen, key=lambda c: c.place):
            queue = each.place[:2]
            places[queue] = places.get(queue, -1) + 1
            turns.append((places[queue], each.place, each))
        return [each for _, _, each in sorted(turns, key=lambda t: t[:2])]


def choose(
    logs: Mapping[str, DeadLetterLog],
    *,
    wanted: LetterFilter,
    names: Collection[Place] = (),
    request_id: str,
    limit: int | None = None,
    is_again: bool = False,
    is_whole: bool = False,
    is_copying: bool = False,
    is_dropping: bool = False,
) -> Choice:
    """What `names` name, or without any what the filter lets through, of these topics.

    What `request_id` stands for already is `asked_before`: it was asked for, or with `is_copying` republished. With
    `is_again` named ones are asked for whatever became of them. With `is_whole` a parked key's other dead letters are
    chosen too. With `is_dropping` the last one of a parked key is not chosen while earlier ones are left open: its end
    would release the key.
    """
    able = ABLE | {LetterState.REQUESTED} if is_copying else ABLE

    def was_asked(history: LetterHistory) -> bool:
        return request_id in (history.copies if is_copying else history.asked)

    choice = Choice()
    if names:
        for place in dict.fromkeys(names):
            found = logs[place.topic].at(place.partition, place.offset) if place.topic in logs else None  # fmt: skip
            _add_named(
                choice, place, found, frozenset(LetterState) if is_again else able, was_asked
            )
    else:
        for log in logs.values():
            _add_filtered(choice, log, wanted, able, was_asked)
        if limit is not None:
            choice.chosen = heapq.nsmallest(limit, choice.chosen, key=lambda c: (c.at_ms, c.place))
    is_all_there_is = not names and wanted.is_empty and limit is None
    if not is_all_there_is:
        for log in logs.values():
            left = _add_parked(choice, log, request_id=request_id, is_whole=is_whole)
            if is_dropping:
                _spare_last(choice, log.topic, left)
    return choice


def newcomers(
    logs: Mapping[str, DeadLetterLog],
    handled: Iterable[Chosen],
    others: Iterable[Chosen],
    *,
    request_id: str,
) -> Choice:
    """What followed the parked keys of `handled` into the dead letters since, and nobody has asked for.

    Not of a key that is among `others`: an earlier one of it was not handled.
    """
    stuck = {(c.place.topic, c.place.partition, c.key) for c in others}
    known = [c for c in handled if (c.place.topic, c.place.partition, c.key) not in stuck]
    choice = Choice(asked_before=known)
    for log in logs.values():
        _add_parked(choice, log, request_id=request_id, is_whole=True)
    choice.chosen = [c for c in choice.chosen if c.letter.reason is DeadLetterReason.KEY_PARKED]
    return choice


def still_able(
    logs: Mapping[str, DeadLetterLog], chosen: Iterable[Chosen], *, is_again: bool
) -> tuple[list[Chosen], list[Chosen]]:
    """(those that nobody asked for meanwhile, the others); both as they stand now."""
    for log in logs.values():
        log.follow()
    able: list[Chosen] = []
    taken: list[Chosen] = []
    for each in chosen:
        topic, partition, offset = each.place
        now = each._replace(history=logs[topic].states(partition).of(offset))
        (able if is_again or now.history.state in ABLE else taken).append(now)
    return able, taken


def _add_named(
    choice: Choice,
    place: Place,
    found: FoundLetter | None,
    able: Collection[LetterState],
    was_asked: Callable[[LetterHistory], bool],
) -> None:
    if found is None:
        choice.unable.append((place, Unable.NOT_FOUND, None))
    elif isinstance(found.letter, Undecodable):
        choice.unable.append((place, Unable.UNDECODABLE, found.history))
    elif was_asked(found.history):
        choice.asked_before.append(_chosen(found, found.letter))
    elif found.history.state in able:
        choice.chosen.append(_chosen(found, found.letter))
    else:
        why = Unable.ENDED if found.history.state in ENDED else Unable.REQUESTED
        choice.unable.append((place, why, found.history))


def _add_filtered(
    choice: Choice,
    log: DeadLetterLog,
    wanted: LetterFilter,
    able: Collection[LetterState],
    was_asked: Callable[[LetterHistory], bool],
) -> None:
    def take(found: FoundLetter) -> None:
        if not wanted.lets_through(found):
            return
        if isinstance(found.letter, Undecodable):
            choice.undecodable_count += 1
        elif was_asked(found.history):
            choice.asked_before.append(_chosen(found, found.letter))
        elif found.history.state in able:
            choice.chosen.append(_chosen(found, found.letter))

    log.each(take, since_ms=wanted.since_ms)


def _add_parked(
    choice: Choice, log: DeadLetterLog, *, request_id: str, is_whole: bool
) -> list[Chosen]:
    """The rest of the parked keys of which one is chosen or was asked for; or only how many that are.

    Returns those that are left.
    """
    ours = [c for c in (*choice.chosen, *choice.asked_before) if c.place.topic == log.topic]
    if not ours:
        return []
    queues = log.queues()
    in_one_order = _in_one_order(log, queues, {c.place.partition for c in ours})

    def chain_of(partition: int, key: bytes | None) -> tuple[int, bytes]:
        return partition, _chain(key, is_one_order=partition in in_one_order)

    keys = {chain_of(c.place.partition, c.key) for c in ours}
    parked = {chain for chain in keys if chain[1] in queues[chain[0]].parked}
    rest: list[tuple[tuple[int, bytes], Chosen]] = []
    places = {c.place for c in ours}

    def take(found: FoundLetter) -> None:
        chain = chain_of(found.place.partition, found.key)
        if chain not in keys or isinstance(found.letter, Undecodable):
            return
        if found.history.state not in ENDED and found.letter.reason is DeadLetterReason.KEY_PARKED:
            parked.add(chain)
        is_able = found.history.state in ABLE and request_id not in found.history.asked
        if is_able and found.place not in places:
            rest.append((chain, _chosen(found, found.letter)))

    log.each(take, partitions={partition for partition, _ in keys})
    more = [each for chain, each in rest if chain in parked]
    choice.parked_key_count += len({chain for chain, _ in rest if chain in parked})
    if is_whole:
        choice.chosen += more
        choice.added_count += len(more)
        return []
    choice.left_count += len(more)
    return more


def _spare_last(choice: Choice, topic: str, left: Sequence[Chosen]) -> None:
    """Take the last dead letter of each parked key out of the choice where an earlier one is left."""
    for partition, key in {(c.place.partition, c.key) for c in left}:
        queue = (topic, partition)
        of_key = [c for c in choice.chosen if (*c.place[:2], c.key) == (*queue, key)]
        last = max(of_key, key=lambda c: c.place, default=None)
        others = [c.place for c in left if (c.place.partition, c.key) == (partition, key)]
        if last is not None and last.place > max(others):
            choice.chosen.remove(last)
            choice.unable.append((last.place, Unable.LAST_OF_KEY, last.history))


def _in_one_order(
    log: DeadLetterLog, queues: Mapping[int, QueueStatus], partitions: Collection[int]
) -> set[int]:
    """Partitions that are handled in one order whatever the keys: such a chain alone is parked, and keyed ones follow it."""
    found_in: set[int] = set()

    def take(found: FoundLetter) -> None:
        if (
            found.key is not None
            and isinstance(found.letter, DeadLetter)
            and found.letter.reason is DeadLetterReason.KEY_PARKED
            and found.history.state not in ENDED
        ):
            found_in.add(found.place.partition)

    suspects = [p for p in partitions if queues[p].parked == {_NO_KEY}]
    if suspects:
        log.each(take, partitions=suspects)
    return found_in


def _chain(key: bytes | None, *, is_one_order: bool) -> bytes:
    """What is parked together with this key, as stored metadata name it."""
    if key is None or is_one_order:
        return _NO_KEY
    return blake2b(key, digest_size=KEY_HASH_BYTES).digest()


def _chosen(found: FoundLetter, letter: DeadLetter) -> Chosen:
    return Chosen(found.place, found.key, found.at_ms, letter, found.history)
