"""A breaker by itself, and a database that is away for an hour of virtual time: with a breaker no message becomes a dead letter, without one all do."""

import logging
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_take_over_reading import EARLY, LATE, World
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.consumer.handlers import HandlerSet
from txlayer.core.messages import TAGS_HEADER
from txlayer.core.retry import SLICE_COUNT, Breaker, BreakerPolicy, BreakerState, Later, RetryPolicy
from txlayer.errors import ConfigError

KEY_COUNT = 30
MESSAGES = [(f"k{n}", value) for value in ("first", "second") for n in range(KEY_COUNT)]
OUTAGE_S = 3_600.0
BREAKER = BreakerPolicy(attempt_count_min=10, window=timedelta(seconds=10), probe_interval=timedelta(seconds=10))


class Outage(World):
    """A consumer of two topics whose handler needs a database, which is away at first."""

    def __init__(
        self,
        breakers: dict[str, BreakerPolicy],
        *,
        poison: str = "",
        of_handler: BreakerPolicy | None = None,
        answer: Later | None = None,
        **settings: Any,
    ) -> None:
        self.is_away = True
        self.calls: Counter[tuple[str, str]] = Counter()
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.done: dict[str, list[str]] = defaultdict(list)
        self._poison = poison
        self._answer = answer  # instead of an exception
        self.in_flight_counts: set[int] = set()
        handlers = HandlerSet(is_async=False)
        handlers.add(self._handle, topics=(), tags="booked", retry=None, breaker=of_handler)
        handlers.add(self._handle_other, topics=(), tags="*", retry=None)
        super().__init__(routes=handlers.routes([EARLY[0], LATE[0]]), breakers=breakers, **settings)
        for key, value in MESSAGES:
            self.kafka.append(EARLY[0], value.encode(), key=key.encode(), headers=((TAGS_HEADER, b"booked"),))
        self.engine.start()
        self.leases.gained = {EARLY: 1, LATE: 1}

    def _handle(self, message: ReceivedMessage, context: Context) -> Later | None:
        key, value = (message.raw_key or b"").decode(), (message.raw_value or b"").decode()
        self.calls[key, value] += 1
        self.in_flight_counts.add(self.engine._dispatcher.in_flight_count)
        self.attempts[key, value] = context.attempt
        if (self.is_away and message.topic == EARLY[0]) or key == self._poison:
            if self._answer is not None:
                return self._answer
            raise ConnectionError("the database is away")
        self.done[key].append(value)
        return None

    def _handle_other(self, message: ReceivedMessage, _context: Context) -> None:
        self.in_flight_counts.add(self.engine._dispatcher.in_flight_count)
        self.done[(message.raw_key or b"").decode()].append((message.raw_value or b"").decode())

    def pass_time(self, seconds: float) -> None:
        """The engine works for so long; it looks every half second, through twenty minutes every two, through an hour every four seconds."""
        pause_ms = 500 if seconds < 1_200 else 2_000 if seconds < OUTAGE_S else 4_000
        until = self.world.passed_s + seconds
        while self.world.passed_s < until:
            self.engine.turn()
            self.world.advance(ms=pause_ms)

    @property
    def figures(self) -> tuple[int, int]:
        """(messages handled, dead letters)."""
        found = self.engine.stats().topics[EARLY[0]]
        return found.handled, found.dead_lettered


@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: what a handler needs is away for an hour")
def test_an_hour_without_the_database_makes_no_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage({EARLY[0]: BREAKER})
    with caplog.at_level(logging.WARNING, "txlayer.consumer"):
        outage.pass_time(OUTAGE_S)
        assert (0, 0) == outage.figures
        found = outage.engine.stats().topics[EARLY[0]]
        assert (True, 1) == (found.breaker_is_open, found.breaker_opened)
        outage.is_away = False
        outage.pass_time(60)

    assert (len(MESSAGES), 0) == outage.figures
    assert {f"k{n}": ["first", "second"] for n in range(KEY_COUNT)} == outage.done
    assert max(outage.attempts.values()) <= 2
    assert sum(outage.calls.values()) <= len(MESSAGES) + BREAKER.attempt_count_min * 2 + OUTAGE_S / 10
    events = [record.getMessage() for record in caplog.records if record.getMessage().startswith("breaker.")]
    assert ["breaker.opened", "breaker.closed"] == events
    assert "closed" == outage.engine.stats().topics[EARLY[0]].breaker


@pytest.mark.slow
def test_without_a_breaker_an_hour_makes_dead_letters_of_all() -> None:
    outage = Outage({})
    outage.pass_time(OUTAGE_S)

    assert (0, KEY_COUNT) == (outage.figures[0], min(outage.figures[1], KEY_COUNT))


