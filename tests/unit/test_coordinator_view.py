"""A coordinator from outside: when it is alive and ready, and what its figures say."""

from typing import Any

import pytest

from tests.support.core_records import GROUP, txn_key
from tests.support.partition_driver import MISSING, PartitionDriver
from txlayer.adapters.ports import Assignment
from txlayer.adapters.telemetry import EVERYBODYS, STALL_S, Family, Health, Sample
from txlayer.coordinator import metrics as f
from txlayer.coordinator import metrics as module
from txlayer.coordinator.metrics import CoordinatorCounts, CoordinatorView, ObservedCoordinator, age_label, health_of
from txlayer.coordinator.shard import LogTime, Shard
from txlayer.core.ledger.ledger import Ledger

NOW = 1_000.0
ASSIGNED = Assignment((("ns.half", 0), ("ns.op", 0)), None, 1)
NOTHING = Assignment((), None, 1)
DAY_MS = 24 * 3_600_000


def shard(ledger: Ledger | None = None, *, is_caught_up: bool = True) -> Shard:
    """One partition."""
    ledger = PartitionDriver().ledger if ledger is None else ledger
    made = Shard(ledger, ledger.positions(), 0, 0, LogTime(lambda: 0.0))
    made.is_caught_up = is_caught_up
    return made


def view(
    *shards: Shard,
    assignment: Assignment | None = ASSIGNED,
    turned_at: float | None = NOW,
    now_ms: int = 0,
    **measured: Any,
) -> CoordinatorView:
    """One moment."""
    counts = CoordinatorCounts(turned_at=turned_at, **measured)
    for each in shards if now_ms else ():
        each.time.see(now_ms)
    return CoordinatorView("ns", counts, dict(enumerate(shards)), assignment, {})


def samples(seen: CoordinatorView) -> list[Sample]:
    """Every figure of it."""
    return list(ObservedCoordinator(lambda: seen, version="1", clock=lambda: NOW).samples())


def values(seen: CoordinatorView, family: Family) -> dict[tuple[str, ...], Any]:
    """{labels: value} of one family."""
    return {sample.labels: sample.value for sample in samples(seen) if sample.family == family}


# --- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (view(shard()), Health("", "")),
        (view(turned_at=None, assignment=None), Health("", "it waits for a broker")),
        (view(assignment=None), Health("", "the group has assigned nothing yet")),
        (view(assignment=NOTHING), Health("", "")),
        (view(), Health("", "its state is being built from the stored offsets")),
        (view(shard(), shard(is_caught_up=False)), Health("", "1 of 2 partitions are not read to their ends yet")),
        (view(shard(), turned_at=NOW - STALL_S), Health(f"the loop has not turned for {STALL_S:.0f} s", "")),
        (view(shard(), turned_at=NOW - STALL_S + 1), Health("", "")),
    ],
)
def test_health_is_what_the_loop_and_the_group_say(seen: CoordinatorView, expected: Health) -> None:
    assert expected == health_of(seen, now=NOW)


def test_the_answers_of_the_probes_are_figures_too() -> None:
    stalled = view(shard(), turned_at=NOW - STALL_S)
    names = ("txlayer_alive", "txlayer_ready")

    def told(seen: CoordinatorView) -> list[Any]:
        return [sample.value for sample in samples(seen) if sample.family.name in names]

    assert [[1, 1], [1, 0], [0, 0]] == [told(view(shard())), told(view()), told(stalled)]


# --- figures ----------------------------------------------------------------------------------------------------------


def test_every_family_of_the_page_has_a_sample_and_no_other() -> None:
    ends = {("ns.half", 0): 5, ("ns.op", 0): 5}
    driver = PartitionDriver()
    driver.half(txn_key("a"))
    driver.read()
    seen = view(shard(driver.ledger), now_ms=driver.now_ms, ends=ends)
    seen.counts.publishing.took(0.0, 0.0, 0.0, 0.0, NOW)

    found = {sample.family for sample in samples(seen)} - set(EVERYBODYS)

    assert set(f.FAMILIES) == found


