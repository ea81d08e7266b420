"""Transactions with times: what the model and `txlayer verify` say of early, late and cancelled messages."""

from random import Random

import pytest

from tests.reference.differential import NOW_MS
from tests.reference.model import judge, verdict
from tests.reference.steps import KEY, MINUTE, OP, Log, Timed, written
from tests.reference.verified import verified
from tests.reference.wire import History


@pytest.mark.parametrize(("late_ms", "word"), [(5 * MINUTE, "open"), (5 * MINUTE + 1, "overdue")])
def test_a_message_is_late_by_its_time_and_not_by_the_age_of_its_transaction(late_ms: int, word: str) -> None:
    timed = Timed()
    timed.show(0)
    timed.on_doubt("scheduled", f"1/1/{timed.times[0]}+{timed.times[1]}/0:0")
    now_ms, longest_ms = timed.times[0] + late_ms, 5 * MINUTE

    assert word == verdict(timed.log.judge(now_ms=now_ms, overdue_after_ms=longest_ms).of(KEY))
    assert word == verified(timed.log.history(), now_ms=now_ms, overdue_ms=longest_ms).words[KEY]


@pytest.mark.promise("P5")
@pytest.mark.parametrize("cancels", ["", ", A 2"])
@pytest.mark.parametrize(("age_ms", "word"), [(MINUTE, "open"), (MINUTE + 1, "torn")])
def test_of_what_was_released_together_a_part_may_be_on_its_way_for_the_grace(
    age_ms: int, word: str, cancels: str
) -> None:
    log, _ = written(
        "half 0/3 options=d1700000000000, half 1/3 options=d1700000000000, half 2/3 options=d1700000060000, C 2, "
        f"lines 2|C|order-1/5f3a90c2|orders|2|1700000000000|policy|||1700000000000, show 0{cancels}"
    )
    now_ms = max(r.timestamp_ms for r in log.records if r.topic == OP) + age_ms

    assert word == verdict(log.judge(now_ms=now_ms, grace_ms=MINUTE).of(KEY))
    assert word == verified(log.history(), now_ms=now_ms).words[KEY]


@pytest.mark.promise("P6")
@pytest.mark.parametrize(("shown", "is_in_order"), [("1 0", True), ("0 1", False)])
def test_a_release_has_its_place_among_the_decisions_of_its_key(shown: str, *, is_in_order: bool) -> None:
    log, _ = written(
        "half options=d1700000060000 order=commit, half txn=other/0000000c order=commit, C 0, C 1, at 1700000060000, "
        f"lines 2|C|order-1/5f3a90c2|orders|0|1700000000000|policy|||1700000060000, show {shown}"
    )
    history = log.history()

    words = {verdict(txn) for txn in judge(history).transactions.values()}
    told = verified(history, now_ms=NOW_MS).words

    assert ("out_of_order" not in words) is is_in_order
    assert ("out_of_order" not in told.values()) is is_in_order


@pytest.mark.promise("P6")
def test_a_message_with_a_later_time_may_come_behind_later_ones_of_its_transaction() -> None:
    log, _ = written(
        "half 0/2 options=d1700000060000 order=commit, half 1/2 order=commit, C 1, show 1, at 1700000060000, "
        "lines 2|C|order-1/5f3a90c2|orders|1|1700000000000|policy|||1700000060000, show 0"
    )

    assert "ok" == verdict(judge(log.history()).of(KEY))
    assert {KEY: "ok"} == verified(log.history(), now_ms=NOW_MS).words


# --- random ones ------------------------------------------------------------------------------------------------------


class Dice:
    """One transaction with times, and lines and visible messages that are mostly, but not always, right."""

    def __init__(self, seed: int) -> None:
        self.draw, self.log = Random(seed), Log()
        self.times = [self.log.now_ms + MINUTE * n for n in (1, 2, 3)]
        count = self.draw.randint(1, 4)
        self.wanted = [self.draw.choice([None, *self.times]) for _ in range(count)]
        self.wanted[self.draw.randrange(count)] = self.draw.choice(self.times)
        given = ["" if time_ms is None else f"d{time_ms}" for time_ms in self.wanted]
        self.halves = [self.log.half(numbers=f"{n}/{count}", options=options) for n, options in enumerate(given)]
        self.left = sorted({time_ms or 0 for time_ms in self.wanted})
        self.shown: set[int] = set()
        self.is_committed = self.is_over = False

    def history(self) -> History:
        for _ in range(self.draw.randint(1, 9)):
            self.act(self.draw.random())
        if self.draw.random() < 0.4:
            self.keep()
        return self.log.history()

    def act(self, drawn: float) -> None:
        if not self.is_committed and drawn < 0.8:
            self.say("C")
            self.is_committed = True
            if self.left[0] == 0:
                self.release(0)
        elif drawn < 0.65 and self.left:
            self.release_at(self.left[0] if self.draw.random() < 0.9 else self.draw.choice(self.times))
        elif drawn < 0.75:
            moved_ms = self.log.now_ms + self.draw.choice([-MINUTE, 0, MINUTE])
            self.say("U", moved_ms)
            if self.left and not self.is_over:
                self.left = [moved_ms]
        elif drawn < 0.85:
            self.say("A")
            self.is_over = True
        else:
            self.say(self.draw.choice("RCU"))

    def say(self, letter: str, time_ms: int | None = None) -> None:
        half = self.halves[-1] if self.draw.random() < 0.9 else self.draw.choice(self.halves)
        end = "" if time_ms is None else f"|{time_ms}"
        version = 1 if time_ms is None else 2
        self.log.op(f"{version}|{letter}|{KEY}|orders|{half.offset}|1700000000000|policy||{end}".encode())

    def release_at(self, time_ms: int) -> None:
        self.log.now_ms = max(self.log.now_ms, time_ms - (0 if self.draw.random() < 0.9 else 1_000))
        self.say("C", time_ms)
        if not self.is_over and (time_ms == self.left[0] <= self.log.now_ms or self.draw.random() < 0.1):
            self.release(time_ms)

    def release(self, to_ms: int) -> None:
        self.left = [time_ms for time_ms in self.left if time_ms > to_ms]
        due = [n for n, time_ms in enumerate(self.wanted) if (time_ms or 0) <= to_ms or not self.left]
        for n in due:
            if n not in self.shown and self.draw.random() < 0.95:
                self.shown.add(n)
                self.log.show(self.halves[n])

    def keep(self) -> None:
        states = ["scheduled", "scheduled", "waiting", "held", "parked-committed", "open"]
        due = f"0/0/{'+'.join(map(str, self.left))}/0:0"
        self.log.summary(self.draw.choice(states), *self.halves, due=due)
        for n, half in enumerate(self.halves):
            if self.draw.random() < 0.95:
                self.log.content(half, n)


def random_history(seed: int) -> History:
    """The history of a seed."""
    return Dice(seed).history()


@pytest.mark.parametrize("start", range(0, 1_000, 250))
def test_model_and_verify_judge_random_ones_alike(start: int) -> None:
    found = {}
    for seed in range(start, start + 250):
        history = random_history(seed)
        word, told = verdict(judge(history).of(KEY)), verified(history, now_ms=NOW_MS).words.get(KEY)
        if word != told:
            found[seed] = (word, told)

    assert {} == found
