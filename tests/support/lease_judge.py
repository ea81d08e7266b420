"""The judge of leases (P10): handlers run under leases that the lock log gave. Never the registry.

The log is folded by the slow rules of `naive_leases`: one holder at every position, and tokens that only grow.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tests.support.checker import Finding, Kind
from tests.support.consumer_history import ConsumerHistory, HandlerCall, Learned
from tests.support.naive_leases import Entry, Held, after
from txlayer.core.leases import decode_lock, queue_name
from txlayer.core.messages import Undecodable


class State(NamedTuple):
    """Who has a queue from this record on."""

    at_ms: float
    partition: int
    offset: int
    held: Held | None


def lease_findings(history: ConsumerHistory) -> Iterable[Finding]:
    """Everything that is wrong with the leases of a run."""
    states = _states(history)
    learned: dict[str, list[Learned]] = {}
    for each in history.learned:
        learned.setdefault(each.process, []).append(each)
    for call in history.calls:
        name = queue_name(history.group, call.topic, call.partition)
        why = _why_not(history, states.get(name, []), call, learned.get(call.process, []))
        if why:
            detail = f"{call.offset} by {call.process} under {call.token} at {call.began_ms:.0f}: {why}"
            yield Finding(Kind.UNLEASED, name, detail)
    yield from (Finding(Kind.STUCK, name, "it has no holder") for name in _without_holder(history, states))


def queues_without_holder(history: ConsumerHistory) -> list[str]:
    """The queues that have no live lease at the end of the lock log, by name: for those who wait until all have one."""
    return list(_without_holder(history, _states(history)))


def _states(history: ConsumerHistory) -> dict[str, list[State]]:
    found: dict[str, list[State]] = {}
    for seen in history.logs.locks:
        record = decode_lock(seen.key, seen.value)
        if isinstance(record, Undecodable):
            continue
        log = found.setdefault(record.queue, [])
        last = log[-1].held if log else None
        entry = Entry(seen.offset, seen.timestamp_ms, record)
        held = after(last, entry, expiry_ms=history.lease_expiry_ms)
        log.append(State(seen.timestamp_ms, seen.partition, seen.offset, held))
    return found


def _why_not(history: ConsumerHistory, log: list[State], call: HandlerCall, learned: list[Learned]) -> str:
    """Why a handler may not begin; "": it may."""
    until_ms = -1.0
    lost_at: State | None = None
    for state in log:
        held = state.held
        if state.at_ms > call.began_ms or held is None:
            continue
        if held.token == call.token and history.holders.get(held.holder) == call.process:
            until_ms = held.until_ms
        elif until_ms >= 0 and history.holders.get(held.holder) != call.process and lost_at is None:
            lost_at = state
    if until_ms < 0:
        return "nobody gave it"
    if call.began_ms >= until_ms:
        return f"it was over at {until_ms:.0f}"
    if lost_at is not None and any(
        each.partition == lost_at.partition and each.offset >= lost_at.offset and each.at_ms < call.began_ms
        for each in learned
    ):
        return f"it had read that it was lost at {lost_at.offset}"
    return ""


def _without_holder(history: ConsumerHistory, states: dict[str, list[State]]) -> Iterable[str]:
    """The queues whose lease is over, or was never given, when the lock log ends."""
    end_ms = max((s.at_ms for log in states.values() for s in log), default=0.0)
    for topic in history.topics:
        for partition in range(history.partition_count):
            name = queue_name(history.group, topic, partition)
            log = states.get(name, [])
            held = log[-1].held if log else None
            if held is None or held.until_ms < end_ms:
                yield name
