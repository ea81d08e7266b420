"""Whatever handlers, operators and crashes do: order per key, no end twice, no attempt forgotten, nothing lost."""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.queue_stage import FAILED, PARK, REJECTED, REPLAY, TOPIC, QueueStage
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome
from txlayer.core.key_queue import AN_EARLIER_FAILED, Item, ItemSource, NullKeys, QueueOrder, QueueSettings
from txlayer.core.retry import AfterExhausted, Later, RetryPolicy

KEYS: tuple[bytes | None, ...] = (b"a", b"b", b"c", None)
KINDS = list(ReplayKind)[:4]
HOUR_MS = 3_600_000


class QueueWorld:
    """Every step checks what it sees; `settle` lets everything succeed and checks that nothing is left."""

    def __init__(self, settings: QueueSettings, *, records_max: int | None) -> None:
        self.stage = QueueStage(settings=settings)
        self.settings = settings
        self.records_max = records_max  # of a batch; None: items alone
        self.is_parking = settings.policy.after_exhausted is AfterExhausted.PARK
        self.in_flight: list[list[Item[str]]] = []
        self.ended: set[int] = set()  # offsets of the topic
        self.counts: dict[tuple[ItemSource, int], int] = {}
        self.rejected: dict[tuple[ItemSource, int], int] = {}  # with the number of that attempt
        self.parked: dict[object, int] = {}
        self.stuck: dict[object, int] = {}
        self.answered: set[int] = set()
        self.due: list[Item[str]] = []

    # --- steps --------------------------------------------------------------------------------------------------------

    def append(self, number: int) -> None:
        """More records of the topic, not read yet."""
        self.stage.log += [KEYS[(number >> n) % len(KEYS)] for n in range(1 + number % 5)]

    def read(self, number: int) -> None:
        """Some of them are read."""
        self.stage.read(number % 9)

    def take(self, number: int) -> None:
        """Some items start."""
        queue, now_ms = self.stage.queue, self.stage.now_ms
        if self.records_max is None:
            batches = [[item] for item in queue.take(1 + number % 4, now_ms=now_ms)]
        else:
            batches = queue.take_batches(1 + number % 4, records_max=self.records_max, now_ms=now_ms)
        for batch in batches:
            self._check_start(batch)
            self.in_flight.append(batch)

    def handle(self, number: int) -> None:
        """A handler succeeds, perhaps with the first ones of a batch."""
        if batch := self._one_in_flight(number):
            done = self.stage.queue.shorten(batch, 1 + (number >> 3) % len(batch))
            self._ended(done)
            self.stage.queue.handled(done)

    def handle_many(self, number: int) -> None:
        """Several handlers succeed at once."""
        batches, self.in_flight = self.in_flight[: number % 6], self.in_flight[number % 6 :]
        items = [item for batch in batches for item in batch]
        self._ended(items)
        self.stage.queue.handled(items)

    def fail(self, number: int) -> None:
        """A handler fails, or rejects; of a batch perhaps in its middle."""
        batch = self._one_in_flight(number)
        if not batch:
            return
        failure = REJECTED if number % 5 == 0 else FAILED
        now_ms = self.stage.now_ms
        if number % 3 == 0 and not batch[0].is_replay:
            index = (number >> 3) % len(batch)
            self._ended(batch[:index])
            self._count(batch[index : index + 1], is_rejected=failure is REJECTED)
            item = self.stage.queue.end_before(batch, index)
            self.stage.queue.failed([item], failure, now_ms=now_ms, draw=0.5)
        else:
            self._count(batch, is_rejected=failure is REJECTED)
            self.stage.queue.failed(batch, failure, now_ms=now_ms, draw=0.5)

    def refuse(self, number: int) -> None:
        """Nobody can read it."""
        if batch := self._one_in_flight(number):
            (item,) = self.stage.queue.shorten(batch, 1)
            self.stage.queue.undecodable(item, FAILED, now_ms=self.stage.now_ms)

    def postpone(self, number: int) -> None:
        """A handler says: not now; of the message, or of the whole partition."""
        if batch := self._one_in_flight(number):
            later = Later(delay_ms=number * 50, is_of_partition=number % 7 == 0)
            if self.stage.queue.postpone(batch, later, now_ms=self.stage.now_ms):
                self.stage.queue.put_back(batch)

    def put_back(self, number: int) -> None:
        """A batch was not started after all; a single item may be held for a while."""
        queue = self.stage.queue
        if batch := self._one_in_flight(number):
            if len(batch) == 1 and number % 3 == 0:
                queue.hold(batch[0], until_ms=self.stage.now_ms + number * 50)
            else:
                queue.put_back(batch)
        elif number % 2 == 0:
            queue.release()

    def store(self, _: int) -> None:
        """The offsets are stored."""
        is_full = self.stage.store()
        self._check_stored(is_full=is_full)

    def write(self, number: int) -> None:
        """What is due is written, perhaps at a later try and in other parts."""
        if number % 3 == 0:
            self.stage.queue.not_written(self.stage.queue.take_due(1 + number % 7))
            if number % 2 == 0:
                return
        items = self.stage.write(self.stage.queue.take_due(1 + number % 5))
        for item in items:
            self._written(item)
        self._check_stored(is_full=self.stage.queue.is_full)
        assert self.stage.queue.figures().parked_count == len(self.parked)

    def request(self, number: int) -> None:
        """An operator asks for something."""
        kind = KINDS[number % 4]
        if kind in (ReplayKind.PAUSE, ReplayKind.RESUME):
            self.stage.request(kind)
        else:
            self.stage.request(kind, (number >> 2) % (len(self.stage.dead_letters) + 1))

    def replay_all(self, _: int) -> None:
        """An operator asks for every dead letter whose last answer is not that it was handled, in order."""
        last = dict(self.stage.answers)
        for offset in range(len(self.stage.dead_letters)):
            if last.get(offset) is not ReplayOutcome.HANDLED:
                self.stage.request(ReplayKind.REPLAY, offset)

    def edit(self, number: int) -> None:
        """An operator's copy takes the place of a dead letter, unless another one of its key is open."""
        stage = self.stage
        ended = {at for at, outcome in stage.answers if outcome in (ReplayOutcome.HANDLED, ReplayOutcome.DROPPED)}
        asked = {request.dead_letter_offset for n, request in enumerate(stage.requests) if n not in self.answered}
        found = [at for at in range(len(stage.dead_letters)) if at not in ended]
        keys = [self.chain(stage.dead_letters[at][0], at) for at in found]
        alone = [at for at, key in zip(found, keys, strict=True) if keys.count(key) == 1 and at not in asked]
        if alone:
            stage.edit(alone[number % len(alone)])

    def advance(self, number: int) -> None:
        """Time passes."""
        self.stage.advance(number * 100)

    def restart(self, number: int) -> None:
        """The process dies and another one takes over, which stores its start at once."""
        self.in_flight = []
        self.stage.restart(is_reading=number % 2 == 0)
        self.stage.store()
        self.ended = self._stored_ends()
        self.counts = {
            (source, offset): attempts.ended_count
            for source in ItemSource
            for offset, attempts in self.stage.known(source).attempts.items()
        }
        self.rejected = {where: count for where, count in self.rejected.items() if self.counts.get(where) == count}

    def settle(self) -> None:
        """From now on everything succeeds: then everything ends, and nothing is left but parked keys."""
        self.stage.request(ReplayKind.RESUME)
        self.stage.read()
        last = 0
        for _ in range(10 * (len(self.stage.log) + len(self.stage.requests)) + 20):
            self.take(3)
            self.handle_many(5)
            self.store(0)
            self.write(4)
            self.advance(HOUR_MS)
            count = self.stage.queue.count
            if self.stage.queue.is_full and count == last:
                self.replay_all(0)  # more keys are to be parked than can be
            last = count
            if not self.stage.queue.count:
                break
        self.store(0)
        assert set(range(len(self.stage.log))) == self.ended
        assert (0, 0) == (self.stage.queue.count, self.stage.queue.size_bytes)
        assert 0 == self.stage.queue.in_flight_count
        assert {TOPIC: len(self.stage.log), REPLAY: len(self.stage.requests)} == {
            source: offset for source, (offset, _) in self.stage.stored.items()
        }
        assert not self.stage.known(TOPIC).attempts

    # --- what may be --------------------------------------------------------------------------------------------------

    def chain(self, key: bytes | None, offset: object) -> object:
        """What a record is in order with."""
        if self.settings.order is QueueOrder.PARTITION:
            return "all"
        is_free = key is None and self.settings.null_keys is NullKeys.FREE
        return offset if is_free or self.settings.order is QueueOrder.NONE else key

    def _chain_of(self, item: Item[str]) -> object:
        if not item.is_replay:
            return self.chain(self.stage.log[item.offset], item.offset)
        assert item.more is not None
        assert item.more.request is not None
        at = item.more.request.dead_letter_offset
        assert at is not None
        return self.chain(self.stage.dead_letters[at][0], ("replay", item.offset))

    def _check_start(self, batch: Sequence[Item[str]]) -> None:
        if self.settings.order is QueueOrder.NONE and len(batch) > 1:
            assert all(item.more is None for item in batch), "what failed before comes alone"
            for item in batch:
                self._check_start([item])
            return
        chain = self._chain_of(batch[0])
        others = [self._chain_of(item) for other in self.in_flight for item in other]
        assert chain not in others, "two of one chain in flight"
        before = [
            offset
            for offset in range(0 if batch[0].is_replay else batch[0].offset)
            if offset not in self.ended and self.chain(self.stage.log[offset], offset) == chain
        ]
        assert not before, f"{batch[0]} overtakes {before}"
        for item in batch:
            assert chain == self._chain_of(item)
            where = (item.source, item.offset)
            assert where not in self.rejected, "tried again"
            count = self.counts.get(where, 0)
            stored = self.stage.known(item.source).attempts.get(item.offset)
            assert count == item.attempt_count
            assert count == (0 if stored is None else stored.ended_count), "an uncounted attempt"
            assert count < self.settings.policy.attempt_count_max
            if item.is_replay:
                assert item.offset not in self.answered
            else:
                assert item.offset not in self.ended
                assert chain not in self.parked

    def _check_stored(self, *, is_full: bool) -> None:
        kept = self._stored_ends()
        assert kept <= self.ended, "an end was stored that never came"
        assert is_full or kept == self.ended | set(range(self.stage.stored[TOPIC][0]))

    def _stored_ends(self) -> set[int]:
        stored, known = self.stage.stored[TOPIC][0], self.stage.known(TOPIC)
        until, firsts = known.waiting or (0, {})

        def is_ended(offset: int, key: bytes | None) -> bool:
            name = bytes(8) if key is None else blake2b(key, digest_size=8).digest()
            if key is None and bytes([0] * 7 + [1]) in firsts:  # each record without a key by its offset
                name = bytes([128]) + offset.to_bytes(7, "big")
            if offset < stored or any(a <= offset < b for a, b in known.finished):
                return True
            return offset < until and firsts.get(name, until) > offset

        return {offset for offset, key in enumerate(self.stage.log) if is_ended(offset, key)}

    def _one_in_flight(self, number: int) -> list[Item[str]] | None:
        return self.in_flight.pop(number % len(self.in_flight)) if self.in_flight else None

    def _ended(self, items: Sequence[Item[str]]) -> None:
        self.ended.update(item.offset for item in items if not item.is_replay)

    def _count(self, items: Sequence[Item[str]], *, is_rejected: bool) -> None:
        for item in items:
            where = (item.source, item.offset)
            self.counts[where] = self.counts.get(where, 0) + 1
            if is_rejected:
                self.rejected[where] = self.counts[where]

    def _written(self, item: Item[str]) -> None:
        assert item.more is not None
        request = item.more.request
        if (item.source, item.offset) in self.rejected:
            ends = (DeadLetterReason.REJECTED, DeadLetterReason.KEY_PARKED, ReplayOutcome.FAILED)
            assert item.more.end in ends, "it was rejected"
        if request is None:
            chain = self._chain_of(item)
            (number,) = (n for n, (_, at, _) in enumerate(self.stage.dead_letters) if at == item.offset)
            if item.more.end is DeadLetterReason.KEY_PARKED:
                assert chain in self.parked, "followed into the dead letters, but nobody went before"
            assert item.offset not in self.ended
            self.ended.add(item.offset)
            earlier = [
                at for _, at, _ in self.stage.dead_letters[:number] if self.chain(self.stage.log[at], at) == chain
            ]
            assert all(at < item.offset for at in earlier), "dead letters of a key out of order"
            if (self.is_parking or chain in self.parked) and not isinstance(chain, int):
                self.parked[chain] = number
            return
        assert item.offset not in self.answered
        self.answered.add(item.offset)
        is_there = (request.dead_letter_offset or 0) < len(self.stage.dead_letters)
        if request.kind in (ReplayKind.REPLAY, ReplayKind.DROP) and is_there:
            chain = self._chain_of(item)
            letter = request.dead_letter_offset or 0
            if item.more.end is ReplayOutcome.FAILED:
                if chain in self.parked and item.more.error_message != AN_EARLIER_FAILED:
                    self.stuck[chain] = letter
                return
            if self.stuck.get(chain) == letter:
                del self.stuck[chain]
            is_done = item.more.end in (ReplayOutcome.HANDLED, ReplayOutcome.DROPPED)
            if is_done and self.parked.get(chain) == letter:
                last = self.stuck.get(chain) if request.replaced_by is None else request.replaced_by
                if last is None:
                    del self.parked[chain]
                else:
                    self.parked[chain] = last


