"""A queue with its broker's side: what was stored, what was dead-lettered, and restarts from it. No Kafka here."""

import random
from collections.abc import Callable, Iterable, Sequence

from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.key_queue import Failure, Item, ItemSource, PartitionQueue, QueueSettings, Start
from txlayer.core.progress import StoredProgress, decode
from txlayer.core.retry import AfterExhausted, Later, Reject, Retry, RetryPolicy

TOPIC, REPLAY = ItemSource.TOPIC, ItemSource.REPLAY
PARK = RetryPolicy(attempt_count_max=2, after_exhausted=AfterExhausted.PARK)
FAILED = Failure(Retry(), started_ms=1_000)
REJECTED = Failure(Reject("no"), started_ms=1_000)


class QueueStage:
    """A topic, its dead letters and its requests as lists, with one `PartitionQueue` that may be built anew."""

    def __init__(self, keys: Sequence[bytes | None] = (), settings: QueueSettings | None = None) -> None:
        self.settings = settings or QueueSettings()
        self.log: list[bytes | None] = list(keys)  # the topic: a key at each offset
        self.dead_letters: list[tuple[bytes | None, int, DeadLetterReason]] = []  # (key, offset, why)
        self.requests: list[ReplayRecord] = []
        self.expired: set[int] = set()
        self.answers: list[tuple[int | None, ReplayOutcome]] = []
        self.answered: list[int] = []  # the requests that have a result
        self.stored: dict[ItemSource, tuple[int, str]] = {TOPIC: (0, ""), REPLAY: (0, "")}
        self.now_ms = 1_000
        self.restart()

    def known(self, source: ItemSource) -> StoredProgress:
        """What the stored metadata of `source` say."""
        found = decode(*self.stored[source])
        assert isinstance(found, StoredProgress)
        return found

    def restart(self, *, is_reading: bool = True) -> None:
        """The process died: a fresh queue from what is stored, which reads everything again."""
        starts = {s: Start(self.stored[s][0], self.known(s)) for s in ItemSource}
        self.queue: PartitionQueue[str] = PartitionQueue(
            topic=starts[TOPIC], replays=starts[REPLAY], settings=self.settings, now_ms=self.now_ms
        )
        if not starts[REPLAY].stored.tells_ends:
            self.queue.knows_replays = False
            self.queue.learn_answered([(at, at + 1) for at in sorted(self.answered)])
        self._read = {source: start.offset for source, start in starts.items()}
        if is_reading:
            self.read()

    def append(self, *keys: bytes | None) -> None:
        """More records of the topic, read at once."""
        self.log += keys
        self.read()

    def request(self, kind: ReplayKind, dead_letter: int | None = None, *, replaced_by: int | None = None) -> None:
        """A request, read at once."""
        self.requests.append(ReplayRecord(kind, f"r{len(self.requests)}", dead_letter, replaced_by=replaced_by))
        self.read()

    def request_under(self, key: bytes, kind: ReplayKind, dead_letter: int) -> None:
        """A request that another program wrote under a key of its own choice, read at once."""
        offset = len(self.requests)
        self.requests.append(ReplayRecord(kind, f"r{offset}", dead_letter))
        self.queue.add_replay(self.requests[-1], offset=offset, key=key, record="", size_bytes=1)
        self._read[REPLAY] = offset + 1

    def edit(self, dead_letter: int, *, freed: Iterable[int] = ()) -> int:
        """An operator's copy takes the place of this dead letter, behind those that are gone; returns the copy's offset."""
        copy = len(self.dead_letters)
        self.dead_letters.append(self.dead_letters[dead_letter])
        self.request(ReplayKind.DROP, dead_letter, replaced_by=copy)
        for offset in (*freed, copy):
            self.request(ReplayKind.REPLAY, offset)
        return copy

    def expire(self, dead_letter: int) -> None:
        """Retention takes this dead letter."""
        self.expired.add(dead_letter)

    def read(self, count_max: int = 1_000_000) -> None:
        """At most so many records of the topic that were not read yet, and all requests."""
        offsets = range(self._read[TOPIC], min(len(self.log), self._read[TOPIC] + count_max))
        if offsets:
            self.queue.add(
                [str(offset) for offset in offsets],
                offsets=offsets,
                keys=[self.log[offset] for offset in offsets],
                sizes=[1] * len(offsets),
                now_ms=self.now_ms,
            )
            self._read[TOPIC] = offsets[-1] + 1
        self._read_requests()

    def _read_requests(self) -> None:
        for offset in range(self._read[REPLAY], len(self.requests)):
            request = self.requests[offset]
            at = request.dead_letter_offset
            was_there = at is None or at < len(self.dead_letters)
            key = self.dead_letters[at][0] if at is not None and was_there else None
            is_there = was_there and at not in self.expired
            self.queue.add_replay(
                request,
                offset=offset,
                key=key,
                record=f"dead letter {at}",
                size_bytes=1,
                outcome=None if is_there else ReplayOutcome.MISSING,
            )
            self._read[REPLAY] = offset + 1

    def take(self, count_max: int = 1_000) -> list[Item[str]]:
        """What may start now."""
        return self.queue.take(count_max, now_ms=self.now_ms)

    def taken(self, count_max: int = 1_000) -> list[str]:
        """The records of `take`."""
        return records(self.take(count_max))

    def fail(self, item: Item[str], failure: Failure = FAILED) -> None:
        """An attempt failed."""
        self.queue.failed([item], failure, now_ms=self.now_ms, draw=0.5)

    def fail_next(self, failure: Failure = FAILED) -> None:
        """The first of what may start fails, and that is stored."""
        self.fail(self.take()[0], failure)
        self.store()

    def store(self) -> bool:
        """Both offsets are stored; True when one was full."""
        is_full = False
        for source in ItemSource:
            snapshot = self.queue.snapshot(source)
            is_full = is_full or snapshot.is_full
            self.stored[source] = (snapshot.offset, snapshot.metadata)
            self.queue.stored(source, snapshot.version)
        return is_full

    def write_due(self, count_max: int = 1_000) -> list[str]:
        """What is due is written in one Kafka transaction; returns its records."""
        return records(self.write(self.queue.take_due(count_max)))

    def write(self, items: Sequence[Item[str]]) -> Sequence[Item[str]]:
        """These items' ends are written in one Kafka transaction."""
        offsets = []
        answered = [item.offset for item in items if item.is_replay]
        dead_letters, answers = list(self.dead_letters), list(self.answers)
        for item in items:
            assert item.more is not None
            if isinstance(item.more.end, DeadLetterReason):
                offsets.append(len(dead_letters))
                dead_letters.append((self.log[item.offset], item.offset, item.more.end))
            else:
                assert item.more.end is not None
                assert item.more.request is not None
                offsets.append(len(answers))
                answers.append((item.more.request.dead_letter_offset, item.more.end))
        snapshots = self.queue.ending(items, offsets)
        self.dead_letters, self.answers = dead_letters, answers
        self.answered += answered
        self.stored[TOPIC] = (snapshots.topic.offset, snapshots.topic.metadata)
        self.stored[REPLAY] = (snapshots.replays.offset, snapshots.replays.metadata)
        self.queue.written(items, offsets, snapshots)
        return items

    def postpone_some(
        self, items: Sequence[Item[str]], *, otherwise: Callable[[Item[str]], object] | None = None
    ) -> None:
        """Postpone half of them for ten minutes; the others are handled, or what `otherwise` does.

        Between them, what ends takes the most room in the metadata.
        """
        for item in items:
            if random.Random(item.offset).random() < 0.5:
                self.queue.postpone([item], Later(delay_ms=600_000), now_ms=self.now_ms)
            elif otherwise is None:
                self.queue.handled([item])
            else:
                otherwise(item)

    def write_all_due(self) -> None:
        """Write what is due, and what that makes due."""
        while self.queue.has_due:
            self.write_due(500)

    def advance(self, ms: int) -> None:
        """Time passes."""
        self.now_ms += ms


def records(items: Iterable[Item[str]]) -> list[str]:
    """The items' records."""
    return [item.record for item in items]
