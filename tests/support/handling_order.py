"""What processes of one consumer group wrote down, held against the topic: nothing skipped, one key in order, no old token.

A process that lost its partition may not know it yet. So its lines are taken as a table with fencing tokens takes
writes: one with a token below the highest that was seen in its partition is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.support.logs import Seen

Place = tuple[int, int]


class Handled(NamedTuple):
    """One call of a handler that ended, in the order in which they were written down."""

    pid: int
    partition: int
    offset: int
    token: int

    @classmethod
    def parse(cls, line: str) -> Handled:
        """From "PID PARTITION OFFSET TOKEN"."""
        return cls(*map(int, line.split()))


class Handling(NamedTuple):
    """What was found, and counts that show that there was something to judge."""

    findings: list[str]
    handled_count: int
    repeated_count: int
    refused_count: int


def judge_handling(calls: Iterable[Handled], visible: Sequence[Seen]) -> Handling:
    """`visible` is one topic as `read_committed` readers see it, in offset order per partition."""
    keys = {(record.partition, record.offset): record.key for record in visible}
    first: dict[tuple[int, bytes | None], list[int]] = defaultdict(list)
    done: set[Place] = set()
    tokens: dict[int, int] = defaultdict(int)
    findings: list[str] = []
    repeated = refused = 0
    for call in calls:
        place = call.partition, call.offset
        if place not in keys:
            findings.append(f"{call}: no such message")
        elif call.token < tokens[call.partition]:
            refused += 1
        elif place in done:
            repeated += 1
            tokens[call.partition] = call.token
        else:
            tokens[call.partition] = call.token
            done.add(place)
            first[call.partition, keys[place]].append(call.offset)
    findings += [f"{place} was never handled" for place in sorted(keys.keys() - done)]
    findings += [
        f"partition {partition}, key {key!r}: {offset} after {before}"
        for (partition, key), offsets in first.items()
        for before, offset in pairwise(offsets)
        if offset < before
    ]
    return Handling(findings, len(done), repeated, refused)
