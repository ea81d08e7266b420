"""Where errors leave the program: one line on standard error, and a number that a supervisor can act on."""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType

from txlayer.adapters.telemetry import printable, printable_lines
from txlayer.errors import (
    FencedError,
    InvariantError,
    NotAuthorisedError,
    OutcomeUnknownError,
    RetriableError,
    TxLayerError,
    UsageError,
)


class ExitCode(IntEnum):
    """The exit codes of every command."""

    GOOD = 0  #: done, or in order
    FINDING = 1  #: the command worked and found something: not running, differences, a wrong verdict
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
    (OutcomeUnknownError, ExitCode.UNAVAILABLE),  # a second line or request does no harm
    (TxLayerError, ExitCode.FINDING),
)


def exit_code(error: TxLayerError) -> ExitCode:
    """The exit code that says to a supervisor what the error's class says to a program."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


INTERRUPTED = 130  # what shells say of a program that Ctrl-C ended
TERMINATED = 143  # likewise SIGTERM

UNREAD = 141
"""What shells say of a program whose reader has gone, such as `head`. It is no finding, because the output was not read."""


_heard: list[BaseException] = []  # what handlers of signals raised

_LOCKING = frozenset({threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__})
"""An exception raised in one of these leaves a lock that others wait for: the Kafka client does, when it is closed."""
_LATER_S = 0.001


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what is open is closed, and then the process.

    To its parent it has died of the signal. The first process of a container cannot: it exits with 143.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code in _LOCKING:
            signal.signal(signal.SIGALRM, lambda _, later: end(number, later))
            signal.setitimer(signal.ITIMER_REAL, _LATER_S)
            return
        _heard.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(TERMINATED))
        raise _heard[-1]

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background of a shell it is ignored
        signal.signal(signal.SIGINT, end)
    try:
        yield
    except SystemExit as exc:
        if exc.code == TERMINATED:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        raise


@contextmanager
def _raising_what_was_heard() -> Iterator[None]:
    """Raise what a handler of signals raised, where another error came of it: the Kafka client replaces it by errors of its own."""
    try:
        yield
    except Exception:
        if not _heard:
            raise
        raise _heard[-1] from None


@contextmanager
def saying(what_stands: str, *errors: type[TxLayerError]) -> Iterator[None]:
    """Say what stands, where Ctrl-C, SIGTERM or one of these errors ends the block, which writes."""
    ends: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit, *errors)
    try:
        with _raising_what_was_heard():
            yield
    except ends:
        _say(f"ended early: {printable(what_stands)}")
        raise


def guard(call: Callable[[], object]) -> int:
    """Run a command; 0, or the exit code of its error, which is printed in one line. SystemExit passes: it has an exit code."""
    try:
        try:
            with _raising_what_was_heard():
                call()
        finally:
            _flush()
    except SystemExit as exc:
        # typer and rich end with 1 when they notice it; 1 would be a finding.
        if isinstance(exc.__context__, BrokenPipeError):
            return UNREAD
        # Likewise when Ctrl-C is the answer to a question.
        if exc.__context__ is not None and isinstance(exc.__context__.__context__, KeyboardInterrupt):
            return INTERRUPTED
        raise
    except TxLayerError as exc:
        # What a broker said may have lines of its own.
        _print_error(" ".join(str(exc).split()))
        return exit_code(exc)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return UNREAD
    except OSError as exc:
        if exc.errno not in _FULL:
            return _defect()
        _give_up_output()
        _print_error(f"the output could not be written: {exc.strerror}; what the command did stands")
        return ExitCode.USAGE
    except Exception:  # noqa: BLE001 - the command line is one of the three borders
        return _defect()
    return ExitCode.GOOD


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _flush() -> None:
    """Now, while an error of it can still be told."""
    if not sys.stdout.closed:
        sys.stdout.flush()


def _give_up_output() -> None:
    """What is left in Python's buffer goes nowhere: at the end of the process it would be an error once more."""
    if (output := sys.__stdout__) is not None and output is sys.stdout:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, output.fileno())
        os.close(nowhere)


def _defect() -> ExitCode:
    _say(printable_lines(traceback.format_exc().rstrip()))
    _print_error("this is a defect of txlayer; please report it with the lines above")
    return ExitCode.BROKEN_INVARIANT


def _print_error(sentence: str) -> None:
    _say(f"error: {printable(sentence)}")


def _say(text: str) -> None:
    """On standard error; where that is full or gone, the exit code says it alone."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
