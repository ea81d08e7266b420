"""What an operator says with every action: what it is about, who says it and why; and its records on their way to a log."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from txlayer.adapters.ports import IdempotentWriter, TopicLimits, limits_of
from txlayer.config import SystemTopics
from txlayer.core.history import operator_reason
from txlayer.errors import NotAuthorisedError, OutcomeUnknownError, UsageError

if TYPE_CHECKING:
    from txlayer.operate.dead_letters import DeadLetterFilter
    from txlayer.operate.unsettled import Filter

T = TypeVar("T")

REASON_LENGTH_MAX = 1_000  # characters of a reason: a ticket and a sentence or two, in every record of a bulk
OPERATOR_LENGTH_MAX = 100  # characters of an operator's name


def signature_of(
    command: str, *, operator: str | None, reason: str, recorded: str = "it is recorded", may_be_silent: bool = False
) -> str:
    """`operator: reason`, as records keep it; the operator is USER@host by default, `may_be_silent`: no reason is one, too."""
    if not may_be_silent and not reason.strip():
        raise UsageError(f'{command}: say why with --reason "…"; {recorded}')
    if len(reason) > REASON_LENGTH_MAX:
        raise UsageError(f"{command}: --reason takes at most {REASON_LENGTH_MAX:,} characters")
    name = this_user() if operator is None else operator
    if not name.strip() or ": " in name or len(name) > OPERATOR_LENGTH_MAX:
        why = f"{command}: --operator takes a name of 1 to {OPERATOR_LENGTH_MAX} characters without a colon and a blank"
        raise UsageError(why)
    return operator_reason(name, reason)


def this_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def check_operator_rights(topic_limits: Callable[[str], TopicLimits | None], topics: SystemTopics) -> None:
    """Refuse credentials that cannot write what an operator writes: op lines, and releases of leases.

    NotAuthorisedError, UsageError: they may not write one of these topics, or it does not exist.
    """
    for topic in (topics.op, topics.locks):
        if not limits_of(topic_limits, topic).is_writable:
            raise NotAuthorisedError("acting needs the rights of the role operator", resource=topic, operation="write")


def check_choice(
    command: str,
    what: str,
    names: Collection[object],
    *,
    is_all: bool,
    wanted: Filter | DeadLetterFilter,
    limit: int | None,
) -> None:
    """Refuse a choice that cannot be meant: either names, or `--all` with filters and a limit."""
    if is_all == bool(names):
        raise UsageError(f"{command}: name {what}, or say --all with filters")
    if not is_all and not wanted.is_empty:
        raise UsageError(f"{command}: filters choose among --all; with {what} leave them out")
    if not is_all and limit is not None:
        raise UsageError(f"{command}: --limit goes with --all")


IN_FLIGHT_MAX = 1_000
"""Records that wait for their acknowledgement: a command that is killed leaves at most so many unknown."""

WRITE_S = 120.0  # longer than any record waits for its acknowledgement before the client gives it up

ROUND_S = 0.1  # how long one look for acknowledgements waits


class OperatorWriter:
    """Writes op records that each are one line. One thread uses it, once."""

    def __init__(self, writer: IdempotentWriter, *, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._topic = topic
        self._clock = clock
        self._errors: list[Any] = []
        self._in_flight_count = 0
        self._offset_unknown_count = 0

    def write(
        self, records: Iterable[tuple[T, int, bytes]], *, on_progress: Callable[[int], None] = lambda _count: None
    ) -> list[tuple[T, int]]:
        """Write each (item, partition, value) in this order.

        Returns the items with their offsets when all are acknowledged; `on_progress` gets how many are. OutcomeUnknownError,
        NotAuthorisedError, RetriableError, RefusedRecordError: not all are stored; those acknowledged before stay.
        """
        written: list[tuple[T, int]] = []

        def serve(timeout_s: float) -> None:
            if self._writer.poll(timeout_s):
                on_progress(len(written))

        try:
            for item, partition, value in records:
                reported = partial(self._reported, written, item)
                while not self._produce(value, partition, reported):
                    serve(ROUND_S)
                serve(0)
                if self._in_flight_count >= IN_FLIGHT_MAX:
                    self._settle(serve, IN_FLIGHT_MAX // 2)
                self._check()
            self._settle(serve)
        finally:
            self._writer.close(0)
        return written

    def _produce(self, value: bytes, partition: int, reported: Any) -> bool:
        """False: the client's queue is full."""
        try:
            self._writer.produce(self._topic, value, None, partition, reported, None, 0, None)
        except BufferError:
            return False
        self._in_flight_count += 1
        return True

    def _reported(self, written: list[tuple[T, int]], item: T, error: Any, record: Any) -> None:
        self._in_flight_count -= 1
        if error is not None:
            self._errors.append(error)
        elif (offset := record.offset()) is None:
            self._offset_unknown_count += 1
        else:
            written.append((item, offset))

    def _settle(self, serve: Callable[[float], None], count_max: int = 0) -> None:
        """Wait until at most so many records are unacknowledged."""
        give_up_at = self._clock() + WRITE_S
        while self._in_flight_count > count_max and self._clock() < give_up_at:
            serve(ROUND_S)
            self._check()
        if self._in_flight_count > count_max:
            raise self._unknown(self._in_flight_count, f"no answer for {WRITE_S:g} s")
        self._check()

    def _check(self) -> None:
        failed = self._writer.failure()
        if failed is not None:
            raise failed
        if self._errors:
            found = self._writer.error_of(self._errors[0], topic=self._topic, txn_id="")
            if isinstance(found, OutcomeUnknownError):
                raise self._unknown(len(self._errors) + self._in_flight_count, found.detail) from found
            raise found
        if self._offset_unknown_count:
            raise OutcomeUnknownError(f"{self._offset_unknown_count} lines are stored at an unknown offset", step="op")

    def _unknown(self, count: int, why: str) -> OutcomeUnknownError:
        said = f"{count} lines were not acknowledged and may be stored: {why}; a second one does no harm"
        return OutcomeUnknownError(said, step="op")
