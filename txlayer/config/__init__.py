"""Settings as checked values: one frozen dataclass per role, read from a mapping that the caller passes.

`KNOWN_NAMES` holds the environment names of all roles. An unknown name that begins with `TXLAYER_` is an error,
because a mistyped limit would silently leave its default in force.
"""

from txlayer.config.client import PROTECTED_CLIENT_SETTINGS, ClientConfig, SystemTopics, check_namespace, is_secret
from txlayer.config.reading import (
    ENVIRONMENT_PREFIX,
    KNOWN_NAMES,
    ROLES,
    MetricsConfig,
    check_names,
    environment_names,
    from_environ,
    milliseconds,
    parse_duration,
    parse_settings,
    parse_settings_file,
    parse_value,
    seconds,
)
from txlayer.config.roles import (
    IMMUNITY_MAX,
    AnsweringConfig,
    ConsumerConfig,
    CoordinatorConfig,
    ProducerConfig,
    ResponderConfig,
)

__all__ = [
    "ENVIRONMENT_PREFIX",
    "IMMUNITY_MAX",
    "KNOWN_NAMES",
    "PROTECTED_CLIENT_SETTINGS",
    "ROLES",
    "AnsweringConfig",
    "ClientConfig",
    "ConsumerConfig",
    "CoordinatorConfig",
    "MetricsConfig",
    "ProducerConfig",
    "ResponderConfig",
    "SystemTopics",
    "check_names",
    "check_namespace",
    "environment_names",
    "from_environ",
    "is_secret",
    "milliseconds",
    "parse_duration",
    "parse_settings",
    "parse_settings_file",
    "parse_value",
    "seconds",
]
