"""The store of offsets and the lease of a queue: what an error, a rewritten lease and a loss leave behind."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from txlayer.adapters.ports import StoredOffset, StoringGroupReader, TopicPartition
from txlayer.consumer.context import Lease
from txlayer.consumer.metrics import TopicCounts
from txlayer.consumer.offsets import OffsetStorer, OwnedPartition
from txlayer.core.key_queue import ItemSource
from txlayer.errors import BrokerUnavailableError


class Queues:
    """Something changed in both sources, as long as it is not stored."""

    def __init__(self) -> None:
        self.stored_count = 0
        self.is_dropped = False

    def is_changed(self, source: ItemSource) -> bool:
        del source
        return True

    def snapshot(self, source: ItemSource) -> Any:
        del source
        return SimpleNamespace(offset=7, metadata="", version=1)

    def stored(self, source: ItemSource, version: int) -> None:
        del source, version
        self.stored_count += 1

    def drop_queued(self) -> None:
        self.is_dropped = True


class Reader:
    """Acknowledges a store, or fails, when a test says so; a store that is begun beside another one is refused."""

    def __init__(self) -> None:
        self.begun_count = 0
        self.is_under_way = False
        self.is_acknowledged = False
        self.failure: Exception | None = None

    def begin_store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        assert offsets
        assert not self.is_under_way
        self.is_under_way = True
        self.begun_count += 1

    def take_stored(self) -> bool:
        if self.failure is not None:
            self.is_under_way = False
            raise self.failure
        is_stored, self.is_acknowledged = self.is_acknowledged, False
        self.is_under_way &= not is_stored
        return is_stored

    def store_offsets(self, offsets: Mapping[TopicPartition, StoredOffset], *, timeout_s: float) -> None:
        del offsets, timeout_s
        self.is_under_way = False


def owned_partition() -> OwnedPartition:
    lease = Lease("g", "orders", 0, token=1)
    lease.valid_until = 10.0
    queues = cast("Any", Queues())
    return OwnedPartition(
        lease, queues, route=cast("Any", None), tally=TopicCounts(), chunk_s=1.0, next_offsets={("orders", 0): 0}
    )


def storer_over(reader: Reader) -> OffsetStorer:
    return OffsetStorer(cast("StoringGroupReader", reader), interval_s=0.0, timeout_s=5.0, clock=lambda: 1.0)


def test_the_first_store_begins_at_once_also_on_a_machine_that_has_just_started() -> None:
    reader = Reader()
    storer = OffsetStorer(cast("StoringGroupReader", reader), interval_s=3600.0, timeout_s=5.0, clock=lambda: 1.0)

    storer.begin([owned_partition()])

    assert 1 == reader.begun_count


def test_a_store_that_failed_is_over() -> None:
    reader, owned = Reader(), owned_partition()
    storer = storer_over(reader)
    storer.begin([owned])
    reader.failure = BrokerUnavailableError("as planned")
    with pytest.raises(BrokerUnavailableError):
        storer.look()
    reader.failure = None

    storer.begin([owned])

    assert 2 == reader.begun_count


def test_a_store_that_waits_also_ends_the_one_before_it() -> None:
    reader, owned = Reader(), owned_partition()
    storer = storer_over(reader)
    storer.begin([owned])

    storer.store_now([owned], timeout_s=5.0)

    assert not storer.is_under_way


def test_nothing_waits_for_a_store_of_a_revoked_assignment() -> None:
    reader = Reader()
    storer = storer_over(reader)
    storer.begin([owned_partition()])

    storer.end()

    assert not storer.is_under_way


@pytest.mark.promise("P10")
def test_a_handler_that_began_before_its_lease_was_rewritten_keeps_the_lease_and_is_told_of_its_loss() -> None:
    owned = owned_partition()
    of_handler = owned.lease
    owned.renew(2)

    owned.extend(70.0)
    assert (1, 70.0) == (of_handler.token, of_handler.valid_until)
    assert (2, 70.0) == (owned.lease.token, owned.lease.valid_until)
    assert not of_handler.lost.is_set()

    owned.end()
    assert of_handler.lost.is_set()
    assert owned.lease.lost.is_set()
