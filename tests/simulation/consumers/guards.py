"""Every guard of consumers, the promise it keeps, and a seed whose world is clean with it and red without.

`python -m tests.simulation.consumers.seek` looks for the seeds anew.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tests.simulation.consumers import unguarded as un
from tests.simulation.consumers.society import ConsumerVariant
from tests.simulation.consumers.unguarded import wrapped
from tests.support.checker import Kind


@dataclass(frozen=True, slots=True)
class ConsumerGuard:
    """One guard, and how a world looks without it."""

    name: str
    promise: str
    place: str
    without: ConsumerVariant
    seed: int
    kinds: frozenset[Kind]
    """What a world without it has at least one of."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of both worlds."""


@dataclass(frozen=True, slots=True)
class ConsumerSecondLine:
    """A guard behind which another one stands: worlds without it are clean."""

    name: str
    place: str
    without: ConsumerVariant
    why: str


_K = Kind
_ORDER = frozenset({_K.OUT_OF_ORDER})
_TWICE = frozenset({_K.DUPLICATE, _K.AGAIN, _K.BACKWARDS})
_LEASE = frozenset({_K.UNLEASED})
_STUCK = frozenset({_K.RESTLESS, _K.HANGING})
_SLOW_KAFKA = {"kafka_transaction_timeout": timedelta(seconds=600)}

