"""Settings as checked values: one frozen dataclass per role, read from a mapping that the caller passes.

`KNOWN_NAMES` holds the environment names of all roles. An unknown name that begins with `TXLAYER_` is an error,
because a mistyped limit would silently leave its default in force.

The port of metrics belongs to no role: commands read its settings, a consumer's own come from its program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from txlayer.core.checks import IMMUNITY_MS_MAX
from txlayer.core.messages import DLQ_SUFFIX, REPLAY_SUFFIX
from txlayer.errors import ConfigError

# A guarantee depends on each of these; another value would break it silently.
PROTECTED_CLIENT_SETTINGS = frozenset(
    {
        "acks",
        "enable.idempotence",
        "transactional.id",
        "isolation.level",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "group.id",
        "group.protocol",
        "partitioner",
        "partition.assignment.strategy",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "socket.timeout.ms",
        "transaction.timeout.ms",
        "message.timeout.ms",
        "delivery.report.only.error",
        "allow.auto.create.topics",
        "bootstrap.servers",
        "session.timeout.ms",
        "enable.partition.eof",
        "group.instance.id",
        "metadata.broker.list",
        "request.required.acks",
        "delivery.timeout.ms",  # aliases of the above
    }
)

_SECRET = re.compile(r"(password|secret|passphrase|jaas\.config|key\.pem|keystore\.key)$")
"""The endings of setting names that hold secrets; librdkafka's names and the Java client's."""

KAFKA_TRANSACTION_TIMEOUT_MIN = timedelta(seconds=2)
"""The client's message.timeout.ms is one second less, and 0 means forever."""

ALLOW_INSECURE = "--insecure (TXLAYER_IS_INSECURE_ALLOWED=true, is_insecure_allowed=True)"

# Each of them lets a third party read the traffic, or act as the broker.
_UNVERIFIED = {"enable.ssl.certificate.verification": "false", "ssl.endpoint.identification.algorithm": "none"}

# All four numbers are required: 127.example.org is an ordinary host name.
_SERVER = re.compile(r"(?:[A-Za-z_]+://)?[^\s=;@/\x00-\x1f\x7f\ud800-\udfff]+")
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")
_MECHANISM = re.compile(r"[A-Za-z0-9_-]{1,20}")  # RFC 4422, section 3.1
_SETTING_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def is_secret(setting: str) -> bool:
    """Whether the client setting of this name holds a secret."""
    return _SECRET.search(setting) is not None


def check_namespace(namespace: str) -> str:
    """Return the namespace if topics can be named after it; ConfigError: it is not 1 to 100 letters, digits, `.`, `_` or `-`."""
    if _NAMESPACE.fullmatch(namespace) is None:
        why = "not a namespace: it names topics"
        raise ConfigError(
            why,
            name="namespace",
            value=namespace[:110],
            expected="1-100 of A-Z a-z 0-9 . _ -, the first a letter or digit",
        )
    return namespace


@dataclass
class SystemTopics:
    """The names of one namespace's topics and of its coordinator group."""

    namespace: str
    half: str = field(init=False)  # half messages
    op: str = field(init=False)  # resolutions
    doubt: str = field(init=False)  # in-doubt, held and parked transactions
    check: str = field(init=False)  # check-backs and limits
    locks: str = field(init=False)  # lock claims
    coordinator_group: str = field(init=False)  # the consumer group of the coordinators
    all: frozenset[str] = field(init=False)  # every topic of the namespace

    def __post_init__(self) -> None:
        namespace = self.namespace
        self.half, self.op, self.doubt = f"{namespace}.half", f"{namespace}.op", f"{namespace}.doubt"
        self.check, self.locks = f"{namespace}.check", f"{namespace}.locks"
        self.coordinator_group = f"{namespace}.coordinator"
        self.all = frozenset((self.half, self.op, self.doubt, self.check, self.locks))

    def transactional_id(self, name: str) -> str:
        """Transactional id of a coordinator. It contains `/`, which no namespace or group can, so no other prefix right covers it."""
        return f"{self.namespace}/{name}"

    def is_own_group(self, group: str) -> bool:
        """True for the groups of coordinators and of check-backs, which no consumer may join."""
        return group == self.coordinator_group or group.startswith(f"{self.check}.")

    def check_group(self, producer_group: str) -> str:
        """The consumer group in which a producer group's instances read the check topic."""
        return f"{self.check}.{producer_group}"

    def is_system(self, topic: str) -> bool:
        """True for topics that users may not send to: txlayer's, Kafka's internal ones, dead letters and replays."""
        return topic in self.all or topic.startswith("__") or topic.endswith((DLQ_SUFFIX, REPLAY_SUFFIX))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Access to the cluster; the settings that every role shares."""

    bootstrap_servers: str = "127.0.0.1:9092"
    namespace: str = "txlayer"
    client_settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """librdkafka settings passed through (SASL, TLS, …), except those that a guarantee depends on; hidden in output, as
    they may hold secrets."""
    is_insecure_allowed: bool = False
    """Allow plain text to another machine, or TLS without verification of the broker."""

    def __post_init__(self) -> None:
        check_namespace(self.namespace)
        check_servers(self.bootstrap_servers)
        check_client_settings(self.client_settings)
        refused = sorted(PROTECTED_CLIENT_SETTINGS & set(self.client_settings))
        if refused:
            why = "a promise rests on this setting; remove it"
            raise ConfigError(why, name=refused[0], expected="txlayer's own value")
        check_transport(self)
        check_limits(self)

    @property
    def topics(self) -> SystemTopics:
        """The namespace's topics."""
        return SystemTopics(self.namespace)


