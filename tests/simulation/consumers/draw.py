"""Draws what happens in one world of consumers: messages, handlers, operators, what goes wrong. Never: playing it."""

from dataclasses import replace
from random import Random

from tests.simulation.consumers.plan import (
    ALWAYS,
    TOPICS,
    ConsumerPlan,
    ConsumerSettings,
    Outage,
    PlannedMessage,
    Request,
    world_topics,
)
from tests.simulation.plan import Fault, Harm
from txlayer.core.key_queue import NullKeys, QueueOrder
from txlayer.core.retry import AfterExhausted, BreakerPolicy

_HUNG_SALT = 0x48554E47
HANG_TIMEOUT_S = 10.0
"""Worlds are at rest soon; with a longer deadline a handler that hangs would not be given up in time."""
_OUTAGE_SALT = 0xEAD5A
BREAKER_SHARE = 0.25
_CALM_SALT = 0xCA1
CALM_REVOKE_S = 0.5
"""Time to end, and to write what was decided."""
_SALT = 0xC0_15_0E
_KEYS = (b"red", b"red", b"red", b"blue", b"blue", b"green", None)
_REQUESTS = (
    "OffsetCommit",
    "OffsetCommit",
    "OffsetCommit",
    "EndTxn",
    "EndTxn",
    "TxnOffsetCommit",
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "Produce",
    "Produce",
    "Produce",
    "InitProducerId",
    "OffsetFetch",
    "OffsetFetch",
    "Fetch",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "ListOffsets",
    "Metadata",
    "LeaveGroup",
    "",
)
_NUMBER_MAX = {"": 150, "Fetch": 20, "Produce": 12, "OffsetCommit": 16}
_CODES = {
    "EndTxn": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS", "INVALID_PRODUCER_EPOCH"),
    "TxnOffsetCommit": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"),
    "AddOffsetsToTxn": ("NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS", "COORDINATOR_NOT_AVAILABLE"),
    "AddPartitionsToTxn": ("CONCURRENT_TRANSACTIONS", "COORDINATOR_LOAD_IN_PROGRESS", "INVALID_PRODUCER_ID_MAPPING"),
    "OffsetCommit": ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"),
    "Produce": ("NOT_LEADER_FOR_PARTITION", "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT"),
    "InitProducerId": ("COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR"),
    "OffsetFetch": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "JoinGroup": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "Heartbeat": ("REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"),
    "ListOffsets": ("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"),
}
_AT_REQUEST = (
    Harm.LOSE_REQUEST,
    Harm.LOSE_ANSWER,
    Harm.LATE,
    Harm.ECHO,
    Harm.DOUBLE,
    Harm.SLOW,
    Harm.SLOW,
    Harm.REFUSE,
)
_UNFENCED = ("OffsetCommit", "")
"""One that arrives behind a later one of the same member puts the progress back, and nothing fences it (simulation.md, Limits)."""


