"""Dead letters that took too long together go fewer at once, so that they come to an end."""

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from txlayer.consumer.completions import END_COUNT_MAX, Completions
from txlayer.consumer.dead_letters import DeadLetterWriter, GivenUpMessage
from txlayer.consumer.offsets import OwnedPartition
from txlayer.core.dead_letters import DeadLetterReason
from txlayer.core.key_queue import ItemSource
from txlayer.core.messages import Origin
from txlayer.errors import BrokerUnavailableError, ProducerFencedError, TxLayerError

TIMEOUT_MS = 10_000


class FakeQueues:
    """So many dead letters are due."""

    def __init__(self, due_count: int, size_bytes: int = 0) -> None:
        self.due_count = due_count
        self.size_bytes = size_bytes

    def take_due(self, count_max: int, *, bytes_max: int, of_requests: bool | None = None) -> list[Any]:
        assert not of_requests
        more = SimpleNamespace(end=DeadLetterReason.REJECTED)
        item = SimpleNamespace(
            more=more, record=None, size_bytes=self.size_bytes, is_replay=False, source=ItemSource.TOPIC
        )
        count_max = min(count_max, -(-bytes_max // max(self.size_bytes, 1)))
        return [item] * min(count_max, self.due_count)

    @property
    def has_due(self) -> bool:
        return self.due_count > 0

    @property
    def due_sources(self) -> list[ItemSource]:
        return [ItemSource.TOPIC] * self.has_due

    def ending(self, items: list[Any], places: list[int]) -> list[Any]:
        del items, places
        return [SimpleNamespace(offset=0, metadata="")] * 2

    def not_written(self, items: list[Any]) -> None:
        """They are due as before."""

    def written(self, items: list[Any], places: list[int], snapshots: Any) -> None:
        del places, snapshots
        self.due_count -= len(items)


class SlowWriter:
    """Each letter takes a tenth of the time that a Kafka transaction has; the broker ends one that lasts too long."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.tried: list[int] = []
        self.spent_ms: list[int] = []

    def write_letters(self, letters: list[GivenUpMessage], answers: list[Any], *, offsets: Any, member: Any) -> None:
        del answers, member
        self.tried.append(len(letters))
        self.now_ms += min(len(letters) * TIMEOUT_MS // 10, TIMEOUT_MS + 1)
        if len(letters) > 10:
            raise ProducerFencedError("its Kafka transaction was ended", transactional_id="w")
        offsets(list(range(len(letters))))


class PlainEnds(Completions):
    """Makes no letter of an item that is none."""

    def _letter(self, owned: OwnedPartition, item: Any) -> Any:
        del item
        return SimpleNamespace(origin=Origin(*owned.topic_partition, 0))

    def _log_letter(self, owned: OwnedPartition, item: Any, offset: int | None) -> None:
        """Nothing."""


def owned_queue(partition: int, due_count: int, *, size_bytes: int = 0) -> OwnedPartition:
    place = ("orders", partition)
    return cast(
        "OwnedPartition",
        SimpleNamespace(
            queue=FakeQueues(due_count, size_bytes),
            topic_partition=place,
            replay_partition=("g.orders.replay", partition),
            partition_of=lambda _source: place,
            tally=SimpleNamespace(dead_lettered=0),
        ),
    )


def written(writer: SlowWriter, queues: list[OwnedPartition], *, rounds: int = 1, pause_ms: int = 1_000) -> list[int]:
    """How many are still due in each queue after so many rounds, between which the consumer takes another writer."""
    ends = PlainEnds(group="g", now_ms=lambda: writer.now_ms, cut=id, kafka_transaction_timeout_ms=TIMEOUT_MS)
    for _ in range(rounds):
        began_ms = writer.now_ms
        with contextlib.suppress(TxLayerError):
            ends.write(queues, cast("DeadLetterWriter", writer), None)
        writer.spent_ms.append(writer.now_ms - began_ms)
        writer.now_ms += pause_ms
    return [cast("FakeQueues", owned.queue).due_count for owned in queues]


@pytest.mark.fault("consumer: the dead letters of one batch take longer than a Kafka transaction may")
@pytest.mark.promise("P9", "P11")
def test_dead_letters_that_take_too_long_together_go_fewer_at_once() -> None:
    writer = SlowWriter()
    queues = [owned_queue(partition, 600) for partition in range(3)]

    assert [0, 0, 0] == written(writer, queues, rounds=1_000)
    assert 3 * END_COUNT_MAX == writer.tried[0]


@pytest.mark.fault("consumer: the dead letters of one batch take longer than a Kafka transaction may")
def test_no_queue_waits_for_all_others_while_few_go_at_once() -> None:
    queues = [owned_queue(partition, 100_000) for partition in range(3)]

    assert max(written(SlowWriter(), queues, rounds=30, pause_ms=10_000)) < 100_000


class DeafWriter(SlowWriter):
    """One queue's dead letters are never acknowledged; those of others are at once."""

    def write_letters(self, letters: list[GivenUpMessage], answers: list[Any], *, offsets: Any, member: Any) -> None:
        del answers, member
        self.tried.append(len(letters))
        if any(given_up.letter.origin.partition == 0 for given_up in letters):
            self.now_ms += TIMEOUT_MS
            raise BrokerUnavailableError("not acknowledged", waited_ms=TIMEOUT_MS)
        offsets(list(range(len(letters))))


@pytest.mark.fault("consumer: a partition of the dead letter topic takes nothing")
@pytest.mark.promise("P9")
def test_ends_that_cannot_be_written_wait_ever_longer_and_hold_up_no_other_queue() -> None:
    writer = DeafWriter()
    queues = [owned_queue(0, 1), owned_queue(1, 30), owned_queue(2, 30)]

    assert [1, 0, 0] == written(writer, queues, rounds=600)
    assert 5 < writer.spent_ms.count(TIMEOUT_MS) <= 15  # the last of them 60 s after each other


@pytest.mark.fault("consumer: the dead letters of one batch take longer than a Kafka transaction may")
@pytest.mark.promise("P11")
def test_dead_letters_of_one_kafka_transaction_are_bounded_in_bytes() -> None:
    writer = SlowWriter()

    written(writer, [owned_queue(0, 100, size_bytes=4 * 1024 * 1024)])

    assert [4] == writer.tried