def check_servers(servers: str) -> None:
    """Refuse a value that names no brokers; ConfigError: the value is not shown, because it may contain a password."""
    named = [part for part in map(str.strip, servers.split(",")) if part]
    if not named or not all(map(_SERVER.fullmatch, named)):
        why = "not an address of a broker" if named else "no broker named"
        raise ConfigError(why, name="bootstrap_servers", expected="HOST:PORT[,HOST:PORT…]")


def check_client_settings(settings: Mapping[str, Any]) -> None:
    """Refuse values that the client would misread: it converts each to text, and then to a C string; ConfigError: no value is shown."""
    if not isinstance(settings, Mapping):
        raise ConfigError(
            "not a mapping", name="client_settings", expected="names of librdkafka settings and their values"
        )
    for name, value in settings.items():
        if not isinstance(name, str) or _SETTING_NAME.fullmatch(name) is None:
            # Not shown: it may be a line that contains a password.
            why = "no setting has such a name"
            raise ConfigError(why, name="client_settings", expected="names of A-Z a-z 0-9 . _ -")
        is_right = value is None or isinstance(value, (str, int, float)) or callable(value)
        if name == "logger":
            is_right = hasattr(value, "log")
        elif name in _MECHANISMS and isinstance(value, str):
            # The client's own warning would show the rest of the value.
            is_right = _MECHANISM.fullmatch(value) is not None
        # Above: surrogates, which are bytes of the environment that are not UTF-8.
        if not is_right or (isinstance(value, str) and re.search("[\0\ud800-\udfff]", value)):
            expected = "a text without NUL, in UTF-8, a number, true or false, or a function"
            if name in _MECHANISMS:
                expected = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI"
            raise ConfigError("the client cannot be given this value", name=name, expected=expected)


def check_transport(config: ClientConfig) -> None:
    """Refuse plain text to another machine, and TLS without verification, with a ConfigError unless `is_insecure_allowed`."""
    if config.is_insecure_allowed:
        return
    others = [
        server.strip()
        for server in config.bootstrap_servers.split(",")
        if not _LOOPBACK.fullmatch(server.strip().lower())
    ]
    if not others:
        return
    settings = config.client_settings
    if str(settings.get("security.protocol", "PLAINTEXT")).upper() not in ("SSL", "SASL_SSL"):
        why = f"plain text to another machine; use security.protocol=SSL or SASL_SSL, or say {ALLOW_INSECURE}"
        raise ConfigError(why, name="bootstrap_servers", value=others[0], expected="a loopback address or TLS")
    for name, value in _UNVERIFIED.items():
        if str(settings.get(name, "")).lower() == value:
            why = f"TLS to another machine without knowing which; remove this setting, or say {ALLOW_INSECURE}"
            raise ConfigError(why, name=name, value=value, expected="librdkafka's default, which verifies")


