"""What readers see of Kafka transactions: nothing that is open or aborted, everything that was committed, in order."""

from datetime import timedelta

import pytest

from tests.contract.clients import TIMEOUT_S, answered, open_writer, put, rest, seen, values, wait_for, write_committed
from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import TransactionalWriter
from txlayer.errors import ProducerFencedError


@pytest.fixture
def writer(connections: CoordinatorConnections) -> TransactionalWriter:
    return open_writer(connections)


def abort(connections: CoordinatorConnections, writer: TransactionalWriter) -> TransactionalWriter:
    """End what is open by taking the id over, as a recovery does; the new holder."""
    return open_writer(connections, writer.transactional_id)


def test_each_marker_takes_one_offset(
    lab: Lab, connections: CoordinatorConnections, writer: TransactionalWriter, topic: str
) -> None:
    write_committed(writer, topic, b"0", b"1")
    writer.begin()
    put(writer, topic, b"3")
    successor = abort(connections, writer)
    write_committed(successor, topic, b"5")

    wait_for(lab, topic, [b"0", b"1", b"5"])
    assert [(0, b"0"), (1, b"1"), (5, b"5")] == seen(lab, topic)
    assert [(0, b"0"), (1, b"1"), (3, b"3"), (5, b"5")] == seen(lab, topic, isolation="read_uncommitted")
    assert {(topic, 0): 7} == connections.end_offsets([(topic, 0)])


def test_an_open_transaction_holds_readers_back_at_its_first_offset(
    lab: Lab, connections: CoordinatorConnections, writer: TransactionalWriter, topic: str
) -> None:
    write_committed(writer, topic, b"ok")
    wait_for(lab, topic, [b"ok"])
    writer.begin()
    put(writer, topic, b"open")
    lab.write(topic, b"plain")

    assert [(0, b"ok")] == seen(lab, topic)
    place = (topic, 0)
    assert {place: 2} == answered(lambda: connections.end_offsets([place]))
    assert {place: 4} == answered(lambda: connections.end_offsets([place], is_committed=False))

    writer.commit(timeout_s=TIMEOUT_S)
    wait_for(lab, topic, [b"ok", b"open", b"plain"])


def test_two_open_transactions_hold_readers_back_until_the_older_one_ends(
    lab: Lab, connections: CoordinatorConnections, writer: TransactionalWriter, topic: str
) -> None:
    other = open_writer(connections)
    writer.begin()
    put(writer, topic, b"first")
    other.begin()
    put(other, topic, b"second")

    other.commit(timeout_s=TIMEOUT_S)
    assert [] == seen(lab, topic)

    writer.commit(timeout_s=TIMEOUT_S)
    wait_for(lab, topic, [b"first", b"second"])


def test_a_kafka_transaction_over_several_topics_becomes_visible_in_all_of_them(
    lab: Lab, writer: TransactionalWriter
) -> None:
    topics = [lab.topic(partitions=2) for _ in range(2)]
    writer.begin()
    for topic in topics:
        put(writer, topic, b"0")
        put(writer, topic, b"1", partition=1)
    assert [[], []] == [seen(lab, topic) for topic in topics]

    writer.commit(timeout_s=TIMEOUT_S)

    for topic in topics:
        wait_for(lab, topic, [b"0", b"1"])


def test_a_kafka_transaction_without_a_record_ends_and_the_next_may_begin(
    lab: Lab, writer: TransactionalWriter, topic: str
) -> None:
    writer.begin()
    writer.commit(timeout_s=TIMEOUT_S)

    write_committed(writer, topic, b"ok")
    wait_for(lab, topic, [b"ok"])
    assert [(0, b"ok")] == seen(lab, topic)


def test_watermarks_follow_the_readers_isolation(
    lab: Lab, connections: CoordinatorConnections, writer: TransactionalWriter, topic: str
) -> None:
    lab.write(topic, b"0", b"1", b"2")
    lab.delete_records(topic, before=1)
    writer.begin()
    put(writer, topic, b"open")
    ends = {}
    for isolation in ("read_committed", "read_uncommitted"):
        reader = connections.make_reader(isolation)
        ends[isolation] = reader.watermarks((topic, 0), timeout_s=TIMEOUT_S)
        reader.close()

    assert {"read_committed": (1, 3), "read_uncommitted": (1, 4)} == ends
    assert {(topic, 0): 1} == connections.start_offsets([(topic, 0)])


