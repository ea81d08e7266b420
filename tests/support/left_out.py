"""The broker's own fault that tests of killed brokers meet now and then: a Kafka transaction that it forgot to end."""

from collections.abc import Callable

import pytest

from tests.support.repeats import note_repeat
from tests.support.waiting import TimedOutError
from txlayer.adapters.kafka.local import LocalBroker

LEFT_OUT = "Couldn't find leader endpoint"
"""What the broker says when it takes a partition without a leader for a deleted one (docs/explanation/kafka.md)."""


class MarkerLeftOutError(Exception):
    """Kafka itself forgot to end a Kafka transaction: from here on its partitions stand still, and nothing is shown."""


def raise_if_marker_left_out(broker: LocalBroker, late: TimedOutError) -> None:
    """By the first broker's own words: that nothing moves is no proof. What was seen and is wrong is never excused.

    Raises:
        MarkerLeftOutError: it said so.
    """
    log = (broker.folder / "node-1" / "broker.log").read_text(encoding="utf-8", errors="replace")
    said = [line for line in log.splitlines() if LEFT_OUT in line]
    if said:
        raise MarkerLeftOutError(f"{late}; {said[-1][:300]}") from late


def run_again_if_marker_left_out(
    request: pytest.FixtureRequest, live_through: Callable[[int], None], *, run_count_max: int
) -> None:
    """One run; after a marker that Kafka left out (KAFKA-20734, one broker alone) another, which the whole run counts."""
    for run in range(run_count_max):
        try:
            live_through(run)
        except MarkerLeftOutError as exc:
            note_repeat(request.node, str(exc))
        else:
            return
    pytest.fail(f"Kafka left a marker out in each of {run_count_max} runs")