class ConsumerPlanner:
    """Draws one plan."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dice = Random(seed ^ _SALT)

    def plan(self) -> ConsumerPlan:
        """All of it."""
        dice = self._dice
        until_s = dice.uniform(2.0, 6.0)
        count = dice.choice((1, 1, 2, 2, 3))
        consumers = tuple(
            0.0 if number == 0 or dice.random() < 0.4 else dice.uniform(0, until_s) for number in range(count)
        )
        settings = self._settings()
        messages = self._messages(settings, until_s)
        requests: tuple[Request, ...] = ()
        if dice.random() < 0.7:
            words = (
                "replay",
                "replay",
                "replay-all",
                "replay-all",
                "drop",
                "missing",
                "pause",
                "resume",
                "garbage",
                "again",
            )
            requests = tuple(
                Request(dice.uniform(0.5, until_s + 1), dice.choice(words), dice.randrange(1000))
                for _ in range(dice.randint(1, 6))
            )
        faults = self._faults(count, until_s, settings)
        plan = ConsumerPlan(self._seed, settings, consumers, messages, requests, faults, until_s + 1.0)
        return self._with_breaker(plan)

    def calm_plan(self) -> ConsumerPlan:
        """The same, but that nothing goes wrong in it."""
        plan, dice = self.plan(), Random(self._seed ^ _CALM_SALT)
        slots = [f"c{number}" for number in range(len(plan.consumers))]
        leaving = tuple(
            Fault(Harm.LEAVE, dice.choice(slots), at_s=dice.uniform(0.1, plan.until_s), seconds=self._away())
            for _ in range(dice.randint(1, 6))
        )
        messages = tuple(replace(message, is_deadly=False, hangs=False) for message in plan.messages)
        settings = replace(plan.settings, revoke_timeout_s=max(plan.settings.revoke_timeout_s, CALM_REVOKE_S))
        return replace(plan, settings=settings, messages=messages, faults=leaving, outages=(), is_calm=True)

    def _with_breaker(self, plan: ConsumerPlan) -> ConsumerPlan:
        """In some worlds consumers have breakers, and what handlers need is away for a while. Dice of its own, as above."""
        dice = Random(self._seed ^ _OUTAGE_SALT)
        if dice.random() >= BREAKER_SHARE:
            return plan
        breaker = BreakerPolicy(
            attempt_count_min=dice.choice((2, 4)), window_ms=2_000, probe_interval_ms=dice.choice((50, 300))
        )
        outages = tuple(
            Outage(dice.choice(plan.topics), dice.uniform(0, plan.until_s / 2), dice.choice((0.5, 2.0, 4.0)))
            for _ in range(dice.choice((1, 1, 2)))
        )
        has_own = not plan.settings.batch_count_max and dice.random() < 0.5
        settings = replace(plan.settings, breaker=breaker, has_own_breaker=has_own)
        return replace(plan, settings=settings, outages=outages)

    def _settings(self) -> ConsumerSettings:
        dice = self._dice
        order = dice.choice(
            (QueueOrder.KEY, QueueOrder.KEY, QueueOrder.KEY, QueueOrder.KEY, QueueOrder.PARTITION, QueueOrder.NONE)
        )
        is_parking = order is not QueueOrder.NONE and dice.random() < 0.5
        return ConsumerSettings(
            partition_count=dice.choice((1, 1, 2, 3)),
            topic_count=dice.choice((1, 1, 2)),
            order=order,
            is_leased=order is not QueueOrder.NONE,
            null_keys=dice.choice((NullKeys.ORDERED, NullKeys.FREE)),
            after_exhausted=AfterExhausted.PARK if is_parking else AfterExhausted.GO_ON,
            attempt_count_max=dice.choice((1, 2, 3, 4)),
            backoff_s=dice.choice((0.0, 0.05, 0.3)),
            batch_count_max=dice.choice((0, 0, 0, 3)),
            worker_count=dice.choice((1, 2, 4)),
            in_flight_max=dice.choice((2, 8, 100)),
            record_count_max=dice.choice((3, 20, 1_000)),
            store_interval_s=dice.choice((0.02, 0.1, 0.1, 0.5)),
            metadata_bytes_max=dice.choice((500, 4096, 4096)),
            parked_keys_max=dice.choice((2, 4)),
            attempt_timeout_s=dice.choice((1.0, 300.0)),
            revoke_timeout_s=dice.choice((0.1, 0.5, 2.0)),
            lease_expiry_s=dice.choice((2.4, 3.0, 5.0)),
            latency_s=dice.choice((0.001, 0.003, 0.01)),
            slow_share=dice.choice((0.0, 0.01, 0.05)),
            lateness=dice.choice((0.1, 2.0, 4.0)),
            marker_delay_s=dice.choice((0.0, 0.005, 0.05, 0.5)),
            skews=tuple(dice.choice((1.0, 1.0, 0.96, 1.05)) for _ in range(3)),
            wall_skews=tuple(dice.choice((0.0, 0.0, -86_400.0, 86_400.0)) for _ in range(3)),
        )

    # --- messages -----------------------------------------------------------------------------------------------------

    def _messages(self, settings: ConsumerSettings, until_s: float) -> tuple[PlannedMessage, ...]:
        dice = self._dice
        count = dice.randint(8, 40)
        at_s, found = 0.0, []
        failing_share = dice.choice((0.0, 0.1, 0.3, 0.5))
        slow_share = dice.choice((0.0, 0.1, 0.4))
        is_bundled = dice.random() < 0.3
        for _ in range(count):
            if dice.random() < 0.5:
                at_s += dice.expovariate(count / until_s / 0.7)
            found.append(self._message(settings, min(at_s, until_s), failing_share, slow_share, is_bundled=is_bundled))
        return self._with_hung(tuple(found), settings)

    def _with_hung(
        self, messages: tuple[PlannedMessage, ...], settings: ConsumerSettings
    ) -> tuple[PlannedMessage, ...]:
        """In some worlds with a short deadline one handler never comes back. Dice of its own: all else stays as it was."""
        dice = Random(self._seed ^ _HUNG_SALT)
        if settings.attempt_timeout_s >= HANG_TIMEOUT_S or dice.random() < 0.5:
            return messages
        at = dice.randrange(len(messages))
        return (*messages[:at], replace(messages[at], hangs=True), *messages[at + 1 :])

    def _message(
        self, settings: ConsumerSettings, at_s: float, failing_share: float, slow_share: float, *, is_bundled: bool
    ) -> PlannedMessage:
        dice = self._dice
        failing = dice.random() < failing_share
        work_s = dice.choice((0.0, 0.0, 0.005, 0.03))
        if dice.random() < slow_share:
            work_s = dice.choice((0.1, 0.3, 0.8, 2.5))
        return PlannedMessage(
            at_s,
            dice.choice(TOPICS[: settings.topic_count]),
            dice.randrange(settings.partition_count),
            dice.choice(_KEYS),
            work_s=work_s,
            failing_count=dice.choice((1, 1, 2, 3, ALWAYS, ALWAYS)) if failing else 0,
            word=dice.choice(("raise", "raise", "retry", "later", "reject")),
            replay_failing_count=dice.choice((0, 0, 1, ALWAYS)),
            is_deadly=dice.random() < 0.02,
            bundle=dice.choice(("kept", "kept", "aborted", "")) if is_bundled else "",
        )

    # --- faults -------------------------------------------------------------------------------------------------------

    def _faults(self, consumers: int, until_s: float, settings: ConsumerSettings) -> tuple[Fault, ...]:
        dice = self._dice
        # Swarm: each world has its own few kinds, so that they meet each other often.
        kinds = dice.sample(
            ("request", "request", "haunt", "die", "die", "freeze", "freeze", "leave", "cut", "down", "topic"),
            k=dice.randint(1, 5),
        )
        return tuple(
            self._fault(kind, f"c{dice.randrange(consumers)}", until_s, settings)
            for kind in kinds
            for _ in range(dice.randint(1, 3))
        )

    def _fault(self, kind: str, slot: str, until_s: float, settings: ConsumerSettings) -> Fault:
        dice = self._dice
        at_s = dice.uniform(0.1, until_s)
        if kind == "request":
            return self._at_request(slot)
        if kind == "haunt":  # what is sent again arrives in a later Kafka transaction
            request = dice.choice(("EndTxn", "TxnOffsetCommit"))
            harm = dice.choice((Harm.LATE, Harm.ECHO))
            return Fault(harm, slot, request, self._number(request), behind=dice.randint(2, 14))
        if kind == "die":
            if dice.random() < 0.6:
                harm = dice.choice((Harm.DIE_BEFORE, Harm.DIE_AFTER))
                request = dice.choice(_REQUESTS)
                return Fault(harm, slot, request, self._number(request), seconds=self._away())
            return Fault(Harm.DIE, slot, at_s=at_s, seconds=self._away())
        if kind == "freeze":
            seconds = dice.choice((0.3, 1.0, 2.0, 4.0, settings.lease_expiry_s + 0.5))
            return Fault(Harm.FREEZE, slot, at_s=at_s, seconds=seconds, is_beating=dice.random() < 0.3)
        if kind == "leave":
            return Fault(Harm.LEAVE, slot, at_s=at_s, seconds=self._away())
        if kind == "cut":
            return Fault(Harm.CUT, slot, at_s=at_s, seconds=dice.choice((0.2, 1.0, 3.0)))
        if kind == "down":
            return Fault(Harm.DOWN, "", at_s=at_s, seconds=dice.choice((0.1, 1.0, 3.0)))
        return Fault(
            Harm.LEADERLESS, dice.choice(world_topics(settings.topic_count)), at_s=at_s, seconds=dice.choice((0.3, 2.0))
        )

    def _at_request(self, slot: str) -> Fault:
        dice = self._dice
        request, harm = dice.choice(_REQUESTS), dice.choice(_AT_REQUEST)
        if request in _UNFENCED and harm in (Harm.LATE, Harm.ECHO):
            harm = Harm.LOSE_ANSWER
        if harm is Harm.REFUSE:
            request = request if request in _CODES else "OffsetCommit"
            code = dice.choice(_CODES[request])
            return Fault(harm, slot, request, self._number(request), code=code)
        seconds = dice.choice((0.15, 0.15, 0.5, 3.0))
        return Fault(harm, slot, request, self._number(request), seconds=seconds)

    def _number(self, request: str) -> int:
        return 1 + int(self._dice.random() ** 2 * _NUMBER_MAX.get(request, 6))

    def _away(self) -> float:
        return self._dice.choice((0.0, 0.3, 1.0, 3.0))
