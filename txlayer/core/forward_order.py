"""P6: which decided transaction may go now, and who may be tried when another has gone. Never topics, never offsets of op.

With `order="prepare"` a transaction waits for every unsettled one of its ordering key that is earlier in half. With
`order="commit"` it waits for those of its key that were decided earlier and are held, or wait in that order themselves.
A commit-ordered one never waits for a prepare-ordered one that waits, so no two can wait for each other. Parked ones
hold nobody. Of those that may go the first decided one goes first.

One key may have a hundred thousand transactions: nothing here looks through all of them to let one go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from txlayer.core.transaction import OpPosition, Transaction
from txlayer.core.transitions import TxnState

_IN_ORDER = frozenset({TxnState.OPEN, TxnState.WAITING, TxnState.HELD})
_FIRST: OpPosition = (-1, 0)
_GAPS_MAX = 1024

_Index = dict[str, dict[str, Transaction]]


class ForwardOrder:
    """The unsettled, unparked transactions of each ordering key, in the order of their half records.

    `transactions` are all that are not settled, now and later: nobody but one with order="prepare" waits for undecided
    ones, so these are looked for when the first such one comes, and indexed from then on. None: a replay, which knows no
    more than it is told by `add`.
    """

    def __init__(self, transactions: Collection[Transaction] | None = None) -> None:
        self._transactions = () if transactions is None else transactions
        self._keys: _Index | None = {} if transactions is None else None
        self._prepared: _Index = {}  # those with order="prepare"
        self._stuck: _Index = {}  # who stops commit-ordered ones, in the order of the decisions
        self._on_doubt: set[str] = set()
        self._on_doubt_counts: dict[str, int] = {}
        found = self._in_order()
        for txn in found:
            self.add(txn)
            if txn.is_in_doubt:
                self.goes_to_doubt(txn)
        for txn in sorted(found, key=_decided_at):
            if txn.state is not TxnState.OPEN:
                self.stuck(txn)

    def _in_order(self) -> list[Transaction]:
        found = [t for t in self._transactions if t.key_hash is not None and t.state in _IN_ORDER]
        return sorted(found, key=lambda t: t.first_offset)

    def _index(self) -> _Index:
        """All of them by key, also those that are undecided."""
        if self._keys is None:
            self._keys = {}
            for txn in self._in_order():
                _put(self._keys, txn)
        return self._keys

    @property
    def wants_all(self) -> bool:
        """True when `add` must be told of transactions with order="commit", too."""
        return self._keys is not None

    def add(self, txn: Transaction) -> None:
        """A new transaction; half records come in offset order, so the newest is the last."""
        if txn.waits_for_undecided:
            _put(self._index(), txn)
            _put(self._prepared, txn)
        elif self._keys is not None:
            _put(self._keys, txn)

    def put_back(self, txn: Transaction) -> None:
        """A parked transaction that was committed takes its old place again."""
        self.add(txn)
        if self._keys is not None and txn.key_hash is not None:
            _sort(self._keys[txn.key_hash], by=lambda t: t.first_offset)

    def goes_to_doubt(self, txn: Transaction) -> bool:
        """It stands on the doubt topic, or will with the next batch; True when it is the first of its key there."""
        key_hash = txn.key_hash
        if key_hash is None or txn.key in self._on_doubt or txn.state not in _IN_ORDER:
            return False
        self._on_doubt.add(txn.key)
        self._on_doubt_counts[key_hash] = count = self._on_doubt_counts.get(key_hash, 0) + 1
        return count == 1

    def stuck(self, txn: Transaction) -> None:
        """It is decided and cannot go yet: later ones of its key may have to wait."""
        if txn.key_hash is None:
            return
        if txn.state is TxnState.WAITING and txn.waits_for_undecided:
            _drop(self._stuck, txn)  # nobody waits for it, as long as it waits itself
            return
        others = self._stuck.setdefault(txn.key_hash, {})
        last = next(reversed(others.values()), txn)
        others[txn.key] = txn
        if _decided_at(last) > _decided_at(txn):
            _sort(others, by=_decided_at)

    def remove(self, txn: Transaction) -> None:
        """Settled or parked: nobody waits for it any more. Try `next_free(key_hash)`."""
        if txn.key_hash is None:
            return
        if self._keys is not None:
            _drop(self._keys, txn)
        _drop(self._prepared, txn)
        _drop(self._stuck, txn)
        if txn.key in self._on_doubt:
            self._on_doubt.discard(txn.key)
            self._on_doubt_counts[txn.key_hash] -= 1
            if not self._on_doubt_counts[txn.key_hash]:
                del self._on_doubt_counts[txn.key_hash]

    def passes(self, txn: Transaction) -> bool:
        """True when one that was decided just now may go, and no other may go because it goes; then it is removed.

        For a transaction that neither stood on doubt nor waited: so do nearly all, and this takes a tenth of `is_free`,
        `remove` and `next_free`.
        """
        # Those that could stop it are stuck. Those that it could stop are stuck as well, or have order="prepare".
        key_hash = txn.options.key_hash
        if key_hash in self._stuck or key_hash in self._prepared:
            return False
        if self._keys is not None:
            _drop(self._keys, txn)
        return True

    def is_free(self, txn: Transaction) -> bool:
        """True when nobody of its key goes first."""
        if txn.key_hash is None:
            return True
        if txn.waits_for_undecided:
            return txn is _first(self._index(), txn.key_hash)
        first = _first(self._stuck, txn.key_hash)
        return first is None or first is txn or _decided_at(first) > _decided_at(txn)

    def next_free(self, key_hash: str) -> Transaction | None:
        """Who of a key waits and may go now; of several the one that was decided first."""
        # At most two: the first in half, and the first of those that stop commit-ordered ones.
        firsts = _first(self._keys or {}, key_hash), _first(self._stuck, key_hash)
        free = [
            txn
            for txn in firsts
            if txn is not None and txn.state is TxnState.WAITING and self.is_free(txn)
        ]
        return min(free, key=_decided_at, default=None)

    def is_on_doubt(self, key_hash: str | None) -> bool:
        """True when one of a key stands on the doubt topic, or goes there now: then all that wait stand there too."""
        return key_hash in self._on_doubt_counts

    def count(self, key_hash: str | None) -> int:
        """How many of a key wait, are held, or have order="prepare"; who is two of this may count twice."""
        if key_hash is None:
            return 0
        return len(self._stuck.get(key_hash, ())) + len(self._prepared.get(key_hash, ()))

    def waiting(self, key_hash: str | None) -> list[Transaction]:
        """Those of a key that are decided and wait, in the order of their half records."""
        if key_hash is None:
            return []
        # Each once: one with order="prepare" that was held may be among the stuck, too.
        others = {**self._prepared.get(key_hash, {}), **self._stuck.get(key_hash, {})}
        found = [txn for txn in others.values() if txn.state is TxnState.WAITING]
        return sorted(found, key=lambda t: t.first_offset)


def _first(index: _Index, key_hash: str) -> Transaction | None:
    return next(iter(index.get(key_hash, {}).values()), None)


def _put(index: _Index, txn: Transaction) -> None:
    if (key_hash := txn.key_hash) is not None:
        index.setdefault(key_hash, {})[txn.key] = txn


def _drop(index: _Index, txn: Transaction) -> None:
    key_hash = txn.key_hash or ""
    others = index.get(key_hash)
    if others is None or others.pop(txn.key, None) is None:
        return
    if not others:
        del index[key_hash]
    elif len(others) % _GAPS_MAX == 0:
        # Where many first entries are gone, a dict is slow to look into from its front: a fresh one is not.
        index[key_hash] = dict(others)


def _sort(others: dict[str, Transaction], *, by: Callable[[Transaction], OpPosition | int]) -> None:
    in_order = sorted(others.items(), key=lambda item: by(item[1]))
    others.clear()
    others.update(in_order)


def _decided_at(txn: Transaction) -> OpPosition:
    return (txn.more.decided_at if txn.more is not None else None) or _FIRST
