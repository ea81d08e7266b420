"""What an operator's replay asks for, and in which order."""

from typing import Any, cast

import pytest

from txlayer.core.dead_letters import ReplayKind
from txlayer.core.progress import hash_of_key
from txlayer.operate.dead_letters import DeadLetterPosition, FoundLetter, QueueStatus
from txlayer.operate.replay import freed_by_retention, requests_for

A = b"customer-7"


class Log:
    """One partition whose key A, or null keys, are stuck at dead letter 0."""

    def __init__(self, *there: int, key: bytes | None = A) -> None:
        self._there = there
        self._key = key

    def queues(self) -> dict[int, QueueStatus]:
        key_hash = hash_of_key(self._key)
        return {0: QueueStatus(False, frozenset({key_hash}), None, {key_hash: 0})}

    def is_gone(self, _partition: int, offset: int) -> bool:
        return offset not in self._there


def chosen(offset: int, key: bytes | None) -> FoundLetter:
    return FoundLetter(DeadLetterPosition("orders", 0, offset), key, 0, cast("Any", None), cast("Any", None))


def asked_for(log: Log, kind: ReplayKind, *, key: bytes | None = A) -> list[tuple[bytes | None, int | None]]:
    letters = [chosen(1, b"other"), chosen(2, key), chosen(3, key)]
    freed = freed_by_retention(cast("Any", {"orders": log}), letters)
    requests = requests_for(letters, freed, kind=kind, request_id="r1", text="")
    return [(request.key, request.record.dead_letter_offset) for request in requests]


@pytest.mark.promise("P9")
def test_one_that_is_gone_and_holds_back_null_keys_is_asked_for_without_a_key() -> None:
    asked = asked_for(Log(1, 2, 3, key=None), ReplayKind.REPLAY, key=None)

    assert [(None, 0), (b"other", 1), (None, 2), (None, 3)] == asked


@pytest.mark.promise("P9")
def test_a_dead_letter_that_is_gone_and_holds_back_its_key_is_asked_for_first() -> None:
    asked = asked_for(Log(1, 2, 3), ReplayKind.REPLAY)

    assert [(b"other", 1), (A, 0), (A, 2), (A, 3)] == asked


def test_one_that_is_there_is_not_asked_for_unasked() -> None:
    asked = asked_for(Log(0, 1, 2, 3), ReplayKind.REPLAY)

    assert [(b"other", 1), (A, 2), (A, 3)] == asked


@pytest.mark.promise("P9")
def test_a_drop_asks_for_one_that_is_gone_first_as_its_key_would_stay_parked_at_it() -> None:
    asked = asked_for(Log(1, 2, 3), ReplayKind.DROP)

    assert [(b"other", 1), (A, 0), (A, 2), (A, 3)] == asked
