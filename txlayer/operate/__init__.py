"""What an operator can know and do: functions that take a connection and return values. The command line is one face of it.

Functions whose names end in `_json` make what `--json` prints; every face shows the same.

What contradicts itself is a UsageError, before anything is read. Whatever reads raises ConfigError where no offsets are stored,
TopicMismatchError where a topic is missing, BrokerUnavailableError and NotAuthorisedError where the rest cannot be read.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
"""A value of JSON: an object."""
