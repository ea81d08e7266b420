"""Real topics that a coordinator knows: which it may write, how long it asks, how many it remembers, whom it never forgets."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.ports import TopicLimits
from txlayer.config import CoordinatorConfig, SystemTopics
from txlayer.coordinator.targets import (
    BATCH_BYTES_MAX,
    BATCH_OVERHEAD_BYTES,
    LOOK_AGAIN_MAX_S,
    LOOK_TIME_S,
    REFRESH_S,
    TARGETS_MAX,
    TRUST_AGAIN_S,
    TRY_AGAIN_MAX_S,
    Availability,
    Targets,
)
from txlayer.core.messages import ParkReason
from txlayer.errors import BrokerUnavailableError, InvariantError, NotAuthorisedError
from txlayer.runtime.environment import Environment

LOOK_S = 0.002
HOLD_S = CoordinatorConfig().hold_after.total_seconds()
THERE = TopicLimits(1, 1_000_000)
UNREACHABLE = THERE._replace(unavailable=frozenset({0}))


class Cluster:
    """Topics, a clock, and what a question costs."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.answers: dict[str, TopicLimits | Exception] = {}
        self.aside: list[Callable[[], Any]] = []
        self.now = 0.0
        self.asked_count = 0
        connections: Any = self
        self.book = Targets(CoordinatorConfig(), connections, clock=lambda: self.now)

    def topic_limits(self, topic: str) -> TopicLimits | None:
        """An answer, after a while."""
        self.now += LOOK_S
        self.asked_count += 1
        answer = self.answers.get(topic, THERE if topic in self.there else None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    topic_limits_in_background = topic_limits

    def start(self, call: Callable[[], Any], *, name: str) -> None:
        """A call in the background, which ends when the test makes it."""
        assert name
        self.aside.append(call)

    def has_widened(self) -> bool:
        """Asked at a tick."""
        background: Any = self
        return self.book.has_widened(background)

    def refusal(self, topic: str = "orders") -> ParkReason | None:
        """Why a topic takes nothing."""
        return self.book.targets[topic].refusal


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
        mended += cluster.book.mended(needed=set())
        assert cluster.now - before <= LOOK_TIME_S + LOOK_S
        cluster.now += 0.5

    assert ["invented-00999"] == mended


@pytest.mark.promise("P1")
@pytest.mark.fault("broker: a topic is deleted, or only one of half and op gets more partitions")
@pytest.mark.parametrize(
    ("answer", "is_tried_again"),
    [
        (THERE._replace(partition_count=2), False),
        (THERE, True),
        (None, True),  # it is just being made anew once more
        (NotAuthorisedError("no"), True),
    ],
)
def test_a_message_whose_partition_is_missing_is_parked_only_where_its_topic_is_there_as_it_was(
    answer: TopicLimits | Exception | None, *, is_tried_again: bool
) -> None:
    cluster = Cluster()
    cluster.answers["orders"] = THERE._replace(partition_count=2)
    cluster.book.learn(["orders"])

    if answer is None:
        del cluster.answers["orders"]
    else:
        cluster.answers["orders"] = answer

    assert is_tried_again is cluster.book.was_made_anew("orders")


@pytest.mark.slow
@pytest.mark.promise("P7", "P11")
def test_very_many_invented_topics_are_checked_seldom_and_delay_no_topic_that_is_needed() -> None:
    cluster, left = Cluster(), invented(2_000) | {"orders"}
    while left:
        left -= cluster.book.learn(left)

    def tick(*needed: str) -> list[str]:
        cluster.now += 0.5
        return cluster.book.mended(needed={*needed})

    until = cluster.now + 2_000
    while cluster.now < until:  # nothing waits for orders so far
        tick()
    asked_count, until = cluster.asked_count, cluster.now + TRY_AGAIN_MAX_S
    while cluster.now < until:
        tick()
    assert cluster.asked_count - asked_count <= 2_001

    cluster.there.add("orders")
    began = cluster.now
    while "orders" not in tick("orders"):
        assert cluster.now - began <= LOOK_AGAIN_MAX_S


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


@pytest.mark.promise("P11")
def test_a_slow_broker_is_asked_about_one_new_topic_a_turn() -> None:
    cluster = Cluster()

    assert {"a"} == cluster.book.learn(["a"])
    cluster.now += 1
    assert cluster.book.learn(["a", "b", "c"]) >= {"a", "b"}


def test_topics_that_accept_are_not_forgotten() -> None:
    cluster = Cluster("orders")
    cluster.book.learn(["orders"])
    left = invented(TARGETS_MAX)
    while left:
        left -= cluster.book.learn(left)

    cluster.book.forget(needed=())

    assert "orders" in cluster.book.targets


@pytest.mark.promise("P6")
def test_a_topic_that_accepts_is_asked_about_again_in_time_and_one_at_a_time() -> None:
    cluster = Cluster("orders")
    cluster.book.learn(["orders"])
    cluster.now = REFRESH_S - 1
    assert (False, 0) == (cluster.has_widened(), len(cluster.aside))

    cluster.now = 3 * REFRESH_S
    for _ in range(3):
        assert not cluster.has_widened()
        cluster.now += REFRESH_S
    assert 1 == len(cluster.aside)

    cluster.answers["orders"] = BrokerUnavailableError("away")
    cluster.aside.pop()()
    cluster.has_widened()
    del cluster.answers["orders"]
    cluster.aside.pop()()
    assert not cluster.has_widened()
    assert [] == cluster.aside

    cluster.now += REFRESH_S
    cluster.has_widened()
    cluster.answers["orders"] = THERE._replace(partition_count=2)
    cluster.aside.pop()()
    assert (True, False) == (cluster.has_widened(), cluster.has_widened())
    assert 2 == cluster.book.partition_count_of("orders")


def test_one_topic_of_several_that_takes_larger_messages_is_enough() -> None:
    cluster = Cluster("a", "b")
    cluster.book.learn(["a", "b"])
    cluster.answers["a"] = THERE._replace(message_bytes_max=2_000_000)

    assert cluster.book.has_grown({"a", "b"})
    assert not cluster.book.has_grown({"a", "b"})


@pytest.mark.promise("P1", "P11")
def test_topics_for_which_there_was_no_time_stay_to_be_asked_about() -> None:
    topics = {f"topic-{number:03}" for number in range(200)}
    cluster, left, turns = Cluster(*topics), set(topics), 0
    for topic in topics:
        cluster.book.learn([topic])
    cluster.answers["topic-199"] = THERE._replace(message_bytes_max=2_000_000)

    is_grown = False
    while left:
        before, turns = cluster.now, turns + 1
        is_grown = cluster.book.has_grown(left)
        assert cluster.now - before <= LOOK_TIME_S + LOOK_S

    assert is_grown
    assert turns >= 3


@pytest.mark.promise("P7")
@pytest.mark.parametrize("answer", [NotAuthorisedError("no"), THERE._replace(is_writable=False), THERE])
def test_a_topic_that_may_not_be_written_is_denied_whatever_is_told_about_it(answer: TopicLimits | Exception) -> None:
    cluster = Cluster("orders")
    cluster.answers["orders"] = answer
    cluster.book.learn(["orders"])
    assert (None if answer is THERE else ParkReason.TOPIC_DENIED) is cluster.refusal()

    cluster.book.refused("orders")

    assert ParkReason.TOPIC_DENIED is cluster.refusal()


@pytest.mark.promise("P11")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [(NotAuthorisedError("no"), None), (None, None), (THERE._replace(message_bytes_max=5_000), 5_000)],
)
def test_what_op_takes_is_asked_once_and_bounds_every_batch(
    answer: TopicLimits | Exception | None, expected: int | None
) -> None:
    cluster = Cluster("txlayer.doubt", "txlayer.check")
    if answer is not None:
        cluster.answers["txlayer.op"] = answer

    cluster.book.learn_own()

    assert expected == cluster.book.limit_of("txlayer.op")
    assert (expected or 1_000_000) - BATCH_OVERHEAD_BYTES == cluster.book.batch_bytes_max
    assert 3 == cluster.asked_count


