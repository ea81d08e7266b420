"""What an operator says with every action: what it is about, who says it, and why."""

from __future__ import annotations

import getpass
import socket
from typing import NamedTuple

from txlayer.core.history import operator_reason
from txlayer.errors import UsageError

REASON_LENGTH_MAX = 1_000
"""Characters of a reason: a ticket and a sentence or two, in every record of a bulk."""
OPERATOR_LENGTH_MAX = 100
"""Characters of an operator's name."""


class Signature(NamedTuple):
    """The operator's name and reason, as the records of a command keep them."""

    operator: str
    reason: str

    @property
    def text(self) -> str:
        """`operator: reason`."""
        return operator_reason(self.operator, self.reason)


def signature_of(
    command: str,
    *,
    operator: str | None,
    reason: str,
    recorded: str = "it is recorded",
    may_be_silent: bool = False,
) -> Signature:
    """The signature that records can keep; the operator is USER@host by default, `may_be_silent`: no reason is one, too.

    Raises:
        UsageError: no reason, one that is too long, or a name that cannot be one.
    """
    if not may_be_silent and not reason.strip():
        raise UsageError(f'{command}: say why with --reason "…"; {recorded}')
    if len(reason) > REASON_LENGTH_MAX:
        raise UsageError(f"{command}: --reason takes at most {REASON_LENGTH_MAX:,} characters")
    name = _this_user() if operator is None else operator
    if not name.strip() or ": " in name or len(name) > OPERATOR_LENGTH_MAX:
        raise UsageError(
            f"{command}: --operator takes a name of 1 to {OPERATOR_LENGTH_MAX} characters without a colon and a blank"
        )
    return Signature(name, reason)


def _this_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def check_choice(
    command: str,
    what: str,
    *,
    is_any_named: bool,
    is_all: bool,
    is_filtered: bool,
    limit: int | None,
) -> None:
    """Refuse a choice that cannot be meant: either names, or `--all` with filters and a limit.

    Raises:
        UsageError: the options contradict each other. Nothing was read.
    """
    if is_all == is_any_named:
        raise UsageError(f"{command}: name {what}, or say --all with filters")
    if not is_all and is_filtered:
        raise UsageError(f"{command}: filters choose among --all; with {what} leave them out")
    if not is_all and limit is not None:
        raise UsageError(f"{command}: --limit goes with --all")
