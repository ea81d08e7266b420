"""What is fetched again belongs to the transaction that it is fetched for, and goes where messages may go."""

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pytest

from tests.support.core_records import half_header, plain_record, txn_key
from tests.support.memory_stage import Stage
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.readers import RangeReader
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.contents import fetch_contents, is_cut
from txlayer.coordinator.publish import Precautions, Publisher
from txlayer.coordinator.targets import Targets
from txlayer.core.codec import HALF_HEADER, content_key, cut_content, encode_content, encode_origin
from txlayer.core.ledger.batch import Batch
from txlayer.core.ledger.transaction import Content, DueTimes, Transaction
from txlayer.core.messages import NO_OPTIONS, HalfOptions
from txlayer.errors import InvariantError
from txlayer.operate.history import read_half_records

A, B = txn_key("a"), txn_key("b")


def range_reader(stage: Stage) -> RangeReader:
    client = stage.connections().make_reader("read_committed")
    return RangeReader(client, patience_s=5, clock=stage.world.monotonic)


def transaction(offset: int) -> Transaction:
    """A transaction of one message whose content was dropped."""
    return Transaction(A, "shop", "orders", offset, 0, "0", (0, 0), None)


@pytest.mark.promise("P3")
def test_the_same_key_in_two_partitions_is_two_transactions() -> None:
    stage = Stage()
    half_writer = stage.half_writer()
    for partition in (0, 1):
        raw = [(HALF_HEADER, half_header(A))]
        half_writer.produce("source", b"%d" % partition, b"k", partition, None, None, 0, raw)
    half_writer.close(timeout_s=20)

    found = fetch_contents(
        range_reader(stage),
        [(partition, transaction(0), 1) for partition in (0, 1)],
        half_topic="source",
        doubt_topic="doubt",
    )

    assert {(0, A): [b"0"], (1, A): [b"1"]} == {
        which: [content.record.value() for content in contents] for which, contents in found.items()
    }


def on_doubt(*messages: tuple[str, int]) -> Stage:
    """A stage whose topic doubt holds content 0 of A, other messages with their markers, and content 1."""
    stage = Stage()
    stage.kafka.create_topic("doubt", partitions=1)
    ours, others = stage.writer("ours"), stage.writer("others")

    def put(writer: Any, key: str, index: int) -> None:
        headers = [(HALF_HEADER, half_header(key, index=index, count=2))]
        value, kept = encode_content(
            key=b"k",
            value=b"%d" % index,
            headers=headers,
            origin=encode_origin(partition=0, offset=index, index=index, count=2, born_ms="0"),
        )
        writer.produce("doubt", value, content_key(key, index), 0, None, None, 0, kept)
        writer.flush(timeout_s=30)

    ours.begin()
    for key, index in messages:
        if key == A:
            put(ours, key, index)
        else:
            others.begin()
            put(others, key, index)
            others.commit(timeout_s=30)
    ours.commit(timeout_s=30)
    return stage


def doubtful() -> Transaction:
    """A on doubt, with two contents from offset 0 on."""
    txn = transaction(0)
    txn.count = txn.seen = 2
    txn.last_offset = 1
    txn.ensure_extras().doubt_offset = 0
    return txn


def fetch(stage: Stage, txn: Transaction, count: int) -> list[bytes | None]:
    found = fetch_contents(range_reader(stage), [(0, txn, count)], half_topic="source", doubt_topic="doubt")
    return [content.record.value() for content in found[0, A]]


@pytest.mark.promise("P1")
def test_contents_on_doubt_are_found_behind_markers_and_what_others_wrote() -> None:
    stage = on_doubt((A, 0), (B, 0), (B, 1), (A, 1))

    assert [b"0", b"1"] == fetch(stage, doubtful(), 2)


