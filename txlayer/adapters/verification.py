"""`verify`: a window read, every transaction of it judged, the promises proved or refuted. Never: a rule of its own.

Two passes over a file on disk: by transaction id, and by ordering key. Memory holds one id, or one key's late ones, at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from txlayer.adapters.administration import Administration
from txlayer.adapters.ports import LogReader
from txlayer.adapters.trace_shelf import TraceShelf
from txlayer.adapters.window import Asked, Reading, WindowReader
from txlayer.config import ClientConfig
from txlayer.core.judging import MISSING, Judged, Window, judge
from txlayer.core.judging_order import OrderFold
from txlayer.core.messages import Origin
from txlayer.core.proving import Finding, Proof
from txlayer.core.verdicts import Promise, Verdict

_TELL_COUNT = 5_000


class Verification(NamedTuple):
    """What was read, and what it proves."""

    reading: Reading
    proof: Proof
    read_s: float
    judge_s: float


class Telling(NamedTuple):
    """Who hears how far it is."""

    read: Callable[[int, int], None] = lambda _done, _total: None
    judged: Callable[[int], None] = lambda _count: None


def verify(
    config: ClientConfig,
    asked: Asked,
    *,
    make_admin: Callable[[], Administration],
    make_reader: Callable[[str], LogReader],
    folder: Path | None = None,
    telling: Telling | None = None,
) -> Verification:
    """Read a window and judge it; `folder` is where its file stands meanwhile, else the system's own for such files.

    Raises:
        TopicMismatchError: the namespace's topics, or one that was asked for, do not exist.
        BrokerUnavailableError, NotAuthorisedError: they cannot be read. Nothing is proved.
    """
    telling = telling or Telling()
    started = time.monotonic()
    with TraceShelf(folder) as shelf:
        reader = WindowReader(
            config, make_admin=make_admin, make_reader=make_reader, on_progress=telling.read
        )
        reading = reader.read(asked, shelf)
        read_at = time.monotonic()
        proof = prove(shelf, reading.window, on_judged=telling.judged)
        return Verification(reading, proof, read_at - started, time.monotonic() - read_at)


def prove(
    shelf: TraceShelf, window: Window, *, on_judged: Callable[[int], None] = lambda _count: None
) -> Proof:
    """The verdicts on everything that stands on the shelf."""
    proof = Proof()
    for found in judgements(shelf, window, on_judged=on_judged):
        if isinstance(found, Late):
            proof.add_late(found.finding, before=found.before)
        else:
            proof.add(found)
    return proof


class Late(NamedTuple):
    """An attempt that was judged before, and whose order is wrong."""

    finding: Finding
    before: Verdict


def judgements(
    shelf: TraceShelf, window: Window, *, on_judged: Callable[[int], None] = lambda _count: None
) -> Iterator[Judged | Late]:
    """Each attempt once, and behind them those that came too late for their ordering key, once each."""
    for number, traces in enumerate(shelf.each(), start=1):
        for judged in judge(traces, window):
            for mark in judged.order_marks:
                shelf.mark(mark, txn_id=judged.txn_id, nonce=judged.nonce, verdict=judged.verdict)
            if not judged.may_wait:
                yield judged
        if not number % _TELL_COUNT:
            on_judged(number)
    fold, key_hash = OrderFold(), ""
    late: set[tuple[str, str]] = set()  # of one key: a transaction is late once
    for mark, txn_id, nonce, verdict in shelf.marks():
        if mark.key_hash != key_hash:
            key_hash = mark.key_hash
            late.clear()
        if mark.role == MISSING:
            found = fold.verdict_of_missing(mark, verdict)
            place = Origin(window.half_topic, mark.place.partition, mark.half_offset)
            is_waiting = found is Verdict.OPEN
            yield Judged(
                txn_id, nonce, found, place, "committed, and nowhere", is_committed=True, is_on_its_way=is_waiting
            )  # fmt: skip
            continue
        why = fold.is_late(mark)
        if why and (txn_id, nonce) not in late:
            late.add((txn_id, nonce))
            finding = Finding(Verdict.OUT_OF_ORDER, txn_id, nonce, mark.place, why, (Promise.P6,))
            yield Late(finding, verdict)
