"""A thread that looks on while a block runs. Never what it looks at."""

import threading
from types import TracebackType
from typing import Self

END_S = 60.0


class Onlooker:
    """`look_on` runs on a thread of its own from the beginning of the block until `is_stopping` is set at its end."""

    def __init__(self) -> None:
        self.is_stopping = threading.Event()
        self._thread = threading.Thread(target=self.look_on, name=type(self).__name__.lower(), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """No more looks; the one that is under way ends first."""
        self.is_stopping.set()
        self._thread.join(END_S)

    def look_on(self) -> None:
        """What the thread does."""
        raise NotImplementedError
