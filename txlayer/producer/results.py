"""What a sender gets back when its resolution is acknowledged. Never: whether the messages are visible."""

from __future__ import annotations

from typing import NamedTuple

from txlayer.core.messages import Resolution


class TransactionSendResult(NamedTuple):
    """An acknowledged resolution: the coordinator will act on it, whatever happens to this process.

    Visibility is nobody's promise to the producer; `status` asks the topics.
    """

    txn_id: str
    nonce: str
    resolution: Resolution
    half_partition: int
    """Partition of the half and op records."""
    last_half_offset: int
    """Of the transaction's last half record; `txlayer tx show` finds it by partition and offset."""
    op_offset: int
    """Of the op record that holds the resolution; -1 where the broker's answer was lost and a later one vouched for it."""
