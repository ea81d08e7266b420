"""Keys whose messages follow an earlier one into the dead letters, and how far a replay of them came. Never which message is
one (key_queues.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txlayer.core.handling import ReplayOutcome
from txlayer.core.items import Chain, Item, R
from txlayer.core.progress_codec import NO_KEY, hash_of_key

_KNOWN_MAX = 10_000
"""Hashes remembered: a hash costs ten times a look into a dict."""
_RELEASING = frozenset({ReplayOutcome.HANDLED, ReplayOutcome.DROPPED})
_FREEING = _RELEASING | {ReplayOutcome.MISSING}
"""A dead letter that is gone holds back no later one of its key."""


class ParkedKeys:
    """Hashes of the parked keys, each with the offset of its last dead letter.

    A key is stuck at a dead letter whose replay failed: later ones of the key are not tried before that one was handled
    or dropped, or retention took it. That is stored with the parked keys, for requests outlive the process that answered the first of them.
    """

    def __init__(
        self, parked: Mapping[bytes, int], *, count_max: int, stuck: Mapping[bytes, int]
    ) -> None:
        self._parked = dict(parked)
        self._stuck = dict(stuck)
        self._count_max = count_max
        self._known: dict[Chain, bytes] = {}
        self._coming: set[bytes] = set()  # their first dead letter is being written

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def last_offsets(self) -> Mapping[bytes, int]:
        """By hash of the key: offset of its last dead letter."""
        return self._parked

    @property
    def stuck(self) -> Mapping[bytes, int]:
        """By hash of the key: offset of the dead letter whose replay failed."""
        return self._stuck

    def stick(self, chain: Chain, dead_letter: int) -> None:
        """The replay of this dead letter of a parked key has failed."""
        self._stuck[self.key_hash(chain)] = dead_letter

    def stuck_at(self, chain: Chain) -> int | None:
        """The dead letter whose replay failed; None: none did, or the key is not parked."""
        if not self._stuck or isinstance(chain, int):
            return None
        return self._stuck.get(self.key_hash(chain))

    def stuck_after(
        self, ended: Iterable[Item[R]], parked: Mapping[bytes, int]
    ) -> dict[bytes, int]:
        """The stuck keys when these items' ends have been written, and those in `parked` are parked then."""
        stuck = {key_hash: at for key_hash, at in self._stuck.items() if key_hash in parked}
        for item in ended if stuck else ():
            more = item.more
            if more is None or more.request is None or isinstance(item.chain, int):
                continue
            key_hash = self.key_hash(item.chain)
            if more.end in _FREEING and stuck.get(key_hash) == more.request.dead_letter_offset:
                del stuck[key_hash]
        return stuck

    @property
    def has_room(self) -> bool:
        """True when one more key can be parked."""
        return len(self._parked) + len(self._coming) < self._count_max

    def holds(self, chain: Chain) -> bool:
        """True when the key of `chain` is parked."""
        if not self._parked or isinstance(chain, int):
            return False
        return self.key_hash(chain) in self._parked

    def make_room(self, chain: Chain) -> bool:
        """The key of `chain` will be parked; False when there is no room, and nothing is changed."""
        if isinstance(chain, int):
            return True  # in no order with others: nothing to park
        key_hash = self.key_hash(chain)
        if key_hash not in self._parked and key_hash not in self._coming:
            if not self.has_room:
                return False
            self._coming.add(key_hash)
        return True

    def after(self, ends: Iterable[tuple[Item[R], int]], *, is_parking: bool) -> dict[bytes, int]:
        """The parked keys when these items' ends have been written, each at an offset of its own.

        The end of its last dead letter releases a key. Where the key is stuck at an earlier one, the end of that one does.
        """
        parked = dict(self._parked)
        stuck = dict(self._stuck)
        for item, offset in ends:
            more = item.more
            if more is None or isinstance(item.chain, int):
                continue
            key_hash = self.key_hash(item.chain)
            if more.request is None:
                if is_parking or key_hash in parked:
                    parked[key_hash] = offset
                continue
            offset_of_request = more.request.dead_letter_offset
            if more.end in _FREEING and stuck.get(key_hash) == offset_of_request:
                del stuck[key_hash]
            is_last = parked.get(key_hash, -1) == offset_of_request
            if more.end in _RELEASING and is_last:
                stuck_at = stuck.get(key_hash)
                if stuck_at is None:
                    del parked[key_hash]
                else:
                    parked[key_hash] = stuck_at
        return parked

    def become(self, parked: dict[bytes, int], stuck: dict[bytes, int]) -> None:
        """What `after` and `stuck_after` returned has been stored."""
        self._parked = parked
        self._stuck = stuck
        self._coming -= parked.keys()

    def key_hash(self, chain: Chain) -> bytes:
        """Eight bytes that stand for the key in stored metadata."""
        if not isinstance(chain, bytes):
            return NO_KEY
        known = self._known.get(chain)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[chain] = hash_of_key(chain)
        return known
