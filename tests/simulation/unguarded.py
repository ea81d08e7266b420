"""Coordinators with one guard taken out, by a subclass or by other connections. Never a switch in txlayer."""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from tests.simulation.society import Variant
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.memory.cluster import MemberMetadata
from txlayer.adapters.ports import Assignment, LogReader, StoredOffset, TopicPartition, TransactionalWriter
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.loop import Coordinator
from txlayer.coordinator.publish import NO_PRECAUTIONS, Precautions, Publisher
from txlayer.coordinator.read_ahead import ReadAhead
from txlayer.coordinator.recovery import Recovery
from txlayer.coordinator.refusals import Refusals
from txlayer.coordinator.shard import ReadResult, Shard
from txlayer.coordinator.targets import Availability, Targets
from txlayer.core.ledger.batch import NO_LIMIT, Batch, Positions
from txlayer.core.ledger.forward_order import ForwardOrder
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.transaction import OpPosition, Transaction
from txlayer.core.ledger.transitions import TxnEvent
from txlayer.core.messages import OpMessage, ParkReason
from txlayer.errors import TxLayerError
from txlayer.operate.topics import Drain, look
from txlayer.producer.engine import Engine, assemble


class Through:
    """Connections, or a reader, that pass everything on."""

    def __init__(self, connections: Any) -> None:
        self._connections = connections

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connections, name)


# --- Kafka transactions -----------------------------------------------------------------------------------------------


class Unfenced(Through):
    """A group whose metadata hold neither member nor generation."""

    def make_group_reader(self) -> Any:
        return _Nobody(self._connections.make_group_reader())


class _Nobody(Through):
    def take_assignment(self) -> Assignment | None:
        taken: Assignment | None = self._connections.take_assignment()
        return taken and taken._replace(member=MemberMetadata(taken.member.group))


class ImpatientPublisher(Publisher):
    """Goes on with the other writer although a commit was not answered."""

    def _commit(self, writer: TransactionalWriter) -> None:
        try:
            writer.commit(timeout_s=0.05)
        except TxLayerError:
            return


class TwoStepPublisher(Publisher):
    """Forwards first, and stores the offsets in a Kafka transaction of their own."""

    def publish(
        self,
        batches: Sequence[tuple[int, Batch]],
        offsets: Mapping[TopicPartition, StoredOffset],
        member: Any,
        precautions: Precautions = NO_PRECAUTIONS,
    ) -> dict[int, dict[str, int]]:
        kept = super().publish(batches, {}, member, precautions)
        if batches:
            super().publish([], offsets, member)
        return kept


class LateDoubtPublisher(Publisher):
    """Forwards and stores first, and writes to doubt in a Kafka transaction of its own."""

    def publish(
        self,
        batches: Sequence[tuple[int, Batch]],
        offsets: Mapping[TopicPartition, StoredOffset],
        member: Any,
        precautions: Precautions = NO_PRECAUTIONS,
    ) -> dict[int, dict[str, int]]:
        first = [(p, replace(batch, to_doubt={}, ends=[], quarantined=[])) for p, batch in batches]
        super().publish(first, offsets, member, precautions)
        rest = [(p, replace(batch, forwards=[])) for p, batch in batches]
        return super().publish(rest, offsets, member, precautions)


class CommitWatchingPublisher(Publisher):
    """Looks at the time of a commit alone, not at that of the offsets before it."""

    def may_have_stale_requests(self, *, offsets_s: float, commit_s: float) -> bool:
        del offsets_s
        return super().may_have_stale_requests(offsets_s=0.0, commit_s=commit_s)


class RashCoordinator(Coordinator):
    """Stores all positions with every Kafka transaction, also those of a partition whose batch stays behind."""

    @staticmethod
    def is_stored(shard: Shard, *, is_included: bool) -> bool:
        del shard, is_included
        return True


