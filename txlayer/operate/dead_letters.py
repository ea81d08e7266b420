"""The dead letters of a consumer group, and which of them a list shows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from txlayer.adapters.administration import Administration
from txlayer.adapters.ports import LogReader
from txlayer.consumer.dead_letter_log import DeadLetterLog, FoundLetter, topics_of
from txlayer.consumer.letter_choice import LetterFilter
from txlayer.core.letter_states import ENDED
from txlayer.core.messages import Undecodable
from txlayer.errors import TopicMismatchError


def open_logs(
    admin: Administration,
    group: str,
    topics: Sequence[str] = (),
    *,
    make_reader: Callable[[], LogReader],
) -> dict[str, DeadLetterLog]:
    """{topic: its dead letters}, of these topics, else of all that the group has dead letters of.

    Raises:
        TopicMismatchError: a topic that was named has no dead-letter topic, or the group has none at all.
    """
    found = list(dict.fromkeys(topics)) or topics_of(admin, group)
    if not found:
        raise TopicMismatchError(
            f"group {group} has no dead-letter topic; `txlayer topics apply --group {group} --topic TOPIC` creates "
            "that of a topic",
            topic=f"{group}.TOPIC.dlq", found="none",
        )  # fmt: skip
    logs = {
        topic: DeadLetterLog(admin, group=group, topic=topic, make_reader=make_reader)
        for topic in found
    }
    for log in logs.values():
        log.follow()
    return logs


@dataclass(slots=True)
class Listing:
    """The oldest dead letters that a filter lets through, and how many there are of each kind."""

    letters: list[FoundLetter] = field(default_factory=list)
    listed_count: int = 0  # let through, and open unless all were wanted
    ended_count: int = 0  # let through, but handled or dropped
    undecodable_count: int = 0  # records that are no dead letters of the group


def list_letters(
    logs: Mapping[str, DeadLetterLog], wanted: LetterFilter, *, is_all: bool, limit: int
) -> Listing:
    """The oldest dead letters, the oldest first; those handled or dropped only with `is_all`.

    Raises: as `DeadLetterLog`.
    """
    found = Listing()
    oldest = _Oldest(limit)

    def take(letter: FoundLetter) -> None:
        if isinstance(letter.letter, Undecodable):
            found.undecodable_count += 1
        elif wanted.lets_through(letter):
            if is_all or letter.history.state not in ENDED:
                found.listed_count += 1
                oldest.add(letter)
            else:
                found.ended_count += 1

    for log in logs.values():
        log.each(take, since_ms=wanted.since_ms)
    found.letters = oldest.in_order()
    return found


class _Oldest:
    """The oldest of many, no more than `limit` in memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[int, int, FoundLetter]] = []  # the newest of them first
        self._count = 0

    def add(self, found: FoundLetter) -> None:
        self._count += 1
        entry = (-found.at_ms, -self._count, found)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, entry)
        elif entry[:2] > self._heap[0][:2]:
            heapq.heapreplace(self._heap, entry)

    def in_order(self) -> list[FoundLetter]:
        return [found for _, _, found in sorted(self._heap, key=lambda e: e[:2], reverse=True)]
