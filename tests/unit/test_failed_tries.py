"""Pauses of what cannot be done now: one for all that failed, and the longest ago first."""

import pytest

from txlayer.consumer.offsets import PAUSE_FIRST_MS, PAUSE_MAX_MS, FailedTries

TRY_MS = 12_000
PLACES = [("orders", partition) for partition in range(8)]


class Clock:
    """Time that a test lets pass."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def test_one_place_waits_ever_longer_up_to_the_longest_pause() -> None:
    clock = Clock()
    tries = FailedTries(clock)
    waits = []
    for _ in range(12):
        tries.failed(PLACES[0], took_ms=0)
        waits.append(tries.until_ms(PLACES[0]) - clock.now_ms)
        clock.now_ms = tries.until_ms(PLACES[0])

    assert PAUSE_FIRST_MS == waits[0]
    assert waits == sorted(waits)
    assert PAUSE_MAX_MS == waits[-1]


@pytest.mark.promise("P9")
def test_however_many_places_fail_most_of_the_time_is_free_and_each_has_its_turn() -> None:
    clock = Clock()
    tries = FailedTries(clock)
    tried: list[tuple[str, int]] = []
    free_ms = 0
    while len(tried) < 80:
        fresh = [place for place in PLACES if place not in tries and tries.until_ms(place) <= clock.now_ms]
        place = fresh[0] if fresh else tries.first(PLACES)
        if place is None:
            clock.now_ms += 100
            free_ms += 100
            continue
        tried.append(place)
        clock.now_ms += TRY_MS
        tries.failed(place, took_ms=TRY_MS)

    assert free_ms > 3 * 80 * TRY_MS
    for first in range(len(tried) - len(PLACES)):
        assert set(PLACES) == set(tried[first : first + len(PLACES)])


def test_nothing_is_tried_right_after_a_failed_try() -> None:
    clock = Clock()
    tries = FailedTries(clock)
    tries.failed(PLACES[0], took_ms=TRY_MS)

    assert TRY_MS == tries.until_ms(PLACES[1])


def test_when_one_that_failed_succeeds_the_others_may_be_tried_at_once() -> None:
    clock = Clock()
    tries = FailedTries(clock)
    for place in PLACES[:3]:
        tries.failed(place, took_ms=TRY_MS)
    clock.now_ms += TRY_MS
    assert PLACES[0] == tries.first(PLACES)
    tries.passed(PLACES[0])

    assert PLACES[1] == tries.first(PLACES)
    assert PLACES[0] not in tries


def test_places_that_are_nobodys_are_forgotten() -> None:
    tries = FailedTries(Clock())
    tries.failed(PLACES[0], took_ms=0)
    tries.failed(PLACES[1], took_ms=0)
    tries.keep([PLACES[1]])

    assert [False, True] == [place in tries for place in PLACES[:2]]
