"""A coordinator in a thread of the test's own process; it is users', too."""

from __future__ import annotations

from txlayer.testing.running import RunningCoordinator

__all__ = ["RunningCoordinator"]
