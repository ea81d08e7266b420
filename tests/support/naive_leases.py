"""The rules of the lock log once more, slowly: who holds a queue is found anew from all of its records, every time."""

from collections.abc import Sequence
from typing import NamedTuple

from txlayer.core.leases import LockKind, LockRecord


class Entry(NamedTuple):
    """One record as it stands in the log."""

    offset: int
    appended_ms: int
    record: LockRecord


class Held(NamedTuple):
    """Who has a queue, by which claim, until when."""

    holder: str
    instance_id: str
    generation: int
    token: int
    until_ms: int


def newest(log: Sequence[Entry], queue: str, *, expiry_ms: int) -> Held | None:
    """The newest lease of a queue; None: there was none. A released one ended before all time."""
    last: Held | None = None
    for entry in log:
        if entry.record.queue == queue:
            last = after(last, entry, expiry_ms=expiry_ms)
    return last


def after(last: Held | None, entry: Entry, *, expiry_ms: int) -> Held | None:
    """The newest lease of a queue, one of its records later."""
    offset, at_ms, record = entry
    token = offset if record.kind is LockKind.CLAIM else record.token
    assert token is not None
    taken = Held(
        record.holder,
        record.instance_id,
        record.generation,
        token,
        0 if record.kind is LockKind.RELEASE else at_ms + expiry_ms,
    )
    if record.kind is LockKind.CLAIM:
        if record.token is None:
            is_free = last is None or at_ms >= last.until_ms
            return taken if is_free or (last is not None and beats(record, last)) else last
        is_newest = last is None or record.token > last.token
        is_same = last is not None and record.token == last.token and last.until_ms != 0
        return taken if record.token < offset and (is_newest or is_same) else last
    if token >= offset or (last is not None and token < last.token):
        return last
    if last is None or token > last.token:
        return taken
    if last.until_ms == 0:
        return last
    return last._replace(until_ms=taken.until_ms)


def beats(claim: LockRecord, held: Held) -> bool:
    """Whether a claim takes a queue from its holder."""
    if claim.generation > held.generation or claim.holder == held.holder:
        return True
    if claim.generation < held.generation:
        return False
    return claim.instance_id != "" and claim.instance_id == held.instance_id
