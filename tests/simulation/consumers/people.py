"""Who else acts in a world of consumers: who sends, operators, and those who end what waits for a person. Never: consumers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.consumers.plan import GROUP, OWN_TAG, PlannedMessage, Request
from txlayer.adapters.memory import NoAnswerError
from txlayer.adapters.ports import TopicPartition
from txlayer.core.codec import GROUP_HEADER
from txlayer.core.dead_letters import (
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_topic,
    decode_replay,
    encode_replay,
    replay_topic,
)
from txlayer.core.messages import TAGS_HEADER, Headers, Undecodable
from txlayer.core.progress import Foreign, decode
from txlayer.errors import TxLayerError

if TYPE_CHECKING:
    from tests.simulation.consumers.society import ConsumerSociety

CLOSE_S = 0.7
"""How often somebody looks for what waits for a person."""

SENDERS = (b"shop", b"market")
"""Producer groups that messages name, where somebody hears of dead letters."""

HEALER = "healed-"
"""How names of requests begin that people of a healed world write."""

_ENDED = frozenset({ReplayOutcome.HANDLED, ReplayOutcome.DROPPED})


class Feeder:
    """Writes the messages, some of them in Kafka transactions, some of which it gives up: gaps in the offsets."""

    def __init__(self, society: ConsumerSociety) -> None:
        self._society = society
        self._process = society.new_process("f0")

    def start(self) -> None:
        """Send everything that is planned, in its time."""
        self._society.world.start(self._process, self._send_all)

    def _send_all(self) -> None:
        society, world = self._society, self._society.world
        bundle: list[tuple[int, PlannedMessage]] = []
        for number, message in enumerate(society.plan.messages):
            if bundle and bundle[0][1].bundle != message.bundle:
                self._send_bundle(bundle)
                bundle = []
            if message.at_s > world.now:
                world.pause(message.at_s - world.now)
            if message.bundle:
                bundle.append((number, message))
                continue
            self._send(number, message)
        if bundle:
            self._send_bundle(bundle)

    def _send(self, number: int, message: PlannedMessage) -> None:
        society, world = self._society, self._society.world
        value = str(number).encode()
        while True:
            try:
                society.kafka.append(
                    message.topic, value, partition=message.partition, key=message.key, headers=self._headers(number)
                )
                break
            except (TxLayerError, NoAnswerError):  # no leader, no broker
                world.pause(0.2)
        world.after(0.0, partial(world.acted, "Produce"))

    def _headers(self, number: int) -> Headers:
        is_own = self._society.plan.settings.has_own_breaker and number % 2 == 1
        named = [(GROUP_HEADER, SENDERS[number % 2])] if self._society.plan.hearers else []
        return [(TAGS_HEADER, OWN_TAG), *named] if is_own else named

    def _send_bundle(self, bundle: Sequence[tuple[int, PlannedMessage]]) -> None:
        society = self._society
        connections = society.kafka.connect_consumer(society.config, client=self._process.name)
        for _ in range(5):
            try:
                writer = connections.make_writer("feeder", batch_bytes_max=10_000)
                writer.initialise(timeout_s=2.0)
                writer.begin()
                for number, message in bundle:
                    value = str(number).encode()
                    writer.produce(message.topic, value, message.key, message.partition, headers=self._headers(number))
                writer.flush(timeout_s=2.0)
                if bundle[0][1].bundle == "kept":
                    writer.commit(timeout_s=2.0)
                else:
                    connections.make_writer("feeder", batch_bytes_max=10_000).initialise(timeout_s=2.0)
            except TxLayerError:
                society.world.pause(0.5)
            else:
                return


# --- operators --------------------------------------------------------------------------------------------------------


def ask(society: ConsumerSociety, request: Request) -> None:
    """An operator asks for something by hand."""
    try:
        _ask(society, request)
    except (TxLayerError, NoAnswerError):  # no leader, no broker
        society.world.after(0.3, partial(ask, society, request))


def _ask(society: ConsumerSociety, request: Request) -> None:
    topics, count = society.plan.topics, society.plan.settings.partition_count
    topic = topics[request.number % len(topics)]
    partition = request.number // 7 % count
    name = f"r{society.next_number()}"
    letters = [r for r in society.records(dead_letter_topic(GROUP, topic)) if r.partition() == partition]
    word = request.word
    if word in ("pause", "resume"):
        kind = ReplayKind.PAUSE if word == "pause" else ReplayKind.RESUME
        _write(society, topic, partition, None, ReplayRecord(kind, name, None, text="op: why"))
    elif word == "garbage":
        society.kafka.append(replay_topic(GROUP, topic), b"1|R|x", partition=partition, key=b"red")
    elif word == "missing":
        record = ReplayRecord(ReplayKind.REPLAY, name, 10_000, text="op: why")
        _write(society, topic, partition, b"red", record)
    elif letters:
        one = letters[request.number % len(letters)]
        chosen = letters if word == "replay-all" else [one]
        kind = ReplayKind.DROP if word == "drop" else ReplayKind.REPLAY
        for letter in chosen:
            record = ReplayRecord(kind, name, letter.offset(), text="op: why")
            _write(society, topic, partition, letter.key(), record)
        if word == "again":
            society.world.after(0.4, partial(ask, society, Request(0.0, "replay", request.number)))
    society.world.note("operator", word, f"{topic}-{partition}")
    society.world.happened[f"asked: {word}"] += 1
    society.world.acted("Produce")


def _write(society: ConsumerSociety, topic: str, partition: int, key: bytes | None, record: ReplayRecord) -> None:
    value = encode_replay(record)
    society.kafka.append(replay_topic(GROUP, topic), value, partition=partition, key=key)


class Closer:
    """People of a healed world: they resume what is paused and replay the dead letters of keys that are parked."""

    def __init__(self, society: ConsumerSociety) -> None:
        self._society = society

    def begin(self) -> None:
        """Look now and then until the world ends."""
        self._look()

    def _look(self) -> None:
        society = self._society
        society.look_at_offsets()
        crew = society.crews.get(GROUP)
        for place, stored in society.stored_now(crew).items() if crew else ():
            found = decode(stored.offset, stored.metadata)
            if place[0] in society.plan.topics and not isinstance(found, Foreign):
                if found.is_paused:
                    record = ReplayRecord(ReplayKind.RESUME, self._name(), None, text="op: healed")
                    _write(society, *place, None, record)
                if found.parked:
                    self._replay(place, set(found.parked.values()))
        society.world.acted("Produce")
        society.world.after(CLOSE_S, self._look)

    def _replay(self, place: TopicPartition, lasts: set[int]) -> None:
        """Ask for all dead letters of those whose keys are parked, in their order, unless somebody just did."""
        if self._is_waiting(place):
            return
        topic, partition = place
        letters = [r for r in self._society.records(dead_letter_topic(GROUP, topic)) if r.partition() == partition]
        by_partition = self._society.plan.settings.order.value == "partition"
        keys = {letter.key() for letter in letters if letter.offset() in lasts}
        ended = self._ended(place)
        name = self._name()
        for letter in letters:
            if (by_partition or letter.key() in keys) and (letter.offset() not in ended or letter.offset() in lasts):
                record = ReplayRecord(ReplayKind.REPLAY, name, letter.offset(), text="op: healed")
                _write(self._society, topic, partition, letter.key(), record)

    def _is_waiting(self, place: TopicPartition) -> bool:
        """True while something that was asked for here has no answer."""
        asked: set[tuple[str, int | None]] = set()
        for record in self._society.records(replay_topic(GROUP, place[0])):
            said = decode_replay(record.value())
            if record.partition() == place[1] and not isinstance(said, Undecodable):
                if said.kind is ReplayKind.REPLAY and said.request_id.startswith(HEALER):
                    asked.add((said.request_id, said.dead_letter_offset))
                elif said.kind is ReplayKind.RESULT:
                    asked.discard((said.request_id, said.dead_letter_offset))
        return bool(asked)

    def _ended(self, place: TopicPartition) -> set[int]:
        topic, partition = place
        found: dict[int, ReplayOutcome] = {}  # the last word counts
        for record in self._society.records(replay_topic(GROUP, topic)):
            said = decode_replay(record.value())
            if record.partition() != partition or isinstance(said, Undecodable):
                continue
            if said.outcome is not None and said.dead_letter_offset is not None:
                found[said.dead_letter_offset] = said.outcome
        return {offset for offset, outcome in found.items() if outcome in _ENDED}

    def _name(self) -> str:
        return f"{HEALER}{self._society.next_number()}"
