"""What a command ends with: one line on standard error, and a number that a supervisor can act on."""

from __future__ import annotations

from enum import IntEnum

from txlayer.errors import (
    FencedError,
    InvariantError,
    NotAuthorisedError,
    RetriableError,
    TxLayerError,
    UsageError,
)


class ExitCode(IntEnum):
    """The exit codes of every command."""

    GOOD = 0  #: done, or in order
    FINDING = (
        1  #: the command worked and found something: not running, differences, a wrong verdict
    )
    USAGE = 2  #: a wrong argument or setting; again only after a change
    UNAVAILABLE = 3  #: no broker, or no network; the same command may work later
    FENCED = 4  #: a newer owner exists; do not start again by yourself
    NOT_AUTHORISED = 5  #: the broker refuses who we are
    BROKEN_INVARIANT = 70  #: txlayer is wrong; keep the log


# The first class that fits decides: special ones stand before those that they belong to.
_CODES: tuple[tuple[type[TxLayerError], ExitCode], ...] = (
    (InvariantError, ExitCode.BROKEN_INVARIANT),
    (FencedError, ExitCode.FENCED),
    (NotAuthorisedError, ExitCode.NOT_AUTHORISED),
    (UsageError, ExitCode.USAGE),
    (RetriableError, ExitCode.UNAVAILABLE),
    (TxLayerError, ExitCode.FINDING),
)


def exit_code(error: TxLayerError) -> ExitCode:
    """The exit code that tells a supervisor what the error's class tells a program."""
    return next(code for kind, code in _CODES if isinstance(error, kind))
