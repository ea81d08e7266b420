"""`--metrics-port` and `--metrics-host`: one port with metrics, liveness and readiness, for every role that runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from txlayer.adapters.http import MetricsServer
from txlayer.adapters.meters import Observed
from txlayer.config import MetricsConfig, metrics_config

PORT_OPTION = "--metrics-port"

MetricsPort = Annotated[
    int | None,
    typer.Option(
        PORT_OPTION,
        metavar="PORT",
        help="Answer /metrics, /livez and /readyz there; several workers have one port each, from this one on. "
        "Default TXLAYER_METRICS_PORT, then none. Needs the extra metrics.",
        show_default=False,
    ),
]
MetricsHost = Annotated[
    str | None,
    typer.Option(
        "--metrics-host",
        metavar="ADDRESS",
        help="The address for it; default TXLAYER_METRICS_HOST, then 127.0.0.1.",
        show_default=False,
    ),
]


def given_metrics(port: int | None, host: str | None) -> MetricsConfig:
    """What the command line says, else the environment.

    Raises:
        ConfigError: a value has no use.
    """
    return metrics_config(os.environ, port=port, host=host)


@contextmanager
def observed(config: MetricsConfig, make: Callable[[], Observed]) -> Iterator[None]:
    """Answer within the block whoever scrapes and probes; without a port nothing is made.

    Raises:
        ConfigError: the extra is missing, or the port cannot be had.
    """
    if not config.port:
        yield
        return
    with MetricsServer(config, make()):
        yield


def ports_of_workers(
    config: MetricsConfig, worker_count: int
) -> Callable[[int], Sequence[str]] | None:
    """What a worker of a number is told beside the common command; None: nothing.

    Raises:
        ConfigError: the last worker would have no port.
    """
    if not config.port:
        return None
    config.of_worker(worker_count - 1)
    return lambda number: (PORT_OPTION, str(config.of_worker(number).port))
