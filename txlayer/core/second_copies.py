"""How far back half is remembered, so that the second copy of a settled transaction's half record is known for one.

A client may write one batch twice (librdkafka #4953), the second time up to its delivery time-out later. What was settled
by then is known by its key: live from memory, after a restart from the half records that begin transactions between
`copies_from` and the low-water mark. Nothing is folded from there; a key is all that is taken.
"""

from __future__ import annotations

from bisect import bisect_right

DISTANCE_MAX = 20_000
"""Half offsets: a second copy that lies further behind the first one may be taken for new. At the fastest measured, 1,500
transactions a second and partition, 13 s; a client that must ask for a new leader tries again every second."""

DISTANCE_BYTES_MAX = 16 * 1024 * 1024
"""The same in bytes of half records between them: a restart reads so much more of each partition."""

_STEPS = 4
_END = 1 << 62


class HalfMarks:
    """Places in half and how many bytes lie before them, a few per distance."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = [(0, 0)]

    def begin(self, offset: int) -> None:
        """Nothing from before `offset` is known."""
        self._marks = [(offset, 0)]

    def passed(self, offset: int, byte_count: int) -> None:
        """Half was read up to `offset`, so many bytes since `begin`."""
        last_offset, last_bytes = self._marks[-1]
        if (
            offset - last_offset >= DISTANCE_MAX // _STEPS
            or byte_count - last_bytes >= DISTANCE_BYTES_MAX // _STEPS
        ):
            self._marks.append((offset, byte_count))

    def copies_from(self, low_water: int) -> int:
        """Where keys are to be read from for a second copy behind `low_water`: the distance is covered from there."""
        marks = self._marks
        at_low = bisect_right(marks, (low_water, _END)) - 1
        if at_low < 0:
            return low_water
        bytes_before = marks[at_low][1]
        first = at_low
        while first > 0 and not (
            low_water - marks[first][0] >= DISTANCE_MAX
            or bytes_before - marks[first][1] >= DISTANCE_BYTES_MAX
        ):
            first -= 1
        del marks[:first]
        return marks[0][0]
