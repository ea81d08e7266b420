"""What the topics hold of transactions: the history of one, found by a half message, the messages of many, and where they went."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from txlayer.adapters.connect import Clients, CoordinatorConnections
from txlayer.adapters.ports import Administration, HistoryStart, Record, TopicPartition
from txlayer.adapters.readers import QUIET_S, HalfOwner, LogHistoryReader, RangeReader, records_of, runs_of
from txlayer.coordinator.contents import fetch_contents, is_cut
from txlayer.coordinator.recovery import decode_stored
from txlayer.core import codec
from txlayer.core.checks import CLOCK_ERROR_MS
from txlayer.core.dead_letters import DeadLetter, DeadLetterState, dead_letter_of, dead_letter_topic
from txlayer.core.history import CheckNote, HalfRecord, OpLine, TransactionHistory, split_operator_reason
from txlayer.core.ledger.transaction import Content
from txlayer.core.ledger.transitions import COMMITTING, TxnState
from txlayer.core.messages import HalfOptions, OpMessage, Source, user_headers
from txlayer.core.partitions import murmur2
from txlayer.core.progress import Foreign, Progress, decode
from txlayer.errors import ConfigError, RefusedRecordError, TxLayerError
from txlayer.operate import Json, bytes_json, length_text, time_text
from txlayer.operate.dead_letters import DeadLetterLog, DeadLetterPosition, consumed_pairs, event_json
from txlayer.operate.unsettled import UnsettledTransaction, committed_records, options_json, unsettled_json
from txlayer.runtime.kafka_transactions import STABLE_PATIENCE_S


def parse_position(text: str) -> tuple[int, int] | None:
    """(partition, offset) of `7:16`, or of a whole header `txl-origin`; None: it is neither."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,18})(\|.*)?", text, re.ASCII)
    return None if match is None else (int(match[1]), int(match[2]))


def histories_of(
    reader: LogHistoryReader, txn_id: str, *, since_ms: int, partitions: Sequence[int] | None = None
) -> tuple[list[TransactionHistory], int]:
    """Those of an id, and since when half, op and check were read: since then, or since the first half record that doubt names."""
    found = reader.read(txn_id, start=HistoryStart(since_ms), partitions=partitions, with_checks=True)
    first_ms = min((h.summary.appended_ms or since_ms for h in found if h.summary is not None), default=since_ms)
    if first_ms >= since_ms:
        return found, since_ms
    partitions = sorted({history.partition for history in found})
    return reader.read(txn_id, start=HistoryStart(first_ms), partitions=partitions, with_checks=True), first_ms


PREPARE_TIME_MS = 10 * 60 * 1000
"""Half records of one transaction lie closer together than this: a producer gives up after `prepare_timeout`."""


def histories_at(reader: LogHistoryReader, partition: int, offset: int) -> tuple[list[TransactionHistory], str]:
    """The transaction whose half message is there; without one, a sentence that says what is there instead."""
    found = reader.half_at(partition, offset)
    if not isinstance(found, HalfOwner):
        return [], found
    start = HistoryStart(found.appended_ms, position=(partition, offset))
    if found.index:
        start = HistoryStart(found.appended_ms - PREPARE_TIME_MS)
    histories = reader.read(found.txn_id, start=start, partitions=[partition], with_checks=True)
    return [h for h in histories if h.nonce == found.nonce], ""


def hidden_note(reader: LogHistoryReader) -> str:
    """What readers of half and op cannot see now, for any search; empty if they see all. Ask before reading."""
    hidden = reader.hidden()
    if not hidden:
        return ""
    (topic, number), others = hidden[0], f" and {len(hidden) - 1} other partitions" if hidden[1:] else ""
    return f"a Kafka transaction is open on {topic}-{number}{others}: what was written there since is not shown"


def are_applied(connections: CoordinatorConnections, histories: Sequence[TransactionHistory]) -> Iterator[bool | None]:
    """For each: whether the stored offsets are beyond the line that ends it; None without one, or where nothing is stored."""
    partitions, topics = {h.partition for h in histories}, connections.config.topics
    wanted = [(topic, p) for p in partitions for topic in (topics.half, topics.op)]
    stored = connections.stored_offsets(topics.coordinator_group, wanted)
    for history in histories:
        half, op = (stored[topic, history.partition] for topic in (topics.half, topics.op))
        line = history.ending
        position = history.decided_at if line is None else (line.offset, line.line)
        if position is None or half is None or op is None:
            yield None
            continue
        try:
            positions = decode_stored(half, op, partition=history.partition).positions
        except ConfigError:
            yield None  # stored by another program: its meaning is unknown
        else:
            yield position < (positions.op_offset, positions.op_line)


