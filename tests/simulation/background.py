"""Calls beside a simulated coordinator: greenlets of its process instead of threads."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tests.simulation.processes import Process
from tests.simulation.world import SimulatedWorld
from txlayer.errors import TxLayerError
from txlayer.runtime.environment import Running

T = TypeVar("T")


class SimulatedBackground:
    """Runs calls beside a coordinator as greenlets of its process."""

    def __init__(self, world: SimulatedWorld, process: Process) -> None:
        self._world = world
        self._process = process

    def start(self, call: Callable[[], T], *, name: str) -> Running[T]:
        """A greenlet of its own."""
        del name
        return _Started(self._world, self._process, call)

    def run_parallel(self, calls: list[Callable[[], Any]]) -> None:
        """All at once."""
        for started in [_Started(self._world, self._process, call) for call in calls]:
            started.result()


class _Started(Running[T]):
    def __init__(self, world: SimulatedWorld, process: Process, call: Callable[[], T]) -> None:
        self._world = world
        self._value: T
        self._error: BaseException | None = None
        self._is_over = False
        world.begin_in_background(process, partial(self._run, call))

    def result(self) -> T:
        """Wait for its end."""
        error = self.exception()
        if error is not None:
            raise error
        return self._value

    def exception(self) -> BaseException | None:
        """Wait for its end."""
        self._world.wait(lambda: self._is_over, timeout_s=1e6)
        return self._error

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._value = call()
        except TxLayerError as exc:
            self._error = exc
        self._is_over = True
        self._world.after(0.0, self._world.look_around)
