"""Options that commands share, and the settings that come of them; the environment is read here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import typer

from txlayer.config import ENVIRONMENT_PREFIX, ClientConfig, from_environ, parse_settings

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
        "and is added to TXLAYER_CLIENT_SETTINGS (there with ; between).",
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

_CLIENT_SETTINGS = f"{ENVIRONMENT_PREFIX}CLIENT_SETTINGS"

C = TypeVar("C", bound=ClientConfig)


def client_config(
    role: type[C],
    *,
    bootstrap_servers: str | None = None,
    namespace: str | None = None,
    client_setting: Sequence[str] | None = None,
    insecure: bool = False,
    environ: Mapping[str, str] | None = None,
    **given: Any,
) -> C:
    """The role's settings from the command line, else the environment, else the defaults.

    A `--client-setting` is added to those of the environment and wins over one of the same name.

    Raises:
        ConfigError: a value has the wrong form, or a name in the environment is unknown.
    """
    environ = os.environ if environ is None else environ
    settings = None
    if client_setting:
        settings = {
            **parse_settings(_CLIENT_SETTINGS, environ.get(_CLIENT_SETTINGS, "").split(";")),
            **parse_settings("--client-setting", list(client_setting)),
        }
    return from_environ(
        role,
        environ,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_settings=settings,
        is_insecure_allowed=insecure or None,
        **given,
    )
