"""`txlayer console`: what is in doubt, in a browser."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlayer.adapters.telemetry import set_up_logging
from txlayer.cli.console_access import AccessOptions, needing_extra, user
from txlayer.cli.options import Connection, administration, command, option, with_bundles
from txlayer.cli.services import LOG_FORMAT, LOG_LEVEL, LogFormat, LogLevel
from txlayer.config import ConsumerConfig, CoordinatorConfig
from txlayer.coordinator.workers import StopSignal
from txlayer.errors import ConfigError
from txlayer.operate.operators import check_operator_rights

if TYPE_CHECKING:
    from txlayer.adapters.ports import ClusterFacts
    from txlayer.console.app import Console

app = typer.Typer(help="Show what is in doubt, in a browser.")
command(app)(user)


@app.callback(invoke_without_command=True)
@with_bundles
def run(
    context: typer.Context,
    *,
    host: Annotated[str, option("--host", "The address to listen on.", "ADDRESS")] = "127.0.0.1",
    port: Annotated[int, option("--port", "The port to listen on; 0: a free one.", "PORT", min=0, max=65535)] = 8480,
    trace_address: Annotated[
        str, option("--trace-address", "Where a trace is shown; {trace_id} in it stands for the id.", "https://…")
    ] = "",
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    access: AccessOptions,
    connection: Connection,
) -> None:
    """Serve the console until SIGTERM or Ctrl-C.

    Exit codes: 0 stopped as asked, 2 usage or configuration; with --allow-writes also 3 no broker, 5 not authorised.
    """
    if context.invoked_subcommand is not None:
        return
    set_up_logging(
        log_format=log_format or os.environ.get(LOG_FORMAT, "text"),
        level=log_level or os.environ.get(LOG_LEVEL, "INFO"),
    )
    config = connection.config(CoordinatorConfig)
    if trace_address and not trace_address.startswith(("https://", "http://")):
        raise ConfigError("no address of a page", name="--trace-address", value=trace_address, expected="https://…")
    consumers = connection.config(ConsumerConfig)
    console = make_console(config, consumers, access, host=host, trace_address=trace_address)
    tls = access.tls()
    if access.allow_writes:
        with administration(config) as admin:
            check_operator_rights(admin.topic_limits, config.topics)
    serve(console, host=host, port=port, tls=tls)


def make_console(
    config: CoordinatorConfig, consumers: ConsumerConfig, access: AccessOptions, *, host: str, trace_address: str
) -> Console:
    """The console of a real cluster.

    Raises:
        ConfigError: the extra is not installed, or the console would not be safe.
    """
    with needing_extra():
        from txlayer.console.app import Console
    from txlayer.adapters.connect import kafka_clients

    return Console(
        config,
        kafka_clients(config),
        inspect=partial(_inspect, config),
        consumers=consumers,
        rules=access.rules(host),
        trace_address=trace_address,
    )


def _inspect(config: CoordinatorConfig) -> ClusterFacts:
    from txlayer.adapters.kafka.inspection import Asked, inspect

    return inspect(config, Asked())


def serve(console: Console, *, host: str, port: int, tls: dict[str, str]) -> None:
    """Print the address, and answer until a signal.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    import uvicorn

    from txlayer.console.app import build_app
    from txlayer.console.limits import server_settings

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as exc:
        raise ConfigError(
            f"cannot listen there: {exc.strerror}", name="--host, --port", value=f"{host}:{port}"
        ) from exc
    with listening:
        stop = StopSignal()
        stop.install()  # the server raises a signal again after its clean end: then it has no further effect
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}/")
        settings: dict[str, Any] = {**server_settings(console.connections), **tls}
        server = uvicorn.Server(uvicorn.Config(build_app(console), **settings))
        server.run(sockets=[listening])
