"""What each code of each request does to a transactional writer in memory: as measured with the real client."""

import pytest

from tests.support.memory_stage import Stage, commit
from txlayer.adapters.errors import Code
from txlayer.adapters.memory import Fault
from txlayer.errors import (
    BrokerUnavailableError,
    ForbiddenTopicError,
    MemberFencedError,
    NotAuthorisedError,
    ProducerFencedError,
    RefusedRecordError,
    RetriableError,
    TxLayerError,
)
from txlayer.runtime.kafka_transactions import commit as patient_commit

MOVED = ["COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"]
BUSY = "CONCURRENT_TRANSACTIONS"

INSIDE = {
    "InitProducerId": [*MOVED, BUSY, "UNKNOWN"],
    "AddPartitionsToTxn": [*MOVED, BUSY, "UNKNOWN_TOPIC_OR_PART"],
    "Produce": [
        "UNKNOWN_TOPIC_OR_PART",
        "NOT_LEADER_FOR_PARTITION",
        "REQUEST_TIMED_OUT",
        "INVALID_MSG",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "KAFKA_STORAGE_ERROR",
    ],
    "AddOffsetsToTxn": [*MOVED, BUSY],
    "TxnOffsetCommit": [*MOVED, "UNKNOWN_TOPIC_OR_PART", BUSY],
    "EndTxn": [*MOVED, BUSY],
}

ABORT: dict[str, dict[str, type[TxLayerError]]] = {
    "AddPartitionsToTxn": {
        "TOPIC_AUTHORIZATION_FAILED": ForbiddenTopicError,
        "INVALID_PRODUCER_ID_MAPPING": TxLayerError,
        "UNKNOWN_PRODUCER_ID": TxLayerError,
        "TRANSACTION_ABORTABLE": TxLayerError,
    },
    "Produce": {
        "MSG_SIZE_TOO_LARGE": RefusedRecordError,
        "RECORD_LIST_TOO_LARGE": RefusedRecordError,
        "INVALID_TIMESTAMP": RefusedRecordError,
        "INVALID_RECORD": RefusedRecordError,
        "POLICY_VIOLATION": RefusedRecordError,
        "TOPIC_AUTHORIZATION_FAILED": ForbiddenTopicError,
        "CLUSTER_AUTHORIZATION_FAILED": NotAuthorisedError,
        "INVALID_TXN_STATE": TxLayerError,
        "PRODUCER_FENCED": ProducerFencedError,
        "UNKNOWN": TxLayerError,
    },
    "AddOffsetsToTxn": {
        "GROUP_AUTHORIZATION_FAILED": NotAuthorisedError,
        "PRODUCER_FENCED": ProducerFencedError,
        "UNKNOWN": TxLayerError,
    },
    "TxnOffsetCommit": {
        "ILLEGAL_GENERATION": MemberFencedError,
        "UNKNOWN_MEMBER_ID": MemberFencedError,
        "FENCED_INSTANCE_ID": MemberFencedError,
        "STALE_MEMBER_EPOCH": MemberFencedError,
        "REBALANCE_IN_PROGRESS": MemberFencedError,
        "OFFSET_METADATA_TOO_LARGE": TxLayerError,
        "PRODUCER_FENCED": ProducerFencedError,
    },
    "EndTxn": {"INVALID_PRODUCER_ID_MAPPING": TxLayerError, "TRANSACTION_ABORTABLE": TxLayerError},
}

FATAL: dict[str, dict[str, type[TxLayerError]]] = {
    "InitProducerId": {
        "INVALID_TRANSACTION_TIMEOUT": TxLayerError,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": NotAuthorisedError,
        "INVALID_PRODUCER_EPOCH": ProducerFencedError,
        "PRODUCER_FENCED": ProducerFencedError,
    },
    "AddPartitionsToTxn": {
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": NotAuthorisedError,
        "INVALID_PRODUCER_EPOCH": ProducerFencedError,
        "PRODUCER_FENCED": ProducerFencedError,
        "INVALID_TXN_STATE": TxLayerError,
    },
    "Produce": {"OUT_OF_ORDER_SEQUENCE_NUMBER": TxLayerError, "INVALID_PRODUCER_EPOCH": ProducerFencedError},
    "AddOffsetsToTxn": {"INVALID_PRODUCER_EPOCH": ProducerFencedError, "INVALID_TXN_STATE": TxLayerError},
    "TxnOffsetCommit": {
        "INVALID_PRODUCER_EPOCH": ProducerFencedError,
        "INVALID_PRODUCER_ID_MAPPING": TxLayerError,
        "INVALID_TXN_STATE": TxLayerError,
    },
    "EndTxn": {
        "INVALID_PRODUCER_EPOCH": ProducerFencedError,
        "PRODUCER_FENCED": ProducerFencedError,
        "INVALID_TXN_STATE": TxLayerError,
    },
}


