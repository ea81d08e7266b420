"""Requests to replay that were read and wait for room: nothing behind them counts as read before they have ended."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from txlayer.adapters.memory.log import MemoryRecord
from txlayer.consumer.context import Lease
from txlayer.consumer.dead_letters import DeadLetterReader, ResultSearch
from txlayer.consumer.engine import Engine
from txlayer.consumer.handlers import HandlerSet
from txlayer.consumer.ingest import Ingest, ReadLimits
from txlayer.consumer.metrics import TopicCounts
from txlayer.consumer.offsets import OwnedPartition
from txlayer.core.dead_letters import (
    DLQ_HEADER,
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    encode_dead_letter,
    encode_replay,
)
from txlayer.core.key_queue import ItemSource, PartitionQueue, QueueSettings, Start
from txlayer.core.messages import Origin


class Queues:
    """What counts as read, in order; there is room."""

    replay_bytes = replay_count = lowest_replay = 0
    is_paused = needs_requests = is_without_room = had_progress = False

    def __init__(self, *, knows_replays: bool = True) -> None:
        self.reached: list[tuple[ItemSource, int]] = []
        self.knows_replays = knows_replays

    def learn_answered(self, _runs: object) -> None:
        self.knows_replays = True

    def reach(self, source: ItemSource, offset: int) -> None:
        self.reached.append((source, offset))


def empty_queue() -> PartitionQueue[Any]:
    queue = PartitionQueue[Any](topic=Start(0), replays=Start(0), settings=QueueSettings(), now_ms=1_000)
    queue.learn_answered(())
    return queue


def owned_with(queues: object, topic: str = "orders") -> OwnedPartition:
    """The first partition of a topic, of which nothing is read."""
    return OwnedPartition(
        Lease("g", topic, 0),
        cast("Any", queues),
        route=cast("Any", None),
        tally=TopicCounts(),
        chunk_s=1.0,
        next_offsets={(topic, 0): 0, (f"g.{topic}.replay", 0): 0},
    )


def test_markers_behind_waiting_requests_count_as_read_when_these_have_ended() -> None:
    queues = Queues()
    owned = owned_with(queues)
    places = {owned.topic_partition: owned, owned.replay_partition: owned}
    ingest = Ingest(group="g", letters=cast("Any", None), now_ms=lambda: 1_000)
    topic, partition = owned.replay_partition
    ingest.add([MemoryRecord(topic, partition, None, b"garbage", None, (1, 0), log_offset=2)], places)

    ingest.reach({owned.replay_partition: 5}, places)
    assert [] == queues.reached

    ingest.add_waiting([owned], count_max=10, bytes_max=1_000)
    assert [(ItemSource.REPLAY, 3), (ItemSource.REPLAY, 5)] == queues.reached


class Letters:
    """Notes where results are looked for; each search takes so many calls."""

    def __init__(self, *, calls: int = 1) -> None:
        self.looked: list[str] = []
        self._calls = calls

    def look_for_results(self, topic: str, partition: int, search: ResultSearch) -> bool:
        del partition
        self.looked.append(topic)
        search.next_offset += 1
        return search.next_offset >= 2 + self._calls


def lost(ingest: Ingest, *topics: str) -> list[OwnedPartition]:
    """Queues of a group that lost its offsets, each with a result among its waiting requests, at offset 2."""
    found = list[OwnedPartition]()
    for topic in topics:
        owned = owned_with(Queues(knows_replays=False), topic)
        found.append(owned)
        result = encode_replay(ReplayRecord(ReplayKind.RESULT, "a", 7, ReplayOutcome.HANDLED))
        record = MemoryRecord(*owned.replay_partition, None, result, None, (1, 0), log_offset=2)
        ingest.add([record], {owned.replay_partition: owned})
    return found


def test_results_are_looked_for_in_one_queue_at_a_time() -> None:
    """A group that lost its offsets has many queues: leases and the group are served in between."""
    letters = Letters()
    ingest = Ingest(group="g", letters=cast("Any", letters), now_ms=lambda: 1_000)
    found = lost(ingest, "first", "second")

    rounds = []
    for _ in range(3):
        ingest.add_waiting(found, count_max=10, bytes_max=1_000)
        rounds.append((list(letters.looked), [bool(owned.requests) for owned in found]))

    first, second = (owned.replay_partition[0] for owned in found)
    assert [([first], [False, True]), ([first, second], [False, False])] == rounds[:2]
    assert rounds[1] == rounds[2]


@pytest.mark.promise("P9")
def test_results_are_looked_for_also_where_a_fetch_reported_that_all_was_read() -> None:
    """A new leader may report less than there is: the request would be handled again."""
    letters = Letters()
    ingest = Ingest(group="g", letters=cast("Any", letters), now_ms=lambda: 1_000)
    owned = owned_with(Queues(knows_replays=False))
    asked = encode_replay(ReplayRecord(ReplayKind.DROP, "a", 7))
    record = MemoryRecord(*owned.replay_partition, None, asked, None, (1, 0), log_offset=0)
    ingest.add([record], {owned.replay_partition: owned})

    ingest.add_waiting([owned], count_max=10, bytes_max=1_000)

    assert ["g.orders.replay"] == letters.looked


@pytest.mark.promise("P9")
def test_requests_far_behind_the_lowest_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner could not remember all results between them."""
    monkeypatch.setattr("txlayer.consumer.ingest.ANSWERED_COUNT_MAX", 100)
    queues = Queues()
    owned = owned_with(queues)
    ingest = Ingest(group="g", letters=cast("Any", None), now_ms=lambda: 1_000)
    garbage = [MemoryRecord(*owned.replay_partition, None, b"garbage", None, (1, 0), log_offset=n) for n in (99, 100)]
    ingest.add(garbage, {owned.replay_partition: owned})

    ingest.add_waiting([owned], count_max=10, bytes_max=1_000)
    assert 1 == len(owned.requests)

    queues.lowest_replay = 1
    ingest.add_waiting([owned], count_max=10, bytes_max=1_000)
    assert not owned.requests


