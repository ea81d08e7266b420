"""One partition: what goes to the doubt topic, whole or cut, what is parked there, and how it comes back."""

import gc
from dataclasses import replace

import pytest

from tests.support.core_records import FAR_AWAY, GROUP, half_header, half_record, op_line, options, txn_key
from tests.support.partition_driver import ACCEPTS, FORBIDDEN, MISSING, PartitionDriver
from tests.support.partition_log import SETTINGS
from txlayer.core import codec
from txlayer.core.checks import CheckPolicies, CheckPolicy, CheckSchedule
from txlayer.core.codec import HALF_HEADER, content_key, is_cut
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.ledger.transaction import Target, Transaction, accepting_target, held_bytes, record_size
from txlayer.core.ledger.transitions import SETTLED, TxnState
from txlayer.core.messages import OpMessage, ParkReason, Resolution, Source
from txlayer.core.partitions import half_partition

A, B, C = txn_key("a"), txn_key("b"), txn_key("c")
RED = options("red")
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LARGE = b"x" * 500


# --- moving -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("producer: is killed between the local commit and its op")
def test_an_old_transaction_moves_to_doubt_with_its_content_and_half_is_free() -> None:
    driver = PartitionDriver()
    driver.half(A)
    driver.turn()
    driver.tick(after_ms=59_999)
    assert driver.ledger.batch.is_empty

    driver.pass_time(after_ms=1)

    assert {A: TxnState.OPEN} == {k: t.state for k, t in driver.log.on_doubt().items()}
    assert [b"v"] == [r.value() for r in driver.log.contents_on_doubt(A).values()]
    assert (1, [A], 0) == (driver.log.stored.low_water, driver.reported(ReportKind.MOVED), driver.ledger.content_bytes)


def test_moves_are_limited_per_batch_and_the_oldest_goes_first() -> None:
    driver = PartitionDriver()
    for key in (A, B, C):
        driver.half(key)
    driver.turn()

    driver.pass_time(after_ms=60_000, moves=2)

    assert ({A, B}, 2) == (set(driver.log.on_doubt()), driver.log.stored.low_water)


def test_a_summary_that_is_written_again_says_when_the_transaction_was_born() -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    born_ms = driver.log.on_doubt()[A].summary().born_ms

    driver.say("U", A, 0)
    driver.crash()
    driver.say("U", A, 0)

    assert born_ms == driver.log.on_doubt()[A].summary().born_ms != 0


def places(driver: PartitionDriver) -> list[tuple[int, int]]:
    """Where on doubt the ledger looks for the contents of A: (index, offset) of each that stands apart."""
    found = driver.ledger.look_at(A)
    assert found is not None
    extras = found.ensure_extras()
    contents = [e for e in driver.log.half if A in str(e.record.headers())]
    assert sum(held_bytes(entry.record) for entry in contents) <= found.size
    return [(0, extras.doubt_offset), *extras.further_at]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("topic_count", [1, 100])
