"""Chosen dead letters read again, over both logs."""

import pytest

from tests.contract.clients import open_writer, put, wait_for
from tests.support.broker import unique_name
from tests.support.lab import Lab
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.consumer.dead_letters import SEARCH_S, DeadLetterReader, ResultSearch
from txlayer.core.dead_letters import AnsweredRequests, ReplayKind, ReplayOutcome, ReplayRecord, encode_replay
from txlayer.errors import RetriableError, TxLayerError


def values(
    connections: CoordinatorConnections, topic: str, offsets: list[int], *, partition: int = 0
) -> dict[int, bytes | None]:
    reader = DeadLetterReader(connections)
    found = reader.fetch(topic, partition, offsets)
    reader.close()
    return {offset: None if r is None else r.value() for offset, r in found.items()}


def test_the_records_come_with_their_offsets_and_none_for_what_was_never_there(
    lab: Lab, connections: CoordinatorConnections
) -> None:
    topic = lab.topic(partitions=2)
    lab.write(topic, b"other")
    lab.write(topic, *(f"v{n}".encode() for n in range(5)), partition=1)

    found = values(connections, topic, [4, 0, 2, 5, 1_000], partition=1)

    assert {4: b"v4", 0: b"v0", 2: b"v2", 5: None, 1_000: None} == found


def test_places_far_apart_are_read_too(lab: Lab, connections: CoordinatorConnections) -> None:
    topic = lab.topic()
    lab.write(topic, *(b"%d" % n for n in range(12_000)))

    assert {3: b"3", 11_999: b"11999"} == values(connections, topic, [3, 11_999])


def test_what_was_removed_is_none(lab: Lab, connections: CoordinatorConnections) -> None:
    topic = lab.topic()
    lab.write(topic, b"v0", b"v1", b"v2")
    lab.delete_records(topic, before=2)

    assert {0: None, 2: b"v2"} == values(connections, topic, [0, 2])


@pytest.mark.promise("P9")
def test_what_an_open_kafka_transaction_hides_is_not_gone(lab: Lab, connections: CoordinatorConnections) -> None:
    """As the copy of an edited dead letter: the request to replay it may be visible first."""
    topic, writer = lab.topic(), open_writer(connections)
    lab.write(topic, b"v0")
    writer.begin()
    put(writer, topic, b"v1")

    assert {0: b"v0"} == values(connections, topic, [0, 1])
    assert {1_000: None} == values(connections, topic, [1_000])
    with pytest.raises(RetriableError, match="open"):
        values(connections, topic, [1])
    reader = DeadLetterReader(connections)
    with pytest.raises(RetriableError, match="open"):
        reader.look_for_results(topic, 0, ResultSearch(0, AnsweredRequests()))
    reader.close()

    writer.commit(timeout_s=10)
    wait_for(lab, topic, [b"v0", b"v1"])
    assert {1: b"v1"} == values(connections, topic, [1])
    writer.close()


def test_results_are_found_behind_requests_that_retention_took(lab: Lab, connections: CoordinatorConnections) -> None:
    topic = lab.topic()
    asked = [ReplayRecord(ReplayKind.REPLAY, "a", letter) for letter in range(3)]
    result = ReplayRecord(ReplayKind.RESULT, "a", 2, ReplayOutcome.HANDLED)
    lab.write(topic, *(encode_replay(each) for each in (*asked, result)))
    lab.delete_records(topic, before=1)
    reader, search = DeadLetterReader(connections), ResultSearch(0, AnsweredRequests())

    assert reader.look_for_results(topic, 0, search)
    assert ((2, 3),) == search.found.runs
    reader.close()


@pytest.mark.promise("P11")
def test_a_long_search_for_results_is_made_in_pieces(lab: Lab, connections: CoordinatorConnections) -> None:
    """Each record takes a fifth of the time of one call."""
    topic = lab.topic()
    asked = [ReplayRecord(ReplayKind.REPLAY, "a", letter) for letter in range(20)]
    results = [ReplayRecord(ReplayKind.RESULT, "a", letter, ReplayOutcome.HANDLED) for letter in range(0, 20, 2)]
    lab.write(topic, *(encode_replay(each) for each in (*asked, *results)))
    now = [0.0]

    def clock() -> float:
        now[0] += SEARCH_S / 5
        return now[0]

    reader, search = DeadLetterReader(connections, patience_s=1_000, clock=clock), ResultSearch(0, AnsweredRequests())
    pieces = [search.next_offset]
    while not reader.look_for_results(topic, 0, search):
        pieces.append(search.next_offset)
        lab.write(topic, encode_replay(asked[0]))  # of no account: it is behind the end
    reader.close()

    assert tuple((n, n + 1) for n in range(0, 20, 2)) == search.found.runs
    assert len(pieces) > 4
    assert pieces == sorted(set(pieces))


@pytest.mark.promise("P11")
def test_dead_letters_that_come_slowly_are_left_out_where_a_part_is_enough(
    lab: Lab, connections: CoordinatorConnections
) -> None:
    topic = lab.topic()
    lab.write(topic, *(b"%d" % n for n in range(20)))
    now = [0.0]

    def clock() -> float:
        now[0] += SEARCH_S / 5
        return now[0]

    reader = DeadLetterReader(connections, patience_s=1_000, clock=clock)
    some = reader.fetch(topic, 0, range(2, 20), bytes_max=1_000_000)
    whole = reader.fetch(topic, 0, range(2, 20))
    reader.close()

    assert list(range(2, 2 + len(some))) == list(some)
    assert 0 < len(some) < 18
    assert all(record is not None for record in some.values())
    assert 18 == len(whole)


def test_markers_and_what_was_aborted_are_none(lab: Lab, connections: CoordinatorConnections) -> None:
    topic = lab.topic()
    writer = open_writer(connections)
    writer.begin()
    put(writer, topic, b"aborted")
    successor = open_writer(connections, writer.transactional_id)
    successor.begin()
    put(successor, topic, b"committed")
    successor.commit(timeout_s=20)
    wait_for(lab, topic, [b"committed"])

    assert {0: None, 1: None, 2: b"committed", 3: None} == values(connections, topic, [0, 1, 2, 3])
    successor.close()


def test_nothing_asked_is_nothing_found(lab: Lab, connections: CoordinatorConnections) -> None:
    assert {} == values(connections, lab.topic(), [])


def test_one_reader_reads_many_times(lab: Lab, connections: CoordinatorConnections) -> None:
    topics = [lab.topic(), lab.topic()]
    for topic in topics:
        lab.write(topic, topic.encode())
    reader = DeadLetterReader(connections)

    for topic in [*topics, *topics]:
        found = reader.fetch(topic, 0, [0])[0]
        assert found is not None
        assert topic.encode() == found.value()
    reader.close()
    reader.close()


def test_a_topic_that_is_missing_is_an_error(connections: CoordinatorConnections) -> None:
    with pytest.raises(TxLayerError):
        values(connections, unique_name("missing"), [0])


@pytest.mark.fault("consumer: more dead letters are replayed at once than fit into memory")
@pytest.mark.promise("P11")
def test_dead_letters_count_with_the_bytes_of_their_keys(lab: Lab, connections: CoordinatorConnections) -> None:
    topic = lab.topic()
    for _ in range(10):
        lab.write(topic, b"v", key=b"k" * 100_000)
    reader = DeadLetterReader(connections)

    some = reader.fetch(topic, 0, range(10), bytes_max=250_000)
    reader.close()

    assert [0, 1, 2] == list(some)
