"""What a producer and the command line expect of whoever reads a transaction's traces: a Protocol. Never code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from txlayer.core.history import TransactionHistory


class HistoryStart(NamedTuple):
    """From where half and op are read for one transaction's history."""

    at_ms: int  # records appended at this time or later
    position: tuple[int, int] | None = None  # instead: half partition and offset, op from its time


class HistoryReader(Protocol):
    """Reads what the topics say about one transaction id."""

    def read(
        self, txn_id: str, *, start: HistoryStart, partitions: Sequence[int] | None = None
    ) -> list[TransactionHistory]:
        """Every nonce of `txn_id` with a record in half or op since `start`, or on doubt; oldest first.

        `partitions` narrows the search where the ordering key is known; None: all.

        Raises:
            TopicMismatchError: the namespace's topics do not exist.
            BrokerUnavailableError, NotAuthorisedError: they cannot be read.
        """
        ...

    def half_places(
        self, partition: int, keys: Collection[str], *, at_ms: int
    ) -> Mapping[str, int]:
        """Key → offset of the transaction's last half record, of those that are there.

        Half is read from records of `at_ms` on; as a whole where that does not find all of them.

        Raises:
            TopicMismatchError, BrokerUnavailableError, NotAuthorisedError: half cannot be read.
        """
        ...
