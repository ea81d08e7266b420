"""Every way a joined local transaction may end, and what it must lead to."""

from __future__ import annotations

from typing import Any

import pytest

from txlayer.adapters.ports import LocalState
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN
from txlayer.errors import LifecycleError

OPEN, COMMITTED, ROLLED_BACK, UNCLEAR = LocalState


class ShopError(Exception):
    """The user's own."""


# (state of the local transaction, did the block fail, what the row says) → (resolution, is it the caller's mistake, calls)
ENDS = [
    (COMMITTED, False, ROLLBACK, COMMIT, False, []),
    (COMMITTED, True, ROLLBACK, COMMIT, False, []),
    (OPEN, False, COMMIT, UNKNOWN, True, []),
    (OPEN, True, COMMIT, UNKNOWN, False, []),
    (ROLLED_BACK, False, ROLLBACK, ROLLBACK, False, ["resolve"]),
    (ROLLED_BACK, True, ROLLBACK, ROLLBACK, False, ["resolve"]),
    (UNCLEAR, False, COMMIT, COMMIT, False, ["resolve"]),
    (UNCLEAR, True, COMMIT, COMMIT, False, ["resolve"]),
    (UNCLEAR, True, ROLLBACK, ROLLBACK, False, ["resolve"]),
    (UNCLEAR, True, UNKNOWN, UNKNOWN, False, ["resolve"]),
    (UNCLEAR, True, OSError("gone"), UNKNOWN, False, ["resolve"]),
    (UNCLEAR, False, OSError("gone"), UNKNOWN, False, ["resolve"]),
]
each_end = pytest.mark.parametrize(("state", "has_failed", "row", "expected", "is_misfit", "asked"), ENDS)


def ended(call: Any, *, has_failed: bool, is_misfit: bool) -> None:
    """Call it; what must be raised is."""
    try:
        call()
    except ShopError:
        assert has_failed
    except LifecycleError:
        assert is_misfit
    else:
        assert not has_failed
        assert not is_misfit
