"""Whatever operators replay, drop and edit, beside each other and with what they saw before: the messages of a parked key are handled in order."""

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from tests.support.queue_stage import PARK, REJECTED, TOPIC, QueueStage
from txlayer.core.dead_letters import (
    ENDED,
    DeadLetter,
    DeadLetterEvent,
    DeadLetterHistory,
    DeadLetterReason,
    PartitionStates,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
)
from txlayer.core.key_queue import Item, QueueOrder, QueueSettings
from txlayer.core.messages import Origin
from txlayer.errors import UsageError
from txlayer.operate.dead_letters import DeadLetterFilter, DeadLetterPosition, FoundLetter, QueueStatus
from txlayer.operate.replay import (
    Author,
    DeadLetterSelection,
    ReplayOrder,
    choose,
    freed_by_retention,
    held_back,
    newcomers,
    requests_for,
    still_able,
    why_not,
)

KEYS: tuple[bytes | None, ...] = (b"a", b"b", None)
STEPS = (
    *("append", "take", "take", "take", "end", "end", "end", "end", "store", "store", "write", "write", "write"),
    *("plan", "plan", "ask", "ask", "ask", "edit", "advance", "restart", "expire"),
)


class Owner(QueueStage):
    """The owner of the partition, and everything that the replay topic says, in order."""

    def __init__(self, settings: QueueSettings) -> None:
        self.said: list[ReplayRecord] = []
        super().__init__(settings=settings)

    def ask(self, record: ReplayRecord) -> None:
        """An operator's request, read at once."""
        self.requests.append(record)
        self.said.append(record)
        self.read(0)

    def request(self, kind: ReplayKind, dead_letter: int | None = None, *, replaced_by: int | None = None) -> None:
        """A request of an edit."""
        self.ask(ReplayRecord(kind, f"edit-{len(self.requests)}", dead_letter, replaced_by=replaced_by))

    def write(self, items: Any) -> Any:
        """The answers are in the replay topic, too."""
        for item in super().write(items):
            more = item.more
            if more is not None and more.request is not None:
                assert isinstance(more.end, ReplayOutcome)
                name, at = more.request.request_id, more.request.dead_letter_offset
                self.said.append(ReplayRecord(ReplayKind.RESULT, name, at, more.end))
        return items


class Log:
    """What one operator has read of it: as `DeadLetterLog`."""

    group, topic, partition_count = "loyalty", "orders", 1

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._states = PartitionStates()
        self._count = 0
        self.follow()

    def follow(self) -> None:
        """Read on."""
        for offset in range(self._count, len(self._owner.said)):
            self._states.fold(DeadLetterEvent(offset, 0, self._owner.said[offset]))
        self._count = len(self._owner.said)

    def history(self, position: DeadLetterPosition) -> DeadLetterHistory:
        """What was asked and answered, as far as was read."""
        return self._states.of(position.offset)

    def letters(
        self, *, since_ms: int | None = None, partitions: Collection[int] | None = None, first_offset: int = 0
    ) -> Iterator[FoundLetter]:
        """Every dead letter that retention has not taken."""
        assert since_ms is None
        for at, (key, origin, reason) in enumerate(
            self._owner.dead_letters if partitions is None or partitions else ()
        ):
            if at in self._owner.expired or at < first_offset:
                continue
            position = DeadLetterPosition(self.topic, 0, at)
            letter = DeadLetter(reason, Origin(self.topic, 0, origin), 0, 1, 0, 0, "", "", self.group)
            yield FoundLetter(position, key, at, letter, self.history(position))

    def at(self, _partition: int, offset: int) -> FoundLetter | None:
        """One of them."""
        return next((found for found in self.letters() if found.position.offset == offset), None)

    def is_gone(self, _partition: int, offset: int) -> bool:
        """True if retention took it."""
        return offset in self._owner.expired

    def queues(self) -> dict[int, QueueStatus]:
        """What the owner stored."""
        known = self._owner.known(TOPIC)
        return {0: QueueStatus(known.is_paused, frozenset(known.parked), None, known.stuck)}


class Plan(NamedTuple):
    """What an operator is about to ask for."""

    order: ReplayOrder
    log: Log
    choice: DeadLetterSelection
    rest: list[FoundLetter]
    asked: list[FoundLetter]


