"""One port with `/metrics`, `/livez` and `/readyz`. Never a user's value, and nothing that changes anything.

Whoever reaches the port may send anything: one thread serves all connections, and what each of them may cost in bytes and time
is bounded. When all places are taken, one gives way to the next that comes: the oldest of the address that has the most. So a
probe is answered, whatever another address does.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from types import TracebackType
from typing import Self

from txlayer.adapters.metrics import Observed
from txlayer.adapters.telemetry import printable
from txlayer.config import MetricsConfig
from txlayer.errors import ConfigError

logger = logging.getLogger("txlayer.metrics")

CONNECTION_COUNT_MAX = 16
"""Readers at a time. A scraper, two probes and a person need four."""
REQUEST_BYTES_MAX = 8 * 1024
"""A request with all of its headers; Prometheus sends some 300 bytes."""
HEADER_COUNT_MAX = 64
READER_TIMEOUT_S = 5.0
"""How long a reader may take from its connection to the last byte of its answer."""
LOOK_S = 0.2
"""How often the server looks whether it should end, and whose time is over."""
BACKLOG = 128
"""Connections that the kernel keeps until they are accepted, all of them in one turn."""
TEXT = "text/plain; charset=utf-8"

Render = Callable[[str], tuple[bytes, str]]


class MetricsServer:
    """Answers from a thread of its own, from `with` to its end.

    Args:
        config: where it listens.
        observed: whom it asks.
        clock: seconds; a reader's time is measured with it.

    Raises, at `start`:
        ConfigError: the extra is missing, or the port cannot be had. Nothing was started.
    """

    def __init__(
        self,
        config: MetricsConfig,
        observed: Observed,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._observed = observed
        self._clock = clock
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen, and answer from now on."""
        if self._server is not None:
            return
        render = _make_page(self._observed, self._clock)
        try:
            server = _Server(self._config, _Pages(self._observed, render), self._clock)
        except (OSError, OverflowError) as exc:
            raise ConfigError(
                f"cannot listen for readers of metrics: {exc}", name="--metrics-host, --metrics-port",
                value=f"{self._config.host}:{self._config.port}", expected="an address of this machine and a free port",
            ) from exc  # fmt: skip
        self._server = server
        server.start()
        logger.info("metrics.started", extra={"host": self._config.host, "port": self._config.port})

    def close(self) -> None:
        """Stop listening, and end every connection."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _make_page(observed: Observed, clock: Callable[[], float]) -> Render:
    try:
        from txlayer.adapters.exposition import Page
    except ModuleNotFoundError as exc:
        if exc.name != "prometheus_client":
            raise
        raise ConfigError(
            'metrics need their extra: pip install "txlayer[metrics]"', name="--metrics-port"
        ) from exc
    return Page(observed, clock=clock).render


class _Pages:
    """What is answered to a request; no sockets."""

    def __init__(self, observed: Observed, render: Render) -> None:
        self._observed = observed
        self._render = render

    def answer(self, request: bytes) -> bytes:
        """The whole answer to a whole request: its first line and its headers."""
        first, *lines = request.decode("latin-1").splitlines()
        words = first.split()
        headers = [line.partition(":") for line in lines if line]
        if len(words) != 3 or not words[2].startswith("HTTP/") or len(headers) > HEADER_COUNT_MAX:
            return _answer(HTTPStatus.BAD_REQUEST)
        if words[0] not in ("GET", "HEAD"):
            return _answer(HTTPStatus.NOT_IMPLEMENTED)
        accept = ",".join(value.strip() for name, _, value in headers if name.lower() == "accept")
        status, body, content_type = self._page(words[1].partition("?")[0], accept)
        return _answer(status, body, content_type, has_body=words[0] == "GET")

    def _page(self, path: str, accept: str) -> tuple[HTTPStatus, bytes, str]:
        if path == "/metrics":
            return HTTPStatus.OK, *self._render(accept)
        if path in ("/livez", "/readyz"):
            health = self._observed.health()
            reason = health.stalled or (health.waiting if path == "/readyz" else "")
            status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
            return status, f"{printable(reason) or 'ok'}\n".encode(), TEXT
        return HTTPStatus.NOT_FOUND, b"there are /metrics, /livez and /readyz\n", TEXT


def _answer(
    status: HTTPStatus, body: bytes = b"", content_type: str = TEXT, *, has_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.0 {status.value} {status.phrase}\r\nServer: txlayer\r\nDate: {formatdate(usegmt=True)}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\nCache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if has_body else b"")


class _Connection:
    """One reader: what came of its request, what is left of its answer, and when its time is over."""

    __slots__ = ("address", "asked", "deadline", "left", "sock")

    def __init__(self, sock: socket.socket, address: str, deadline: float) -> None:
        self.sock = sock
        self.address = address
        self.deadline = deadline
        self.asked = b""
        self.left: memoryview | None = None
        """None: the request is not complete."""

    def receive(self) -> bytes | None:
        """The request once it is complete, or too large; None: not yet.

        Raises:
            OSError: the reader is gone.
        """
        came = self.sock.recv(REQUEST_BYTES_MAX + 1 - len(self.asked))
        if not came:
            raise ConnectionResetError
        self.asked += came
        is_whole = b"\r\n\r\n" in self.asked or b"\n\n" in self.asked
        return self.asked if is_whole or self.is_too_large else None

    @property
    def is_too_large(self) -> bool:
        """More than a request may have."""
        return len(self.asked) > REQUEST_BYTES_MAX


class _Server:
    """The thread, the socket that listens, and the connections, oldest first."""

    def __init__(self, config: MetricsConfig, pages: _Pages, clock: Callable[[], float]) -> None:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        self._listener = socket.create_server(
            (config.host, config.port), family=family, backlog=BACKLOG
        )
        self._listener.settimeout(0)
        self._pages = pages
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: dict[_Connection, None] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txlayer-metrics", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """End; the port is free afterwards."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                # Whoever is being served goes on before anybody comes in.
                ready = [key.data for key, _ in self._selector.select(LOOK_S)]
                for connection in filter(None, ready):
                    self._serve(connection)
                if None in ready:
                    self._accept_all()
                now = self._clock()
                for connection in [c for c in self._connections if c.deadline <= now]:
                    self._drop(connection)
        finally:
            for connection in list(self._connections):
                self._drop(connection)
            self._selector.close()
            self._listener.close()

    def _accept_all(self) -> None:
        """Whoever came, in one turn: a probe does not wait behind others for a turn of its own."""
        for _ in range(BACKLOG):
            if not self._accept():
                return

    def _accept(self) -> bool:
        try:
            sock, (address, *_) = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError:
            # No file is left, say; the listener would be ready again at once.
            self._ending.wait(LOOK_S)
            return False
        if len(self._connections) >= CONNECTION_COUNT_MAX:
            self._drop(self._first_to_give_way())
        sock.settimeout(0)
        connection = _Connection(sock, address, self._clock() + READER_TIMEOUT_S)
        self._connections[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)
        # What is asked for has mostly come with the connection.
        self._serve(connection)
        return True

    def _first_to_give_way(self) -> _Connection:
        """The oldest of the address that has the most."""
        counts = Counter(connection.address for connection in self._connections)
        most = max(counts.values())
        return next(c for c in self._connections if counts[c.address] == most)

    def _serve(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        try:
            if connection.left is None:
                request = connection.receive()
                if request is None:
                    return
                if connection.is_too_large:
                    answer = _answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                else:
                    answer = self._answer(request)
                connection.left = memoryview(answer)
                self._selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
            connection.left = connection.left[connection.sock.send(connection.left) :]
            if not connection.left:
                connection.sock.shutdown(socket.SHUT_WR)
                self._drop(connection)
        except BlockingIOError:
            return
        except OSError:
            # A reader that went away is nobody's concern.
            self._drop(connection)

    def _answer(self, request: bytes) -> bytes:
        try:
            return self._pages.answer(request)
        except Exception:
            # One page failed; the next reader is answered.
            logger.exception("metrics.failed")
            return _answer(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection]
        self._selector.unregister(connection.sock)
        connection.sock.close()
