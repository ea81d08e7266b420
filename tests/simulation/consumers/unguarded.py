"""Consumers with one guard taken out, by a subclass or by other connections. Never a switch in txlayer."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tests.simulation.consumers.handling import FencedTable
from tests.simulation.consumers.society import ConsumerVariant
from tests.simulation.unguarded import Through
from txlayer.adapters.connect import ConsumerConnections
from txlayer.adapters.memory.cluster import MemberMetadata
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.consumer.context import FOR_EVER, Lease
from txlayer.consumer.dispatch import Breakers
from txlayer.consumer.engine import Engine
from txlayer.consumer.lease_keeper import LockRegistry
from txlayer.consumer.offsets import OwnedPartition
from txlayer.consumer.pools import Caller, Chunk, Failed, HungHandlers, JobOutcome, items_of
from txlayer.consumer.pull import Desk, PulledMessage
from txlayer.core.key_queue import ItemSource, QueueOrder
from txlayer.core.leases import LeaseTable, LockRecord
from txlayer.core.leases import QueueLease as LogLease
from txlayer.core.retry import NO_LIMIT
from txlayer.errors import LifecycleError


def wrapped(wrapper: Callable[[Any], Any], **settings: Any) -> ConsumerVariant:
    """Consumers whose connections pass through a wrapper."""

    def wrap(connections: ConsumerConnections) -> ConsumerConnections:
        found: ConsumerConnections = wrapper(connections)
        return found

    return ConsumerVariant(wrap=wrap, settings=settings)


# --- storing ----------------------------------------------------------------------------------------------------------


class HastyEngine(Engine):
    """Counts attempts as stored as soon as they failed."""

    def turn(self) -> None:
        super().turn()
        for owned in self._assignments.owned.values():
            for source in ItemSource:
                owned.queue.stored(source, owned.queue.snapshot(source).version)


class CrossingEngine(Engine):
    """Writes dead letters while a store of offsets is under way."""

    def _write_letters_and_answers(self) -> None:
        assignments = self._assignments
        if self._has_due() and assignments.writer is not None and assignments.assignment is not None:
            member = assignments.assignment.member
            self._completions.write(assignments.owned.values(), assignments.writer, member)


class ForgetfulConnections(Through):
    """What is stored is an offset and nothing else."""

    def stored_offsets(self, *args: Any, **named: Any) -> dict[TopicPartition, StoredOffset | None]:
        found = self._connections.stored_offsets(*args, **named)
        return {place: at and StoredOffset(at.offset, "") for place, at in found.items()}


class UnmarkedConnections(Through):
    """What is stored says how often a record was tried, not that its handler rejected it."""

    def stored_offsets(self, *args: Any, **named: Any) -> dict[TopicPartition, StoredOffset | None]:
        found = self._connections.stored_offsets(*args, **named)
        return {
            place: at and StoredOffset(at.offset, "|".join(at.metadata.split("|")[:10])) for place, at in found.items()
        }


class UnstableConnections(Through):
    """Takes over from offsets that a Kafka transaction under way may still change."""

    def stored_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool
    ) -> dict[TopicPartition, StoredOffset | None]:
        del is_stable
        found: dict[TopicPartition, StoredOffset | None] = self._connections.stored_offsets(
            group, partitions, is_stable=False
        )
        return found


# --- dead letters -----------------------------------------------------------------------------------------------------


class UnfencedConnections(Through):
    """Dead letters with metadata of no member."""

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:
        return _UnfencedWriter(self._connections.make_writer(transactional_id, batch_bytes_max=batch_bytes_max))


class _UnfencedWriter(Through):
    def send_offsets(self, offsets: Mapping[Any, Any], member: Any, *, timeout_s: float) -> None:
        self._connections.send_offsets(offsets, MemberMetadata(member.group), timeout_s=timeout_s)


class TwoStepConnections(Through):
    """Dead letters first, and their offsets in a Kafka transaction of their own."""

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:
        return _TwoStepWriter(self._connections.make_writer(transactional_id, batch_bytes_max=batch_bytes_max))


class _TwoStepWriter(Through):
    def send_offsets(self, offsets: Mapping[Any, Any], member: Any, *, timeout_s: float) -> None:
        self._left = offsets, member, timeout_s

    def commit(self, *, timeout_s: float) -> None:
        self._connections.commit(timeout_s=timeout_s)
        offsets, member, left_s = self._left
        self._connections.begin()
        self._connections.send_offsets(offsets, member, timeout_s=left_s)
        self._connections.commit(timeout_s=timeout_s)


class TrustingConnections(Through):
    """Ends nothing that a former owner's dead-letter writer left open."""

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:
        return _LateWriter(self._connections.make_writer(transactional_id, batch_bytes_max=batch_bytes_max))


