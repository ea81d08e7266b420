"""Each rule of `txlayer doctor`, red where something is wrong and green where it is not."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from txlayer.adapters.ports import (
    BrokerFacts,
    ClockFacts,
    ClusterFacts,
    GroupMember,
    GroupState,
    PartitionFacts,
    Right,
    TopicFacts,
)
from txlayer.config import CoordinatorConfig
from txlayer.core.topics import AlterSetting, CreateTopic, Difference, StoreFirstOffsets
from txlayer.operate import doctor
from txlayer.operate.doctor import RULES, ClusterFinding, Level, Rule, examine, is_ill

DAY_MS = 86_400_000
CONFIG = CoordinatorConfig()
SETTINGS = {
    "transaction.max.timeout.ms": "900000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transactional.id.expiration.ms": "604800000",
    "transaction.partition.verification.enable": "true",
    "controller.quorum.bootstrap.servers": "",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "offsets.retention.minutes": "10080",
    "offset.metadata.max.bytes": "4096",
    "auto.create.topics.enable": "false",
}


def broker(number: int = 1, **changes: str) -> BrokerFacts:
    settings = SETTINGS | {name.replace("_", "."): value for name, value in changes.items()}
    return BrokerFacts(number, settings)


def topic(name: str, *, partitions: int = 3, replicas: int = 3, **changes: str) -> TopicFacts:
    settings = {
        "min.insync.replicas": "2",
        "retention.ms": str(7 * DAY_MS),
        "max.message.bytes": "1048588",
        "unclean.leader.election.enable": "false",
        "cleanup.policy": "delete",
    } | {key.replace("_", "."): value for key, value in changes.items()}
    nodes = tuple(tuple((first + n) % 3 + 1 for n in range(replicas)) for first in range(partitions))
    return TopicFacts(name, nodes, nodes, tuple(r[0] for r in nodes), settings)


def part(number: int, **changes: Any) -> PartitionFacts:
    plain = PartitionFacts(
        partition=number, half_start=0, half_end=100, op_start=0, op_end=100, low_water=100, op_next=100, owner="c1"
    )
    return replace(plain, **changes)


def members(state: str, count: int) -> GroupState:
    return GroupState(state, (GroupMember("m", "c", "host", ()),) * count)


HEALTHY = ClusterFacts(
    namespace="ns",
    half="ns.half",
    op="ns.op",
    now_ms=10 * DAY_MS,
    brokers=(broker(1), broker(2), broker(3)),
    topics=(topic("ns.half"), topic("ns.op"), topic("ns.doubt")),
    internal_topics=(topic("__consumer_offsets", cleanup_policy="compact"),),
    real_topics=(topic("orders"),),
    partitions=(part(0), part(1), part(2)),
    group=members("stable", 2),
    clock=ClockFacts(-3, 4),
    rights=(Right("coordinator", "Read", "topic", "ns.half", True),),
)


def with_broker(**changes: str) -> ClusterFacts:
    return replace(HEALTHY, brokers=(broker(1, **changes), broker(2), broker(3)))


def with_half(**changes: Any) -> ClusterFacts:
    return replace(HEALTHY, topics=(topic("ns.half", **changes), topic("ns.op")))


def with_topic(**changes: Any) -> ClusterFacts:
    return replace(HEALTHY, topics=(replace(topic("ns.half"), **changes), topic("ns.op")))


def with_part(**changes: Any) -> ClusterFacts:
    return replace(HEALTHY, partitions=(part(0, **changes), part(1), part(2)))


def without(*settings: str) -> ClusterFacts:
    old = BrokerFacts(1, {name: value for name, value in SETTINGS.items() if name not in settings})
    return replace(HEALTHY, brokers=(old, broker(2), broker(3)))


ALONE = members("stable", 1)
EMPTY = members("empty", 0)
B, T, P, R = doctor, doctor, doctor, doctor
E, W, I = Level.ERROR, Level.WARNING, Level.INFO  # noqa: E741 - the levels by their letters, in a table
RED: list[tuple[str, Rule, ClusterFacts, Level, str]] = [
    ("an old broker", B.versions, without(doctor.VERIFICATION, doctor.NEW_IN_SUPPORTED), E, "before 3.6"),
    ("a broker that is not tried", B.versions, without(doctor.NEW_IN_SUPPORTED), W, "older than 3.9"),
    ("a broker that tells nothing", B.versions, without(*SETTINGS), I, "may not read"),
    ("no verification", B.verification, with_broker(transaction_partition_verification_enable="false"), E, "P2"),
    (
        "a time-out that is not allowed",
        B.transaction_timeout,
        with_broker(transaction_max_timeout_ms="9999"),
        E,
        "no coordinator can begin",
    ),
    (
        "a slow sweep",
        B.transaction_timeout,
        with_broker(transaction_abort_timed_out_transaction_cleanup_interval_ms="10000"),
        W,
        "10 s longer",
    ),
    (
        "ids that expire",
        B.transaction_timeout,
        with_broker(transactional_id_expiration_ms="60000"),
        W,
        "loses its producers",
    ),
    ("a session too short", B.session_timeout, with_broker(group_min_session_timeout_ms="10000"), E, "can join"),
    ("offsets that are forgotten", B.offsets, with_broker(offsets_retention_minutes="60"), W, "1 h"),
    ("metadata that does not fit", B.offsets, with_broker(offset_metadata_max_bytes="1024"), W, "1024"),
    ("topics that make themselves", B.auto_creation, with_broker(auto_create_topics_enable="true"), W, "mistypes"),
    (
        "one replica of the offsets",
        B.internal_topics,
        replace(HEALTHY, internal_topics=(topic("__consumer_offsets", replicas=1),)),
        E,
        "1 replica on 3 brokers",
    ),
    (
        "offsets that are deleted by age",
        B.internal_topics,
        replace(HEALTHY, internal_topics=(topic("__consumer_offsets"),)),
        E,
        "cleanup.policy",
    ),
    ("a missing topic", T.settings, replace(HEALTHY, changes=(CreateTopic("ns.half", 8, None, {}, ""),)), E, "missing"),
    (
        "a setting that differs",
        T.settings,
        replace(HEALTHY, changes=(AlterSetting("ns.half", "retention.ms", "1", "2", "why"),)),
        E,
        "must be 2",
    ),
    (
        "partitions that differ",
        T.settings,
        replace(HEALTHY, changes=(Difference("ns.op", "partitions", "4", "8", "why"),)),
        E,
        "must be 8",
    ),
    ("one replica", T.replication, replace(HEALTHY, topics=(topic("ns.half", replicas=1),)), E, "P1"),
    (
        "one broker",
        T.replication,
        replace(HEALTHY, brokers=(broker(),), topics=(topic("ns.half", replicas=1),)),
        W,
        "1 replica, because the cluster has 1 broker:",
    ),
    ("one in sync is enough", T.in_sync, with_half(min_insync_replicas="1"), E, "one broker alone"),
    ("all must be in sync", T.in_sync, with_half(min_insync_replicas="3"), W, "stops all writers"),
    ("unclean leaders", T.in_sync, with_half(unclean_leader_election_enable="true"), E, "not in sync"),
    ("a replica behind", T.in_sync, with_topic(in_sync=((1, 2), (2, 3, 1), (3, 1, 2))), W, "partitions 0"),
    ("too few in sync", T.in_sync, with_topic(in_sync=((1,), (2, 3, 1), (3, 1, 2))), E, "take no records"),
    ("half kept too short", T.retention, with_half(retention_ms=str(DAY_MS)), E, "kept for 1 d"),
    ("half kept shorter than an immunity", T.retention, with_half(retention_ms=str(5 * DAY_MS)), W, "7 d"),
    ("no leader", T.leaders, with_topic(leaders=(None, 2, 3)), E, "partitions 0 have no leader"),
    (
        "no first offsets stored",
        T.settings,
        replace(HEALTHY, changes=(StoreFirstOffsets("ns.op", "ns.coordinator", (0, 1), "why"),)),
        E,
        "no offsets stored",
    ),
    (
        "no offsets stored",
        T.settings,
        replace(HEALTHY, changes=(Difference("ns.op", "offsets stored for ns.coordinator", "0 of 8", "every", "why"),)),
        E,
        "0 of 8",
    ),
    (
        "a widening was interrupted",
        T.settings,
        replace(
            HEALTHY,
            changes=(
                Difference(
                    "ns.op", "offsets stored for ns.coordinator", "4 of 8", "every", "why", is_widening_interrupted=True
                ),
            ),
        ),
        E,
        "4 of 8",
    ),
    (
        "a hot key",
        T.skew,
        replace(HEALTHY, partitions=(part(0, half_end=40_000), *(part(n, half_end=10) for n in range(1, 5)))),
        W,
        "ordering key",
    ),
    ("a real topic that is not there", T.real_topics, replace(HEALTHY, missing_real_topics=("gone",)), E, "held"),
    (
        "a real topic that takes less",
        T.message_bytes,
        replace(HEALTHY, real_topics=(topic("orders", max_message_bytes="1000"),)),
        W,
        "too-large",
    ),
    ("no coordinator", P.group, replace(HEALTHY, group=EMPTY), E, "no coordinator runs"),
    ("a rebalance", P.group, replace(HEALTHY, group=members("preparing_rebalancing", 2)), W, "given out"),
    ("a partition of nobody", P.group, with_part(owner=""), E, "no member owns partitions 0"),
    ("one coordinator", P.group, replace(HEALTHY, group=ALONE), W, "one member"),
    ("coordinators without work", P.group, replace(HEALTHY, group=members("stable", 4)), I, "nothing to do"),
    ("resolutions and nobody to apply them", P.lag, replace(with_part(op_next=90), group=EMPTY), E, "10 op records"),
    ("a long queue", P.lag, with_part(op_end=200_000), W, "199,900"),
    ("half records that are gone", P.log_start, with_part(half_start=101), E, "low water is 100"),
    ("op records that are gone", P.log_start, with_part(op_start=101), E, "next to apply is 100"),
    (
        "an old transaction in half",
        P.low_water,
        with_part(low_water=9, low_water_ms=10 * DAY_MS - 400_000),
        W,
        "6 min 40 s",
    ),
    ("a transaction that retention takes", P.low_water, with_part(low_water=9, low_water_ms=6 * DAY_MS), E, "P1"),
    ("a long way to read again", P.low_water, with_part(half_end=2_000_000), W, "1,999,900"),
    (
        "a clock ahead",
        R.clock,
        replace(HEALTHY, clock=ClockFacts(3_000, 3_010)),
        W,
        "ahead of this machine's by at least 3 s",
    ),
    (
        "a clock far behind",
        R.clock,
        replace(HEALTHY, clock=ClockFacts(-99_000, -90_000)),
        E,
        "behind this machine's by at least 1 min 30 s",
    ),
    ("a clock known from one side", R.clock, replace(HEALTHY, clock=ClockFacts(-50, None)), I, "not known"),
    ("a clock that is not known", R.clock, replace(HEALTHY, clock=ClockFacts(None, None)), I, "no record"),
    (
        "a right that is missing",
        R.rights,
        replace(HEALTHY, rights=(Right("coordinator", "Write", "topic", "ns.doubt", False),)),
        E,
        "Write is refused",
    ),
    (
        "another role's right",
        R.rights,
        replace(HEALTHY, rights=(Right("producer", "Write", "topic", "ns.half", False),)),
        W,
        "Write is refused",
    ),
    ("what was not told", R.untold, replace(HEALTHY, untold={"settings of broker 1": "SASL"}), I, "SASL"),
]


def worst(rule: Rule, facts: ClusterFacts) -> ClusterFinding:
    order = list(Level)
    return min(rule(facts, CONFIG), key=lambda f: order.index(f.level))


@pytest.mark.parametrize(("rule", "facts", "level", "word"), [r[1:] for r in RED], ids=[r[0] for r in RED])
def test_a_fault_is_found_with_its_reason_and_what_mends_it(
    rule: Rule, facts: ClusterFacts, level: Level, word: str
) -> None:
    found = worst(rule, facts)

    assert level is found.level
    assert word in found.reason
    assert level is Level.INFO or found.mend


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_healthy_cluster_is_green(rule: Rule) -> None:
    assert [] == [f for f in rule(HEALTHY, CONFIG) if f.level is not Level.OK]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_where_nothing_was_told_nothing_is_an_error(rule: Rule) -> None:
    mute = topic("ns.half")
    untold = replace(
        HEALTHY,
        brokers=(BrokerFacts(1, {}), BrokerFacts(2, {}), BrokerFacts(3, {})),
        topics=(replace(mute, settings={}),),
        internal_topics=(),
        partitions=(),
        group=None,
        real_topics=(replace(topic("orders"), settings={}),),
    )
    unstored = replace(untold, partitions=(part(0, low_water=None, op_next=None),))

    found = [*rule(untold, CONFIG), *rule(unstored, CONFIG)]

    assert [] == [f for f in found if f.level in (Level.ERROR, Level.WARNING)]


def test_an_interrupted_widening_is_ended_and_not_reset() -> None:
    what = "offsets stored for ns.coordinator"
    change = Difference("ns.op", what, "4 of 8", "every", "whatever it says", is_widening_interrupted=True)
    other = replace(change, is_widening_interrupted=False, why="no widening")
    behind = Difference("ns.op", "partitions", "4", "8", "whatever it says", is_widening_interrupted=True)

    mends = [worst(doctor.settings, replace(HEALTHY, changes=(each,))).mend for each in (change, other, behind)]

    assert "txlayer topics widen --namespace ns --partitions 8" == mends[0] == mends[2]
    assert "txlayer coordinator reset --namespace ns --to earliest" == mends[1]


def test_partitions_that_are_alike_are_green() -> None:
    even = replace(HEALTHY, partitions=tuple(part(n, half_end=20_000) for n in range(3)))

    (found,) = doctor.skew(even, CONFIG)

    assert Level.OK is found.level


def test_half_that_is_kept_for_ever_is_green() -> None:
    found = list(doctor.retention(with_half(retention_ms="-1"), CONFIG))

    assert [Level.OK, Level.OK] == [f.level for f in found]
    assert "kept for ever" == found[0].reason


def test_brokers_that_cannot_be_asked_for_one_time_out_are_asked_for_the_others() -> None:
    settings = {k: v for k, v in SETTINGS.items() if k != "transaction.max.timeout.ms"}
    facts = replace(HEALTHY, brokers=(BrokerFacts(1, settings),))

    assert [] == list(doctor.transaction_timeout(facts, CONFIG))


def test_every_rule_has_a_fault_that_it_finds() -> None:
    tried: set[Callable[..., object]] = {rule for _, rule, _, _, _ in RED}

    assert [] == [rule.__name__ for rule in RULES if rule not in tried]


def test_warnings_count_when_they_are_asked_to() -> None:
    warned = examine(replace(HEALTHY, group=ALONE), CONFIG)
    ill = examine(replace(HEALTHY, group=EMPTY), CONFIG)

    assert (False, True) == (is_ill(warned, is_strict=False), is_ill(warned, is_strict=True))
    assert is_ill(ill, is_strict=False)
    assert not is_ill(examine(HEALTHY, CONFIG), is_strict=True)


def test_the_span_of_check_backs_is_the_sum_of_their_pauses() -> None:
    short = CoordinatorConfig(
        check_immunity=timedelta(milliseconds=6),
        check_interval=timedelta(milliseconds=30),
        check_interval_max=timedelta(milliseconds=100),
        check_max=4,
    )

    assert 6 + 30 + 60 + 100 + 100 == doctor.check_span_ms(short)
