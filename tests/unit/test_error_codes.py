"""Kafka's codes: every number is the client's own, and every error says the same through either log."""

from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from txlayer.adapters.errors import (
    STALE_LEADER_CODES,
    UNAVAILABLE_CODES,
    Code,
    TranslatedWriter,
    translate_error,
    translate_unwritten,
)
from txlayer.adapters.errors import ClientError as AnyClientError
from txlayer.adapters.kafka.client import watermarks
from txlayer.adapters.memory.world import ClientError
from txlayer.adapters.readers import TranslatedMember
from txlayer.config import ClientConfig
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


class Writer(TranslatedWriter):
    """A client that knows no other cause than the error itself."""

    def _cause(self, error: AnyClientError) -> AnyClientError:
        return error


class Silent:
    """A consumer whose questions end with this error."""

    def __init__(self, code: Code) -> None:
        self._error = KafkaError(int(code), "said")

    def get_watermark_offsets(self, *_: Any, **_named: Any) -> tuple[int, int]:
        raise KafkaException(self._error)


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
    writer = Writer(bootstrap_servers="b", transactional_id="t", batch_bytes_max=1)
    member = TranslatedMember(group="g", bootstrap_servers="b", lost_to="it: begin anew")

    for said in (
        [translate_error(e, topic="orders") for e in (theirs, ours)],
        [translate_error(e, step="half", txn_id="id") for e in (theirs, ours)],
        [writer.translated(e) for e in (theirs, ours)],
        [writer.refusal(e, topic="orders", txn_key="k") for e in (theirs, ours)],
        [translate_unwritten(e, topic="ns.half", txn_id="id") for e in (theirs, ours)],
        [member.read_error(e) for e in (theirs, ours)],
        [member.store_error(e) for e in (theirs, ours)],
    ):
        assert type(said[0]) is type(said[1])
        assert str(said[0]) == str(said[1])


@pytest.mark.parametrize("code", list(PASSING_BY_ITSELF))
def test_what_passes_by_itself_can_be_tried_again(code: Code) -> None:
    error = translate_error(ClientError(code, "said", is_fatal=False, is_abortable=False))

    assert type(error) is PASSING_BY_ITSELF[code]
    assert isinstance(error, RetriableError)


def test_a_partition_that_the_client_does_not_know_now_may_be_asked_about_again() -> None:
    consumer = cast("Consumer", Silent(Code.LOCAL_UNKNOWN_PARTITION))

    with pytest.raises(RetriableError) as raised:
        watermarks(consumer, ("orders", 0), config=ClientConfig(), timeout_s=1)

    assert RetriableError is raised.type
    error = ClientError(Code.LOCAL_UNKNOWN_PARTITION, "said", is_fatal=False, is_abortable=False)
    assert RefusedRecordError is type(translate_error(error, topic="orders"))


def test_an_end_that_no_broker_tells_is_a_broker_that_is_away() -> None:
    consumer = cast("Consumer", Silent(Code.LOCAL_TRANSPORT))

    with pytest.raises(BrokerUnavailableError):
        watermarks(consumer, ("orders", 0), config=ClientConfig(), timeout_s=1)


def test_no_code_is_both_a_broker_that_is_away_and_a_leader_that_moved() -> None:
    assert UNAVAILABLE_CODES.isdisjoint(STALE_LEADER_CODES)