class StubbornCoordinator(Coordinator):
    """After an error it goes on with the ledgers as they are."""

    def _start_over(self, reason: TxLayerError, failure_count: int) -> None:
        before = self._publisher
        if before is None or self._assignment is None:
            super()._start_over(reason, failure_count)
            return
        before.abandon()
        self._environment.sleep(0.05)
        name = self._config.topics.transactional_id(self._environment.draw_name())
        self._publisher = Publisher(
            self._config,
            name=name,
            make_writer=self._connections.make_writer,
            targets=self._targets,
            environment=self._environment,
        )
        try:
            self._publisher.start()
        except TxLayerError:
            self._give_up_state()


# --- taking over ------------------------------------------------------------------------------------------------------


class TrustingRecovery(Recovery):
    """Fences nobody."""

    def _end_what_is_open(self, names: Sequence[str]) -> None:
        del names


class ForgetfulRecovery(Recovery):
    """Does not fence what this very process left open."""

    def rebuild(self, ledgers: dict[int, Ledger], *, former_writer: str = "") -> Any:
        del former_writer
        return super().rebuild(ledgers)


class OnceAskingRecovery(Recovery):
    """Asks for the writers' names once, and takes whatever offsets are stable then."""

    has_asked = False

    def rebuild(self, ledgers: dict[int, Ledger], *, former_writer: str = "") -> Any:
        self.has_asked = False
        return super().rebuild(ledgers, former_writer=former_writer)

    def _writers_of(self, stored: Any) -> AbstractSet[str]:
        if self.has_asked:
            return set()
        self.has_asked = True
        return super()._writers_of(stored)


class GreedyRecovery(Recovery):
    """Replays the op record in which the positions stand as a whole."""

    @staticmethod
    def applied_lines(value: bytes | None, line_count: int) -> bytes:
        del line_count
        return value or b""


class Unstable(Through):
    """Offsets are taken as they are, also while newer ones are pending."""

    def stored_offsets(self, group: str, partitions: Sequence[TopicPartition], *, is_stable: bool) -> Any:
        del is_stable
        return self._connections.stored_offsets(group, partitions, is_stable=False)


class UpToTheMarkers(Through):
    """Logs end where a marker is missing."""

    def end_offsets(self, partitions: Collection[TopicPartition], *, is_committed: bool = True) -> Any:
        del is_committed
        return self._connections.end_offsets(partitions)


class Uncommitted(Through):
    """Doubt and contents are read without regard to markers."""

    def make_reader(self, isolation: str, **named: bool) -> LogReader:
        del isolation
        reader: LogReader = self._connections.make_reader("read_uncommitted", **named)
        return reader


class NamelessCoordinator(Coordinator):
    """Begins to forward before its name is stored."""

    is_taking_over = False

    def _take_over(self, assignment: Assignment) -> None:
        self.is_taking_over = True
        try:
            super()._take_over(assignment)
        finally:
            self.is_taking_over = False

    def _publish(self, publisher: Publisher, batches: list[tuple[int, Batch]]) -> None:
        if not self.is_taking_over:
            super()._publish(publisher, batches)


# --- the ledger -------------------------------------------------------------------------------------------------------


class HastyLedger(Ledger):
    """Applies op lines whether their half record was read or not."""

    def advance(self, *, line_count_max: int, byte_count_max: int) -> Batch:
        half_next, self.half_next = self.half_next, NO_LIMIT
        try:
            return super().advance(line_count_max=line_count_max, byte_count_max=byte_count_max)
        finally:
            self.half_next = half_next


class UntimelyLedger(Ledger):
    """Releases scheduled messages by a line that was appended before their time."""

    def _is_about_time(self, txn: Transaction, op: OpMessage) -> bool:
        due = txn.due
        return due is not None and txn.may_be_released and (op.is_reschedule or due.left[0] == op.time_ms)


class HastyReleasingLedger(Ledger):
    """Releases what is due although op may have more that was not read."""

    @property
    def _applied_to_ms(self) -> int:
        oldest_ms = self.ops.oldest_ms
        return NO_LIMIT if oldest_ms is None else oldest_ms