def history_json(history: TransactionHistory, *, is_applied: bool | None) -> Json:
    """One object of `tx show --json`; `is_applied` says whether the coordinators have carried out the decision."""
    h, summary = history, history.summary
    return {
        "txn_id": h.txn_id,
        "nonce": h.nonce,
        "query_id": h.query_id,
        "producer_group": h.producer_group,
        "partition": h.partition,
        "state": None if h.state is None else h.state.value,
        "is_applied": is_applied,
        "reason": h.reason or None,
        "born_ms": h.born_ms,
        "appended_ms": h.appended_ms,
        "message_count": h.message_count,
        "decided_at": position_json(h.decided_at),
        "half_records": [
            {
                "offset": r.offset,
                "appended_ms": r.appended_ms,
                "topic": r.topic,
                "index": r.index,
                **options_json(r.options),
            }
            for r in h.half_records
        ],
        "op_lines": [_op_line_json(n) for n in h.op_lines],
        "doubt": None
        if summary is None
        else {
            "state": summary.state,
            "reason": summary.reason or None,
            "moved_ms": summary.moved_ms,
            "seen_count": summary.seen,
            "topics": list(summary.topics),
            "checked_count": summary.checked_count,
            "answered_count": summary.answered_count,
            "asked_ms": summary.asked_ms or None,
        },
        "questions": [_question_json(q, h) for q in h.questions],
        "refusals": [_note_json(n) for n in h.refusals],
        "notices": [_note_json(n) for n in h.notices],
        "left_doubt_ms": h.left_doubt_ms,
    }


def _note_json(note: CheckNote) -> Json:
    return {name: getattr(note, name) for name in ("appended_ms", "partition", "offset", "text")}


def operator_of(op: OpMessage) -> tuple[str, str]:
    """(operator, reason) of an op line; the name is empty when no operator wrote it."""
    return split_operator_reason(op.reason) if op.source is Source.OPERATOR else ("", op.reason)


def op_json(position: tuple[int, int], appended_ms: int, op: OpMessage) -> Json:
    operator, reason = operator_of(op)
    return {
        "offset": position[0],
        "line": position[1],
        "appended_ms": appended_ms,
        "resolution": "ABANDON" if op.is_abandon else op.resolution.name,
        "source": op.source.value,
        "operator": operator or None,
        "reason": reason or None,
    }


def position_json(position: tuple[int, int] | None) -> Json | None:
    return None if position is None else {"offset": position[0], "line": position[1]}


def _op_line_json(n: OpLine) -> Json:
    return op_json((n.offset, n.line), n.appended_ms, n.op) | {
        "producer_group": n.op.producer_group,
        "last_half_offset": n.op.last_offset,
        "check_number": n.op.check_number,
        "time_ms": n.op.time_ms,
        "is_counted": n.is_counted,
    }


def _question_json(question: CheckNote, history: TransactionHistory) -> Json:
    answers = [
        {
            "offset": n.offset,
            "line": n.line,
            "appended_ms": n.appended_ms,
            "resolution": n.op.resolution.name,
            "source": n.op.source.value,
        }
        for n in history.op_lines
        if n.op.check_number == question.number
    ]
    return {
        "number": question.number,
        "asked_ms": question.appended_ms,
        "partition": question.partition,
        "offset": question.offset,
        "answers": answers,
    }


# --- the timeline -----------------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """One line of a timeline."""

    at_ms: int
    kind: str  # stored, asked, answered, said, decided, refused, parked, doubt, forwarded, settled, given-up, replayed
    what: str
    place: str
    detail: str = ""


def timeline(history: Json) -> list[Event]:
    """What happened to a transaction as `history_json` and `forwarded_json` have it, the oldest first; what the topics do not say is not there."""
    return sorted(_events(history), key=lambda event: event.at_ms)


