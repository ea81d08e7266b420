"""What chaos writes down, judged as it is after a run: clean when it was clean, and red where something is planted."""

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.selftest import test_run_checker as runs
from tests.support.check_side import with_truth
from tests.support.checker import Finding, Kind
from tests.support.consumer_history import ConsumerLogs, Stored
from tests.support.consumer_judge import judge_consumers
from tests.support.consumer_side import recorded_history
from tests.support.history import History
from tests.support.logs import Seen
from tests.support.offsets_log import stored_by
from tests.support.recorded_calls import Recorded, put_together
from tests.support.replayer import parked_in, to_replay
from tests.support.run_checker import judge_history
from txlayer.adapters.ports import StoredOffset
from txlayer.core import codec
from txlayer.core.dead_letters import ReplayKind, ReplayOutcome, ReplayRecord, encode_replay
from txlayer.core.leases import LockKind, LockRecord, encode_lock
from txlayer.core.messages import COMMIT, ROLLBACK, CheckKind, CheckRecord, Resolution
from txlayer.core.progress import Attempts, StoredProgress, encode, fixed_part

GROUP, TOPIC, OFFSETS = "loyalty", "orders", "__consumer_offsets"
A, B = b"a", b"b"
Lines = list[dict[str, Any]]
Journals = dict[str, Lines]


def began(
    number: int, offset: int, at_ms: float, *, key: bytes = A, attempt: int = 1, writer: str = "w"
) -> dict[str, Any]:
    return {
        "what": "began",
        "n": number,
        "at_ms": at_ms,
        "writer": writer,
        "tenure": 0,
        "place": [TOPIC, 0, offset],
        "key": base64.b64encode(key).decode(),
        "attempt": attempt,
        "token": 0,
    }


def ended(number: int, at_ms: float, result: str = "handled") -> dict[str, Any]:
    return {"what": "ended", "n": number, "at_ms": at_ms, "result": result}


def journal() -> Lines:
    """One process: 0 fails and is handled again, then 1 of the same key; 2 of another key meanwhile."""
    return [
        {"what": "holder", "holder": "11/x"},
        {"what": "learned", "at_ms": 2.0, "places": [[0, 0]]},
        began(0, 0, 10.25),
        ended(0, 11.5, "raise"),
        began(1, 2, 12.0, key=B),
        ended(1, 13.9),
        began(2, 0, 30.5, attempt=2),
        ended(2, 31.75),
        began(3, 1, 40.0),
        ended(3, 41.9),
    ]


def without(*numbers: int) -> Journals:
    return {"11": [line for line in journal() if line.get("n") not in numbers]}


def moved(number: int, at_ms: float) -> Journals:
    """A call begins at another time."""
    return {
        "11": [
            {**line, "at_ms": at_ms} if (line["what"], line.get("n")) == ("began", number) else line
            for line in journal()
        ]
    }


def committed(
    at_ms: int, offset: int, metadata: str, *, version: int = 3, group: str = GROUP, key_version: int = 1
) -> Seen:
    """A record of Kafka's log of stored offsets, as its brokers write it."""
    name, topic, text = group.encode(), TOPIC.encode(), metadata.encode() + b"\0"
    key = struct.pack(">hh", key_version, len(name)) + name + struct.pack(">h", len(topic)) + topic
    value = struct.pack(">hq", version, offset) + (struct.pack(">i", -1) if version >= 3 else b"")
    if version >= 4:
        value += bytes([(len(text) + 1) & 0x7F | 0x80, (len(text) + 1) >> 7]) + text
    else:
        value += struct.pack(">h", len(text)) + text
    value += struct.pack(">q", at_ms)
    return Seen(OFFSETS, 0, at_ms, key + struct.pack(">i", 0), value, [], at_ms)


def progress(at_ms: int, offset: int, *finished: tuple[int, int], attempts: Mapping[int, int] | None = None) -> Seen:
    found = StoredProgress("w", attempts={o: Attempts(n, 1) for o, n in (attempts or {}).items()})
    fixed = fixed_part(offset, found)
    return committed(at_ms, offset, encode(offset, finished, fixed, bytes_max=4096).text)


def stores() -> list[Seen]:
    return [progress(5, 0), progress(13, 0, (2, 3), attempts={0: 1}), progress(31, 1, (2, 3)), progress(42, 3)]


