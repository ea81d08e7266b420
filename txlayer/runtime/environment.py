"""What a service has of the process around it: clocks, pauses, dice, names, background calls; and the pause before a rebuild.

Coordinators and consumers ask the time, wait, draw and start background calls only through an `Environment`, so that a
simulated world can run the same code.
"""

import ctypes
import gc
import inspect
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from txlayer.adapters.telemetry import Log
from txlayer.errors import FencedError, InstanceFencedError, InvariantError, TxLayerError, UsageError

logger = Log("txlayer.runtime")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SIDE_BY_SIDE_MAX = 8  # maximum number of threads for parallel calls
REBUILD_WAIT_MAX_S = 5.0  # longest pause between two rebuilds
_SERVE_S = 0.05


class Running(Protocol[T_co]):
    """A call in the background."""

    def result(self) -> T_co:
        """Wait for its end. Returns its value, or raises its exception."""

    def exception(self) -> BaseException | None:
        """Wait for its end. Returns its exception."""


class Background(Protocol):
    """Runs calls in the background, beside the coordinator's thread."""

    def start(self, call: Callable[[], T], *, name: str) -> Running[T]:
        """Start a call. The process does not wait for it when it exits."""

    def run_parallel(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Run calls in parallel and return when all have ended. Raises the first exception."""


class Threads:
    """A `Background` of real threads. The caller's thread makes a call for which the machine starts no other."""

    def start(self, call: Callable[[], T], *, name: str) -> Running[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as exc:  # noqa: BLE001 - border of a thread: `result` raises it
                future.set_exception(exc)

        try:
            threading.Thread(target=run, name=name, daemon=True).start()
        except RuntimeError:
            # The machine may have no room for another one just now. A call that hangs, as a close may, is rarer still.
            logger.exception("thread.not_started", extra={"call": name})
            run()
        return future

    def run_parallel(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Run the calls in at most `SIDE_BY_SIDE_MAX` threads."""
        failures: list[BaseException | None] = []
        for first in range(0, len(calls), SIDE_BY_SIDE_MAX):
            running = [self.start(call, name="txlayer-parallel") for call in calls[first : first + SIDE_BY_SIDE_MAX]]
            failures += [one.exception() for one in running]
        for failure in filter(None, failures):
            raise failure


def is_coroutine_function(handler: object) -> bool:
    """True for a coroutine function, and for an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - asked what kind it is, not whether
    )


def draw_name() -> str:
    return uuid.uuid4().hex


def keep_for_long() -> None:
    """Exclude a million long-lived open transactions from garbage collection, and return memory that recovery used to the system.

    What an earlier call excluded and was given up since is freed: a ledger refers to itself, and nothing else would ever find it.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if give_back is not None:
        give_back(0)


@dataclass(frozen=True, slots=True)
class Environment:
    """The real environment by default."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random
    draw_name: Callable[[], str] = draw_name
    keep_for_long: Callable[[], None] = keep_for_long
    background: Background = Threads()  # noqa: RUF009 - it has no state


REAL = Environment()


def wait_before_rebuild(
    reason: TxLayerError,
    *,
    failure_count: int,
    session_timeout_s: float,
    serve_group: Callable[[float], bool],
    environment: Environment,
    logger: Log,
) -> None:
    """Serve the group for a pause that grows with the number of failures, or until it assigns partitions.

    `serve_group` waits for at most so many seconds; True: the group said something. After a fence the pause is at least half of
    the session time-out: another member may own the partitions already, and the group must report it before that member is fenced.

    Raises:
        UsageError, InstanceFencedError, InvariantError: what `serve_group` raises of these; other errors of it are logged.
    """
    wait_s = min(0.05 * 2 ** min(failure_count, 10), REBUILD_WAIT_MAX_S)
    if isinstance(reason, FencedError):
        wait_s = max(wait_s, session_timeout_s / 2)
    give_up_at, serve_s = environment.clock() + wait_s, min(_SERVE_S, wait_s)
    while environment.clock() < give_up_at:
        try:
            if serve_group(serve_s):
                return
        except (UsageError, InstanceFencedError, InvariantError):
            raise  # a client that is fenced for good says it once
        except TxLayerError as exc:
            logger.info("group.unreadable", extra={"reason": str(exc)})
            environment.sleep(serve_s)
