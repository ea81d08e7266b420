"""Where a cluster in memory runs: its time, its dice, its network with faults, and how its clients wait.

Everything in this package that waits, asks the time, draws a number or talks to the cluster does it through a `World`, so
that one with threads and one under a seed can run the same clients.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol, TypeVar

from txlayer.adapters.errors import UNAVAILABLE_CODES, Code


class RefusedError(Exception):
    """The cluster's answer to a request is this code."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.kafka_name)
        self.code = code


class NoAnswerError(Exception):
    """A request or its answer was lost: whether it happened is unknown."""


class ClientCrashedError(Exception):
    """This client is dead: nothing that it calls does anything any more."""


class ClientError:
    """An error as a client of Kafka reports it, with the client's own judgement of what it means."""

    __slots__ = ("_code", "_is_abortable", "_is_fatal", "_text")

    def __init__(self, code: Code, text: str = "", *, is_fatal: bool = False, is_abortable: bool = False) -> None:
        self._code = code
        self._text = text or code.kafka_name.strip("_").lower().replace("_", " ")
        self._is_fatal = is_fatal
        self._is_abortable = is_abortable

    def __repr__(self) -> str:
        return f"ClientError({self.name()})"

    def code(self) -> int:
        return int(self._code)

    def name(self) -> str:
        return self._code.kafka_name

    def str(self) -> str:
        return self._text

    def fatal(self) -> bool:
        return self._is_fatal

    def txn_requires_abort(self) -> bool:
        return self._is_abortable

    def retriable(self) -> bool:
        return self._code in UNAVAILABLE_CODES


