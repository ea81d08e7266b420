"""How much a Kafka transaction takes after one that took too long, and the search for a refused record."""

PASSES_TO_GROW = 20  # Kafka transactions that must succeed before the size limit doubles again

HALVINGS_MAX = 12


class BatchSize:
    """Halves the size of the next Kafka transactions after one that took too long, until they succeed."""

    def __init__(self) -> None:
        self._halvings = 0
        self._pass_count = 0
        self.is_stuck = False  # True if the smallest ones take too long as well

    def of(self, limit: int) -> int:
        """The part of `limit` that is allowed now, at least one."""
        return max(1, limit >> self._halvings)

    def failed(self) -> None:
        self.is_stuck = self._halvings == HALVINGS_MAX
        self._halvings, self._pass_count = min(self._halvings + 1, HALVINGS_MAX), 0

    def passed(self) -> None:
        if not self._halvings:
            return
        self.is_stuck = False
        self._pass_count += 1
        if self._pass_count >= PASSES_TO_GROW:
            self._halvings, self._pass_count = self._halvings - 1, 0


RELEASE_LINES_MIN = 500
"""So many lines that release scheduled messages are allowed however long a Kafka transaction takes."""
RELEASE_TURN_MS = 300
"""How long a turn with such lines may take: a message of others waits for about two of them, and must not be later than a second."""


class ReleaseLines:
    """How many lines that release scheduled messages may be written and not applied: what one turn of the coordinator has time for."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.count = min(2_000, count_max)

    def took(self, turn_ms: int, *, written_count: int) -> None:
        if turn_ms > RELEASE_TURN_MS:
            self.count = max(self.count * 3 // 4, min(RELEASE_LINES_MIN, self._count_max))
        elif turn_ms < RELEASE_TURN_MS * 3 // 4 and written_count >= self.count // 2:
            self.count = min(self.count * 5 // 4, self._count_max)


class Bisection:
    """Finds the one op line or record whose writes a broker refuses, by halving the number in a Kafka transaction.

    A run of n lines failed: call `failed(n)`. Then `line_count_max` is the number to try; `passed(n)` and `failed(n)` narrow it
    down until a run of one fails. That line's transaction, or that record, is the refused one, and `failed` returns True.
    """

    def __init__(self) -> None:
        self._suspect_count = 0

    @property
    def is_active(self) -> bool:
        return self._suspect_count > 0

    @property
    def line_count_max(self) -> int:
        return max(1, self._suspect_count // 2)

    def failed(self, line_count: int) -> bool:
        """A run of so many lines was refused; True if it was a single one. Any run halves what is allowed: one line may bring many records."""
        if self.is_active:
            line_count = min(line_count, self.line_count_max)
        self._suspect_count = max(line_count, 1)
        return line_count <= 1

    def passed(self, line_count: int) -> None:
        self._suspect_count = max(0, self._suspect_count - line_count)
