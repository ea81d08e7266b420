"""A handler that does not come back: what of its chunk has ended, what not, and that what it says later counts for nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from txlayer.consumer.context import Context, Lease, ReceivedMessage
from txlayer.consumer.handlers import HandlerSet
from txlayer.consumer.pools import ATTEMPT_TIMEOUT, Caller, Chunk, JobOutcome, give_up
from txlayer.consumer.process_pool import SentRecord
from txlayer.core.key_queue import Item

TIMEOUT_S = 5.0


def item_at(offset: int, word: bytes = b"") -> Item[Any]:
    """A message."""
    return Item(SentRecord(("orders", 0, offset), None, word, None, (1, 0)), offset, offset, 1)


def words(jobs: Any) -> list[bytes]:
    """What these messages say."""
    return [job.record.value() for job in jobs]


class Table:
    """A worker with a clock that the test moves, and something that happens while a message says `now`."""

    def __init__(self, *said: bytes, meanwhile: Callable[[Table], object]) -> None:
        self.now = 100.0
        self._meanwhile = meanwhile
        handlers = HandlerSet(is_async=False)
        handlers.add(self._handle, topics=(), tags="*", retry=None, batch_count_max=0)
        routes = handlers.routes(("orders",))
        self.caller = Caller(routes, attempt_timeout_s=TIMEOUT_S, clock=lambda: self.now)
        self.seen: list[bytes | None] = []
        jobs = [item_at(offset, word) for offset, word in enumerate(said)]
        self.chunk = Chunk(None, Lease("g", "orders", 0), jobs)
        self.given_up: JobOutcome | None = None

    def _handle(self, message: ReceivedMessage, _context: Context) -> None:
        self.seen.append(message.value)
        if message.value == b"fail":
            raise ValueError("as it says")
        if message.value == b"now":
            self._meanwhile(self)

    def look(self) -> None:
        """As the engine's thread does."""
        self.given_up = give_up(self.chunk, timeout_s=TIMEOUT_S, now=self.now, wall_now=1_000.0, why="too long")


def hang(table: Table) -> None:
    table.now += TIMEOUT_S
    table.look()


def test_of_a_chunk_whose_handler_hangs_each_message_has_its_own_end() -> None:
    table = Table(b"good", b"fail", b"now", b"behind", meanwhile=hang)

    late = table.caller.run(table.chunk)

    given_up = table.given_up
    assert given_up is not None
    assert [b"good"] == words(given_up.done)
    assert [(b"fail", "ValueError"), (b"now", ATTEMPT_TIMEOUT)] == [
        (f.job.record.value(), f.error_type)  # type: ignore[union-attr]  # no batches here
        for f in given_up.failed
    ]
    assert 995_000 == given_up.failed[-1].started_ms
    assert [b"behind"] == words(given_up.not_run)
    assert [b"good", b"fail", b"now"] == table.seen
    assert not table.chunk.end(), "what the worker says now is heard"
    assert [b"good", b"now"] == words(late.done)


def test_before_its_deadline_nobody_is_given_up() -> None:
    def meanwhile(table: Table) -> None:
        table.now += TIMEOUT_S - 0.001
        table.look()

    table = Table(b"now", b"behind", meanwhile=meanwhile)

    outcome = table.caller.run(table.chunk)

    assert table.given_up is None
    assert [b"now", b"behind"] == words(outcome.done)
    assert table.chunk.end()


class Rest(deque[Any]):
    """What has not begun; when the engine's thread begins to take it, the worker does something first."""

    def __init__(self, jobs: Any, first: Callable[[], object]) -> None:
        super().__init__(jobs)
        self._first: list[Callable[[], object]] = [first]

    def pop(self) -> Any:  # type: ignore[override]  # of a deque without an index
        while self._first:
            self._first.pop()()
        return super().pop()


def test_a_worker_that_comes_back_at_this_very_moment_says_how_its_chunk_ended() -> None:
    def meanwhile(table: Table) -> None:
        table.now += TIMEOUT_S
        table.look()

    def come_back() -> None:
        table.chunk.begun_at += TIMEOUT_S

    table = Table(b"now", b"behind", meanwhile=meanwhile)
    table.chunk.turns = Rest(table.chunk.jobs, come_back)

    outcome = table.caller.run(table.chunk)

    assert table.given_up is None
    assert table.chunk.end()
    assert ([b"now"], [b"behind"]) == (words(outcome.done), words(outcome.not_run))


def test_what_a_worker_takes_while_the_rest_is_taken_belongs_to_the_worker() -> None:
    table = Table(b"a", b"b", b"c", b"d", meanwhile=lambda _: None)
    turns = table.chunk.turns = Rest(table.chunk.jobs, lambda: taken.append(turns.popleft()))
    taken = [turns.popleft()]

    rest = table.chunk.take_rest()

    assert ([b"a", b"b"], [b"c", b"d"]) == (words(taken), words(rest))


def test_a_chunk_that_has_not_begun_is_not_given_up() -> None:
    table = Table(b"now", meanwhile=hang)
    table.now += 1_000

    table.look()

    assert table.given_up is None
    assert table.chunk.end()
