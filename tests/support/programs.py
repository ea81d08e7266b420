"""Programs that tests run to their end."""

import subprocess
from collections.abc import Sequence
from typing import Any


def run_program(
    command: Sequence[Any], *, within: float, check: bool = False, **how: Any
) -> subprocess.CompletedProcess[str]:
    """How it ended and what it said; subprocess.TimeoutExpired after so many seconds. `how` as for `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, timeout=within, check=check, **how)
