"""One partition: what is held while its topic refuses, and how it goes when the topic is mended."""

import pytest

from tests.support.core_records import op_line, options, txn_key
from tests.support.partition_driver import ACCEPTS, MISSING, PartitionDriver
from tests.support.small_batches import SmallBatches
from txlayer.core.ledger import forward_order
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.transaction import OpPosition, Target, Transaction
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import NO_OPTIONS, HalfOptions, OrderMode, ParkReason

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")
RED = options("red")
RED_PREPARE = options("red", order=OrderMode.PREPARE)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


# --- held -------------------------------------------------------------------------------------------------------------


def held(*, targets: dict[str, Target] | None = None) -> PartitionDriver:
    """A is committed, and its topic is missing."""
    driver = PartitionDriver(targets=targets or {})
    driver.say("C", A, driver.half(A))
    return driver


@pytest.mark.promise("P1", "P11")
def test_many_commits_of_a_held_one_look_at_none_of_those_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, count = PartitionDriver(targets={"orders": MISSING}), 100
    for number in range(count):
        key = txn_key(f"t{number}")
        driver.op("C", key, driver.half(key, options=RED))
    driver.turn()
    looks, decided_at = 0, forward_order._decided_at

    def looked(txn: Transaction) -> OpPosition:
        nonlocal looks
        looks += 1
        return decided_at(txn)

    monkeypatch.setattr(forward_order, "_decided_at", looked)
    driver.op_lines(*[op_line("C", txn_key("t0"), 0)] * count)
    driver.turn()

    assert TxnState.HELD is driver.state(txn_key("t0"))
    assert looks < 10 * count


@pytest.mark.promise("P1")
@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("is_new_process", [None, False, True])
def test_a_held_one_is_forwarded_when_its_topic_is_mended(*, is_told: bool, is_new_process: bool | None) -> None:
    driver = held()
    if is_new_process is not None:
        driver.crash(is_new_process=is_new_process)

    driver.set_target("orders", ACCEPTS, is_told=is_told)
    driver.turn()
    driver.pass_time()

    assert ([A], {}, {}) == (driver.log.forwarded, driver.log.on_doubt(), driver.ledger.doubt_index.held)


@pytest.mark.promise("P11")
def test_what_is_held_waits_for_no_names_that_undecided_ones_invented_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.ledger.UNKNOWN_TOPICS_MAX", 3)
    driver = held()
    for number, its in enumerate([NO_OPTIONS, HalfOptions(immunity_ms=1)] * 5):  # the first kind sleeps
        driver.half(txn_key(f"t{number}"), topic=f"invented-{number}", options=its)
    driver.turn()
    driver.pass_time(after_ms=100_000)
    assert 11 == len(driver.log.on_doubt())

    driver.crash(is_new_process=True)

    assert ["orders"] == list(driver.ledger.committed_topics)
    assert "orders" in driver.ledger.unknown_topics
    assert 1 + 3 == len(driver.ledger.unknown_topics)


@pytest.mark.promise("P6")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_held_one_holds_its_key_and_nothing_else(*, is_restarted: bool) -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS})
    driver.op("C", A, driver.half(A, topic="stock", options=RED))
    driver.op("C", B, driver.half(B, options=RED))
    driver.say("C", C, driver.half(C, options=options("blue")))
    assert ([C], TxnState.WAITING) == (driver.log.forwarded, driver.state(B))
    assert {A, B} == set(driver.log.on_doubt()), "who waits for one on doubt stands there too"
    if is_restarted:
        driver.crash()

    driver.set_target("stock", ACCEPTS)
    driver.turn()

    assert [C, A, B] == driver.log.forwarded


def test_a_held_one_that_must_wait_again_lets_those_go_who_waited_for_it() -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS, "stock": MISSING})
    driver.op("C", A, driver.half(A, index=0, count=2, options=RED))
    driver.say("C", B, driver.half(B, topic="stock", options=RED_PREPARE))
    assert (TxnState.PARKED_COMMITTED, TxnState.HELD) == (driver.state(A), driver.state(B))
    driver.say("C", A, driver.half(A, index=1, count=2, options=RED))
    assert (TxnState.WAITING, TxnState.HELD) == (driver.state(A), driver.state(B))

    driver.set_target("stock", ACCEPTS)
    driver.turn()

    assert [A, B] == driver.log.forwarded