def test_what_comes_late_and_singly_writes_no_more_than_itself(topic_count: int, *, is_restarted: bool) -> None:
    count = 100
    topics = ["orders", *(f"{'x' * 200}-{number}" for number in range(1, topic_count))]
    driver = PartitionDriver(
        settings=replace(SETTINGS, transaction_messages_max=count), targets=dict.fromkeys(topics, ACCEPTS)
    )
    driver.half(A, index=0, count=count, value=LARGE)
    driver.turn()
    driver.pass_time(after_ms=60_000)
    for index in range(1, count):
        last = driver.half(A, index=index, count=count, topic=topics[index % topic_count], value=LARGE)
        driver.half(txn_key(f"t{index}"))
        driver.turn()
        driver.tick(after_ms=60_000 // topic_count)  # what is written in between is between its contents
        driver.publish()
        if is_restarted and index % 10 == 0:
            driver.crash(is_new_process=True)

    written = [entry.record for entry in driver.log.doubt if (entry.record.key() or b"").startswith(A.encode())]
    assert len(written) < 10 * count
    assert sum(record_size(record) for record in written) < 10 * count * len(LARGE)
    before = places(driver)
    driver.log.compact_doubt()
    driver.crash(is_new_process=True)
    assert before == places(driver)
    assert count == len(before)
    driver.say("C", A, last)
    assert [(index, LARGE) for index in range(count)] == [(each.index, each.value) for each in driver.log.visible]
    assert {} == driver.log.contents_on_doubt(A)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("is_beyond_limit", [False, True])
def test_what_comes_late_and_doubt_does_not_take_whole_is_forwarded_from_half(*, is_beyond_limit: bool) -> None:
    driver = PartitionDriver()
    driver.half(A, index=0, count=2)
    driver.turn()
    driver.pass_time(after_ms=60_000)
    refused = driver.log.refusals
    if is_beyond_limit:
        refused.reasons[A] = ParkReason.LIMIT  # no Kafka transaction lives long enough for it
    else:
        refused.doubt_keys.add(content_key(A, 1))

    last = driver.half(A, index=1, count=2, value=LARGE)
    driver.turn()

    cut = {index for index, record in driver.log.contents_on_doubt(A).items() if is_cut(record.headers())}
    assert ({1}, set(), {}) == (cut, refused.doubt_keys, refused.reasons)
    driver.say("C", A, last)
    assert [b"v", LARGE] == [message.value for message in driver.log.visible]


@pytest.mark.promise("P11")
def test_large_transactions_alone_are_not_written_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.ledger.doubt.REWRITE_LAG_MIN", 20)
    driver = PartitionDriver()
    for key in (A, B, C):
        for index in range(10):
            driver.half(key, index=index, count=10)
    driver.turn()
    driver.pass_time(after_ms=60_000)
    record_count = len(driver.log.doubt)

    for _ in range(20):
        driver.pass_time(after_ms=500)

    assert record_count == len(driver.log.doubt)


@pytest.mark.fault("check handler: no instance of a group runs for hours")
@pytest.mark.promise("P11")
def test_old_doubt_records_are_written_again_before_a_restart_becomes_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    for n in range(4):
        key = txn_key(f"t{n}")
        driver.half(key)
        driver.turn()
        driver.pass_time(after_ms=60_000)
        driver.say("R", key, n + 1)
    assert 1 == driver.log.stored.doubt_low

    monkeypatch.setattr("txlayer.core.ledger.doubt.REWRITE_LAG_MIN", 4)
    driver.pass_time()
    driver.turn()
    driver.crash()
    driver.say("C", A, 0)

    assert ([A], True) == (driver.log.forwarded, driver.log.stored.doubt_low > 20)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_named_meanwhile", [False, True])
def test_what_sleeps_sleeps_on_when_it_is_written_again(
    monkeypatch: pytest.MonkeyPatch, *, is_named_meanwhile: bool
) -> None:
    monkeypatch.setattr("txlayer.core.ledger.doubt.REWRITE_LAG_MIN", 4)
    driver = PartitionDriver(settings=replace(SETTINGS, checks=CheckPolicies(CheckPolicy(check_immunity_ms=DAY_MS))))
    driver.move_to_doubt(A, B)
    driver.crash(is_new_process=True)
    assert {} == driver.ledger.transactions
    before = driver.ledger.unsettled_bytes
    for number in range(8):
        key = txn_key(f"t{number}")
        last = driver.half(key)
        driver.turn()
        driver.pass_time(after_ms=60_000)
        driver.say("R", key, last)

    if is_named_meanwhile:  # in the same batch
        driver.op_lines(op_line("U", A, 0))
        driver.read()
    driver.tick()
    assert {A: True, B: True} == {key: move.is_whole for key, move in driver.ledger.batch.to_doubt.items()}
    driver.advance()
    driver.publish()
    driver.turn()

    assert [A] * is_named_meanwhile == list(driver.ledger.transactions)
    assert is_named_meanwhile or before == driver.ledger.unsettled_bytes
    assert 0 == driver.ledger.content_bytes
    assert driver.log.stored.doubt_low > 20
    driver.log.compact_doubt()
    driver.crash(is_new_process=True)
    driver.op("C", A, 0)
    driver.say("C", B, 1)
    assert [A, B] == driver.log.forwarded


@pytest.mark.fault("coordinator: restarts while transactions on doubt are asked about again and again")
@pytest.mark.promise("P11")
def test_questions_alone_do_not_lengthen_what_a_restart_reads_of_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    living = 20
    monkeypatch.setattr("txlayer.core.ledger.doubt.REWRITE_LAG_MIN", 8 * living)
    driver = PartitionDriver()
    driver.move_to_doubt(*(txn_key(f"t-{number}") for number in range(living)))

    for _ in range(100):  # nobody answers; no other transaction comes to doubt
        driver.pass_time(after_ms=600_000, is_present=True)

    low = driver.log.stored.doubt_low
    read_again = [entry for entry in driver.log.doubt if entry.offset >= low]
    assert living == driver.ledger.open_count
    assert len(read_again) <= 8 * living + 2 * living


# --- parked -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("P1")
@pytest.mark.parametrize(("target", "reason"), [(FORBIDDEN, "forbidden-topic"), (accepting_target(500), "too-large")])
def test_what_its_target_will_never_take_is_parked_whole(target: Target, reason: str) -> None:
    driver = PartitionDriver(targets={"orders": target, "stock": ACCEPTS})
    driver.op("C", A, driver.half(A, value=b"x" * 501))
    driver.op("C", B, driver.half(B, topic="stock"))

    driver.turn()

    assert ([B], {A: reason}) == (driver.log.forwarded, driver.reasons())
    assert [0] == sorted(driver.log.contents_on_doubt(A))


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_scheduled", [False, True])
def test_many_lines_about_one_transaction_take_one_kafka_transaction(*, is_scheduled: bool) -> None:
    driver = PartitionDriver(targets={"orders": ACCEPTS if is_scheduled else FORBIDDEN})
    at_ms = driver.now_ms + HOUR_MS if is_scheduled else None
    last = driver.half(A, options=RED._replace(deliver_at_ms=at_ms))
    driver.say("C", A, last)
    resolution = Resolution.UNKNOWN if is_scheduled else Resolution.COMMIT
    line = OpMessage(resolution, A, GROUP, last, 0, Source.OPERATOR, time_ms=at_ms)
    driver.op_lines(*[codec.encode_op(line)] * 100)

    driver.turn()

    assert not driver.ledger.has_more
    assert {A: "" if is_scheduled else "forbidden-topic"} == driver.reasons()


def test_a_topic_that_refuses_for_good_counts_more_than_one_that_may_be_mended() -> None:
    driver = PartitionDriver(targets={"orders": MISSING, "stock": FORBIDDEN})
    driver.half(A, index=0, count=2)
    driver.op("C", A, driver.half(A, index=1, count=2, topic="stock"))

    driver.turn()

    assert {A: "forbidden-topic"} == driver.reasons()


def test_a_transaction_with_too_many_messages_is_parked() -> None:
    driver = PartitionDriver(settings=replace(SETTINGS, transaction_messages_max=1))
    driver.half(A, index=0, count=2)
    driver.op("C", A, driver.half(A, index=1, count=2))

    driver.turn()

    assert {A: "limit"} == driver.reasons()


@pytest.mark.promise("P1")
@pytest.mark.parametrize("is_keyed", [False, True])
def test_what_the_broker_refuses_is_parked_and_the_rest_goes_on(*, is_keyed: bool) -> None:
    driver = PartitionDriver()
    driver.refusals[A] = ParkReason.REFUSED
    driver.op("C", A, driver.half(A, options=RED if is_keyed else options()))
    driver.op("C", B, driver.half(B))

    driver.turn()

    assert ([B], {A: "refused"}) == (driver.log.forwarded, driver.reasons())


def test_content_that_is_not_in_memory_is_measured_by_the_broker() -> None:
    driver = PartitionDriver(targets={"orders": accepting_target(600)})
    driver.half(A, value=b"x" * 400)
    driver.read()
    driver.ledger.drop_content(1)
    driver.op("C", A, 0)

    driver.turn()
    assert ({A: ParkReason.REFUSED}, 1) == (driver.refusals, driver.crash_count)
    driver.turn()

    assert ({A: "refused"}, {}) == (driver.reasons(), driver.refusals)


def test_a_commit_of_what_stands_there_on_a_lines_word_alone_is_incomplete() -> None:
    driver = PartitionDriver()
    driver.half(B)
    driver.op_lines(op_line("C", A, FAR_AWAY), op_line("C", A, 0))
    driver.read()
    driver.advance()
    driver.give_up()

    driver.turn()

    assert {A: "incomplete"} == driver.reasons()


@pytest.mark.slow
@pytest.mark.promise("P11")
def test_one_that_stays_on_doubt_keeps_no_settled_ones_in_memory() -> None:
    """The limits name 1,024 settled transactions, and as many as are open."""
    driver, count = PartitionDriver(), 4_000
    driver.move_to_doubt(txn_key("stays"))
    ids = (f"t-{n}" for n in range(3 * count))
    home = [i for i in ids if not half_partition(ordering_key=None, txn_id=i, partition_count=2)]
    for at in range(0, count, 500):
        keys = [f"{txn_id}/0000000a" for txn_id in home[at : at + 500]]
        places = {key: driver.half(key) for key in keys}
        driver.turn()
        driver.pass_time(after_ms=driver.log.settings.doubt_after_ms, moves=1_000, is_present=True)
        driver.op_lines(*(op_line("R", key, places[key]) for key in keys))
        driver.turn()
    driver.pass_time(after_ms=1_000, moves=1_000, is_present=True)

    assert 1 == driver.ledger.open_count
    driver.ledger.schedule = CheckSchedule(driver.ledger.schedule.policies)  # has its own limit
    gc.collect()
    settled = [o for o in gc.get_objects() if type(o) is Transaction and o.state in SETTLED]
    assert len(settled) <= 1_024 + 100


KEYS = [txn_key(f"t{number}") for number in range(12)]
LARGE = b"x" * 1_000


def cut_on_doubt(*, count: int = 1) -> PartitionDriver:
    """A stands on doubt, which does not take its first content whole, and half has it no more."""
    driver = PartitionDriver()
    driver.log._publisher._doubt_bytes_max = 1_500
    driver.half(A, value=LARGE, count=count)
    driver.turn()
    driver.pass_time(after_ms=60_000)
    driver.half(B)
    driver.turn()
    del driver.log.half[0]
    return driver


@pytest.mark.promise("P11")
def test_what_is_cut_on_doubt_can_be_written_again_when_half_has_it_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = cut_on_doubt()
    monkeypatch.setattr("txlayer.core.ledger.doubt.REWRITE_LAG_MIN", 1)
    driver.ledger.doubt_index.next_offset += 10

    before = driver.log.on_doubt()[A].ensure_extras().doubt_offset

    driver.tick(after_ms=1_000)
    assert driver.ledger.batch.to_doubt[A].is_whole
    driver.publish()

    assert driver.log.on_doubt()[A].ensure_extras().doubt_offset > before
    assert codec.is_cut(driver.log.contents_on_doubt(A)[0].headers())
    assert [half_header(A)] == [codec.half_header_of(driver.log.contents_on_doubt(A)[0].headers())]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_headers_count_on_doubt(*, is_restarted: bool) -> None:
    driver = PartitionDriver(targets={"orders": MISSING})
    for key in KEYS:
        raw = [("big", LARGE), (HALF_HEADER, half_header(key))]
        record = half_record(None, key=b"k", value=None, headers=raw)
        driver.op("C", key, driver.log.add_half(record, appended_ms=driver.now_ms))
    driver.turn()
    if is_restarted:
        driver.crash(is_new_process=True)
        driver.turn()
    driver.ledger.batch_bytes_max = 4_000

    driver.set_target("orders", accepting_target(100_000))
    for _ in KEYS:
        driver.publish()
        driver.advance(byte_count=4_000)

    sent = [len(appended.messages) for appended in driver.log.appended if appended.messages]
    assert max(sent) <= 4


@pytest.mark.promise("P11")
def test_a_second_copy_of_one_on_doubt_moves_as_many_as_a_batch_takes() -> None:
    driver = PartitionDriver()
    driver.move_to_doubt(A)
    for key in KEYS:
        driver.half(key, value=LARGE)
    driver.half(A)
    driver.ledger.batch_bytes_max = 4_000

    driver.read()
    driver.advance(byte_count=4_000)

    assert len(driver.ledger.batch.to_doubt) <= 5
