"""The transactions of one partition that are not settled, by key: a mapping in two tables, for the processor's caches.

Nearly every transaction is settled soon after its half record was read. In one table with a million that stay open each
of them would touch memory that no cache holds, three times: when it comes, is looked up and goes. Beside them, in a table
of their own, they touch it once, to see that they are new.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, ValuesView
from itertools import chain, islice

from txlayer.core.transaction import Transaction

FRESH_COUNT_MAX = 20_000
"""With more the older half of them is no longer fresh; a producer has 5,000 in flight."""


class UnsettledTransactions(MutableMapping[str, Transaction]):
    """In the order in which they came, like a dict. One thread changes it; any may take a `snapshot`.

    Attributes:
        fresh: who came last. Hot paths write into both tables themselves; who is in one is not in the other.
        rest: who came before all of them.
    """

    __slots__ = ("fresh", "rest")

    def __init__(self) -> None:
        self.fresh: dict[str, Transaction] = {}
        self.rest: dict[str, Transaction] = {}

    def keep_fresh_small(self) -> None:
        """Once per batch: let those stay for good who did not go soon."""
        fresh = self.fresh
        if len(fresh) > FRESH_COUNT_MAX:
            rest = self.rest
            for key in list(islice(fresh, len(fresh) - FRESH_COUNT_MAX // 2)):
                rest[key] = fresh[key]  # first there, then gone here: a snapshot misses nobody
                del fresh[key]

    def snapshot(self) -> list[Transaction]:
        """All of them, for another thread. Who is put with the rest meanwhile may be there twice; nobody is missing."""
        # list() of a dict's values is one step for the interpreter: the owner cannot change it in between.
        fresh = list(self.fresh.values())
        return list(self.rest.values()) + fresh

    def get(self, key: str) -> Transaction | None:  # type: ignore[override]  # nobody needs another default
        """The transaction of this key, None without one."""
        return self.fresh.get(key) or self.rest.get(key)

    def values(self) -> ValuesView[Transaction]:
        """All of them, the oldest first; for the owner."""
        return _Values(self)

    def __getitem__(self, key: str) -> Transaction:
        return self.fresh[key] if key in self.fresh else self.rest[key]

    def __setitem__(self, key: str, txn: Transaction) -> None:
        (self.rest if key in self.rest else self.fresh)[key] = txn

    def __delitem__(self, key: str) -> None:
        del (self.fresh if key in self.fresh else self.rest)[key]

    def __contains__(self, key: object) -> bool:
        return key in self.fresh or key in self.rest

    def __iter__(self) -> Iterator[str]:
        return chain(self.rest, self.fresh)

    def __len__(self) -> int:
        return len(self.rest) + len(self.fresh)


class _Values(ValuesView[Transaction]):
    """Without a look-up for each of them."""

    def __init__(self, owner: UnsettledTransactions) -> None:
        super().__init__(owner)
        self._tables = (owner.rest, owner.fresh)

    def __iter__(self) -> Iterator[Transaction]:
        return chain.from_iterable(table.values() for table in self._tables)