class _LateWriter(Through):
    def initialise(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def begin(self) -> None:
        if hasattr(self, "_timeout_s"):
            self._connections.initialise(timeout_s=self._timeout_s)
            del self._timeout_s
        self._connections.begin()


class NamelessEngine(Engine):
    """Takes queues over without storing the name of its dead-letter writer."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._assignments._storer = _MuteStorer(self._storer)  # type: ignore[assignment]  # passes on all but one


class _MuteStorer(Through):
    def store_now(self, *args: Any, **named: Any) -> None:
        """Nothing."""


# --- order ------------------------------------------------------------------------------------------------------------


class UnorderedEngine(Engine):
    """Every message is in order with itself alone."""

    def __init__(self, config: Any, plan: Any, **named: Any) -> None:
        super().__init__(config, replace(plan, order=QueueOrder.NONE), **named)


class ImpatientEngine(Engine):
    """Takes a queue over while a handler of its former lease still runs here."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._dispatcher.is_clear = _always  # type: ignore[method-assign]  # this one alone


def _always(*args: Any, **named: Any) -> bool:
    del args, named
    return True


class ForgetfulEngine(Engine):
    """Asks what is stored while a store of its own is under way."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._storer.wait = _at_once  # type: ignore[method-assign]  # this one alone


def _at_once(serve: Callable[[], None]) -> None:
    del serve


class CarelessEngine(Engine):
    """Gives queues back when their offsets are stored, whatever is to be written then."""

    def _store_what_ended(self) -> None:
        owned = self._assignments.owned.values()
        self._storer.store_now(owned, timeout_s=self._config.store_timeout.total_seconds())


class RestlessEngine(Engine):
    """Asks again at once although no more may be in flight."""

    def _next_s(self) -> float:
        config = self._config
        self._config = replace(config, in_flight_max=10**9)
        try:
            return super()._next_s()
        finally:
            self._config = config


class HurriedEngine(Engine):
    """Asks again at once whether a dead letter can be written while a store is under way."""

    def _next_s(self) -> float:
        return 0.0 if self._has_due() else super()._next_s()


class StiffEngine(Engine):
    """Ends by an error when what ended last cannot be stored."""

    def _end(self) -> None:
        self._drain(self._config.close_timeout.total_seconds(), serve=self._serve_group)


# --- breakers ---------------------------------------------------------------------------------------------------------


class StrictEngine(Engine):
    """Counts an attempt of what fails while a breaker is open."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        dispatcher = self._dispatcher
        fail, breakers = dispatcher._fail, dispatcher.breakers

        def count(owned: OwnedPartition, failed: Failed) -> None:
            dispatcher.breakers = Breakers()
            fail(owned, failed)
            dispatcher.breakers = breakers

        dispatcher._fail = count  # type: ignore[method-assign]  # this one alone


class EagerEngine(Engine):
    """Begins as much as ever while a breaker is open."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        for breaker in self._dispatcher.breakers.by_topic.values():
            breaker.room = lambda now_ms: NO_LIMIT  # type: ignore[method-assign]  # noqa: ARG005  # this one alone


# --- leases -----------------------------------------------------------------------------------------------------------


class EverlastingRegistry(LockRegistry):
    """A lease is over when the log says so, however long nothing was heard."""

    def valid_until(self, queue: TopicPartition) -> float | None:
        found = super().valid_until(queue)
        return found and FOR_EVER

    def _is_held(self, wanted: Any, lease: LogLease | None, now: float) -> bool:
        del wanted, now
        return lease is not None


class HeedlessCaller(Caller):
    """Does its chunk to the end, whatever becomes of the lease meanwhile."""

    def run(self, chunk: Chunk) -> JobOutcome:
        lease = chunk.lease
        chunk.lease = Lease(lease.group, lease.topic, lease.partition, token=lease.token)
        own = Chunk(chunk.owner, chunk.lease, chunk.jobs, lasts=chunk.lasts)  # nobody takes the rest of it away
        return super().run(own)._replace(chunk=chunk)


class _LastWins(LeaseTable):
    def outranks(self, claim: LockRecord, lease: LogLease) -> bool:
        del claim, lease
        return True


class ClaimingRegistry(LockRegistry):
    """Believes that the last claim wins, of whatever generation."""

    def _make_table(self, expiry_ms: int) -> LeaseTable:
        return _LastWins(expiry_ms=expiry_ms)


class UnfencedTable(FencedTable):
    """A table that takes every write."""

    def write(self, row: tuple[str, int, bytes | None], token: int) -> bool:
        del row, token
        return True


class EndlessPatience(HungHandlers):
    """Gives no handler up."""

    @property
    def has_room(self) -> bool:
        return False


class CredulousHung(HungHandlers):
    """Takes the word of a handler that was given up, as if it had come back in time."""

    def came_back(self, late: JobOutcome, now: float) -> None:
        chunk, owned = late.chunk, late.chunk.owner
        jobs = [job for job in late.done if (id(chunk), id(job)) in self._given_up]
        super().came_back(late, now)
        for job in jobs:
            if not owned.is_over:
                owned.queue.in_flight_count += len(items_of(job))
                owned.queue.handled(items_of(job))


# --- broadcasts, and who hears of dead letters ------------------------------------------------------------------------


class ObliviousEngine(Engine):
    """Begins a broadcast that keeps its place in memory anew after each error."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._assignments._storer = _BlankStorer(self._storer)  # type: ignore[assignment]  # passes on all but one


class _BlankStorer(Through):
    own: Mapping[TopicPartition, StoredOffset] = {}


class NosyEngine(Engine):
    """Its handlers of dead letters get those of every producer group."""

    def __init__(self, config: Any, plan: Any, **named: Any) -> None:
        for route in plan.routes.values():
            route.handlers = tuple(replace(handler, producer_group=None) for handler in route.handlers)
        super().__init__(config, plan, **named)


# --- programs that take messages themselves ---------------------------------------------------------------------------


class _OtherMessages(Desk):
    kind: type[PulledMessage]

    def _put(self, *args: Any) -> PulledMessage:
        pulled = super()._put(*args)
        pulled.__class__ = self.kind
        return pulled


class _Credulous(PulledMessage):
    __slots__ = ()

    def _say(self, result: Any) -> None:
        with suppress(LifecycleError):
            super()._say(result)


class CredulousDesk(_OtherMessages):
    """Its messages take a second answer without a word."""

    kind = _Credulous


class _Patient(PulledMessage):
    __slots__ = ()

    def _say(self, result: Any) -> None:
        if self.answer.done():
            super()._say(result)
        self.answer.set_result(result)


class PatientDesk(_OtherMessages):
    """Its messages take a late answer, unless another one came first."""

    kind = _Patient


class KeepingDesk(Desk):
    """Keeps a message for the program until its time is over."""

    def _put(self, *args: Any) -> PulledMessage:
        pulled = super()._put(*args)
        pulled.give_back_at = FOR_EVER
        return pulled


# --- second lines -----------------------------------------------------------------------------------------------------


class BrusqueEngine(Engine):
    """Gives partitions back without waiting for handlers."""

    def _drain(self, timeout_s: float, **named: Any) -> None:
        del timeout_s, named


class SilentRegistry(LockRegistry):
    """Never answers a void claim."""

    def _answers_void_claim(self) -> bool:
        return False
