"""`module:name` on a command line → the function or object. Never: calling it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from txlayer.errors import ConfigError

T = TypeVar("T")


def load_handler(place: str, *, folder: str) -> Callable[..., Any]:
    """The function that `place` names; modules of `folder` are found first.

    Raises:
        ConfigError: it has another form, or there is no such module or function.
    """
    found = _load(place, folder=folder, name="--handler", kind="function")
    if not callable(found):
        raise ConfigError(
            f"{type(found).__name__} is not callable",
            name="--handler",
            value=place,
            expected="a function that takes a CheckRequest",
        )
    handler: Callable[..., Any] = found
    return handler


def load_object(place: str, kind: type[T], *, folder: str) -> T:
    """The object that `place` names, of this kind; modules of `folder` are found first.

    Raises:
        ConfigError: it has another form or kind, or there is no such module or object.
    """
    found = _load(place, folder=folder, name="MODULE:CONSUMER", kind="consumer")
    if not isinstance(found, kind):
        raise ConfigError(
            f"it is {type(found).__name__}", name="MODULE:CONSUMER", value=place, expected="a consumer"
        )  # fmt: skip
    return found


def _load(place: str, *, folder: str, name: str, kind: str) -> Any:
    module_name, colon, path = place.partition(":")
    if not colon or not module_name or not path:
        raise ConfigError(
            f"names no {kind}", name=name, value=place, expected=f"MODULE:{kind.upper()}"
        )
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = import_module(module_name)
    except Exception as exc:
        # The text of a stranger's exception may hold what nobody should read in a log: its kind and place are told.
        raise ConfigError(
            f"the module cannot be imported: {_told(exc)}",
            name=name,
            value=place,
            expected="a module that Python finds from here",
        ) from exc
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(
                f"{module_name} has no {path}",
                name=name,
                value=place,
                expected=f"a {kind} of the module",
            ) from None
    return found


def _told(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"no module named {error.name}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {last.filename}:{last.lineno}"
