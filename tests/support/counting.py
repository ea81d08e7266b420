"""A number that counts how often it is compared: what something costs, without a clock."""

from __future__ import annotations

from typing import ClassVar


class CountedInt(int):
    """An int; sums with it are counted ones too."""

    compared: ClassVar[int] = 0

    def __add__(self, other: int) -> CountedInt:
        """A counted one, too."""
        return CountedInt(int(self) + other)

    def __lt__(self, other: object) -> bool:
        """Counted."""
        CountedInt.compared += 1
        return int(self) < other  # type: ignore[operator]  # as int's own

    def __le__(self, other: object) -> bool:
        """Counted."""
        CountedInt.compared += 1
        return int(self) <= other  # type: ignore[operator]  # as int's own

    def __eq__(self, other: object) -> bool:
        """Counted."""
        CountedInt.compared += 1
        return int(self) == other

    __hash__ = int.__hash__
