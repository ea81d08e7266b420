"""Is it well? What a live view shows, judged in a few sentences, the worst first. And looks at the cluster that are taken beside what shows
them: a page of the console, or the screen of `txlayer top`.
"""

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from txlayer.core.ledger.transitions import COMMITTING, TxnState
from txlayer.operate import Json, length_text, problem_of
from txlayer.operate.doctor import Level, counted, few
from txlayer.operate.live import STABLE, LiveState, rates_of
from txlayer.operate.rows import UNREADABLE, GroupCount
from txlayer.operate.unsettled import PARKED, GroupResponders
from txlayer.runtime.environment import REAL, Environment

STALE_MS = 15_000  # a picture older than this is no picture of now
LAG_MS = 30_000  # op lines that wait longer than this for a coordinator are late
OLD_MS = 10 * 60_000  # an undecided transaction older than this deserves a look


class Remark(NamedTuple):
    """One sentence about the namespace."""

    level: Level
    sentence: str


def remarks(
    state: LiveState, counts: Sequence[GroupCount], *, now_ms: int, consumed: Sequence[Json] = ()
) -> list[Remark]:
    """What is to be said, the worst first; never empty. `consumed` are rows of `consumption_json`."""
    order = list(Level)
    return sorted(_remarks(state, counts, consumed, now_ms), key=lambda remark: order.index(remark.level))


def _remarks(state: LiveState, counts: Sequence[GroupCount], consumed: Sequence[Json], now_ms: int) -> Iterator[Remark]:
    if state.problem:
        since = length_text(now_ms - state.problem_ms)
        yield Remark(Level.ERROR, f"not known now, since {since}: {state.problem}")
    elif not state.is_ready:
        yield Remark(Level.INFO, being_read(state))
    elif now_ms - state.true_ms > STALE_MS:
        yield Remark(Level.WARNING, f"the picture is {length_text(now_ms - state.true_ms)} old")
    if state.closed_at_ms is not None:
        yield Remark(
            Level.WARNING, f"no new transactions are accepted, since {length_text(now_ms - state.closed_at_ms)}"
        )
    yield from _about_coordinators(state)
    yield from _about_transactions(state, counts, now_ms)
    yield from _about_consumers(consumed)
    if state.is_ready and not state.problem:
        total = sum(each.count for each in counts)
        doubtful = [each for each in counts if not _is_scheduled(each)]
        scheduled = sum(each.count for each in counts if _is_scheduled(each))
        said = f"{counted(total, 'transaction')} not settled"
        said += f", {scheduled:,} of them scheduled" if scheduled else ""
        said += f", the oldest {length_text(now_ms - min(c.oldest_ms for c in doubtful))} old" if doubtful else ""
        yield Remark(Level.OK, said)


def _is_scheduled(count: GroupCount) -> bool:
    """True of those whose time has not come: they are decided, and may be as old as they like."""
    return count.state == TxnState.SCHEDULED.value


def being_read(state: LiveState) -> str:
    if not state.to_read_count:
        return "the logs are being read"
    share = 100 * state.read_count // state.to_read_count
    return f"the logs are being read, {share} of 100: the numbers are too low until then"


def _about_coordinators(state: LiveState) -> Iterator[Remark]:
    if state.group_problem:
        yield Remark(Level.WARNING, f"the members of groups are not known: {state.group_problem}")
    elif state.group_ms:
        owned = {partition for member in state.members for _, partition in member.partitions}
        orphans = [p.partition for p in state.partitions if p.partition not in owned]
        if not state.members:
            yield Remark(Level.ERROR, "no coordinator runs: nothing is forwarded, and no check-back is sent")
        elif state.group_state != STABLE:
            yield Remark(Level.WARNING, "the coordinators share the partitions anew")
        elif orphans:
            yield Remark(Level.ERROR, f"no coordinator owns {counted(len(orphans), 'partition')}: {few(orphans)}")
    late = [p for p in state.partitions if p.op_lag_ms > LAG_MS]
    if late:
        longest = length_text(max(p.op_lag_ms for p in late))
        yield Remark(Level.ERROR, f"resolutions wait for {longest} in {counted(len(late), 'partition')}")


