"""What a sender gets back when its resolution is acknowledged. Never: whether the messages are visible."""

from __future__ import annotations

from typing import NamedTuple

from txlayer.core.messages import Resolution


class TransactionSendResult(NamedTuple):
    """An acknowledged resolution: what this producer said stands in the op log, whatever happens to this process.

    The first commit or rollback in the op log decides, and another one may have come first: an answer to a check-back, an
    operator's word, that of anybody who may write op. `result(with_decision=True)` reads what was decided. Nor is it visibility.
    """

    txn_id: str
    nonce: str
    resolution: Resolution
    """What this producer said; `decision` may be another."""
    half_partition: int
    """Partition of the half and op records."""
    last_half_offset: int
    """Of the transaction's last half record; `txlayer tx show` finds it by partition and offset."""
    op_offset: int
    """Of the op record that holds the resolution; -1 where the broker's answer was lost and a later one vouched for it."""
    decision: Resolution | None = None
    """What was decided, COMMIT or ROLLBACK, read from the topics; None: not asked for, or UNKNOWN was said and it is not decided yet."""