def cases(table: dict[str, dict[str, type[TxLayerError]]]) -> list[tuple[str, str, type[TxLayerError]]]:
    return [(r, code, error) for r, codes in table.items() for code, error in codes.items()]


@pytest.mark.parametrize(("request_kind", "code"), [(r, c) for r, codes in INSIDE.items() for c in codes])
def test_some_answers_stay_inside_of_the_client(request_kind: str, code: str) -> None:
    stage = Stage()
    stage.world.faults.refuse(request_kind, code, times=2)

    commit(stage.writer(), b"v")

    assert [b"v"] == [r.value() for r in stage.kafka.records("orders")]
    assert 2 == stage.world.faults.seen[Fault.REFUSE, request_kind]
    assert 3 <= stage.world.requests.count(request_kind)


@pytest.mark.parametrize(("request_kind", "code", "error"), cases(ABORT))
def test_some_answers_ruin_the_kafka_transaction_alone(request_kind: str, code: str, error: type[TxLayerError]) -> None:
    stage = Stage()
    writer = stage.writer()
    stage.world.faults.refuse(request_kind, code)

    with pytest.raises(error) as raised:
        commit(writer, b"v")

    if error is not TxLayerError:
        assert error is type(raised.value)
    with pytest.raises(Exception, match="_STATE"):  # not FATAL
        writer.produce("orders", b"v", b"k", 0)
    assert [] == stage.kafka.records("orders")
    commit(stage.writer(), b"v")
    assert [b"v"] == [r.value() for r in stage.kafka.records("orders")]


@pytest.mark.parametrize(("request_kind", "code", "error"), cases(FATAL))
def test_some_answers_end_the_writer(request_kind: str, code: str, error: type[TxLayerError]) -> None:
    stage = Stage()
    writer = stage.connections().make_writer("id", batch_bytes_max=10_000)
    if request_kind != "InitProducerId":
        writer.initialise(timeout_s=5)
    stage.world.faults.refuse(request_kind, code)

    is_init = request_kind == "InitProducerId"
    with pytest.raises(error):
        writer.initialise(timeout_s=5) if is_init else commit(writer, b"v")

    with pytest.raises(TxLayerError):
        writer.begin()
    with pytest.raises(TxLayerError):
        writer.commit(timeout_s=5)
    with pytest.raises(Exception, match="FATAL") as raised:
        writer.produce("orders", b"v", b"k", 0)
    assert isinstance(writer.failure(raised.value), ProducerFencedError)
    assert [] == stage.kafka.records("orders")


def test_a_commit_that_nobody_answers_is_called_again() -> None:
    stage = Stage()
    writer = stage.writer()
    stage.world.faults.plan(Fault.LOSE_REQUEST, "EndTxn", times=1 << 30)
    with pytest.raises(RetriableError) as raised:
        commit(writer, b"v")
    assert not isinstance(raised.value, BrokerUnavailableError)

    stage.world.faults.forget()
    writer.commit(timeout_s=5)

    assert [b"v"] == [r.value() for r in stage.kafka.records("orders")]


@pytest.mark.parametrize("code", ["NETWORK_EXCEPTION", "OFFSET_NOT_AVAILABLE"])
def test_a_commit_that_has_failed_is_not_called_again(code: str) -> None:
    stage = Stage()
    writer = stage.writer()
    writer.begin()
    writer.produce("orders", b"v", b"k", 0)
    stage.world.faults.refuse("EndTxn", code)
    clock = iter(range(100))

    with pytest.raises(BrokerUnavailableError):
        patient_commit(writer, timeout_s=10, clock=lambda: next(clock))

    assert 1 == next(clock)


def test_offsets_that_nobody_answers_are_unavailable() -> None:
    stage = Stage()
    writer = stage.writer()
    stage.world.faults.plan(Fault.LOSE_REQUEST, "TxnOffsetCommit", times=1 << 30)

    with pytest.raises(BrokerUnavailableError):
        commit(writer, b"v")


def test_records_that_nobody_takes_wait_and_then_ruin_the_kafka_transaction() -> None:
    stage = Stage()
    writer = stage.writer()
    writer.begin()
    writer.produce("orders", b"v", b"k", 0)
    stage.kafka.lead("orders", is_led=False)
    assert 1 == writer.flush(timeout_s=5)

    assert 0 == writer.flush(timeout_s=10)

    with pytest.raises(BrokerUnavailableError):
        writer.commit(timeout_s=5)


def test_what_the_client_did_not_raise_is_raised_again() -> None:
    with pytest.raises(KeyError):
        Stage().writer().failure(KeyError("ours"))


def test_every_code_of_the_tables_is_known() -> None:
    named = {code for codes in INSIDE.values() for code in codes}
    named |= {code for table in (ABORT, FATAL) for codes in table.values() for code in codes}

    assert named <= set(Code.__members__)
