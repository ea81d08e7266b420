"""The proxy that harms connections leaves none of its own open when it ends, whoever is just arriving."""

import gc
import socket
import warnings
from contextlib import ExitStack

from tests.support.faultproxy import FaultProxy
from txlayer.adapters.kafka.local.server import free_ports

END_COUNT = 30
CLIENT_COUNT = 8


def test_a_proxy_that_ends_while_clients_come_leaves_no_connection_open() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what other tests left is not told here
    with socket.create_server(("127.0.0.1", 0)) as target, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(END_COUNT):
            with ExitStack() as clients, FaultProxy(target.getsockname()[:2], port=free_ports(1)[0]) as proxy:
                for _ in range(CLIENT_COUNT):
                    client = socket.create_connection(("127.0.0.1", proxy.port))
                    clients.enter_context(client)
        gc.collect()

    assert [] == [str(warning.message) for warning in seen]
