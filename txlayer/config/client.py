"""The settings that every role shares: access to the cluster, names of system topics, and checks of values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

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
_SERVER = re.compile(r"(?:[A-Za-z_]+://)?[^\s=;@/\x00-\x1f\x7f]+")
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


_MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")
_MECHANISM = re.compile(r"[A-Za-z0-9_-]{1,20}")  # RFC 4422, section 3.1
_SETTING_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def is_secret(setting: str) -> bool:
    """Whether the client setting of this name holds a secret."""
    return _SECRET.search(setting) is not None


def check_namespace(namespace: str) -> str:
    """Return the namespace if topics can be named after it.

    Raises:
        ConfigError: it is not 1 to 100 letters, digits, `.`, `_` or `-`.
    """
    if _NAMESPACE.fullmatch(namespace) is None:
        raise ConfigError(
            "not a namespace: it names topics",
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

    def transactional_id(self, name: str) -> str:
        """Transactional id of a coordinator. It contains `/`, which no namespace or group can, so no other prefix right covers it."""
        return f"{self.namespace}/{name}"

    def is_own_group(self, group: str) -> bool:
        """True for the groups of coordinators and of check-backs, which no consumer may join."""
        return group == self.coordinator_group or group.startswith(f"{self.check}.")

    def check_group(self, producer_group: str) -> str:
        """The consumer group in which a producer group's instances read the check topic."""
        return f"{self.check}.{producer_group}"

    @property
    def all(self) -> frozenset[str]:
        """Every topic of the namespace."""
        return frozenset((self.half, self.op, self.doubt, self.check, self.locks))

    def is_system(self, topic: str) -> bool:
        """True for topics that users may not send to: txlayer's, Kafka's internal ones, dead letters and replays."""
        return topic in self.all or topic.startswith("__") or topic.endswith((".dlq", ".replay"))


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
        """Check what can be checked without a broker."""
        check_namespace(self.namespace)
        check_servers(self.bootstrap_servers)
        check_client_settings(self.client_settings)
        refused = sorted(PROTECTED_CLIENT_SETTINGS & set(self.client_settings))
        if refused:
            raise ConfigError(
                "a promise rests on this setting; remove it", name=refused[0], expected="txlayer's own value"
            )
        check_transport(self)
        check_limits(self)

    @property
    def topics(self) -> SystemTopics:
        """The namespace's topics."""
        return SystemTopics(self.namespace)


def check_servers(servers: str) -> None:
    """Refuse a value that names no brokers.

    Raises:
        ConfigError: it is empty, or a part is not an address. The value is not shown: it may contain a password.
    """
    named = [part for part in map(str.strip, servers.split(",")) if part]
    if not named or not all(map(_SERVER.fullmatch, named)):
        raise ConfigError(
            "not an address of a broker" if named else "no broker named",
            name="bootstrap_servers",
            expected="HOST:PORT[,HOST:PORT…]",
        )


def check_client_settings(settings: Mapping[str, Any]) -> None:
    """Refuse values that the client would misread: it converts each one to text, and then to a C string.

    Raises:
        ConfigError: not a mapping of names to texts, numbers, booleans and functions. No value is shown.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(
            "not a mapping", name="client_settings", expected="names of librdkafka settings and their values"
        )
    for name, value in settings.items():
        if not isinstance(name, str) or _SETTING_NAME.fullmatch(name) is None:
            # Not shown: it may be a line that contains a password.
            raise ConfigError(
                "no setting has such a name", name="client_settings", expected="names of A-Z a-z 0-9 . _ -"
            )
        is_right = value is None or isinstance(value, (str, int, float)) or callable(value)
        if name == "logger":
            is_right = hasattr(value, "log")
        elif name in _MECHANISMS and isinstance(value, str):
            # The client's own warning would show the rest of the value.
            is_right = _MECHANISM.fullmatch(value) is not None
        # Above: surrogates, which are bytes of the environment that are not UTF-8.
        if not is_right or (isinstance(value, str) and re.search("[\0\ud800-\udfff]", value)):
            raise ConfigError(
                "the client cannot be given this value",
                name=name,
                expected=(
                    "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI"
                    if name in _MECHANISMS
                    else "a text without NUL, in UTF-8, a number, true or false, or a function"
                ),
            )


def check_transport(config: ClientConfig) -> None:
    """Refuse plain text to another machine, and TLS without verification, unless `is_insecure_allowed`.

    Raises:
        ConfigError: a bootstrap server is on another machine, and the connection could be read or changed.
    """
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
        raise ConfigError(
            f"plain text to another machine; use security.protocol=SSL or SASL_SSL, or say {ALLOW_INSECURE}",
            name="bootstrap_servers",
            value=others[0],
            expected="a loopback address or TLS",
        )
    for name, value in _UNVERIFIED.items():
        if str(settings.get(name, "")).lower() == value:
            raise ConfigError(
                f"TLS to another machine without knowing which; remove this setting, or say {ALLOW_INSECURE}",
                name=name,
                value=value,
                expected="librdkafka's default, which verifies",
            )


def check_limits(config: ClientConfig) -> None:
    """Refuse numbers and durations that are not above zero.

    Raises:
        ConfigError: one of them is 0 or less.
    """
    for f in fields(config):
        value = getattr(config, f.name)
        if isinstance(value, bool):
            continue
        if (isinstance(value, int) and value < 1) or (isinstance(value, timedelta) and value <= timedelta(0)):
            raise ConfigError("not possible as a limit", name=f.name, value=value, expected="more than 0")


def check_transaction_timeout(timeout: timedelta) -> None:
    """Refuse a `kafka_transaction_timeout` under 2 s: records must time out one second before their Kafka transaction.

    Raises:
        ConfigError: it is too short. With 1 s the client would wait forever (its 0); with less it refuses to start.
    """
    if timeout < KAFKA_TRANSACTION_TIMEOUT_MIN:
        raise ConfigError(
            "too short: a record is given up one second before its Kafka transaction",
            name="kafka_transaction_timeout",
            value=timeout,
            expected="at least 2s",
        )