@pytest.mark.promise("P11")
def test_a_long_search_goes_on_in_the_next_calls_and_the_other_queues_have_their_turns() -> None:
    letters = Letters(calls=2)
    ingest = Ingest(group="g", letters=cast("Any", letters), now_ms=lambda: 1_000)
    found = lost(ingest, "first", "second")

    rounds = []
    for _ in range(5):
        ingest.add_waiting(found, count_max=10, bytes_max=1_000)
        rounds.append((len(letters.looked), [owned.queue.knows_replays for owned in found]))

    first, second = (owned.replay_partition[0] for owned in found)
    assert [first, second, first, second] == letters.looked
    assert [(1, [False, False]), (2, [False, False]), (3, [True, False]), (4, [True, True])] == rounds[:4]
    assert rounds[3] == rounds[4]
    assert [False, False] == [bool(owned.requests) for owned in found]


LARGE = 100_000


class NoLetters:
    """Every dead letter is gone."""

    def fetch(self, _topic: str, _partition: int, offsets: list[int], **_: object) -> dict[int, None]:
        return dict.fromkeys(offsets)


@pytest.mark.fault("consumer: more dead letters are replayed at once than fit into memory")
@pytest.mark.promise("P11")
@pytest.mark.parametrize(
    ("letters", "key", "request_of"),
    [
        # They wait in memory until their answers are written, and their text may be as long as their topic allows.
        (NoLetters(), None, lambda letter: b"1|R|a|%d|" % letter + b"x" * LARGE),
        # The key of each is that of its dead letter.
        (None, b"x" * LARGE, lambda letter: encode_replay(ReplayRecord(ReplayKind.DROP, "a", letter))),
    ],
    ids=["whose dead letters are gone", "with large keys"],
)
def test_requests_count_with_the_bytes_of_their_text_and_of_their_keys(
    letters: Any, key: bytes | None, request_of: Callable[[int], bytes]
) -> None:
    ingest = Ingest(group="g", letters=letters, now_ms=lambda: 1_000)
    queues = empty_queue()
    owned = owned_with(queues)
    place = owned.replay_partition
    records = [MemoryRecord(*place, key, request_of(n), None, (1, 0), log_offset=n) for n in range(1_500)]
    ingest.add(records, {place: owned})

    ingest.add_waiting([owned], count_max=100_000, bytes_max=1_000_000)

    assert LARGE * queues.replay_count <= queues.replay_bytes
    assert 500 == queues.replay_count


class OneLetter:
    """A dead letter of key `k`."""

    def __init__(self, group: str, origin: Origin) -> None:
        letter = DeadLetter(DeadLetterReason.REJECTED, origin, 1, 1, 1, 1, "", "", group)
        headers = [(DLQ_HEADER, encode_dead_letter(letter))]
        self._record = MemoryRecord("g.orders.dlq", 0, b"k", b"", headers, (1, 0), log_offset=7)

    def fetch(self, *_: object, **__: object) -> dict[int, MemoryRecord]:
        return {7: self._record}


@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    ("group", "origin", "key", "expected"),
    [
        ("g", Origin("orders", 0, 3), b"k", None),
        ("other", Origin("orders", 0, 3), b"k", ReplayOutcome.MISSING),
        ("g", Origin("orders", 1, 3), b"k", ReplayOutcome.MISSING),
        ("g", Origin("other", 0, 3), b"k", ReplayOutcome.MISSING),
        ("g", Origin("orders", 0, 3), b"j", ReplayOutcome.MISSING),
        ("g", Origin("orders", 0, 3), None, ReplayOutcome.MISSING),
    ],
)
def test_a_request_under_another_key_than_its_dead_letters_or_about_one_of_others_is_not_handled(
    group: str, origin: Origin, key: bytes | None, expected: ReplayOutcome | None
) -> None:
    """Another program wrote it: under another key it would be handled beside the messages of its dead letter's."""
    ingest = Ingest(group="g", letters=cast("Any", OneLetter(group, origin)), now_ms=lambda: 1_000)
    owned = owned_with(empty_queue())
    handlers = HandlerSet(is_async=False)
    handlers.add(lambda *_: None, topics=(), tags="*", retry=None)
    owned.route = handlers.routes(["orders"])["orders"]
    request = encode_replay(ReplayRecord(ReplayKind.REPLAY, "a", 7))
    record = MemoryRecord(*owned.replay_partition, key, request, None, (1, 0), log_offset=0)
    ingest.add([record], {owned.replay_partition: owned})

    ingest.add_waiting([owned], count_max=10, bytes_max=1_000)

    due = [item.more and item.more.end for item in owned.queue.take_due(10)]
    assert ([] if expected is None else [expected]) == due
    assert (expected is None) == bool(owned.queue.take(10, now_ms=1_000))


