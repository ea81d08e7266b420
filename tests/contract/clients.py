"""What several contracts do with a log's clients."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tests.support.broker import unique_name
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import Assignment, GroupReader, LogReader, StoredOffset, TopicPartition, TransactionalWriter
from txlayer.errors import BrokerUnavailableError

T = TypeVar("T")

BATCH_BYTES = 500_000
TIMEOUT_S = 20.0
PATIENCE_S = 30.0


def open_writer(connections: CoordinatorConnections, transactional_id: str = "") -> TransactionalWriter:
    """An initialised writer; without an id it has a new one."""
    writer = connections.make_writer(transactional_id or unique_name("id"), batch_bytes_max=BATCH_BYTES)
    writer.initialise(timeout_s=TIMEOUT_S)
    return writer


def put(writer: TransactionalWriter, topic: str, *values: bytes, partition: int = 0, key: bytes = b"k") -> None:
    """Write in the open Kafka transaction, acknowledged."""
    for value in values:
        writer.produce(topic, value, key, partition)
    assert 0 == writer.flush(timeout_s=TIMEOUT_S)


def write_committed(writer: TransactionalWriter, topic: str, *values: bytes) -> None:
    """One Kafka transaction."""
    writer.begin()
    put(writer, topic, *values)
    writer.commit(timeout_s=TIMEOUT_S)


def store(
    writer: TransactionalWriter, offsets: Mapping[TopicPartition, int], member: Any, *, metadata: str = ""
) -> None:
    """Offsets in the open Kafka transaction."""
    writer.send_offsets(
        {place: StoredOffset(offset, metadata) for place, offset in offsets.items()}, member, timeout_s=TIMEOUT_S
    )


def store_committed(writer: TransactionalWriter, offsets: Mapping[TopicPartition, int], member: Any) -> None:
    """One Kafka transaction with nothing but offsets."""
    writer.begin()
    store(writer, offsets, member)
    writer.commit(timeout_s=TIMEOUT_S)


def stored(connections: CoordinatorConnections, group: str, place: TopicPartition) -> int | None:
    """What the group stored, whether it is stable or not."""
    found = connections.stored_offsets(group, [place], is_stable=False)[place]
    return None if found is None else found.offset


def answered(ask: Callable[[], T], *, what: str = "an answer") -> T:
    """What the cluster says: a coordinator waits for 3 s and asks again, and so does this."""

    def once() -> list[T]:
        try:
            return [ask()]
        except BrokerUnavailableError:
            return []

    return wait_until(once, within=PATIENCE_S, what=what)[0]


def stable(connections: CoordinatorConnections, group: str, place: TopicPartition) -> StoredOffset | None:
    """What the group stored, as soon as nothing is pending there: markers are written behind the answer."""
    return answered(lambda: connections.stored_offsets(group, [place], is_stable=True)[place], what="nothing pending")


def assigned(*readers: GroupReader) -> list[Assignment]:
    """Serve members until each has a share of one generation, and has nothing left to give back."""
    shares: dict[int, Assignment] = {}

    def is_settled() -> bool:
        for number, reader in enumerate(readers):
            reader.read(record_count_max=1, timeout_s=0.02)
            if reader.take_revocation():
                shares.pop(number, None)
            share = reader.take_assignment()
            if share is not None:
                shares[number] = share
        return len(shares) == len(readers) and len({s.generation for s in shares.values()}) == 1

    wait_until(is_settled, within=PATIENCE_S, what="every member has its share")
    return [shares[number] for number in range(len(readers))]


def join(connections: CoordinatorConnections, *topics: str) -> tuple[GroupReader, Assignment]:
    """One member of a group that it has for itself."""
    reader = connections.make_group_reader()
    reader.start(topics)
    (share,) = assigned(reader)
    return reader, share


def values(reader: LogReader | GroupReader, *, count: int) -> list[bytes | None]:
    """The next `count` values."""
    found: list[bytes | None] = []

    def is_read() -> bool:
        records = reader.read(record_count_max=count - len(found), timeout_s=0.1)
        found.extend(r.value() for r in records if r.error() is None)
        return len(found) >= count

    wait_until(is_read, within=PATIENCE_S, what=f"{count} records")
    return found


def rest(reader: LogReader) -> list[Any]:
    """Every record up to the end of one partition, and the record that tells the end."""
    found: list[Any] = []

    def is_at_end() -> bool:
        found.extend(reader.read(record_count_max=100, timeout_s=0.1))
        return bool(found) and found[-1].error() is not None

    wait_until(is_at_end, within=PATIENCE_S, what="the end")
    return found


def seen(lab: Lab, topic: str, *, isolation: str = "read_committed") -> list[tuple[int, bytes | None]]:
    """(offset, value) of what a plain reader sees."""
    return [(r.offset, r.value) for r in lab.read(topic, isolation=isolation)]


def wait_for(lab: Lab, topic: str, expected: Iterable[bytes]) -> None:
    """Wait until a `read_committed` reader sees these values: markers are written behind the answer."""
    wanted = list(expected)
    wait_until(
        lambda: [value for _, value in seen(lab, topic)] == wanted,
        within=PATIENCE_S,
        what=f"{wanted} visible, not {seen(lab, topic)}",
    )