def test_batches_fit_the_topics_that_accept() -> None:
    cluster = Cluster("orders")
    cluster.answers["orders"] = THERE._replace(message_bytes_max=5_000)
    cluster.book.learn(["missing"])
    assert BATCH_BYTES_MAX - BATCH_OVERHEAD_BYTES == cluster.book.batch_bytes_max

    cluster.book.learn(["orders"])
    assert 5_000 - BATCH_OVERHEAD_BYTES == cluster.book.batch_bytes_max


@pytest.mark.promise("P7")
def test_a_topic_that_leaves_records_unanswered_for_hold_after_is_held() -> None:
    cluster = Cluster("orders")
    book = cluster.book
    book.learn(["orders"])

    book.unanswered(["orders"])
    cluster.now += HOLD_S - 1
    book.written(["orders"])  # all of it was answered since
    for _ in range(2):
        book.unanswered(["orders"])
        assert (None, True) == (cluster.refusal(), book.is_doubtful)
        cluster.now += HOLD_S / 2 + 0.001
    book.unanswered(["orders"])

    assert (ParkReason.TOPIC_UNREACHABLE, False) == (cluster.refusal(), book.is_doubtful)


@pytest.mark.promise("P11")
def test_large_transactions_are_held_before_the_others_of_their_topic_but_a_topic_without_a_leader_is_held_whole() -> (
    None
):
    cluster = Cluster("orders", "away")
    book = cluster.book
    book.learn(["orders", "away"])
    cluster.answers["away"] = UNREACHABLE

    for _ in range(2):
        book.look_again_at(["orders", "away"])
        book.unanswered(["orders", "away"], large={"orders": 4_000, "away": 4_000}, large_bytes_min=1_000)
        cluster.now += HOLD_S
    assert (None, 4_000) == (cluster.refusal(), book.targets["orders"].slow_bytes_min)
    assert (ParkReason.TOPIC_UNREACHABLE, 0) == (cluster.refusal("away"), book.targets["away"].message_bytes_max)

    for size, slow_bytes_min in ((3_900, 2_000), (1_100, 1_000)):
        book.unanswered(["orders"], large={"orders": size}, large_bytes_min=1_000)
        assert (None, slow_bytes_min) == (cluster.refusal(), book.targets["orders"].slow_bytes_min)
    book.unanswered(["orders"])
    assert ParkReason.TOPIC_UNREACHABLE is cluster.refusal()