def test_undecided_ones_are_counted_by_group_and_age() -> None:
    driver = PartitionDriver()
    driver.half(txn_key("old"))
    driver.now_ms += 2 * DAY_MS
    driver.half(txn_key("young"))
    driver.half(txn_key("stock"), group="stock")
    driver.read()
    seen = view(shard(driver.ledger), now_ms=driver.now_ms + 500)

    found = {labels: count for labels, count in values(seen, f.OPEN).items() if count}

    assert {(GROUP, "10s"): 1, ("stock", "10s"): 1, (GROUP, "older"): 1} == found
    assert {(): 2 * DAY_MS / 1000 + 0.5} == values(seen, f.OLDEST_OPEN)


def test_committed_ones_that_cannot_go_are_counted_by_state() -> None:
    driver = PartitionDriver(targets={"orders": MISSING})
    driver.say("C", txn_key("a"), driver.half(txn_key("a")))

    found = values(view(shard(driver.ledger), now_ms=driver.now_ms), f.STANDING)

    assert {("waiting",): 0, ("scheduled",): 0, ("held",): 1, ("parked",): 0, ("parked-committed",): 0} == found


def test_of_very_many_an_even_sample_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_COUNT_MAX", 10)
    driver = PartitionDriver()
    for number in range(105):
        driver.half(txn_key(f"t{number}"))
    driver.read()

    found = values(view(shard(driver.ledger), now_ms=driver.now_ms), f.OPEN)

    assert 105 == sum(found.values())


def test_ages_of_very_many_are_not_looked_at_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_COUNT_MAX", 2)
    driver = PartitionDriver()
    for number in range(3):
        driver.half(txn_key(f"t{number}"))
    driver.read()
    clock = [NOW]
    seen = view(shard(driver.ledger), now_ms=driver.now_ms)
    observed = ObservedCoordinator(lambda: seen, version="1", clock=lambda: clock[0])

    def open_count() -> Any:
        return sum(s.value for s in observed.samples() if s.family == f.OPEN)

    before = open_count()
    driver.half(txn_key("late"))
    driver.read()
    meanwhile = open_count()
    clock[0] += module.LOOK_EVERY_S

    assert (3, 3, 4) == (before, meanwhile, open_count())


def test_those_that_sleep_after_a_restart_are_counted_too() -> None:
    driver = PartitionDriver()
    driver.half(txn_key("a"))
    driver.turn()
    driver.pass_time(after_ms=120_000)
    driver.crash(is_new_process=True)
    assert len(driver.ledger.dormant) == 1

    found = values(view(shard(driver.ledger), now_ms=driver.now_ms), f.OPEN)

    assert {(GROUP, "10m"): 1} == {labels: n for labels, n in found.items() if n}


def test_groups_beyond_the_limit_are_other_at_every_age() -> None:
    driver = PartitionDriver()
    for number in range(60):
        driver.half(txn_key(f"t{number}"), group=f"group-{number:02}")
    driver.read()

    found = values(view(shard(driver.ledger), now_ms=driver.now_ms), f.OPEN)

    assert (51, 10, 60) == (len({group for group, _ in found}), found["other", "10s"], sum(found.values()))


def test_the_last_kafka_transaction_is_told_by_the_wall_clock() -> None:
    seen = view(shard())
    seen.counts.publishing.took(0.0, 0.0, 0.0, 0.0, NOW - 5)
    observed = ObservedCoordinator(lambda: seen, version="1", clock=lambda: NOW, wall_clock=lambda: 2_000_000.0)

    assert [1_999_995.0] == [s.value for s in observed.samples() if s.family == f.STORED_AT]


def test_lag_is_told_of_partitions_whose_end_is_known() -> None:
    seen = view(shard(), shard(), ends={("ns.op", 1): 7})

    assert {("op", "1"): 7} == values(seen, f.LAG)


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [(0, "10s"), (9_999, "10s"), (10_000, "1m"), (3_599_999, "1h"), (3_600_000, "1d"), (DAY_MS, "older")],
)
def test_an_age_is_named_by_its_upper_end(age_ms: int, expected: str) -> None:
    assert expected == age_label(age_ms)
