"""The judge of a whole run: what `checker` finds in the logs, and what was stored and seen while it happened.

One judge for the simulation and for real clusters: it is fed a `History`, and knows nothing of how that was made.
"""

from collections.abc import Iterable

from tests.support.check_judge import check_back_findings
from tests.support.checker import Expected, Finding, Judge, Kind, Verdict, home_of
from tests.support.history import History, Sample
from tests.support.logs import Seen, header
from tests.support.parked_by_answers import parked_by_answers
from txlayer.core import codec
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import (
    DoubtSummary,
    HalfHeader,
    OpMessage,
    OrderMode,
    Origin,
    Resolution,
    Source,
    Undecodable,
)

_OPEN, _PARKED = TxnState.OPEN.value, TxnState.PARKED.value
_WAITING, _HELD, _SCHEDULED = TxnState.WAITING.value, TxnState.HELD.value, TxnState.SCHEDULED.value
_DECIDED_STATES = frozenset({_WAITING, _SCHEDULED, _HELD, TxnState.PARKED_COMMITTED.value})

Stored = tuple[tuple[int, int], int, str]
"""(op position, next half offset, writer)."""


def judge_history(history: History) -> Verdict:
    """Everything that is wrong in a run that was healed and has come to rest."""
    judge = Judge(history.logs, partition_count=history.partition_count, parked_at=parked_by_answers(history))
    verdict = judge.verdict()
    verdict.findings += [
        *_missing(history),
        *_hanging(history),
        *_contrary_to_databases(history, judge),
        *_stored_back(history),
        *_stored_ahead(history, judge),
        *_unsteady(history),
        *_forgotten(history, judge),
        *_not_aside(history, judge),
        *_doubt_of_another_mind(judge),
        *_passed_a_held_one(judge),
        *check_back_findings(history, judge),
    ]
    return verdict


def missing_from(records: Iterable[Seen], acknowledged: Iterable[tuple[int, int]], *, what: str) -> list[Finding]:
    """Acknowledged (partition, offset) places that a log does not hold."""
    there = {(record.partition, record.offset) for record in records}
    return [Finding(Kind.LOST, "", f"{what} {place} was acknowledged") for place in acknowledged if place not in there]


def _missing(history: History) -> Iterable[Finding]:
    for topic, records in ((history.half_topic, history.logs.half), (history.op_topic, history.logs.op)):
        places = [(p, offset) for name, p, offset in history.acknowledged if name == topic]
        yield from missing_from(records, places, what=topic)


def _hanging(history: History) -> Iterable[Finding]:
    for (topic, partition), (stable, end) in history.ends.items():
        if stable != end:
            yield Finding(Kind.HANGING, "", f"{topic}-{partition}: stable to {stable} of {end}")


def _contrary_to_databases(history: History, judge: Judge) -> Iterable[Finding]:
    for key, local in history.local.items():
        txn = judge.expected.get(key)
        if txn is None or txn.decision is None or txn.decided_by is Source.POLICY:
            continue  # nobody asked the database
        if txn.decision is not local:
            yield Finding(Kind.CONTRARY, key, f"the database says {local}, op {txn.decision}")


# --- stored positions -------------------------------------------------------------------------------------------------


def _stored(history: History, sample: Sample, partition: int) -> Stored | None:
    op = sample.stored.get((history.op_topic, partition))
    if op is None or not op.metadata:
        return None
    _, writer, half_next, line, *_ = op.metadata.split("|")
    return (op.offset, int(line)), int(half_next), writer


def _stored_back(history: History) -> Iterable[Finding]:
    for partition in range(history.partition_count):
        before: Stored = ((0, 0), 0, "")
        former: set[str] = set()
        for sample in history.samples:
            now = _stored(history, sample, partition)
            if now is None:
                continue
            if now[0] < before[0] or now[1] < before[1]:
                yield Finding(Kind.BACKWARDS, "", f"partition {partition}: {before} → {now}")
            if now[2] != before[2]:
                former.add(before[2])
                if now[2] in former:
                    yield Finding(Kind.BACKWARDS, "", f"partition {partition}: {now[2]} again")
            before = now


