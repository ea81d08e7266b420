"""Records as they were read → the queues that they belong to: tags, replays, limits. Never which of them starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from txlayer.adapters.consumer_ports import StoringGroupReader
from txlayer.adapters.ports import Record, TopicPartition
from txlayer.consumer.owned import Owned
from txlayer.core.dead_letters import dead_letter_of, dead_letter_topic, is_cut, original_headers
from txlayer.core.handling import DeadLetter, ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.items import ItemSource
from txlayer.core.messages import Headers, Undecodable
from txlayer.core.replays import decode_replay
from txlayer.errors import RetriableError

logger = logging.getLogger("txlayer.consumer")

LETTER_COUNT_MAX = 500
"""Dead letters that are read again together: all of them are in memory then, as far as their bytes have room."""


class LetterReader(Protocol):
    """Reads dead letters again."""

    def fetch(
        self, topic: str, partition: int, offsets: Sequence[int], *, bytes_max: int | None = None
    ) -> Mapping[int, Record | None]:
        """The records at these offsets, the lowest first, up to `bytes_max`; None where there is none."""
        ...


class LetterRecord:
    """A dead letter as the record that it once was: topic, offset, time and headers are the original's."""

    __slots__ = ("_letter", "_record")

    def __init__(self, record: Any, letter: DeadLetter) -> None:
        self._record = record
        self._letter = letter

    def topic(self) -> str:
        """The topic that it came from."""
        return self._letter.origin.topic

    def partition(self) -> int:
        """Its partition, the same in both topics."""
        return self._letter.origin.partition

    def offset(self) -> int:
        """The offset that it had there."""
        return self._letter.origin.offset

    def key(self) -> bytes | None:
        """Its key."""
        key: bytes | None = self._record.key()
        return key

    def value(self) -> bytes | None:
        """Its value."""
        value: bytes | None = self._record.value()
        return value

    def headers(self) -> Headers:
        """Its headers as it was read the first time."""
        return original_headers(self._record.headers())

    def timestamp(self) -> tuple[int, int]:
        """The original's time."""
        return self._record.timestamp()[0], self._letter.origin_ms

    def __len__(self) -> int:
        return len(self._record)


