"""A transactional id in memory: every state and every request, and markers that land late."""

from collections.abc import Callable

import pytest

from tests.support.memory_stage import GROUP, SOURCE, Stage, commit
from txlayer.adapters.errors import Code
from txlayer.adapters.memory.cluster import EPOCH_MAX, KafkaTransaction, TransactionState
from txlayer.adapters.memory.world import RefusedError
from txlayer.adapters.ports import StoredOffset
from txlayer.errors import BrokerUnavailableError

PLACE = ("orders", 0)

EMPTY, ONGOING, ENDING, ENDED = TransactionState
REFUSED = Code.INVALID_TXN_STATE
BUSY = Code.CONCURRENT_TRANSACTIONS


def transaction(state: TransactionState) -> KafkaTransaction:
    """One in that state; the ended ones were committed."""
    made = KafkaTransaction("id", 1, timeout_ms=10_000)
    if state is not EMPTY:
        made.add(1, 0, [PLACE], 0)
    if state in (ENDING, ENDED):
        made.end(1, 0, is_commit=True)
    if state is ENDED:
        made.marked(PLACE)
    assert state is made.state
    return made


REQUESTS: dict[str, Callable[[KafkaTransaction], object]] = {
    "reopen": lambda t: t.reopen(10_000, 2),
    "add": lambda t: t.add(1, 0, [("stock", 0)], 0),
    "write": lambda t: t.check_part(1, 0, PLACE),
    "commit": lambda t: t.end(1, 0, is_commit=True),
    "abort": lambda t: t.end(1, 0, is_commit=False),
}

TABLE: dict[tuple[TransactionState, str], object] = {
    (EMPTY, "reopen"): False,
    (EMPTY, "add"): None,
    (EMPTY, "write"): REFUSED,
    (EMPTY, "commit"): REFUSED,
    (EMPTY, "abort"): REFUSED,
    (ONGOING, "reopen"): True,
    (ONGOING, "add"): None,
    (ONGOING, "write"): None,
    (ONGOING, "commit"): True,
    (ONGOING, "abort"): True,
    (ENDING, "reopen"): BUSY,
    (ENDING, "add"): BUSY,
    (ENDING, "write"): REFUSED,
    (ENDING, "commit"): BUSY,
    (ENDING, "abort"): REFUSED,
    (ENDED, "reopen"): False,
    (ENDED, "add"): None,
    (ENDED, "write"): REFUSED,
    (ENDED, "commit"): False,
    (ENDED, "abort"): REFUSED,
}


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("request_kind", REQUESTS)
def test_each_request_is_answered_by_the_state(state: TransactionState, request_kind: str) -> None:
    made = transaction(state)

    try:
        answer: object = REQUESTS[request_kind](made)
    except RefusedError as exc:
        answer = exc.code

    assert TABLE[state, request_kind] == answer


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("request_kind", ["add", "write", "commit", "abort"])
def test_an_older_epoch_is_refused_in_every_state(state: TransactionState, request_kind: str) -> None:
    made = transaction(state)
    made.epoch += 1

    with pytest.raises(RefusedError, match="INVALID_PRODUCER_EPOCH"):
        REQUESTS[request_kind](made)
    assert state is made.state


def test_a_strange_producer_id_is_refused() -> None:
    with pytest.raises(RefusedError, match="INVALID_PRODUCER_ID_MAPPING"):
        transaction(ONGOING).add(9, 0, [PLACE], 0)


def test_giving_up_fences_and_aborts() -> None:
    made = transaction(ONGOING)

    made.give_up()

    assert (1, ENDING, False) == (made.epoch, made.state, made.is_commit)
    assert {PLACE} == made.unmarked


def test_epochs_that_run_out_begin_anew_with_another_producer_id() -> None:
    made = transaction(EMPTY)
    made.epoch = EPOCH_MAX

    made.reopen(10_000, 2)

    assert (2, 0) == (made.producer_id, made.epoch)


def test_only_an_ongoing_one_times_out() -> None:
    assert 10_000 == transaction(ONGOING).due_ms
    for state in (EMPTY, ENDING, ENDED):
        assert float("inf") == transaction(state).due_ms


HELD = float("inf")


def test_a_commit_is_answered_before_its_markers_land() -> None:
    stage = Stage(marker_delay_ms=lambda: HELD)
    commit(stage.writer(), b"v")

    assert (2, []) == (len(stage.kafka.cluster.markers), stage.values())
    assert [b"v"] == stage.values("read_uncommitted")
    with pytest.raises(BrokerUnavailableError):
        stage.connections().stored_offsets(GROUP, [SOURCE], is_stable=True)

    assert 2 == stage.kafka.land_markers()
    assert [b"v"] == stage.values()
    assert {SOURCE: StoredOffset(1, "")} == stage.kafka.stored_offsets(GROUP)


def test_markers_land_place_by_place() -> None:
    stage = Stage(marker_delay_ms=lambda: HELD)
    commit(stage.writer(), b"v")

    assert 1 == stage.kafka.land_markers(count=1)

    assert [b"v"] == stage.values()
    assert {} == stage.kafka.stored_offsets(GROUP)


def test_a_writers_next_kafka_transaction_waits_for_its_markers_and_anothers_does_not() -> None:
    stage = Stage(marker_delay_ms=lambda: 500)
    first, second = stage.writer("a"), stage.writer("b")
    commit(first, b"0")
    commit(second, b"1", offset=2)
    assert 0.5 > stage.world.passed_s
    assert [] == stage.values()

    commit(first, b"2", offset=3)

    assert 0.4 < stage.world.passed_s
    stage.world.advance(ms=500)
    assert [b"0", b"1", b"2"] == stage.values()
    assert {SOURCE: StoredOffset(3, "")} == stage.kafka.stored_offsets(GROUP)


def test_an_init_waits_for_the_markers_of_what_it_ends() -> None:
    stage = Stage(marker_delay_ms=lambda: 500)
    zombie = stage.writer()
    zombie.begin()
    zombie.produce("orders", b"zombie", None, 0)
    zombie.flush(timeout_s=5)

    stage.writer()

    assert 0.5 <= stage.world.passed_s
    assert (0, []) == (len(stage.kafka.cluster.markers), stage.values())
    assert {("orders", 0): 2} == stage.connections().end_offsets([("orders", 0)])


def test_markers_of_a_deleted_topic_hold_nothing_up() -> None:
    stage = Stage(marker_delay_ms=lambda: 500)
    writer = stage.writer()
    commit(writer, b"0")
    stage.kafka.delete_topic("orders")
    stage.kafka.create_topic("orders")
    stage.world.advance(ms=500)

    commit(writer, b"1")

    stage.world.advance(ms=500)
    assert [b"1"] == stage.values()