def check_limits(config: ClientConfig) -> None:
    """Refuse numbers and durations that are not above zero; ConfigError: one of them is 0 or less."""
    for f in fields(config):
        value = getattr(config, f.name)
        if isinstance(value, bool):
            continue
        if (isinstance(value, int) and value < 1) or (isinstance(value, timedelta) and value <= timedelta(0)):
            raise ConfigError("not possible as a limit", name=f.name, value=value, expected="more than 0")


def check_transaction_timeout(timeout: timedelta) -> None:
    """Refuse a `kafka_transaction_timeout` under 2 s with a ConfigError: records must time out one second before their Kafka transaction.

    With 1 s the client would wait forever (its 0); with less it refuses to start.
    """
    if timeout < KAFKA_TRANSACTION_TIMEOUT_MIN:
        why = "too short: a record is given up one second before its Kafka transaction"
        raise ConfigError(why, name="kafka_transaction_timeout", value=timeout, expected="at least 2s")


# --- roles ------------------------------------------------------------------------------------------------------------

_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]+")
"""The characters of topic names and of patterns."""

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

DOUBT_AFTER_MAX = timedelta(days=1)
"""Longest `doubt_after`. Half deletes records after 7 days: what is undecided must be on doubt long before, also after an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(ClientConfig):
    """Settings of a coordinator process."""

    target_topics: tuple[str, ...] = ()
    """Patterns (`orders`, `shop.*`) of the allowed target topics; empty: every topic that is not a system topic."""
    doubt_after: timedelta = timedelta(seconds=60)
    """Age at which an undecided transaction moves to the doubt topic; it limits how far half is read again."""
    hold_after: timedelta = timedelta(seconds=30)
    """How long a target that is unreachable, or where records time out, may stop partitions before its transactions are held."""
    held_age_max: timedelta = timedelta(days=7)
    """Age at which a held transaction is parked."""
    content_bytes_max: int = 256 * 1024 * 1024
    """Content kept in memory per worker; more is dropped and read again when needed."""
    unsettled_bytes_max: int = 512 * 1024 * 1024
    """Approximate memory of unsettled transactions per worker, without content; at the limit reading of half stops."""
    batch_lines_max: int = 10_000
    """Op lines of one partition in one Kafka transaction; it limits how long readers wait."""
    batch_bytes_max: int = 16 * 1024 * 1024
    """Bytes of one partition in one Kafka transaction."""
    batch_moves_max: int = 2_000
    """Moves to doubt of one partition in one Kafka transaction. Transactions that wait for a moved one move with it, 5,000 at most."""
    ahead_lines_max: int = 200_000
    """Op lines kept until half is read up to them; at the limit reading of op stops (P11)."""
    transaction_messages_max: int = 10_000
    """Messages of one transaction; a larger transaction is parked."""
    transaction_bytes_max: int = 128 * 1024 * 1024
    """Bytes of one transaction. A larger one is parked, and doubt gets only the positions of its messages. Set it higher than
    the producers' setting of this name, by 1 KB per message."""
    publish_interval: timedelta = timedelta(milliseconds=20)
    """Under load, the shortest time from the beginning of one Kafka transaction to the next: after one that forwarded 100
    transactions or more. Each costs the broker some twenty requests. Messages wait that much longer; 1 ms is practically none."""
    compression: str = "none"
    """Compression of what the coordinator writes: `none`, `gzip`, `snappy`, `lz4` or `zstd`. A topic's own
    `compression.type` takes precedence."""
    kafka_transaction_timeout: timedelta = timedelta(seconds=10)
    """Time after which the broker aborts a hanging Kafka transaction; part of the longest fail-over."""
    session_timeout: timedelta = timedelta(seconds=6)
    """Time after which the group notices a dead coordinator."""
    recycle_after: timedelta = timedelta(milliseconds=70)
    """0.7 x retry.backoff.ms: a slower send_offsets or commit may have been sent twice (KAFKA-17754)."""
    check_immunity: timedelta = timedelta(seconds=6)
    """Age, by the broker's clock, before which no check-back is sent; a producer may set its own value per transaction."""
    check_interval: timedelta = timedelta(seconds=30)
    """Pause after the first check-back; it doubles with each further one."""
    check_interval_max: timedelta = timedelta(minutes=10)
    """Longest pause between two check-backs of one transaction."""
    check_rate_max: int = 250
    """Check-backs per second to one producer group about one partition; it spreads them out after an outage."""
    check_max: int = 15
    """Number of UNKNOWN answers after which `unresolved` applies. Check-backs without an answer do not count."""
    transaction_age_max: timedelta = timedelta(hours=72)
    """Age without a decision after which `unresolved` applies, counted from the end of the immunity."""
    unresolved: str = "park"
    """What happens to a transaction that stays without an answer: `park` keeps it for an operator, `rollback` rolls it back,
    `commit` commits it. A transaction may have its own."""
    open_count_max: int = 1_000_000
    """Open transactions of one producer group in one partition. At the limit, if its members do not decide them, its producers
    refuse new ones."""
    group_policies: Mapping[str, str] = field(default_factory=dict)
    """Check settings per producer group: {"orders.check_max": "5", "orders.unresolved": "rollback"}."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long a coordinator waits for a broker at start before it exits with code 3."""
    misplaced_after: timedelta = timedelta(seconds=10)
    """Time after which an op line is misplaced if the half position it names holds no record, once half is read to its high
    watermark, or is paused and the position is behind that. Lines behind it wait meanwhile; time-based work goes on."""

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        check_transaction_timeout(self.kafka_transaction_timeout)
        if self.doubt_after > DOUBT_AFTER_MAX:
            why = "half would delete transactions that are not on doubt yet"
            raise ConfigError(why, name="doubt_after", value=self.doubt_after, expected="at most 1 day")
        if self.compression not in COMPRESSIONS:
            why = "no such compression"
            raise ConfigError(why, name="compression", value=self.compression, expected=", ".join(COMPRESSIONS))
        for pattern in self.target_topics:
            # A pattern that matches no topic name would park every message of the intended topic.
            if not _PATTERN.fullmatch(pattern):
                several = "several as --target-topic each, or with commas in TXLAYER_TARGET_TOPICS"
                expected = f"a name or a pattern (orders, shop.*); {several}"
                raise ConfigError("no topic has such a name", name="target_topics", value=pattern, expected=expected)


