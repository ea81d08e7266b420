"""Transactions that sleep on doubt after a restart: who may, who wakes when, and what counts meanwhile."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_records import GROUP, txn_key
from tests.support.partition_driver import PartitionDriver
from tests.unit.test_ledger_checks import HOUR_MS, ask, questions, settings
from txlayer.core import codec
from txlayer.core.checks import NEVER_MS, CheckPolicies, CheckPolicy
from txlayer.core.ledger.dormant import DormantTransactions, ReleaseTimes
from txlayer.core.ledger.doubt import DoubtFold
from txlayer.core.ledger.transaction import OpPosition
from txlayer.core.messages import CheckKind, DoubtSummary, OrderMode, ParkReason, full_key, short_key

GENERATED_ID = "0190163d-8694-739b-aea5-966c26f8ad94"
A, B = txn_key(GENERATED_ID), txn_key("b")
PLAIN = DoubtSummary(
    A, "open", "", GROUP, 3, 3, 1, 1, 1_000, 990, None, OrderMode.COMMIT, None, None, 2_000, ("orders",), 2, 1, 1_900, 1
)


def asleep(*keys: str, policy: CheckPolicy | None = None) -> PartitionDriver:
    """A partition that was just restarted, with these on doubt, asked about once."""
    driver = PartitionDriver(settings=settings(policy or CheckPolicy()))
    for key in keys:
        driver.half(key)
    driver.turn()
    ask(driver)
    driver.crash(is_new_process=True)
    return driver


def awake(driver: PartitionDriver) -> list[str]:
    return sorted(driver.ledger.transactions)


# --- who sleeps -------------------------------------------------------------------------------------------------------


NEVER_ASKED = PLAIN._replace(checked_count=0, answered_count=0, asked_ms=0, answered_number=0)
TIMED = NEVER_ASKED._replace(state="scheduled", decided_at=(7, 1), committed_at=(7, 1), times=(5_000,))


@pytest.mark.parametrize(
    "plain",
    [
        PLAIN,
        PLAIN._replace(seen=2, count=2, last_offset=9, topics=("orders", "stock")),
        NEVER_ASKED,
        PLAIN._replace(born_ms=2_000),
        TIMED,
        TIMED._replace(seen=2, count=2, last_offset=9, topics=("orders", "stock")),
        TIMED._replace(seen=2, count=2, last_offset=9, sent_to=1, released_to=1),
        TIMED._replace(key_hash="028c7948712c936a"),
        TIMED._replace(key_hash="0000000000000000", order=OrderMode.PREPARE),
        TIMED._replace(decided_at=(2**40 - 1, 2**16 - 1), committed_at=(2**40 - 1, 2**16 - 1)),
        TIMED._replace(first_offset=2**40 - 1, last_offset=2**40 - 1),
    ],
)
def test_the_plain_sleep_and_come_back_as_they_were(plain: DoubtSummary) -> None:
    dormant = DormantTransactions()

    assert dormant.put(A, codec.encode_summary(plain), doubt_offset=41, size=77)
    place = dormant.place_of(A)
    woken = dormant.load(A)

    assert woken is not None
    assert (plain, 41, 77) == (woken.summary(), woken.ensure_extras().doubt_offset, woken.size)
    assert ((41, 77), 0) == (place, len(dormant))


@pytest.mark.parametrize(
    "other",
    [
        PLAIN._replace(state="parked", reason="too-old"),
        PLAIN._replace(state="waiting", decided_at=(7, 1)),
        PLAIN._replace(key_hash="028c7948712c936a"),
        PLAIN._replace(key_hash="028c7948712c936a", order=OrderMode.PREPARE),
        PLAIN._replace(immunity_ms=0),
        PLAIN._replace(twin_offsets=(9,)),
        PLAIN._replace(topics=()),
        PLAIN._replace(appended_ms=2**48),
        TIMED._replace(times=(999,)),
        PLAIN._replace(moved_ms=999),
        PLAIN._replace(asked_ms=999),
        TIMED._replace(times=(5_000, 6_000)),
        TIMED._replace(checked_count=3, answered_count=2, asked_ms=1_900, answered_number=2),
        TIMED._replace(times=(), released_to=6_000),
        TIMED._replace(released_to=1),
        TIMED._replace(sent_to=4_000, released_to=4_000),
        TIMED._replace(decided_at=(8, 0)),
        TIMED._replace(decided_at=(7, 2**16), committed_at=(7, 2**16)),
        TIMED._replace(state="held", reason="topic-missing"),
    ],
)
def test_whatever_is_out_of_the_ordinary_does_not_sleep(other: DoubtSummary) -> None:
    dormant = DormantTransactions()

    assert not dormant.put(A, codec.encode_summary(other), doubt_offset=0, size=0)
    assert 0 == len(dormant)


@given(
    st.from_regex(r"[0-9a-fA-F]{7,8}(-[0-9a-f]{4}){3}-[0-9a-f]{11}[0-9a-g_]/[0-9a-f]{8}", fullmatch=True)
    | st.text("0aA-/_", max_size=46)
)
def test_a_short_key_stands_for_one_key(key: str) -> None:
    assert key == full_key(short_key(key))


def test_a_dormant_one_with_a_generated_id_and_an_ordering_key_takes_144_bytes() -> None:
    dormant = DormantTransactions()
    dormant.put(A, codec.encode_summary(TIMED._replace(key_hash="028c7948712c936a")), doubt_offset=41, size=77)

    [(key, row)] = dormant.rows.items()

    assert sys.getsizeof(key) + sys.getsizeof(row) <= 144  # of at most 250, with its places in the indexes


@given(
    st.sampled_from(
        [
            PLAIN,
            NEVER_ASKED,
            TIMED,
            TIMED._replace(key_hash="028c7948712c936a"),
            TIMED._replace(sent_to=1, released_to=1),
        ]
    ),
    st.integers(0, 200),
    st.integers(0, 1),
    st.sampled_from(["", "|", "/", ":", ",", "-", "0", "1", "9", "a", "A", "||", "\n", "/0", "|0"]),
)
def test_a_summary_is_taken_or_not_whether_one_of_its_shape_was_seen_or_not(
    plain: DoubtSummary, place: int, cut_count: int, written: str
) -> None:
    summary = codec.encode_summary(plain)
    place %= len(summary)
    changed = summary[:place] + written.encode() + summary[place + cut_count :]
    first, later = DormantTransactions(), DormantTransactions()
    assert later.put(A, summary, doubt_offset=0, size=0)

    is_taken = first.put(B, changed, doubt_offset=41, size=77)

    assert is_taken is later.put(B, changed, doubt_offset=41, size=77)
    assert [txn.summary() for txn in first.all_unsettled()] == [
        txn.summary() for txn in later.all_unsettled() if txn.key == B
    ]


def fold_with_a_sleeper() -> DoubtFold:
    """A sleeps, with its content at 5."""
    fold = DoubtFold()
    fold.fold(5, f"{A}/0".encode(), b"content")
    fold.fold(6, A.encode(), codec.encode_summary(PLAIN))
    return fold


def test_a_summary_out_of_form_hides_a_dormant_transaction_until_one_in_form_follows() -> None:
    fold = fold_with_a_sleeper()

    fold.fold(7, A.encode(), b"1|open||garbage")

    assert ({A: 5}, {}) == (fold.unreadable, fold.all_unsettled())

    fold.fold(8, A.encode(), codec.encode_summary(PLAIN))

    [txn] = fold.all_unsettled().values()
    assert ({}, PLAIN, 5) == (fold.unreadable, txn.summary(), txn.ensure_extras().doubt_offset)
    assert txn.size


def test_a_sleeper_that_becomes_special_stands_once_and_keeps_its_place() -> None:
    fold = fold_with_a_sleeper()

    fold.fold(7, A.encode(), codec.encode_summary(PLAIN._replace(twin_offsets=(9,))))
    special = (set(fold.dormant.rows), fold.transactions[A].ensure_extras().doubt_offset)
    fold.fold(8, A.encode(), codec.encode_summary(PLAIN))

    assert (set(), 5) == special
    place = fold.dormant.place_of(A)
    assert place is not None
    assert (5, {}) == (place[0], fold.transactions)


# --- who wakes --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P1")
def test_an_op_line_wakes_whom_it_names_alone() -> None:
    driver = asleep(A, B)

    driver.say("C", A, 0)

    assert ([A], []) == (driver.log.forwarded, awake(driver))
    assert [B] == [txn.key for txn in driver.ledger.all_unsettled()]
    assert 1 == driver.ledger.doubt_index.count


def test_a_replay_wakes_nobody() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.turn()
    driver.say("U", A, 0)
    driver.half(B)
    driver.turn()
    ask(driver)

    driver.crash(is_new_process=True)

    assert [] == awake(driver)


@pytest.mark.promise("P11")
def test_of_a_group_that_is_away_only_so_many_wake_as_could_be_asked_soon() -> None:
    keys = [txn_key(f"t{n}") for n in range(40)]
    driver = PartitionDriver(settings=settings(CheckPolicy(check_rate_max=5)))
    driver.move_to_doubt(*keys)
    driver.crash(is_new_process=True)

    for _ in range(5):
        driver.pass_time(after_ms=60_000, is_present=False)

    assert 10 == len(awake(driver))
    assert 40 == driver.ledger.open_count


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.promise("P11")
def test_of_very_many_groups_only_so_many_wake_at_once() -> None:
    driver = PartitionDriver(settings=settings(CheckPolicy()))
    for number in range(400):
        driver.half(txn_key(f"t{number}"), group=f"invented-{number}")
    driver.turn()
    while not all(txn.is_in_doubt for txn in driver.ledger.transactions.values()):
        driver.pass_time(after_ms=60_000, is_present=False)
    driver.crash(is_new_process=True)
    assert ([], 400) == (awake(driver), driver.ledger.open_count)

    driver.ledger.let_time_pass(now_ms=driver.now_ms + 60_000, move_count_max=100, present=())

    assert 100 == len(awake(driver))


def test_all_of_them_are_asked_in_the_end() -> None:
    keys = [txn_key(f"t{n}") for n in range(40)]
    driver = asleep(*keys, policy=CheckPolicy(check_rate_max=50))
    driver.pass_time(after_ms=60_000, is_present=False)
    asked = set()

    for _ in range(3):
        driver.tick(after_ms=1_000, is_present=True)
        asked |= {check.key for check in questions(driver)}
        driver.publish()

    assert set(keys) == asked


@pytest.mark.promise("P7")
def test_those_too_old_are_parked_although_others_are_due_before_them() -> None:
    keys = [txn_key(f"t{n}") for n in range(40)]
    driver = asleep(*keys, policy=CheckPolicy(check_rate_max=1, transaction_age_max_ms=HOUR_MS))

    for _ in range(4):
        driver.pass_time(after_ms=HOUR_MS, is_present=False)

    assert dict.fromkeys(keys, ParkReason.TOO_OLD.value) == driver.reasons()


def test_sleepers_count_towards_their_groups_limit() -> None:
    keys = [txn_key(f"t{n}") for n in range(4)]
    driver = asleep(*keys, policy=CheckPolicy(open_count_max=4))

    driver.tick(after_ms=1_000)

    limits = [c for c in driver.ledger.batch.checks.values() if c.kind is CheckKind.LIMIT]
    assert [(GROUP, 4, "on")] == [(c.producer_group, c.number, c.text) for c in limits]
    assert [] == awake(driver)


# --- what a restart must read -----------------------------------------------------------------------------------------


@pytest.mark.promise("P1")
def test_a_sleeper_holds_the_low_water_mark_of_doubt_until_it_is_settled() -> None:
    driver = asleep(A, B)
    low = driver.ledger.doubt_index.low

    driver.say("C", A, 0)
    with_b = driver.ledger.doubt_index.low
    driver.say("R", B, 1)

    assert low < with_b < driver.ledger.doubt_index.low


def test_sleepers_are_written_again_when_they_keep_too_much_readable() -> None:
    driver = asleep(A, B)
    driver.ledger.doubt_index.next_offset = 1_000_000

    driver.tick(after_ms=1)
    keeps = {key: keep.is_whole for key, keep in driver.ledger.batch.to_doubt.items()}

    assert {A: True, B: True} == keeps


def test_nothing_sleeps_in_an_empty_partition() -> None:
    nobody = DormantTransactions()

    newest_ms = nobody.begin(CheckPolicies(), ReleaseTimes(nobody.committed_at, lambda _time_ms, _key: False))

    assert (0, 0, [], {}) == (newest_ms, len(nobody), nobody.groups, nobody.counts)


# --- what they cost -----------------------------------------------------------------------------------------------------


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.promise("P11")
def test_what_only_settled_ones_had_in_common_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.dormant.SHAPES_SPARE_MAX", 3)
    dormant = DormantTransactions()
    for number in range(50):
        summary = PLAIN._replace(producer_group=f"group-{number}")
        assert dormant.put(txn_key(f"t{number}"), codec.encode_summary(summary), doubt_offset=number, size=0)
        if number % 10:
            dormant.load(txn_key(f"t{number}"))

    left = {txn.key: (txn.group, txn.ensure_extras().doubt_offset) for txn in dormant.all_unsettled()}

    assert {txn_key(f"t{number}"): (f"group-{number}", number) for number in range(0, 50, 10)} == left
    assert dormant.shape_count <= 5 + 4
    for key in left:
        dormant.load(key)
    assert 0 == dormant.shape_count


@contextmanager
def between(code: CodeType, step: int, act: Callable[[], None]) -> Iterator[None]:
    """Before one instruction of this code, another thread has its turn and does this."""
    steps, before = count(), sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps) == step:
            sys.settrace(None)
            act()
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("is_scraped_within", [True, False])
def test_another_thread_sees_them_with_what_is_theirs_at_any_moment(
    is_scraped_within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.dormant.SHAPES_SPARE_MAX", 0)
    stays, comes = ((txn_key(name), f"group-{name}") for name in ("t2", "t3"))

    def put(dormant: DormantTransactions, key: str, group: str) -> None:
        summary = codec.encode_summary(PLAIN._replace(producer_group=group))
        assert dormant.put(key, summary, doubt_offset=0, size=0)

    def scrape(dormant: DormantTransactions) -> None:
        seen = {(txn.key, txn.group) for txn, _ in dormant.sample(100)}
        assert {stays} <= seen <= {stays, comes}

    for step in range(150):
        dormant = DormantTransactions()
        put(dormant, A, "group-a")
        put(dormant, *stays)
        dormant.drop(A)
        look, forget = partial(scrape, dormant), partial(put, dormant, *comes)
        if is_scraped_within:
            with between(DormantTransactions._forget_shapes.__code__, step, look):
                forget()
        else:
            with between(DormantTransactions.sample.__code__, step, forget):
                look()
        look()


TIMES = st.lists(st.tuples(st.integers(0, 5) | st.just(1 << 33), st.integers(0, 9)) | st.none(), max_size=60)


@given(TIMES, TIMES)
def test_times_come_in_order_and_of_one_time_what_was_committed_first(
    restored: list[tuple[int, int] | None], steps: list[tuple[int, int] | None]
) -> None:
    """A step adds a time and the position of a commit, or takes the first."""
    committed: dict[str, OpPosition] = {}
    expected: list[tuple[int, OpPosition]] = []
    times = ReleaseTimes(committed.__getitem__, lambda time_ms, key: (time_ms, committed[key]) in expected)

    def note(time_ms: int, offset: int) -> str:
        key = f"t{len(committed)}"
        committed[key] = offset, 0
        expected.append((time_ms, (offset, 0)))
        return key

    found = [each for each in restored if each is not None]
    keys = [note(*each) for each in found]
    times.add_run([time_ms for time_ms, _ in found], [offset for _, offset in found], keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txlayer.core.ledger.dormant.RUN_COUNT", 3)
        patch.setattr("txlayer.core.ledger.dormant.RUNS_MAX", 2)
        patch.setattr("txlayer.core.ledger.dormant.TIMES_MIN", 5)
        for step in [*steps, *[None] * 120]:
            if step is not None:
                times.add(step[0], (step[1], 0), note(*step))
            elif expected:
                assert min(expected)[0] == times.first_ms
                assert sorted(t for t, _ in expected if t <= 3) == [time_ms for time_ms, _ in times.until(3)]
                time_ms, key = times.take()
                assert min(expected) == (time_ms, committed[key])
                expected.remove((time_ms, committed[key]))

    assert NEVER_MS == times.first_ms
