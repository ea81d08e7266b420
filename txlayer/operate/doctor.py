"""Facts about a cluster become findings: what they mean for txlayer, and the command that mends it. A rule per function.

A rule that finds nothing wrong says so, so that the reader sees what was looked at. docs/howto/doctor.md explains each.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

from txlayer.adapters.ports import ClusterFacts
from txlayer.config import ConsumerConfig, CoordinatorConfig, SystemTopics, milliseconds
from txlayer.core.checks import CLOCK_ERROR_MS, IMMUNITY_MS_MAX
from txlayer.core.ledger.transaction import FORWARD_OVERHEAD_BYTES
from txlayer.core.topics import AlterSetting, CreateTopic, StoreFirstOffsets, setting_number
from txlayer.operate import length_text


def check_span_ms(config: CoordinatorConfig) -> int:
    """Time from the first half message to the last check-back, if each is answered with unknown."""
    first_ms, most_ms = milliseconds(config.check_interval), milliseconds(config.check_interval_max)
    pauses_ms = (min(first_ms << number, most_ms) for number in range(config.check_max))
    return milliseconds(config.check_immunity) + sum(pauses_ms)


def longest_ms(config: CoordinatorConfig) -> int:
    """Longest time that a transaction may be undecided before its policy acts."""
    return max(check_span_ms(config), milliseconds(config.transaction_age_max + config.check_immunity))


class Level(Enum):
    """How bad it is."""

    ERROR = "error"  #: a promise does not hold, or nothing works; exit code 1
    WARNING = "warning"  #: works today, hurts one day; exit code 1 with --strict
    INFO = "info"  #: could not be found out, or good to know
    OK = "ok"  #: looked at, in order


class ClusterFinding(NamedTuple):
    """One line of the table."""

    check: str  # a name that scripts may rely on: area.subject; a rule leaves it to `examine`
    level: Level
    about: str  # broker 1, a topic, a group, …
    reason: str
    mend: str = ""  # a command, or what to do; "" where nothing is to be done


error = partial(ClusterFinding, "", Level.ERROR)
warning = partial(ClusterFinding, "", Level.WARNING)
info = partial(ClusterFinding, "", Level.INFO)
ok = partial(ClusterFinding, "", Level.OK)


def counted(count: int, noun: str) -> str:
    """So many of something: 1 replica, 3 replicas."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


VERIFICATION = "transaction.partition.verification.enable"
"""Since 3.6, the first release that refuses records of a Kafka transaction which the coordinator does not know (KIP-890, part 1)."""
NEW_IN_SUPPORTED = "controller.quorum.bootstrap.servers"
"""Since 3.9 (KIP-853), the oldest release that txlayer is tested with (`make kafkas`)."""
SWEEP_MAX_MS = 2_000  # a dead coordinator's Kafka transaction may block readers for so much longer than its time-out
METADATA_BYTES_MAX = ConsumerConfig().metadata_bytes_max
ID_EXPIRATION_MIN_MS = 3_600_000
"""A coordinator without traffic stores its position once a minute; this leaves room for a long pause."""


