"""The judge of consumers, judged: a clean history is clean, and each thing that can be wrong is found where it is planted."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.selftest.test_run_checker import sites
from tests.support import consumer_judge, lease_judge
from tests.support.checker import Finding, Kind
from tests.support.consumer_history import (
    BreakerTimes,
    ConsumerHistory,
    ConsumerLogs,
    Effect,
    HandlerCall,
    Learned,
    Stored,
)
from tests.support.consumer_judge import judge_consumers
from tests.support.logs import Seen
from txlayer.adapters.ports import StoredOffset
from txlayer.core.dead_letters import (
    DLQ_HEADER,
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    encode_dead_letter,
    encode_replay,
)
from txlayer.core.key_queue import NullKeys, QueueOrder
from txlayer.core.leases import LockKind, LockRecord, encode_lock
from txlayer.core.messages import Origin
from txlayer.core.progress import Attempts, StoredProgress, WaitingKeys, encode, fixed_part, hash_of_key

GROUP, TOPIC = "g", "orders"
DLQ, REPLAY, LOCKS = "g.orders.dlq", "g.orders.replay", "ns.locks"
A, B = b"a", b"b"
HASH = b"hash-of-a"[:8]


def message(offset: int, key: bytes = A) -> Seen:
    return Seen(TOPIC, 0, offset, key, str(offset).encode(), [], offset)


def letter(
    offset: int,
    origin: int,
    at_ms: int,
    *,
    reason: DeadLetterReason = DeadLetterReason.ATTEMPTS_EXHAUSTED,
    attempts: int = 2,
    key: bytes = A,
) -> Seen:
    said = DeadLetter(reason, Origin(TOPIC, 0, origin), 0, attempts, 0, 0, "E", "", GROUP)
    headers: Any = [(DLQ_HEADER, encode_dead_letter(said))]
    return Seen(DLQ, 0, offset, key, str(origin).encode(), headers, at_ms)


def parked(offset: int, origin: int, at_ms: int) -> Seen:
    return letter(offset, origin, at_ms, reason=DeadLetterReason.KEY_PARKED, attempts=0)


def replay(offset: int, letter_offset: int, at_ms: int, outcome: ReplayOutcome | None = None) -> Seen:
    kind = ReplayKind.REPLAY if outcome is None else ReplayKind.RESULT
    record = ReplayRecord(kind, "r", letter_offset, outcome)
    return Seen(REPLAY, 0, offset, A, encode_replay(record), [], at_ms)


def lock(
    offset: int, kind: LockKind, at_ms: int, *, token: int | None = None, holder: str = "h", generation: int = 1
) -> Seen:
    key, value = encode_lock(LockRecord(kind, "g/orders/0", generation, holder, "", token))
    return Seen(LOCKS, 0, offset, key, value, [], at_ms)


def stored(
    at_ms: float,
    offset: int,
    *,
    finished: tuple[tuple[int, int], ...] = (),
    attempts: dict[int, int] | None = None,
    parked: dict[bytes, int] | None = None,
    writer: str = "w",
    is_paused: bool = False,
    waiting: WaitingKeys | None = None,
) -> Stored:
    ended = {o: Attempts(n, 1) for o, n in (attempts or {}).items()}
    fixed = fixed_part(offset, StoredProgress(writer, is_paused, attempts=ended, parked=parked or {}, waiting=waiting))
    text = encode(offset, finished, fixed, bytes_max=4096).text
    return Stored(at_ms, (TOPIC, 0), StoredOffset(offset, text))


def replayed(at_ms: float, offset: int) -> Stored:
    return Stored(at_ms, (REPLAY, 0), StoredOffset(offset, "1|||||"))


def call(
    offset: int,
    began_ms: float,
    *,
    attempt: int = 1,
    result: str = "handled",
    key: bytes = A,
    request: int | None = None,
    letter: int | None = None,
    tenure: int = 1,
    took_ms: float | None = 1.0,
    token: int = 0,
) -> HandlerCall:
    ended_ms = None if took_ms is None else began_ms + took_ms
    return HandlerCall(
        "c0",
        "w",
        tenure,
        TOPIC,
        0,
        offset,
        key,
        attempt,
        token,
        began_ms,
        int(began_ms * 10),
        request,
        letter,
        ended_ms,
        result,
    )


def clean() -> ConsumerHistory:
    """0 fails twice and is a dead letter, 1 follows it, 2 has another key; both letters are replayed."""
    return ConsumerHistory(
        ConsumerLogs(
            [message(0), message(1), message(2, B)],
            [letter(0, 0, 60), parked(1, 1, 70)],
            [
                replay(0, 0, 80),
                replay(1, 1, 80),
                replay(2, 0, 95, ReplayOutcome.HANDLED),
                replay(3, 1, 105, ReplayOutcome.HANDLED),
            ],
            [lock(0, LockKind.CLAIM, 0), lock(1, LockKind.RENEWAL, 900, token=0)],
        ),
        group=GROUP,
        topics=(TOPIC,),
        partition_count=1,
        order=QueueOrder.KEY,
        null_keys=NullKeys.ORDERED,
        is_parking=True,
        attempt_count_max=2,
        lease_expiry_ms=1_000,
        calls=[
            call(0, 20, result="raise"),
            call(0, 40, attempt=2, result="raise"),
            call(2, 45, key=B),
            call(0, 90, request=0, letter=0),
            call(1, 100, request=1, letter=1),
        ],
        stored=[
            stored(10, 0),
            replayed(10, 0),
            stored(30, 0, attempts={0: 1}),
            stored(50, 0, attempts={0: 2}),
            stored(60, 1, finished=((2, 3),), parked={HASH: 0}),
            stored(70, 3, parked={HASH: 1}),
            replayed(95, 1),
            replayed(105, 4),
            stored(105, 3),
        ],
        effects=[Effect(46, "c0", (TOPIC, 0, B), 2, 0, is_accepted=True, is_replay=False)],
        learned=[Learned(5, "c0", 0, 0)],
        holders={"h": "c0", "other": "c1"},
        ends={(DLQ, 0): (4, 4)},
    )


def with_logs(**logs: Any) -> ConsumerHistory:
    history = clean()
    return replace(history, logs=history.logs._replace(**logs))


def also(*calls: HandlerCall, **fields: Any) -> ConsumerHistory:
    history = clean()
    every = sorted([*history.calls, *calls], key=lambda each: each.began_ms)
    return replace(history, calls=every, **fields)


def given_up(index: int, *, after_ms: float) -> ConsumerHistory:
    history = clean()
    history.calls[index].given_up_ms = history.calls[index].began_ms + after_ms
    return history


def under_breaker(index: int, **call: float) -> ConsumerHistory:
    """A breaker opens before everything; one of the calls is otherwise."""
    history = clean()
    times = BreakerTimes(60_000, [(15, True)])
    for each in history.calls:
        each.breaker = times
    for name, value in call.items():
        setattr(history.calls[index], name, value)
    return history


def with_result(index: int, result: str) -> ConsumerHistory:
    history = clean()
    history.calls[index].result = result
    return history


def told_of_a_dead_letter() -> ConsumerHistory:
    history = replace(clean(), hears_of=(None,))
    history.calls[2].heard = DeadLetter(DeadLetterReason.REJECTED, Origin(TOPIC, 0, 2), 0, 1, 0, 0, "E", "", GROUP)
    return history


def without_call(index: int) -> ConsumerHistory:
    history = clean()
    return replace(history, calls=[c for i, c in enumerate(history.calls) if i != index])


def without_stored(*indexes: int) -> ConsumerHistory:
    history = clean()
    return replace(history, stored=[s for i, s in enumerate(history.stored) if i not in indexes])


def and_stored(*last: Stored) -> ConsumerHistory:
    history = clean()
    return replace(history, stored=[*history.stored, *last])


def and_stored_at_first(early: Stored) -> ConsumerHistory:
    history = clean()
    return replace(history, stored=[*history.stored[:2], early, *history.stored[2:]])


def taken_over() -> list[Seen]:
    """Another process took the queue over at 50."""
    return [
        lock(0, LockKind.CLAIM, 0),
        lock(1, LockKind.CLAIM, 50, holder="other", generation=2),
        lock(2, LockKind.RENEWAL, 900, token=1, holder="other", generation=2),
    ]


LETTERS = [letter(0, 0, 60), parked(1, 1, 70)]
REPLAYS = list(clean().logs.replays)

PLANTED: dict[str, tuple[Kind, Callable[[], ConsumerHistory]]] = {
    "an open Kafka transaction of dead letters": (Kind.HANGING, lambda: replace(clean(), ends={(DLQ, 0): (3, 4)})),
    "a dead letter twice": (Kind.DUPLICATE, lambda: with_logs(letters=[*LETTERS, parked(2, 1, 75)])),
    "a dead letter of no message": (Kind.PHANTOM, lambda: with_logs(letters=[*LETTERS, letter(2, 7, 75)])),
    "another key of a dead letter": (Kind.ALTERED, lambda: with_logs(letters=[LETTERS[0], LETTERS[1]._replace(key=B)])),
    "parked behind nothing": (Kind.PHANTOM, lambda: with_logs(letters=[parked(0, 0, 60), parked(1, 1, 70)])),
    "a dead letter of an attempt that was not": (Kind.ATTEMPTS, lambda: without_call(1)),
    "given up too soon": (Kind.ATTEMPTS, lambda: with_logs(letters=[letter(0, 0, 60, attempts=1), LETTERS[1]])),
    "dead letters of a key in the wrong order": (
        Kind.OUT_OF_ORDER,
        lambda: with_logs(letters=[LETTERS[1]._replace(offset=0), LETTERS[0]._replace(offset=1)]),
    ),
    "handled although its key is parked": (Kind.OUT_OF_ORDER, lambda: also(call(1, 65))),
    "finished, and never handled": (Kind.LOST, lambda: without_call(2)),
    "finished because its key is not named, and never handled": (
        Kind.LOST,
        lambda: and_stored_at_first(stored(15, 0, waiting=WaitingKeys(3, {hash_of_key(A): 0}))),
    ),
    "a message without an end": (
        Kind.STUCK,
        lambda: with_logs(topics=[message(0), message(1), message(2, B), message(3, B)]),
    ),
    "parked for ever": (Kind.STUCK, lambda: without_stored(8)),
    "paused for ever": (Kind.STUCK, lambda: and_stored(stored(110, 3, is_paused=True))),
    "progress that goes back": (Kind.BACKWARDS, lambda: and_stored(stored(110, 2), stored(120, 3))),
    "a place before its process began": (Kind.BACKWARDS, lambda: replace(clean(), begins_behind={(TOPIC, 0): 1})),
    "told of a dead letter that is none": (Kind.ALTERED, told_of_a_dead_letter),
    "handled again": (Kind.AGAIN, lambda: also(call(2, 65, key=B))),
    "rejected, and handled again although nothing went wrong": (
        Kind.AGAIN,
        lambda: also(call(2, 30, key=B, result="reject"), is_calm=True),
    ),
    "rejected, and tried once more": (Kind.AGAIN, lambda: with_result(0, "reject")),
    "an attempt that is forgotten": (Kind.ATTEMPTS, lambda: also(call(0, 55, attempt=2, result="raise", tenure=2))),
    "two at a time under an open breaker": (Kind.ATTEMPTS, lambda: under_breaker(1, ended_ms=50)),
    "an attempt counted under an open breaker": (Kind.ATTEMPTS, lambda: under_breaker(0, taken_ms=22)),
    "a handler given up before its deadline": (Kind.ATTEMPTS, lambda: given_up(0, after_ms=100)),
    "an attempt that counts although it was postponed": (Kind.ATTEMPTS, lambda: with_result(0, "postponed")),
    "an attempt that follows none": (Kind.ATTEMPTS, lambda: without_call(0)),
    "one attempt too many": (Kind.ATTEMPTS, lambda: also(call(0, 55, attempt=3, result="raise"))),
    "an attempt before the last one's count": (Kind.ATTEMPTS, lambda: without_stored(2)),
    "a request that is answered twice": (
        Kind.DUPLICATE,
        lambda: with_logs(replays=[*REPLAYS, replay(4, 0, 110, ReplayOutcome.HANDLED)]),
    ),
    "an answer to nobody": (
        Kind.PHANTOM,
        lambda: with_logs(replays=[*REPLAYS, replay(4, 9, 110, ReplayOutcome.MISSING)]),
    ),
    "a request without an answer": (Kind.STUCK, lambda: with_logs(replays=REPLAYS[:3])),
    "an answer that is not true": (Kind.PHANTOM, lambda: without_call(4)),
    "two of a key at the same time": (
        Kind.OUT_OF_ORDER,
        lambda: replace(clean(), calls=[replace(c, ended_ms=42.0) if c.began_ms == 20 else c for c in clean().calls]),
    ),
    "before an earlier one of its key": (Kind.OUT_OF_ORDER, lambda: also(call(1, 30))),
    "replayed before an earlier request": (Kind.OUT_OF_ORDER, lambda: also(call(1, 85, request=1, letter=1))),
    "a write under an older lease": (
        Kind.STALE_WRITE,
        lambda: replace(
            clean(),
            effects=[
                Effect(46, "c0", (TOPIC, 0, B), 2, 5, is_accepted=True, is_replay=False),
                Effect(47, "c1", (TOPIC, 0, B), 2, 0, is_accepted=True, is_replay=False),
            ],
        ),
    ),
    "a lease that nobody gave": (Kind.UNLEASED, lambda: also(call(2, 45, key=B, token=7))),
    "a lease that was over": (Kind.UNLEASED, lambda: also(call(0, 5_000, request=0, letter=0))),
    "a lease that it knew to be lost": (
        Kind.UNLEASED,
        lambda: replace(with_logs(locks=taken_over()), learned=[Learned(85, "c0", 0, 1)]),
    ),
    "a queue that nobody holds": (
        Kind.STUCK,
        lambda: with_logs(locks=[lock(0, LockKind.CLAIM, 0), lock(1, LockKind.RELEASE, 900, token=0)]),
    ),
}


def findings_of(history: ConsumerHistory) -> list[Finding]:
    return judge_consumers(history).findings


def test_a_clean_history_of_consumers_is_clean() -> None:
    assert [] == findings_of(clean())


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_wrong_with_consumers_is_found(what: str) -> None:
    kind, plant = PLANTED[what]

    assert kind in {finding.kind for finding in findings_of(plant())}


def test_who_lost_its_queue_may_go_on_until_it_can_know() -> None:
    history = with_logs(locks=taken_over())

    assert Kind.UNLEASED not in {finding.kind for finding in findings_of(history)}


def test_every_place_where_the_judge_of_consumers_finds_something_has_found_what_was_planted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: set[tuple[str, int]] = set()

    def finding(*fields: object) -> Finding:
        frame = sys._getframe(1)
        found.add((frame.f_globals["__name__"], frame.f_lineno))
        return Finding(*fields)  # type: ignore[arg-type]  # passed on

    def of_queue(kind: Kind, queue: tuple[str, int], detail: str) -> Finding:
        found.add((consumer_judge.__name__, sys._getframe(1).f_lineno))
        return Finding(kind, str(queue), detail)

    monkeypatch.setattr(consumer_judge, "finding", of_queue)
    monkeypatch.setattr(lease_judge, "Finding", finding)
    for _, plant in PLANTED.values():
        findings_of(plant())

    wanted = {(module.__name__, line) for module in (consumer_judge, lease_judge) for line in sites(module)}
    assert set() == wanted - found