class OperatorWorld:
    """Every start of a handler is checked: no earlier dead letter of its key is open."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._order = self._dice.choice((QueueOrder.KEY, QueueOrder.PARTITION))
        self._owner = Owner(QueueSettings(policy=PARK, parked_keys_max=4, order=self._order))
        self._is_slow = self._dice.random() < 0.5  # operators ask in steps
        self._failing = self._dice.choice((0.2, 0.5, 0.8))
        self._running: list[Item[str]] = []
        self._plans: list[Plan] = []
        self._count = 0
        self._expired_count = 0

    def step(self) -> None:
        """Something happens."""
        act: Callable[[], None] = getattr(self, f"_{self._dice.choice(STEPS)}")
        act()

    def settle(self) -> None:
        """From now on handlers succeed, and one operator replays everything: then no key that has dead letters is parked."""
        self._failing = 0.0
        for _ in range(30):
            for _ in range(12):
                self._take(1_000)
                while self._running:
                    self._end()
                self._store()
                self._owner.write_due()
                self._advance()
            log = Log(self._owner)
            if all(found.history.state in ENDED for found in log.letters()) and not self._owner.queue.count:
                break
            self._ask_for(self._planned(ReplayKind.REPLAY, log), 1_000)
        assert self._owner.expired >= set(self._owner.known(TOPIC).parked.values())

    # --- the owner ----------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        self._owner.append(*(self._dice.choice(KEYS) for _ in range(self._dice.randint(1, 3))))

    def _take(self, count_max: int = 2) -> None:
        for item in self._owner.take(count_max):
            self._check(item)
            self._running.append(item)

    def _end(self) -> None:
        if self._running:
            item = self._running.pop(self._dice.randrange(len(self._running)))
            if self._dice.random() < self._failing:
                self._owner.fail(item, REJECTED)
            else:
                self._owner.queue.handled([item])

    def _store(self) -> None:
        self._owner.store()

    def _write(self) -> None:
        self._owner.write_due(self._dice.randint(1, 5))

    def _advance(self) -> None:
        self._owner.advance(100_000)

    def _restart(self) -> None:
        if self._dice.random() < 0.5:
            self._running = []
            self._owner.restart()

    def _check(self, item: Item[str]) -> None:
        letters, log = self._owner.dead_letters, Log(self._owner)
        there = [(found, *letters[found.position.offset]) for found in log.letters()]
        key, origin = self._owner.log[item.offset] if not item.is_replay else None, item.offset
        if item.more is not None and item.more.request is not None:
            key, origin, _ = letters[item.more.request.dead_letter_offset or 0]
        earlier = [
            found.position.offset
            for found, other, at, _ in there
            if at < origin and (self._order is QueueOrder.PARTITION or other == key)
            if found.history.ended is None or found.history.ended.value == "failed"
        ]
        assert not earlier, f"{item} begins before the dead letters {earlier}"

    # --- operators ----------------------------------------------------------------------------------------------------

    def _planned(self, kind: ReplayKind, log: Log, **more: Any) -> Plan:
        self._count += 1
        # People name requests by their tickets, and so use a name more than once.
        number = self._count if self._dice.random() < 0.8 or not more else self._dice.randint(1, self._count)
        order = ReplayOrder(kind, log.group, Author("zoe: mended", f"r{number}"), is_all=not more.get("names"), **more)
        logs: Any = {log.topic: log}
        choice = choose(order, logs)
        return Plan(order, log, choice, choice.in_turn, [*choice.asked_before])

    def _plan(self) -> None:
        dice, log = self._dice, Log(self._owner)
        letters = [found.position for found in log.letters()]
        if not letters or (len(self._plans) >= 2 and not self._is_slow):
            return
        more: dict[str, Any] = {"names": tuple(dice.sample(letters, min(len(letters), dice.randint(1, 2))))}
        if dice.random() < 0.4:
            reasons = frozenset({dice.choice((DeadLetterReason.REJECTED, DeadLetterReason.KEY_PARKED))})
            wanted = DeadLetterFilter(reasons=reasons) if dice.random() < 0.5 else DeadLetterFilter()
            more = {"limit": dice.choice((None, 1, 2)), "wanted": wanted}
        with suppress(UsageError):  # the name asked for the other thing
            self._plans.append(self._planned(dice.choice((ReplayKind.REPLAY, ReplayKind.DROP)), log, **more))

    def _ask(self) -> None:
        if self._plans:
            plan = self._dice.choice(self._plans)
            self._ask_for(plan, self._dice.randint(1, 3) if self._is_slow else 1_000)
            if not plan.rest:
                plan.log.follow()
                logs: Any = {plan.log.topic: plan.log}
                more = (
                    newcomers(plan.order, logs, plan.asked)
                    if plan.order.kind is ReplayKind.REPLAY
                    else DeadLetterSelection()
                )
                self._plans.remove(plan)
                self._plans += [plan._replace(choice=more, rest=more.in_turn)] * bool(more.chosen)

    def _ask_for(self, plan: Plan, count: int) -> None:
        logs: Any = {plan.log.topic: plan.log}
        freed = freed_by_retention(logs, plan.rest[:count])
        able, _ = still_able(logs, plan.rest[:count], is_again=False)
        del plan.rest[:count]
        step, _ = held_back(plan.order, plan.choice.parked, logs, able, freed)
        plan.asked.extend(step)
        author = plan.order.author
        requests = requests_for(step, freed, kind=plan.order.kind, request_id=author.request_id, text=author.text)
        for request in list(requests):
            self._owner.ask(request.record)

    def _edit(self) -> None:
        log: Any = Log(self._owner)
        letters = list(log.letters())
        found = self._dice.choice(letters) if letters else None
        if found is not None and not why_not(log, found):
            freed = freed_by_retention({log.topic: log}, [found])
            self._owner.edit(found.position.offset, freed=freed.get(found.position, {}).values())

    def _expire(self) -> None:
        if self._dice.random() < 0.5:
            self._expired_count = self._dice.randint(self._expired_count, len(self._owner.dead_letters))
            self._owner.expired.update(range(self._expired_count))


@pytest.mark.promise("P9")
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (25, 50, 75))])
def test_no_message_of_a_parked_key_is_handled_before_an_earlier_one(first: int) -> None:
    for seed in range(first, first + 25):
        world = OperatorWorld(seed)
        for _ in range(300):
            world.step()
        world.settle()
