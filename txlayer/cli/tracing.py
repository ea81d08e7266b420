"""`--tracing` of the commands that run services."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated

import typer

from txlayer.adapters.tracing import NO_TRACING, Tracing
from txlayer.errors import ConfigError

TRACING = "TXLAYER_TRACING"
_WORDS = {"": False, "0": False, "false": False, "1": True, "true": True}

logger = logging.getLogger("txlayer.tracing")

TracingOption = Annotated[
    bool | None,
    typer.Option(
        "--tracing/--no-tracing",
        help=f"Make OpenTelemetry spans (extra txlayer[otel]); default {TRACING}, then not. Start it with "
        "`opentelemetry-instrument`, which sets up the SDK.",
        show_default=False,
    ),
]


def tracing_of(option: bool | None, environ: Mapping[str, str]) -> Tracing:  # noqa: FBT001 - an option's value
    """The tracing that an option, else the environment, asks for.

    Raises:
        ConfigError: the extra is missing, or the environment says neither true nor false.
    """
    said = environ.get(TRACING, "").lower()
    if said not in _WORDS:
        raise ConfigError("neither on nor off", name=TRACING, value=said, expected="true or false")
    if not (_WORDS[said] if option is None else option):
        return NO_TRACING
    try:
        from txlayer.adapters.otel import OpenTelemetryTracing, is_recorded
    except ImportError as exc:
        raise ConfigError(
            "OpenTelemetry is not installed",
            name="--tracing",
            expected='pip install "txlayer[otel]"',
        ) from exc
    if not is_recorded():
        logger.warning(
            "tracing.nobody_records", extra={"mend": "start with opentelemetry-instrument"}
        )
    return OpenTelemetryTracing()
