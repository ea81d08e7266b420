"""An operator under chaos: replays the dead letters of keys that are parked, until none is. Never a consumer."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import count

from confluent_kafka import KafkaException

from tests.support.load import plain_producer
from tests.support.logs import Seen, read_log
from tests.support.onlooker import Onlooker
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import ClientConfig
from txlayer.core.dead_letters import (
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_topic,
    decode_replay,
    encode_replay,
    replay_topic,
)
from txlayer.core.messages import Undecodable
from txlayer.core.progress import Foreign, decode
from txlayer.errors import TxLayerError

EVERY_S = 3.0
WRITE_S = 60.0
_ENDED = frozenset({ReplayOutcome.HANDLED, ReplayOutcome.DROPPED})


class Replayer(Onlooker):
    """Looks now and then from a thread of its own until the block ends."""

    def __init__(self, servers: str, *, group: str, topic: str, partition_count: int) -> None:
        super().__init__()
        self.request_count = 0
        self._servers = servers
        self._group = group
        self._topic = topic
        self._places = [(topic, p) for p in range(partition_count)]
        self._producer = plain_producer(servers)
        self._numbers = count()

    def look_on(self) -> None:
        """Look every few seconds."""
        while not self.is_stopping.wait(EVERY_S):
            # A broker is away: there is another look.
            with suppress(TxLayerError, KafkaException, AssertionError):
                self._look()

    def _look(self) -> None:
        with KafkaAdmin(ClientConfig(bootstrap_servers=self._servers), timeout_ms=5_000) as admin:
            stored = admin.stored_offsets(self._group, self._places)
        parked = {place: parked_in(offset) for place, offset in stored.items()}
        if not any(parked.values()):
            return
        letters, requests = (dead_letter_topic(self._group, self._topic), replay_topic(self._group, self._topic))
        read = read_log(self._servers, [letters, requests])
        for place, lasts in parked.items():
            _, partition = place
            chosen = to_replay(
                [r for r in read[letters] if r.partition == partition],
                [r for r in read[requests] if r.partition == partition],
                lasts,
            )
            self._ask(requests, partition, chosen)

    def _ask(self, topic: str, partition: int, letters: Sequence[Seen]) -> None:
        name = f"operator-{next(self._numbers)}"
        for letter in letters:
            record = ReplayRecord(ReplayKind.REPLAY, name, letter.offset, text="operator: why")
            self._producer.produce(topic, encode_replay(record), letter.key, partition)
        self._producer.flush(WRITE_S)
        self.request_count += len(letters)


def parked_in(stored: StoredOffset | None) -> frozenset[int]:
    """The last dead letter of each key that is parked, as a stored offset says."""
    said = None if stored is None else decode(stored.offset, stored.metadata)
    return frozenset() if said is None or isinstance(said, Foreign) else frozenset(said.parked.values())


def to_replay(letters: Sequence[Seen], replays: Sequence[Seen], lasts: Collection[int]) -> list[Seen]:
    """All dead letters of the keys whose newest ones are `lasts`, unless somebody was asked and has not answered."""
    waiting: set[tuple[str, int | None]] = set()
    outcomes: dict[int | None, ReplayOutcome | None] = {}  # the last word counts
    for record in replays:
        said = decode_replay(record.value)
        if isinstance(said, Undecodable):
            continue
        request = (said.request_id, said.dead_letter_offset)
        if said.kind is ReplayKind.RESULT:
            waiting.discard(request)
            outcomes[said.dead_letter_offset] = said.outcome
        else:
            waiting.add(request)
    if waiting:
        return []
    keys = {letter.key for letter in letters if letter.offset in lasts}
    return [
        letter
        for letter in letters
        if letter.key in keys and (letter.offset in lasts or outcomes.get(letter.offset) not in _ENDED)
    ]


def places_of(group: str, topic: str, *, partition_count: int) -> list[TopicPartition]:
    """What a group stores for a topic: its own places and those of its requests."""
    names = (topic, replay_topic(group, topic))
    return [(name, p) for name in names for p in range(partition_count)]
