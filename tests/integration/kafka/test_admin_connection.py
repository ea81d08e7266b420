"""The admin client is given up when what it knows may be out of date."""

import concurrent.futures

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.broker import create_topic, unique_name
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig
from txlayer.errors import RetriableError

pytestmark = pytest.mark.kafka


def refused_with(code: int) -> concurrent.futures.Future[None]:
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def test_a_client_that_is_told_it_is_out_of_date_is_not_asked_again(config: ClientConfig) -> None:
    connection = KafkaAdmin(config, timeout_ms=5_000)
    old = connection.client()

    with pytest.raises(RetriableError):
        connection.wait(refused_with(KafkaError.FENCED_LEADER_EPOCH), resource="orders", operation="describe")

    assert connection.client() is not old
    connection.close()


def test_a_client_whose_question_was_answered_as_foreseen_is_kept(config: ClientConfig) -> None:
    connection = KafkaAdmin(config, timeout_ms=5_000)
    old = connection.client()
    code = KafkaError.UNKNOWN_TOPIC_OR_PART

    answer = connection.wait(refused_with(code), resource="orders", operation="describe", foreseen={code})

    assert code == answer.code()
    assert connection.client() is old
    connection.close()


def test_the_first_question_of_a_new_client_may_be_one_to_leaders(
    config: ClientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (create_topic(config.bootstrap_servers, unique_name("first"), partitions=1), 0)
    make = KafkaAdmin.client

    def make_and_dawdle(connection: KafkaAdmin) -> AdminClient:
        client = make(connection)
        client.poll(0.001)  # it connects meanwhile: the moment that one in seven clients misses
        return client

    monkeypatch.setattr(KafkaAdmin, "client", make_and_dawdle)
    for _ in range(60):
        with KafkaAdmin(config, timeout_ms=2_500) as admin:
            assert {place: 0} == admin.start_offsets([place])
