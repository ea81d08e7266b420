"""What is known of one run, simulated or real, for the one checker of both. Never: how it was found out.

All of it can be had from plain clients: `logs` by reading to the end, `samples` by asking now and then, `witnessed` by a
reader that looks on, the rest from the journals of those who sent.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.logs import Seen
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.core.checks import CheckPolicies
from txlayer.core.messages import Resolution


class Logs(NamedTuple):
    """What was read; `real` with read_committed, the others too."""

    half: Sequence[Seen]
    op: Sequence[Seen]
    doubt: Sequence[Seen]
    real: Sequence[Seen]
    real_partition_counts: Mapping[str, int]
    check: Sequence[Seen] = ()


class Sample(NamedTuple):
    """What the coordinators' group had stored at one moment, and where the real topics and check ended after that."""

    stored: Mapping[TopicPartition, StoredOffset]
    real_ends: Mapping[TopicPartition, int]


class Absence(NamedTuple):
    """When a producer group had no member for so long that nobody may ask it any more."""

    group: str
    from_ms: int
    until_ms: int


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
    must_end: Collection[str] = ()
    """"id/nonce" of transactions that check-back must have brought to an end: decided, or parked."""
    policies: CheckPolicies | None = None
    """How the groups are asked; None: check-back is not judged."""
    check_topic: str = ""
    absences: Sequence[Absence] = ()
    clock_drift: float = 0.0
    """By how much a coordinator's clock may run faster than the broker's."""