def _about_transactions(state: LiveState, counts: Sequence[GroupCount], now_ms: int) -> Iterator[Remark]:
    numbers: Counter[str] = Counter()
    for each in counts:
        numbers[each.state] += each.count
    answered = {each.producer_group: each.is_answered for each in state.responders}
    open_ones = [each for each in counts if each.state == TxnState.OPEN.value]
    # The youngest are about to be decided by their own producer.
    alone = [c for c in open_ones if answered.get(c.producer_group) is False and now_ms - c.oldest_ms > LAG_MS]
    for each in alone[:3]:
        what = f"no responder answers check-backs for the group {each.producer_group}"
        yield Remark(Level.ERROR, f"{what}: {counted(each.count, 'transaction')} undecided")
    if len(alone) > 3:
        yield Remark(Level.ERROR, f"no responder answers for {len(alone) - 3} more groups")
    if parked := sum(numbers[state] for state in PARKED):
        yield Remark(Level.WARNING, f"{counted(parked, 'transaction')} parked for a person")
    if held := numbers[TxnState.HELD.value]:
        yield Remark(Level.WARNING, f"{counted(held, 'transaction')} held: a topic refuses")
    if unreadable := numbers[UNREADABLE]:
        yield Remark(Level.WARNING, f"{counted(unreadable, 'transaction')} written by a later release")
    if kept_aside := sum((state.quarantined or {}).values()):
        yield Remark(Level.WARNING, f"{counted(kept_aside, 'record')} quarantined: unreadable or misplaced")
    old = [each for each in open_ones if now_ms - each.oldest_ms > OLD_MS]
    if old and not alone:
        yield Remark(
            Level.WARNING,
            f"undecided for {length_text(now_ms - min(c.oldest_ms for c in old))}: {old[0].producer_group}",
        )
    if not state.members and numbers[COMMITTING]:
        yield Remark(Level.ERROR, f"{counted(numbers[COMMITTING], 'transaction')} committed and not forwarded")


def _about_consumers(consumed: Sequence[Json]) -> Iterator[Remark]:
    """What keeps messages waiting behind their consumers. What is not known is not said."""

    def named(rows: Sequence[Json]) -> str:
        return few(list(dict.fromkeys(each["group"] for each in rows)))

    if idle := [each for each in consumed if each["member_count"] == 0 and each["lag"]]:
        left = sum(each["lag"] for each in idle)
        said = f"no consumer runs, and at most {counted(left, 'message')} not finished"
        yield Remark(Level.WARNING, f"{said}: {named(idle)}")
    for name, said, noun in (
        ("open_breaker_count", "breaker open in {}", "queue"),
        ("paused_count", "{} paused", "queue"),
        ("parked_key_count", "{}", "parked key"),
    ):
        if rows := [each for each in consumed if each[name]]:
            count = sum(each[name] for each in rows)
            yield Remark(Level.WARNING, f"{said.format(counted(count, noun))}: {named(rows)}")


class GroupNow(NamedTuple):
    """What is not settled of one producer group, and who answers for it."""

    name: str
    states: dict[str, int]
    total: int
    oldest_ms: int | None  # of those that are not scheduled
    responders: GroupResponders | None  # None: not looked at yet


def groups_of(state: LiveState, counts: Sequence[GroupCount]) -> list[GroupNow]:
    """One for each group, that with the oldest transaction first; at the end those that are known for their responders alone."""
    responders = {each.producer_group: each for each in state.responders}
    states: defaultdict[str, dict[str, int]] = defaultdict(dict)
    oldest_ms: dict[str, int] = {}
    for each in counts:
        states[each.producer_group][each.state] = each.count
        if not _is_scheduled(each):
            oldest_ms[each.producer_group] = min(each.oldest_ms, oldest_ms.get(each.producer_group, each.oldest_ms))
    by_age = sorted(states, key=lambda name: (name not in oldest_ms, oldest_ms.get(name, 0)))
    names = [*by_age, *sorted(responders.keys() - states.keys())]
    return [
        GroupNow(name, found, sum(found.values()), oldest_ms.get(name), responders.get(name))
        for name in names
        for found in [states.get(name, {})]
    ]


