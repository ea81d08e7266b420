"""Real topics that a coordinator knows: how long it asks, how many it remembers, whom it never forgets."""

from __future__ import annotations

from typing import Any

import pytest

from txlayer.adapters.ports import TopicLimits
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.targets import LOOK_TIME_S, TARGETS_MAX, Targets
from txlayer.core.messages import ParkReason

LOOK_S = 0.002


class Cluster:
    """Topics, a clock, and what a question costs."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.now = 0.0
        self.asked_count = 0
        connections: Any = self
        self.book = Targets(CoordinatorConfig(), connections, clock=lambda: self.now)

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """An answer, after a while."""
        self.now += LOOK_S
        self.asked_count += 1
        return TopicLimits(1, 1_000_000, is_reachable=True) if topic in self.there else None


def invented(count: int) -> set[str]:
    return {f"invented-{number:05}" for number in range(count)}


@pytest.mark.promise("P11")
def test_asking_about_very_many_new_topics_ends_in_time_and_goes_on_in_the_next_turn() -> None:
    cluster, left, turns = Cluster("orders"), invented(3_000) | {"orders"}, 0

    while left:
        before = cluster.now
        left -= cluster.book.learn(left)
        turns += 1
        assert cluster.now - before <= LOOK_TIME_S + LOOK_S

    assert 3_001 == cluster.asked_count
    assert turns > 10


@pytest.mark.promise("P11")
def test_looking_again_at_very_many_topics_ends_in_time_and_reaches_all() -> None:
    cluster, left = Cluster(), invented(1_000)
    while left:
        left -= cluster.book.learn(left)
    cluster.there.add("invented-00999")
    mended: list[str] = []

    for _ in range(100):
        before = cluster.now
        mended += cluster.book.mended()
        assert cluster.now - before <= LOOK_TIME_S + LOOK_S
        cluster.now += 0.5

    assert ["invented-00999"] == mended


@pytest.mark.promise("P11")
def test_topics_that_take_nothing_and_that_nobody_needs_are_forgotten() -> None:
    cluster, left = Cluster("orders"), invented(3_000) | {"orders"}
    book = cluster.book
    while left:
        left -= book.learn(left)
        if book.has_too_many:
            book.forget(needed={"invented-00000"})
        assert len(book.targets) <= TARGETS_MAX + LOOK_TIME_S / LOOK_S + 1

    assert book.targets["orders"].refusal is None
    assert ParkReason.TOPIC_MISSING is book.targets["invented-00000"].refusal
    assert "invented-00001" not in book.targets
    assert {"invented-00001"} == book.learn({"invented-00001"})


@pytest.mark.promise("P11")
def test_asking_again_about_very_many_topics_that_failed_ends_in_time_and_reaches_all() -> None:
    names = invented(1_000)
    cluster = Cluster(*names)
    for topic in names:
        cluster.book.learn([topic])
    cluster.there.remove("invented-00999")

    for _ in range(30):
        before = cluster.now
        failed = {topic for topic in names if cluster.book.targets[topic].refusal is None}
        cluster.book.look_again_at(failed)  # those that refuse are held, and fail no more
        assert cluster.now - before <= LOOK_TIME_S + LOOK_S

    assert ParkReason.TOPIC_MISSING is cluster.book.targets["invented-00999"].refusal
