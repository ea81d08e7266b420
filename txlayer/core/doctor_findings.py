"""One finding of `txlayer doctor`, and how numbers are written in it. Never a rule."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Level(Enum):
    """How bad it is."""

    ERROR = "error"  #: a promise does not hold, or nothing works; exit code 1
    WARNING = "warning"  #: works today, hurts one day; exit code 1 with --strict
    INFO = "info"  #: could not be found out, or good to know
    OK = "ok"  #: looked at, in order


class Finding(NamedTuple):
    """One line of the table."""

    check: str  # a name that scripts may rely on: area.subject
    level: Level
    about: str  # broker 1, a topic, a group, …
    reason: str
    mend: str = ""  # a command, or what to do; "" where nothing is to be done


def fine(check: str, about: str, reason: str) -> Finding:
    """It was looked at."""
    return Finding(check, Level.OK, about, reason)


def counted(count: int, noun: str) -> str:
    """So many of something: 1 replica, 3 replicas."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def length(ms: int) -> str:
    """A length of time as people write it."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms} ms"