@pytest.mark.promise("P11")
def test_a_partition_that_each_of_many_messages_suspends_is_suspended_for_so_long_in_all() -> None:
    suspended = Later(timedelta(minutes=2), is_of_partition=True)
    outage = Outage({}, policy=RetryPolicy(later_max=timedelta(minutes=20)), answer=suspended)

    outage.pass_time(1_190)
    assert 0 == outage.engine.stats().topics[EARLY[0]].failed
    outage.pass_time(20)
    assert 0 < outage.engine.stats().topics[EARLY[0]].failed


def test_the_other_topic_goes_on() -> None:
    outage = Outage({EARLY[0]: BREAKER, LATE[0]: BREAKER})
    outage.pass_time(60)
    outage.kafka.append(LATE[0], b"other", key=b"other")
    outage.pass_time(5)

    assert ["other"] == outage.done["other"]
    assert [True, False] == [outage.engine.stats().topics[t].breaker_is_open for t in (EARLY[0], LATE[0])]


def test_a_breaker_of_a_topic_whose_partitions_went_to_others_is_not_shown_as_open() -> None:
    outage = Outage({EARLY[0]: BREAKER})
    outage.pass_time(60)
    assert outage.engine.stats().topics[EARLY[0]].breaker_is_open
    outage.engine._assignments.revoke()

    found = outage.engine.stats().topics[EARLY[0]]
    assert ("", False, 1) == (found.breaker, found.breaker_is_open, found.breaker_opened)


def test_a_message_that_always_fails_does_not_keep_it_open() -> None:
    outage = Outage({EARLY[0]: BREAKER}, poison="k0")
    outage.pass_time(120)
    outage.is_away = False
    outage.pass_time(120)

    assert 2 * (KEY_COUNT - 1) == outage.figures[0]
    assert not outage.engine.stats().topics[EARLY[0]].breaker_is_open
    outage.pass_time(2 * 3_600)
    assert (2 * (KEY_COUNT - 1), 2) == outage.figures


@pytest.mark.promise("P9")
def test_an_outage_of_what_one_handler_needs_stops_no_other_handler_of_its_topic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = Outage({}, of_handler=BREAKER)
    with caplog.at_level(logging.WARNING, "txlayer.consumer"):
        outage.pass_time(60)
        calls = sum(outage.calls.values())
        for n in range(KEY_COUNT):
            outage.kafka.append(EARLY[0], b"third", key=b"other%d" % n)
        # Behind a message of its key that waits, it waits too.
        outage.kafka.append(EARLY[0], b"third", key=b"k0")
        outage.pass_time(1)
        assert {f"other{n}": ["third"] for n in range(KEY_COUNT)} == outage.done
        found = outage.engine.stats().topics[EARLY[0]]
        assert ("open", True, 1, 0) == (found.breaker, found.breaker_is_open, found.breaker_opened, found.dead_lettered)
        tried_count = sum(key.startswith("k") for key, _ in outage.calls)
        assert (tried_count, len(MESSAGES) + 1) == (found.retrying, found.waiting), (
            "what was never tried waits for no retry"
        )
        assert {EARLY: "breaker open: Outage._handle", LATE: "breaker open: Outage._handle"} == outage.leases.remarks
        outage.pass_time(OUTAGE_S)
        assert OUTAGE_S / 10 + 10 >= sum(outage.calls.values()) - calls
        outage.is_away = False
        outage.pass_time(60)

    assert {f"k{n}": ["first", "second"] + ["third"] * (not n) for n in range(KEY_COUNT)} == {
        key: values for key, values in outage.done.items() if key.startswith("k")
    }
    assert {""} == set(outage.leases.remarks.values())
    assert (0, "closed") == (outage.figures[1], outage.engine.stats().topics[EARLY[0]].breaker)
    assert max(outage.attempts.values()) <= 2
    opened, closed = (record for record in caplog.records if record.getMessage().startswith("breaker."))
    assert [("breaker.opened", "Outage._handle"), ("breaker.closed", "Outage._handle")] == [
        (record.getMessage(), vars(record)["handler"]) for record in (opened, closed)
    ]


@pytest.mark.promise("P11")
def test_a_probe_is_in_flight_as_any_other_message() -> None:
    outage = Outage({}, of_handler=BREAKER, in_flight_max=1)
    outage.pass_time(60)
    for n in range(100):
        outage.kafka.append(EARLY[0], b"third", key=b"other%d" % n)
        outage.pass_time(0.5)
    outage.pass_time(20)

    assert (100, {1}) == (len(outage.done), outage.in_flight_counts)


