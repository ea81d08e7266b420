"""The dead letters of a consumer group, and which of them a list shows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from txlayer.adapters.administration import Administration
from txlayer.adapters.ports import LogReader
from txlayer.consumer.dead_letter_log import DeadLetterLog, FoundLetter, Place, topics_of
from txlayer.consumer.letter_choice import Chosen, LetterFilter
from txlayer.core.dead_letters import original_headers
from txlayer.core.handling import DeadLetter
from txlayer.core.history import split_operator_reason
from txlayer.core.letter_states import ENDED, Said
from txlayer.core.messages import Undecodable
from txlayer.errors import TopicMismatchError
from txlayer.operate import Json
from txlayer.operate.export import bytes_json


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


KIND_WORDS = {"R": "replay", "D": "drop", "P": "pause", "U": "resume", "E": "result"}


def place_json(place: Place) -> Json:
    """Where a dead letter stands."""
    return {
        "letter": str(place),
        "topic": place.topic,
        "partition": place.partition,
        "offset": place.offset,
    }


def chosen_json(chosen: Chosen, *, now_ms: int) -> Json:
    """What is shown of a dead letter before it is asked for."""
    letter = chosen.letter
    return {
        **place_json(chosen.place),
        "state": chosen.history.state.value,
        "age_ms": max(now_ms - chosen.at_ms, 0),
        **_of_letter(letter),
    }


def letter_json(found: FoundLetter, *, now_ms: int, has_key: bool) -> Json:
    """One object of `dlq list --json`."""
    row = {
        **place_json(found.place),
        "state": found.history.state.value,
        "written_ms": found.at_ms,
        "age_ms": max(now_ms - found.at_ms, 0),
        "value_bytes": len(found.record),
        "request_ids": list(found.history.asked),
        "republished_by": list(found.history.copies),
    }
    if has_key:
        row["key"] = bytes_json(found.key)
    letter = found.letter
    if not isinstance(letter, DeadLetter):
        return {**row, "state": "undecodable", "reason": None, "why": letter.why}
    return {**row, **_of_letter(letter)}


def _of_letter(letter: DeadLetter) -> Json:
    return {
        "reason": letter.reason.value,
        "origin": letter.origin._asdict(),
        "origin_ms": letter.origin_ms,
        "attempt_count": letter.attempt_count,
        "first_ms": letter.first_ms or None,
        "last_ms": letter.last_ms or None,
        "error_type": letter.error_type or None,
        "error_message": letter.error_message or None,
    }


def show_json(found: FoundLetter, said: Sequence[Said], *, now_ms: int, has_value: bool) -> Json:
    """What `dlq show --json` prints."""
    row = letter_json(found, now_ms=now_ms, has_key=True)
    row["headers"] = [
        {"name": name, "value": bytes_json(value)}
        for name, value in original_headers(found.record.headers())
    ]
    if has_value:
        row["value"] = bytes_json(found.record.value())
    row["history"] = [said_json(each) for each in said]
    return row


def said_json(said: Said) -> Json:
    """One record of the replay topic."""
    record = said.record
    is_request = record.outcome is None
    operator, text = split_operator_reason(record.text) if is_request else ("", record.text)
    return {
        "offset": said.offset,
        "at_ms": said.at_ms,
        "kind": KIND_WORDS[record.kind.value],
        "request_id": record.request_id,
        "outcome": None if record.outcome is None else record.outcome.value,
        "operator": operator or None,
        "text": text or None,
    }
