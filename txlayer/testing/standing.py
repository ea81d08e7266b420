"""Which transactions of a namespace may still become visible: the coordinator's own fold, without taking part. Never a rule."""

from __future__ import annotations

import time
from collections.abc import Iterable

from txlayer.adapters.ports import CoordinatorConnections
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.overview import Overview, Standing
from txlayer.core.messages import txn_id_of
from txlayer.core.transitions import TxnState

AT_REST = frozenset({TxnState.PARKED.value, TxnState.PARKED_COMMITTED.value})
"""Nothing but a person's word moves these."""


def unsettled(config: CoordinatorConfig, connections: CoordinatorConnections) -> list[Standing]:
    """Every transaction that is neither settled nor parked, as the logs say up to their ends of now.

    One that is decided counts until the coordinator has carried it out and stored that.
    """
    return [s for s in Overview(config, connections).standing() if s.state not in AT_REST]


def described(standing: Iterable[Standing]) -> str:
    """Transactions as lines for people, with what each one waits for."""
    return "\n".join(f"  {_line(found)}" for found in standing)


def _line(found: Standing) -> str:
    txn = found.txn
    place = "doubt" if txn.is_in_doubt else f"half {found.partition}:{txn.first_offset}"
    age_s = max(time.time() - txn.appended_ms / 1000, 0)
    topics = ", ".join(topic for topic in txn.topics if topic)
    return (
        f"{txn_id_of(txn.key)}: {found.state}, {_WAITS.get(found.state, 'for the coordinator')}; "
        f"group {txn.group}, {txn.count} messages for {topics}, in {place}, {age_s:.1f} s old"
    )


_WAITS = {
    TxnState.OPEN.value: "nobody said commit or rollback yet",
    TxnState.WAITING.value: "committed, waits for an earlier one of its key",
    TxnState.HELD.value: "committed, and its topic refuses it",
}
