"""Secrets out of files: a password belongs neither into a command line, which everybody sees, nor into a log.

A setting `NAME.file=PATH` stands for `NAME` with the file's content, where NAME holds a secret (`sasl.password.file`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from txlayer.config import ENVIRONMENT_PREFIX, is_secret, parse_settings, parse_settings_file
from txlayer.errors import ConfigError

CLIENT_SETTINGS = f"{ENVIRONMENT_PREFIX}CLIENT_SETTINGS"
_FILE = f"{CLIENT_SETTINGS}_FILE"
_SUFFIX = ".file"
SECRET_BYTES_MAX = 64 * 1024
"""A mistaken path (a device, a database) must not fill the memory."""


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
                f"whoever may list processes would read it; put it into a file and say {name}{_SUFFIX}=PATH, "
                f"or use {_FILE}",
                name=f"{option} {name}", expected="no secret on a command line",
            )  # fmt: skip
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
            raise ConfigError(
                "only a secret is read from a file", name=name, value=value, expected=f"{secret}=VALUE"
            )  # fmt: skip
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
        raise ConfigError(f"cannot be read: {told}", name=name, value=path, expected="a file") from None  # fmt: skip
    if not text.strip() or len(content) > SECRET_BYTES_MAX:
        raise ConfigError("empty, or too long", name=name, value=path, expected="a secret")
    return text.removesuffix("\n").removesuffix("\r")


def from_file(environ: Mapping[str, str], name: str) -> str | None:
    """What the environment says under `name`, else the content of the file that it names under `name`_FILE."""
    path = environ.get(f"{name}_FILE")
    return environ.get(name) or (read_secret(f"{name}_FILE", path) if path else None)


def hide_url(argv: Sequence[str], environ: Mapping[str, str], *, option: str, name: str) -> None:
    """Begin this program again with a password in the environment instead of in the list of processes; else nothing."""
    hidden = without_url(argv[1:], option=option)
    if hidden is not None:
        arguments, url = hidden
        command = [sys.executable, "-m", "txlayer", *arguments]
        os.execve(sys.executable, command, {**environ, name: url})  # noqa: S606 - our own program


def without_url(arguments: Sequence[str], *, option: str) -> tuple[list[str], str] | None:
    """(the other arguments, the URL) where an argument is a database's URL that may hold a password; else None."""
    rest = list(arguments)
    for index, word in enumerate(rest):
        said, equals, value = word.partition("=")
        if said != option:
            continue
        url = value if equals else "".join(rest[index + 1 : index + 2])
        if "@" not in url and "?" not in url:
            return None  # neither credentials nor settings
        del rest[index : index + (1 if equals else 2)]
        return rest, url
    return None
