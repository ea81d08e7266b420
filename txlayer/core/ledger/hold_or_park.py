"""When a committed, complete transaction is held, and when it is parked, at its turn to be forwarded.

Parked elsewhere: one whose half records are incomplete (`Ledger._next_event`), one that is undecided for too long
(`Ledger._give_up`), and one that is held for longer than `held_age_max` (`Ledger.due`). The facts come from elsewhere. Which topics refuse, and since when (`hold_after`): coordinator/targets.py. Which records a broker
refused: coordinator/refusals.py. A held one is tried again when its topics accept.
"""

from collections.abc import Mapping

from txlayer.core.ledger.transaction import UNKNOWN_TARGET, Target, Transaction, records_of, user_size
from txlayer.core.ledger.transitions import TxnEvent
from txlayer.core.messages import ParkReason


def hold_or_park(
    txn: Transaction,
    *,
    targets: Mapping[str, Target],
    refusal: ParkReason | None,
    messages_max: int,
    is_beyond_limit: bool,
) -> tuple[TxnEvent, ParkReason | None]:
    """Go, be held until its topics accept, or be parked for a person, with the reason.

    `refusal`: why a broker refused one of its records. `is_beyond_limit`: it has more bytes than a transaction may have.
    """
    if refusal is not None:
        return TxnEvent.RECORD_REFUSED, refusal
    if txn.count > messages_max or is_beyond_limit:
        return TxnEvent.RECORD_REFUSED, ParkReason.LIMIT
    found = [targets.get(topic, UNKNOWN_TARGET) for topic in txn.topics]
    for target in found:
        if target.refusal is not None and target.is_for_good:
            return TxnEvent.RECORD_REFUSED, target.refusal
    for target in found:
        if (held := target.refusal_of(txn)) is not None:
            return TxnEvent.TARGET_REFUSES, held
    # Only records that cannot fit at all. The broker measures the overhead of our headers and of the batch, and content that was
    # dropped; bisection finds a record that it refuses.
    if any(
        user_size(record) > targets.get(topic, UNKNOWN_TARGET).message_bytes_max for topic, record in records_of(txn)
    ):
        return TxnEvent.RECORD_REFUSED, ParkReason.TOO_LARGE
    return TxnEvent.GO, None