def test_a_reader_tells_the_end_behind_markers_and_goes_on_when_there_is_more(
    lab: Lab, connections: CoordinatorConnections, writer: TransactionalWriter, topic: str
) -> None:
    write_committed(writer, topic, b"0")
    wait_for(lab, topic, [b"0"])
    reader = connections.make_reader("read_committed")
    reader.assign({(topic, 0): 0})

    record, end = rest(reader)
    assert (0, b"0") == (record.offset(), record.value())
    assert ("_PARTITION_EOF", topic, 0, 2) == (end.error().name(), end.topic(), end.partition(), end.offset())

    lab.write(topic, b"2")
    assert [b"2"] == values(reader, count=1)
    reader.close()


@pytest.mark.fault("consumer: reads uncommitted records by mistake")
def test_a_reader_of_what_is_not_committed_sees_it_at_once(
    connections: CoordinatorConnections, writer: TransactionalWriter, topic: str
) -> None:
    writer.begin()
    put(writer, topic, b"open")
    reader = connections.make_reader("read_uncommitted")
    reader.assign({(topic, 0): 0})

    assert [b"open"] == values(reader, count=1)
    reader.close()


@pytest.mark.fault("coordinator: is frozen inside a Kafka transaction")
def test_a_transaction_that_hangs_is_aborted_by_the_broker_and_its_writer_fenced(lab: Lab, topic: str) -> None:
    connections = lab.coordinator(unique_name("ns"), kafka_transaction_timeout=timedelta(seconds=2))
    writer = open_writer(connections)
    writer.begin()
    put(writer, topic, b"hangs")
    lab.write(topic, b"plain")
    lab.let_pass(timedelta(seconds=15))

    wait_for(lab, topic, [b"plain"])
    with pytest.raises(ProducerFencedError):
        writer.commit(timeout_s=TIMEOUT_S)


def test_a_paused_partition_is_not_read_and_an_assignment_reads_it_again(
    lab: Lab, connections: CoordinatorConnections
) -> None:
    topic = lab.topic(partitions=2)
    lab.write(topic, b"0")
    lab.write(topic, b"1", partition=1)
    reader = connections.make_reader("read_committed")
    reader.assign({(topic, 0): 0, (topic, 1): 0})
    assert [b"0", b"1"] == sorted(v for v in values(reader, count=2) if v)

    reader.pause((topic, 0))
    lab.write(topic, b"not read")
    lab.write(topic, b"read", partition=1)
    assert [b"read"] == values(reader, count=1)

    reader.assign({(topic, 0): 1})
    assert [b"not read"] == values(reader, count=1)
    reader.close()


def test_records_come_back_as_they_were_written(lab: Lab, writer: TransactionalWriter) -> None:
    # Kept for good: the broker looks for what is too old now and then, and this is of 2023.
    topic = lab.topic(settings={"retention.ms": "-1"})
    headers = [("h", b"1"), ("h", None), ("text", "words")]
    writer.begin()
    writer.produce(topic, "value", "key", 0, None, None, 1_700_000_000_000, headers)
    writer.produce(topic, None, None, 0)
    writer.commit(timeout_s=TIMEOUT_S)

    def both() -> list[object]:
        return [(r.key, r.value, r.headers) for r in lab.read(topic)]

    wait_until(lambda: len(both()) == 2, within=20, what="two records")
    assert [(b"key", b"value", [("h", b"1"), ("h", None), ("text", b"words")]), (None, None, [])] == both()
    assert 1_700_000_000_000 == lab.read(topic)[0].timestamp_ms


def test_a_read_brings_no_more_records_than_it_was_asked_for(
    lab: Lab, connections: CoordinatorConnections, topic: str
) -> None:
    lab.write(topic, *[b"%d" % n for n in range(10)])
    reader = connections.make_reader("read_committed")
    reader.assign({(topic, 0): 0})
    sizes: list[int] = []

    def is_read() -> bool:
        records = reader.read(record_count_max=4, timeout_s=0.1)
        sizes.append(len([r for r in records if r.error() is None]))
        return sum(sizes) == 10

    wait_until(is_read, within=20, what="ten records")
    assert 4 >= max(sizes)
    reader.close()


def test_a_topic_that_is_not_there_brings_nothing_and_no_error(connections: CoordinatorConnections) -> None:
    reader = connections.make_reader("read_committed")
    reader.assign({(unique_name("missing"), 0): 0})

    assert () == tuple(reader.read(record_count_max=10, timeout_s=1))
    reader.close()