@pytest.mark.promise("P11")
def test_contents_that_were_written_later_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("adapters.readers", "coordinator.contents"):
        monkeypatch.setattr(f"txlayer.{module}.RUN_GAP_MAX", 3)
    stage = on_doubt((A, 0), *[(B, 0)] * 50, (A, 1))
    txn, seen = doubtful(), list[Any]()
    txn.ensure_extras().further_at = ((1, 101),)  # behind 50 records of B and their markers
    reader = range_reader(stage)
    reading = RangeReader.read

    def watch(self: RangeReader, ranges: Any) -> Iterator[Any]:
        for record in reading(self, ranges):
            seen.append(record)
            yield record

    monkeypatch.setattr(RangeReader, "read", watch)

    found = fetch_contents(reader, [(0, txn, 2)], half_topic="source", doubt_topic="doubt")

    assert [b"0", b"1"] == [content.record.value() for content in found[0, A]]
    assert [0, 101] == [record.offset() for record in seen]


@pytest.mark.promise("P5")
def test_a_transaction_whose_content_is_not_all_there_is_not_forwarded_in_part() -> None:
    stage = on_doubt((A, 0), (B, 0), (B, 1))
    with pytest.raises(InvariantError, match="1 of 2 contents"):
        fetch(stage, doubtful(), 2)

    half_writer = stage.half_writer()
    half_writer.produce("source", b"0", b"k", 0, None, None, 0, [(HALF_HEADER, half_header(B))])
    half_writer.close(timeout_s=20)
    with pytest.raises(InvariantError, match="0 of 1 contents"):
        fetch(stage, transaction(0), 1)


@pytest.mark.promise("P3")
def test_the_content_of_one_on_doubt_is_not_taken_from_half_also_where_another_is_read_there() -> None:
    """Half may hold a later record under its key, which never belonged to it: it has other bytes."""
    stage = on_doubt((A, 0), (A, 1))
    stage.kafka.append("source", b"of b", headers=[(HALF_HEADER, half_header(B, count=2))])
    for index in range(2):
        stage.kafka.append("source", b"of nobody", headers=[(HALF_HEADER, half_header(A, index=index, count=2))])
    stage.kafka.append("source", b"of b", headers=[(HALF_HEADER, half_header(B, index=1, count=2))])
    in_half = Transaction(B, "shop", "orders", 0, 0, "0", (0, 0), None)
    in_half.count = in_half.seen = 2
    in_half.last_offset, in_half.ensure_extras().offsets = 3, [0, 3]

    for _ in range(10):  # whichever topic the broker serves first
        found = fetch_contents(
            range_reader(stage), [(0, doubtful(), 2), (0, in_half, 2)], half_topic="source", doubt_topic="doubt"
        )

        assert {A: [b"0", b"1"], B: [b"of b", b"of b"]} == {
            key: [content.record.value() for content in contents] for (_, key), contents in found.items()
        }


@pytest.mark.promise("P1")
@pytest.mark.parametrize("has_half_lost_it", [False, True])
def test_beyond_the_limit_only_what_half_still_has_is_reduced_to_its_place_there(*, has_half_lost_it: bool) -> None:
    """A limit may be lowered when half has lost the records: then doubt alone has them."""
    stage = on_doubt((A, 0), (A, 1))
    for _ in range(2):
        stage.kafka.append("source", b"v")
    if has_half_lost_it:
        stage.kafka.delete_records("source", 0, before=2)

    found = fetch_contents(
        range_reader(stage),
        [(0, doubtful(), 2)],
        half_topic="source",
        doubt_topic="doubt",
        forwarded=(),
        to_cut={(0, A)},
    )

    assert [not has_half_lost_it] * 2 == [is_cut(content.record) for content in found[0, A]]


class Held:
    """A record that is counted as long as something refers to it."""

    def __init__(self, record: Any) -> None:
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