@pytest.mark.promise("P11")
def test_a_topic_with_good_metadata_that_answers_nothing_is_tried_ever_more_seldom() -> None:
    cluster = Cluster("orders")
    book = cluster.book
    book.learn(["orders"])
    tries, accepted_at = [0.0], 0.0
    while cluster.now < 3_600:
        cluster.now += 1
        if book.mended(needed={"orders"}):
            accepted_at = cluster.now
        since = cluster.now - max(tries[-1], accepted_at)
        if cluster.refusal() is None and since >= 20:  # a time-out
            tries.append(cluster.now)
            book.unanswered(["orders"])

    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert TRY_AGAIN_MAX_S <= max(pauses) <= TRY_AGAIN_MAX_S + 40
    assert sorted(pauses) == pytest.approx(pauses, abs=20)


@pytest.mark.promise("P7")
def test_a_topic_whose_metadata_have_changed_has_hold_after_again() -> None:
    cluster = Cluster("orders")
    book = cluster.book
    book.learn(["orders"])
    cluster.answers["orders"] = UNREACHABLE
    for _ in range(2):
        book.unanswered(["orders"])
        book.look_again_at(["orders"])
        cluster.now += HOLD_S
    assert ParkReason.TOPIC_UNREACHABLE is cluster.refusal()

    cluster.answers["orders"] = THERE
    cluster.now += LOOK_AGAIN_MAX_S
    assert ["orders"] == book.mended(needed={"orders"})
    book.unanswered(["orders"])
    assert cluster.refusal() is None

    cluster.answers["orders"] = UNREACHABLE
    book.look_again_at(["orders"])
    assert cluster.refusal() is None


