"""Settings as checked values: one frozen dataclass per role, read from a mapping, never from the process.

`KNOWN_NAMES` is the union of all roles' environment names; an unknown name that begins with `TXLAYER_` is an error,
because a mistyped limit would silently be a default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, TypeVar

from txlayer.errors import ConfigError

ENVIRONMENT_PREFIX = "TXLAYER_"

IMMUNITY_MAX = timedelta(days=7)
"""Half and op records are kept for so long."""

# Read by the embedded broker, by commands and by the tests, not by a role.
OTHER_NAMES = frozenset(
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in (
        "KAFKA_HOME",
        "JAVA_HOME",
        "HOME",
        "MAVEN_URL",
        "SPARK_JARS",
        "TEST_BOOTSTRAP_SERVERS",
        "BARRIER_URL",
        "LOG_FORMAT",
        "LOG_LEVEL",
    )
)

# A promise rests on each of these; passing another value through would break it silently.
PROTECTED_CLIENT_SETTINGS = frozenset(
    {
        "acks", "enable.idempotence", "transactional.id", "isolation.level", "enable.auto.commit",
        "enable.auto.offset.store", "auto.offset.reset", "group.id", "group.protocol", "partitioner",
        "partition.assignment.strategy", "retry.backoff.ms", "retry.backoff.max.ms", "socket.timeout.ms",
        "transaction.timeout.ms", "message.timeout.ms", "delivery.report.only.error", "allow.auto.create.topics",
        "bootstrap.servers", "session.timeout.ms", "enable.partition.eof", "group.instance.id",
        "metadata.broker.list", "request.required.acks", "delivery.timeout.ms",  # other names of the same
    }
)  # fmt: skip

# All four numbers are asked for: 127.example.org is a name like any other.
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_namespace(namespace: str) -> str:
    """The namespace itself when topics can be named after it.

    Raises:
        ConfigError: it is not 1 to 100 letters, digits, `.`, `_` or `-`.
    """
    if _NAMESPACE.fullmatch(namespace) is None:
        raise ConfigError(
            "a namespace names topics",
            name="namespace",
            value=namespace[:110],
            expected="1-100 of A-Z a-z 0-9 . _ -",
        )
    return namespace


@dataclass(frozen=True, slots=True)
class SystemTopics:
    """The names of one namespace's topics and of its coordinator group."""

    namespace: str

    @property
    def half(self) -> str:
        """Half messages."""
        return f"{self.namespace}.half"

    @property
    def op(self) -> str:
        """Resolutions."""
        return f"{self.namespace}.op"

    @property
    def doubt(self) -> str:
        """In-doubt, held and parked transactions."""
        return f"{self.namespace}.doubt"

    @property
    def check(self) -> str:
        """Check-backs and limits."""
        return f"{self.namespace}.check"

    @property
    def locks(self) -> str:
        """Lock claims."""
        return f"{self.namespace}.locks"

    @property
    def coordinator_group(self) -> str:
        """The consumer group of the coordinators."""
        return f"{self.namespace}.coordinator"

    def check_group(self, producer_group: str) -> str:
        """The consumer group in which a producer group's instances read the check topic."""
        return f"{self.check}.{producer_group}"

    @property
    def all(self) -> frozenset[str]:
        """Every topic of the namespace."""
        return frozenset((self.half, self.op, self.doubt, self.check, self.locks))

    def is_system(self, topic: str) -> bool:
        """True for topics that nobody may send to: ours, Kafka's internal ones, dead letters and replays."""
        return topic in self.all or topic.startswith("__") or topic.endswith((".dlq", ".replay"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How to reach the cluster; the part that every role shares."""

    bootstrap_servers: str = "127.0.0.1:9092"
    namespace: str = "txlayer"
    client_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """librdkafka settings passed through (SASL, TLS, …), except those that carry a promise; never shown: secrets."""
    is_insecure_allowed: bool = False
    """Plain text to another machine only by one's own word."""

    def __post_init__(self) -> None:
        """Check what can be checked without a broker."""
        check_namespace(self.namespace)
        if not self.bootstrap_servers.strip():
            raise ConfigError(
                "no broker named",
                name="bootstrap_servers",
                value="",
                expected="HOST:PORT[,HOST:PORT…]",
            )
        refused = sorted(PROTECTED_CLIENT_SETTINGS & set(self.client_settings))
        if refused:
            raise ConfigError(
                "a promise rests on this setting; remove it", name=refused[0],
                value=self.client_settings[refused[0]], expected="txlayer's own value",
            )  # fmt: skip
        check_transport(self)

    @property
    def topics(self) -> SystemTopics:
        """The namespace's topics."""
        return SystemTopics(self.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringConfig(ClientConfig):
    """What producers and responders share: how check-backs are answered."""

    check_timeout: timedelta = timedelta(seconds=10)
    """How long a check handler may take; then the answer is UNKNOWN, and what it says later is dropped."""
    check_workers: int = 8
    """Calls of the check handler at a time: one slow call does not hold up the others."""
    check_session_timeout: timedelta = timedelta(seconds=10)
    """The check group notices after this that an instance died, and gives its questions to another."""

    def __post_init__(self) -> None:
        """Check every limit."""
        ClientConfig.__post_init__(self)
        _check_limits(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(AnsweringConfig):
    """A transactional producer."""

    in_flight_max: int = 5_000
    """Transactions between `prepare` and the acknowledged op; more wait (bounds memory and what a crash leaves open)."""
    transaction_messages_max: int = 10_000
    """Messages of one transaction (they become one Kafka transaction)."""
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Bytes of keys, values and headers of one transaction."""
    prepare_timeout: timedelta = timedelta(seconds=30)
    """How long half messages may wait for their acknowledgement; then it is `OutcomeUnknownError`."""
    resolution_timeout: timedelta = timedelta(minutes=5)
    """How long a resolution is sent again while no broker takes it; then a check-back settles the transaction."""
    close_timeout: timedelta = timedelta(seconds=30)
    """How long `close()` waits for what is in flight."""
    start_timeout: timedelta = timedelta(seconds=10)
    """How long the first use waits for a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponderConfig(AnsweringConfig):
    """A stand-alone responder."""

    close_timeout: timedelta = timedelta(seconds=30)
    """How long answers in flight may take after SIGTERM; what is not answered is asked again."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long it waits for a broker at start before it gives up with exit code 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(ClientConfig):
    """A coordinator process."""

    target_topics: tuple[str, ...] = ()
    """Patterns (`orders`, `shop.*`) of topics that may be forwarded to; empty means every topic that is no system topic."""
    doubt_after: timedelta = timedelta(seconds=60)
    """Age at which an undecided transaction moves to the doubt topic: half is read again for so long at most."""
    hold_after: timedelta = timedelta(seconds=30)
    """How long an unreachable target may stop a partition before its transactions are held."""
    held_age_max: timedelta = timedelta(days=7)
    """Then a held transaction is parked."""
    content_bytes_max: int = 256 * 1024 * 1024
    """Content kept in memory per worker; what is dropped is read again when it is needed."""
    batch_lines_max: int = 10_000
    """Op lines of one partition in one Kafka transaction: bounds how long readers wait for it."""
    batch_bytes_max: int = 16 * 1024 * 1024
    """Bytes of one partition in one Kafka transaction."""
    batch_moves_max: int = 2_000
    """Moves to doubt of one partition in one Kafka transaction."""
    ahead_lines_max: int = 200_000
    """Op lines kept while half is read up to them; then op waits (P11)."""
    transaction_messages_max: int = 10_000
    """A transaction with more is parked."""
    kafka_transaction_timeout: timedelta = timedelta(seconds=10)
    """The broker ends a Kafka transaction that hangs; part of the worst fail-over."""
    session_timeout: timedelta = timedelta(seconds=6)
    """The group notices a dead coordinator after this."""
    recycle_after: timedelta = timedelta(milliseconds=70)
    """0.7 x retry.backoff.ms: a slower send_offsets or commit may have been re-sent (KAFKA-17754)."""
    check_immunity: timedelta = timedelta(seconds=6)
    """Nobody is asked about a younger transaction, by the broker's clock; a producer may ask for more or less."""
    check_interval: timedelta = timedelta(seconds=30)
    """Pause after the first question; it doubles with every further one."""
    check_interval_max: timedelta = timedelta(minutes=10)
    """Longest pause between two questions about one transaction."""
    check_rate_max: int = 250
    """Questions a second to one producer group about one partition: after an outage they are spread over time."""
    check_max: int = 15
    """Answers that knew nothing; then `unresolved` says what becomes of the transaction. Questions that nobody answered
    never count."""
    transaction_age_max: timedelta = timedelta(hours=72)
    """The same after this time without a decision, counted from the end of the immunity."""
    unresolved: str = "park"
    """What becomes of a transaction that nobody could resolve: `park` keeps it for a person, `rollback` gives it up."""
    open_count_max: int = 1_000_000
    """Open transactions of one producer group in one partition; with more its producers are told to stop."""
    group_policies: Mapping[str, str] = field(default_factory=dict)
    """Other check settings for single producer groups: {"orders.check_max": "5", "orders.unresolved": "rollback"}."""
    start_timeout: timedelta = timedelta(seconds=60)
    """How long a coordinator waits for a broker at start before it gives up with exit code 3."""
    misplaced_after: timedelta = timedelta(seconds=10)
    """An op line beyond the end of half is misplaced after this time of answers from the broker."""

    def __post_init__(self) -> None:
        """Check every limit."""
        ClientConfig.__post_init__(self)
        _check_limits(self)


ROLES: tuple[type[ClientConfig], ...] = (ProducerConfig, ResponderConfig, CoordinatorConfig)

C = TypeVar("C", bound=ClientConfig)


def environment_names(role: type[ClientConfig]) -> dict[str, str]:
    """{environment name: field name} of a role."""
    return {ENVIRONMENT_PREFIX + f.name.upper(): f.name for f in fields(role)}


KNOWN_NAMES = OTHER_NAMES.union(*(environment_names(role) for role in ROLES))


def check_names(environ: Mapping[str, str]) -> None:
    """Refuse a name that nobody reads: mistyped, it would leave a default in force without a word.

    Raises:
        ConfigError: a name that begins with TXLAYER_ is unknown. Its value, which may be a secret, is not shown.
    """
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in KNOWN_NAMES:
            raise ConfigError(
                "unknown setting in the environment; correct or remove it", name=name,
                expected="one of " + ", ".join(sorted(KNOWN_NAMES)),
            )  # fmt: skip


def from_environ(role: type[C], environ: Mapping[str, str], **given: Any) -> C:
    """The role's settings: what is `given` and not None wins over `environ`, which wins over the defaults.

    Raises:
        ConfigError: a value has the wrong form, or a name that begins with TXLAYER_ is unknown.
    """
    check_names(environ)
    values: dict[str, Any] = {}
    for name, field_name in environment_names(role).items():
        if name in environ:
            values[field_name] = parse_value(name, field_name, environ[name], role)
    values.update({name: value for name, value in given.items() if value is not None})
    return role(**values)


def parse_duration(name: str, text: str) -> timedelta:
    """`250ms`, `60s`, `5m`, `72h` or `7d`.

    Raises:
        ConfigError: it has another form.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text.strip())
    if match is None:
        raise ConfigError(
            "a length of time", name=name, value=text, expected="250ms, 60s, 5m, 72h or 7d"
        )
    unit = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    try:
        return timedelta(seconds=float(match[1]) * unit)
    except OverflowError as exc:
        raise ConfigError(
            "a length of time", name=name, value=text, expected="a shorter one"
        ) from exc


def milliseconds(length: timedelta) -> int:
    """A length in whole milliseconds."""
    return length // timedelta(milliseconds=1)


def parse_value(name: str, field_name: str, text: str, role: type[ClientConfig]) -> object:
    """A role's setting from its text.

    Raises:
        ConfigError: it has the wrong form.
    """
    kind = {f.name: str(f.type) for f in fields(role)}[field_name]
    if kind == "timedelta":
        return parse_duration(name, text)
    if kind == "int":
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
            raise ConfigError("a number", name=name, value=text, expected="a whole number")
        return int(text.strip())
    if kind == "bool":
        if text.lower() not in ("1", "0", "true", "false"):
            raise ConfigError("a switch", name=name, value=text, expected="true or false")
        return text.lower() in ("1", "true")
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind.startswith("Mapping"):
        return parse_settings(name, text.split(";"))
    return text


def parse_settings(name: str, parts: list[str]) -> dict[str, str]:
    """`key=value` parts as a mapping; the value itself is never shown in an error, it may be a secret.

    Raises:
        ConfigError: a part has no `=`.
    """
    settings = {}
    for part in filter(None, (p.strip() for p in parts)):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                "a librdkafka setting", name=name, value=key[:40], expected="name=value"
            )
        settings[key.strip()] = value
    return settings


def check_transport(config: ClientConfig) -> None:
    """Refuse plain text to another machine unless it was asked for.

    Raises:
        ConfigError: a bootstrap server is not on this machine and the protocol is not encrypted.
    """
    protocol = str(config.client_settings.get("security.protocol", "PLAINTEXT")).upper()
    if config.is_insecure_allowed or protocol in ("SSL", "SASL_SSL"):
        return
    for server in config.bootstrap_servers.split(","):
        if not _LOOPBACK.fullmatch(server.strip().lower()):
            raise ConfigError(
                "plain text to another machine; use security.protocol=SSL or SASL_SSL, or say --insecure",
                name="bootstrap_servers", value=server.strip(), expected="a loopback address or TLS",
            )  # fmt: skip


def _check_limits(config: ClientConfig) -> None:
    for f in fields(config):
        value = getattr(config, f.name)
        if isinstance(value, bool):
            continue
        if (isinstance(value, int) and value < 1) or (
            isinstance(value, timedelta) and value <= timedelta(0)
        ):
            raise ConfigError("a limit", name=f.name, value=value, expected="more than 0")
