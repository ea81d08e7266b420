"""The judge of runs, judged: a clean history is clean, and each thing that can be wrong is found where it is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.checker import Kind
from tests.support.history import History, Logs, Sample
from tests.support.logs import Seen
from tests.support.run_checker import judge_history
from txlayer.adapters.ports import StoredOffset
from txlayer.core import codec
from txlayer.core.messages import NO_OPTIONS, HalfHeader, OpMessage, Resolution

HALF, OP, DOUBT, REAL = "ns.half", "ns.op", "ns.doubt", "orders"
KEY = "order-1/00000001"


def half(offset: int = 0, *, key: str = KEY, header: bytes | None = None) -> Seen:
    raw = header or codec.encode_half_header(HalfHeader(key, "g", REAL, 0, 1, 5, NO_OPTIONS))
    return Seen(HALF, 0, offset, b"k", b"v", [(codec.HALF_HEADER, raw)], 10)


def op(resolution: Resolution, offset: int = 0, *, last_offset: int = 0) -> Seen:
    line = codec.encode_op(OpMessage(resolution, KEY, "g", last_offset, 5))
    return Seen(OP, 0, offset, None, codec.encode_ops([line]), [], 20)


def real(offset: int = 0, *, value: bytes = b"v", timestamp_ms: int = 30) -> Seen:
    headers: list[tuple[str, bytes | None]] = [
        (codec.ID_HEADER, b"order-1"),
        (codec.ORIGIN_HEADER, b"0:0|0/1|5"),
    ]
    return Seen(REAL, 0, offset, b"k", value, headers, timestamp_ms)


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
    "an acknowledged op that is gone": (
        Kind.LOST,
        lambda: replace(clean(), acknowledged=[(OP, 0, 7)]),
    ),
    "the same message twice": (Kind.DUPLICATE, lambda: logs(real=[real(), real(1)])),
    "a message that nobody decided": (Kind.PHANTOM, lambda: logs(op=[])),
    "a message before its decision": (Kind.EARLY, lambda: logs(real=[real(timestamp_ms=15)])),
    "other bytes": (Kind.ALTERED, lambda: logs(real=[real(value=b"w")])),
    "a rolled back message": (Kind.CONTRARY, lambda: logs(op=[op(Resolution.ROLLBACK)])),
    "a decision against the database": (
        Kind.CONTRARY,
        lambda: replace(clean(), local={KEY: Resolution.ROLLBACK}),
    ),
    "a garbage record that is not kept aside": (
        Kind.DROPPED,
        lambda: logs(half=[half(), half(1, header=b"garbage")]),
    ),
    "a line that names nothing and is not kept aside": (
        Kind.DROPPED,
        lambda: logs(op=[op(Resolution.COMMIT), op(Resolution.COMMIT, 1, last_offset=50)]),
    ),
    "a position that goes back": (
        Kind.BACKWARDS,
        lambda: replace(clean(), samples=[stored(1), stored(0, 0)]),
    ),
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
    "offsets that come out of order": (
        Kind.UNSTEADY,
        lambda: replace(clean(), witnessed=[real(3), real()]),
    ),
    "an undecided transaction behind the low-water mark": (
        Kind.FORGOTTEN,
        lambda: replace(logs(op=[], real=[]), witnessed=[]),
    ),
    "an open Kafka transaction": (
        Kind.HANGING,
        lambda: replace(clean(), ends={(REAL, 0): (0, 1)}),
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_wrong_is_found(what: str) -> None:
    kind, plant = PLANTED[what]

    found = {finding.kind for finding in judge_history(plant()).findings}

    assert kind in found
