"""Draws what happens in one simulated world: who takes part, what they do, what goes wrong. Never: check-back (checked.py)."""

from dataclasses import replace
from random import Random

from tests.simulation.plan import (
    LARGE_BYTES,
    LATE_TARGET,
    SMALL_TARGET,
    TARGETS,
    End,
    Fault,
    Garbage,
    Harm,
    Line,
    Plan,
    PlannedTransaction,
    Settings,
)
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN

_COORDINATOR_REQUESTS = (
    "EndTxn",
    "EndTxn",
    "EndTxn",
    "TxnOffsetCommit",
    "TxnOffsetCommit",
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "Produce",
    "Produce",
    "InitProducerId",
    "InitProducerId",
    "OffsetFetch",
    "Fetch",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "ListOffsets",
    "Metadata",
    "",
)
_NUMBER_MAX = {"": 120, "Fetch": 12, "Produce": 16, "AddPartitionsToTxn": 16, "EndTxn": 9}

_CODES = {
    "EndTxn": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS", "INVALID_PRODUCER_EPOCH"),
    "TxnOffsetCommit": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"),
    "AddOffsetsToTxn": ("NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS", "COORDINATOR_NOT_AVAILABLE"),
    "AddPartitionsToTxn": ("CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "INVALID_PRODUCER_ID_MAPPING"),
    "Produce": (
        "NOT_LEADER_FOR_PARTITION",
        "NOT_ENOUGH_REPLICAS",
        "REQUEST_TIMED_OUT",
        "INVALID_RECORD",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
    ),
    "InitProducerId": ("COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR"),
    "OffsetFetch": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "JoinGroup": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "Heartbeat": ("REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"),
    "ListOffsets": ("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"),
}
_PRODUCER_CODES = ("NOT_LEADER_FOR_PARTITION", "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT")

_ENDS = (End.PREPARED, End.LOCAL, End.RESOLVED)

GARBAGE_KINDS = (
    "half without header",
    "half garbage",
    "half misplaced",
    "half twin",
    "op garbage",
    "op unknown",
    "op beyond",
    "op null",
    "half incomplete",
)


class Planner:
    """Draws the plan of a world without check-back."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dice = Random(seed)

    def plan(self) -> Plan:
        """All of it."""
        dice = self._dice
        until_s = dice.uniform(2.0, 6.0)
        coordinator_count = dice.choice((1, 1, 2, 2, 2, 3))
        coordinators = tuple(
            0.0 if number == 0 or dice.random() < 0.4 else dice.uniform(0, until_s)
            for number in range(coordinator_count)
        )
        settings = self._settings(until_s)
        producer_count = dice.choice((1, 1, 2))
        producers = tuple(self._transactions(p, until_s) for p in range(producer_count))
        garbage: tuple[Garbage, ...] = ()
        if dice.random() < 0.25:
            garbage = tuple(
                Garbage(dice.uniform(0, until_s), dice.choice(GARBAGE_KINDS), dice.randrange(1000))
                for _ in range(dice.randint(1, 3))
            )
            while len({g.number for g in garbage}) < len(garbage):  # each names a transaction of its own
                garbage = tuple(replace(g, number=g.number + n) for n, g in enumerate(garbage))
        faults = self._faults(coordinator_count, producer_count, until_s)
        return Plan(self._seed, settings, coordinators, producers, garbage, faults, until_s)

    def _settings(self, until_s: float) -> Settings:
        dice = self._dice
        few = dice.random() < 0.2
        return Settings(
            partition_count=dice.choice((1, 1, 2, 2, 3)),
            target_partitions=dice.choice((1, 2)),
            doubt_after_s=dice.choice((0.3, 1.0, 3.0, 60.0)),
            hold_after_s=dice.choice((0.5, 3.0)),
            held_age_max_s=dice.choice((3.0, 10_000.0, 10_000.0)),
            batch_lines_max=dice.choice((1, 2, 10_000, 10_000)),
            batch_moves_max=dice.choice((1, 2_000)),
            ahead_lines_max=1 if few else 1_000,
            content_bytes_max=dice.choice((200, 100_000, 100_000)),
            latency_s=dice.choice((0.001, 0.003, 0.01)),
            slow_share=dice.choice((0.0, 0.01, 0.05)),
            lateness=dice.choice((0.1, 2.0, 4.0)),
            marker_delay_s=dice.choice((0.0, 0.005, 0.05, 0.5)),
            late_target_s=dice.uniform(0, until_s),
            small_target_s=dice.uniform(0, until_s) if dice.random() < 0.3 else until_s,
            skews=tuple(dice.choice((1.0, 1.0, 0.96, 1.05)) for _ in range(3)),
            wall_skews=tuple(dice.choice((0.0, 0.0, -86_400.0, 86_400.0)) for _ in range(3)),
            settle_share=dice.choice((0.0, 0.5, 1.0)),
        )

    # --- transactions -------------------------------------------------------------------------------------------------

    def _transactions(self, producer: int, until_s: float) -> tuple[PlannedTransaction, ...]:
        dice = self._dice
        count = dice.randint(3, 9)
        keys = [None, None, "red", "red", "blue"]
        times = sorted(dice.uniform(0, until_s * 0.9) for _ in range(count))
        for number in range(1, count):  # some come in one batch
            if dice.random() < 0.35:
                times[number] = times[number - 1]
        return tuple(
            self._transaction(f"p{producer}-{number}", at_s, dice.choice(keys)) for number, at_s in enumerate(times)
        )

    def _transaction(self, txn_id: str, at_s: float, ordering_key: str | None) -> PlannedTransaction:
        dice = self._dice
        topics = (*TARGETS, *TARGETS, *TARGETS, LATE_TARGET, SMALL_TARGET)
        messages = tuple(
            (dice.choice(topics), LARGE_BYTES if dice.random() < 0.08 else 5, dice.random() < 0.8)
            for _ in range(dice.choice((1, 1, 1, 2, 3)))
        )
        is_prepare = ordering_key is not None and dice.random() < 0.3
        local, other = (COMMIT, ROLLBACK) if dice.random() < 0.8 else (ROLLBACK, COMMIT)
        kind = dice.random()
        lines: tuple[Line, ...] = ()
        if kind < 0.06:
            lines = (Line(UNKNOWN, dice.uniform(0, 2)),)
        elif kind < 0.12:
            lines = (Line(local, dice.uniform(0, 3)),)
        elif kind < 0.18:
            lines = (Line(other, dice.uniform(0.5, 3)),)
        elif kind < 0.2 and len(messages) < 3:  # doubt remembers no record between the first and the last
            lines = (Line(other, dice.uniform(0, 1), wrong_offset=dice.choice((-1, 1))),)
        return PlannedTransaction(
            txn_id=txn_id,
            at_s=at_s,
            messages=messages,
            ordering_key=ordering_key,
            order="prepare" if is_prepare else "commit",
            local=local,
            work_s=dice.choice((0.0, 0.0, 0.05, 1.5)),
            is_silent=dice.random() < 0.06,
            end=dice.choice(_ENDS) if dice.random() < 0.06 else None,
            lines=lines,
        )

    # --- faults -------------------------------------------------------------------------------------------------------

    def _faults(self, coordinators: int, producers: int, until_s: float) -> tuple[Fault, ...]:
        dice = self._dice
        # Swarm: each world has its own few kinds, so that they meet each other often.
        kinds = dice.sample(
            ("request", "haunt", "die", "freeze", "leave", "cut", "down", "topic", "producer"), k=dice.randint(1, 5)
        )
        return tuple(
            self._fault(kind, coordinators, producers, until_s) for kind in kinds for _ in range(dice.randint(1, 3))
        )

    def _fault(self, kind: str, coordinators: int, producers: int, until_s: float) -> Fault:
        dice = self._dice
        slot = f"c{dice.randrange(coordinators)}"
        at_s = dice.uniform(0.1, until_s)
        if kind == "request":
            return self._at_request(slot)
        if kind == "haunt":  # what is sent again arrives in a later Kafka transaction
            request = dice.choice(("EndTxn", "EndTxn", "TxnOffsetCommit"))
            harm = dice.choice((Harm.LATE, Harm.ECHO))
            number = self._number("EndTxn")
            return Fault(harm, slot, request, number, behind=dice.randint(2, 14))
        if kind == "producer":
            return self._at_producer(f"p{dice.randrange(producers)}", at_s)
        if kind == "die":
            if dice.random() < 0.5:
                harm = dice.choice((Harm.DIE_BEFORE, Harm.DIE_AFTER))
                request = dice.choice(_COORDINATOR_REQUESTS)
                return Fault(harm, slot, request, self._number(request), seconds=self._away())
            return Fault(Harm.DIE, slot, at_s=at_s, seconds=self._away())
        if kind == "freeze":
            seconds = dice.choice((0.3, 2.0, 4.0, 4.0))
            return Fault(Harm.FREEZE, slot, at_s=at_s, seconds=seconds, is_beating=dice.random() < 0.3)
        if kind == "leave":
            return Fault(Harm.LEAVE, slot, at_s=at_s, seconds=self._away())
        if kind == "cut":
            slot = dice.choice((slot, f"p{dice.randrange(producers)}"))
            return Fault(Harm.CUT, slot, at_s=at_s, seconds=dice.choice((0.2, 1.0, 3.0)))
        if kind == "down":
            return Fault(Harm.DOWN, "", at_s=at_s, seconds=dice.choice((0.1, 1.0, 3.0)))
        harm = dice.choice((Harm.DENY, Harm.LEADERLESS))
        return Fault(harm, dice.choice(TARGETS), at_s=at_s, seconds=dice.choice((0.3, 2.0, 5.0)))

    def _at_request(self, slot: str) -> Fault:
        dice = self._dice
        request = dice.choice(_COORDINATOR_REQUESTS)
        harm = dice.choice(
            (Harm.LOSE_REQUEST, Harm.LOSE_ANSWER, Harm.LATE, Harm.ECHO, Harm.ECHO, Harm.DOUBLE, Harm.SLOW, Harm.REFUSE)
        )
        if harm is Harm.REFUSE:
            request = request if request in _CODES else "EndTxn"
            return Fault(harm, slot, request, self._number(request), code=dice.choice(_CODES[request]))
        return Fault(harm, slot, request, self._number(request), seconds=dice.choice((0.15, 0.15, 0.5, 3.0)))

    def _at_producer(self, slot: str, at_s: float) -> Fault:
        dice = self._dice
        if dice.random() < 0.25:
            return Fault(Harm.TWIN, slot, at_s=at_s / 2)
        if dice.random() < 0.2:
            return Fault(Harm.DIE, slot, at_s=at_s, seconds=self._away())
        if dice.random() < 0.2:
            return Fault(Harm.FREEZE, slot, at_s=at_s, seconds=dice.choice((0.5, 3.0)))
        harm = dice.choice(
            (
                Harm.LOSE_REQUEST,
                Harm.LOSE_ANSWER,
                Harm.LATE,
                Harm.ECHO,
                Harm.SLOW,
                Harm.REFUSE,
                Harm.DIE_BEFORE,
                Harm.DIE_AFTER,
            )
        )
        number = 1 + int(dice.random() ** 2 * 12)
        if harm is Harm.REFUSE:
            return Fault(harm, slot, "Produce", number, code=dice.choice(_PRODUCER_CODES))
        return Fault(harm, slot, "Produce", number, seconds=dice.choice((0.1, 0.5, 2.0)))

    def _number(self, request: str) -> int:
        return 1 + int(self._dice.random() ** 2 * _NUMBER_MAX.get(request, 5))

    def _away(self) -> float:
        return self._dice.choice((0.0, 0.3, 1.0, 3.0))
