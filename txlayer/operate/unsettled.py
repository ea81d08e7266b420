"""Which of the transactions that are not settled are meant, how many there are of each kind, and who answers for their groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from txlayer.core import codec
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import HalfOptions, ParkReason, nonce_of, txn_id_of
from txlayer.errors import NotAuthorisedError, UsageError
from txlayer.operate import Json

if TYPE_CHECKING:
    from txlayer.adapters.connect import CoordinatorConnections
    from txlayer.adapters.ports import GroupMember
    from txlayer.core.ledger.doubt import QuarantinedRecord
    from txlayer.operate.overview import UnsettledTransaction


NAMED_MAX = 20
"""Groups that are asked about one by one, and whose members are named. The others are looked for in the cluster's list of groups."""


class GroupResponders(NamedTuple):
    """Those that answer for one producer group: producers with a check handler or a barrier, and responders alone."""

    producer_group: str
    is_answered: bool | None  # None: these credentials may not know
    members: tuple[GroupMember, ...]  # empty, too, where they were not asked for
    seen_ms: int


def read_responders(
    connections: CoordinatorConnections, groups: Iterable[str], *, now_ms: int
) -> tuple[GroupResponders, ...]:
    """Whether each group has a responder, in the order of `groups`.

    A coordinator asks the same before it sends a question: the responders of a producer group are the members of its check
    group, which share the partitions of the check topic.
    """
    names = {connections.config.topics.check_group(group): group for group in groups}
    found = []
    for name in list(names)[:NAMED_MAX]:
        try:
            members = connections.group(name).members
        except NotAuthorisedError:
            found.append(GroupResponders(names.pop(name), None, (), now_ms))
        else:
            found.append(GroupResponders(names.pop(name), bool(members), members, now_ms))
    present = connections.groups_with_members(names) if names else frozenset()
    # The list leaves out groups that these credentials may not describe: absence says nothing then.
    may_know_all = all(each.is_answered is not None for each in found)
    found += [
        GroupResponders(group, True if name in present else False if may_know_all else None, (), now_ms)
        for name, group in names.items()
    ]
    return tuple(found)


PARKED = frozenset({TxnState.PARKED.value, TxnState.PARKED_COMMITTED.value})
"""What `--parked` means, and what many at once are when no state is named."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a transaction must be like; the default lets every one through."""

    group: str | None = None
    topic: str | None = None
    states: frozenset[str] = frozenset()
    reasons: frozenset[ParkReason] = frozenset()
    older_ms: int | None = None
    younger_ms: int | None = None
    query_id: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == Filter()

    def fields(self) -> dict[str, str]:
        """It as an address and an op line name it, without ages; what is not asked for is left out."""
        reasons = sorted(reason.value for reason in self.reasons)
        named = {
            "group": self.group,
            "topic": self.topic,
            "state": sorted(self.states),
            "reason": reasons,
            "query": self.query_id,
        }
        return {name: value if isinstance(value, str) else ",".join(value) for name, value in named.items() if value}

    @classmethod
    def of_fields(cls, fields: Mapping[str, str], *, older_ms: int | None = None) -> Self:
        """The filter that `fields` named; UsageError: no reason is called so."""
        states, reasons = (frozenset(filter(None, fields.get(name, "").split(","))) for name in ("state", "reason"))
        if unknown := sorted(reasons - {reason.value for reason in ParkReason}):
            raise UsageError(f"no reason is called {unknown[0][:40]!r}")
        known = frozenset(map(ParkReason, reasons))
        group, topic, query_id = (fields.get(name) or None for name in ("group", "topic", "query"))
        return cls(group, topic, states, known, older_ms, query_id=query_id)

    def lets_through(self, found: UnsettledTransaction, *, now_ms: int) -> bool:
        """True for a transaction that is meant; ages count from the append time of its first half message."""
        txn, age_ms = found.txn, now_ms - found.txn.appended_ms
        reason = None if txn.extras is None else txn.extras.reason
        return (
            (self.group is None or txn.group == self.group)
            and (self.query_id is None or found.query_id == self.query_id)
            and (self.topic is None or self.topic in txn.topics)
            and (not self.states or found.state in self.states)
            and (not self.reasons or reason in self.reasons)
            and (self.older_ms is None or age_ms >= self.older_ms)
            and (self.younger_ms is None or age_ms < self.younger_ms)
        )


