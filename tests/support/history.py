"""What is known of one run, simulated or real, for the one checker of both. Never: how it was found out.

All of it can be had from plain clients: `logs` by reading to the end, `samples` by asking now and then, `witnessed` by a
reader that looks on, the rest from the journals of those who sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.logs import Seen
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.core.messages import Resolution


class Logs(NamedTuple):
    """What was read; `real` with read_committed, the others too."""

    half: Sequence[Seen]
    op: Sequence[Seen]
    doubt: Sequence[Seen]
    real: Sequence[Seen]
    real_partition_counts: Mapping[str, int]


class Sample(NamedTuple):
    """What the coordinators' group had stored at one moment, and where the real topics ended after that."""

    stored: Mapping[TopicPartition, StoredOffset]
    real_ends: Mapping[TopicPartition, int]


@dataclass(slots=True)
class History:
    """One run."""

    logs: Logs
    half_topic: str
    op_topic: str
    partition_count: int
    samples: Sequence[Sample] = ()
    """In the order in which they were taken; the last one is of the end."""
    witnessed: Sequence[Seen] = ()
    """What a `read_committed` reader of the real topics got while it all happened, in its order."""
    ends: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """At the end, {partition: (last stable offset, end)}."""
    acknowledged: Sequence[tuple[str, int, int]] = ()
    """(topic, partition, offset) of half and op records that a producer was told are stored."""
    local: Mapping[str, Resolution] = field(default_factory=dict)
    """{"id/nonce": what the users' databases say} of transactions of which nobody says otherwise in the op log."""
