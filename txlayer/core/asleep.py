"""Open transactions on doubt that nobody has touched since a restart: as the bytes of their summaries.

A restart may find a million of them. Until an op line, a half record or their time names them they need no object: one
costs its key, its summary and some numbers here. Whoever is named or due *wakes*: it becomes a `Transaction` like any
other and never sleeps again. Only the plain sleep: undecided, without reason, ordering key, own immunity or second
copies. So no order between transactions depends on a sleeper.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from itertools import compress
from typing import NamedTuple

from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, pause_after
from txlayer.core.messages import DoubtSummary
from txlayer.core.transaction import Transaction, from_summary

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


class Asleep:
    """The sleepers of one partition, and when their time comes."""

    def __init__(self) -> None:
        self.sleepers: dict[str, bytes] = {}
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
        return len(self.sleepers)

    def fill(self, sleepers: dict[str, bytes], policies: CheckPolicies) -> None:
        """Take over what a restart found."""
        self.sleepers = sleepers
        self.byte_count = sum(map(len, sleepers.values()))
        newest_ms = 0
        topics: set[bytes] = set()
        waiting: dict[bytes, _Waiting] = {}
        policy, current, of_group = policies.default, None, _Waiting([], array("q"), array("q"))
        asked_counts: dict[bytes, int] = {}
        last_names: bytes | None = None
        for key, sleeper in sleepers.items():  # hot path: a million of them
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
        sleeper = self.sleepers.pop(key, None)
        if sleeper is None:
            return None
        self.byte_count -= len(sleeper)
        txn = transaction_of(key, sleeper)
        count, asked_count = self.counts[txn.group]
        self.counts[txn.group] = count - 1, asked_count - (txn.extra().checked_count > 0)
        return txn

    def everybody(self) -> Iterator[Transaction]:
        """All of them as transactions, for whoever only looks: they sleep on."""
        return (transaction_of(key, sleeper) for key, sleeper in self.sleepers.items())

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
            if key in self.sleepers:
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
        found = [k for k in compress(keys, (end <= now_ms for end in end_ms)) if k in self.sleepers]
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
