"""The time as the log tells it."""

from txlayer.coordinator.shard import WINDOW_S, LogTime


class Clock:
    """A machine's own clock, set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nothing_seen_is_no_time() -> None:
    assert 0 == LogTime(Clock()).now_ms()


def test_time_goes_on_from_what_was_seen() -> None:
    clock = Clock()
    time = LogTime(clock)
    time.see(50_000)

    clock.now += 2.5

    assert 52_500 == time.now_ms()


def test_a_record_of_a_backlog_does_not_turn_time_back() -> None:
    clock = Clock()
    time = LogTime(clock)
    time.see(50_000)
    clock.now += 1

    time.see(10_000)

    assert 51_000 == time.now_ms()


def test_a_newer_record_moves_time_forward() -> None:
    clock = Clock()
    time = LogTime(clock)
    time.see(50_000)
    clock.now += 1

    time.see(60_000)

    assert 60_000 == time.now_ms()


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
