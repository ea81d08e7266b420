"""What a consumer has of the process around it: clocks, pauses, dice, names. Never a rule, never Kafka.

Everything on the engine's thread that would ask the time, wait or draw does it through these, so that a simulated world
can run the very same engine.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass


def draw_name() -> str:
    """A name that nobody had before."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The real ones, unless told otherwise."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random
    draw_name: Callable[[], str] = draw_name


REAL = Surroundings()