def _events(history: Json) -> Iterator[Event]:
    partition = history["partition"]
    for half in history["half_records"]:
        what = f"message {half['index'] + 1} of {history['message_count']} stored, for {half['topic']}"
        yield Event(half["appended_ms"], "stored", what, f"half {partition}:{half['offset']}", _options(half))
    asked_ms = {}
    for question in history["questions"]:
        asked_ms[question["number"]] = question["asked_ms"]
        detail = "" if question["answers"] else "no answer yet"
        place = f"check {question['partition']}:{question['offset']}"
        yield Event(question["asked_ms"], "asked", f"check-back {question['number']} sent", place, detail)
    for line in history["op_lines"]:
        yield _op_event(line, history, asked_ms)
    for refusal in history["refusals"]:
        place = f"check {refusal['partition']}:{refusal['offset']}"
        yield Event(refusal["appended_ms"], "refused", f"refused, and reported: {refusal['text']}", place)
    for notice in history["notices"]:
        place = f"check {notice['partition']}:{notice['offset']}"
        yield Event(notice["appended_ms"], "parked", f"parking reported to its group: {notice['text']}", place)
    doubt = history["doubt"]
    if doubt is not None and doubt["moved_ms"]:
        # The time of its state is that of a decision; of others, doubt says only when it came there.
        is_undecided = doubt["state"] in (TxnState.OPEN.value, TxnState.PARKED.value)
        what = "moved to doubt" if is_undecided else f"on doubt, {doubt['state']}"
        now = f"now {doubt['state']}" if doubt["state"] == TxnState.PARKED.value else ""
        detail = ": ".join(filter(None, [now, doubt["reason"]]))
        yield Event(doubt["moved_ms"], "doubt", what, f"doubt {partition}", detail)
    for message in history.get("forwarded", ()):
        place = f"{message['topic']} {message['partition']}:{message['offset']}"
        yield Event(message["at_ms"], "forwarded", f"forwarded to {message['topic']}", place)
    if history["left_doubt_ms"] is not None:
        yield Event(history["left_doubt_ms"], "settled", "left doubt: settled", f"doubt {partition}")
    for each in history.get("handled", ()):
        for letter in each["letters"]:
            yield from _letter_events(each["group"], letter)


def _letter_events(group: str, letter: Json) -> Iterator[Event]:
    place, name = f"{letter['topic']} {letter['partition']}:{letter['offset']}", f"dead letter {letter['letter']}"
    yield Event(letter["at_ms"], "given-up", f"{name} of {group}", place, letter["why"])
    for said in letter["said"]:
        what = f"{said['kind']} of {name} asked for" if said["outcome"] is None else f"{name} {said['outcome']}"
        parts = [f"operator {said['operator']}" if said["operator"] else "", said["text"] or ""]
        place = f"{letter['replays']} {letter['partition']}:{said['offset']}"
        yield Event(said["at_ms"], "replayed", what, place, ": ".join(filter(None, parts)))


def _op_event(line: Json, history: Json, asked_ms: dict[int, int]) -> Event:
    position = {"offset": line["offset"], "line": line["line"]}
    is_decision, is_ending = position == history["decided_at"], line is _ending(history)
    kind = "decided" if is_decision else "answered" if line["check_number"] is not None else "said"
    parts = []
    if (number := line["check_number"]) is not None:
        after = "" if number not in asked_ms else f" after {length_text(line['appended_ms'] - asked_ms[number])}"
        parts.append(f"answers check-back {number}{after}")
    if line["operator"]:
        parts.append(f"operator {line['operator']}")
    if line["reason"]:
        parts.append(f"reason: {line['reason']}")
    if not line["is_counted"]:
        parts.append(_why_not(line, history))
    elif is_decision or is_ending:
        said = "decides" if is_decision else "gives up what was committed and not forwarded"
        is_open = is_ending and history["is_applied"] is False
        parts.append(said + ("; no coordinator has carried it out" if is_open else ""))
    elif line["time_ms"] is not None:
        parts.append(f"time: {time_text(line['time_ms'])}")
    elif (first := _contrary_decision(line, history)) is not None:
        parts.append(f"refused: the {first.lower()} came first")
    place = f"op {history['partition']}:{line['offset']}, line {line['line']}"
    what = line["resolution"].lower()
    if line["time_ms"] is not None:
        what = "release" if what == "commit" else "another time"
    return Event(line["appended_ms"], kind, f"{what} by {line['source']}", place, "; ".join(parts))


