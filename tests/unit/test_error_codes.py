"""Kafka's codes: every number is the client's own, and every error says the same through either log."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from txlayer.adapters.errors import (
    STALE_LEADER_CODES,
    UNAVAILABLE_CODES,
    Code,
    translate_error,
    translate_read_error,
    translate_refusal,
    translate_unknown_end,
    translate_unwritten,
    translate_writer_error,
)
from txlayer.adapters.memory.world import ClientError
from txlayer.errors import BrokerUnavailableError, RefusedRecordError, RetriableError

# librdkafka's own list of errors that it answers by asking for the leaders again, or by trying again
# (`rd_kafka_err_action`), without those that say something of a record or a group.
PASSING_BY_ITSELF = {
    Code.LOCAL_DESTROY_BROKER: BrokerUnavailableError,
    Code.LOCAL_SSL: BrokerUnavailableError,
    Code.LOCAL_TRANSPORT: BrokerUnavailableError,
    Code.LOCAL_TIMED_OUT: BrokerUnavailableError,
    Code.LOCAL_TIMED_OUT_QUEUE: BrokerUnavailableError,
    Code.LOCAL_WAIT_COORD: BrokerUnavailableError,
    Code.BROKER_NOT_AVAILABLE: BrokerUnavailableError,
    Code.LEADER_NOT_AVAILABLE: BrokerUnavailableError,
    Code.NETWORK_EXCEPTION: BrokerUnavailableError,
    Code.REQUEST_TIMED_OUT: BrokerUnavailableError,
    Code.COORDINATOR_NOT_AVAILABLE: BrokerUnavailableError,
    Code.NOT_COORDINATOR: BrokerUnavailableError,
    Code.NOT_LEADER_FOR_PARTITION: RetriableError,
    Code.FENCED_LEADER_EPOCH: RetriableError,
    Code.UNKNOWN_LEADER_EPOCH: RetriableError,
    Code.REPLICA_NOT_AVAILABLE: RetriableError,
    Code.OFFSET_NOT_AVAILABLE: RetriableError,
    Code.KAFKA_STORAGE_ERROR: RetriableError,
}


@pytest.mark.parametrize("code", [c for c in Code if c is not Code.NO_ERROR])
def test_a_code_has_the_clients_number_and_name(code: Code) -> None:
    assert int(code) == getattr(KafkaError, code.kafka_name)
    assert code.kafka_name == KafkaError(int(code)).name()


@pytest.mark.parametrize("code", [c for c in Code if c is not Code.NO_ERROR])
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)])
def test_an_error_means_the_same_whichever_client_reports_it(code: Code, flags: tuple[bool, bool]) -> None:
    is_fatal, is_abortable = flags
    theirs = KafkaError(int(code), "said", fatal=is_fatal, txn_requires_abort=is_abortable)
    ours = ClientError(code, "said", is_fatal=is_fatal, is_abortable=is_abortable)
    writer = {"bootstrap_servers": "b", "transactional_id": "t"}

    for said in (
        [translate_error(e, topic="orders") for e in (theirs, ours)],
        [translate_error(e, step="half", txn_id="id") for e in (theirs, ours)],
        [translate_writer_error(e, **writer) for e in (theirs, ours)],
        [translate_refusal(e, topic="orders", txn_key="k", **writer) for e in (theirs, ours)],
        [translate_unwritten(e, topic="ns.half", txn_id="id") for e in (theirs, ours)],
        [
            translate_read_error(e, group="g", bootstrap_servers="b", reader="it", advice="begin anew")
            for e in (theirs, ours)
        ],
    ):
        assert type(said[0]) is type(said[1])
        assert str(said[0]) == str(said[1])


@pytest.mark.parametrize("code", list(PASSING_BY_ITSELF))
def test_what_passes_by_itself_can_be_tried_again(code: Code) -> None:
    error = translate_error(ClientError(code, "said", is_fatal=False, is_abortable=False))

    assert type(error) is PASSING_BY_ITSELF[code]
    assert isinstance(error, RetriableError)


def test_a_partition_that_the_client_does_not_know_now_may_be_asked_about_again() -> None:
    error = ClientError(Code.LOCAL_UNKNOWN_PARTITION, "said", is_fatal=False, is_abortable=False)

    assert RetriableError is type(translate_unknown_end(error, bootstrap_servers="b"))
    assert RefusedRecordError is type(translate_error(error, topic="orders"))


def test_an_end_that_no_broker_tells_is_a_broker_that_is_away() -> None:
    error = ClientError(Code.LOCAL_TRANSPORT, "said", is_fatal=False, is_abortable=False)

    assert BrokerUnavailableError is type(translate_unknown_end(error, bootstrap_servers="b"))


def test_no_code_is_both_a_broker_that_is_away_and_a_leader_that_moved() -> None:
    assert UNAVAILABLE_CODES.isdisjoint(STALE_LEADER_CODES)
