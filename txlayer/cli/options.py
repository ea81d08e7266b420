"""Options that commands share, and the settings that come of them; the environment is read here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer

from txlayer.cli.secrets import command_line_settings, environment_settings, with_secrets
from txlayer.config import ClientConfig, from_environ

BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,…",
        help="Brokers to ask first; default TXLAYER_BOOTSTRAP_SERVERS, then 127.0.0.1:9092.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Set of system topics and coordinators; default TXLAYER_NAMESPACE, then txlayer.",
        show_default=False,
    ),
]
ClientSetting = Annotated[
    list[str] | None,
    typer.Option(
        "--client-setting",
        "-X",
        metavar="NAME=VALUE",
        help="A librdkafka setting (security.protocol, sasl.username, …); may be repeated, "
        "and is added to TXLAYER_CLIENT_SETTINGS (there with ; between) and to the file TXLAYER_CLIENT_SETTINGS_FILE. "
        "Secrets by file alone: sasl.password.file=PATH.",
        show_default=False,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow plain text to another machine.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

C = TypeVar("C", bound=ClientConfig)


def client_config(
    role: type[C],
    *,
    bootstrap_servers: str | None = None,
    namespace: str | None = None,
    client_setting: Sequence[str] | None = None,
    insecure: bool = False,
    environ: Mapping[str, str] | None = None,
    beneath: Mapping[str, Any] | None = None,
    **given: Any,
) -> C:
    """The role's settings from the command line, else the environment, else the defaults.

    A `--client-setting` is added to those of the environment, and these to those of the file that it names; the nearer
    wins; those `beneath` are a program's own.

    Raises:
        ConfigError: a value has the wrong form, or a name in the environment is unknown.
    """
    environ = os.environ if environ is None else environ
    settings = with_secrets(
        {
            **environment_settings(environ),
            **command_line_settings("--client-setting", list(client_setting or ())),
        }
    )
    return from_environ(
        role,
        environ,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_settings={**(beneath or {}), **settings},
        is_insecure_allowed=insecure or None,
        **given,
    )