class EchoingLedger(Ledger):
    """Does again what a replay shows."""

    def forget_batch(self) -> None:
        pass

    def end_replay(self, positions: Positions) -> None:
        batch = self.batch
        super().end_replay(positions)
        self.batch = batch


class CarelessLedger(Ledger):
    """Stores the newest half offset as the low-water mark, whatever is open."""

    def positions(self) -> Positions:
        p = super().positions()
        return p._replace(low_water=p.half_next, replay_offset=p.op_offset, replay_line=p.op_line)


class CopyBlindLedger(Ledger):
    """Takes the second copy of a half record for a new one."""

    def fold_half(self, offset: int, appended_ms: int, header: bytes | None, record: Any) -> None:
        self.settled.newer.clear()
        self.settled.older.clear()
        super().fold_half(offset, appended_ms, header, record)

    def positions(self) -> Positions:
        self._second_copies.clear()
        return super().positions()


class HoardingLedger(Ledger):
    """Keeps every content in memory until its transaction is settled."""

    def drop_content(self, byte_count: int) -> None:
        del byte_count


class HoardingReadAhead(ReadAhead):
    """Keeps every content that is due soon."""

    def _keep(self, ahead: Any, key: str, kept: Any) -> None:
        ahead.put(key, kept)


class SweepingLedger(Ledger):
    """A second copy of what stands on doubt moves whoever lies before it there, all at once."""

    def _move_older(self, *, before: int) -> None:
        for txn in self._unsettled_in_half():
            if txn.first_offset < before:
                self._keep_on_doubt(txn)


class LonelyLedger(Ledger):
    """Leaves in half who waits for one on doubt."""

    def _move_those_waiting(self, txn: Transaction) -> None:
        del txn

    def _wait_for_key(self, txn: Transaction) -> None:
        self.order.stuck(txn)


class CredulousLedger(Ledger):
    """Believes a line whatever offset it names."""

    def _apply(self, op: OpMessage, position: OpPosition) -> None:
        txn = self.find(op.key)
        if txn is not None:
            op = op._replace(last_offset=txn.last_offset)
        super()._apply(op, position)


class PatientLedger(Ledger):
    """Waits for ever for a half record that an op line names."""

    def give_up_waiting_for_half(self, *, before: int, half_end: int) -> None:
        pass


class TearingLedger(Ledger):
    """Forwards what is there of a transaction."""

    def _proceed(self, txn: Transaction, *, is_complete: bool = True) -> None:
        del is_complete
        super()._proceed(txn)


class _NoOrder(ForwardOrder):
    def is_free(self, txn: Transaction) -> bool:
        del txn
        return True


class UnorderedLedger(Ledger):
    """Everybody goes at once."""

    def _proceed(self, txn: Transaction, *, is_complete: bool = True) -> None:
        self.order.__class__ = _NoOrder
        super()._proceed(txn, is_complete=is_complete)


# --- targets ----------------------------------------------------------------------------------------------------------


class _DeafRefusals(Refusals):
    def learn(self, *_: Any, **__: Any) -> None:
        pass


class DeafCoordinator(Coordinator):
    """Does not learn from a refusal."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._refusals.__class__ = _DeafRefusals


class _ResignedAvailability(Availability):
    def has_any_again(self, partitions: Collection[int]) -> bool:
        del partitions
        return False


class LeavingCoordinator(Coordinator):
    """Never takes over a partition that had no leader when it took over the others."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._availability.__class__ = _ResignedAvailability


class _ResignedTargets(Targets):
    def mended(self, needed: Container[str]) -> list[str]:
        del needed
        return []


class ResignedCoordinator(Coordinator):
    """Never looks again at a topic that refused."""

    def __init__(self, config: CoordinatorConfig, connections: CoordinatorConnections, **named: Any) -> None:
        super().__init__(config, connections, **named)
        self._targets = _ResignedTargets(config, connections, clock=self._clock)