class CountingClient:
    """A client that brings a few records at a time, and counts those that are in memory."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._alive = WeakSet[Held]()
        self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def read(self, *, record_count_max: int, timeout_s: float) -> list[Any]:
        records = self._client.read(record_count_max=min(record_count_max, 10), timeout_s=timeout_s)
        found = [Held(record) for record in records]
        self._alive.update(found)
        self.most = max(self.most, len(self._alive))
        return found


OTHERS_COUNT = 300
OURS = (0, OTHERS_COUNT + 1)
"""Half offsets of the two messages of A, with messages of others between them."""


def far_apart() -> tuple[Stage, CountingClient]:
    stage = Stage()
    for number in range(OTHERS_COUNT + 2):
        raw = half_header(A, index=OURS.index(number), count=2) if number in OURS else half_header(B)
        stage.kafka.append("source", b"%d" % number, headers=[(HALF_HEADER, raw)])
    return stage, CountingClient(stage.connections().make_reader("read_committed"))


def put_without_content(stage: Stage, *times_ms: int) -> None:
    """Doubt has the origins of A's messages alone; `times_ms` says when they are due, if not at once."""
    stage.kafka.create_topic("doubt", partitions=1)
    for index, offset in enumerate(OURS):
        origin = encode_origin(partition=0, offset=offset, index=index, count=2, born_ms="0")
        options = HalfOptions(deliver_at_ms=times_ms[index]) if times_ms else NO_OPTIONS
        headers = [(HALF_HEADER, half_header(A, index=index, count=2, options=options))]
        whole, kept = encode_content(key=b"k", value=b"too large", headers=headers, origin=origin)
        value, cut = cut_content(value=whole, headers=kept)
        stage.kafka.append("doubt", value, key=content_key(A, index), headers=cut)


@pytest.mark.promise("P1")
def test_a_message_that_is_due_is_not_held_up_by_a_later_one_that_half_has_lost() -> None:
    stage, client = far_apart()
    put_without_content(stage, 900, 100)
    stage.kafka.delete_records("source", 0, before=OURS[1])
    txn = doubtful()
    txn.ensure_extras().due = DueTimes(part=(0, 101))
    reader = RangeReader(client, patience_s=5, clock=stage.world.monotonic)

    found = fetch_contents(reader, [(0, txn, 2)], half_topic="source", doubt_topic="doubt", forwarded={(0, A)})

    assert [True, False] == [is_cut(content.record) for content in found[0, A]]
    assert b"301" == found[0, A][1].record.value()


@pytest.mark.promise("P11")
def test_what_others_stored_between_two_messages_that_doubt_did_not_take_whole_is_not_kept() -> None:
    """Thousands of records may lie between them, and each may have a megabyte."""
    stage, client = far_apart()
    put_without_content(stage)
    reader = RangeReader(client, patience_s=5, clock=stage.world.monotonic)

    found = fetch_contents(reader, [(0, doubtful(), 2)], half_topic="source", doubt_topic="doubt")

    assert [b"0", b"301"] == [content.record.value() for content in found[0, A]]
    assert client.most < 50


def test_what_others_stored_between_the_half_records_that_a_person_looks_at_is_not_kept() -> None:
    _, client = far_apart()
    topics = SimpleNamespace(half="source")
    connections = SimpleNamespace(
        config=SimpleNamespace(topics=topics),
        start_offsets=lambda tps: dict.fromkeys(tps, 0),
        make_reader=lambda _isolation: client,
    )

    found = read_half_records(cast("CoordinatorConnections", connections), 0, OURS)

    assert {0: b"0", 301: b"301"} == {offset: record.value() for offset, record in found.items()}
    assert client.most < 50


@pytest.mark.promise("P3")
@pytest.mark.parametrize("topic", ["secrets", "txlayer.doubt", "never-asked-about"])
@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize("is_careful", [True, False])
def test_nothing_is_produced_to_a_topic_that_is_not_allowed(topic: str, *, is_plain: bool, is_careful: bool) -> None:
    """Whatever let a transaction come so far: the publisher itself looks at the topic of every message."""
    stage = Stage()
    stage.kafka.create_topic("secrets", partitions=1)
    config = CoordinatorConfig(target_topics=("orders",), session_timeout=timedelta(seconds=6))
    connections = stage.connections()
    book = Targets(config, cast("CoordinatorConnections", connections))
    book.learn(["orders", "secrets", "txlayer.doubt"])
    publisher = Publisher(config, name="writer", make_writer=connections.make_writer, targets=book)
    publisher.start()
    txn = Transaction(A, "shop", topic, 0, 0, "0", (0, 0), plain_record())
    if not is_plain:
        txn.content = [Content(0, topic, 0, NO_OPTIONS, "0", plain_record())]

    with pytest.raises(InvariantError):
        publisher.publish([(0, Batch(forwards=[txn]))], {}, None, Precautions(is_careful=is_careful))

    publisher.close()
    assert [] == stage.kafka.records("secrets")