def overall_json(
    namespace: str, state: LiveState, counts: Sequence[GroupCount], *, now_ms: int, consumed: Sequence[Json] = ()
) -> Json:
    """What `txlayer top --json` prints, apart from its consumers, which are rows of `consumption_json`."""
    owners = {partition: member for member in state.members for _, partition in member.partitions}
    # Of the time after the last picture nothing is known: it is no time without transactions.
    rates = rates_of(state.minutes, since_ms=state.since_ms, now_ms=min(now_ms, state.true_ms))
    return {
        "namespace": namespace,
        "true_ms": state.true_ms,
        "problem": state.problem or None,
        "is_accepting": state.closed_at_ms is None,
        "remarks": [
            {"level": remark.level.value, "sentence": remark.sentence}
            for remark in remarks(state, counts, now_ms=now_ms, consumed=consumed)
        ],
        "groups": [
            {
                "producer_group": group.name,
                "states": group.states,
                "count": group.total,
                "oldest_age_ms": None if group.oldest_ms is None else max(now_ms - group.oldest_ms, 0),
                "is_answered": None if group.responders is None else group.responders.is_answered,
                "responders": []
                if group.responders is None
                else [f"{member.client_id} on {member.host}" for member in group.responders.members],
            }
            for group in groups_of(state, counts)
        ],
        "kept_aside_count": None if state.quarantined is None else sum(state.quarantined.values()),
        "kept_aside": state.quarantined,
        "rates": None if rates is None else rates._asdict(),
        "group_state": state.group_state,
        "group_ms": state.group_ms or None,
        "member_count": len(state.members),
        "partitions": [
            {
                "partition": each.partition,
                "owner": None
                if (owner := owners.get(each.partition)) is None
                else f"{owner.client_id} on {owner.host}",
                "op_lag": each.op_lag,
                "op_lag_ms": each.op_lag_ms,
                "half_lag": each.half_lag,
                "restart_count": each.restart_count,
                "true_ms": each.true_ms,
            }
            for each in state.partitions
        ],
    }


logger = logging.getLogger("txlayer.operate")

LOOK_SHARE = 19
"""A look is not repeated for so many times as long as it took: looks take one part in twenty of the time at most."""


class Look(NamedTuple):
    """What was seen of the cluster last."""

    at_ms: int = 0  # when reading began; 0: nothing was seen yet
    result: Any = None
    problem: str = ""  # why it could not be read again


@dataclass(slots=True)
class _Kept:
    look: Look = field(default_factory=Look)
    ended_at: float = float("-inf")
    took_s: float = 0.0
    is_reading: bool = False
    is_stale: bool = False


class Looks:
    """Keeps the newest look of each name; names are the program's own, and few. What was seen stays while it cannot be read again. Thread-safe."""

    def __init__(self, environment: Environment = REAL) -> None:
        self._environment = environment
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def newest(self, name: str, read: Callable[[], Any], *, age_s: float) -> Look:
        """What was seen last. If that is older than `age_s`, reading begins; what takes long to read is read less often."""
        kept = self._kept_of(name)
        with self._lock:
            is_old = self._environment.clock() - kept.ended_at > max(age_s, LOOK_SHARE * kept.took_s)
            begins = is_old and not kept.is_reading
            kept.is_reading |= begins
        if begins:
            self._environment.background.start(partial(self.read, name, read), name=f"txlayer-{name}")
        return kept.look

    def forget(self, name: str) -> None:
        """Something was changed: what was seen is old, and so is what is being read."""
        kept = self._kept_of(name)
        with self._lock:
            kept.ended_at, kept.is_stale = float("-inf"), True

    def read(self, name: str, read: Callable[[], Any]) -> None:
        """Read it in the caller's thread."""
        kept, environment = self._kept_of(name), self._environment
        kept.is_stale = False
        began, at_ms = environment.clock(), int(environment.wall_clock() * 1000)
        try:
            kept.look = Look(at_ms, read())
        except Exception as exc:  # noqa: BLE001 - border of a thread
            kept.look = kept.look._replace(problem=problem_of(exc, logger, "look.failed", look=name))
        with self._lock:
            kept.took_s = environment.clock() - began
            kept.ended_at = float("-inf") if kept.is_stale else began + kept.took_s
            kept.is_reading = False

    def _kept_of(self, name: str) -> _Kept:
        with self._lock:
            return self._kept.setdefault(name, _Kept())
