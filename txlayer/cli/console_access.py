"""Who may use `txlayer console`, and from where: its options, and the command that makes a line of its file of users.

What needs the extra `console` is imported when a command runs.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from txlayer.cli.options import Bundle, option, read_secret
from txlayer.errors import ConfigError

if TYPE_CHECKING:
    from txlayer.console.access import AccessRules

_PANEL = "Access"


@contextmanager
def needing_extra() -> Iterator[None]:
    """Say which extra is missing, if an import within the block fails.

    Raises:
        ConfigError: the extra `console` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("txlayer"):
            raise
        raise ConfigError(
            'the console needs its extra: pip install "txlayer[console]"', name=exc.name, expected="installed"
        ) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions(Bundle):
    """Who may use the console, and from where."""

    allow_writes: Annotated[
        bool,
        option(
            "--allow-writes", "Let people with the role settle act; needs an operator's rights.", rich_help_panel=_PANEL
        ),
    ] = False
    users: Annotated[
        str | None,
        option(
            "--users",
            "Who may log in: lines that `txlayer console user` makes. Read at the start.",
            "FILE",
            rich_help_panel=_PANEL,
        ),
    ] = None
    second_person: Annotated[
        bool, option("--second-person", "Another person confirms each action.", rich_help_panel=_PANEL)
    ] = False
    tls_cert: Annotated[
        str | None,
        option("--tls-cert", "Certificate and its chain, as PEM: listen with TLS.", "FILE", rich_help_panel=_PANEL),
    ] = None
    tls_key: Annotated[
        str | None, option("--tls-key", "Its key, as PEM without a passphrase.", "FILE", rich_help_panel=_PANEL)
    ] = None
    proxy: Annotated[
        list[str] | None,
        option(
            "--proxy",
            "The address (or network) of a proxy with TLS before the console; may be repeated. Without --tls-cert others get nothing.",
            "ADDRESS",
            rich_help_panel=_PANEL,
        ),
    ] = None
    identity_header: Annotated[
        str | None,
        option(
            "--identity-header",
            "The header in which the proxy names the person; it must remove the client's own.",
            "NAME",
            rich_help_panel=_PANEL,
        ),
    ] = None
    public_name: Annotated[
        list[str] | None,
        option(
            "--public-name",
            "A host name under which browsers reach the console; may be repeated. Others than these and localhost are refused.",
            "HOST",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def rules(self, host: str) -> AccessRules:
        """What these options say together.

        Raises:
            ConfigError: the console would not be safe.
        """
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
        """What the server must be given for TLS; nothing without it.

        Raises:
            ConfigError: it cannot be used.
        """
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


def user(
    name: Annotated[str, typer.Argument(help="The person's name, as the op lines of its actions will have it.")],
    *,
    role: Annotated[
        Literal["look", "settle"], option("--role", "Whether the person only sees, or also acts.")
    ] = "look",
) -> None:
    """Print a line for the file --users; the password comes from a prompt, or from the first line of standard input."""
    with needing_extra():
        from txlayer.console.people import PASSWORD_BYTES_MAX, Person, Role, user_line

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline(PASSWORD_BYTES_MAX + 2).rstrip("\r\n")
    typer.echo(user_line(Person(name, Role(role)), password))
