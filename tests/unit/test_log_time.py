"""The time as the log tells it."""

import pytest

from txlayer.coordinator.shard import WINDOW_S, LogTime


class Clock:
    """A machine's own clock, set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seen_ms", "now_ms"),
    [
        ([], 0),
        ([50_000], 51_000),
        ([50_000, 10_000], 51_000),  # a record of a backlog does not turn time back
        ([50_000, 60_000], 60_000),
    ],
)
def test_time_goes_on_from_the_newest_record_that_was_seen(seen_ms: list[int], now_ms: int) -> None:
    clock = Clock()
    time = LogTime(clock)
    for at_ms in seen_ms[:1]:
        time.see(at_ms)
    clock.now += 1
    for at_ms in seen_ms[1:]:
        time.see(at_ms)

    assert now_ms == time.now_ms()


def test_a_long_backlog_stops_time_and_does_not_turn_it_back() -> None:
    clock = Clock()
    time = LogTime(clock)
    time.see(1_000_000)
    clock.now += 1
    told_ms = time.now_ms()

    for _ in range(5):
        clock.now += WINDOW_S
        time.see(10_000)

    assert time.now_ms() >= told_ms


def test_a_fast_clock_of_its_own_machine_is_wrong_by_two_windows_at_most() -> None:
    clock = Clock()
    time = LogTime(clock)
    true_ms = 1_000_000
    gain = 1.1  # a tenth too fast
    for _ in range(3_600):
        true_ms += 1_000
        clock.now += gain
        time.see(true_ms)

    ahead_ms = time.now_ms() - true_ms

    assert 0 <= ahead_ms <= 2 * WINDOW_S * (gain - 1) * 1000 + 1_000