class ClientFailureError(Exception):
    """Raised by a client's own call; `error` says why."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(f"{error.name()}: {error.str()}")
        self.error = error


T = TypeVar("T")

FOR_EVER = 1 << 62


class Fault(Enum):
    """What may happen to a request."""

    LOSE_REQUEST = "lose request"  #: it never arrives
    LOSE_ANSWER = "lose answer"  #: it is done, and the answer is lost
    REPEAT = "repeat"  #: it arrives twice; the second answer counts
    KEEP = "keep"  #: it is lost for its client, and arrives when it is released
    ECHO = "echo"  #: it is done, its answer is lost, and it arrives once more when it is released
    DELAY = "delay"  #: it arrives later; its client waits
    REFUSE = "refuse"  #: it is answered with a code, and not done


@dataclass(slots=True)
class _Plan:
    fault: Fault
    request: str | None
    client: str | None
    left: int
    code: Code
    seconds: float

    def fits(self, client: str, request: str) -> bool:
        return self.request in (None, request) and self.client in (None, client)


class FaultPlan:
    """The faults that are planned. Any thread may plan while others run.

    `request` is Kafka's name: Produce, Fetch, ListOffsets, Metadata, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn,
    TxnOffsetCommit, EndTxn, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetFetch; None means any. `client` is the
    name that a connection was given; None means any.
    """

    def __init__(self) -> None:
        self.seen: Counter[tuple[Fault, str]] = Counter()
        """How often which fault happened to which request."""
        self._plans: list[_Plan] = []
        self._kept: list[Callable[[], Any]] = []
        self._crashed: set[str] = set()
        self._cut_off: set[str] = set()
        self._lock = threading.Lock()

    # --- planning -----------------------------------------------------------------------------------------------------

    def plan(
        self,
        fault: Fault,
        request: str | None = None,
        *,
        client: str | None = None,
        times: int = 1,
        seconds: float = 0.0,
    ) -> None:
        """The next `times` requests that fit meet this fault."""
        with self._lock:
            self._plans.append(_Plan(fault, request, client, times, Code.NO_ERROR, seconds))

    def refuse(self, request: str | None, code: Code | str, *, client: str | None = None, times: int = 1) -> None:
        """The next `times` requests that fit are answered with this code ("NOT_COORDINATOR") and not done."""
        named = code if isinstance(code, Code) else Code[code]
        with self._lock:
            self._plans.append(_Plan(Fault.REFUSE, request, client, times, named, 0.0))

    def forget(self) -> None:
        """No planned fault happens any more; clients stay crashed or cut off."""
        with self._lock:
            self._plans.clear()

    def release(self) -> int:
        """Let the requests that were kept arrive, in their order; how many there were."""
        with self._lock:
            kept, self._kept = self._kept, []
        for act in kept:
            try:
                act()
            except (RefusedError, NoAnswerError):
                continue  # no client waits for this answer any more
        return len(kept)

    def crash(self, client: str) -> None:
        """The client is dead: each of its calls raises `ClientCrashedError`, nothing of it arrives, no heartbeat is sent."""
        with self._lock:
            self._crashed.add(client)

    def cut_off(self, client: str) -> None:
        """Nothing of the client arrives, until `reconnect`."""
        with self._lock:
            self._cut_off.add(client)

    def reconnect(self, client: str) -> None:
        """The client reaches the cluster again."""
        with self._lock:
            self._cut_off.discard(client)

    def is_connected(self, client: str) -> bool:
        """True unless it crashed or is cut off."""
        return client not in self._crashed and client not in self._cut_off

    # --- happening ----------------------------------------------------------------------------------------------------

    def pass_on(self, client: str, request: str, act: Callable[[], T], *, pause: Callable[[float], None]) -> T:
        """Do one exchange, with what is planned for it.

        Raises:
            NoAnswerError, RefusedError: as the plan or the cluster says.
            ClientCrashedError: the client is dead.
        """
        if client in self._crashed:
            raise ClientCrashedError(client)
        if client in self._cut_off:
            raise NoAnswerError(f"{client} is cut off")
        if not self._plans:
            return act()
        plan = self._take(client, request, act)
        if plan is None:
            return act()
        if plan.fault is Fault.REFUSE:
            raise RefusedError(plan.code)
        if plan.fault is Fault.DELAY:
            pause(plan.seconds)
            return act()
        if plan.fault is Fault.REPEAT:
            act()
            return act()
        if plan.fault in (Fault.LOSE_ANSWER, Fault.ECHO):
            act()
        raise NoAnswerError(f"{request}: {plan.fault.value}")

    def _take(self, client: str, request: str, act: Callable[[], Any]) -> _Plan | None:
        with self._lock:
            plan = next((p for p in self._plans if p.fits(client, request)), None)
            if plan is None:
                return None
            plan.left -= 1
            if plan.left <= 0:
                self._plans.remove(plan)
            if plan.fault in (Fault.KEEP, Fault.ECHO):
                self._kept.append(act)
            self.seen[plan.fault, request] += 1
            return plan


LOOK_S = 0.02  # how often a wait looks at what only the clock changes


class World(Protocol):
    """What clients and cluster need of the world around them.

    `exchange` and `wait` are the only places where another actor may run in between.
    """

    random: random.Random
    """The only dice."""

    def now_ms(self) -> int:
        """The brokers' clock, in milliseconds since 1970: append times, time-outs, retention. It never goes back."""

    def monotonic(self) -> float:
        """The clients' clock, in seconds: deadlines and pauses."""

    def wait(self, is_ready: Callable[[], bool], *, timeout_s: float) -> bool:
        """Let others run until `is_ready()` or until `timeout_s` are over; the last answer of `is_ready`.

        `is_ready` sends no request, takes no time and may be called any number of times, from any thread. What it says
        changes with exchanges, with `change` and with the brokers' clock, never with the clients' clock alone.
        """

    def exchange(self, client: str, request: str, act: Callable[[], T]) -> T:
        """One request of `client` to the cluster, and its answer; `act` is what the cluster does.

        `request` is Kafka's name of it ("Produce", "EndTxn"). The world may call `act` late, twice or never, but no two
        acts at the same time; an act that no client waits for any more may raise `RefusedError`, which goes nowhere.

        Raises:
            NoAnswerError: the request or its answer was lost, before or after the act.
            RefusedError: the cluster's answer is no.
        """

    def change(self, act: Callable[[], T]) -> T:
        """Do `act` at once and alone, without a network; others may wait for what it changes. It is no place to switch."""

    def is_running(self, client: str) -> bool:
        """True while the background threads of `client` run and reach the cluster: while its heartbeats arrive."""


def never() -> bool:
    """What a pause waits for."""
    return False


class ThreadWorld:
    """Real threads and the real clock. Thread-safe: one lock for the cluster, one condition for waiting threads."""

    def __init__(self, *, faults: FaultPlan | None = None, seed: int | None = None) -> None:
        self.random = random.Random(seed)  # noqa: S311 - delays and partitions, no secret
        self.faults = FaultPlan() if faults is None else faults
        self._changed = threading.Condition(threading.RLock())
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """The wall clock, and what `advance` added."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def monotonic(self) -> float:
        return time.monotonic()

    def advance(self, *, ms: int) -> None:
        """Let the brokers' clock jump: transactions time out, records expire, sessions of crashed clients end."""
        with self._changed:
            self._ahead_ms += ms
            self._changed.notify_all()

    def wait(self, is_ready: Callable[[], bool], *, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not is_ready():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(min(left_s, LOOK_S))
            return True

    def exchange(self, client: str, request: str, act: Callable[[], T]) -> T:
        def pause(seconds: float) -> None:
            self.wait(never, timeout_s=seconds)

        return self.faults.pass_on(client, request, partial(self.change, act), pause=pause)

    def change(self, act: Callable[[], T]) -> T:
        with self._changed:
            try:
                return act()
            finally:
                self._changed.notify_all()

    def is_running(self, client: str) -> bool:
        return self.faults.is_connected(client)