def test_how_long_it_waited_before_it_was_held_does_not_count() -> None:
    red = options("red", order=OrderMode.PREPARE)
    driver = PartitionDriver(targets={"orders": ACCEPTS, "stock": MISSING})
    first = driver.half(A, options=red)
    driver.say("C", B, driver.half(B, topic="stock", options=red))
    driver.pass_time(after_ms=8 * DAY_MS)

    driver.say("R", A, first)
    driver.pass_time()

    assert {B: ParkReason.TOPIC_MISSING.value} == driver.reasons()
    assert TxnState.HELD is driver.state(B)


@pytest.mark.promise("P7")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_one_that_waited_first_is_held_from_when_its_own_topic_refused_it(*, is_restarted: bool) -> None:
    """Nothing comes to its partition meanwhile that could tell the time."""
    driver = PartitionDriver(targets={})
    driver.op("C", A, driver.half(A, options=RED))
    driver.say("C", B, driver.half(B, topic="stock", options=RED))
    driver.tick(after_ms=7 * DAY_MS - HOUR_MS)
    driver.set_target("orders", ACCEPTS)
    driver.turn()
    assert ([A], TxnState.HELD) == (driver.log.forwarded, driver.state(B))
    if is_restarted:
        driver.crash(is_new_process=True)
        driver.turn()  # it asks about the topic

    driver.pass_time(after_ms=7 * DAY_MS - 1)
    assert TxnState.HELD is driver.state(B)

    driver.tick(after_ms=1)
    assert TxnState.PARKED_COMMITTED is driver.state(B)


def test_a_held_one_is_parked_when_it_was_held_too_long() -> None:
    driver = held()
    driver.tick(after_ms=7 * DAY_MS - 1)
    assert driver.ledger.batch.is_empty

    driver.pass_time(after_ms=1)

    assert (TxnState.PARKED_COMMITTED, {A: "held-too-long"}) == (driver.state(A), driver.reasons())
    driver.op("C", A, 0)
    driver.set_target("orders", ACCEPTS, is_told=False)
    driver.turn()
    assert [A] == driver.log.forwarded


@pytest.mark.promise("P1")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_held_one_whose_topic_was_mended_in_time_is_not_parked_for_its_age(*, is_restarted: bool) -> None:
    """Its turn comes later, or, after a restart, no broker was asked about its topic yet."""
    driver = PartitionDriver(targets={})
    for key in (A, B, C):
        driver.op("C", key, driver.half(key))
    driver.turn()
    driver.ledger.batch_size = SmallBatches(1)
    driver.set_target("orders", ACCEPTS, is_told=False)
    if is_restarted:
        driver.crash(is_new_process=True)

    driver.tick(after_ms=8 * DAY_MS)
    for _ in range(3):
        driver.publish()
        driver.turn()
        driver.tick()
    driver.publish()

    assert ([A, B, C], []) == (driver.log.forwarded, driver.reported(ReportKind.PARKED))


def test_the_age_of_a_held_one_counts_from_its_commit() -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    driver.set_target("orders", MISSING)
    driver.tick(after_ms=8 * DAY_MS)
    driver.say("C", A, 0)

    driver.tick(after_ms=HOUR_MS)

    assert TxnState.HELD is driver.state(A)


@pytest.mark.promise("P6")
def test_a_parked_one_holds_its_key_no_more() -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS})
    driver.op("C", A, driver.half(A, topic="stock", options=RED))
    driver.say("C", B, driver.half(B, options=RED))
    assert [] == driver.log.forwarded

    driver.pass_time(after_ms=8 * DAY_MS)

    assert [B] == driver.log.forwarded


# --- many -------------------------------------------------------------------------------------------------------------


def many(count: int, **kwargs: object) -> PartitionDriver:
    """So many committed transactions whose topic is missing."""
    driver = PartitionDriver(targets={})
    for n in range(count):
        key = txn_key(f"t{n}")
        driver.op("C", key, driver.half(key, **kwargs))  # type: ignore[arg-type]  # options alone
    driver.turn()
    return driver


