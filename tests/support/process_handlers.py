"""Handlers that tests run in other processes. A process imports the module of its handler: this one needs little."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from tests.support.waiting import wait_until
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.retry import Ack, HandlerResult, Reject, Retry


def look(_message: ReceivedMessage, _context: Context) -> None:
    """Succeeds."""


def die_once(message: ReceivedMessage, context: Context) -> None:
    """Kills its process at the first attempt at one message."""
    if message.value == b"deadly" and context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def die_always(message: ReceivedMessage, _context: Context) -> None:
    """Kills its process at every attempt at one message."""
    if message.value == b"deadly":
        os.kill(os.getpid(), signal.SIGKILL)


def hold(message: ReceivedMessage, _context: Context) -> None:
    """Waits at a message that names a file until that is there."""
    word = message.raw_value or b""
    if word.startswith(b"/"):
        file = Path(os.fsdecode(word))
        file.with_suffix(".begun").touch()
        wait_until(file.exists, within=30.0, what="the test lets it go on")


def fail(_message: ReceivedMessage, _context: Context) -> None:
    """Always fails."""
    raise ValueError("as planned")


def fail_and_say_where(message: ReceivedMessage, context: Context) -> None:
    """Always fails, and says where."""
    raise ValueError(f"{message.offset} of {context.group} in {os.getpid()}")


def postpone_while_young(message: ReceivedMessage, context: Context) -> Any:
    """Postpones until the message is old enough."""
    is_young = time.time() * 1000 - message.timestamp_ms < 300
    return context.suspend(timedelta(milliseconds=5)) if is_young else None


SLIPS: list[tuple[Any, str]] = [
    (Reject(cast("Any", ValueError("bad"))), "needs a text, not an object of type ValueError"),
    (Reject(cast("Any", None)), "Reject(reason=…) needs a text, not None"),
    (Retry(cast("Any", 5_000)), "needs a timedelta, not an object of type int"),
    (Retry(delay_ms=cast("Any", "5000")), "needs a whole number, not an object of type str"),
    (Retry(delay_ms=10**400), "the delay of a Retry is at most"),
    (Retry(timedelta(seconds=1), delay_ms=1_000), "not both"),
    (Retry(reason=cast("Any", None)), "Retry(reason=…) needs a text"),
    (Ack, "the class Ack; an instance is needed"),
    (True, "a handler returned bool"),
]
"""What a handler returns by mistake, and what is said about it."""


def slip_0(message: ReceivedMessage, _context: Context) -> HandlerResult:
    """The first of the slips."""
    return cast("HandlerResult", SLIPS[0][0] if message.value == b"slip" else None)


def slip_2(message: ReceivedMessage, _context: Context) -> HandlerResult:
    """The third one."""
    return cast("HandlerResult", SLIPS[2][0] if message.value == b"slip" else None)


def slip_7(message: ReceivedMessage, _context: Context) -> HandlerResult:
    """The eighth one."""
    return cast("HandlerResult", SLIPS[7][0] if message.value == b"slip" else None)


SLIPPING = {0: slip_0, 2: slip_2, 7: slip_7}


def ending(message: ReceivedMessage, _context: Context) -> None:
    """What would end a program."""
    if message.value == b"exit":
        raise SystemExit(3)
    if message.value == b"interrupt":
        raise KeyboardInterrupt
