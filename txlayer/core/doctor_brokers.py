"""Rules about brokers: release, features, time-outs, their own topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from txlayer.core.cluster_facts import BrokerFacts, ClusterFacts, Limits
from txlayer.core.doctor_findings import Finding, Level, counted, fine, length

RELEASES = (
    (7, "3.3"), (8, "3.4"), (9, "3.5"), (12, "3.6"), (15, "3.7"), (20, "3.8"), (21, "3.9"), (22, "4.0"), (26, "4.1"),
    (28, "4.2"), (30, "4.3"), (31, "4.4"),
)  # fmt: skip
"""(first level of `metadata.version`, release). Source: Apache Kafka, MetadataVersion."""
VERIFIED_LEVEL = 12
"""3.6: the first release that refuses records of a Kafka transaction which the coordinator does not know (KIP-890, part 1)."""
SUPPORTED_LEVEL = 21
"""3.9: the oldest release that txlayer is tested with (`make kafkas`)."""
TRANSACTION_VERSION = 2
SWEEP_MAX_MS = 2_000
"""A dead coordinator's Kafka transaction may block readers for so much longer than its time-out."""
ID_EXPIRATION_MIN_MS = 3_600_000
"""A coordinator without traffic stores its position once a minute; this leaves room for a long pause."""


def release_of(level: int) -> str:
    """The release that knows this level of `metadata.version`; "newer than …" beyond those known here."""
    name = "older than 3.3"
    for first, release in RELEASES:
        if level >= first:
            name = release
    return name if level <= RELEASES[-1][0] else f"newer than {RELEASES[-1][1]}"


