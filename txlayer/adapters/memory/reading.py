"""Positions in partitions and what is fetched from there; shared by both readers. Never: a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txlayer.adapters.error_codes import NOT_AUTHORISED_CODES, Code
from txlayer.adapters.memory.broker import Fetched
from txlayer.adapters.memory.link import RETRY_BACKOFF_S, Link
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.adapters.memory.refusal import ClientError, NoAnswerError, RefusedError
from txlayer.adapters.ports import TopicPartition

_TOLD_CODES = NOT_AUTHORISED_CODES | {Code.OFFSET_OUT_OF_RANGE}
"""Answers that become an error among the records; the client keeps the others to itself and asks again."""


class Reading:
    """One client's positions. One thread uses it."""

    __slots__ = (
        "_ended_at",
        "_is_committed",
        "_link",
        "_paused",
        "_positions",
        "_refused",
        "tells_end",
    )

    def __init__(self, link: Link, *, is_committed: bool, tells_end: bool) -> None:
        self._link = link
        self._is_committed = is_committed
        self.tells_end = tells_end
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._ended_at: dict[TopicPartition, int] = {}
        self._refused: set[TopicPartition] = set()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these, and nothing else, from here; none of them is paused."""
        self._positions = dict(positions)
        self._paused.clear()
        self._ended_at.clear()
        self._refused.clear()

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Stop reading these."""
        self._paused.update(places)

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Read these again."""
        self._paused.difference_update(places)

    def read_to(self, place: TopicPartition) -> int:
        """The position in a partition of which nothing is left to read; -1: something is."""
        position, partition = (
            self._positions.get(place, -1),
            self._link.cluster.partitions.get(place),
        )
        if place in self._paused or partition is None:
            return -1
        return position if partition.end(is_committed=self._is_committed) == position else -1

    def is_ready(self) -> bool:
        """True when a fetch would bring something."""
        cluster = self._link.cluster
        cluster.catch_up()
        if not cluster.is_up:
            return False
        partitions, is_committed = cluster.partitions, self._is_committed
        for place, position in self._positions.items():
            if place in self._paused or place in self._refused:
                continue
            partition = partitions.get(place)
            if partition is None:
                continue  # the client waits for the topic without a word
            if place[0] in cluster.denied:
                return True
            if partition.is_led and (
                partition.end(is_committed=is_committed) != position
                or (self.tells_end and self._ended_at.get(place) != position)
            ):
                return True
        return False

    def fetch(self, count_max: int) -> list[MemoryRecord]:
        """Records and what there is to tell; an empty list when nobody answered."""
        link = self._link
        wanted = [
            (place, position)
            for place, position in self._positions.items()
            if place not in self._paused and place not in self._refused
        ]
        if not wanted:
            return []
        # A broker serves the partitions of a request in turn.
        first = link.world.random.randrange(len(wanted))
        wanted = wanted[first:] + wanted[:first]
        try:
            answers = link.ask(
                "Fetch",
                lambda: link.broker.fetch(
                    wanted, count_max=count_max, is_committed=self._is_committed
                ),
            )
        except NoAnswerError:
            link.pause(link.jittered(RETRY_BACKOFF_S))
            return []
        except RefusedError as exc:
            if exc.code not in _TOLD_CODES:
                link.pause(link.jittered(RETRY_BACKOFF_S))
                return []
            place, position = wanted[0]
            answers = [Fetched.refused(place, position, exc.code)]
        return [record for answer in answers for record in self._taken(answer)]

    def _taken(self, answer: Fetched) -> Iterable[MemoryRecord]:
        place = answer.partition
        if answer.refusal is not None:
            self._refused.add(place)
            out_of_range = answer.refusal is Code.OFFSET_OUT_OF_RANGE
            code = Code.LOCAL_AUTO_OFFSET_RESET if out_of_range else answer.refusal
            return [_telling(place, answer.next_position, code)]
        self._positions[place] = answer.next_position
        if (
            self.tells_end
            and answer.is_at_end
            and self._ended_at.get(place) != answer.next_position
        ):
            self._ended_at[place] = answer.next_position
            end = _telling(place, answer.next_position, Code.LOCAL_PARTITION_EOF)
            return [*answer.records, end]
        return answer.records


def _telling(place: TopicPartition, offset: int, code: Code) -> MemoryRecord:
    return MemoryRecord(*place, None, None, None, place=offset, error=ClientError(code))
