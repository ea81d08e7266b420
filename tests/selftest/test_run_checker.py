"""The judge of runs, judged: a clean history is clean, and each thing that can be wrong is found where it is planted."""

import ast
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType

import pytest

from tests.support import checker, run_checker
from tests.support.checker import Finding, Kind
from tests.support.history import History, Logs, Sample
from tests.support.logs import Seen
from tests.support.run_checker import judge_history
from txlayer.adapters.ports import StoredOffset
from txlayer.core import codec
from txlayer.core.messages import (
    NO_OPTIONS,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OpMessage,
    Origin,
    Resolution,
    Source,
)

HALF, OP, DOUBT, REAL = "ns.half", "ns.op", "ns.doubt", "orders"
KEY, OTHER = "order-1/00000001", "order-2/00000002"
COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK
RED = HalfOptions(key_hash="0" * 16)


def half(
    offset: int = 0,
    *,
    key: str = KEY,
    header: bytes | None = None,
    index: int = 0,
    count: int = 1,
    options: HalfOptions = NO_OPTIONS,
) -> Seen:
    raw = header or codec.encode_half_header(HalfHeader(key, "g", REAL, index, count, 5, options))
    return Seen(HALF, 0, offset, b"k", b"v", [(codec.HALF_HEADER, raw)], 10)


def op(resolution: Resolution, offset: int = 0, *, last_offset: int = 0, key: str = KEY) -> Seen:
    line = codec.encode_op(OpMessage(resolution, key, "g", last_offset, 5))
    return Seen(OP, 0, offset, None, codec.encode_ops([line]), [], 20)


def abandon(offset: int) -> Seen:
    line = codec.encode_op(OpMessage(ROLLBACK, KEY, "g", 0, 5, Source.OPERATOR, is_abandon=True))
    return Seen(OP, 0, offset, None, codec.encode_ops([line]), [], 20)


def real(
    offset: int = 0,
    *,
    value: bytes = b"v",
    timestamp_ms: int = 30,
    txn_id: bytes = b"order-1",
    half_offset: int = 0,
    partition: int = 0,
    index: int = 0,
    count: int = 1,
) -> Seen:
    headers: list[tuple[str, bytes | None]] = [
        (codec.ID_HEADER, txn_id),
        (codec.ORIGIN_HEADER, b"0:%d|%d/%d|5" % (half_offset, index, count)),
    ]
    return Seen(REAL, partition, offset, b"k", value, headers, timestamp_ms)


def doubt(
    state: str,
    *,
    reason: str = "",
    key: str = KEY,
    first_offset: int = 0,
    decided_at: tuple[int, int] | None = None,
    options: HalfOptions = NO_OPTIONS,
    contents: Sequence[bytes] = (b"v",),
) -> list[Seen]:
    """The contents and the summary of one transaction on doubt."""
    summary = DoubtSummary(
        key,
        state,
        reason,
        "g",
        first_offset,
        first_offset,
        1,
        1,
        10,
        5,
        options.key_hash,
        options.order,
        None,
        decided_at,
        15,
        (REAL,),
    )
    stored = half(key=key, options=options).headers
    found = [
        Seen(DOUBT, 0, i, codec.content_key(key, i), value, [*stored, (codec.KEY_HEADER, b"k")], 25)
        for i, value in enumerate(contents)
    ]
    return [*found, Seen(DOUBT, 0, 9, key.encode(), codec.encode_summary(summary), [], 25)]


BOTH = {
    "half": [half(options=RED), half(1, key=OTHER, options=RED)],
    "op": [op(COMMIT), op(COMMIT, 1, last_offset=1, key=OTHER)],
}
"""The logs of two transactions of one ordering key, both committed."""


def stored(op_offset: int, half_offset: int = 1, *, writer: str = "w1") -> Sample:
    return Sample(
        {
            (HALF, 0): StoredOffset(half_offset, ""),
            (OP, 0): StoredOffset(op_offset, f"1|{writer}|{half_offset}|0|0:0|0"),
        },
        {(REAL, 0): 9},
    )


