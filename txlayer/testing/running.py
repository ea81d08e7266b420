"""A coordinator in a thread of the test's own process, and waiting for a condition with a deadline."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self, TypeVar

from txlayer.adapters.connect import CoordinatorConnections, connect_coordinator
from txlayer.adapters.telemetry import fields_of
from txlayer.config import CoordinatorConfig, seconds
from txlayer.coordinator.loop import Coordinator

POLL_S = 0.02

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, within: timedelta | float, what: str) -> T:
    """The first true value of `condition()`; fails after `within` (a number: seconds) with the last value seen.

    An exception of `condition` is not caught: a state that is expected for a while belongs into its value.
    """
    deadline = time.monotonic() + seconds(within)
    while not (seen := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds(within):g} s, last seen: {seen!r}")
        time.sleep(POLL_S)
    return seen


def comes_true(condition: Callable[[], bool], *, within: timedelta | float, poll_s: float = POLL_S) -> bool:
    """Whether `condition()` became true `within` so long (a number: seconds); it is called at least once."""
    deadline = time.monotonic() + seconds(within)
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


LOGGER = logging.getLogger("txlayer.coordinator")

START_S = 30.0  # a group of real brokers may still wait for the session of a member that died
STOP_S = 30.0


class _Collector(logging.Handler):
    """Keeps log records, of every coordinator of this process."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class RunningCoordinator:
    """Runs from `with` to its end; its error is raised there, and by `wait_for`.

    Args:
        config: its settings.
        connections: its cluster; None: the real one that `config` names. They are closed with it.
        within: how long it may take to own partitions; a number: seconds.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        connections: CoordinatorConnections | None = None,
        *,
        within: timedelta | float = START_S,
    ) -> None:
        self._within = within
        self.coordinator = Coordinator(config, connections or connect_coordinator(config))
        self.failure: BaseException | None = None
        self._log = _Collector()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def __enter__(self) -> Self:
        self._level = LOGGER.level
        LOGGER.addHandler(self._log)
        LOGGER.setLevel(logging.INFO)
        self._thread.start()
        try:
            self.wait_for("partitions.taken_over", within=self._within)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._end()
        assert not self._thread.is_alive(), "the coordinator does not end"
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise the error that ended it, if there is one."""
        if self.failure is not None:
            raise self.failure

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What it logged: the fields, with the name as `event`."""
        found = [{"event": record.getMessage(), **record.__dict__} for record in self._log.records]
        return [event for event in found if name in (None, event["event"])]

    def wait_for(self, name: str, *, within: timedelta | float = 30) -> None:
        """Wait until it logged this."""

        def logged() -> bool:
            self.check()
            return bool(self.events(name))

        wait_until(logged, within=within, what=name)

    def trouble(self) -> list[str]:
        """Its warnings and errors, a line each: what held back or refused a transaction."""
        return [
            " ".join([record.getMessage(), *(f"{name}={value}" for name, value in fields_of(record).items())])
            for record in self._log.records
            if record.levelno >= logging.WARNING
        ]

    def _end(self) -> None:
        self._is_stopping.set()
        self._thread.join(STOP_S)
        LOGGER.removeHandler(self._log)
        LOGGER.setLevel(self._level)

    def _run(self) -> None:
        try:
            self.coordinator.run(should_stop=self._is_stopping.is_set)
        except BaseException as exc:  # noqa: BLE001 - raised where the block ends
            self.failure = exc
