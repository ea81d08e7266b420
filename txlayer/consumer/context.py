"""What a handler may know about its call, and the lease that it runs under. Never calling a handler."""

from __future__ import annotations

import threading
import time
from hashlib import blake2b
from typing import Any

from txlayer.consumer.received import ReceivedMessage, TransactionOrigin
from txlayer.core.ids import TXN_ID_LENGTH_MAX
from txlayer.core.trace_context import trace_context_of

FOR_EVER = float("inf")
_new = object.__new__


class Lease:
    """A queue as this process holds it, from its assignment until it goes. The engine writes, everybody reads.

    `valid_until` is of the monotonic clock: no handler starts later. `lost` is set when the queue is somebody else's,
    or nobody's: what is queued is not started then, and what a running handler does counts for nothing.
    """

    __slots__ = ("group", "lost", "partition", "token", "topic", "valid_until")

    def __init__(self, group: str, topic: str, partition: int, *, token: int | None = None) -> None:
        self.group = group
        self.topic = topic
        self.partition = partition
        self.token = token
        self.valid_until = FOR_EVER
        self.lost = threading.Event()


class Context:
    """One attempt at a message. Valid while the handler runs."""

    __slots__ = ("_deadline", "_lease", "attempt", "message")

    def __init__(
        self, message: ReceivedMessage, attempt: int, deadline: float, lease: Lease
    ) -> None:
        self.message = message
        self.attempt = attempt
        """1 for the first attempt; attempts before a restart count."""
        self._deadline = deadline
        self._lease = lease

    @property
    def deadline(self) -> float:
        """Of `time.monotonic()`: when it should have ended; later when the lease was renewed meanwhile, but for a process.

        It is the end of `attempt_timeout`, after which the attempt has failed, or of the lease, where that is sooner.
        """
        return min(self._deadline, self._lease.valid_until)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._lease.group

    @property
    def topic(self) -> str:
        """The message's topic."""
        return self.message.topic

    @property
    def partition(self) -> int:
        """The message's partition."""
        return self.message.partition

    @property
    def offset(self) -> int:
        """The message's offset."""
        return self.message.offset

    @property
    def key(self) -> bytes | None:
        """The message's key, as it was sent."""
        return self.message.raw_key

    @property
    def token(self) -> int | None:
        """The fencing token of the queue's lease: larger than that of every holder before, also in a lock log before. None without order."""
        return self._lease.token

    @property
    def lease_lost(self) -> threading.Event:
        """Set when the queue is lost: stop, somebody else may be handling the same message."""
        return self._lease.lost

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; below 0 when it is over."""
        return self.deadline - time.monotonic()

    @property
    def txn_id(self) -> str | None:
        """The transaction that the message was sent in; None: it was not forwarded by txlayer."""
        return self.message.txn_id

    @property
    def trace_id(self) -> str | None:
        """The trace that the message was sent in, for log lines; None: it carries none."""
        found = trace_context_of(self.message.headers)
        return None if found is None else found.trace_id

    @property
    def origin(self) -> TransactionOrigin | None:
        """Where its half message stands; None: it was not forwarded by txlayer."""
        return self.message.origin

    @property
    def derived_txn_id(self) -> str:
        """A transaction id for what this handler publishes: the same at every attempt, so that a repeat can be told."""
        message = self.message
        place = f"{self._lease.group}:{message.topic}:{message.partition}:{message.offset}"
        if len(place) <= TXN_ID_LENGTH_MAX:
            return place
        return f"h:{blake2b(place.encode(), digest_size=32).hexdigest()}"


def context_of(record: Any, attempt: int, deadline: float, lease: Lease) -> Context:
    """The context of a record's message.

    Calling the two classes takes twice as long, and that was a fifth of what a message costs whose handler does nothing.
    """
    message, context = _new(ReceivedMessage), _new(Context)
    message._record = record  # noqa: SLF001 - as its own constructor does
    context.message = message
    context.attempt = attempt
    context._deadline = deadline  # noqa: SLF001 - likewise
    context._lease = lease  # noqa: SLF001 - likewise
    return context
