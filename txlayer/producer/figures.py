"""What may be seen of a responder from outside: its metrics and its health, out of the figures that it keeps anyway."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain

from txlayer.adapters.meters import (
    Health,
    Sample,
    counter,
    everybodys,
    gauge,
    with_few_labels,
)
from txlayer.core.messages import Resolution
from txlayer.producer.questions import ResponderStats, Skip

STALL_S = 60.0
"""A loop that has not turned for so long hangs: its longest pause, after errors, is 19 s. Handlers run elsewhere."""

QUESTIONS = counter("txlayer_responder_questions_total", "Check-backs that were this instance's to answer.")  # fmt: skip
ANSWERS = counter("txlayer_responder_answers_total", "Answers to check-backs, by answer.", "answer")
UNKNOWN = counter("txlayer_responder_unknown_answers_total", "Of them, those that knew nothing, by cause.", "cause")  # fmt: skip
SKIPPED = counter("txlayer_responder_skipped_records_total", "Records of the check topic that led to no answer here, by reason.", "reason")  # fmt: skip
LATE = counter("txlayer_responder_late_results_total", "Results that came after their time-out, dropped.")  # fmt: skip
STORED = counter("txlayer_responder_answers_stored_total", "Answers that the broker acknowledged.")
LOST = counter("txlayer_responder_answers_lost_total", "Answers that may not be stored; they are asked again.")  # fmt: skip
REFUSED = counter("txlayer_responder_refusals_total", "Resolutions of the group that came too late: the contrary decision stands.")  # fmt: skip
PARTITIONS = gauge("txlayer_responder_partitions", "Partitions of the check topic that this instance answers.")  # fmt: skip

FAMILIES = (QUESTIONS, ANSWERS, UNKNOWN, SKIPPED, LATE, STORED, LOST, REFUSED, PARTITIONS)


class ObservedResponder:
    """A stand-alone responder for whoever scrapes and probes. Any thread may ask.

    Args:
        group: the producer group that it answers for.
        version: of txlayer.
        clock: monotonic seconds, the same as the responder's.
    """

    def __init__(
        self, *, group: str, version: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._group = group
        self._version = version
        self._clock = clock
        self._stats: Callable[[], ResponderStats | None] = _nobody

    def follow(self, stats: Callable[[], ResponderStats | None] | None) -> None:
        """From now on these are its figures; None: its client is gone, and a new one is being made."""
        self._stats = _nobody if stats is None else stats

    def health(self) -> Health:
        """Alive while the loop turns; ready while it is a member of its check group."""
        return health_of(self._stats(), now=self._clock())

    def samples(self) -> Iterator[Sample]:
        """Every figure."""
        stats = self._stats()
        health = health_of(stats, now=self._clock())
        everybody = everybodys(health, role="responder", version=self._version, name=self._group)
        return chain(everybody, () if stats is None else _samples(stats))


def health_of(stats: ResponderStats | None, *, now: float) -> Health:
    """Its health at monotonic `now`."""
    if stats is None or stats.turned_at is None:
        return Health("", "it waits for a broker")
    age_s = now - stats.turned_at
    stalled = "" if age_s < STALL_S else f"the loop has not turned for {age_s:.0f} s"
    if stats.failure is not None:
        # The class alone: what a broker said may name what is nobody's concern.
        return Health(stalled, f"it hears nothing: {type(stats.failure).__name__}; see the log")
    return Health(stalled, "" if stats.is_member else "it is no member of its check group yet")


def _nobody() -> None:
    return None


def _samples(stats: ResponderStats) -> Iterator[Sample]:
    for resolution in Resolution:
        yield Sample(ANSWERS, stats.answered.get(resolution, 0), (resolution.name.lower(),))
    for cause, count in with_few_labels(stats.unknown).items():
        yield Sample(UNKNOWN, count, (cause,))
    for skip in Skip:
        yield Sample(SKIPPED, stats.skipped.get(skip.value, 0), (skip.value,))
    values = {
        QUESTIONS: stats.asked, LATE: stats.late, STORED: stats.stored, LOST: stats.lost, REFUSED: stats.refused,
        PARTITIONS: len(stats.own_partitions),
    }  # fmt: skip
    for family, value in values.items():
        yield Sample(family, value)