STEPS = (
    *("append", "read", "read", "take", "take", "take", "handle", "handle_many", "fail", "fail", "fail"),
    *("refuse", "postpone", "put_back", "store", "store", "write", "write", "request", "replay_all", "edit"),
    *("advance", "advance", "restart"),
)
"""Names of methods; what makes a history happens more often than what ends it."""
PARKING = QueueSettings(policy=PARK, parked_keys_max=2)


GO_ON = QueueSettings(policy=RetryPolicy(attempt_count_max=3))
STEP = st.tuples(st.sampled_from(STEPS), st.integers(0, 255))
ALL_SETTINGS = [
    GO_ON,
    PARKING,
    replace(PARKING, order=QueueOrder.PARTITION),
    replace(GO_ON, order=QueueOrder.PARTITION),
    replace(GO_ON, order=QueueOrder.NONE),
    replace(PARKING, null_keys=NullKeys.FREE),
    replace(GO_ON, metadata_bytes_max=540, parked_keys_max=1),
    replace(PARKING, metadata_bytes_max=540, parked_keys_max=1),
]


@pytest.mark.promise("P9")
@given(st.sampled_from(ALL_SETTINGS), st.sampled_from([None, None, 1, 3]), st.lists(STEP, max_size=150))
def test_it_keeps_order_ends_and_attempts_through_anything(
    settings: QueueSettings, records_max: int | None, steps: list[tuple[str, int]]
) -> None:
    live(QueueWorld(settings, records_max=records_max), steps)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))])