@pytest.mark.promise("P7")
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_topic_without_a_leader_has_hold_after_each_time(*, is_missing: bool) -> None:
    cluster = Cluster()
    book = cluster.book
    cluster.answers["orders"] = UNREACHABLE
    book.learn(["orders"])
    cluster.now += HOLD_S - 1
    if is_missing:
        del cluster.answers["orders"]
        book.look_again_at(["orders"])
        cluster.answers["orders"] = UNREACHABLE
    else:
        cluster.now += TRUST_AGAIN_S  # it has had one meanwhile, and nobody asked

    cluster.now += HOLD_S
    book.look_again_at(["orders"])
    assert cluster.refusal() is None

    cluster.now += HOLD_S
    book.look_again_at(["orders"])
    assert ParkReason.TOPIC_UNREACHABLE is cluster.refusal()


def test_a_topic_that_accepted_for_long_is_looked_at_soon_when_it_refuses_again() -> None:
    cluster = Cluster("orders")
    book = cluster.book
    for pause in (0, TRUST_AGAIN_S - 10, 2 * TRUST_AGAIN_S):
        cluster.now += pause
        book.mended(needed={"orders"})
        cluster.there.clear()
        book.look_again_at(["orders"])
        looks = cluster.asked_count
        cluster.now += 2
        book.mended(needed={"orders"})
        assert (cluster.asked_count == looks) is (pause == TRUST_AGAIN_S - 10), pause
        cluster.there.add("orders")
        while cluster.refusal() is not None:
            cluster.now += 1
            book.mended(needed={"orders"})


@pytest.mark.parametrize("is_widening", [False, True])
def test_an_error_of_a_question_in_the_background_that_nobody_knows_is_logged(
    *, is_widening: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster("orders")
    background: Any = cluster
    cluster.book.learn({"orders"})
    cluster.answers = dict.fromkeys(("orders", SystemTopics("txlayer").half), ValueError("as planned"))
    cluster.now = REFRESH_S + 1
    if is_widening:
        cluster.book.has_widened(background)
    else:
        environment = Environment(clock=lambda: cluster.now, background=background)
        available = Availability(background, SystemTopics("txlayer"), environment=environment)
        available.has_any_again([0])
    cluster.aside.pop()()

    assert ["ValueError"] == [type(r.exc_info[1]).__name__ for r in caplog.records if r.exc_info]


def book_of(*patterns: str) -> Targets:
    """What is known of topics that all exist, when `patterns` may be forwarded to; () any."""
    kafka = MemoryKafka()
    for topic in ("orders", "orders.eu", "payroll", "txlayer.doubt", "txlayer.op"):
        kafka.create_topic(topic)
    config = CoordinatorConfig(target_topics=patterns)
    book = Targets(config, kafka.connect_coordinator(config))
    book.learn(["orders", "orders.eu", "payroll", "txlayer.doubt", "txlayer.op"])
    return book


def accepted(book: Targets) -> list[str]:
    """Topics to which a message may be forwarded."""
    return sorted(topic for topic, target in book.targets.items() if target.refusal is None)


@pytest.mark.promise("P3")
@pytest.mark.parametrize(
    ("patterns", "topics"),
    [
        ((), ["orders", "orders.eu", "payroll"]),
        (("orders",), ["orders"]),
        (("orders*",), ["orders", "orders.eu"]),
        (("*",), ["orders", "orders.eu", "payroll"]),
        (("txlayer.*",), []),
    ],
)
def test_only_what_a_pattern_names_is_forwarded_to_and_never_a_topic_of_ours(
    patterns: tuple[str, ...], topics: list[str]
) -> None:
    book = book_of(*patterns)

    assert topics == accepted(book)
    for topic in book.targets.keys() - set(topics):
        assert ParkReason.FORBIDDEN_TOPIC is book.targets[topic].refusal
        with pytest.raises(InvariantError):
            book.check_allowed(topic, txn_key="a/0000000a")
    for topic in topics:
        book.check_allowed(topic, txn_key="a/0000000a")


def test_a_topic_that_nobody_asked_about_is_forwarded_to_by_nobody() -> None:
    with pytest.raises(InvariantError):
        book_of().check_allowed("unknown", txn_key="a/0000000a")
