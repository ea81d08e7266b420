"""Every guard of consumers: its row on the page of guards, and what a world is without it."""

from collections.abc import Callable
from datetime import timedelta

from tests.simulation.consumers import unguarded as un
from tests.simulation.consumers.plan import ConsumerPlan, make_calm_plan, make_consumer_plan
from tests.simulation.consumers.society import ConsumerVariant
from tests.simulation.consumers.unguarded import wrapped
from tests.simulation.consumers.ways import make_way_plan
from tests.simulation.guards import guards_of

WITHOUT: dict[str, ConsumerVariant] = {
    "an attempt's count is stored before the next attempt": ConsumerVariant(engine=un.HastyEngine),
    "a successor believes what the metadata say": wrapped(un.ForgetfulConnections),
    "no dead letter is written while offsets are being stored": ConsumerVariant(engine=un.CrossingEngine),
    "a dead letter and its offset are one Kafka transaction": wrapped(un.TwoStepConnections),
    "dead letters carry the group's generation": wrapped(un.UnfencedConnections),
    "a dead-letter producer that may have stale requests is replaced": ConsumerVariant(
        settings={"recycle_after": timedelta(hours=1)}
    ),
    "the new holder of a queue ends what the writer before it left open": wrapped(un.TrustingConnections),
    "a dead-letter writer's name is stored before it writes": ConsumerVariant(engine=un.NamelessEngine),
    "messages of one key go one after the other": ConsumerVariant(engine=un.UnorderedEngine),
    "a queue is not taken over while its handlers still run": ConsumerVariant(engine=un.ImpatientEngine),
    "a queue is not taken over while a store of it is under way": ConsumerVariant(engine=un.ForgetfulEngine),
    "a consumer that cannot store what ended last ends without an error": ConsumerVariant(engine=un.StiffEngine),
    "what a handler decided is written before a queue is given back": ConsumerVariant(engine=un.CarelessEngine),
    "a rejection is stored with the count of its attempt": wrapped(un.UnmarkedConnections),
    "an engine without room for more waits for an end": ConsumerVariant(engine=un.RestlessEngine),
    "an engine whose store is under way waits for the acknowledgement": ConsumerVariant(engine=un.HurriedEngine),
    "a handler that hangs is given up at its deadline": ConsumerVariant(hung=un.EndlessPatience),
    "an answer of a handler that was given up is ignored": ConsumerVariant(hung=un.CredulousHung),
    "what fails while a breaker is open costs no attempt": ConsumerVariant(engine=un.StrictEngine),
    "while a breaker is open one message is tried at a time": ConsumerVariant(engine=un.EagerEngine),
    "no handler starts after its lease can be over": ConsumerVariant(registry=un.EverlastingRegistry),
    "a chunk stops when its lease is lost": ConsumerVariant(caller=un.HeedlessCaller),
    "a table compares fencing tokens": ConsumerVariant(table=un.UnfencedTable),
    "a broadcast that keeps its place in memory goes on there after an error": ConsumerVariant(
        engine=un.ObliviousEngine
    ),
    "a message of a program is answered once": ConsumerVariant(desk=un.CredulousDesk),
    "a late answer of a program is refused": ConsumerVariant(desk=un.PatientDesk),
    "a message that no program takes in time is given back": ConsumerVariant(desk=un.KeepingDesk),
    "a handler of dead letters gets those of its group alone": ConsumerVariant(engine=un.NosyEngine),
}
"""A world without each of them."""

IS_SLOW = frozenset(
    {
        "the new holder of a queue ends what the writer before it left open",
        "a dead-letter writer's name is stored before it writes",
    }
)
PLANS: dict[str, Callable[[int], ConsumerPlan]] = {
    "what a handler decided is written before a queue is given back": make_calm_plan,
    "a broadcast that keeps its place in memory goes on there after an error": make_way_plan,
    "a message of a program is answered once": make_way_plan,
    "a late answer of a program is refused": make_way_plan,
    "a message that no program takes in time is given back": make_way_plan,
    "a handler of dead letters gets those of its group alone": make_way_plan,
}
"""Not of worlds with faults and handlers alone."""
CONSUMER_GUARDS = guards_of("Consumers", WITHOUT, is_slow=IS_SLOW, plans=PLANS, make=make_consumer_plan)

CONSUMER_SECOND_LINES: dict[str, ConsumerVariant] = {
    "handlers end before partitions are given back": ConsumerVariant(engine=un.BrusqueEngine),
    "a take-over of a queue waits for stable offsets": wrapped(un.UnstableConnections),
    "a claim of a lower generation is void": ConsumerVariant(registry=un.ClaimingRegistry),
    "a holder answers a void claim": ConsumerVariant(registry=un.SilentRegistry),
}
"""Guards behind which another one stands: worlds without them are clean."""
