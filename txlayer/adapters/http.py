"""One port with `/metrics`, `/livez` and `/readyz`. Never a user's value, and nothing that changes anything."""

from __future__ import annotations

import logging
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self

from txlayer.adapters.meters import Observed
from txlayer.config import MetricsConfig
from txlayer.errors import ConfigError

logger = logging.getLogger("txlayer.metrics")

CONNECTION_COUNT_MAX = 16
"""Readers at a time; one more is hung up on. A scraper, two probes and a person need four."""
READER_TIMEOUT_S = 5.0
"""How long a reader may take to ask and to take its answer."""
LOOK_S = 0.2
"""How often the server looks whether it should end."""
TEXT = "text/plain; charset=utf-8"

Render = Callable[[str], tuple[bytes, str]]


class MetricsServer:
    """Answers from threads of its own, from `with` to its end. The process never waits for them.

    Args:
        config: where it listens.
        observed: whom it asks.

    Raises, at `start`:
        ConfigError: the extra is missing, or the port cannot be had. Nothing was started.
    """

    def __init__(self, config: MetricsConfig, observed: Observed) -> None:
        self._config = config
        self._observed = observed
        self._server: _Server | None = None

    def start(self) -> None:
        """Listen, and answer from now on."""
        if self._server is not None:
            return
        render = _make_page(self._observed)
        try:
            server = _Server(self._config, self._observed, render)
        except (OSError, OverflowError) as exc:
            raise ConfigError(
                f"cannot listen for readers of metrics: {exc}", name="--metrics-host, --metrics-port",
                value=f"{self._config.host}:{self._config.port}", expected="an address of this machine and a free port",
            ) from exc  # fmt: skip
        self._server = server
        threading.Thread(
            target=server.serve_forever, args=(LOOK_S,), name="txlayer-metrics", daemon=True
        ).start()
        logger.info("metrics.started", extra={"host": self._config.host, "port": self._config.port})

    def close(self) -> None:
        """Stop listening; answers that are under way may still go out."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

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


def _make_page(observed: Observed) -> Render:
    try:
        from txlayer.adapters.exposition import Page
    except ModuleNotFoundError as exc:
        if exc.name != "prometheus_client":
            raise
        raise ConfigError(
            'metrics need their extra: pip install "txlayer[metrics]"', name="--metrics-port"
        ) from exc
    return Page(observed).render


class _Server(socketserver.ThreadingTCPServer):
    """Not `HTTPServer`: that one asks the name service for this machine's name before it listens."""

    allow_reuse_address = (
        True  # connections of a predecessor that are just ending are in nobody's way
    )
    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTION_COUNT_MAX

    def __init__(self, config: MetricsConfig, observed: Observed, render: Render) -> None:
        self.address_family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        self.observed = observed
        self.render = render
        self._free = threading.BoundedSemaphore(CONNECTION_COUNT_MAX)
        super().__init__((config.host, config.port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        """A reader that went away is nobody's concern; anything else is ours, and the next reader is answered."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            logger.error("metrics.failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    timeout = READER_TIMEOUT_S
    server_version = "txlayer"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        """The three pages, and a word about them."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(HTTPStatus.OK, *self.server.render(self.headers.get("Accept", "")))
        elif path == "/livez":
            self._answer_health(self.server.observed.health().stalled)
        elif path == "/readyz":
            health = self.server.observed.health()
            self._answer_health(health.stalled or health.waiting)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there are /metrics, /livez and /readyz\n", TEXT)

    do_HEAD = do_GET  # noqa: N815 - the name is the method's

    def _answer_health(self, reason: str) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
        self._answer(status, f"{reason or 'ok'}\n".encode(), TEXT)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """A scrape every few seconds is no news."""
        logger.debug("metrics.read", extra={"request": format % args})
