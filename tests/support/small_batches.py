"""Limits of a batch as after many time-outs, for one ledger."""

from txlayer.core.ledger.batch import BatchSize
from txlayer.core.ledger.ledger import KEY_IN_HALF_MAX


class SmallBatches(BatchSize):
    """One of everything, but `in_half_max` of those that wait in half for one decision."""

    def __init__(self, in_half_max: int) -> None:
        super().__init__()
        self._in_half_max = in_half_max

    def of(self, limit: int) -> int:
        return self._in_half_max if limit == KEY_IN_HALF_MAX else 1
