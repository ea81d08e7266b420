"""What an operator can know and do: functions that take a connection and return values. The command line and the console are its faces.

Functions whose names end in `_json` make what `--json` prints; every face shows the same.

What contradicts itself is a UsageError, before anything is read. Whatever reads raises ConfigError where no offsets are stored,
TopicMismatchError where a topic is missing, BrokerUnavailableError, NotAuthorisedError or RetriableError where the rest cannot be
read.
"""

import base64
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from txlayer.errors import TxLayerError

Json = dict[str, Any]  # a value of JSON: an object


def length_text(length_ms: int) -> str:
    """A length of time in its two largest units: 850 ms, 12 s, 3 min 20 s, 5 h 2 min, 3 d 4 h."""
    if length_ms < 1000:
        return f"{max(length_ms, 0)} ms"
    seconds = length_ms // 1000
    for unit, size, lower, lower_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // lower_size
            return f"{seconds // size} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{seconds} s"


def time_text(at_ms: int | None) -> str:
    """An instant of UTC; a broken clock may have written any number."""
    if at_ms is None:
        return ""
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def problem_of(error: Exception, logger: logging.Logger, event: str, **extra: str) -> str:
    """What is shown of an error that came to the border of a thread; a defect is logged, too. Call it where the error is handled."""
    if isinstance(error, TxLayerError):
        return str(error)
    logger.error(event, exc_info=error, extra=extra)
    return f"a defect of txlayer: {type(error).__name__}; its log has the details"


def bytes_json(raw: bytes | None) -> Json | None:
    """Bytes as base64, and as text where they are UTF-8; null for null."""
    if raw is None:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    return {"base64": base64.b64encode(raw).decode("ascii"), "text": text}