def _ending(history: Json) -> Json | None:
    """The line that decides; of one that was abandoned after its commit, that of the abandon."""
    counted = [line for line in history["op_lines"] if line["is_counted"]]
    place = history["decided_at"]
    decision = next((each for each in counted if {"offset": each["offset"], "line": each["line"]} == place), None)
    is_given_up = history["state"] == TxnState.ROLLED_BACK.value and decision and decision["resolution"] == "COMMIT"
    return next((each for each in counted if each["resolution"] == "ABANDON"), None) if is_given_up else decision


def _contrary_decision(line: Json, history: Json) -> str | None:
    """The resolution that was decided before this line, which says the opposite; an abandon may act after a commit."""
    decided = history["decided_at"]
    if decided is None or (line["offset"], line["line"]) < (decided["offset"], decided["line"]):
        return None
    place = decided["offset"], decided["line"]
    first = next((each["resolution"] for each in history["op_lines"] if (each["offset"], each["line"]) == place), "")
    opposite = {"COMMIT": ("ROLLBACK", "ABANDON"), "ROLLBACK": ("COMMIT",)}
    return first if first in opposite.get(line["resolution"], ()) else None


def _why_not(line: Json, history: Json) -> str:
    if line["producer_group"] != history["producer_group"]:
        return f"does not count: it names the group {line['producer_group']}"
    return f"does not count: it names half offset {line['last_half_offset']}, or was given up"


def _options(half: Json) -> str:
    parts = [f"ordering key {half['key_hash']}" if half["key_hash"] else ""]
    parts.append("in the order of prepare" if half["order"] == "prepare" and half["key_hash"] else "")
    parts.append(f"immunity {length_text(half['immunity_ms'])}" if half["immunity_ms"] is not None else "")
    parts.append(f"{half['unresolved']} if no answer comes" if half["unresolved"] is not None else "")
    return ", ".join(filter(None, parts))


# --- export ------------------------------------------------------------------------------------------------------------

FORMAT = 1  # version of a line: a reader refuses one that it does not know


def export_json(found: UnsettledTransaction, contents: list[Content], *, now_ms: int) -> Json:
    more = found.txn.extras
    return {
        "format": FORMAT,
        **unsettled_json(found, now_ms=now_ms),
        "born_ms": found.txn.summary().born_ms,
        "moved_ms": (more.moved_ms or None) if more is not None else None,
        "messages": [_message_json(content, found) for content in contents if not _is_forwarded(content, found)],
    }


def _is_forwarded(content: Content, found: UnsettledTransaction) -> bool:
    """True if consumers see it already: its time came before those of other messages."""
    due = found.txn.due
    if due is None:
        return False
    return (content.options.deliver_at_ms or 0) < (due.part[0] if found.state == COMMITTING else due.sent_to)


def _deliver_at_ms(content: Content, found: UnsettledTransaction) -> int | None:
    """The time before which no consumer may see it, also if that was moved; None: there is none, or it has come."""
    due, time_ms = found.txn.due, content.options.deliver_at_ms or 0
    if due is None or not due.left or time_ms < due.released_to:
        return None
    return (time_ms if time_ms in due.left else due.left[0]) or None


def _message_json(content: Content, found: UnsettledTransaction) -> Json:
    record: Any = content.record
    return {
        "index": content.index,
        "topic": content.topic,
        "partition": content.options.partition,
        "timestamp_ms": content.options.timestamp_ms,
        "deliver_at_ms": _deliver_at_ms(content, found),
        "key": bytes_json(record.key()),
        "value": bytes_json(record.value()),
        "headers": [{"name": name, "value": bytes_json(value)} for name, value in user_headers(record.headers())],
    }


HALF_COUNT_MAX = 100  # half records of one transaction that are read for a person


def read_half_records(connections: CoordinatorConnections, partition: int, offsets: Iterable[int]) -> dict[int, Any]:
    """{offset: half record} of those that half still has; at most `HALF_COUNT_MAX`."""
    half = (connections.config.topics.half, partition)
    first = connections.start_offsets([half])[half]
    wanted = sorted(offset for offset in offsets if offset >= first)[:HALF_COUNT_MAX]
    found: dict[int, Any] = {}
    for run in runs_of((offset, offset + 1) for offset in wanted):
        records = committed_records(connections, {half: run})
        found |= {record.offset(): record for record in records if record.offset() in wanted}
    return found


