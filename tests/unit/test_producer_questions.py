"""Questions that threads share: asked again by a new client when one waits for a broker that has died, or hangs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from threading import Event, Thread

import pytest

from txlayer.adapters.connect import QUESTION_TIMEOUT_MS, ProducerConnections, kafka_clients
from txlayer.adapters.kafka.admin import SharedAdmin
from txlayer.adapters.ports import TopicLimits
from txlayer.config import ProducerConfig
from txlayer.errors import BrokerUnavailableError, TopicMismatchError

LIMITS = TopicLimits(4, 1_000_000)


class Admin:
    """Answers after so many failures."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.timeout_ms = 0
        self.asked_count = 0

    def __call__(self, _config: ProducerConfig, *, timeout_ms: int) -> Admin:
        self.timeout_ms = timeout_ms
        return self

    def topic_limits(self, _topic: str) -> TopicLimits | None:
        self.asked_count += 1
        if self.failures:
            raise self.failures.pop(0)
        return LIMITS

    def close(self) -> None:
        pass


def silence() -> BrokerUnavailableError:
    return BrokerUnavailableError("no broker answered", bootstrap_servers="127.0.0.1:1", waited_ms=QUESTION_TIMEOUT_MS)


def connections_of(admin: Admin, *, start_timeout_s: int = 60) -> ProducerConnections:
    """Each look at the clock comes five seconds after the one before."""
    seconds = count(step=QUESTION_TIMEOUT_MS / 1000)
    config = ProducerConfig(bootstrap_servers="127.0.0.1:1", start_timeout=timedelta(seconds=start_timeout_s))
    shared = partial(SharedAdmin, config, make_admin=admin, clock=lambda: next(seconds))
    return ProducerConnections(replace(kafka_clients(config), shared_questions=shared), config)


@pytest.mark.fault("broker: is killed while a client of a producer or responder believes that it is the controller")
def test_a_client_that_gets_no_answer_is_not_waited_for_as_long_as_a_start_may_take() -> None:
    admin = Admin(silence(), silence())

    assert LIMITS == connections_of(admin).topic_limits("orders")

    assert QUESTION_TIMEOUT_MS == admin.timeout_ms
    assert 3 == admin.asked_count


def test_nobody_is_asked_for_longer_than_a_start_may_take() -> None:
    admin = Admin(*[silence() for _ in range(9)])

    with pytest.raises(BrokerUnavailableError) as caught:
        connections_of(admin, start_timeout_s=15).topic_limits("orders")

    assert 3 == admin.asked_count
    assert 15_000 == caught.value.waited_ms
    assert "127.0.0.1:1" == caught.value.bootstrap_servers


def test_a_short_start_is_one_short_question() -> None:
    admin = Admin(silence(), silence())

    with pytest.raises(BrokerUnavailableError):
        connections_of(admin, start_timeout_s=1).topic_limits("orders")

    assert (1_000, 1) == (admin.timeout_ms, admin.asked_count)


def test_a_refusal_is_told_at_once() -> None:
    admin = Admin(TopicMismatchError("of another form"))

    with pytest.raises(TopicMismatchError):
        connections_of(admin).topic_limits("orders")

    assert 1 == admin.asked_count


@pytest.mark.fault("broker: is killed while a client of a producer or responder believes that it is the controller")
def test_whoever_closes_waits_for_one_question_alone() -> None:
    admin = Admin(*[silence() for _ in range(9)])
    connections = connections_of(admin)
    connections.close()

    with pytest.raises(BrokerUnavailableError):
        connections.topic_limits("orders")

    assert 1 == admin.asked_count


@pytest.mark.fault("coordinator: a question to the cluster beside its loop hangs")
@pytest.mark.promise("P7")
def test_a_question_that_hangs_holds_up_no_other() -> None:
    began, go = Event(), Event()
    clients: list[str] = []

    class HangsAtFirst:
        def __init__(self, *_: object, **__: object) -> None:
            clients.append("made")
            self.number = len(clients)

        def groups_with_members(self, groups: Collection[str]) -> frozenset[str]:
            if self.number == 1:
                began.set()
                go.wait(60)
            return frozenset(groups)

        def close(self) -> None:
            clients.append(f"{self.number} closed")

    config = ProducerConfig(bootstrap_servers="127.0.0.1:1")
    shared = SharedAdmin(config, make_admin=HangsAtFirst, hung_s=0.01)
    answers: list[frozenset[str]] = []
    others = [Thread(target=lambda: answers.append(shared.groups_with_members(["shop"])), daemon=True) for _ in "12"]
    others[0].start()
    assert began.wait(60)

    others[1].start()
    others[1].join(60)
    shared.close()

    assert [frozenset({"shop"})] == answers
    assert ["made", "made", "2 closed"] == clients
    go.set()
    others[0].join(60)
