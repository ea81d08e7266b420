"""A view that follows the logs ends with the coordinators' picture, whatever happened meanwhile."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.core_records import BORN_MS, FAR_AWAY, GROUP, op_line, options, txn_key
from tests.support.onlooking import Onlooker, picture_of
from tests.support.still_coordinator import StillCoordinator
from txlayer.adapters import readers
from txlayer.adapters.ports import GroupMember
from txlayer.core.ledger.transitions import COMMITTING
from txlayer.core.messages import HalfOptions, OrderMode, ParkReason, Source
from txlayer.core.partitions import key_hash
from txlayer.errors import UsageError
from txlayer.operate.live import LiveState, Minutes, PartitionNow
from txlayer.operate.overall import remarks
from txlayer.operate.rows import UNREADABLE, UnsettledRows, Wanted
from txlayer.operate.unsettled import Filter

SOON: dict[str, Any] = {"doubt_after": timedelta(seconds=2), "misplaced_after": timedelta(milliseconds=500)}


def test_what_no_coordinator_carries_out_is_committing() -> None:
    stage = StillCoordinator(**SOON)
    on_doubt, refused = txn_key("old"), txn_key("refused")
    at = stage.half(on_doubt)
    stage.commit(refused, stage.half(refused, topic="missing"))
    stage.work(seconds=6)
    view = Onlooker(stage)
    view.look()
    young, gone = txn_key("young"), txn_key("gone")
    stage.commit(young, stage.half(young))
    stage.op(op_line("R", gone, stage.half(gone)))
    stage.commit(on_doubt, at)
    stage.op(op_line("A", refused, 1, source=Source.OPERATOR, reason="zoe: gone"))

    view.look()

    assert view.picture() == {young: (COMMITTING, None, "half"), on_doubt: (COMMITTING, None, "doubt")}
    assert view.picture() == picture_of(stage)
    stage.work(seconds=4)
    view.look()
    assert view.picture() == {}


def test_questions_change_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = StillCoordinator(**SOON, check_immunity=timedelta(seconds=1), check_interval=timedelta(seconds=1))
    monkeypatch.setattr("txlayer.coordinator.targets.GroupPresence.of", lambda *_: frozenset([GROUP]))
    key = txn_key("asked")
    stage.half(key)
    view = Onlooker(stage)
    view.look()
    stage.work(seconds=6)

    view.look()

    (found,) = view.page().rows
    assert found.txn.extras is not None
    assert found.txn.extras.checked_count > 0
    assert view.picture() == picture_of(stage)


def test_positions_that_were_set_back_are_folded_again() -> None:
    stage = StillCoordinator(**SOON)
    keys = [txn_key(f"t-{n}") for n in range(4)]
    at = {key: stage.half(key) for key in keys}
    stage.commit(keys[0], at[keys[0]])
    stage.work(seconds=1)
    view = Onlooker(stage)
    view.look()
    assert view.picture().keys() == set(keys[1:])

    view.reset(half=stage.kafka.admin().end_offsets([(stage.topics.half, 0)])[stage.topics.half, 0], op=0)
    view.look()

    assert view.picture() == picture_of(stage) == {}


def test_positions_that_jumped_over_a_transaction_are_noticed() -> None:
    stage = StillCoordinator()
    skipped, later = txn_key("skipped"), txn_key("later")
    stage.half(skipped)
    view = Onlooker(stage)
    view.look()
    view.reset(half=1, op=0)
    stage.half(later)
    stage.work(seconds=2)
    stage.world.advance(ms=60_000)

    view.look()

    assert view.picture() == picture_of(stage)
    assert view.picture().keys() == {later}


def test_a_view_that_did_not_look_for_days_shows_nothing_whose_tombstones_are_gone() -> None:
    """A machine was asleep, or had no way to the brokers: meanwhile doubt was compacted."""
    stage = StillCoordinator(**SOON)
    settled, left = txn_key("settled"), txn_key("left")
    at = stage.half(settled)
    stage.half(left)
    stage.work(seconds=6)
    view = Onlooker(stage)
    view.look()
    assert view.picture().keys() == {settled, left}
    stage.commit(settled, at)
    stage.work(seconds=2)
    later = stage.half(txn_key("later"))
    stage.work(seconds=6)
    stage.world.advance(ms=3 * 24 * 3_600_000)
    stage.kafka.clean()

    view.look()

    assert ["settled"] == stage.visible()
    assert later
    assert view.picture() == picture_of(stage)
    assert settled not in view.picture()


def test_more_partitions_are_found() -> None:
    stage = StillCoordinator()
    view = Onlooker(stage)
    view.look()
    assert 2 == len(view.view.state.partitions)

    view.widen(4)
    stage.world.advance(ms=10_000)
    view.look()

    assert 4 == len(view.view.state.partitions)


def test_what_is_known_stays_while_no_broker_answers_and_says_since_when() -> None:
    stage = StillCoordinator()
    key = txn_key("a")
    stage.half(key)
    view = Onlooker(stage)
    view.look()
    true_ms = view.view.state.true_ms
    stage.kafka.stop()
    stage.world.advance(ms=10_000)

    assert not view.view.step()
    assert not view.view.step()

    state = view.view.state
    assert state.problem
    assert true_ms == state.true_ms
    assert view.picture().keys() == {key}
    stage.kafka.start()
    stage.half(txn_key("b"))
    view.look()
    assert "" == view.view.state.problem
    assert {key, txn_key("b")} == view.picture().keys()


def test_a_namespace_without_topics_is_a_problem_that_is_said() -> None:
    stage = StillCoordinator()
    stage.kafka.delete_topic(stage.topics.doubt)
    view = Onlooker(stage)

    assert not view.view.step()

    assert stage.topics.doubt in view.view.state.problem


def test_an_early_stop_of_half_ends_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.operate.live.YOUNG_COUNT_MAX", 3)
    stage = StillCoordinator(**SOON)
    view = Onlooker(stage)
    view.look()
    for number in range(20):
        stage.half(txn_key(f"t-{number}"))
    for _ in range(5):
        assert view.view.step()
    stage.work(seconds=8)

    view.look()

    assert 20 == len(view.picture())
    assert view.picture() == picture_of(stage)


def test_op_far_ahead_of_half_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.operate.live.AHEAD_LINES_MAX", 3)
    stage = StillCoordinator(**SOON)
    view = Onlooker(stage)
    view.look()
    keys = [txn_key(f"t-{number}") for number in range(10)]
    for number, key in enumerate(keys):
        stage.commit(key, number)
    for _ in range(5):
        assert view.view.step()
    for key in keys:
        stage.half(key)

    view.look()

    assert {COMMITTING} == {state for state, _, _ in view.picture().values()}
    assert view.picture() == picture_of(stage)


def play(seed: int) -> tuple[StillCoordinator, Onlooker]:
    """A history of two dozen acts, seen by a view in whatever order it reads the topics."""
    dice = random.Random(seed)
    stage = StillCoordinator(**SOON)
    view = Onlooker(stage)
    halves: dict[str, int] = {}
    said: list[str] = []

    def prepare() -> None:
        key = txn_key(f"t-{len(halves)}", nonce=f"{dice.randrange(1 << 32):08x}")
        order = dice.choice([OrderMode.COMMIT, OrderMode.PREPARE])
        name = dice.choice([None, "key-1", "key-2"])
        topic = dice.choice(["orders", "orders", "orders", "missing"])
        count = dice.choice([1, 1, 2])
        for index in range(count):
            if index and dice.random() < 0.3:
                break
            halves[key] = stage.half(key, topic=topic, index=index, count=count, options=options(name, order=order))

    def repeat() -> None:
        key = dice.choice(list(halves) or [txn_key("none")])
        stage.half(key)

    def resolve() -> None:
        key = dice.choice(list(halves) or [txn_key("none")])
        at = halves.get(key, 0) if dice.random() < 0.9 else FAR_AWAY
        line = op_line(dice.choice("CCCRU"), key, at)
        said.append(line)
        stage.op(line)

    def order_by_hand() -> None:
        key = dice.choice(list(halves) or [txn_key("none")])
        line = op_line(dice.choice("CRAU"), key, halves.get(key, 0), source=Source.OPERATOR, reason="zoe: why")
        stage.op(line)

    def write_strange() -> None:
        stage.op(dice.choice(["what", "1|C|x", "1|C|a/0000000a|shop|x|1|producer||"]))
        stage.kafka.append(stage.topics.half, b"v", headers=[("txl", b"1|what")])

    acts: list[Callable[[], object]] = [prepare, prepare, prepare, resolve, resolve, resolve, repeat, order_by_hand]
    acts += [write_strange, lambda: stage.work(seconds=dice.choice([0.3, 1.0, 3.0])), view.view.step]
    acts += [lambda: stage.kafka.create_topic("missing")] if dice.random() < 0.3 else []
    for _ in range(dice.randrange(10, 60)):
        act = dice.choice(acts)
        if act is acts[-1] and len(acts) == 12:
            acts.pop()
        act()
    return stage, view


@pytest.mark.parametrize("seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(15, 40))])
def test_any_history_ends_with_the_coordinators_picture(seed: int) -> None:
    stage, view = play(seed)
    stage.work(seconds=8)
    stage.world.advance(ms=60_000)

    view.look()
    assert view.picture() == picture_of(stage)


@pytest.mark.parametrize("seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(15, 40))])
def test_without_a_coordinator_the_same_transactions_are_undecided(seed: int) -> None:
    stage, view = play(seed)
    for _ in range(2):  # a line that names no half record is waited for
        stage.world.advance(ms=60_000)
        view.look()

    undecided = {"open", "parked"}
    expected = {key for key, (state, _, _) in picture_of(stage).items() if state in undecided}
    assert expected == {key for key, (state, _, _) in view.picture().items() if state in undecided}


def test_records_kept_aside_are_counted_once_and_followed() -> None:
    stage = StillCoordinator(**SOON)
    stage.op("garbage")
    stage.work(seconds=3)
    view = Onlooker(stage)
    view.look()
    view.look()
    assert {"": 1} == view.view.state.quarantined

    stage.kafka.append(stage.topics.half, b"v", headers=[("txl", b"1|what")])
    stage.op(op_line("C", txn_key("t-9"), 900, group="loyalty"))
    stage.work(seconds=60)
    view.look()
    view.look()

    assert {"": 2, "loyalty": 1} == view.view.state.quarantined
    assert any("3 records quarantined" in each.sentence for each in view.remarks())
    for record in stage.kafka.records(stage.topics.doubt):
        stage.kafka.append(stage.topics.doubt, None, key=record.key())
    view.look()
    assert {} == view.view.state.quarantined


# --- lists ------------------------------------------------------------------------------------------------------------


def test_a_list_is_filtered_sorted_and_paged() -> None:
    stage = StillCoordinator()
    for number in range(7):
        stage.half(txn_key(f"t-{number}"), group="shop" if number % 2 else "loyalty", topic=f"topic-{number % 3}")
        stage.world.advance(ms=1_000)
    view = Onlooker(stage)
    view.look()

    seen: list[str] = []
    after, pages = "", 0
    while True:
        page = view.page(limit=3, after=after)
        assert 7 == page.count
        seen += [found.txn.key for found in page.rows]
        after, pages = page.after, pages + 1
        if not after:
            break
    assert 3 == pages
    assert [txn_key(f"t-{number}") for number in range(7)] == seen
    down = view.page(sort="-age", limit=2)
    assert [txn_key("t-6"), txn_key("t-5")] == [found.txn.key for found in down.rows]
    more = view.page(sort="-age", limit=2, after=down.after)
    assert [txn_key("t-4"), txn_key("t-3")] == [found.txn.key for found in more.rows]
    assert {"loyalty"} == {found.txn.group for found in view.page(filter=Filter(group="loyalty")).rows}
    assert 2 == view.page(filter=Filter(topic="topic-1")).count
    assert 0 == view.page(filter=Filter(topic="topic")).count
    assert 1 == view.page(txn_id=txn_key("t-1").partition("/")[0]).count
    assert 7 == view.page(filter=Filter(states=frozenset(["open"]))).count
    assert 0 == view.page(filter=Filter(reasons=frozenset([ParkReason.LIMIT]))).count
    old = view.page(filter=Filter(older_ms=stage.world.now_ms() - BORN_MS - 1_500))
    assert 2 == old.count


def test_those_of_an_ordering_key_are_found() -> None:
    stage = StillCoordinator()
    key = txn_key("a")
    ours = options("customer")
    assert ours.key_hash is not None
    stage.half(key, options=ours)
    stage.half(txn_key("b"))
    view = Onlooker(stage)
    view.look()

    assert [key] == [found.txn.key for found in view.page(key_hash=ours.key_hash).rows]
    assert 0 == view.page(key_hash=key_hash(b"nobody")).count


@pytest.mark.parametrize("after", ["x", "bm90IGpzb24", "W10", "NQ", "WzEsMl0", "WzEsMiwzXQ", "é", "W3t9LCJhIiwxXQ"])
def test_a_page_that_there_is_none_of_is_refused(after: str) -> None:
    with pytest.raises(UsageError):
        UnsettledRows().page(Wanted(after=after), now_ms=0)


def test_a_sort_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(UsageError):
        Wanted(sort="age; DROP TABLE txn")


def test_the_number_of_rows_is_bounded() -> None:
    rows = UnsettledRows(row_count_max=10)
    for number in range(30):
        rows.put_on_doubt(f"t-{number}/0000000a", b"9|new", partition=0, at_ms=1)
    rows.flush()

    assert rows.has_more
    assert 10 == rows.page(Wanted(), now_ms=0).count
    for number in range(30):
        rows.end_on_doubt(f"t-{number}/0000000a", 0)
    assert 0 == rows.page(Wanted(), now_ms=0).count


def test_what_transactions_had_in_common_is_forgotten_with_the_last_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.operate.rows.SHAPE_COUNT_MAX", 4)
    rows = UnsettledRows()

    def put(number: int) -> None:
        raw = f"1|open||group-{number}|5|5|1|1|7|7||commit|||8|orders,t-{number}|0/0/0/0".encode()
        assert 5 == rows.put_on_doubt(f"t-{number}/0000000a", raw, partition=0, at_ms=1)

    put(0)
    for number in range(1, 50):
        put(number)
        rows.end_on_doubt(f"t-{number}/0000000a", 0)
    put(50)
    rows.flush()

    assert [("group-0", "open", 1, 7), ("group-50", "open", 1, 7)] == rows.counts()
    assert 4 >= len(rows._shapes)
    for wanted in (Filter(topic="t-50"), Filter(group="group-50")):
        assert ["t-50/0000000a"] == [each.txn.key for each in rows.page(Wanted(wanted), now_ms=0).rows]


def test_what_a_later_release_wrote_is_shown_as_such() -> None:
    rows = UnsettledRows()
    rows.put_on_doubt("t/0000000a", b"9|new", partition=1, at_ms=7)
    rows.flush()

    (found,) = rows.page(Wanted(), now_ms=0).rows

    assert (UNREADABLE, "t/0000000a", 1) == (found.state, found.txn.key, found.partition)


# --- figures ----------------------------------------------------------------------------------------------------------


def test_rates_and_latencies_are_counted_by_the_brokers_clock() -> None:
    stage = StillCoordinator()
    view = Onlooker(stage)
    view.look()
    first, second = txn_key("a"), txn_key("b")
    at = stage.half(first), stage.half(second)
    stage.world.advance(ms=3_000)
    stage.commit(first, at[0])
    stage.op(op_line("R", second, at[1]))

    view.look()

    minutes = view.view.state.minutes
    assert 2 == sum(minute.prepared for minute in minutes)
    assert 1 == sum(minute.committed for minute in minutes)
    assert 1 == sum(minute.rolled_back for minute in minutes)
    assert [{4096: 1}] == [minute.latency_ms for minute in minutes if minute.latency_ms]


def test_one_of_which_a_part_is_due_is_counted_as_one_commit() -> None:
    stage, key = StillCoordinator(), txn_key("a")
    view = Onlooker(stage)
    view.look()
    stage.half(key, count=2)
    due_ms = stage.world.now_ms() + 60_000
    stage.commit(key, stage.half(key, index=1, count=2, options=HalfOptions(deliver_at_ms=due_ms)))

    view.look()

    assert 1 == sum(minute.committed for minute in view.view.state.minutes)
    # The rest of it is scheduled, and may be cancelled, also while no coordinator runs.
    assert ["scheduled"] == [row.state for row in view.view.rows.page(Wanted(), now_ms=0).rows]


def test_the_rings_are_bounded() -> None:
    minutes = Minutes()
    for number in range(1_000):
        minutes.prepared(number * 10_000)

    found = minutes.snapshot()
    assert 90 == len(found)
    assert 9_990_000 == found[-1].at_ms


def test_a_partition_says_how_far_behind_its_coordinator_is() -> None:
    stage = StillCoordinator()
    view = Onlooker(stage)
    view.look()
    key = txn_key("a")
    stage.commit(key, stage.half(key))
    stage.world.advance(ms=40_000)

    view.look()

    first = view.view.state.partitions[0]
    assert 1 == first.op_lag
    assert first.op_lag_ms >= 40_000
    assert any("resolutions wait" in each.sentence for each in view.remarks())


def test_a_group_without_a_responder_is_said() -> None:
    stage = StillCoordinator()
    stage.half(txn_key("a"))
    view = Onlooker(stage)
    view.look()
    stage.world.advance(ms=60_000)
    view.look()

    (found,) = view.view.state.responders
    assert (GROUP, False) == (found.producer_group, found.is_answered)
    said = [each.sentence for each in view.remarks()]
    assert any(f"no responder answers check-backs for the group {GROUP}" in sentence for sentence in said)
    assert any("no coordinator runs" in sentence for sentence in said)


def member(*partitions: int) -> GroupMember:
    return GroupMember("m", "c", "h", tuple(("txlayer.half", p) for p in partitions))


@pytest.mark.parametrize(
    ("group_state", "members", "said"),
    [
        ("stable", (member(0, 1),), "transactions not settled"),
        ("stable", (member(0),), "no coordinator owns 1 partition: 1"),
        ("preparing_rebalancing", (member(),), "share the partitions anew"),
        ("empty", (), "no coordinator runs"),
    ],
)
def test_the_worst_of_the_coordinators_is_said_first(
    group_state: str, members: tuple[GroupMember, ...], said: str
) -> None:
    partitions = tuple(PartitionNow(p, 1_000, "w", 0, 0, 0, 0) for p in range(2))
    state = LiveState(
        true_ms=1_000, is_ready=True, group_state=group_state, members=members, group_ms=1_000, partitions=partitions
    )

    assert said in remarks(state, [], now_ms=2_000)[0].sentence


def test_while_doubt_is_read_what_is_known_is_shown_and_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = StillCoordinator(**SOON)
    keys = {txn_key(f"t{number}") for number in range(20)}
    for key in keys:
        stage.half(key)
    stage.work(seconds=6)
    monkeypatch.setattr(readers, "READ_COUNT_MAX", 10)
    view = Onlooker(stage)
    seen: list[tuple[LiveState, int]] = []
    put = view.view.rows.put_on_doubt

    def look_and_put(key: str, raw: bytes, *, partition: int, at_ms: int) -> int:
        seen.append((view.view.state, view.page().count))
        first_offset = put(key, raw, partition=partition, at_ms=at_ms)
        view.view.rows.flush()
        return first_offset

    monkeypatch.setattr(view.view.rows, "put_on_doubt", look_and_put)
    view.look()

    shares = [100 * state.read_count // state.to_read_count for state, _ in seen]
    assert sorted(shares) == shares
    assert 0 < shares[-1] < 100
    assert list(range(20)) == [count for _, count in seen]
    said = [remark.sentence for remark in remarks(seen[-1][0], [], now_ms=0)]
    assert f"the logs are being read, {shares[-1]} of 100: the numbers are too low until then" in said
    assert keys == view.picture().keys()


def test_before_anything_is_read_the_remarks_say_so() -> None:
    stage = StillCoordinator()
    view = Onlooker(stage)

    (only,) = remarks(view.view.state, [], now_ms=0)

    assert "being read" in only.sentence
