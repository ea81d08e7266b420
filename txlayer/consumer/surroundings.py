"""The process around a consumer: clocks, pauses, random numbers and names.

The engine's thread takes the time, waits and draws only through these, so that a simulated world can run the same engine.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass


def draw_name() -> str:
    """A unique name."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The real clocks and pauses by default."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random
    draw_name: Callable[[], str] = draw_name


REAL = Surroundings()
