"""Where errors leave the program: one line on standard error and the exit code of `exits`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from txlayer.adapters.telemetry import printable, printable_lines
from txlayer.cli.exits import ExitCode, exit_code
from txlayer.errors import TxLayerError

INTERRUPTED = 130
"""What shells say of a program that Ctrl-C ended."""

UNREAD = 141
"""What shells say of a program whose reader has gone, such as `head`. It is no finding: what it found was not told."""


def guard(call: Callable[[], object]) -> int:
    """Run a command; 0, or the exit code of the error that it ended with, told in one line.

    SystemExit, which carries an exit code already, passes.
    """
    try:
        call()
    except SystemExit as exc:
        # typer and rich end with 1 when they hear of it; 1 would be a finding.
        if isinstance(exc.__context__, BrokenPipeError):
            return UNREAD
        raise
    except TxLayerError as exc:
        # What a broker said may have lines of its own.
        _tell(" ".join(str(exc).split()))
        return exit_code(exc)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # noqa: BLE001 - the command line is one of the three borders
        sys.stderr.write(printable_lines(traceback.format_exc().rstrip()) + "\n")
        _tell("this is a defect of txlayer; please report it with the lines above")
        return ExitCode.BROKEN_INVARIANT
    return ExitCode.GOOD


def _tell(sentence: str) -> None:
    sys.stderr.write(f"error: {printable(sentence)}\n")
