"""A client's call with a deadline that holds. Never here: which calls need it.

`send_offsets_to_transaction` does not keep its time-out: it waits for ever when the group's coordinator goes away at the
wrong moment (librdkafka #5456 and #5511; seen whenever the broker died in the middle of it).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue


class Deadline:
    """Makes calls in a thread of its own. One thread uses it.

    A call that does not come back keeps its thread, a daemon, for good: the instance is of no use any more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_stuck = False

    def call(self, function: Callable[[], object], *, within_s: float) -> None:
        """Return when `function` has; what it raises is raised here.

        Raises:
            TimeoutError: it has not come back within `within_s`, or an earlier one never did. It may still do its work.
        """
        if self._is_stuck:
            raise TimeoutError("an earlier call never came back")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(function)
        try:
            failure = self._ends.get(timeout=within_s)
        except Empty:
            self._is_stuck = True
            raise TimeoutError(f"no answer within {within_s:g} s") from None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Let the thread end."""
        self._calls.put(None)

    def _run(self) -> None:
        while (function := self._calls.get()) is not None:
            try:
                function()
            except BaseException as exc:  # noqa: BLE001 - raised where the call was made
                self._ends.put(exc)
            else:
                self._ends.put(None)