@pytest.mark.parametrize("of", [options(), RED, RED_PREPARE])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_one_mended_topic_frees_goes_in_pieces(
    of: object, *, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.ledger.RELEASE_COUNT_MAX", 3)
    driver = many(8, options=of)

    driver.set_target("orders", ACCEPTS)
    driver.publish()
    assert (3, True) == (len(driver.log.forwarded), driver.ledger.has_more)
    if is_restarted:
        driver.crash()
    driver.advance()
    driver.pass_time()
    assert 6 == len(driver.log.forwarded)
    driver.turn()

    in_order = [txn_key(f"t{n}") for n in range(8)]
    assert (in_order, False) == (driver.log.forwarded, driver.ledger.has_more)
    assert {} == driver.log.on_doubt()


def test_what_waits_in_half_is_never_left_for_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    # Free and in half at a stored position: a replay would take it for forwarded.
    monkeypatch.setattr("txlayer.core.ledger.ledger.RELEASE_COUNT_MAX", 0)
    driver = PartitionDriver()
    first = driver.half(A, options=RED_PREPARE)
    driver.say("C", B, driver.half(B, options=RED_PREPARE))

    driver.say("C", A, first)

    assert [A, B] == driver.log.forwarded


@pytest.mark.fault("coordinator: is short of memory")
def test_a_key_with_very_many_waits_on_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.ledger.KEY_IN_HALF_MAX", 3)
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(5)]
    offsets = [driver.half(key, options=RED_PREPARE) for key in keys]
    for n in (1, 2):
        driver.op("C", keys[n], offsets[n])

    driver.turn()
    assert {keys[1], keys[2]} == set(driver.log.on_doubt())
    driver.crash()
    driver.say("C", keys[0], offsets[0])

    assert keys[:3] == driver.log.forwarded


def test_a_thousand_of_one_key_that_wait_go_to_doubt_together() -> None:
    driver = PartitionDriver()
    driver.half(A, options=RED_PREPARE)
    keys = [txn_key(f"t{n}") for n in range(1_500)]
    driver.op_lines(*(op_line("C", key, driver.half(key, options=RED_PREPARE)) for key in keys))
    driver.turn()

    driver.pass_time(after_ms=60_000, moves=1)

    assert {A, *keys} == set(driver.log.on_doubt())


@pytest.mark.promise("P1", "P6")
@pytest.mark.parametrize("crash_at", range(12))
@pytest.mark.parametrize("then_in_half_max", [0, 100])
def test_what_one_decision_releases_in_pieces_is_forwarded_once_and_in_order(
    crash_at: int, then_in_half_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart more may go at once: what stands on doubt by then must not leave the others in half behind."""
    in_half_max = 100
    monkeypatch.setattr("txlayer.core.ledger.ledger.BatchSize", lambda: SmallBatches(in_half_max))
    driver = PartitionDriver()
    keys = [txn_key(f"t{n}") for n in range(6)]
    offsets = [driver.half(key, options=RED_PREPARE) for key in keys]
    driver.op_lines(*(op_line("C", key, offsets[n]) for n, key in enumerate(keys) if n))
    driver.turn()
    assert {} == driver.log.on_doubt()
    in_half_max = 0
    driver.crash()
    driver.op("C", keys[0], offsets[0])

    for turn in range(30):
        if turn == crash_at:
            in_half_max = then_in_half_max
            driver.crash()
        driver.turn()
        forwarded = list(driver.log.forwarded)
        assert forwarded == keys[: len(forwarded)]
        again = driver.log.rebuild(targets=driver.book, refusals=driver.refusals)
        assert len(keys) - len(forwarded) == again.open_count

    assert keys == driver.log.forwarded


@pytest.mark.promise("P1")
def test_who_is_committed_to_a_topic_that_was_forgotten_is_held_and_forwarded_when_it_is_known() -> None:
    driver = PartitionDriver()
    driver.op("C", A, driver.half(A))
    driver.read()
    driver.ledger.unknown_topics.clear()  # it was known, and forgotten

    driver.ledger.advance(line_count_max=100, byte_count_max=1 << 20)

    assert {"orders"} == driver.ledger.unknown_topics
    assert TxnState.HELD is driver.state(A)
    driver.publish()
    driver.advance()
    driver.pass_time()
    assert [A] == driver.log.forwarded