IMMUNITY_MAX = timedelta(milliseconds=IMMUNITY_MS_MAX)
"""The retention of half and op records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringConfig(ClientConfig):
    """Settings of producers and responders for answering check-backs."""

    check_timeout: timedelta = timedelta(seconds=10)
    """Longest time of a check handler; then the answer is UNKNOWN, and a later result is dropped."""
    check_workers: int = 8
    """Concurrent calls of the check handler; one slow call does not delay the others."""
    check_session_timeout: timedelta = timedelta(seconds=10)
    """Time after which the check group notices a dead instance and gives its check-backs to another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(AnsweringConfig):
    """Settings of a transactional producer."""

    in_flight_max: int = 5_000
    """Transactions between `prepare` and the acknowledged op; more wait. It limits memory and what a crash leaves open."""
    transaction_messages_max: int = 10_000
    """Messages of one transaction; they become one Kafka transaction."""
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Bytes of keys, values and headers of one transaction; a message with more than eight headers counts 170 more for each further one."""
    prepare_timeout: timedelta = timedelta(seconds=30)
    """How long half messages may wait for acknowledgement; then `prepare` raises `OutcomeUnknownError`."""
    resolution_timeout: timedelta = timedelta(minutes=5)
    """How long a resolution is retried while no broker accepts it; then a check-back settles the transaction."""
    close_timeout: timedelta = timedelta(seconds=30)
    """How long `close()` waits for transactions in flight."""
    start_timeout: timedelta = timedelta(seconds=10)
    """How long the first use waits for a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponderConfig(AnsweringConfig):
    """Settings of a stand-alone responder."""

    close_timeout: timedelta = timedelta(seconds=30)
    """How long answers in flight may take after SIGTERM; unanswered check-backs are asked again."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long the responder waits for a broker at start before it exits with code 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of a consumer process."""

    in_flight_max: int = 1_000
    """Messages whose handler runs or is about to start; more wait, but a batch begins whole. It limits what a crash or a rebalance repeats."""
    worker_count: int = 16
    """Number of threads, or of processes, for plain handlers. Coroutines use `in_flight_max` instead."""
    record_count_max: int = 100_000
    """Records in memory, waiting or in flight. At the limit partitions pause; reading resumes below half of it."""
    record_bytes_max: int = 128 * 1024 * 1024
    """The same limit in bytes of keys, values and headers; each header counts 170 more, as Python needs them."""
    attempt_count_max: int = 16
    """Attempts of one message before it becomes a dead letter. A handler's own `RetryPolicy` takes precedence."""
    attempt_timeout: timedelta = timedelta(minutes=5)
    """Longest time of one attempt, which then has failed: a process is killed, a coroutine cancelled, a thread given up."""
    hung_handlers_max: int = 16
    """Handlers that were given up and have not returned. At the limit the consumer is not ready, and gives up no more."""
    store_interval: timedelta = timedelta(milliseconds=100)
    """How often progress is stored. A crash repeats messages that ended within this time before it."""
    store_timeout: timedelta = timedelta(seconds=10)
    """How long a store of offsets may go unanswered; then the consumer starts over from the stored offsets."""
    metadata_bytes_max: int = 4096
    """The brokers' `offset.metadata.max.bytes`. A partition whose progress does not fit pauses until it does."""
    parked_keys_max: int = 64
    """Parked keys of one partition, each 19 bytes of its metadata. At the limit the partition waits for replays."""
    revoke_timeout: timedelta = timedelta(seconds=5)
    """How long handlers may finish when the group revokes partitions, and then how long Kafka transactions with dead letters and
    answers are begun; the other members wait meanwhile."""
    close_timeout: timedelta = timedelta(seconds=30)
    """How long handlers may finish after `close()` or SIGTERM; the next owner reads the unfinished messages again."""
    session_timeout: timedelta = timedelta(seconds=6)
    """Time after which the group notices a dead member."""
    lease_renewal: timedelta = timedelta(seconds=20)
    """How often a lease is renewed; two renewals may fail before it expires."""
    lease_expiry: timedelta = timedelta(seconds=60)
    """A lease ends this long after its last renewal, by the brokers' clock; no handler starts later."""
    kafka_transaction_timeout: timedelta = timedelta(seconds=10)
    """Time after which the broker aborts a hanging Kafka transaction of dead letters; part of the longest fail-over."""
    recycle_after: timedelta = timedelta(milliseconds=70)
    """0.7 x retry.backoff.ms: a slower send_offsets or commit may have been sent twice (KAFKA-17754)."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long the consumer waits for a broker at start before it exits with code 3."""
    instance_id: str = ""
    """`group.instance.id` of a static member: a restart within the session causes no rebalance. One process at a time may use it."""

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        check_transaction_timeout(self.kafka_transaction_timeout)
        if self.lease_expiry < 2 * self.lease_renewal:
            why = "one late renewal would end the lease"
            expected = "at least twice lease_renewal"
            raise ConfigError(why, name="lease_expiry", value=self.lease_expiry, expected=expected)