class SlowLetters:
    """Each read of dead letters takes a second."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def fetch(self, _topic: str, _partition: int, offsets: list[int], **_: object) -> dict[int, None]:
        self.now_ms += 1_000
        return dict.fromkeys(offsets[:1])


@pytest.mark.promise("P11")
def test_slow_dead_letters_are_read_in_several_calls_and_the_other_queues_have_their_turns() -> None:
    letters, added = SlowLetters(), list[str]()
    ingest = Ingest(group="g", letters=cast("Any", letters), now_ms=lambda: letters.now_ms)
    found = []
    for topic in ("first", "second"):
        queues = Queues()
        queues.add_replay = lambda *_, topic=topic, **__: added.append(topic)  # type: ignore[attr-defined]  # a fake
        owned = owned_with(queues, topic)
        found.append(owned)
        asked = [encode_replay(ReplayRecord(ReplayKind.REPLAY, "a", letter)) for letter in range(3)]
        records = [
            MemoryRecord(*owned.replay_partition, None, value, None, (1, 0), log_offset=n)
            for n, value in enumerate(asked)
        ]
        ingest.add(records, {owned.replay_partition: owned})

    took = []
    for _ in range(6):
        began_ms = letters.now_ms
        ingest.add_waiting(found, count_max=10, bytes_max=1_000)
        took.append(letters.now_ms - began_ms)

    assert [1_000] * 6 == took
    assert ["first", "second"] * 3 == added


class Hiding:
    """An open Kafka transaction hides every dead letter."""

    def start_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: list[Any], *, is_committed: bool = True) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0 if is_committed else 1)


@pytest.mark.promise("P9")
def test_a_pause_does_not_wait_for_a_dead_letter_of_a_request_behind_it_that_is_hidden() -> None:
    letters = DeadLetterReader(cast("Any", Hiding()))
    ingest = Ingest(group="g", letters=letters, now_ms=lambda: 1_000)
    queues = empty_queue()
    owned = owned_with(queues)
    said = [ReplayRecord(ReplayKind.PAUSE, "a", None), ReplayRecord(ReplayKind.REPLAY, "b", 0)]
    values = [encode_replay(each) for each in said]
    records = [MemoryRecord(*owned.replay_partition, None, v, None, (1, 0), log_offset=n) for n, v in enumerate(values)]
    ingest.add(records, {owned.replay_partition: owned})

    ingest.add_waiting([owned], count_max=10, bytes_max=1_000)

    assert (1, 1) == (queues.replay_count, len(owned.requests))


class Endless:
    """A client that always has further messages of the first partition, unless it is paused."""

    def __init__(self) -> None:
        self.read_count = 0
        self.is_paused = False

    def read(self, **_: object) -> list[MemoryRecord]:
        if self.is_paused:
            return []
        self.read_count += 1
        return [MemoryRecord("orders", 0, b"k", bytes(1_000), None, (1, 0), log_offset=self.read_count - 1)]

    def take_reached(self) -> dict[Any, int]:
        return {}

    def pause(self, _partitions: object) -> None:
        self.is_paused = True


@pytest.mark.promise("P11")
def test_what_is_read_of_other_partitions_while_one_is_taken_over_stays_within_the_limit() -> None:
    """The take-over waits until a store is acknowledged, and serves the group meanwhile."""
    reader, owned, handlers = Endless(), owned_with(empty_queue()), HandlerSet(is_async=False)
    handlers.add(lambda *_: None, topics=(), tags="*", retry=None)
    owned.route = handlers.routes(["orders"])["orders"]
    engine: Any = Engine.__new__(Engine)
    engine._reader = reader
    engine._assignments = SimpleNamespace(
        owned={owned.topic_partition: owned}, by_source={owned.topic_partition: owned}, raise_if_rebalanced=lambda: None
    )
    engine._ingest = Ingest(group="g", letters=cast("Any", None), now_ms=lambda: 1_000)
    engine._read_limits = ReadLimits(cast("Any", reader), record_count_max=1_000, record_bytes_max=10_000)

    for _ in range(100):
        engine._serve_take_over()

    assert 10 == owned.queue.count