def versions(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """Every broker new enough, as the settings say that it knows."""
    for broker in facts.brokers:
        about = f"broker {broker.broker_id}"
        if not broker.settings:
            yield info(about, "these credentials may not read its settings, so its release is not known")
        elif VERIFICATION not in broker.settings:
            reason = "a Kafka before 3.6 keeps records of Kafka transactions that no client began (KAFKA-14402)"
            yield error(about, reason, "upgrade the brokers to 4.0 or later")
        elif NEW_IN_SUPPORTED not in broker.settings:
            reason = "its Kafka is older than 3.9, the oldest that txlayer is tested with"
            yield warning(about, reason, "upgrade the brokers to 4.0 or later")
        else:
            yield ok(about, "Kafka 3.9 or later")


def verification(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """Brokers verify that a Kafka transaction was begun."""
    for about, value in _with_setting(facts, VERIFICATION):
        if value == "false":
            reason = f"{VERIFICATION}=false: a late record may become part of a Kafka transaction that it does not belong to (P2, P5)"
            yield error(about, reason, _alter(f"--{about}", VERIFICATION, "true"))
        else:
            yield ok(about, f"{VERIFICATION}=true")


def transaction_timeout(facts: ClusterFacts, config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """The coordinators' time-out is allowed, and hanging Kafka transactions are swept soon."""
    for broker in facts.brokers:
        about = f"broker {broker.broker_id}"
        most = setting_number(broker.settings, "transaction.max.timeout.ms")
        if most is not None and most < milliseconds(config.kafka_transaction_timeout):
            reason = f"transaction.max.timeout.ms={most} is below kafka_transaction_timeout: no coordinator can begin"
            mend = f"TXLAYER_KAFKA_TRANSACTION_TIMEOUT={most}ms, or {_alter(f'--{about}', 'transaction.max.timeout.ms', 900_000)}"
            yield error(about, reason, mend)
        elif most is not None:
            yield ok(about, f"transaction.max.timeout.ms={most}")
        sweep_name = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        sweep = setting_number(broker.settings, sweep_name)
        if sweep is not None and sweep > SWEEP_MAX_MS:
            reason = f"a Kafka transaction of a dead producer may block readers {length_text(sweep)} longer than its time-out"
            yield warning(about, reason, f"{sweep_name}=1000 in server.properties")
        kept = setting_number(broker.settings, "transactional.id.expiration.ms")
        if kept is not None and kept < ID_EXPIRATION_MIN_MS:
            reason = f"transactional.id.expiration.ms={kept}: a coordinator that pauses for so long loses its producers"
            mend = "transactional.id.expiration.ms=604800000 in server.properties"
            yield warning(about, reason, mend)


def session_timeout(facts: ClusterFacts, config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """The group's session time-out lies between the brokers' bounds."""
    for broker in facts.brokers:
        least = setting_number(broker.settings, "group.min.session.timeout.ms")
        most = setting_number(broker.settings, "group.max.session.timeout.ms")
        if least is None or most is None:
            continue
        about, asked = f"broker {broker.broker_id}", milliseconds(config.session_timeout)
        if least <= asked <= most:
            yield ok(about, f"session_timeout {length_text(asked)} is allowed")
        else:
            reason = (
                f"session_timeout {length_text(asked)} is not between {least} and {most} ms: no coordinator can join"
            )
            bound = least if asked < least else most
            yield error(about, reason, f"TXLAYER_SESSION_TIMEOUT={bound}ms")


def offsets(facts: ClusterFacts, config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """Stored offsets outlive an outage, and their metadata fits."""
    for broker in facts.brokers:
        about = f"broker {broker.broker_id}"
        minutes = setting_number(broker.settings, "offsets.retention.minutes")
        most = setting_number(broker.settings, "offset.metadata.max.bytes")
        is_fine = True
        if minutes is not None and minutes * 60_000 < longest_ms(config):
            is_fine = False
            reason = (
                f"offsets of a group without members are kept for {length_text(minutes * 60_000)}, a transaction may be open for "
                f"{length_text(longest_ms(config))}: after an outage of that length no coordinator starts"
            )
            yield warning(about, reason, "offsets.retention.minutes=10080 in server.properties")
        if most is not None and most < METADATA_BYTES_MAX:
            is_fine = False
            reason = f"offset.metadata.max.bytes={most}: consumers' progress is allowed {METADATA_BYTES_MAX}"
            yield warning(about, reason, f"TXLAYER_METADATA_BYTES_MAX={most}")
        if is_fine and minutes is not None:
            yield ok(about, f"kept for {length_text(minutes * 60_000)}")


def auto_creation(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """A mistyped topic must not come into being."""
    name = "auto.create.topics.enable"
    for about, value in _with_setting(facts, name):
        if value == "true":
            reason = f"{name}=true: a client that mistypes a topic creates it with one partition"
            yield warning(about, reason, f"{name}=false in server.properties")
        else:
            yield ok(about, f"{name}=false")


def internal_topics(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """Offsets and Kafka transactions survive the loss of a broker."""
    enough = min(3, len(facts.brokers))
    for topic in facts.internal_topics:
        if topic.replication_factor < enough:
            reason = f"{counted(topic.replication_factor, 'replica')} on {counted(len(facts.brokers), 'broker')}: with one of them stored offsets and Kafka transactions are gone"
            yield error(topic.name, reason, "kafka-reassign-partitions.sh with 3 replicas")
        elif "delete" in topic.settings.get("cleanup.policy", ""):
            reason = "cleanup.policy deletes by age: stored offsets or Kafka transactions are lost"
            yield error(topic.name, reason, _alter(f"--topic {topic.name}", "cleanup.policy", "compact"))
        else:
            yield ok(topic.name, counted(topic.replication_factor, "replica"))


def _with_setting(facts: ClusterFacts, name: str) -> Iterator[tuple[str, str]]:
    """(the broker's name in a finding, the setting), of those that reported it."""
    for broker in facts.brokers:
        if name in broker.settings:
            yield f"broker {broker.broker_id}", broker.settings[name]


def _alter(what: str, name: str, value: object) -> str:
    return f"kafka-configs.sh --bootstrap-server HOST:PORT --alter {what} --add-config {name}={value}"


REPLICAS = 3  # with two in sync one broker may be down and another one die
SKEW_TIMES = 3  # a half partition with so many times the mean's records has a hot ordering key
SKEW_COUNT_MIN = 10_000  # below it chance alone makes partitions unequal


def settings(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    apply = f"txlayer topics apply --namespace {facts.namespace}"
    for change in facts.changes:
        if isinstance(change, CreateTopic):
            yield error(change.topic, "missing", apply)
        elif isinstance(change, AlterSetting):
            reason = f"{change.setting}={change.found}, must be {change.wanted}: {change.why}"
            yield error(change.topic, reason, apply)
        elif isinstance(change, StoreFirstOffsets):
            reason = f"no offsets stored for {change.group}: {change.why}"
            yield error(change.topic, reason, apply)
        else:
            reason = f"{change.what}: {change.found}, must be {change.wanted}: {change.why}"
            mend = "by hand; txlayer changes nothing that could lose a record"
            is_of_offsets = change.what.startswith("offsets")
            if change.is_widening_interrupted:
                count = change.found.rpartition(" ")[2] if is_of_offsets else change.wanted
                mend = f"txlayer topics widen --namespace {facts.namespace} --partitions {count}"
            elif is_of_offsets:
                mend = f"txlayer coordinator reset --namespace {facts.namespace} --to earliest"
            yield error(change.topic, reason, mend)
    if not facts.changes:
        yield ok(facts.namespace, "every topic is as topics/ says")


def replication(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """Replicas enough to survive a broker."""
    brokers = len(facts.brokers)
    for topic in (*facts.topics, *facts.real_topics):
        found = topic.replication_factor
        if found >= REPLICAS:
            yield ok(topic.name, f"{found} replicas")
        elif found < min(brokers, REPLICAS):
            reason = f"{counted(found, 'replica')} on {counted(brokers, 'broker')}: acknowledged records are gone with one of them (P1)"
            mend = f"kafka-reassign-partitions.sh with {counted(min(brokers, REPLICAS), 'replica')}"
            yield (error if brokers >= REPLICAS else warning)(topic.name, reason, mend)
        else:
            reason = f"{counted(found, 'replica')}, because the cluster has {counted(brokers, 'broker')}: what a lost disk held is gone"
            yield warning(topic.name, reason, "three brokers, then kafka-reassign-partitions.sh")


def in_sync(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """min.insync.replicas protects, does not stop everything, and is met."""
    for topic in (*facts.topics, *facts.real_topics):
        least, replicas = setting_number(topic.settings, "min.insync.replicas"), topic.replication_factor
        alter = _alter(f"--topic {topic.name}", "min.insync.replicas", 2)
        found = []
        if least is not None and replicas >= REPLICAS and least < 2:
            reason = f"min.insync.replicas={least}: one broker alone may acknowledge, and take it with it (P1)"
            apply = f"txlayer topics apply --namespace {facts.namespace}"
            found.append(error(topic.name, reason, apply if topic in facts.topics else alter))
        if least is not None and replicas > 1 and least >= replicas:
            reason = f"min.insync.replicas={least} of {replicas} replicas: any broker that restarts stops all writers"
            found.append(warning(topic.name, reason, alter))
        if topic.settings.get("unclean.leader.election.enable") == "true":
            reason = "unclean leaders are allowed: one that was not in sync has lost acknowledged records (P1)"
            mend = _alter(f"--topic {topic.name}", "unclean.leader.election.enable", "false")
            found.append(error(topic.name, reason, mend))
        behind = [p for p, r in enumerate(topic.replicas) if len(topic.in_sync[p]) < len(r)]
        below = [p for p in behind if len(topic.in_sync[p]) < (least or 1)]
        if behind:
            reason = f"replicas are not in sync in partitions {few(behind)}"
            if below:
                reason += f"; {few(below)} take no records (min.insync.replicas={least})"
            mend = "start the brokers that are missing, or wait until they have caught up"
            found.append((error if below else warning)(topic.name, reason, mend))
        yield from found or [ok(topic.name, f"min.insync.replicas={least}, all in sync")]


def retention(facts: ClusterFacts, config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """Half and op outlive the longest transaction; check outlives the longest pause between two questions."""
    for name in (facts.half, facts.op):
        topic = facts.topic(name)
        kept = None if topic is None else setting_number(topic.settings, "retention.ms")
        if kept is None:
            continue
        if kept == -1 or kept >= max(longest_ms(config), IMMUNITY_MS_MAX):
            yield ok(name, "kept for ever" if kept == -1 else f"kept for {length_text(kept)}")
            continue
        if kept < longest_ms(config):
            say, most = error, length_text(longest_ms(config))
            what = f"a transaction may be undecided for {most} (transaction_age_max, check_immunity, check_max)"
        else:
            say, most = warning, length_text(IMMUNITY_MS_MAX)
            what = f"a producer may ask for an immunity of {most}"
        reason = (
            f"kept for {length_text(kept)}, but {what}: after an outage of that length undecided messages are gone (P1)"
        )
        mend = f"txlayer topics apply --namespace {facts.namespace}, or a shorter TXLAYER_TRANSACTION_AGE_MAX"
        yield say(name, reason, mend)


def leaders(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    for topic in (*facts.topics, *facts.real_topics):
        orphans = [p for p, leader in enumerate(topic.leaders) if leader is None]
        if orphans:
            reason = f"partitions {few(orphans)} have no leader: they cannot be read or written"
            yield error(topic.name, reason, "start the brokers that hold their replicas")
        else:
            yield ok(topic.name, "every partition has a leader")


def skew(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """Transactions are spread over the half partitions."""
    counts = {p.partition: p.half_end - p.half_start for p in facts.partitions}
    total = sum(counts.values())
    if total < SKEW_COUNT_MIN:
        return
    mean = total / len(counts)
    heavy = [p for p, count in counts.items() if count > SKEW_TIMES * mean]
    if heavy:
        shown = ", ".join(f"{p}: {counts[p]:,}" for p in heavy[:5])
        reason = f"partitions hold {mean:,.0f} records on average, but {shown}: an ordering key is used too often"
        mend = "finer ordering keys: all of one key's transactions share a partition"
        yield warning(facts.half, reason, mend)
    else:
        yield ok(facts.half, f"{mean:,.0f} records per partition, at most {max(counts.values()):,}")


def real_topics(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """The topics that messages go to are there."""
    for name in facts.missing_real_topics:
        reason = "half messages name it, and it is not there: their transactions are held"
        mend = f"kafka-topics.sh --bootstrap-server HOST:PORT --create --topic {name}"
        yield error(name, reason, mend)
    if facts.real_topics and not facts.missing_real_topics:
        yield ok(counted(len(facts.real_topics), "topic"), "all are there")


def message_bytes(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """What half takes, the real topic takes too."""
    half = facts.topic(facts.half)
    stored = None if half is None else setting_number(half.settings, "max.message.bytes")
    for topic in facts.real_topics:
        most = setting_number(topic.settings, "max.message.bytes")
        if stored is None or most is None:
            continue
        # Our two headers are in the real record, ours of half is as long: an equal limit is nearly enough.
        if most < stored:
            reason = f"max.message.bytes={most}, half takes {stored}: what lies between is stored, committed and then parked as too-large"
            mend = _alter(f"--topic {topic.name}", "max.message.bytes", stored + FORWARD_OVERHEAD_BYTES)
            yield warning(topic.name, reason, mend)
        else:
            yield ok(topic.name, f"max.message.bytes={most}")


def few(found: Sequence[object]) -> str:
    """The first of them, as a text."""
    shown = ", ".join(map(str, found[:8]))
    return f"{shown}, …" if len(found) > 8 else shown


LAG_MAX = 100_000  # op offsets not applied: some seconds of a busy coordinator
SPAN_MAX = 1_000_000  # half offsets that a restart reads again: some ten seconds
LOW_WATER_TIMES = 5
"""A transaction leaves half after `doubt_after`; so many times that is not its age any more, something is stuck."""


def group(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """Coordinators run, and own every partition."""
    found = facts.group
    if found is None:
        return
    run = f"txlayer coordinator run --namespace {facts.namespace}"
    name, count = SystemTopics(facts.namespace).coordinator_group, len(found.members)
    if not count:
        reason = f"no coordinator runs (the group is {found.state}): nothing is forwarded, and no check-back is sent"
        yield error(name, reason, run)
        return
    if found.state not in ("stable", "assigning", "reconciling"):
        reason = f"{counted(count, 'member')}, {found.state}: partitions are just being given out"
        mend = "run doctor again; when it stays so, look at the coordinators' log for sessions that end"
        yield warning(name, reason, mend)
        return
    unowned = [p.partition for p in facts.partitions if not p.owner]
    if unowned:
        reason = f"{counted(count, 'member')}, but no member owns partitions {', '.join(map(str, unowned))}"
        mend = "restart the coordinators; all must be of one release and subscribe alike"
        yield error(name, reason, mend)
    elif count > len(facts.partitions):
        reason = (
            f"{counted(count, 'member')} for {counted(len(facts.partitions), 'partition')}: some have nothing to do"
        )
        yield info(name, reason)
    elif count == 1:
        yield warning(name, "one member: while it is down, nothing is forwarded", run)
    else:
        yield ok(name, f"{count} members own every partition")


def lag(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """Resolutions are applied as they come."""
    lags = {p.partition: p.op_end - p.op_next for p in facts.partitions if p.op_next is not None}
    if not lags:
        return
    total, worst = sum(lags.values()), max(lags, key=lambda p: lags[p])
    is_alone = facts.group is not None and not facts.group.members
    reason = f"{total:,} op records are not applied, {lags[worst]:,} of them in partition {worst}"
    if total and is_alone:
        reason = f"{reason}, and no coordinator runs"
        mend = f"txlayer coordinator run --namespace {facts.namespace}"
        yield error(facts.op, reason, mend)
    elif lags[worst] > LAG_MAX:
        mend = f"txlayer coordinator status --namespace {facts.namespace}; more coordinators, or --workers"
        yield warning(facts.op, reason, mend)
    else:
        yield ok(facts.op, reason)


def log_start(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """What coordinators still have to read is there."""
    gone = []
    for p in facts.partitions:
        if p.low_water is not None and p.low_water < p.half_start:
            gone.append(f"{facts.half}-{p.partition} begins at {p.half_start}, low water is {p.low_water}")
        if p.op_next is not None and p.op_next < p.op_start:
            gone.append(f"{facts.op}-{p.partition} begins at {p.op_start}, the next to apply is {p.op_next}")
    for gap in gone:
        reason = f"{gap}: retention took what was not read (P1); no coordinator starts"
        mend = f"txlayer coordinator reset --namespace {facts.namespace} --to earliest"
        yield error(facts.namespace, reason, mend)
    if facts.partitions and not gone:
        yield ok(facts.namespace, "everything that is still to be read is there")


def low_water(facts: ClusterFacts, config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """No old transaction holds half back."""
    half = facts.topic(facts.half)
    kept = None if half is None else setting_number(half.settings, "retention.ms")
    is_fine = True
    for p in facts.partitions:
        if p.low_water is None:
            continue
        about, span = f"{facts.half}-{p.partition}", p.half_end - p.low_water
        age = 0 if p.low_water_ms is None else facts.now_ms - p.low_water_ms
        look = f"txlayer tx list --namespace {facts.namespace} --older-than {max(milliseconds(config.doubt_after) // 1000, 1)}s"
        if kept is not None and kept > 0 and age > kept // 2:
            is_fine = False
            reason = (
                f"held back for {length_text(age)} by a transaction; retention takes it after {length_text(kept)} (P1)"
            )
            yield error(about, reason, look)
        elif age > LOW_WATER_TIMES * milliseconds(config.doubt_after):
            is_fine = False
            reason = f"held back for {length_text(age)}: a restart reads {span:,} offsets again, and old transactions do not move to doubt"
            yield warning(about, reason, look)
        elif span > SPAN_MAX:
            is_fine = False
            mend = "a shorter TXLAYER_DOUBT_AFTER, or more partitions in a new namespace"
            yield warning(about, f"a restart reads {span:,} offsets again", mend)
    if facts.partitions and is_fine:
        spans = [p.half_end - p.low_water for p in facts.partitions if p.low_water is not None]
        yield ok(facts.half, f"a restart reads {sum(spans):,} offsets again")


CLOCK_WARN_MS = 2_000  # timestamps of messages and of logs cannot be compared any more


def clock(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    """This machine's clock and the broker's."""
    least, most = facts.clock
    # What is certain: the difference lies between the two.
    ahead = max(least or 0, 0)
    behind = max(-most, 0) if most is not None else 0
    off = max(ahead, behind)
    shown = f"the broker's clock is {'ahead of' if ahead >= behind else 'behind'} this machine's by at least {length_text(off)}"
    mend = "chronyc tracking (or timedatectl) on this machine and on the brokers"
    if off > CLOCK_ERROR_MS:
        yield error("clock", shown, mend)
    elif off > CLOCK_WARN_MS:
        yield warning("clock", shown, mend)
    elif least is None and most is None:
        yield info("clock", "no record from which the broker's time could be read")
    elif least is None or most is None:
        side = "ahead" if most is None else "behind"
        reason = (
            f"the broker's is not {side} by more than {length_text(CLOCK_WARN_MS)}; the other direction is not known"
        )
        yield info("clock", reason)
    else:
        yield ok("clock", f"they differ by {least} to {most} ms")


def rights(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    for right in facts.rights:
        about, operation = f"{right.kind} {right.resource}", right.operation
        if right.is_allowed:
            found = ok(about, f"{operation} is allowed to these credentials")
        else:
            # The user of doctor need not have the rights of every role.
            say = error if right.role == "coordinator" else warning
            reason = f"{operation} is refused to these credentials"
            mend = f"kafka-acls.sh --bootstrap-server HOST:PORT --add --allow-principal User:NAME --operation {operation} --{right.kind} {right.resource}"
            found = say(about, reason, mend)
        yield found._replace(check=f".{right.role}")


def untold(facts: ClusterFacts, _config: CoordinatorConfig) -> Iterator[ClusterFinding]:
    for what, why in facts.untold.items():
        yield info(what, why)


Rule = Callable[[ClusterFacts, CoordinatorConfig], Iterable[ClusterFinding]]

RULES: Mapping[Rule, str] = {
    versions: "broker.version",
    verification: "broker.verification",
    transaction_timeout: "broker.transaction-timeout",
    session_timeout: "broker.session-timeout",
    offsets: "broker.offsets",
    auto_creation: "broker.auto-creation",
    internal_topics: "broker.internal-topics",
    settings: "topics.settings",
    replication: "topics.replication",
    in_sync: "topics.in-sync",
    retention: "topics.retention",
    leaders: "partitions.leaders",
    skew: "partitions.skew",
    real_topics: "targets.missing",
    message_bytes: "targets.message-bytes",
    group: "coordinator.group",
    lag: "coordinator.lag",
    log_start: "coordinator.log-start",
    low_water: "half.low-water",
    clock: "clock.difference",
    rights: "acl",
    untold: "untold",
}
"""{rule: the name of its check}."""


def examine(facts: ClusterFacts, config: CoordinatorConfig) -> list[ClusterFinding]:
    """Every rule's findings, in the order of `RULES`."""
    return [
        finding._replace(check=check + finding.check)
        for rule, check in RULES.items()
        for finding in rule(facts, config)
    ]


def is_ill(findings: Iterable[ClusterFinding], *, is_strict: bool) -> bool:
    """True when the exit code must say so: errors, and warnings when they count."""
    levels = {finding.level for finding in findings}
    return Level.ERROR in levels or (is_strict and Level.WARNING in levels)


def findings_json(found: list[ClusterFinding], *, config: CoordinatorConfig) -> dict[str, object]:
    counts = Counter(finding.level for finding in found)
    return {
        "namespace": config.namespace,
        "counts": {level.value: counts[level] for level in Level},
        "findings": [{**f._asdict(), "level": f.level.value} for f in found],
    }