# --- texts as values --------------------------------------------------------------------------------------------------

ENVIRONMENT_PREFIX = "TXLAYER_"

# Read by the embedded broker, by commands and by the tests, not by a role.
OTHER_NAMES = frozenset(
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in (
        "KAFKA_HOME",
        "HOME",
        "MAVEN_URL",
        "TEST_BOOTSTRAP_SERVERS",
        "CLIENT_SETTINGS_FILE",
        "BARRIER_URL",
        "BARRIER_URL_FILE",
        "INBOX_URL",
        "INBOX_URL_FILE",
        "LOG_FORMAT",
        "LOG_LEVEL",
        "TRACING",
    )
)

ROLES: tuple[type[ClientConfig], ...] = (ProducerConfig, ResponderConfig, CoordinatorConfig, ConsumerConfig)

C = TypeVar("C")


def environment_names(role: type[Any]) -> dict[str, str]:
    """{environment name: field name} of a role."""
    return {ENVIRONMENT_PREFIX + f.name.upper(): f.name for f in fields(role)}


PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """One port with metrics, liveness and readiness."""

    metrics_port: int = 0
    """Port number; 0: no port. Several workers use consecutive ports from this one on."""
    metrics_host: str = "127.0.0.1"
    """Address of the port. It shows names of topics and groups without a password: use 0.0.0.0 only in a private network."""

    def __post_init__(self) -> None:
        if not 0 <= self.metrics_port <= PORT_MAX:
            expected = f"0 (nothing listens) to {PORT_MAX}"
            raise ConfigError("not a port", name="metrics_port", value=self.metrics_port, expected=expected)
        if not self.metrics_host.strip() or not self.metrics_host.isprintable():
            raise ConfigError("not an address", name="metrics_host", value="", expected="127.0.0.1 or another one")

    def of_worker(self, number: int) -> MetricsConfig:
        """Settings for the worker of this number, from 0 on.

        Raises:
            ConfigError: the port number would be too large.
        """
        return replace(self, metrics_port=self.metrics_port + number) if self.metrics_port else self


