"""Where a process tells its figures and its health. Read by commands, not by a role: a consumer's settings are its program's."""

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
    """0: nothing listens. Several workers have one port each, from this one on."""
    metrics_host: str = "127.0.0.1"
    """Where it listens. Names of topics and groups can be read there, without a password: 0.0.0.0 only inside a network of your own."""

    def __post_init__(self) -> None:
        """Check what can be checked without listening."""
        if not 0 <= self.metrics_port <= PORT_MAX:
            raise ConfigError(
                "not a port", name="metrics_port", value=self.metrics_port,
                expected=f"0 (nothing listens) to {PORT_MAX}",
            )  # fmt: skip
        if not self.metrics_host.strip():
            raise ConfigError(
                "not an address", name="metrics_host", value="", expected="127.0.0.1 or another one"
            )

    @property
    def host(self) -> str:
        """Where it listens."""
        return self.metrics_host.strip()

    @property
    def port(self) -> int:
        """Where it listens; 0: nowhere."""
        return self.metrics_port

    def of_worker(self, number: int) -> MetricsConfig:
        """Where the worker of this number, from 0 on, listens.

        Raises:
            ConfigError: there is no such port.
        """
        return replace(self, metrics_port=self.metrics_port + number) if self.metrics_port else self


def metrics_config(
    environ: Mapping[str, str], *, port: int | None = None, host: str | None = None
) -> MetricsConfig:
    """What is given, else what the environment says, else nothing listens.

    Raises:
        ConfigError: a value has no use.
    """
    if port is None:
        text = environ.get(PORT, "0").strip()
        if not (text.isascii() and text.isdigit()) or len(text) > len(str(PORT_MAX)):
            raise ConfigError("not a port", name=PORT, value=text, expected=f"0 to {PORT_MAX}")
        port = int(text)
    if host is None:
        host = environ.get(HOST, MetricsConfig().metrics_host)
    return MetricsConfig(metrics_port=port, metrics_host=host)
