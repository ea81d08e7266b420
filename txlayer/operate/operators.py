"""What an operator says with every action: what it is about, who says it and why; and its records on their way to a log."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable
from typing import Any, Self

from txlayer.adapters.ports import HalfWriter
from txlayer.core.history import operator_reason
from txlayer.errors import OutcomeUnknownError, UsageError

REASON_LENGTH_MAX = 1_000
"""Characters of a reason: a ticket and a sentence or two, in every record of a bulk."""
OPERATOR_LENGTH_MAX = 100
"""Characters of an operator's name."""


def signature_of(
    command: str, *, operator: str | None, reason: str, recorded: str = "it is recorded", may_be_silent: bool = False
) -> str:
    """`operator: reason`, as records keep it; the operator is USER@host by default, `may_be_silent`: no reason is one, too."""
    if not may_be_silent and not reason.strip():
        raise UsageError(f'{command}: say why with --reason "…"; {recorded}')
    if len(reason) > REASON_LENGTH_MAX:
        raise UsageError(f"{command}: --reason takes at most {REASON_LENGTH_MAX:,} characters")
    name = _this_user() if operator is None else operator
    if not name.strip() or ": " in name or len(name) > OPERATOR_LENGTH_MAX:
        raise UsageError(
            f"{command}: --operator takes a name of 1 to {OPERATOR_LENGTH_MAX} characters without a colon and a blank"
        )
    return operator_reason(name, reason)


def _this_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def check_choice(
    command: str, what: str, *, is_any_named: bool, is_all: bool, is_filtered: bool, limit: int | None
) -> None:
    """Refuse a choice that cannot be meant: either names, or `--all` with filters and a limit."""
    if is_all == is_any_named:
        raise UsageError(f"{command}: name {what}, or say --all with filters")
    if not is_all and is_filtered:
        raise UsageError(f"{command}: filters choose among --all; with {what} leave them out")
    if not is_all and limit is not None:
        raise UsageError(f"{command}: --limit goes with --all")


IN_FLIGHT_MAX = 1_000
"""Records that wait for their acknowledgement: a command that is killed leaves at most so many unknown."""

WRITE_S = 120.0
"""Longer than any record waits for its acknowledgement before the client gives it up."""

ROUND_S = 0.1
"""How long one look for acknowledgements waits."""


class OperatorWriter:
    """Writes records that each are one of `what`: lines, requests. One thread uses it; `with` closes it.

    Raises, from every call:
        OutcomeUnknownError, NotAuthorisedError, RetriableError, RefusedRecordError: not all are stored; those
            acknowledged before stay.
    """

    def __init__(
        self,
        writer: HalfWriter,
        *,
        what: str,
        step: str,
        on_progress: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._what = what
        self._step = step
        self._on_progress = on_progress
        self._clock = clock
        self._errors: list[tuple[Any, str]] = []
        self._in_flight_count = 0
        self._placeless_count = 0

    def add(
        self, topic: str, partition: int, value: bytes, *, key: bytes | None = None, on_stored: Callable[[int], None]
    ) -> None:
        """Write a record; `on_stored` gets its offset."""

        def reported(error: Any, record: Any) -> None:
            self._in_flight_count -= 1
            if error is not None:
                self._errors.append((error, topic))
            elif (offset := record.offset()) is None:
                self._placeless_count += 1
            else:
                on_stored(offset)

        while True:
            try:
                self._writer.produce(topic, value, key, partition, reported, None, 0, None)
            except BufferError:
                self.serve()
            else:
                break
        self._in_flight_count += 1
        self.serve(0)
        if self._in_flight_count >= IN_FLIGHT_MAX:
            self.settle(IN_FLIGHT_MAX // 2)
        self._check()

    def serve(self, timeout_s: float = ROUND_S) -> None:
        if self._writer.poll(timeout_s):
            self._on_progress()

    def settle(self, count_max: int = 0) -> None:
        """Wait until at most so many records are unacknowledged."""
        give_up_at = self._clock() + WRITE_S
        while self._in_flight_count > count_max and self._clock() < give_up_at:
            self.serve()
            self._check()
        if self._in_flight_count > count_max:
            raise OutcomeUnknownError(f"{self._in_flight_count} {self._what} were not acknowledged", step=self._step)
        self._check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close(0)

    def _check(self) -> None:
        failed = self._writer.failure()
        if failed is not None:
            raise failed
        if self._errors:
            error, topic = self._errors[0]
            raise self._writer.error_of(error, topic=topic, txn_id="")
        if self._placeless_count:
            raise OutcomeUnknownError(
                f"{self._placeless_count} {self._what} are stored at an unknown offset", step=self._step
            )