KNOWN_NAMES = OTHER_NAMES.union(*(environment_names(role) for role in (*ROLES, MetricsConfig)))


def check_names(environ: Mapping[str, str]) -> None:
    """Refuse an unknown name, which would silently leave a default in force. ConfigError: its value, which may be a secret, is not shown."""
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in KNOWN_NAMES:
            why = "unknown setting in the environment; correct or remove it"
            raise ConfigError(why, name=name, expected="one of " + ", ".join(sorted(KNOWN_NAMES)))


def from_environ(role: type[C], environ: Mapping[str, str], **given: Any) -> C:
    """The role's settings: from what is `given` and not None, else `environ`, else the default. ConfigError: as `parse_value`, `check_names`."""
    check_names(environ)
    values: dict[str, Any] = {}
    for name, field_name in environment_names(role).items():
        if name in environ:
            values[field_name] = parse_value(name, field_name, environ[name], role)
    values.update({name: value for name, value in given.items() if value is not None})
    return role(**values)


def parse_duration(name: str, text: str) -> timedelta:
    """`250ms`, `60s`, `5m`, `72h` or `7d`; ConfigError: it has another form."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text.strip())
    if match is None:
        raise ConfigError("not a length of time", name=name, value=text, expected="250ms, 60s, 5m, 72h or 7d")
    unit = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    try:
        return timedelta(seconds=float(match[1]) * unit)
    except OverflowError as exc:
        raise ConfigError("too long a time", name=name, value=text, expected="a shorter one") from exc


def parse_time(name: str, text: str, *, at_ms: Callable[[int], int]) -> int:
    """Milliseconds since 1970 of an ISO 8601 time (UTC when it names no zone), or `at_ms` of a length such as `2h`; ConfigError: neither."""
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        pass  # it may be a length
    try:
        length_ms = milliseconds(parse_duration(name, text))
    except ConfigError as exc:
        raise ConfigError("not a time", name=name, value=text, expected="2h, 3d or 2026-11-21T10:00:00+00:00") from exc
    return at_ms(length_ms)


def milliseconds(length: timedelta) -> int:
    """A duration in whole milliseconds."""
    return length // timedelta(milliseconds=1)


def seconds(length: timedelta | float) -> float:
    """A length of time in seconds; a number is already one."""
    return length.total_seconds() if isinstance(length, timedelta) else length


def parse_value(name: str, field_name: str, text: str, role: type[Any]) -> object:
    """Convert the text of a role's setting; ConfigError: it has the wrong form."""
    kind = {f.name: str(f.type) for f in fields(role)}[field_name]
    if kind == "timedelta":
        return parse_duration(name, text)
    if kind == "int":
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
            raise ConfigError("not a number", name=name, value=text, expected="a whole number")
        return int(text.strip())
    if kind == "bool":
        if text.lower() not in ("1", "0", "true", "false"):
            raise ConfigError("neither on nor off", name=name, value=text, expected="true or false")
        return text.lower() in ("1", "true")
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind.startswith("Mapping"):
        return parse_settings(name, text.split(";"))
    return text


def parse_settings_file(name: str, text: str) -> dict[str, str]:
    """Parse a settings file: one `name=value` per line, `#` begins a comment line. The value is the rest of the line,
    including `;` and `#`. ConfigError: a line has another form. The message gives the line number, not its text.
    """
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"line {number} is no setting", name=name, expected="name=value")
        settings[key.strip()] = value.lstrip()
    return settings


def parse_settings(name: str, parts: list[str]) -> dict[str, str]:
    """`key=value` parts as a mapping. Errors do not show a value: it may be a secret. ConfigError: a part has no `=`."""
    settings: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in parts)):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            # The part is not shown: it may be the end of a password that contains the separator.
            why = f"part {len(settings) + 1} has no name; a value with ; in it belongs into a file (TXLAYER_CLIENT_SETTINGS_FILE)"
            raise ConfigError(why, name=name, expected="name=value")
        settings[key.strip()] = value
    return settings