def versions(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """Every broker new enough, and all alike."""
    check = "broker.version"
    known = {b.broker_id: b.metadata_level_max for b in facts.brokers}
    levels = {level for level in known.values() if level is not None}
    for broker_id, level in known.items():
        about = f"broker {broker_id}"
        if level is None:
            yield Finding(check, Level.INFO, about, "it did not tell its features, so its release is not known")  # fmt: skip
        elif level < VERIFIED_LEVEL:
            reason = f"Kafka {release_of(level)} keeps records of Kafka transactions that nobody began (KAFKA-14402)"
            yield Finding(check, Level.ERROR, about, reason, "upgrade the brokers to 4.0 or later")
        elif level < SUPPORTED_LEVEL:
            reason = f"Kafka {release_of(level)} is older than {release_of(SUPPORTED_LEVEL)}, the oldest that txlayer is tested with"
            yield Finding(
                check, Level.WARNING, about, reason, "upgrade the brokers to 4.0 or later"
            )
        else:
            yield fine(check, about, f"Kafka {release_of(level)}")
    if len(levels) > 1:
        shown = ", ".join(release_of(level) for level in sorted(levels))
        yield Finding(
            check, Level.WARNING, "cluster", f"brokers of different releases: {shown}", "finish the upgrade"
        )  # fmt: skip


def transaction_version(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """KIP-890 in force."""
    check = "broker.transaction-version"
    for broker in facts.brokers:
        about = f"broker {broker.broker_id}"
        if broker.features is None:
            continue  # said by `versions`
        level = broker.features.get("transaction.version", 0)
        if level >= TRANSACTION_VERSION:
            yield fine(check, about, f"transaction.version={level}")
        else:
            reason = f"transaction.version={level}: the brokers do not defend Kafka transactions as KIP-890 says"
            yield Finding(
                check, Level.WARNING, about, reason,
                f"kafka-features.sh --bootstrap-server HOST:PORT upgrade --feature transaction.version={TRANSACTION_VERSION}",
            )  # fmt: skip


def verification(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """Brokers verify that a Kafka transaction was begun."""
    name = "transaction.partition.verification.enable"
    for broker in facts.brokers:
        if broker.settings.get(name) == "false":
            yield Finding(
                "broker.verification", Level.ERROR, f"broker {broker.broker_id}",
                f"{name}=false: a late record may become part of a Kafka transaction that it does not belong to (P2, P5)",
                _alter(broker, name, "true"),
            )  # fmt: skip
        elif name in broker.settings:
            yield fine("broker.verification", f"broker {broker.broker_id}", f"{name}=true")


def transaction_timeout(facts: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """The coordinators' time-out is allowed, and hanging Kafka transactions are swept soon."""
    check = "broker.transaction-timeout"
    for broker in facts.brokers:
        about = f"broker {broker.broker_id}"
        most = _number(broker.settings, "transaction.max.timeout.ms")
        if most is not None and most < limits.kafka_transaction_timeout_ms:
            reason = f"transaction.max.timeout.ms={most} is below kafka_transaction_timeout: no coordinator can begin"
            yield Finding(check, Level.ERROR, about, reason, f"TXLAYER_KAFKA_TRANSACTION_TIMEOUT={most}ms, or {_alter(broker, 'transaction.max.timeout.ms', '900000')}")  # fmt: skip
        elif most is not None:
            yield fine(check, about, f"transaction.max.timeout.ms={most}")
        sweep_name = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        sweep = _number(broker.settings, sweep_name)
        if sweep is not None and sweep > SWEEP_MAX_MS:
            reason = f"a Kafka transaction of a dead producer may block readers {length(sweep)} longer than its time-out"
            yield Finding(check, Level.WARNING, about, reason, f"{sweep_name}=1000 in server.properties")  # fmt: skip
        kept = _number(broker.settings, "transactional.id.expiration.ms")
        if kept is not None and kept < ID_EXPIRATION_MIN_MS:
            reason = f"transactional.id.expiration.ms={kept}: a coordinator that pauses for so long loses its producers"
            yield Finding(check, Level.WARNING, about, reason, "transactional.id.expiration.ms=604800000 in server.properties")  # fmt: skip


def session_timeout(facts: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """The group's session time-out lies between the brokers' bounds."""
    check = "broker.session-timeout"
    for broker in facts.brokers:
        least = _number(broker.settings, "group.min.session.timeout.ms")
        most = _number(broker.settings, "group.max.session.timeout.ms")
        if least is None or most is None:
            continue
        about, asked = f"broker {broker.broker_id}", limits.session_timeout_ms
        if least <= asked <= most:
            yield fine(check, about, f"session_timeout {length(asked)} is allowed")
        else:
            reason = f"session_timeout {length(asked)} is not between {least} and {most} ms: no coordinator can join"
            bound = least if asked < least else most
            yield Finding(check, Level.ERROR, about, reason, f"TXLAYER_SESSION_TIMEOUT={bound}ms")


def offsets(facts: ClusterFacts, limits: Limits) -> Iterator[Finding]:
    """Stored offsets outlive an outage, and their metadata fits."""
    check = "broker.offsets"
    for broker in facts.brokers:
        about = f"broker {broker.broker_id}"
        minutes = _number(broker.settings, "offsets.retention.minutes")
        most = _number(broker.settings, "offset.metadata.max.bytes")
        is_fine = True
        if minutes is not None and minutes * 60_000 < limits.longest_ms:
            is_fine = False
            reason = (
                f"offsets of a group without members are kept for {length(minutes * 60_000)}, a transaction may be open for "
                f"{length(limits.longest_ms)}: after an outage of that length no coordinator starts"
            )
            yield Finding(check, Level.WARNING, about, reason, "offsets.retention.minutes=10080 in server.properties")  # fmt: skip
        if most is not None and most < limits.metadata_bytes_max:
            is_fine = False
            reason = f"offset.metadata.max.bytes={most}: consumers' progress is allowed {limits.metadata_bytes_max}"
            yield Finding(check, Level.WARNING, about, reason, f"TXLAYER_METADATA_BYTES_MAX={most}")
        if is_fine and minutes is not None:
            yield fine(check, about, f"kept for {length(minutes * 60_000)}")


def auto_creation(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """A mistyped topic must not come into being."""
    name = "auto.create.topics.enable"
    for broker in facts.brokers:
        if broker.settings.get(name) == "true":
            yield Finding(
                "broker.auto-creation", Level.WARNING, f"broker {broker.broker_id}",
                f"{name}=true: a client that mistypes a topic creates it with one partition",
                f"{name}=false in server.properties",
            )  # fmt: skip
        elif name in broker.settings:
            yield fine("broker.auto-creation", f"broker {broker.broker_id}", f"{name}=false")


def internal_topics(facts: ClusterFacts, _limits: Limits) -> Iterator[Finding]:
    """Offsets and Kafka transactions survive the loss of a broker."""
    check = "broker.internal-topics"
    enough = min(3, len(facts.brokers))
    for topic in facts.internal_topics:
        if topic.replication_factor < enough:
            reason = f"{counted(topic.replication_factor, 'replica')} on {counted(len(facts.brokers), 'broker')}: with one of them stored offsets and Kafka transactions are gone"
            yield Finding(check, Level.ERROR, topic.name, reason, "kafka-reassign-partitions.sh with 3 replicas")  # fmt: skip
        elif "delete" in topic.settings.get("cleanup.policy", ""):
            reason = (
                "cleanup.policy deletes: stored offsets or Kafka transactions are forgotten by age"
            )
            yield Finding(
                check, Level.ERROR, topic.name, reason,
                f"kafka-configs.sh --bootstrap-server HOST:PORT --alter --topic {topic.name} --add-config cleanup.policy=compact",
            )  # fmt: skip
        else:
            yield fine(check, topic.name, counted(topic.replication_factor, "replica"))


def _number(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _alter(broker: BrokerFacts, name: str, value: str) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server HOST:PORT --alter --broker {broker.broker_id} --add-config {name}={value}"
    )  # fmt: skip
