"""Settings of the metrics and health port. Commands read them; a consumer's own settings come from its program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from txlayer.config.reading import ENVIRONMENT_PREFIX
from txlayer.errors import ConfigError

HOST = f"{ENVIRONMENT_PREFIX}METRICS_HOST"
PORT = f"{ENVIRONMENT_PREFIX}METRICS_PORT"
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

    @property
    def host(self) -> str:
        """Address to listen on."""
        return self.metrics_host.strip()

    @property
    def port(self) -> int:
        """Port to listen on; 0: none."""
        return self.metrics_port

    def of_worker(self, number: int) -> MetricsConfig:
        """Settings for the worker of this number, from 0 on.

        Raises:
            ConfigError: the port number would be too large.
        """
        return replace(self, metrics_port=self.metrics_port + number) if self.metrics_port else self


def metrics_config(environ: Mapping[str, str], *, port: int | None = None, host: str | None = None) -> MetricsConfig:
    """Settings from the arguments, else from the environment, else with no port.

    Raises:
        ConfigError: a value is not valid.
    """
    if port is None:
        text = environ.get(PORT, "0").strip()
        if not (text.isascii() and text.isdigit()) or len(text) > len(str(PORT_MAX)):
            raise ConfigError("not a port", name=PORT, value=text, expected=f"0 to {PORT_MAX}")
        port = int(text)
    if host is None:
        host = environ.get(HOST, MetricsConfig().metrics_host)
    return MetricsConfig(metrics_port=port, metrics_host=host)
