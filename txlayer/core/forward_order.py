"""P6: which decided transaction may go now, and who may be tried when another has gone. Never topics, never offsets of op.

With `order="prepare"` a transaction waits for every unsettled one of its ordering key that is earlier in half. With
`order="commit"` it waits for those of its key that were decided earlier and are held, or wait in that order themselves.
A commit-ordered one never waits for a prepare-ordered one that waits, so no two can wait for each other. Parked ones
hold nobody.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from txlayer.core.transaction import OpPosition, Transaction
from txlayer.core.transitions import TxnState

_IN_ORDER = frozenset({TxnState.OPEN, TxnState.WAITING, TxnState.HELD})
_FIRST: OpPosition = (-1, 0)


class ForwardOrder:
    """The unsettled, unparked transactions of each ordering key, in the order of their half records."""

    def __init__(self, transactions: Iterable[Transaction] = ()) -> None:
        self._keys: dict[str, dict[str, Transaction]] = {}
        self._stuck: dict[str, dict[str, Transaction]] = {}
        for txn in sorted(
            (t for t in transactions if t.key_hash is not None), key=lambda t: t.first_offset
        ):
            if txn.state in _IN_ORDER:
                self.add(txn)
                if txn.state is not TxnState.OPEN:
                    self.stuck(txn)

    def add(self, txn: Transaction) -> None:
        """A new transaction; half records come in offset order, so the newest is the last."""
        if txn.key_hash is not None:
            self._keys.setdefault(txn.key_hash, {})[txn.key] = txn

    def put_back(self, txn: Transaction) -> None:
        """A parked transaction that was committed takes its old place again."""
        if txn.key_hash is None:
            return
        others = self._keys.get(txn.key_hash, {})
        others[txn.key] = txn
        self._keys[txn.key_hash] = dict(
            sorted(others.items(), key=lambda item: item[1].first_offset)
        )

    def stuck(self, txn: Transaction) -> None:
        """It is decided and cannot go yet: later ones of its key may have to wait."""
        if txn.key_hash is not None:
            self._stuck.setdefault(txn.key_hash, {})[txn.key] = txn

    def remove(self, txn: Transaction) -> None:
        """Settled or parked: nobody waits for it any more. Try `waiting(key_hash)` next."""
        if txn.key_hash is not None:
            for index in (self._keys, self._stuck):
                others = index.get(txn.key_hash)
                if others is not None:
                    others.pop(txn.key, None)
                    if not others:
                        del index[txn.key_hash]

    def is_free(self, txn: Transaction) -> bool:
        """True when nobody of its key goes first."""
        if txn.key_hash is None:
            return True
        if txn.waits_for_undecided:
            first = next(iter(self._keys.get(txn.key_hash, {})), txn.key)
            return first == txn.key
        mine = _decided_at(txn)
        return not any(
            other is not txn
            and _decided_at(other) < mine
            and (other.state is TxnState.HELD or not other.waits_for_undecided)
            for other in self._stuck.get(txn.key_hash, {}).values()
        )

    def waits_for_doubt(self, txn: Transaction, keeps: Container[str]) -> bool:
        """True when one of its key stands on the doubt topic, or goes there now."""
        others = self._keys.get(txn.key_hash, {}) if txn.key_hash is not None else {}
        return any(
            other is not txn and (other.is_in_doubt or key in keeps)
            for key, other in others.items()
        )

    def waiting(self, key_hash: str | None) -> list[Transaction]:
        """Those of a key that are decided and wait, in the order of their decisions."""
        if key_hash is None:
            return []
        stuck = self._stuck.get(key_hash, {}).values()
        return sorted((t for t in stuck if t.state is TxnState.WAITING), key=_decided_at)


def _decided_at(txn: Transaction) -> OpPosition:
    return (txn.more.decided_at if txn.more is not None else None) or _FIRST
