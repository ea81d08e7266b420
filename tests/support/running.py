"""A coordinator in a thread of the test's own process: the real loop on the real broker, with settings of the test's own."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import wait_until
from txlayer.adapters.kafka.coordinator_clients import KafkaCoordinatorConnections
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.loop import Coordinator

LOGGER = logging.getLogger("txlayer.coordinator")


class _Collector(logging.Handler):
    """Keeps log records."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class RunningCoordinator:
    """Runs from `with` to its end; what it raised is raised there."""

    def __init__(self, config: CoordinatorConfig, *, within: float = 30) -> None:
        self._within = within
        self.coordinator = Coordinator(config, KafkaCoordinatorConnections(config))
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
        except BaseException as exc:
            self.__exit__(type(exc), exc, exc.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_stopping.set()
        self._thread.join(30)
        LOGGER.removeHandler(self._log)
        LOGGER.setLevel(self._level)
        assert not self._thread.is_alive(), "the coordinator does not end"
        if self.failure is not None and error is None:
            raise self.failure

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What it logged: the fields, with the name as `event`."""
        found = [{"event": record.getMessage(), **record.__dict__} for record in self._log.records]
        return [event for event in found if name in (None, event["event"])]

    def wait_for(self, name: str, *, within: float = 30) -> None:
        """Wait until it logged this."""

        def logged() -> bool:
            if self.failure is not None:
                raise self.failure
            return bool(self.events(name))

        wait_until(logged, within=within, what=name)

    def _run(self) -> None:
        try:
            self.coordinator.run(should_stop=self._is_stopping.is_set)
        except BaseException as exc:  # noqa: BLE001 - raised where the block ends
            self.failure = exc
