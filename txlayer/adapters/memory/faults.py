"""Faults for a cluster in memory, planned by name of the request. Never: what a fault means to a client.

A fault is used up when it happened as often as was said; `seen` counts what happened, so that a test can prove its fault.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from txlayer.adapters.error_codes import Code
from txlayer.adapters.memory.refusal import ClientCrashedError, NoAnswerError, RefusedError

T = TypeVar("T")

FOR_EVER = 1 << 62


class Fault(Enum):
    """What may happen to a request."""

    LOSE_REQUEST = "lose request"  #: it never arrives
    LOSE_ANSWER = "lose answer"  #: it is done, and nobody hears of it
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
    """What shall go wrong. Any thread may plan while others run.

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

    def refuse(
        self,
        request: str | None,
        code: Code | str,
        *,
        client: str | None = None,
        times: int = 1,
    ) -> None:
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
                continue  # nobody waits for this answer any more
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

    def pass_on(
        self, client: str, request: str, act: Callable[[], T], *, pause: Callable[[float], None]
    ) -> T:
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