CONSUMER_GUARDS: tuple[ConsumerGuard, ...] = (
    ConsumerGuard(
        "an attempt's count is stored before the next attempt",
        "P9",
        "core/key_queue.py",
        ConsumerVariant(engine=un.HastyEngine),
        1,
        frozenset({_K.ATTEMPTS}),
    ),
    ConsumerGuard(
        "a successor believes what the metadata say",
        "P9",
        "consumer/plan.py",
        wrapped(un.ForgetfulConnections),
        1,
        frozenset({_K.AGAIN, _K.ATTEMPTS, _K.BACKWARDS, _K.OUT_OF_ORDER}),
    ),
    ConsumerGuard(
        "no dead letter is written while offsets are being stored",
        "P9",
        "consumer/engine.py",
        ConsumerVariant(engine=un.CrossingEngine),
        1,
        _TWICE | {_K.ATTEMPTS},
    ),
    ConsumerGuard(
        "a dead letter and its offset are one Kafka transaction",
        "P9",
        "runtime/kafka_transactions.py",
        wrapped(un.TwoStepConnections),
        20,
        _TWICE,
    ),
    ConsumerGuard(
        "dead letters carry the group's generation",
        "P9",
        "consumer/dead_letters.py",
        wrapped(un.UnfencedConnections),
        9225,
        _TWICE | {_K.ATTEMPTS, _K.LOST},
    ),
    ConsumerGuard(
        "a dead-letter producer that may have stale requests is replaced",
        "P9",
        "runtime/kafka_transactions.py",
        ConsumerVariant(settings={"recycle_after": timedelta(hours=1)}),
        22,
        _TWICE | {_K.LOST, _K.ATTEMPTS, _K.PHANTOM},
    ),
    ConsumerGuard(
        "who takes a queue over ends what its writer left open",
        "P11",
        "consumer/assignments.py",
        wrapped(un.TrustingConnections),
        65,
        _STUCK,
        _SLOW_KAFKA,
    ),
    ConsumerGuard(
        "a dead-letter writer's name is stored before it writes",
        "P11",
        "consumer/assignments.py",
        ConsumerVariant(engine=un.NamelessEngine),
        111,
        _STUCK,
        _SLOW_KAFKA,
    ),
    ConsumerGuard(
        "messages of one key go one after the other",
        "P9",
        "core/key_queue.py",
        ConsumerVariant(engine=un.UnorderedEngine),
        7,
        _ORDER,
    ),
    ConsumerGuard(
        "a queue is not taken over while its handlers still run",
        "P9",
        "consumer/assignments.py",
        ConsumerVariant(engine=un.ImpatientEngine),
        26,
        _ORDER,
    ),
    ConsumerGuard(
        "a queue is not taken over while a store of it is under way",
        "P9",
        "consumer/assignments.py",
        ConsumerVariant(engine=un.ForgetfulEngine),
        406_654,
        frozenset({_K.BACKWARDS}),
    ),
    ConsumerGuard(
        "who cannot store what ended last ends in peace",
        "P9",
        "consumer/engine.py",
        ConsumerVariant(engine=un.StiffEngine),
        2261,
        frozenset({_K.BROKEN}),
    ),
    ConsumerGuard(
        "an engine without room for more waits for an end",
        "P11",
        "consumer/engine.py",
        ConsumerVariant(engine=un.RestlessEngine),
        7,
        frozenset({_K.RESTLESS}),
    ),
    ConsumerGuard(
        "an engine whose store is under way waits for the acknowledgement",
        "P11",
        "consumer/engine.py",
        ConsumerVariant(engine=un.HurriedEngine),
        1,
        frozenset({_K.RESTLESS}),
    ),
    ConsumerGuard(
        "a handler that hangs is given up at its deadline",
        "P9",
        "consumer/pools.py",
        ConsumerVariant(hung=un.EndlessPatience),
        7,
        frozenset({_K.RESTLESS}),
    ),
    ConsumerGuard(
        "what a handler says after it was given up counts for nothing",
        "P9",
        "consumer/pools.py",
        ConsumerVariant(hung=un.CredulousHung),
        4,
        frozenset({_K.LOST, _K.OUT_OF_ORDER}),
    ),
    ConsumerGuard(
        "what fails while a breaker is open costs no attempt",
        "P9",
        "consumer/dispatch.py",
        ConsumerVariant(engine=un.StrictEngine),
        13,
        frozenset({_K.ATTEMPTS}),
    ),
    ConsumerGuard(
        "while a breaker is open one message is tried at a time",
        "P9",
        "consumer/dispatch.py",
        ConsumerVariant(engine=un.EagerEngine),
        13,
        frozenset({_K.ATTEMPTS}),
    ),
    ConsumerGuard(
        "no handler starts after its lease can be over",
        "P10",
        "consumer/lease_keeper.py",
        ConsumerVariant(registry=un.EverlastingRegistry),
        91,
        _LEASE,
    ),
    ConsumerGuard(
        "a chunk stops when its lease is lost",
        "P10",
        "consumer/pools.py",
        ConsumerVariant(caller=un.HeedlessCaller),
        2,
        _LEASE,
    ),
    ConsumerGuard(
        "a table compares fencing tokens",
        "P10",
        "the user's database",
        ConsumerVariant(table=un.UnfencedTable),
        12,
        frozenset({_K.STALE_WRITE}),
    ),
)

CONSUMER_SECOND_LINES: tuple[ConsumerSecondLine, ...] = (
    ConsumerSecondLine(
        "handlers end before partitions are given back",
        "consumer/engine.py",
        ConsumerVariant(engine=un.BrusqueEngine),
        "what they did counts for nothing and is done again by the next owner; the guard saves the repeats",
    ),
    ConsumerSecondLine(
        "a take-over of a queue waits for stable offsets",
        "consumer/assignments.py",
        wrapped(un.UnstableConnections),
        "it ends the former writer first, which waits for its markers; the guard is for a name that nobody could know",
    ),
    ConsumerSecondLine(
        "a claim of a lower generation is void",
        "core/leases.py",
        ConsumerVariant(registry=un.ClaimingRegistry),
        "who takes a queue over asks the group meanwhile, which knows it no more; the guard keeps all readers of one mind",
    ),
    ConsumerSecondLine(
        "a holder answers a void claim",
        "consumer/lease_keeper.py",
        ConsumerVariant(registry=un.SilentRegistry),
        "readers begin ten expiries back, and a world is shorter; `tests/unit/test_lease_readers.py` shows it red",
    ),
)
