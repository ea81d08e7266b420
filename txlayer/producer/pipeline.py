"""The producer's thread: it serves reports, runs local transactions, writes op records, and wakes those who wait.

One per producer. It owns every flight (what changes a flight happens here); others send it values through `post`.
All threads share its writer for half messages, and any of them may write op records (`OpQueue.write`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from txlayer.adapters.ports import HalfWriter
from txlayer.core import codec
from txlayer.errors import (
    FencedError,
    InvariantError,
    LifecycleError,
    TxLayerError,
)
from txlayer.producer.encoding import HalfRecord
from txlayer.producer.flight import Flight
from txlayer.producer.ops import OpQueue, OpRecord
from txlayer.producer.waiting import Bell, Waker

if TYPE_CHECKING:
    from txlayer.producer.metrics import Meter
    from txlayer.producer.places import Finder
    from txlayer.producer.submitted import SubmittedTransaction

logger = logging.getLogger("txlayer.producer")

POLL_S = 0.05
"""How long the thread may sleep in the client: reports end the sleep, only `close` waits for it."""

POLLS_MAX = 4
"""Calls of `poll` in one round: more would keep senders out for long."""

SLICE_S = 0.001
"""Local transactions run for so long before the resolutions that are ready are written: none waits for a slow one."""

PLACES_SHARE = 16
"""Who waits for a place in flight is woken when one in so many is free."""

LOOK_S = 1.0
"""So often those who wait are woken to look at their own limits."""


class State(Enum):
    """What a pipeline may be used for."""

    OPEN = "open"  #: everything
    CLOSING = "closing"  #: what is in flight may end, nothing new begins
    CLOSED = "closed"  #: nothing
    FAILED = "failed"  #: nothing: `failure` says why
    FORKED = "forked"  #: nothing: its thread and its client stayed in the parent process


OPEN = State.OPEN


class Pipeline:
    """Everything that is in flight at one producer."""

    def __init__(
        self,
        writer: HalfWriter,
        *,
        group: str,
        half_topic: str,
        op_topic: str,
        partition_count: int,
        op_line_count_max: int,
        in_flight_max: int,
        resolution_timeout_s: float,
    ) -> None:
        self.group = group
        self.state = State.OPEN
        self.failure: BaseException | None = None
        self.queues = [
            OpQueue(self, partition=p, line_count_max=op_line_count_max)
            for p in range(partition_count)
        ]
        self.to_run: list[SubmittedTransaction] = []
        self.to_wake: list[Waker] = []
        self.placeless: list[Flight] = []
        """Stored, and nobody told where: `find` looks for them."""
        self.finder: Finder | None = None
        # Closed while reports are served. The client takes and gives back Python's lock for every single report; with
        # another thread of ours waiting for that lock each report costs a wake-up, more than all the rest together.
        self.gate = threading.Lock()
        self.is_serving = False
        self.condition = threading.Condition()
        """Futures change their state under it."""
        self.unsent: deque[OpRecord] = deque()
        """Op records that were not acknowledged; sent again as they are."""
        # Free places: popping and appending are atomic, so taking one needs no lock and is exact.
        self.places: list[None] = [None] * in_flight_max
        self.places_bell = Bell(lambda: bool(self.places) or self.state is not OPEN)
        self.round_bell = Bell(lambda: not self.is_alive)
        self.at_end_of_round: Callable[[], None] | None = None
        self.meter: Meter | None = None
        self.write_soon: Callable[[OpQueue], None] = self._write_unless_reports_come
        """What `resolved` does with a queue; a loop gathers what its tasks say in one turn."""
        self._in_flight_max = in_flight_max
        self._places_at_once = max(in_flight_max // PLACES_SHARE, 1)
        self.resolution_timeout_s = resolution_timeout_s
        self._writer = writer
        self.produce = writer.produce
        self.half_topic, self.op_topic = half_topic, op_topic
        self._posted: deque[Callable[[], None]] = deque()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"txlayer-{group}", daemon=True)
        self._pid = os.getpid()

    def start(self) -> None:
        """Start the thread."""
        reference = weakref.ref(self)

        def forked() -> None:
            pipeline = reference()
            if pipeline is not None:
                pipeline.state = State.FORKED

        # Checked through the state, because asking for the process id costs more than a tenth of a transaction.
        os.register_at_fork(after_in_child=forked)
        self._thread.start()

    # --- any thread ---------------------------------------------------------------------------------------------------

    def take_place(self) -> bool:
        """Take one of the places in flight; False when there is none."""
        try:
            self.places.pop()
        except IndexError:
            return False
        return True

    def give_back(self, place_count: int) -> None:
        """Those places are free again."""
        self.places += [None] * place_count

    @property
    def in_flight_count(self) -> int:
        """Transactions whose half messages are sent and whose op line is not acknowledged."""
        return self._in_flight_max - len(self.places)

    @property
    def is_alive(self) -> bool:
        """True while reports may still come."""
        return self.state is OPEN or self.state is State.CLOSING

    def check_alive(self) -> None:
        """Return while reports may still come.

        Raises:
            LifecycleError, FencedError: it ended.
        """
        if not self.is_alive:
            self.check_open()

    @property
    def is_own_thread(self) -> bool:
        """True on the producer's thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def store(self, flight: Flight, records: Sequence[HalfRecord], start: int = 0) -> int:
        """Queue half records from `start` on; how many are queued now. Fewer than all: the client has no room.

        Raises:
            TxLayerError: the client refuses one. What was queued before is rolled back when it is acknowledged.
        """
        if self.is_serving:
            self.wait_at_gate()
        produce, topic, partition = self.produce, self.half_topic, flight.queue.partition
        group, key, born_ms = self.group, flight.key, flight.born_ms
        count = len(records)
        index = start
        try:
            for index in range(start, count):
                real_topic, message_key, value, headers, options = records[index]
                ours = (
                    codec.HALF_HEADER,
                    codec.half_header(key, group, real_topic, index, count, born_ms, options),
                )
                produce(
                    topic, value, message_key, partition, flight.half_reported, None, 0,
                    # Ours is the last, where readers look first.
                    [*headers, ours] if headers else [ours],
                )  # fmt: skip
        except BufferError:
            return index
        except BaseException as exc:
            raise self.not_sent(flight, count - index, exc) from exc
        return count

    def wait_at_gate(self) -> None:
        """Return when the reports that are being served are done."""
        self.gate.acquire()
        self.gate.release()

    def not_sent(self, flight: Flight, message_count: int, exc: BaseException) -> BaseException:
        """So many half messages will not be sent, because of `exc`; what to raise for it."""
        error = exc
        if isinstance(exc, Exception):  # the client's refusal; else an interrupt
            error = self.error_of(exc, topic=self.half_topic, flight=flight)
        self.post(partial(flight.half_not_sent, message_count, error))
        return error

    def resolved(self, flight: Flight) -> None:
        """Write the resolution that `flight` has now; without waiting."""
        queue = flight.queue
        queue.waiting.append(flight)
        if self.is_alive:
            self.write_soon(queue)
        elif self.state is not State.FORKED:  # there, the locks are copies of a moment
            self._give_up_rest()

    def _write_unless_reports_come(self, queue: OpQueue) -> None:
        # With records under way a report comes within a round trip, and behind it the producer's thread writes what is
        # ready then: under load that packs several lines into one record. It cannot miss this one: a record counts as
        # under way until its report is served, which is before the lines are written.
        if not self._writer.unreported_count():
            queue.write()

    def post(self, call: Callable[[], None]) -> None:
        """Have the producer's thread do something at the end of its round; it must not raise."""
        self._posted.append(call)
        if not self.is_alive:
            self._run_posted()

    def check_open(self) -> None:
        """Return when transactions may begin.

        Raises:
            LifecycleError: it is closed, or of another process. Nothing was sent.
            FencedError: it failed for good. Nothing was sent.
        """
        if self.state is State.OPEN:
            return
        if self.state is State.FORKED:
            raise LifecycleError(
                f"made in process {self._pid}; make a new producer after the fork", state="forked"
            )
        if self.state is State.FAILED:
            raise FencedError(
                f"this producer failed; make a new one: {self.failure}"
            ) from self.failure
        raise LifecycleError("this producer is closed; make a new one", state=self.state.value)

    def error_of(self, error: Any, *, topic: str, flight: Flight) -> TxLayerError:
        """What a report's error, or an exception of `produce`, means for a record of the flight."""
        return self._writer.error_of(error, topic=topic, txn_id=flight.txn_id)

    # --- the end ------------------------------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """Refuse new transactions; what is in flight goes on."""
        if self.state is OPEN:
            self.state = State.CLOSING
            self.post(self.places_bell.ring)  # who waits for a place would wait for ever

    def end(self, timeout_s: float) -> None:
        """Stop the thread and give the client back; what is in flight then is told that it failed."""
        if self.state in (State.CLOSED, State.FORKED):
            return
        self._is_stopping = True
        self._thread.join()
        if self.state is not State.FAILED:
            self.state = State.CLOSED
        self._writer.close(timeout_s)
        self._after_round()
        self._give_up_rest()

    def _give_up_rest(self) -> None:
        """Tell those whose resolutions are not sent any more."""
        if self.finder is not None:
            self.finder.end()
        ended = LifecycleError("the producer ended before they could be sent", state="closed")
        while self.unsent:
            self.unsent.popleft().give_up(ended)
        for queue in self.queues:
            queue.give_up(ended)
        self._wake()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """The first report of a round: whoever wants to send now waits at the gate rather than for Python's lock."""
        self.gate.acquire()
        self.is_serving = True

    def serve(self, timeout_s: float) -> None:
        """One round: wait for reports for at most so long, and do what follows from them."""
        poll = self._writer.poll
        if poll(timeout_s):
            for _ in range(POLLS_MAX):  # reports that came while this thread waited for its turn
                if not poll(0):
                    break
        self._after_round()

    def _run(self) -> None:
        looked_at = time.monotonic()
        try:
            while not self._is_stopping:
                self.serve(POLL_S)
                now = time.monotonic()
                if now - looked_at > LOOK_S:
                    looked_at = now
                    self.places_bell.ring()
                    if (fatal := self._writer.failure()) is not None:
                        self._fail(fatal)
        except BaseException as exc:
            logger.critical("producer.broken", exc_info=exc)
            self._fail(InvariantError(f"the producer's thread ended: {exc!r}"))

    def _after_round(self) -> None:
        """What follows from the reports of one round."""
        self._open_gate()
        if self.placeless and self.finder is not None:
            sought, self.placeless = self.placeless, []
            self.finder.find(sought)
        if self.to_run:
            self._run_local_transactions()
        self._run_posted()
        while self.unsent and self.is_alive and self.unsent[0].write():
            self.unsent.popleft()
        self.write_ops()
        if self.places_bell and self._is_room_again():
            self.places_bell.ring(len(self.places))
        if self.round_bell:
            self.round_bell.ring()
        self._wake()
        if self.at_end_of_round is not None:
            self.at_end_of_round()

    def _is_room_again(self) -> bool:
        """True when those who wait for a place in flight should be woken."""
        # One at a time they would take turns with this thread for every single place. While reports are still to come
        # there will be more of them within a round trip.
        count = len(self.places)
        return count >= self._places_at_once or (count > 0 and not self._writer.unreported_count())

    def _open_gate(self) -> None:
        if self.is_serving:
            self.is_serving = False
            self.gate.release()

    def _run_posted(self) -> None:
        while True:
            try:
                call = self._posted.popleft()
            except IndexError:
                return
            call()

    def _wake(self) -> None:
        wakers, self.to_wake = self.to_wake, []
        for waker in wakers:
            waker()

    def write_ops(self) -> None:
        """Write every resolution that is ready."""
        for queue in self.queues:
            if queue.waiting:
                queue.write()

    def _run_local_transactions(self) -> None:
        flights, self.to_run = self.to_run, []
        clock = time.monotonic
        written_at = clock()
        for flight in flights:
            flight.run()
            if clock() - written_at > SLICE_S:
                self.write_ops()
                written_at = clock()

    def _fail(self, failure: BaseException) -> None:
        if self.failure is None:
            logger.error("producer.failed", extra={"reason": str(failure)})
            self.failure = failure
        self.state = State.FAILED
        self._open_gate()
        self.places_bell.ring()
        self.round_bell.ring()
        if self.at_end_of_round is not None:
            self.at_end_of_round()
