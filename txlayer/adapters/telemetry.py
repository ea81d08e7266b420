"""Format log lines: a name and fields, as text or as JSON, without users' values and secrets.

Ids, groups, topics and reasons come from the log, where any client may have written anything. `printable` is applied
wherever they leave the process: to log lines, terminals and metric labels.
"""

import json
import logging
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from threading import current_thread, main_thread
from typing import Any

from txlayer.errors import ConfigError

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def printable(text: str) -> str:
    """Text without line breaks and control characters; these are shown as Python escapes them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """A traceback with its lines kept and indented, so that none of them looks like a log line."""
    return "\n".join(f"  {printable(line)}" for line in text.split("\n"))


def set_up_logging(*, log_format: str, level: str) -> None:
    """Write txlayer's log lines to standard error.

    Raises:
        ConfigError: `log_format` is neither text nor json, or the level does not exist.
    """
    if log_format not in ("text", "json"):
        raise ConfigError("no such log format", name="log format", value=log_format, expected="text or json")
    if level.upper() not in _LEVELS:
        raise ConfigError("no such log level", name="log level", value=level, expected=" ".join(_LEVELS))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger("txlayer")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level.upper())
    # The client repeats every lost connection; txlayer logs the relevant ones itself.
    logging.getLogger("txlayer.librdkafka").setLevel(logging.ERROR if level.upper() != "DEBUG" else logging.DEBUG)


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger of this name, for threads that must outlive it: what a log handler raises goes to standard error, and no further."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **more: Any) -> None:
        """As `logging.Logger.log`; only an interruption of the main thread raises."""
        try:
            self.logger.log(level, msg, *args, **{"stacklevel": 2, **more})
        except BaseException as exc:
            if not isinstance(exc, Exception) and current_thread() is main_thread():
                raise
            # Standard error may be none, full or closed, and there is no other place.
            with suppress(AttributeError, OSError, ValueError):
                said = " ".join(map(str, (msg, *args)))
                sys.stderr.write(f"txlayer: not logged everywhere, a log handler raised {kind_of(exc)}: {said}\n")


def kind_of(error: BaseException) -> str:
    """The name of an error's class, with its module if it is not built in."""
    try:
        kind = type(error)
        return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    except BaseException:  # noqa: BLE001 - its class may be the user's, too
        return "Exception"


def look_at(error: BaseException) -> tuple[str, BaseException]:
    """The text of an error of the user's code, and what to log for it: the error, or one with its traceback that has a text.

    A formatter asks it and its causes for much, and any of that may raise, also what no log handler catches, as `SystemExit`.
    """
    try:
        text = str.__str__(str(error))
        repr(error), bool(error), error.__class__, traceback.format_exception(error, limit=0)
    except BaseException as exc:  # noqa: BLE001 - the user's code, too
        text, raised_at = f"its text raised {kind_of(exc)}", BaseException.__dict__["__traceback__"].__get__(error)
        return text, RuntimeError(f"{kind_of(error)}: {text}").with_traceback(raised_at)
    return text, error


def showable(error: BaseException) -> BaseException:
    """What to log for an error of the user's code."""
    return look_at(error)[1]


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields of a log line, without those that every record has."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _at(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            "pid": record.process,
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str).replace("\x7f", r"\u007f")


class TextFormatter(logging.Formatter):
    """Time, level, name, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_field(value)}" for name, value in fields_of(record).items())
        line = f"{_at(record)} {record.levelname:<7} {printable(record.getMessage())} {fields}".rstrip()
        if record.exc_info:
            line = f"{line}\n{printable_lines(self.formatException(record.exc_info))}"
        return line


def _field(value: object) -> str:
    """The value, quoted if it could be read as more than one field."""
    text = printable(str(value))
    return json.dumps(text, ensure_ascii=False) if "=" in text or '"' in text else text
