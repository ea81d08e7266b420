"""Settings as checked values: one frozen dataclass per role, read from a mapping, never from the process.

`KNOWN_NAMES` is the union of all roles' environment names; an unknown name that begins with `TXLAYER_` is an error,
because a mistyped limit would silently be a default.
"""

from txlayer.config.client import (
    PROTECTED_CLIENT_SETTINGS,
    ClientConfig,
    SystemTopics,
    check_limits,
    check_namespace,
    check_transport,
    is_secret,
)
from txlayer.config.consumer import ConsumerConfig
from txlayer.config.coordinator import CoordinatorConfig
from txlayer.config.metrics import MetricsConfig, metrics_config
from txlayer.config.producer import (
    IMMUNITY_MAX,
    AnsweringConfig,
    ProducerConfig,
    ResponderConfig,
)
from txlayer.config.reading import (
    ENVIRONMENT_PREFIX,
    KNOWN_NAMES,
    OTHER_NAMES,
    ROLES,
    check_names,
    environment_names,
    from_environ,
    milliseconds,
    parse_duration,
    parse_settings,
    parse_settings_file,
    parse_value,
)

__all__ = [
    "ENVIRONMENT_PREFIX",
    "IMMUNITY_MAX",
    "KNOWN_NAMES",
    "OTHER_NAMES",
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
    "check_limits",
    "check_names",
    "check_namespace",
    "check_transport",
    "environment_names",
    "from_environ",
    "is_secret",
    "metrics_config",
    "milliseconds",
    "parse_duration",
    "parse_settings",
    "parse_settings_file",
    "parse_value",
]
