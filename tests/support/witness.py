"""A `read_committed` reader that looks on while the faults happen."""

from collections import Counter
from collections.abc import Sequence

from confluent_kafka import KafkaError, TopicPartition

from tests.support.logs import Seen, header, partition_counts, plain_reader, read_log, seen
from tests.support.onlooker import Onlooker
from tests.support.waiting import wait_until
from txlayer.core.codec import ORIGIN_HEADER

_PASSING = frozenset(
    {
        KafkaError._PARTITION_EOF,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


WAIT_MS = 500
"""It looks on for minutes: a hundred requests a second of each broker were most of what those did."""


class Witness(Onlooker):
    """Reads real topics from a thread of its own until the block ends."""

    def __init__(self, servers: str, topics: Sequence[str]) -> None:
        super().__init__()
        self.records: list[Seen] = []
        self._origins: Counter[bytes] = Counter()
        self._failures: list[str] = []
        self._servers = servers
        self._reader = plain_reader(servers, isolation="read_committed", wait_ms=WAIT_MS)
        counts = partition_counts(servers, topics)
        self._reader.assign([TopicPartition(t, p, 0) for t, n in counts.items() for p in range(n)])

    def stop(self) -> None:
        """Nothing more is read."""
        super().stop()
        self._reader.close()

    @property
    def count(self) -> int:
        """Different messages seen so far."""
        return len(self._origins)

    def wait_for_more(self, *, within: float = 60) -> None:
        """Wait until something new becomes visible."""
        before = self.count
        wait_until(lambda: self.count > before, within=within, what="new messages")

    def wait_until_at_end(self, topics: Sequence[str], *, within: float = 60) -> None:
        """Wait until it saw every message that now is there, a new one `within` each time."""
        wanted = {
            (record.topic, record.partition, record.offset)
            for records in read_log(self._servers, topics).values()
            for record in records
        }
        wait_until(
            lambda: wanted <= {(r.topic, r.partition, r.offset) for r in self.records},
            within=within,
            what="the witness has seen everything",
            growing=lambda: self.count,
        )

    def repeated(self) -> list[bytes]:
        """Origins that were seen more than once, and whatever went wrong with reading."""
        return [origin for origin, n in self._origins.items() if n > 1] + [
            failure.encode() for failure in self._failures
        ]

    def look_on(self) -> None:
        """Read what becomes visible."""
        while not self.is_stopping.is_set():
            for record in self._reader.consume(1_000, 0.1):
                error = record.error()
                if error is None:
                    found = seen(record)
                    self._origins[header(found.headers, ORIGIN_HEADER) or b"no origin"] += 1
                    self.records.append(found)
                elif error.code() not in _PASSING:
                    self._failures.append(str(error))
