"""Who gives a command by hand, and why: what stands in the records that it writes."""

from __future__ import annotations

import getpass
import socket

from txlayer.cli.settle_plan import OPERATOR_LENGTH_MAX, REASON_LENGTH_MAX
from txlayer.errors import UsageError


def default_operator() -> str:
    """USER@host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def signed_reason(command: str, *, operator: str | None, reason: str) -> str:
    """`operator: reason`, as records keep it.

    Raises:
        UsageError: no reason, one that is too long, or a name that cannot be one.
    """
    named = default_operator() if operator is None else operator
    if not reason.strip():
        raise UsageError(f'{command}: say why with --reason "…"; it is recorded')
    if len(reason) > REASON_LENGTH_MAX:
        raise UsageError(f"{command}: --reason takes at most {REASON_LENGTH_MAX:,} characters")
    if not named.strip() or ": " in named or len(named) > OPERATOR_LENGTH_MAX:
        raise UsageError(
            f"{command}: --operator takes a name of 1 to {OPERATOR_LENGTH_MAX} characters without a colon and a blank"
        )  # fmt: skip
    return f"{named}: {reason}"