def clean() -> History:
    """One transaction: prepared, committed, forwarded."""
    return History(
        Logs([half()], [op(Resolution.COMMIT)], [], [real()], {REAL: 1}),
        half_topic=HALF,
        op_topic=OP,
        partition_count=1,
        samples=[stored(0, 0), stored(1)],
        witnessed=[real()],
        ends={(REAL, 0): (1, 1)},
        acknowledged=[(HALF, 0, 0), (OP, 0, 0)],
        local={KEY: Resolution.COMMIT},
    )


def logs(**changed: object) -> History:
    history = clean()
    return replace(history, logs=history.logs._replace(**changed))  # type: ignore[arg-type]  # names are fields


def test_a_clean_run_is_clean() -> None:
    verdict = judge_history(clean())

    assert [] == verdict.findings
    assert 1 == verdict.counts["visible"]


PLANTED: dict[str, tuple[Kind, Callable[[], History]]] = {
    "a commit that is not visible": (Kind.LOST, lambda: logs(real=[])),
    "an acknowledged op that is gone": (Kind.LOST, lambda: replace(clean(), acknowledged=[(OP, 0, 7)])),
    "the same message twice": (Kind.DUPLICATE, lambda: logs(real=[real(), real(1)])),
    "a message that nobody decided": (Kind.PHANTOM, lambda: logs(op=[])),
    "a message before its decision": (Kind.EARLY, lambda: logs(real=[real(timestamp_ms=15)])),
    "other bytes": (Kind.ALTERED, lambda: logs(real=[real(value=b"w")])),
    "a rolled back message": (Kind.CONTRARY, lambda: logs(op=[op(Resolution.ROLLBACK)])),
    "a decision against the database": (Kind.CONTRARY, lambda: replace(clean(), local={KEY: Resolution.ROLLBACK})),
    "a garbage record that is not quarantined": (Kind.DROPPED, lambda: logs(half=[half(), half(1, header=b"garbage")])),
    "a line that names nothing and is not quarantined": (
        Kind.DROPPED,
        lambda: logs(op=[op(Resolution.COMMIT), op(Resolution.COMMIT, 1, last_offset=50)]),
    ),
    "a position that goes back": (Kind.BACKWARDS, lambda: replace(clean(), samples=[stored(1), stored(0, 0)])),
    "two owners in turns": (
        Kind.BACKWARDS,
        lambda: replace(clean(), samples=[stored(1), stored(1, writer="w2"), stored(1)]),
    ),
    "a position beyond what is forwarded": (
        Kind.AHEAD,
        lambda: replace(clean(), samples=[stored(1)._replace(real_ends={(REAL, 0): 0})]),
    ),
    "a message that a reader saw and that is gone": (
        Kind.UNSTEADY,
        lambda: replace(clean(), witnessed=[real(), real(3)]),
    ),
    "offsets that come out of order": (Kind.UNSTEADY, lambda: replace(clean(), witnessed=[real(3), real()])),
    "an undecided transaction behind the low-water mark": (
        Kind.FORGOTTEN,
        lambda: replace(logs(op=[], real=[]), witnessed=[]),
    ),
    "an open Kafka transaction": (Kind.HANGING, lambda: replace(clean(), ends={(REAL, 0): (0, 1)})),
    "a message of no half record": (Kind.PHANTOM, lambda: logs(real=[real(half_offset=5)])),
    "another partition": (Kind.ALTERED, lambda: logs(real=[real(partition=1)], real_partition_counts={REAL: 1})),
    "a half of a transaction": (
        Kind.TORN,
        lambda: logs(
            half=[half(count=2), half(1, index=1, count=2)], op=[op(COMMIT, last_offset=1)], real=[real(count=2)]
        ),
    ),
    "visible, and still on doubt": (Kind.LEFT_ON_DOUBT, lambda: logs(doubt=doubt("held", reason="topic-missing"))),
    "on doubt without its content": (
        Kind.TORN,
        lambda: logs(real=[], doubt=doubt("held", reason="topic-missing", contents=())),
    ),
    "undecided, and on doubt as committed": (
        Kind.PHANTOM,
        lambda: logs(op=[], real=[], doubt=doubt("held", reason="topic-missing")),
    ),
    "scheduled at rest": (Kind.STUCK, lambda: logs(real=[], doubt=doubt("scheduled", decided_at=(0, 0)))),
    "held at rest": (Kind.STUCK, lambda: logs(real=[], doubt=doubt("held", reason="topic-missing", decided_at=(0, 0)))),
    "waits, and nothing is ahead": (Kind.STUCK, lambda: logs(real=[], doubt=doubt("waiting", decided_at=(0, 0)))),
    "parked without a reason": (Kind.STUCK, lambda: logs(real=[], doubt=doubt("parked-committed", decided_at=(0, 0)))),
    "another index or count than the half record's": (Kind.PHANTOM, lambda: logs(real=[real(count=2)])),
    "abandoned after its commit, and still on doubt": (
        Kind.LEFT_ON_DOUBT,
        lambda: logs(
            op=[op(COMMIT), abandon(1)], real=[], doubt=doubt("held", reason="topic-missing", decided_at=(0, 0))
        ),
    ),
    "not in the order of the decisions, and abandoned": (
        Kind.OUT_OF_ORDER,
        lambda: logs(
            half=BOTH["half"], op=[*BOTH["op"], abandon(2)], real=[real(half_offset=1, txn_id=b"order-2"), real(1)]
        ),
    ),
    "not in the order of the decisions": (
        Kind.OUT_OF_ORDER,
        lambda: logs(**BOTH, real=[real(half_offset=1, txn_id=b"order-2"), real(1)]),
    ),
    "a held one is passed": (
        Kind.OUT_OF_ORDER,
        lambda: logs(
            **BOTH,
            real=[real(half_offset=1, txn_id=b"order-2")],
            doubt=doubt("held", reason="topic-missing", decided_at=(0, 0), options=RED),
        ),
    ),
    "a reader gets a message twice": (Kind.DUPLICATE, lambda: replace(clean(), witnessed=[real(), real(1)])),
    "a good record is quarantined": (
        Kind.DROPPED,
        lambda: logs(doubt=[Seen(DOUBT, 0, 0, codec.quarantine_key(Origin(HALF, 0, 0)), b"", [], 9)]),
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_wrong_is_found(what: str) -> None:
    kind, plant = PLANTED[what]

    found = {finding.kind for finding in judge_history(plant()).findings}

    assert kind in found


@pytest.mark.parametrize("resolution", [COMMIT, Resolution.UNKNOWN], ids=["a release", "another time"])
def test_a_line_with_a_time_decides_nothing(resolution: Resolution) -> None:
    timed = codec.encode_ops([codec.encode_op(OpMessage(resolution, KEY, "g", 0, 5, Source.POLICY, time_ms=15))])
    lines = [Seen(OP, 0, 0, None, timed, [], 20), op(ROLLBACK, 1)]
    judge = checker.Judge(Logs([half()], lines, [], [], {REAL: 1}), partition_count=1)

    judge.verdict()

    assert (ROLLBACK, (1, 0)) == (judge.expected[KEY].decision, judge.expected[KEY].decided_at)
    assert ([], 0) == (judge.conflicts, judge.expected[KEY].commit_count)


def test_every_place_where_the_judge_can_find_something_has_found_what_was_planted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: set[tuple[str, int]] = set()

    def finding(*fields: object) -> Finding:
        frame = sys._getframe(1)
        if frame.f_code.co_name == "_add" and frame.f_back is not None:
            frame = frame.f_back
        found.add((frame.f_globals["__name__"], frame.f_lineno))
        return Finding(*fields)  # type: ignore[arg-type]  # passed on

    for module in (checker, run_checker):
        monkeypatch.setattr(module, "Finding", finding)
    for _, plant in PLANTED.values():
        judge_history(plant())

    places = {(module.__name__, at) for module in (checker, run_checker) for at in sites(module)}
    assert len(places) > 15
    assert set() == places - found


def sites(module: ModuleType) -> list[int]:
    """Lines that make a finding."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(module))))
    passing_on = {
        inner
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name in ("_add", "finding")
        for inner in ast.walk(node)
    }
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call)
        and node not in passing_on
        and ast.unparse(node.func) in ("Finding", "self._add", "finding")
    ]
