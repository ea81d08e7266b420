"""Where the messages of one transaction went: their places in the real topics, and what consumer groups did with them.

Everything is looked for from the time of the decision on, in so many records. What is not found there is not said.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from txlayer.adapters.connect import Clients
from txlayer.adapters.ports import Administration, Record, TopicPartition
from txlayer.adapters.readers import QUIET_S, records_of
from txlayer.core import codec
from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.core.dead_letters import DeadLetter, DeadLetterState, dead_letter_of, dead_letter_topic
from txlayer.core.history import HalfRecord, TransactionHistory
from txlayer.core.messages import HalfOptions
from txlayer.core.partitions import murmur2
from txlayer.core.progress import Foreign, Progress, decode
from txlayer.errors import TxLayerError
from txlayer.operate import Json
from txlayer.operate.dead_letters import DeadLetterLog, DeadLetterPosition, consumed_topics, said_json

READ_COUNT_MAX = 20_000  # records that are read for one transaction; about a tenth of a second
MESSAGE_COUNT_MAX = 100
GROUP_COUNT_MAX = 20
"""Consumer groups of one topic that are asked about."""
LETTER_COUNT_MAX = 3  # dead letters of one message in one group, the newest


class ForwardedMessage(NamedTuple):
    """One message in its real topic."""

    half_offset: int
    topic: str
    partition: int
    offset: int
    at_ms: int
    key: bytes | None


class Handling(NamedTuple):
    """What one consumer group did with one forwarded message."""

    group: str
    topic: str
    partition: int
    offset: int
    is_handled: bool | None  # by its handler; None: the group stored nothing for its partition, or another program did
    attempt_count: int | None  # that failed; None: not known, as of what is handled
    letters: list[Json]  # its dead letters, the newest last: an edited copy is one more


def find_forwarded(
    clients: Clients, history: TransactionHistory, halves: Mapping[int, Record]
) -> list[ForwardedMessage]:
    """The messages that are found, in the order of their half records; `halves` are half records by offset."""
    decided = next((n.appended_ms for n in history.op_lines if (n.offset, n.line) == history.decided_at), None)
    since_ms = decided or history.appended_ms
    if since_ms is None or not history.half_records:
        return []
    wanted = {half.offset: half for half in history.half_records[:MESSAGE_COUNT_MAX]}
    with closing(clients.admin()) as admin:
        ranges = _ranges(admin, wanted.values(), halves, since_ms - CLOCK_ERROR_MS)
    found: dict[int, ForwardedMessage] = {}
    with closing(clients.reader()) as reader:
        for record in islice(records_of(reader, ranges, patience_s=QUIET_S, clock=clients.clock), READ_COUNT_MAX):
            half_offset = _origin_of(record, history.partition)
            if half_offset in wanted:
                place = (record.topic(), record.partition(), record.offset(), record.timestamp()[1], record.key())
                found[half_offset] = ForwardedMessage(half_offset, *place)
                if len(found) == len(wanted):
                    break
    return [found[offset] for offset in wanted if offset in found]


def _ranges(
    admin: Administration, wanted: Any, halves: Mapping[int, Record], since_ms: int
) -> dict[TopicPartition, tuple[int, int]]:
    tps: set[TopicPartition] = set()
    counts: dict[str, int | None] = {}
    for half in wanted:
        if half.topic not in counts:
            counts[half.topic] = admin.partition_count(half.topic)
        tps.update(_partitions_of(half, halves.get(half.offset), counts[half.topic] or 0))
    starts, ends = admin.offsets_at(tps, at_ms=since_ms), admin.end_offsets(tps)
    share = max(READ_COUNT_MAX // max(len(tps), 1), 100)
    return {tp: (starts[tp], min(ends[tp], starts[tp] + share)) for tp in tps}


def _partitions_of(half: HalfRecord, record: Record | None, count: int) -> Iterator[TopicPartition]:
    """Where the message may be: one partition if its options or its key say which, else all."""
    options: HalfOptions = half.options
    key = None if record is None else record.key()
    hashed = murmur2(key) if key is not None else options.key_murmur
    if options.partition is not None:
        numbers: Sequence[int] = [options.partition] if options.partition < count else []
    elif hashed is not None and count:
        numbers = [hashed % count]
    else:
        numbers = range(count)
    return ((half.topic, number) for number in numbers)


def _origin_of(record: Record, partition: int) -> int | None:
    """The half offset that a forwarded record names, if it is of this half partition."""
    raw = next((value for name, value in reversed(record.headers() or ()) if name == codec.ORIGIN_HEADER), None)
    origin = None if raw is None else codec.decode_origin(raw)
    return origin[1] if isinstance(origin, tuple) and origin[0] == partition else None


def find_handling(clients: Clients, messages: Sequence[ForwardedMessage]) -> list[Handling]:
    """What the groups that txlayer's consumers make topics for did with these messages."""
    found: list[Handling] = []
    with closing(clients.admin()) as admin:
        consumed = sorted(consumed_topics(admin))
        for topic in sorted({message.topic for message in messages}):
            ours = [message for message in messages if message.topic == topic]
            groups = [group for group, its_topic in consumed if its_topic == topic]
            for group in groups[:GROUP_COUNT_MAX]:
                found += _handling(clients, admin, group, ours)
    return found


