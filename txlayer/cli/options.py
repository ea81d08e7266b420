"""Options that many commands have, declared once as `Bundle`s, and the settings that come of them.

The environment is read here, in `services` and in `database`, and nowhere else. A password belongs neither into a command line,
which every user sees, nor into a log: a setting `NAME.file=PATH` is `NAME` with the file's content, where NAME holds a
secret (`sasl.password.file`).
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints
from urllib.parse import unquote_plus

import typer

from txlayer import __version__
from txlayer.config import (
    ENVIRONMENT_PREFIX,
    ClientConfig,
    from_environ,
    is_secret,
    parse_duration,
    parse_settings,
    parse_settings_file,
    parse_time,
)
from txlayer.errors import ConfigError

if TYPE_CHECKING:
    from txlayer.adapters.connect import Clients
    from txlayer.adapters.kafka.admin import KafkaAdmin

_OPTION = "option"

C = TypeVar("C", bound=ClientConfig)
T = TypeVar("T", bound=Callable[..., None])


def declared(names: str, text: str, metavar: str | None = None, /, **more: Any) -> Any:
    """What typer must know of an option: `--output -o` or `--output`, and its line of help."""
    return typer.Option(*names.split(), metavar=metavar, help=text, **more)


def option(*names_and_help: str, default: Any = None, **more: Any) -> Any:
    """An option of a command, in place of its parameter's default, or of a `Bundle`, as a field: `declared`, with this default."""
    return field(default=default, metadata={_OPTION: declared(*names_and_help, **more)})


def version_option(program: str) -> Any:

    def show(is_asked: bool) -> None:  # noqa: FBT001 - typer calls it with its value alone
        if is_asked:
            typer.echo(f"{program} {__version__}")
            raise typer.Exit

    return declared("--version", "Say the version and end.", callback=show, is_eager=True)


AsJson = Annotated[bool, declared("--json", "Print JSON instead of a table.")]
Reason = Annotated[str, declared("--reason", "Why; recorded.", "TEXT")]
Operator = Annotated[str | None, declared("--operator", "Who; default USER@host.", "NAME")]
Yes = Annotated[bool, declared("--yes", "Do not ask.")]
DryRun = Annotated[bool, declared("--dry-run", "Show what would be stored, store nothing.")]
To = Annotated[
    str,
    declared("--to", "Where to begin; TIME as 2h (so long ago) or 2026-11-21T10:00:00+00:00.", "earliest|latest|TIME"),
]

_PANEL = "Connection"