def findings(
    journals: Mapping[str, Sequence[Mapping[str, Any]]] | None = None, offsets: Sequence[Seen] | None = None
) -> list[Finding]:
    """What the judge finds in a run of which this was written down."""
    key, claim = encode_lock(LockRecord(LockKind.CLAIM, f"{GROUP}/{TOPIC}/0", 1, "11/x", "", None))
    messages = [Seen(TOPIC, 0, n, key, b"v", [], n) for n, key in enumerate((A, A, B))]
    history = recorded_history(
        ConsumerLogs(messages, [], [], [Seen("locks", 0, 0, key, claim, [], 1)]),
        recorded(journals),
        stored_by(GROUP, stores() if offsets is None else offsets),
        group=GROUP,
        topic=TOPIC,
        partition_count=1,
        ends={},
    )
    return judge_consumers(history).findings


def recorded(journals: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> Recorded:
    return put_together({"11": journal()} if journals is None else journals)


def test_a_clean_run_of_consumers_is_clean() -> None:
    assert [] == findings()


def test_journals_of_several_processes_are_one_history_in_the_order_of_time() -> None:
    other = [{"what": "holder", "holder": "12/y"}, began(0, 7, 35.0)]

    found = recorded({"11": journal(), "12": other})

    assert ["11", "11", "11", "12", "11"] == [call.process for call in found.calls]
    assert [0, 1, 2, 3, 4] == [call.batch for call in found.calls]
    assert 2 == len({call.tenure for call in found.calls})
    assert {"11/x": "11", "12/y": "12"} == found.holders


def test_a_call_of_a_killed_process_has_no_end_and_one_that_ended_has_the_brokers_milliseconds() -> None:
    found = recorded({"11": [began(0, 0, 10.25), began(1, 2, 12.5), ended(1, 13.9)]})

    assert [(None, ""), (13, "handled")] == [(call.ended_ms, call.result) for call in found.calls]


def test_a_store_in_the_millisecond_in_which_its_handler_began_was_not_there_before() -> None:
    # A real broker did so in 4 of 1,500 calls: begun at .25, ended at .5, stored at .75, and the broker has whole milliseconds.
    quick = [line for line in journal() if line.get("n") != 2]
    quick += [began(2, 0, 31.25, attempt=2), ended(2, 31.5)]

    assert [] == findings({"11": quick})


PLANTED: dict[str, tuple[Kind, Callable[[], list[Finding]]]] = {
    "a message that was stored as finished, and no handler had it": (Kind.LOST, lambda: findings(without(1))),
    "a message stored as finished before its handler had ended": (
        Kind.LOST,
        lambda: findings(offsets=[progress(5, 0), progress(12, 0, (2, 3)), *stores()[1:]]),
    ),
    "a message without an end": (Kind.STUCK, lambda: findings(offsets=stores()[:-1])),
    "a message before the earlier one of its key": (Kind.OUT_OF_ORDER, lambda: findings(moved(3, 29.0))),
    "two of a key at the same time": (Kind.OUT_OF_ORDER, lambda: findings(moved(3, 31.0 - 0.25))),
    "handled again though its end was stored": (
        Kind.AGAIN,
        lambda: findings({"11": [*journal(), began(4, 2, 50.0, key=B), ended(4, 51.0)]}),
    ),
    "handled again in the millisecond after its end was stored": (
        Kind.AGAIN,
        lambda: findings({"11": [*journal(), began(4, 2, 43.0, key=B), ended(4, 44.0)]}),
    ),
    "an attempt that was not counted": (
        Kind.ATTEMPTS,
        lambda: findings(offsets=[stores()[0], progress(14, 0, (2, 3)), *stores()[2:]]),
    ),
    "an attempt that counted while a breaker was open": (
        Kind.ATTEMPTS,
        lambda: findings(
            {
                "11": [
                    *journal(),
                    {"what": "breaker", "at_ms": 5.0, "heard_ms": 5.0, "is_open": True},
                    {"what": "taken", "n": 0, "at_ms": 12.0},
                ]
            }
        ),
    ),
    "progress that goes back": (
        Kind.BACKWARDS,
        lambda: findings(offsets=[*stores(), progress(50, 1), progress(60, 3)]),
    ),
    "a handler under a lease of nobody's": (Kind.UNLEASED, lambda: findings({"11": journal()[1:]})),
    "a handler after its lease was over": (Kind.UNLEASED, lambda: findings(moved(3, 3_001.5))),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_wrong_in_the_journals_or_in_the_log_of_offsets_is_found(what: str) -> None:
    kind, plant = PLANTED[what]

    assert kind in {finding.kind for finding in plant()}


# --- the log of stored offsets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2, 3, 4])
def test_every_version_of_a_stored_offset_is_read(version: int) -> None:
    text = "1|w|" + "x" * 200

    found = stored_by(GROUP, [committed(7, 41, text, version=version)])

    assert [Stored(7, (TOPIC, 0), StoredOffset(41, text))] == found


def test_other_groups_and_records_of_groups_themselves_are_left_out() -> None:
    records = [committed(1, 1, "", group="other"), committed(1, 1, "", key_version=2)]

    assert [] == stored_by(GROUP, [*records, records[0]._replace(value=None)])


# --- the operator -----------------------------------------------------------------------------------------------------


def letter(offset: int, key: bytes) -> Seen:
    return Seen("dlq", 0, offset, key, b"v", [], offset)


def word(letter_offset: int, outcome: ReplayOutcome | None = None) -> Seen:
    kind = ReplayKind.REPLAY if outcome is None else ReplayKind.RESULT
    value = encode_replay(ReplayRecord(kind, "r", letter_offset, outcome))
    return Seen("replay", 0, 0, A, value, [], 0)


LETTERS = [letter(0, A), letter(1, B), letter(2, A), letter(3, A)]


@pytest.mark.parametrize(
    ("replays", "expected"),
    [
        ([], [0, 2, 3]),
        ([word(0)], []),
        ([word(0), word(0, ReplayOutcome.HANDLED)], [2, 3]),
        ([word(0), word(0, ReplayOutcome.FAILED)], [0, 2, 3]),
        ([word(3), word(3, ReplayOutcome.HANDLED)], [0, 2, 3]),
    ],
)
def test_all_open_dead_letters_of_a_parked_key_are_replayed_when_nobody_waits(
    replays: list[Seen], expected: list[int]
) -> None:
    assert expected == [found.offset for found in to_replay(LETTERS, replays, {3})]


def test_what_is_stored_says_which_keys_are_parked() -> None:
    fixed = fixed_part(0, StoredProgress("w", parked={b"12345678": 3}))
    text = encode(0, (), fixed, bytes_max=4096).text

    assert {3} == parked_in(StoredOffset(0, text))
    assert set() == parked_in(None)
    assert set() == parked_in(StoredOffset(0, "somebody else's"))


# --- check-back -------------------------------------------------------------------------------------------------------


def doubtful(said: Mapping[str, Resolution], **logs: Any) -> list[Finding]:
    """What the judge finds in a run of one transaction that somebody can answer for."""
    history: History = runs.logs(**logs)
    history = replace(history, local={}, check_topic="ns.check")
    return judge_history(with_truth(history, {runs.KEY}, said)).findings


def test_what_agrees_with_the_database_is_clean() -> None:
    assert [] == doubtful({runs.KEY: COMMIT})


def question(group: str) -> Seen:
    check = CheckRecord(CheckKind.QUESTION, runs.KEY, group, 0, 0, 5, 1, runs.REAL)
    return Seen("ns.check", 0, 0, b"k", codec.encode_check(check), [], 15)


CONTRARY: dict[str, tuple[Kind, Callable[[], list[Finding]]]] = {
    "committed, and the database says rolled back": (Kind.CONTRARY, lambda: doubtful({runs.KEY: ROLLBACK})),
    "committed, and nobody wrote into the database": (Kind.CONTRARY, lambda: doubtful({})),
    "rolled back, and the database says committed": (
        Kind.CONTRARY,
        lambda: doubtful({runs.KEY: COMMIT}, op=[runs.op(ROLLBACK)], real=[]),
    ),
    "never decided, though somebody answers": (Kind.STUCK, lambda: doubtful({runs.KEY: COMMIT}, op=[], real=[])),
    "a group that nobody belongs to is asked": (
        Kind.ASKED,
        lambda: doubtful({runs.KEY: COMMIT}, check=[question("load")]),
    ),
}


@pytest.mark.parametrize("what", CONTRARY)
def test_what_is_decided_against_the_database_is_found(what: str) -> None:
    kind, plant = CONTRARY[what]

    assert kind in {finding.kind for finding in plant()}
