"""A coordinator in a thread of the test's own process; it is users', too."""

from txlayer.testing.stage import RunningCoordinator

__all__ = ["RunningCoordinator"]