BootstrapServers = Annotated[
    str | None,
    declared(
        "--bootstrap-servers -b",
        "Brokers to ask first; default TXLAYER_BOOTSTRAP_SERVERS, then 127.0.0.1:9092.",
        "HOST:PORT,…",
        rich_help_panel=_PANEL,
    ),
]
Namespace = Annotated[
    str | None,
    declared(
        "--namespace -n",
        "Set of system topics and coordinators; default TXLAYER_NAMESPACE, then txlayer.",
        rich_help_panel=_PANEL,
    ),
]
Insecure = Annotated[bool, declared("--insecure", "Allow plain text to another machine.", rich_help_panel=_PANEL)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Options that commands share. A command's parameter of such a type becomes one option per field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(Bundle):
    """Which cluster a command speaks to, and how."""

    bootstrap_servers: BootstrapServers = None
    client_setting: list[str] | None = option(
        "--client-setting -X",
        "A librdkafka setting (security.protocol, sasl.username, …); may be repeated, "
        "and is added to TXLAYER_CLIENT_SETTINGS (there with ; between) and to the file TXLAYER_CLIENT_SETTINGS_FILE. "
        "Secrets by file alone: sasl.password.file=PATH.",
        "NAME=VALUE",
        rich_help_panel=_PANEL,
    )
    insecure: Insecure = False

    def config(self, role: type[C], **given: Any) -> C:
        """The role's settings from the command line, else the environment, else the defaults."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return client_config(role, **{**own, **given})


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(ClusterOptions):
    """Which namespace of which cluster."""

    namespace: Namespace = None


@contextmanager
def administration(config: ClientConfig) -> Iterator[KafkaAdmin]:
    """The administrator's view of a cluster; only now the Kafka client is loaded, so that `--help` is quick."""
    from txlayer.adapters.kafka.admin import KafkaAdmin

    with KafkaAdmin(config) as admin:
        yield admin


def current_ms() -> int:
    return int(time.time() * 1000)


def brokers_ms(clients: Clients) -> Callable[[], int]:
    """The brokers' time of now, asked for once, when it is needed."""
    return functools.cache(lambda: clients.history().time().latest_ms)


def command(app: typer.Typer, name: str | None = None, **more: Any) -> Callable[[T], T]:
    """Add a command to a group; its parameters may be bundles of options."""

    def add(function: T) -> T:
        app.command(name, **more)(with_bundles(function))
        return function

    return add


def with_bundles(command: Callable[..., None]) -> Callable[..., None]:
    """The same command for typer, each parameter that is a `Bundle` replaced by its options."""
    hints = get_type_hints(command, include_extras=True)
    bundles: dict[str, type[Bundle]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and issubclass(kind, Bundle):
            bundles[parameter.name] = kind
            own = get_type_hints(kind, include_extras=True)
            parameters += (_parameter(each.name, own[each.name], each) for each in fields(kind))
        elif isinstance(parameter.default, Field):
            parameters.append(_parameter(parameter.name, kind, parameter.default))
        else:
            parameters.append(parameter.replace(annotation=kind))

    @functools.wraps(command)
    def call(**given: Any) -> None:
        for name, kind in bundles.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        command(**given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _parameter(name: str, hint: Any, of: Field[Any]) -> inspect.Parameter:
    """The parameter that typer reads; its type says already what it is, unless that was given as an `option`."""
    default = inspect.Parameter.empty if of.default is MISSING else of.default
    hint = Annotated[hint, of.metadata[_OPTION]] if _OPTION in of.metadata else hint
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


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
    """The role's settings from options, else the environment, else the defaults.

    Of client settings the nearest wins: `client_setting`, the environment's, those of the file that it names, a program's own `beneath`.
    """
    environ = os.environ if environ is None else environ
    settings = with_secrets(
        {**environment_settings(environ), **command_line_settings("--client-setting", list(client_setting or ()))}
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


def duration(option: str, text: str | None) -> timedelta | None:
    return None if text is None else parse_duration(option, text)


def parse_instant(name: str, text: str, *, now_ms: Callable[[], int]) -> int:
    """Milliseconds since 1970 of `2h` (so long ago) or of an ISO 8601 time (UTC when it names no zone).

    What is before 1970 is 1970: Kafka knows no earlier time. Only "so long ago" asks what time it is.
    """
    return max(parse_time(name, text, at_ms=lambda length_ms: now_ms() - length_ms), 0)


def parse_start(text: str, *, now_ms: Callable[[], int] = current_ms) -> Literal["earliest", "latest"] | int:
    """What `--to` names: earliest, latest, or milliseconds since 1970 as `parse_instant` reads them."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    return parse_instant("--to", text, now_ms=now_ms)


# --- secrets -----------------------------------------------------------------------------------------------------------

CLIENT_SETTINGS = f"{ENVIRONMENT_PREFIX}CLIENT_SETTINGS"
_FILE = f"{CLIENT_SETTINGS}_FILE"
_SUFFIX = ".file"
SECRET_BYTES_MAX = 64 * 1024  # a mistaken path (a device, a database) must not fill the memory

_PASSWORD_SETTING = re.compile(r"(password|passwd|pwd|passphrase|secret|token)\w*\s*=", re.IGNORECASE)
"""In what follows the `?` of a database's URL; drivers have their own names for it."""


def environment_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Client settings of the environment: of the file that it names, then its own, which win."""
    found = {}
    if environ.get(_FILE):
        found = parse_settings_file(_FILE, read_secret(_FILE, environ[_FILE]))
    return {**found, **parse_settings(CLIENT_SETTINGS, environ.get(CLIENT_SETTINGS, "").split(";"))}


def command_line_settings(option: str, parts: list[str]) -> dict[str, str]:
    """Settings of a command line; a secret itself is refused there."""
    settings = parse_settings(option, parts)
    for name in settings:
        if is_secret(name):
            why = f"every user who can list processes could read it; put it into a file and say {name}{_SUFFIX}=PATH, or use {_FILE}"
            raise ConfigError(why, name=f"{option} {name}", expected="no secret on a command line")
    return settings


def with_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """The same settings, each `NAME.file` replaced by `NAME` and the content of the file."""
    found = {}
    for name, value in settings.items():
        secret = name.removesuffix(_SUFFIX)
        if secret == name:
            found[name] = value
        elif is_secret(secret):
            found[secret] = read_secret(name, value)
        else:
            raise ConfigError("only a secret is read from a file", name=name, value=value, expected=f"{secret}=VALUE")
    return found


def read_secret(name: str, path: str) -> str:
    """A file's content without the end of its last line."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(SECRET_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except (OSError, ValueError) as exc:
        # The text of the second holds the bytes themselves.
        why = exc.strerror if isinstance(exc, OSError) else "no UTF-8"
        raise ConfigError(f"cannot be read: {why}", name=name, value=path, expected="a file") from None
    if not text.strip() or len(content) > SECRET_BYTES_MAX:
        raise ConfigError("empty, or too long", name=name, value=path, expected="a secret")
    return text.removesuffix("\n").removesuffix("\r")


def from_file(environ: Mapping[str, str], name: str) -> str | None:
    """What the environment says under `name`, else the content of the file that it names under `name`_FILE."""
    path = environ.get(f"{name}_FILE")
    return environ.get(name) or (read_secret(f"{name}_FILE", path) if path else None)


def refuse_password(url: str, *, option: str, name: str) -> None:
    before, _, query = url.partition("?")
    credentials = before.rpartition("@")[0].split("://", 1)[-1]
    if ":" in credentials or "@" in query or _PASSWORD_SETTING.search(unquote_plus(query)):
        raise ConfigError(
            f"every user who can list processes could read the password; set {name} in the environment, "
            f"or {name}_FILE to the path of a file that holds the URL",
            name=option,
            expected="no password on a command line",
        )