@pytest.mark.parametrize("is_of_handler", [False, True])
def test_each_probe_is_another_message(*, is_of_handler: bool) -> None:
    breaker = replace(BREAKER, attempt_count_min=KEY_COUNT)
    outage = Outage({} if is_of_handler else {EARLY[0]: breaker}, of_handler=breaker if is_of_handler else None)
    outage.pass_time(KEY_COUNT * 3 * 10)

    assert KEY_COUNT == len(outage.calls)
    assert max(outage.calls.values()) <= min(outage.calls.values()) + 2


@pytest.mark.parametrize("is_of_handler", [False, True])
def test_what_waits_begins_at_once_when_a_probe_succeeds(*, is_of_handler: bool) -> None:
    breaker = replace(BREAKER, probe_interval=timedelta(minutes=20))
    outage = Outage({} if is_of_handler else {EARLY[0]: breaker}, of_handler=breaker if is_of_handler else None)
    outage.pass_time(60)
    outage.is_away = False
    outage.pass_time(1_200)

    assert (len(MESSAGES), 0) == outage.figures


def test_a_handler_of_several_topics_has_one_breaker_instead_of_theirs() -> None:
    outage = Outage({EARLY[0]: replace(BREAKER, attempt_count_min=1_000)}, of_handler=BREAKER, poison="k1")
    outage.pass_time(60)
    outage.kafka.append(LATE[0], b"late", key=b"k1", headers=((TAGS_HEADER, b"booked"),))
    outage.kafka.append(LATE[0], b"late", key=b"other")
    outage.pass_time(5)

    assert {"other": ["late"]} == outage.done
    assert [True, True] == [outage.engine.stats().topics[t].breaker_is_open for t in (EARLY[0], LATE[0])]


POLICY = BreakerPolicy(attempt_count_min=10, window=timedelta(seconds=10), probe_interval=timedelta(seconds=2))
NOW_MS = 1_000_000


def opened() -> Breaker:
    breaker = Breaker(POLICY)
    breaker.ended(count=10, failed_count=10, now_ms=NOW_MS)
    assert BreakerState.OPEN is breaker.state
    return breaker


def test_what_left_the_window_does_not_count() -> None:
    breaker = Breaker(POLICY)
    breaker.ended(count=9, failed_count=9, now_ms=NOW_MS)
    breaker.ended(count=1, failed_count=1, now_ms=NOW_MS + 10_000)

    assert breaker.is_closed


def test_a_probe_that_succeeds_closes_it_and_the_window_begins_anew() -> None:
    breaker = opened()
    breaker.begin_probe()
    breaker.probed(is_well=True, now_ms=NOW_MS + 2_000)

    assert breaker.is_closed
    breaker.ended(count=9, failed_count=9, now_ms=NOW_MS + 2_000)
    assert breaker.is_closed
    breaker.ended(count=1, failed_count=1, now_ms=NOW_MS + 2_000)
    assert 2 == breaker.opened_count


@pytest.mark.promise("P11")
@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 50), st.floats(0, 1)), max_size=200))
def test_it_opens_as_the_whole_window_says_and_keeps_few_numbers(ends: list[tuple[int, int, float]]) -> None:
    breaker, seen, now_ms = Breaker(POLICY), list[tuple[int, int, int]](), NOW_MS
    for step_ms, count, share in ends:
        now_ms += step_ms
        failed = int(count * share)
        seen.append((now_ms // 1_000, count, failed))
        breaker.ended(count=count, failed_count=failed, now_ms=now_ms)
        recent = [each for each in seen if each[0] > now_ms // 1_000 - SLICE_COUNT]
        total, bad = sum(each[1] for each in recent), sum(each[2] for each in recent)
        assert (total >= 10 and bad * 2 >= total) is (not breaker.is_closed)
        assert len(breaker._slices) <= SLICE_COUNT
        if not breaker.is_closed:
            return


@pytest.mark.parametrize(
    "wrong",
    [{"failed_share": 0}, {"failed_share": 1.1}, {"attempt_count_min": 0}, {"window_ms": 9}, {"probe_interval_ms": 0}],
)
def test_limits_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        BreakerPolicy(**wrong)  # type: ignore[arg-type]  # of every kind


def test_lengths_are_lengths_of_time() -> None:
    assert (10_000, 2_000) == (POLICY.window_ms, POLICY.probe_interval_ms)
    with pytest.raises(ConfigError, match="a timedelta"):
        BreakerPolicy(window=10)  # type: ignore[arg-type]  # no unit