def test_it_keeps_them_through_long_histories(seed: int) -> None:
    # What hypothesis draws is short most of the time; parking, replay and restarts need a longer life.
    dice = random.Random(seed)
    settings = ALL_SETTINGS[seed % len(ALL_SETTINGS)]
    steps = [(dice.choice(STEPS), dice.randrange(256)) for _ in range(200)]

    live(QueueWorld(settings, records_max=dice.choice([None, None, 1, 3])), steps)


@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: so many keys fail that what ended behind them has no room in the metadata")
@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))])
def test_it_keeps_them_where_the_metadata_have_room_for_few_ends(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.core.progress._WRITER_BYTES_MAX", 4)
    monkeypatch.setattr("txlayer.core.progress._bitmap", lambda *_: ("", 0))
    monkeypatch.setattr(sys.modules[__name__], "KEYS", (*(b"%d" % n for n in range(40)), None))
    dice = random.Random(seed)
    bytes_max, keys_max = dice.choice([(64, 1), (90, 2), (100, 1), (130, 3)])
    settings = replace(dice.choice(ALL_SETTINGS), metadata_bytes_max=bytes_max, parked_keys_max=keys_max)
    weights = [3 if step in ("append", "postpone", "replay_all") else 1 for step in STEPS]
    steps = [(step, dice.randrange(256)) for step in dice.choices(STEPS, weights, k=300)]

    live(QueueWorld(settings, records_max=dice.choice([None, None, 1, 3])), steps)


def live(world: QueueWorld, steps: list[tuple[str, int]]) -> None:
    """Take these steps, then let everything succeed."""
    for name, number in steps:
        getattr(world, name)(number)
    world.settle()
