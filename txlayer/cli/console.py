"""`txlayer console`: what is in doubt, in a browser; who may use it, and from where.

What needs the extra `console` is imported when a command runs.
"""

from __future__ import annotations

import gc
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from txlayer.cli.options import Bundle, Connection, administration, command, option, read_secret, with_bundles
from txlayer.cli.services import Logging, StopSignal
from txlayer.config import ConsumerConfig, CoordinatorConfig
from txlayer.errors import ConfigError
from txlayer.operate.operators import check_operator_rights

if TYPE_CHECKING:
    from txlayer.console.access import AccessRules
    from txlayer.console.app import Console

app = typer.Typer(help="Show what is in doubt, in a browser.")

access_option = partial(option, rich_help_panel="Access")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions(Bundle):
    """Who may use the console, and from where."""

    allow_writes: bool = access_option(
        "--allow-writes", "Let people with the role settle act; needs an operator's rights.", default=False
    )
    users: str | None = access_option(
        "--users", "Who may log in: lines that `txlayer console user` makes. Read at the start.", "FILE"
    )
    second_person: bool = access_option("--second-person", "Another person confirms each action.", default=False)
    tls_cert: str | None = access_option("--tls-cert", "Certificate and its chain, as PEM: listen with TLS.", "FILE")
    tls_key: str | None = access_option("--tls-key", "Its key, as PEM without a passphrase.", "FILE")
    proxy: list[str] | None = access_option(
        "--proxy",
        "The address (or network) of a proxy with TLS before the console; may be repeated. Without --tls-cert others get nothing.",
        "ADDRESS",
    )
    identity_header: str | None = access_option(
        "--identity-header", "The header in which the proxy names the person; it must remove the client's own.", "NAME"
    )
    public_name: list[str] | None = access_option(
        "--public-name",
        "A host name under which browsers reach the console; may be repeated. Others than these and localhost are refused.",
        "HOST",
    )

    def rules(self, host: str) -> AccessRules:
        """What these options say together; ConfigError: the console would not be safe."""
        from txlayer.console.access import AccessRules, parse_proxy
        from txlayer.console.people import parse_users
        from txlayer.operate.operators import this_user

        return AccessRules(
            host=host,
            public_names=frozenset(name.lower() for name in self.public_name or ()),
            is_tls=bool(self.tls()),
            proxies=tuple(map(parse_proxy, self.proxy or ())),
            identity_header=self.identity_header,
            users=parse_users(read_secret("--users", self.users), name="--users") if self.users is not None else {},
            local_name=this_user(),
            is_writable=self.allow_writes,
            needs_second_person=self.second_person,
        )

    def tls(self) -> dict[str, str]:
        """What the server must be given for TLS, nothing without it; ConfigError: it cannot be used."""
        if self.tls_cert is None and self.tls_key is None:
            return {}
        try:
            if self.tls_cert is None or self.tls_key is None:
                raise OSError(None, "both are needed")
            # A passphrase would be asked for at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, lambda: "")
        except OSError as exc:  # of which SSLError is one
            why = f"cannot be used: {exc.strerror}"
            raise ConfigError(why, name="--tls-cert, --tls-key", expected="PEM files that belong together") from None
        return {"ssl_certfile": self.tls_cert, "ssl_keyfile": self.tls_key}


@app.callback(invoke_without_command=True)
@with_bundles
def run(
    context: typer.Context,
    *,
    host: str = option("--host", "The address to listen on.", "ADDRESS", default="127.0.0.1"),
    port: int = option("--port", "The port to listen on; 0: a free one.", "PORT", min=0, max=65535, default=8480),
    trace_address: str = option(
        "--trace-address", "Where a trace is shown; {trace_id} in it stands for the id.", "https://…", default=""
    ),
    report_address: str = option(
        "--report-address", "Where the page of `txlayer-spark report` is shown.", "https://…", default=""
    ),
    logs: Logging,
    access: AccessOptions,
    connection: Connection,
) -> None:
    """Serve the console until SIGTERM or Ctrl-C.

    Exit codes: 0 stopped as asked, 2 usage or configuration; with --allow-writes also 3 no broker, 5 not authorised.
    """
    if context.invoked_subcommand is not None:
        return
    logs.set_up_logging()
    config = connection.config(CoordinatorConfig)
    for name, address in (("--trace-address", trace_address), ("--report-address", report_address)):
        if address and not address.startswith(("https://", "http://")):
            raise ConfigError("no address of a page", name=name, value=address, expected="https://…")
    consumers = connection.config(ConsumerConfig)
    with needing_extra():
        from txlayer.console.app import Console
    from txlayer.adapters.connect import kafka_clients
    from txlayer.adapters.kafka.inspection import inspect

    console = Console(
        config,
        kafka_clients(config),
        inspect=partial(inspect, config),
        consumers=consumers,
        rules=access.rules(host),
        trace_address=trace_address,
        report_address=report_address,
    )
    tls = access.tls()
    if access.allow_writes:
        with administration(config) as admin:
            check_operator_rights(admin.topic_limits, config.topics)
    serve(console, host=host, port=port, tls=tls)


def serve(console: Console, *, host: str, port: int, tls: dict[str, str]) -> None:
    """Print the address, and answer until a signal; ConfigError: the address cannot be listened on."""
    import uvicorn

    from txlayer.console.app import build_app
    from txlayer.console.limits import server_settings

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as exc:
        why = f"cannot listen there: {exc.strerror}"
        raise ConfigError(why, name="--host, --port", value=f"{host}:{port}") from exc
    with listening:
        stop = StopSignal()
        stop.install()  # the server raises a signal again after its clean end: then it has no further effect
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}/")
        settings: dict[str, Any] = {**server_settings(console.connections), **tls}
        server = uvicorn.Server(uvicorn.Config(build_app(console), **settings))
        # What is imported stays, and records come by thousands: to look at all of it again and again for garbage took a sixth of the
        # CPU while doubt is read.
        gc.freeze()
        gc.set_threshold(20_000)
        server.run(sockets=[listening])


@contextmanager
def needing_extra() -> Iterator[None]:
    """Say which extra is missing, if an import within the block fails; ConfigError: the extra `console` is not installed."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("txlayer"):
            raise
        why = 'the console needs its extra: pip install "txlayer[console]"'
        raise ConfigError(why, name=exc.name, expected="installed") from exc


@command(app)
def user(
    name: Annotated[str, typer.Argument(help="The person's name, as the op lines of its actions will have it.")],
    *,
    role: Literal["look", "settle"] = option("--role", "Whether the person only sees, or also acts.", default="look"),
) -> None:
    """Print a line for the file --users; the password comes from a prompt, or from the first line of standard input."""
    with needing_extra():
        from txlayer.console.people import PASSWORD_BYTES_MAX, Person, Role, user_line

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline(PASSWORD_BYTES_MAX + 2).rstrip("\r\n")
    typer.echo(user_line(Person(name, Role(role)), password))