class Intake:
    """Adds records to queues. Used by the engine's thread."""

    def __init__(self, *, group: str, letters: LetterReader, now_ms: Callable[[], int]) -> None:
        self._group = group
        self._letters = letters
        self._now_ms = now_ms

    def add(self, records: Sequence[Any], owned: Mapping[TopicPartition, Owned]) -> None:
        """Records of any of these queues' sources, in the order of their offsets; others are dropped.

        Raises:
            RetriableError: records came that others had overtaken; added now they would count as ended.
            TxLayerError: dead letters that are to be handled again could not be read.
                After either the queues are of no more use.
        """
        groups: dict[TopicPartition, list[Any]] = {}
        topic, partition, group = "", -1, []
        for record in records:
            if record.partition() != partition or record.topic() != topic:
                topic, partition = record.topic(), record.partition()
                group = groups.setdefault((topic, partition), [])
            group.append(record)
        for place, found in groups.items():
            queue = owned.get(place)
            if queue is None:
                continue  # revoked, or lost, while it was on its way
            _check_order(found, place, next_offset=queue.next_offsets[place])
            queue.next_offsets[place] = found[-1].offset() + 1
            if place == queue.place:
                self._add_messages(queue, found)
            else:
                queue.requests.extend((record, decode_replay(record.value())) for record in found)
                queue.reached = 0

    def reach(
        self, reached: Mapping[TopicPartition, int], owned: Mapping[TopicPartition, Owned]
    ) -> None:
        """All that lies below was read, in the assignment that these queues belong to: what was not told of were markers.

        The stored offset passes them. Otherwise retention could empty the partition and leave it below the log's start,
        as if messages had been lost.
        """
        for place, position in reached.items():
            queue = owned.get(place)
            if queue is not None and position > queue.next_offsets[place]:
                queue.next_offsets[place] = position
                if place == queue.place:
                    queue.queues.reach(ItemSource.TOPIC, position)
                elif queue.requests:
                    queue.reached = position  # what waits before it has no end
                else:
                    queue.queues.reach(ItemSource.REPLAY, position)

    def add_waiting(self, queues: Iterable[Owned], *, count_max: int, bytes_max: int) -> None:
        """Add the requests that were read while there is room for their dead letters: so many of each queue, and so many bytes.

        While an operator's pause lasts there is no limit: nothing is handled, and the request that ends it may stand behind them.
        When no more keys can be parked they are read on until one of them can make room.

        Raises:
            TxLayerError: dead letters could not be read; the queues are of no more use.
        """
        for owned in queues:
            queue = owned.queues
            while owned.requests:
                room_bytes = bytes_max - queue.replay_bytes
                has_room = room_bytes > 0 and queue.replay_count < count_max
                if not (has_room or queue.is_paused or queue.needs_requests):
                    break
                self._add_requests(owned, bytes_max=room_bytes if has_room else bytes_max)
                if not owned.requests and owned.reached > 0:
                    queue.reach(ItemSource.REPLAY, owned.reached)
                    owned.reached = 0

    def _add_messages(self, owned: Owned, records: list[Any]) -> None:
        last = records[-1].offset()
        route = owned.route
        if route.only is None:
            wanted = [record for record in records if route.handler_of(record) is not None]
            owned.tally.passed_over += len(records) - len(wanted)
            records = wanted
        keys = [record.key() for record in records]
        owned.queues.add(
            records,
            offsets=[record.offset() for record in records],
            keys=keys,
            sizes=[
                len(record) + len(key) if key else len(record)
                for record, key in zip(records, keys, strict=True)
            ],
            now_ms=self._now_ms(),
        )
        if not records or records[-1].offset() != last:
            owned.queues.reach(ItemSource.TOPIC, last + 1)  # whatever nobody asked for has its end

    def _add_requests(self, owned: Owned, *, bytes_max: int) -> None:
        """The first of those that wait, and those behind it whose dead letters fit."""
        part = list(islice(owned.requests, LETTER_COUNT_MAX))
        topic = dead_letter_topic(self._group, owned.topic)
        wanted = sorted(
            {offset for _, request in part if (offset := _letter_at(request)) is not None}
        )
        letters: Mapping[int, Record | None] = {}
        if wanted:
            letters = self._letters.fetch(topic, owned.partition, wanted, bytes_max=bytes_max)
        for place, (record, request) in enumerate(part):
            offset = _letter_at(request)
            if offset is not None and offset not in letters:
                if place:
                    return
                letters = self._letters.fetch(topic, owned.partition, [offset])
            owned.requests.popleft()
            self._add_request(owned, record, request, letters)

    def _add_request(
        self,
        owned: Owned,
        record: Any,
        request: ReplayRecord | Undecodable,
        letters: Mapping[int, Record | None],
    ) -> None:
        offset = record.offset()
        if isinstance(request, Undecodable):
            # Nobody can be told: it names no request.
            logger.warning(
                "replay.undecodable",
                extra={"topic": owned.topic, "partition": owned.partition, "offset": offset,
                       "reason": request.why},
            )  # fmt: skip
        elif request.kind is not ReplayKind.RESULT:
            content: Any = record
            outcome: ReplayOutcome | None = None
            if request.kind is ReplayKind.REPLAY:
                content, outcome = self._letter(owned, request, letters)
            owned.queues.add_replay(
                request,
                offset=offset,
                key=record.key(),
                record=record if content is None else content,
                size_bytes=0 if content is None else len(content),
                outcome=outcome,
            )
            return
        owned.queues.reach(ItemSource.REPLAY, offset + 1)

    def _letter(
        self, owned: Owned, request: ReplayRecord, letters: Mapping[int, Record | None]
    ) -> tuple[LetterRecord | None, ReplayOutcome | None]:
        found = letters.get(request.dead_letter_offset or 0)
        letter = None if found is None else dead_letter_of(found.headers())
        if (
            found is None
            or not isinstance(letter, DeadLetter)
            or is_cut(found.headers(), found.value())
        ):
            return None, ReplayOutcome.MISSING
        if letter.consumer_group != self._group or letter.origin[:2] != owned.place:
            return None, ReplayOutcome.MISSING  # another group's topic has the form of ours
        content = LetterRecord(found, letter)
        if owned.route.handler_of(content) is None:
            return None, ReplayOutcome.UNKNOWN
        return content, None


def _letter_at(request: ReplayRecord | Undecodable) -> int | None:
    """The dead letter that must be read for a request."""
    if isinstance(request, Undecodable) or request.kind is not ReplayKind.REPLAY:
        return None
    return request.dead_letter_offset


def _check_order(records: Sequence[Any], place: TopicPartition, *, next_offset: int) -> None:
    first = records[0].offset()
    if first < next_offset:
        raise RetriableError(
            f"{place[0]}-{place[1]} was read at {first} after everything before {next_offset}: begin anew from what is stored"
        )


class ReadLimits:
    """Pauses partitions whose share of the memory is used up, and reads them again below half of it."""

    def __init__(
        self, reader: StoringGroupReader, *, record_count_max: int, record_bytes_max: int
    ) -> None:
        self._reader = reader
        self._count_max = record_count_max
        self._bytes_max = record_bytes_max

    def share(self, queue_count: int) -> tuple[int, int]:
        """(records, bytes) of each queue: equal, so that one that is stuck leaves the others theirs; as much for its replays."""
        count = max(queue_count, 1)
        return max(self._count_max // count, 1), max(self._bytes_max // count, 1)

    def apply(self, queues: Iterable[Owned]) -> None:
        """Look at every queue."""
        found = list(queues)
        count_max, bytes_max = self.share(len(found))
        for owned in found:
            if owned.is_replay_paused != bool(owned.requests):
                owned.is_replay_paused = bool(owned.requests)
                change = self._reader.pause if owned.is_replay_paused else self._reader.resume
                change([owned.replay_place])
            count = owned.queues.count - owned.queues.replay_count
            size_bytes = owned.queues.size_bytes - owned.queues.replay_bytes
            if owned.is_reading_paused:
                if count * 2 <= count_max and size_bytes * 2 <= bytes_max:
                    owned.is_reading_paused = False
                    self._reader.resume([owned.place])
            elif count >= count_max or size_bytes >= bytes_max:
                owned.is_reading_paused = True
                self._reader.pause([owned.place])
