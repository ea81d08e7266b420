"""The pause of a service between an error and the rebuild of its state from stored offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable

from txlayer.errors import FencedError, InvariantError, TxLayerError, UsageError
from txlayer.runtime.environment import Environment

REBUILD_WAIT_MAX_S = 5.0
"""Longest pause between two rebuilds."""
_SERVE_S = 0.05


def wait_before_rebuild(
    reason: TxLayerError,
    *,
    failure_count: int,
    session_timeout_s: float,
    serve_group: Callable[[float], bool],
    environment: Environment,
    logger: logging.Logger,
) -> None:
    """Serve the group for a pause that grows with the number of failures, or until it assigns partitions.

    `serve_group` waits for at most so many seconds; True: the group said something. After a fence the pause is at least half of
    the session time-out: another member may own the partitions already, and the group must report it before that member is fenced.

    Raises:
        UsageError, InvariantError: what `serve_group` raises of these; other errors of it are logged.
    """
    wait_s = min(0.05 * 2 ** min(failure_count, 10), REBUILD_WAIT_MAX_S)
    if isinstance(reason, FencedError):
        wait_s = max(wait_s, session_timeout_s / 2)
    give_up_at, serve_s = environment.clock() + wait_s, min(_SERVE_S, wait_s)
    while environment.clock() < give_up_at:
        try:
            if serve_group(serve_s):
                return
        except (UsageError, InvariantError):
            raise
        except TxLayerError as exc:
            logger.info("group.unreadable", extra={"reason": str(exc)})
            environment.sleep(serve_s)
