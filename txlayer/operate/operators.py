"""The operator's name and reason in the records that a command writes."""

from __future__ import annotations

import getpass
import socket

from txlayer.errors import UsageError

REASON_LENGTH_MAX = 1_000
"""Characters of a reason: a ticket and a sentence or two, in every record of a bulk."""
OPERATOR_LENGTH_MAX = 100
"""Characters of an operator's name."""


def default_operator() -> str:
    """USER@host of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def check_signature(
    command: str,
    *,
    operator: str,
    reason: str,
    recorded: str = "it is recorded",
    may_be_silent: bool = False,
) -> None:
    """Refuse a name or a reason that records cannot keep; `may_be_silent`: no reason is one, too.

    Raises:
        UsageError: no reason, one that is too long, or a name that cannot be one.
    """
    if not may_be_silent and not reason.strip():
        raise UsageError(f'{command}: say why with --reason "…"; {recorded}')
    if len(reason) > REASON_LENGTH_MAX:
        raise UsageError(f"{command}: --reason takes at most {REASON_LENGTH_MAX:,} characters")
    if not operator.strip() or ": " in operator or len(operator) > OPERATOR_LENGTH_MAX:
        raise UsageError(
            f"{command}: --operator takes a name of 1 to {OPERATOR_LENGTH_MAX} characters without a colon and a blank"
        )


def signed_reason(command: str, *, operator: str | None, reason: str) -> str:
    """`operator: reason`, as records keep it.

    Raises:
        UsageError: as `check_signature`.
    """
    named = default_operator() if operator is None else operator
    check_signature(command, operator=named, reason=reason)
    return f"{named}: {reason}"