def _handling(
    clients: Clients, admin: Administration, group: str, messages: Sequence[ForwardedMessage]
) -> Iterator[Handling]:
    stored = admin.stored_offsets(group, {(message.topic, message.partition) for message in messages})
    found = _dead_letters(clients, admin, group, messages)
    for message in messages:
        offset, letters = stored[message.topic, message.partition], found.get((message.partition, message.offset), [])
        progress = None if offset is None else decode(offset.offset, offset.metadata)
        is_handled: bool | None = None
        attempt_count: int | None = None
        if letters:  # for its consumer it is finished; its handler has not succeeded
            is_handled = letters[-1]["state"] == DeadLetterState.HANDLED.value
            attempt_count = letters[-1]["attempt_count"]
        elif offset is not None and progress is not None and not isinstance(progress, Foreign):
            is_handled = not Progress(offset.offset, progress).read([message.offset], [message.key])
            attempts = progress.attempts.get(message.offset)
            attempt_count = None if is_handled else 0 if attempts is None else attempts.ended_count
        at = message.topic, message.partition, message.offset
        yield Handling(group, *at, is_handled, attempt_count, letters)


def _dead_letters(
    clients: Clients, admin: Administration, group: str, messages: Sequence[ForwardedMessage]
) -> dict[tuple[int, int], list[Json]]:
    """{(partition, offset) of a message: its newest dead letters}, of those that were written soon enough."""
    topic, wanted = messages[0].topic, {(message.partition, message.offset) for message in messages}
    dlq = [(dead_letter_topic(group, topic), partition) for partition in {partition for partition, _ in wanted}]
    starts, ends = admin.offsets_at(dlq, at_ms=min(m.at_ms for m in messages)), admin.end_offsets(dlq)
    ranges = {tp: (starts[tp], ends[tp]) for tp in dlq}
    found: dict[tuple[int, int], deque[tuple[int, int, DeadLetter]]] = {}
    with closing(clients.reader()) as reader:
        for record in islice(records_of(reader, ranges, patience_s=QUIET_S, clock=clients.clock), READ_COUNT_MAX):
            letter = dead_letter_of(record.headers())
            if not isinstance(letter, DeadLetter) or (letter.consumer_group, letter.origin.topic) != (group, topic):
                continue
            at = record.partition(), letter.origin.offset
            if at in wanted:
                kept = found.setdefault(at, deque(maxlen=LETTER_COUNT_MAX))
                kept.append((record.offset(), record.timestamp()[1], letter))
    if not found:
        return {}  # and the requests need not be read
    log = DeadLetterLog(admin, group=group, topic=topic, make_reader=clients.reader)
    return {at: [_letter_json(log, at[0], *each) for each in kept] for at, kept in found.items()}


def _letter_json(log: DeadLetterLog, partition: int, offset: int, at_ms: int, letter: DeadLetter) -> Json:
    """A dead letter, with the newest request and the newest answer of each request id."""
    name = DeadLetterPosition(log.topic, partition, offset)
    history = log.history(name)
    said = sorted([*history.asked.values(), *history.results.values()], key=lambda each: each.offset)
    return {
        "letter": str(name),
        "topic": log.dead_letters,
        "replays": log.replays,
        "partition": partition,
        "offset": offset,
        "at_ms": at_ms,
        "state": history.state.value,
        "why": letter.reason.value + (f": {letter.error_type}: {letter.error_message}" if letter.error_type else ""),
        "attempt_count": letter.attempt_count,
        "said": [said_json(each) for each in said],
    }


def forwarded_json(
    clients: Clients, history: TransactionHistory, halves: Mapping[int, Record]
) -> tuple[list[Json], list[Json], str]:
    """(messages, handlings, why there may be more): what is found is given, also if the rest cannot be read."""
    messages: list[ForwardedMessage] = []
    handlings: list[Handling] = []
    problem = ""
    try:
        messages = find_forwarded(clients, history, halves)
        handlings = find_handling(clients, messages) if messages else []
    except TxLayerError as exc:
        problem = str(exc)
    shown = [message._asdict() | {"key": None} for message in messages]
    return shown, [handling._asdict() for handling in handlings], problem
