"""How log lines look: a name and fields, as text or as JSON. Never users' values, never secrets."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from txlayer.errors import ConfigError

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def set_up_logging(*, log_format: str, level: str) -> None:
    """Send txlayer's log lines to standard error.

    Raises:
        ConfigError: `log_format` is neither text nor json, or there is no such level.
    """
    if log_format not in ("text", "json"):
        raise ConfigError(
            "no such log format", name="log format", value=log_format, expected="text or json"
        )
    if level.upper() not in _LEVELS:
        raise ConfigError(
            "no such log level", name="log level", value=level, expected=" ".join(_LEVELS)
        )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger("txlayer")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level.upper())
    # The client repeats every lost connection; what matters of it is said by ourselves.
    logging.getLogger("txlayer.librdkafka").setLevel(
        logging.ERROR if level.upper() != "DEBUG" else logging.DEBUG
    )


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _at(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "at": _at(record), "level": record.levelname, "logger": record.name, "event": record.getMessage(),
            "pid": record.process, **_fields(record),
        }  # fmt: skip
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, name, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{_at(record)} {record.levelname:<7} {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