def read_on_doubt(connections: CoordinatorConnections, found: UnsettledTransaction) -> dict[int, Any]:
    """{half offset: half record} of a transaction, as far as doubt has them whole; at most `HALF_COUNT_MAX`. InvariantError: one is gone."""
    topics, wanted = connections.config.topics, [(found.partition, found.txn, min(found.txn.seen, HALF_COUNT_MAX))]
    client = connections.make_reader("read_committed")
    with closing(RangeReader(client, patience_s=STABLE_PATIENCE_S)) as reader:
        contents = fetch_contents(reader, wanted, half_topic=topics.half, doubt_topic=topics.doubt, forwarded=())
    of_this = contents.get((found.partition, found.txn.key), [])
    return {content.offset: content.record for content in of_this if not is_cut(content.record)}


FETCH_COUNT = 100  # transactions whose contents are in memory at once


def read_with_contents(
    connections: CoordinatorConnections, found: Sequence[UnsettledTransaction]
) -> Iterator[tuple[UnsettledTransaction, list[Content] | None]]:
    """Each with its messages in the order of their index, in the order of `found`, also of what is settled meanwhile: doubt keeps it a day.

    None: half alone had one of them whole, and does not hold it any more. InvariantError: a content is not there any more; those before it
    were given.
    """
    topics = connections.config.topics

    def fetch(part: Sequence[UnsettledTransaction]) -> dict[tuple[int, str], list[Content]]:
        # There is no half record of one that is known from an op line alone.
        wanted = [(s.partition, s.txn, s.txn.seen) for s in part if s.txn.seen]
        try:
            return fetch_contents(reader, wanted, half_topic=topics.half, doubt_topic=topics.doubt)
        except RefusedRecordError:
            return {} if len(part) == 1 else {key: got for each in part for key, got in fetch([each]).items()}

    client = connections.make_reader("read_committed")
    with closing(RangeReader(client, patience_s=STABLE_PATIENCE_S)) as reader:
        for start in range(0, len(found), FETCH_COUNT):
            part = found[start : start + FETCH_COUNT]
            contents = fetch(part)
            for each in part:
                yield each, contents.get((each.partition, each.txn.key), None if each.txn.seen else [])


# --- where the messages went -----------------------------------------------------------------------------------------
# Everything is looked for from the time of the decision on, in so many records. What is not found there is not said.


READ_COUNT_MAX = 20_000  # records that are read for one transaction; about a tenth of a second
MESSAGE_COUNT_MAX = 100
GROUP_COUNT_MAX = 20  # consumer groups of one topic that are asked about
LETTER_COUNT_MAX = 3  # dead letters of one message in one group, the newest


class ForwardedMessage(NamedTuple):
    """One message in its real topic."""

    half_offset: int
    topic: str
    partition: int
    offset: int
    at_ms: int
    key: bytes | None


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
            partition, half_offset, *_ = codec.origin_of(record.headers()) or (-1, -1)
            if partition == history.partition and half_offset in wanted:
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


def find_handling(clients: Clients, messages: Sequence[ForwardedMessage]) -> list[Json]:
    """What the groups that txlayer's consumers make topics for did with these messages."""
    found: list[Json] = []
    with closing(clients.admin()) as admin:
        consumed = sorted(consumed_pairs(admin))
        for topic in sorted({message.topic for message in messages}):
            ours = [message for message in messages if message.topic == topic]
            groups = [group for group, its_topic in consumed if its_topic == topic]
            for group in groups[:GROUP_COUNT_MAX]:
                found += _handling(clients, admin, group, ours)
    return found


def _handling(
    clients: Clients, admin: Administration, group: str, messages: Sequence[ForwardedMessage]
) -> Iterator[Json]:
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
        yield {
            "group": group,
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "is_handled": is_handled,  # by its handler; None: the group stored nothing for its partition, or another program did
            "attempt_count": attempt_count,  # that failed; None: not known, as of what is handled
            "letters": letters,  # its dead letters, the newest last: an edited copy is one more
        }


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
        "said": [event_json(each) for each in said],
    }


def forwarded_json(
    clients: Clients, history: TransactionHistory, halves: Mapping[int, Record]
) -> tuple[list[Json], list[Json], str]:
    """(messages, handlings, why there may be more): what is found is given, also if the rest cannot be read."""
    messages: list[ForwardedMessage] = []
    handlings: list[Json] = []
    problem = ""
    try:
        messages = find_forwarded(clients, history, halves)
        handlings = find_handling(clients, messages) if messages else []
    except TxLayerError as exc:
        problem = str(exc)
    return [message._asdict() | {"key": None} for message in messages], handlings, problem