class _InsistentRefusals(Refusals):
    def _pause_lines(self, error: TxLayerError) -> None:
        del error


class InsistentCoordinator(Coordinator):
    """Writes its own op lines again at once, although op refuses them."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._refusals.__class__ = _InsistentRefusals


class _GrudgingRefusals(Refusals):
    def is_quiet(self, partition: int, now: float) -> None:
        del partition, now


class StarvingCoordinator(Coordinator):
    """A suspected partition goes alone also when it has nothing to do."""

    def _in_turn(self) -> list[tuple[int, Shard]]:
        suspect = self._refusals.partition_in_turn(self._shards)
        return list(self._shards.items()) if suspect is None else [(suspect, self._shards[suspect])]


class GrudgingCoordinator(StarvingCoordinator):
    """The same, and it stays suspected."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._refusals.__class__ = _GrudgingRefusals


class BrusqueCoordinator(Coordinator):
    """Ends by an error when it cannot store what it folded last."""

    def _stop_cleanly(self) -> None:
        if self._publisher is not None and self._shards:
            self._publish(self._publisher, [])
        super()._stop_cleanly()


class DrowsyCoordinator(Coordinator):
    """Asks only when records come whether op may be read again."""

    def _publish_what_follows(self, publisher: Publisher, *, read_result: ReadResult) -> None:
        paused = {p: s.is_op_paused for p, s in self._shards.items()}
        group = self._group
        if read_result is ReadResult.EMPTY:
            self._group = _Motionless(group)
        try:
            super()._publish_what_follows(publisher, read_result=read_result)
        finally:
            self._group = group
            if read_result is ReadResult.EMPTY:
                for p, shard in self._shards.items():
                    shard.is_op_paused = paused.get(p, shard.is_op_paused)


class _Motionless(Through):
    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        pass

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        pass


# --- second lines -----------------------------------------------------------------------------------------------------


class Unrevoked(Through):
    """A group that does not tell when it takes partitions back."""

    def make_group_reader(self) -> Any:
        return _Silent(self._connections.make_group_reader())


class _Silent(Through):
    def take_revocation(self) -> bool:
        self._connections.take_revocation()
        return False


class BlindRecovery(Recovery):
    """Does not look whether the group moved the partitions meanwhile."""

    def __init__(self, *arguments: Any, is_still_ours: Callable[[], None], **named: Any) -> None:
        del is_still_ours
        super().__init__(*arguments, is_still_ours=lambda: None, **named)


class HurriedPublisher(Publisher):
    """Gives up at once when a commit is not answered."""

    def _commit(self, writer: TransactionalWriter) -> None:
        writer.commit(timeout_s=self._timeout_s)


class UnmeasuredLedger(Ledger):
    """Leaves it to the broker to find what is too large."""

    def _next_event(self, txn: Transaction, *, is_complete: bool) -> tuple[TxnEvent, ParkReason | None]:
        event, reason = super()._next_event(txn, is_complete=is_complete)
        return (TxnEvent.GO, None) if reason is ParkReason.TOO_LARGE else (event, reason)


def coordinator_with(**parts: Any) -> type[Coordinator]:
    """A coordinator with other parts."""
    return type("Coordinator", (Coordinator,), {f"make_{name}": made for name, made in parts.items()})


def wrapped(wrap: Callable[[CoordinatorConnections], Any]) -> Variant:
    return Variant(wrap=wrap)


# --- a closed namespace -----------------------------------------------------------------------------------------------


def assemble_open(*args: Any, **named: Any) -> Engine:
    """A producer that begins a transaction although the namespace is closed."""
    engine = assemble(*args, **named)
    engine.check_entry = lambda: None  # type: ignore[method-assign]  # this one alone
    return engine


def look_at_logs(connections: CoordinatorConnections, *, partition_count: int) -> Drain:
    """A drain that does not ask which transactions are open."""
    return look(connections, partition_count=partition_count)._replace(open=())