def _stored_ahead(history: History, judge: Judge) -> Iterable[Finding]:
    # Whoever was on doubt meanwhile may have been forwarded long after its line was passed.
    direct = [
        (judge.expected[key], messages)
        for key, messages in judge.visible.items()
        if key not in judge.were_on_doubt and judge.expected[key].decision is Resolution.COMMIT
    ]
    for sample in history.samples:
        for partition in range(history.partition_count):
            now = _stored(history, sample, partition)
            if now is None:
                continue
            low_water = sample.stored[history.half_topic, partition].offset
            for txn, messages in direct:
                # A successor reads again from the low-water mark: who waits there is not lost sight of.
                if txn.partition != partition or txn.decided_at >= now[0]:
                    continue
                if low_water <= txn.offsets[-1]:
                    continue
                for record in messages.values():
                    end = sample.real_ends.get((record.topic, record.partition))
                    if end is not None and record.offset >= end:
                        detail = f"op stored at {now[0]}, {record.topic} ended at {end}"
                        yield Finding(Kind.AHEAD, txn.key, detail)


# --- readers ----------------------------------------------------------------------------------------------------------


def _unsteady(history: History) -> Iterable[Finding]:
    final = {(r.topic, r.partition, r.offset): r.value for r in history.logs.real}
    positions: dict[tuple[str, int], int] = {}
    origins: set[bytes] = set()
    for record in history.witnessed:
        where = f"{record.topic}-{record.partition}@{record.offset}"
        place = (record.topic, record.partition)
        if record.offset <= positions.get(place, -1):
            yield Finding(Kind.UNSTEADY, "", f"{where} came out of order")
        positions[place] = record.offset
        origin = header(record.headers, codec.ORIGIN_HEADER) or b""
        if origin in origins:
            yield Finding(Kind.DUPLICATE, "", f"a reader got {origin!r} again at {where}")
        origins.add(origin)
        if final.get((*place, record.offset), b"\0gone") != record.value:
            yield Finding(Kind.UNSTEADY, "", f"{where} was seen, and is not there")


# --- what must be kept ------------------------------------------------------------------------------------------------


def _forgotten(history: History, judge: Judge) -> Iterable[Finding]:
    stored = history.samples[-1].stored if history.samples else {}
    for txn in judge.expected.values():
        low = stored.get((history.half_topic, txn.partition))
        if txn.decision is not None or txn.key in judge.summaries or low is None:
            continue
        # What came again, or after its end was known, belongs to no transaction any more.
        if low.offset > txn.offsets[-1]:
            detail = f"undecided at half {txn.offsets}, low water {low.offset}"
            yield Finding(Kind.FORGOTTEN, txn.key, detail)


def _not_aside(history: History, judge: Judge) -> Iterable[Finding]:
    wanted = dict(_garbage(history))
    for key, what in wanted.items():
        if judge.quarantined[key] != 1:
            yield Finding(Kind.DROPPED, "", f"{what} is quarantined {judge.quarantined[key]} times")
    unwanted = judge.quarantined.keys() - wanted.keys()
    if unwanted:
        unwanted = unwanted - {key for key, _ in _lines_that_name_nothing(history, judge)}
    for key in sorted(unwanted):
        yield Finding(Kind.DROPPED, "", f"{key!r} is quarantined, and nothing is wrong with it")


