"""Rules about topics: the namespace's against topics/, their replicas and leaders, and the real topics behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from txlayer.core.cluster_facts import ClusterFacts, Limits
from txlayer.core.doctor_findings import Finding, Level, counted, fine, length
from txlayer.core.target import FORWARD_OVERHEAD_BYTES
from txlayer.core.topicspec import AlterSetting, CreateTopic, StoreFirstOffsets

REPLICAS = 3
"""With two in sync one broker may be down and another one die."""
SKEW_TIMES = 3
"""A half partition with so many times the mean's records has a hot ordering key."""
SKEW_COUNT_MIN = 10_000
"""Below it chance alone makes partitions unequal."""


def settings(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """The topics are as topics/ says: `txlayer topics check`."""
    check = "topics.settings"
    apply = f"txlayer topics apply --namespace {facts.namespace}"
    for change in facts.changes:
        if isinstance(change, CreateTopic):
            yield Finding(check, Level.ERROR, change.topic, "missing", apply)
        elif isinstance(change, AlterSetting):
            reason = f"{change.setting}={change.found}, must be {change.wanted}: {change.why}"
            yield Finding(check, Level.ERROR, change.topic, reason, apply)
        elif isinstance(change, StoreFirstOffsets):
            reason = f"no offsets stored for {change.group}: {change.why}"
            yield Finding(check, Level.ERROR, change.topic, reason, apply)
        else:
            reason = f"{change.what}: {change.found}, must be {change.wanted}: {change.why}"
            mend = "by hand; txlayer changes nothing that could lose a record"
            if change.what.startswith("offsets"):
                mend = f"txlayer coordinator reset --namespace {facts.namespace} --to earliest"
            yield Finding(check, Level.ERROR, change.topic, reason, mend)
    if not facts.changes:
        yield fine(check, facts.namespace, "every topic is as topics/ says")


def replication(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """Replicas enough to survive a broker."""
    check = "topics.replication"
    brokers = len(facts.brokers)
    for topic in (*facts.topics, *facts.real_topics):
        found = topic.replication_factor
        if found >= REPLICAS:
            yield fine(check, topic.name, f"{found} replicas")
        elif found < min(brokers, REPLICAS):
            reason = f"{counted(found, 'replica')} on {counted(brokers, 'broker')}: acknowledged records are gone with one of them (P1)"
            level = Level.ERROR if brokers >= REPLICAS else Level.WARNING
            yield Finding(check, level, topic.name, reason, f"kafka-reassign-partitions.sh with {counted(min(brokers, REPLICAS), 'replica')}")  # fmt: skip
        else:
            reason = f"{counted(found, 'replica')}, because the cluster has {counted(brokers, 'broker')}: what a lost disk held is gone"
            yield Finding(check, Level.WARNING, topic.name, reason, "three brokers, then kafka-reassign-partitions.sh")  # fmt: skip


def in_sync(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """min.insync.replicas protects, does not stop everything, and is met."""
    check = "topics.in-sync"
    for topic in (*facts.topics, *facts.real_topics):
        least, replicas = topic.number("min.insync.replicas"), topic.replication_factor
        alter = f"kafka-configs.sh --bootstrap-server HOST:PORT --alter --topic {topic.name} --add-config min.insync.replicas=2"
        found = []
        if least is not None and replicas >= REPLICAS and least < 2:
            reason = f"min.insync.replicas={least}: one broker alone may acknowledge, and take it with it (P1)"
            mend = f"txlayer topics apply --namespace {facts.namespace}" if topic in facts.topics else alter  # fmt: skip
            found.append(Finding(check, Level.ERROR, topic.name, reason, mend))
        if least is not None and replicas > 1 and least >= replicas:
            reason = f"min.insync.replicas={least} of {replicas} replicas: any broker that restarts stops all writers"
            found.append(Finding(check, Level.WARNING, topic.name, reason, alter))
        if topic.settings.get("unclean.leader.election.enable") == "true":
            reason = "unclean leaders are allowed: one that was not in sync has lost acknowledged records (P1)"
            mend = alter.replace("min.insync.replicas=2", "unclean.leader.election.enable=false")
            found.append(Finding(check, Level.ERROR, topic.name, reason, mend))
        behind = [p for p, r in enumerate(topic.replicas) if len(topic.in_sync[p]) < len(r)]
        below = [p for p in behind if len(topic.in_sync[p]) < (least or 1)]
        if behind:
            reason = f"replicas are not in sync in partitions {_few(behind)}"
            if below:
                reason += f"; {_few(below)} take no records (min.insync.replicas={least})"
            mend = "start the brokers that are missing, or wait until they have caught up"
            found.append(Finding(check, Level.ERROR if below else Level.WARNING, topic.name, reason, mend))  # fmt: skip
        yield from found or [fine(check, topic.name, f"min.insync.replicas={least}, all in sync")]


def retention(facts: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Half and op outlive the longest transaction; check outlives the longest pause between two questions."""
    check = "topics.retention"
    for name in (facts.half, facts.op):
        topic = facts.topic(name)
        kept = None if topic is None else topic.number("retention.ms")
        if kept is None:
            continue
        if kept == -1 or kept >= max(limits.longest_ms, limits.immunity_max_ms):
            yield fine(check, name, "kept for ever" if kept == -1 else f"kept for {length(kept)}")
            continue
        is_short = kept < limits.longest_ms
        most = limits.longest_ms if is_short else limits.immunity_max_ms
        what = (
            f"a transaction may be undecided for {length(most)} (transaction_age_max, check_immunity, check_max)"
            if is_short
            else f"a producer may ask for an immunity of {length(most)}"
        )
        yield Finding(
            check, Level.ERROR if is_short else Level.WARNING, name,
            f"kept for {length(kept)}, but {what}: after an outage of that length undecided messages are gone (P1)",
            f"txlayer topics apply --namespace {facts.namespace}, or a shorter TXLAYER_TRANSACTION_AGE_MAX",
        )  # fmt: skip


def leaders(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """Every partition has a leader, and brokers share them."""
    check = "partitions.leaders"
    for topic in (*facts.topics, *facts.real_topics):
        orphans = [p for p, leader in enumerate(topic.leaders) if leader is None]
        moved = [
            p for p, leader in enumerate(topic.leaders)
            if leader is not None and topic.replicas[p] and leader != topic.replicas[p][0]
        ]  # fmt: skip
        counts = Counter({b.broker_id: 0 for b in facts.brokers})
        counts.update(leader for leader in topic.leaders if leader is not None)
        spread = max(counts.values(), default=0) - min(counts.values(), default=0)
        is_even = spread <= 1 or len(topic.leaders) < len(facts.brokers)
        if orphans:
            reason = f"partitions {_few(orphans)} have no leader: nobody reads or writes them"
            yield Finding(check, Level.ERROR, topic.name, reason, "start the brokers that hold their replicas")  # fmt: skip
        if moved and not is_even:
            reason = f"leaders {_shares(counts)}: partitions {_few(moved)} are not led by their preferred broker"
            yield Finding(
                check, Level.WARNING, topic.name, reason,
                f"kafka-leader-election.sh --bootstrap-server HOST:PORT --election-type preferred --topic {topic.name} --partition N",
            )  # fmt: skip
        elif not is_even:
            reason = f"leaders {_shares(counts)}: one broker does the others' work"
            yield Finding(check, Level.WARNING, topic.name, reason, "kafka-reassign-partitions.sh")
        elif not orphans:
            yield fine(check, topic.name, f"leaders {_shares(counts)}")


def skew(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """Transactions are spread over the half partitions."""
    check = "partitions.skew"
    counts = {p.partition: p.half_end - p.half_start for p in facts.partitions}
    total = sum(counts.values())
    if total < SKEW_COUNT_MIN:
        return
    mean = total / len(counts)
    heavy = [p for p, count in counts.items() if count > SKEW_TIMES * mean]
    if heavy:
        shown = ", ".join(f"{p}: {counts[p]:,}" for p in heavy[:5])
        reason = f"partitions hold {mean:,.0f} records on average, but {shown}: an ordering key is used too often"
        yield Finding(check, Level.WARNING, facts.half, reason, "finer ordering keys: all of one key's transactions share a partition")  # fmt: skip
    else:
        yield fine(check, facts.half, f"{mean:,.0f} records per partition, at most {max(counts.values()):,}")  # fmt: skip


def real_topics(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """The topics that messages go to are there."""
    check = "targets.missing"
    for name in facts.missing_real_topics:
        reason = "half messages name it, and it is not there: their transactions are held"
        yield Finding(check, Level.ERROR, name, reason, f"kafka-topics.sh --bootstrap-server HOST:PORT --create --topic {name}")  # fmt: skip
    if facts.real_topics and not facts.missing_real_topics:
        yield fine(check, counted(len(facts.real_topics), "topic"), "all are there")


def message_bytes(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """What half takes, the real topic takes too."""
    check = "targets.message-bytes"
    half = facts.topic(facts.half)
    stored = None if half is None else half.number("max.message.bytes")
    for topic in facts.real_topics:
        most = topic.number("max.message.bytes")
        if stored is None or most is None:
            continue
        # Our two headers are in the real record, ours of half is as long: an equal limit is nearly enough.
        if most < stored:
            reason = f"max.message.bytes={most}, half takes {stored}: what lies between is stored, committed and then parked as too-large"
            yield Finding(
                check, Level.WARNING, topic.name, reason,
                f"kafka-configs.sh --bootstrap-server HOST:PORT --alter --topic {topic.name} --add-config max.message.bytes={stored + FORWARD_OVERHEAD_BYTES}",
            )  # fmt: skip
        else:
            yield fine(check, topic.name, f"max.message.bytes={most}")


def _shares(counts: Counter[int]) -> str:
    return ", ".join(f"broker {broker}: {count}" for broker, count in sorted(counts.items()))


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, …" if len(numbers) > 8 else shown
