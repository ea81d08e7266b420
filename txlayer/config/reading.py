"""Parse and check settings from texts: the environment mapping that the caller passes, and the command line.

The port of metrics belongs to no role: commands read its settings, a consumer's own come from its program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, TypeVar

from txlayer.config.client import ClientConfig
from txlayer.config.roles import ConsumerConfig, CoordinatorConfig, ProducerConfig, ResponderConfig
from txlayer.errors import ConfigError

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
        """Check what can be checked without listening."""
        if not 0 <= self.metrics_port <= PORT_MAX:
            raise ConfigError(
                "not a port",
                name="metrics_port",
                value=self.metrics_port,
                expected=f"0 (nothing listens) to {PORT_MAX}",
            )
        if not self.metrics_host.strip():
            raise ConfigError("not an address", name="metrics_host", value="", expected="127.0.0.1 or another one")

    def of_worker(self, number: int) -> MetricsConfig:
        """Settings for the worker of this number, from 0 on.

        Raises:
            ConfigError: the port number would be too large.
        """
        return replace(self, metrics_port=self.metrics_port + number) if self.metrics_port else self


KNOWN_NAMES = OTHER_NAMES.union(*(environment_names(role) for role in (*ROLES, MetricsConfig)))


def check_names(environ: Mapping[str, str]) -> None:
    """Refuse an unknown name: a mistyped one would silently leave a default in force.

    Raises:
        ConfigError: a name that begins with TXLAYER_ is unknown. Its value, which may be a secret, is not shown.
    """
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in KNOWN_NAMES:
            raise ConfigError(
                "unknown setting in the environment; correct or remove it",
                name=name,
                expected="one of " + ", ".join(sorted(KNOWN_NAMES)),
            )


def from_environ(role: type[C], environ: Mapping[str, str], **given: Any) -> C:
    """The role's settings. A value in `given` that is not None comes first, then `environ`, then the default.

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
        raise ConfigError("not a length of time", name=name, value=text, expected="250ms, 60s, 5m, 72h or 7d")
    unit = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    try:
        return timedelta(seconds=float(match[1]) * unit)
    except OverflowError as exc:
        raise ConfigError("too long a time", name=name, value=text, expected="a shorter one") from exc


def milliseconds(length: timedelta) -> int:
    """A duration in whole milliseconds."""
    return length // timedelta(milliseconds=1)


def seconds(length: timedelta | float) -> float:
    """A length of time in seconds; a number is already one."""
    return length.total_seconds() if isinstance(length, timedelta) else length


def parse_value(name: str, field_name: str, text: str, role: type[Any]) -> object:
    """Convert the text of a role's setting.

    Raises:
        ConfigError: it has the wrong form.
    """
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
    including `;` and `#`.

    Raises:
        ConfigError: a line has another form. The message gives the line number, not its text.
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
    """`key=value` parts as a mapping. Errors do not show a value: it may be a secret.

    Raises:
        ConfigError: a part has no `=`.
    """
    settings: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in parts)):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            # The part is not shown: it may be the end of a password that contains the separator.
            raise ConfigError(
                f"part {len(settings) + 1} has no name; a value with ; in it belongs into a file "
                "(TXLAYER_CLIENT_SETTINGS_FILE)",
                name=name,
                expected="name=value",
            )
        settings[key.strip()] = value
    return settings