def _garbage(history: History) -> Iterable[tuple[bytes, str]]:
    count, half_ends = history.partition_count, dict[int, int]()
    for record in history.logs.half:
        half_ends[record.partition] = record.offset + 1
        head = codec.decode_half_header(header(record.headers, codec.HALF_HEADER) or b"")
        if isinstance(head, HalfHeader) and home_of(head, partition_count=count) == record.partition:
            continue
        where = (history.half_topic, record.partition, record.offset)
        yield codec.quarantine_key(Origin(*where)), f"half {where[1:]}"
    for record in history.logs.op:
        where = (history.op_topic, record.partition, record.offset)
        lines = codec.split_ops(record.value)
        if isinstance(lines, Undecodable):
            yield codec.quarantine_key(Origin(*where)), f"op {where[1:]}"
            continue
        for number, line in enumerate(lines):
            op = codec.decode_op(line)
            if isinstance(op, OpMessage) and op.last_offset < half_ends.get(record.partition, 0):
                continue
            yield codec.quarantine_key(Origin(*where), number), f"op line {where[1:]}:{number}"


def _lines_that_name_nothing(history: History, judge: Judge) -> Iterable[tuple[bytes, str]]:
    """Lines that were ahead of half's end when they were read, and turned out to name another's record, a late copy or none."""
    for record in history.logs.op:
        lines = codec.split_ops(record.value)
        for number, line in enumerate([] if isinstance(lines, Undecodable) else lines):
            op = codec.decode_op(line)
            if isinstance(op, OpMessage):
                txn = judge.expected.get(op.key)
                firsts = {} if txn is None else txn.records
                if op.last_offset not in {first.offset for first in firsts.values()}:
                    where = Origin(history.op_topic, record.partition, record.offset)
                    yield codec.quarantine_key(where, number), op.key


# --- doubt ------------------------------------------------------------------------------------------------------------


def _doubt_of_another_mind(judge: Judge) -> Iterable[Finding]:
    for key, summary in judge.summaries.items():
        txn = judge.expected.get(key)
        if txn is None or not summary.seen:
            continue  # kept on the word of a line that named nothing
        is_decided = summary.state in _DECIDED_STATES
        if is_decided is not (txn.decision is Resolution.COMMIT):
            kind = Kind.LOST if txn.decision is Resolution.COMMIT else Kind.PHANTOM
            yield Finding(kind, key, f"{summary.state} on doubt, {txn.decision} in op")
        elif summary.state == _HELD:
            yield Finding(Kind.STUCK, key, f"held for {summary.reason}")
        elif summary.state == _SCHEDULED:
            yield Finding(Kind.STUCK, key, "scheduled, and never released")
        elif summary.state == _WAITING and not _is_blocked(summary, judge):
            yield Finding(Kind.STUCK, key, "waits, and nothing is ahead of it")
        elif is_decided and summary.state != _WAITING and not summary.reason:
            yield Finding(Kind.STUCK, key, f"{summary.state} without a reason")


def _is_blocked(summary: DoubtSummary, judge: Judge) -> bool:
    others = [
        other
        for other in judge.expected.values()
        if other.head.options.key_hash == summary.key_hash and other.key != summary.key
    ]
    if summary.order is OrderMode.PREPARE:
        return any(other.first_offset < summary.first_offset and _is_unsettled(other, judge) for other in others)
    return any(
        other.key in judge.summaries and judge.summaries[other.key].state in (_HELD, _WAITING) for other in others
    )


def _is_unsettled(txn: Expected, judge: Judge) -> bool:
    summary = judge.summaries.get(txn.key)
    if summary is not None:
        return summary.state in (_OPEN, _WAITING, _HELD)
    return txn.decision is None


def _passed_a_held_one(judge: Judge) -> Iterable[Finding]:
    """P6: a held one holds its key."""
    for key, summary in judge.summaries.items():
        held = judge.expected.get(key)
        if summary.state != _HELD or summary.key_hash is None or held is None:
            continue
        if held.commit_count != 1 or summary.decided_at is None:
            continue  # said again: its place is another one
        for other_key in judge.visible:
            other = judge.expected[other_key]
            if (
                other.head.options.key_hash == summary.key_hash
                and other.head.options.order is OrderMode.COMMIT
                and other.commit_count == 1
                and other.decided_at > summary.decided_at
            ):
                yield Finding(Kind.OUT_OF_ORDER, other_key, f"passed {key}, which is held")
