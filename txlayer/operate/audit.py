"""What people did, when and why, as the logs have it: op lines of operators, requests to consumer groups, releases of leases."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from txlayer.adapters.connect import Clients
from txlayer.adapters.ports import Administration, TopicPartition, partition_count_of
from txlayer.adapters.readers import records_of
from txlayer.config import SystemTopics
from txlayer.core.dead_letters import ReplayKind, decode_replay, replay_topic
from txlayer.core.history import split_operator_reason
from txlayer.core.leases import LockKind, LockRecord, decode_lock
from txlayer.core.messages import Resolution, Source, Undecodable
from txlayer.errors import RetriableError, TxLayerError
from txlayer.operate.dead_letters import COUNT_MAX, consumed_pairs
from txlayer.operate.settle import lines_of

RECORD_COUNT_MAX = 100_000
RECORD_BYTES_MAX = 256 * 1024 * 1024
"""Records of one window, the newest, and their bytes."""
ACT_COUNT_MAX = 20_000  # acts of one window, the newest
TOGETHER_MS = 10 * 60_000  # acts that follow each other within this time, by one person for one reason, are one entry
PATIENCE_S = 10.0


class Act(NamedTuple):
    """One record that a person wrote."""

    at_ms: int
    what: str  # commit, rollback, abandon, ask, move; replay, drop, pause, resume; release
    operator: str
    reason: str
    about: str  # a producer group; "consumer group topic"; a queue
    request_id: str  # of a request to a consumer group
    example: (
        str  # "partition:half offset" of a transaction, TOPIC/PARTITION:OFFSET of a dead letter, a queue or a partition
    )
    place: str  # of the record


class Entry(NamedTuple):
    """Acts of one person for one reason about one group."""

    newest: Act
    first_ms: int
    act_count: int


@dataclass(slots=True)
class Audit:
    """What people did from `since_ms` to before `until_ms`, the newest first."""

    since_ms: int
    until_ms: int
    entries: list[Entry] = field(default_factory=list)
    record_count: int = 0  # that were read
    problems: dict[str, str] = field(default_factory=dict)  # what could not be read, and why


def read_audit(clients: Clients, *, until_ms: int, span_ms: int, record_count_max: int = RECORD_COUNT_MAX) -> Audit:
    """The acts of a window. If it has more records than are read, it is made shorter, and begins at `since_ms`; RetriableError: they are too large."""
    audit, topics = Audit(max(until_ms - span_ms, 0), until_ms), clients.config.topics
    with closing(clients.admin()) as admin:
        names = islice(consumed_pairs(admin), COUNT_MAX)
        groups = {replay_topic(group, topic): (group, topic) for group, topic in names}
        ranges = _ranges(admin, topics.op, audit)
        for name in (topics.locks, *groups):
            try:
                ranges |= _ranges(admin, name, audit)
            except TxLayerError as exc:  # the others may be readable
                audit.problems[name] = str(exc)
    acts: list[Act] = []
    cut = shorten(ranges, record_count_max)
    first_ms: dict[TopicPartition, int] = {}
    size_bytes = 0
    with closing(clients.reader()) as reader:
        for record in records_of(reader, ranges, patience_s=PATIENCE_S):
            audit.record_count += 1
            size_bytes += len(record)
            if size_bytes > RECORD_BYTES_MAX:
                why = "the records of this time are too large to be read at once; ask for a shorter time"
                raise RetriableError(why)
            first_ms.setdefault((record.topic(), record.partition()), record.timestamp()[1])
            acts += _acts_of(record, topics, groups)
            if len(acts) >= 2 * ACT_COUNT_MAX:
                acts = _newest(acts, audit)
    audit.since_ms = max([audit.since_ms, *(first_ms[tp] for tp in cut if tp in first_ms)])
    acts = _newest(acts, audit)
    audit.entries = list(_together(act for act in acts if audit.since_ms <= act.at_ms < until_ms))
    return audit


def _ranges(admin: Administration, topic: str, audit: Audit) -> dict[TopicPartition, tuple[int, int]]:
    tps = [(topic, p) for p in range(partition_count_of(admin, topic))]
    starts, ends = admin.offsets_at(tps, at_ms=audit.since_ms), admin.offsets_at(tps, at_ms=audit.until_ms)
    return {tp: (starts[tp], ends[tp]) for tp in tps}


def shorten(ranges: dict[TopicPartition, tuple[int, int]], total: int) -> list[TopicPartition]:
    """Keep so many of the newest offsets in all; the partitions of which older ones are left out."""
    left, share, count = total, 0, len(ranges)
    for size in sorted(end - start for start, end in ranges.values()):
        if size * count > left:
            share = max(left // count, 1)
            break
        left, count = left - size, count - 1
    else:
        return []
    cut = [tp for tp, (start, end) in ranges.items() if end - start > share]
    for tp in cut:
        ranges[tp] = ranges[tp][1] - share, ranges[tp][1]
    return cut


def _newest(acts: list[Act], audit: Audit) -> list[Act]:
    """The newest of them, the newest first; what is left out shortens the window."""
    acts = sorted(acts, key=lambda act: act.at_ms, reverse=True)
    if len(acts) > ACT_COUNT_MAX:
        audit.since_ms = max(audit.since_ms, acts[ACT_COUNT_MAX].at_ms + 1)
    return acts[:ACT_COUNT_MAX]


def _together(acts: Iterable[Act]) -> Iterator[Entry]:
    found: dict[tuple[str, ...], Entry] = {}
    for act in acts:
        name = act.what, act.operator, act.reason, act.about, act.request_id
        entry = found.get(name)
        if entry is not None and entry.first_ms - act.at_ms > TOGETHER_MS:
            found[(*name, act.place)] = found.pop(name)
            entry = None
        found[name] = Entry(act, act.at_ms, 1) if entry is None else Entry(entry.newest, act.at_ms, entry.act_count + 1)
    yield from sorted(found.values(), key=lambda entry: entry.newest.at_ms, reverse=True)


def _acts_of(record: Any, topics: SystemTopics, groups: Mapping[str, tuple[str, str]]) -> Iterator[Act]:
    topic, value, at_ms = record.topic(), record.value() or b"", record.timestamp()[1]
    where = f"{record.partition()}:{record.offset()}"
    if topic == topics.op:
        # Of a million lines a day few are an operator's.
        if b"|operator|" in value:
            yield from _of_op(record)
    elif topic == topics.locks:
        found = decode_lock(record.key(), value)
        if isinstance(found, LockRecord) and found.kind is LockKind.RELEASE and found.reason:
            who = split_operator_reason(found.reason)
            yield Act(at_ms, "release", *who, found.queue, "", found.queue, f"locks {where}")
    else:
        request = decode_replay(value)
        if isinstance(request, Undecodable) or request.kind is ReplayKind.RESULT:
            return
        group, source = groups[topic]
        example = f"{source}/{record.partition()}"
        if request.dead_letter_offset is not None:
            example += f":{request.dead_letter_offset}"
        who, about = split_operator_reason(request.text), f"{group} {source}"
        yield Act(at_ms, request.kind.name.lower(), *who, about, request.request_id, example, f"{topic} {where}")


def _of_op(record: Any) -> Iterator[Act]:
    for (offset, number), at_ms, op in lines_of(record):
        if op.source is Source.OPERATOR:
            what = "ask" if op.resolution is Resolution.UNKNOWN else op.resolution.name.lower()
            what = "move" if op.is_reschedule else what
            what, who = "abandon" if op.is_abandon else what, split_operator_reason(op.reason)
            p = record.partition()
            place = f"op {p}:{offset}, line {number}"
            yield Act(at_ms, what, *who, op.producer_group, "", f"{p}:{op.last_offset}", place)