def oldest(found: Iterable[UnsettledTransaction], limit: int | None) -> list[UnsettledTransaction]:
    """The oldest of them, the oldest first; None: all."""
    return sorted(found, key=lambda each: (each.txn.appended_ms, each.partition, each.txn.first_offset))[:limit]


def unsettled_json(found: UnsettledTransaction, *, now_ms: int) -> Json:
    txn, more = found.txn, found.txn.extras
    return {
        "txn_id": txn_id_of(txn.key),
        "nonce": nonce_of(txn.key),
        "query_id": found.query_id,
        "producer_group": txn.group,
        "state": found.state,
        "reason": more.reason.value if more is not None and more.reason is not None else None,
        "appended_ms": txn.appended_ms,
        "age_ms": max(now_ms - txn.appended_ms, 0),
        "seen_count": txn.seen,
        "message_count": txn.count,
        "topics": [topic for topic in txn.topics if topic],
        "partition": found.partition,
        "first_half_offset": txn.first_offset if txn.first_offset >= 0 else None,
        "last_half_offset": txn.last_offset if txn.last_offset >= 0 else None,
        "stands_in": "doubt" if txn.is_in_doubt else "half",
        "checked_count": more.checked_count if more is not None else 0,
        "answered_count": more.answered_count if more is not None else 0,
        "asked_ms": (more.asked_ms or None) if more is not None else None,
        "due_ms": next(iter(txn.due.left), None)
        if txn.due is not None and found.state == TxnState.SCHEDULED.value
        else None,
        **options_json(txn.options),
    }


def stats_json(connections: CoordinatorConnections, *, now_ms: int) -> Json:
    """What `tx stats --json` prints; `responders` says of each group with undecided transactions who answers check-backs."""
    # What asks a cluster is imported when a command runs.
    from txlayer.operate.overview import Overview, read_quarantined

    ages_ms: defaultdict[tuple[str, str], list[int]] = defaultdict(list)  # by producer group and state
    for found in Overview(connections).unsettled():
        ages_ms[found.txn.group, found.state].append(max(now_ms - found.txn.appended_ms, 0))
    asked = sorted({group for group, state in ages_ms if state == TxnState.OPEN.value})
    return {
        "namespace": connections.config.namespace,
        "transaction_count": sum(map(len, ages_ms.values())),
        "oldest_age_ms": max(map(max, ages_ms.values()), default=None),
        "kept_aside_count": len(read_quarantined(connections)),
        "states": [
            {"producer_group": group, "state": state, "count": len(ages), "oldest_age_ms": max(ages)}
            for (group, state), ages in sorted(ages_ms.items())
        ],
        "responders": [
            found._asdict() | {"members": [member._asdict() for member in found.members]}
            for found in read_responders(connections, asked, now_ms=now_ms)
        ],
    }


def options_json(options: HalfOptions) -> Json:
    return {
        "key_hash": options.key_hash,
        "order": options.order.value,
        "immunity_ms": options.immunity_ms,
        "unresolved": None if options.unresolved is None else options.unresolved.value,
    }


KEPT_ASIDE = "kept-aside"  # where a transaction's JSON has its state


def quarantined_json(found: QuarantinedRecord, *, now_ms: int) -> Json:
    """One object of `tx list --kept-aside --json`; `name` is what `tx show` finds it by."""
    origin = found.origin
    name = codec.quarantine_key(origin, found.line).decode("ascii")
    return {
        "state": KEPT_ASIDE,
        "name": name,
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "line": found.line,
        "reason": found.reason or None,
        "why": found.why,
        "txn_id": txn_id_of(found.key) or None,
        "nonce": nonce_of(found.key) or None,
        "producer_group": found.producer_group or None,
        "kept_ms": found.kept_ms,
        "age_ms": max(now_ms - found.kept_ms, 0),
        "key_bytes": found.key_bytes,
        "value_bytes": found.value_bytes,
        "header_names": list(found.header_names),
        "doubt_partition": found.doubt_origin.partition,
        "doubt_offset": found.doubt_origin.offset,
    }
