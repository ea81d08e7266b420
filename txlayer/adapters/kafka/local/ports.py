"""Ports of this machine: whether one is free, and free ones to choose."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from txlayer.adapters.kafka.local.server_settings import HOST
from txlayer.errors import ConfigError

# Below the ports that systems give to outgoing connections (32768 and up on Linux, 49152 on others): a broker that is
# down for a moment would otherwise find its port taken by some client, or a client connected to itself.
FIRST_CHOICE = 15_000
LAST_CHOICE = 32_000
_TRIES_MAX = 500


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does: what lingers of an earlier server's connections is no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            # With SO_REUSEADDR a bind may succeed beside a listener on some systems; listening does not.
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int, *, apart_from: Collection[int] = ()) -> list[int]:
    """`count` different ports that were free a moment ago, none of those that somebody chose already.

    Raises:
        ConfigError: hardly any port of the range is free.
    """
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        port = random.randint(FIRST_CHOICE, LAST_CHOICE)  # noqa: S311 - no secret: spreads processes that look at once
        if port not in found and port not in apart_from and is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise ConfigError(
        "no free ports for a broker; end what holds them or name one with --port",
        name="port",
        expected=f"free ports between {FIRST_CHOICE} and {LAST_CHOICE}",
    )
