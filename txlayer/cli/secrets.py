"""Secrets out of files: a password belongs neither into a command line, which everybody sees, nor into a log.

A setting `NAME.file=PATH` stands for `NAME` with the file's content, where NAME holds a secret (`sasl.password.file`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote_plus

from txlayer.config import ENVIRONMENT_PREFIX, is_secret, parse_settings, parse_settings_file
from txlayer.errors import ConfigError

CLIENT_SETTINGS = f"{ENVIRONMENT_PREFIX}CLIENT_SETTINGS"
_FILE = f"{CLIENT_SETTINGS}_FILE"
_SUFFIX = ".file"
SECRET_BYTES_MAX = 64 * 1024
"""A mistaken path (a device, a database) must not fill the memory."""

_PASSWORD_SETTING = re.compile(r"(password|passwd|pwd|passphrase|secret|token)\w*\s*=", re.IGNORECASE)
"""In what follows the `?` of a database's URL; drivers have their own names for it."""


def environment_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Client settings of the environment: of the file that it names, then its own, which win.

    Raises:
        ConfigError: a setting has the wrong form, or a file cannot be read.
    """
    found = {}
    if environ.get(_FILE):
        found = parse_settings_file(_FILE, read_secret(_FILE, environ[_FILE]))
    return {**found, **parse_settings(CLIENT_SETTINGS, environ.get(CLIENT_SETTINGS, "").split(";"))}


def command_line_settings(option: str, parts: list[str]) -> dict[str, str]:
    """Settings of a command line; a secret itself is refused there.

    Raises:
        ConfigError: a setting has the wrong form, or holds a secret.
    """
    settings = parse_settings(option, parts)
    for name in settings:
        if is_secret(name):
            raise ConfigError(
                f"every user who can list processes could read it; put it into a file and say {name}{_SUFFIX}=PATH, "
                f"or use {_FILE}",
                name=f"{option} {name}",
                expected="no secret on a command line",
            )
    return settings


def with_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """The same settings, each `NAME.file` replaced by `NAME` and the content of the file.

    Raises:
        ConfigError: a file cannot be read, or the name holds no secret.
    """
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
    """A file's content without the end of its last line.

    Raises:
        ConfigError: it cannot be read, is empty, or is no text.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(SECRET_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except (OSError, ValueError) as exc:
        # The text of the second holds the bytes themselves.
        told = exc.strerror if isinstance(exc, OSError) else "no UTF-8"
        raise ConfigError(f"cannot be read: {told}", name=name, value=path, expected="a file") from None
    if not text.strip() or len(content) > SECRET_BYTES_MAX:
        raise ConfigError("empty, or too long", name=name, value=path, expected="a secret")
    return text.removesuffix("\n").removesuffix("\r")


def from_file(environ: Mapping[str, str], name: str) -> str | None:
    """What the environment says under `name`, else the content of the file that it names under `name`_FILE."""
    path = environ.get(f"{name}_FILE")
    return environ.get(name) or (read_secret(f"{name}_FILE", path) if path else None)


def refuse_password(url: str, *, option: str, name: str) -> None:
    """Refuse a database's URL of a command line that holds a password.

    Raises:
        ConfigError: it does. The error names the ways to give it, and never the URL.
    """
    before, _, query = url.partition("?")
    credentials = before.rpartition("@")[0].rpartition("//")[2]
    if ":" in credentials or "@" in query or _PASSWORD_SETTING.search(unquote_plus(query)):
        raise ConfigError(
            f"everybody who can list processes could read the password; set {name} in the environment, "
            f"or {name}_FILE to the path of a file that holds the URL",
            name=option,
            expected="no password on a command line",
        )
