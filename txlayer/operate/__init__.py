"""What an operator can know and do: functions that take a connection and return values. The command line is one face of it.

Functions whose names end in `_json` make what `--json` prints; every face shows the same.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
"""A value of JSON: an object."""
