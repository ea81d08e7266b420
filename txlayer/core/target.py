"""What a ledger must know of real topics. Never asking the broker (coordinator/targets.py does)."""

from __future__ import annotations

from typing import NamedTuple

from txlayer.core.messages import ParkReason

FORWARD_OVERHEAD_BYTES = 512
"""Allowance for headers of ours when a record is held against the limit of doubt, or of its topic before it is measured."""


class Target(NamedTuple):
    """What is known of a real topic. `refusal` None: it accepts; else why not."""

    message_bytes_max: int
    quick_bytes_max: int = -1  # values up to this size are not measured with their key and headers
    refusal: ParkReason | None = None
    is_for_good: bool = False  # True: park at once; False: hold until it is mended


UNKNOWN_TARGET = Target(0, -1, ParkReason.TOPIC_MISSING)


def accepting_target(message_bytes_max: int) -> Target:
    """A topic that exists and may be written."""
    # Half of it is left for key and headers; who needs more is refused by the broker, and found by bisection.
    return Target(message_bytes_max, message_bytes_max // 2 - FORWARD_OVERHEAD_BYTES)
