"""Blocking callers: threads that do the same at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def in_threads(work: Callable[[T], None], arguments: Iterable[T]) -> dict[str, float]:
    """Call `work` in a thread for each argument; when they began, and how long it took until the last one ended."""
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    started = time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"started": started, "took_s": time.time() - started}
