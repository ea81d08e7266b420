"""The one way in which tests wait; it is users', too."""

from __future__ import annotations

from txlayer.testing.running import POLL_S, wait_until

__all__ = ["POLL_S", "wait_until"]
