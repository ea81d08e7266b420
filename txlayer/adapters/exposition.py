"""One port with `/metrics`, `/livez` and `/readyz`. It shows no user's values and changes nothing.

Needs the extra `metrics`; no other module of txlayer imports Prometheus' client. Metrics are read at each scrape; nothing is
computed between two scrapes.

The port accepts requests from any client, so one thread serves all connections, and the bytes and time of each are
bounded. If all slots are taken, a new connection replaces the oldest one of the address that has the most. A probe is
therefore answered, whatever another address does. Neither the servers of Python and of Prometheus' client nor waitress
promise that: they give each connection a thread, or stop accepting.
"""

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Self

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from txlayer.adapters.telemetry import Family, FamilyKind, HistogramView, Measured, Observed, Sample, printable
from txlayer.config import MetricsConfig
from txlayer.errors import ConfigError

logger = logging.getLogger("txlayer.metrics")

_TOTAL = "_total"

PAGE_KEPT_S = 1.0  # How long a page is reused for further readers. Making one blocks the interpreter for milliseconds.

_encode, _CONTENT_TYPE = choose_encoder("")  # Prometheus' text format, which every reader understands


class SampleCollector(Collector):
    """A collector for a registry of Prometheus' client; nothing is computed between two scrapes.

    Args:
        measured: the source of the metrics, such as a program's `ProducerMetrics`.
    """

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def collect(self) -> Iterator[Metric]:
        return _metrics(self._measured.samples())

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise the registry would collect at once to learn the names."""
        return ()


def _metrics(samples: Iterable[Sample]) -> Iterator[Metric]:
    by_family: dict[Family, list[Sample]] = {}
    for sample in samples:
        by_family.setdefault(sample.family, []).append(sample)
    for family, found in by_family.items():
        made = _KINDS[family.kind](family.name.removesuffix(_TOTAL), family.text, labels=family.labels)
        for sample in found:
            # A backslash is escaped too, so that different values stay different.
            labels = [printable(label.replace("\\", "\\\\")) for label in sample.labels]
            made.add_metric(labels, *_content(sample.value))
        yield made


_KINDS: Mapping[FamilyKind, Callable[..., Any]] = {
    FamilyKind.COUNTER: CounterMetricFamily,
    FamilyKind.GAUGE: GaugeMetricFamily,
    FamilyKind.HISTOGRAM: HistogramMetricFamily,
}


def _content(value: float | HistogramView) -> tuple[Any, ...]:
    if not isinstance(value, HistogramView):
        return (value,)
    bounds = [*map(str, value.bounds), "+Inf"]
    return [(b, float(n)) for b, n in zip(bounds, value.counts, strict=True)], value.total


# --- the port ---------------------------------------------------------------------------------------------------------

CONNECTION_COUNT_MAX = 16  # Readers at a time. A scraper, two probes and a person need four.
REQUEST_BYTES_MAX = 8 * 1024  # size of a request with all its headers; Prometheus sends about 300 bytes
HEADER_COUNT_MAX = 64
READER_TIMEOUT_S = 5.0  # longest time from the connection to the last byte of the answer
PAUSE_S = 0.2  # a pause after a connection that could not be accepted
BACKLOG = 128  # connections that the kernel queues
TEXT = "text/plain; charset=utf-8"


def _answer(status: HTTPStatus, body: bytes = b"", content_type: str = TEXT, *, has_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.0 {status.value} {status.phrase}\r\nServer: txlayer\r\nDate: {formatdate(usegmt=True)}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\nCache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if has_body else b"")


class MetricsServer:
    """Serves the port from its own thread, from `with` to the end of the block.

    Raises, at `start`:
        ConfigError: the port is not available. Nothing was started.
    """

    def __init__(
        self, config: MetricsConfig, observed: Observed, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._observed = observed
        self._clock = clock
        self._connections: dict[asyncio.Task[None], str] = {}  # the address of each, oldest first
        self._thread: threading.Thread | None = None
        self._page, self._kept_until = b"", float("-inf")
        self._registry = CollectorRegistry()
        self._registry.register(SampleCollector(observed))
        ProcessCollector(registry=self._registry)

    def start(self) -> None:
        if self._thread is not None:
            return
        host, port = self._config.metrics_host.strip(), self._config.metrics_port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except (OSError, OverflowError) as exc:
            raise ConfigError(
                f"cannot listen for readers of metrics: {exc}",
                name="--metrics-host, --metrics-port",
                value=f"{host}:{port}",
                expected="an address of this machine and a free port",
            ) from exc
        listener.settimeout(0)
        self._loop = asyncio.SelectorEventLoop()  # a program may have installed another kind, whose clock cannot be set
        self._loop.time = self._clock  # type: ignore[method-assign]  # the time-outs of readers count by it
        self._ending = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(listener,), name="txlayer-metrics", daemon=True)
        self._thread.start()
        logger.info("metrics.started", extra={"host": host, "port": port})

    def close(self) -> None:
        """Stop listening, and close every connection; the port is free afterwards."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._ending.set_result, None)
            thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answer_to(self, request: bytes) -> bytes:
        """The complete answer to a complete request (its first line and its headers), or to one that is too large."""
        if len(request) > REQUEST_BYTES_MAX:
            return _answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        first, *lines = request.decode("latin-1").splitlines()
        words = first.split()
        if len(words) != 3 or not words[2].startswith("HTTP/") or sum(map(bool, lines)) > HEADER_COUNT_MAX:
            return _answer(HTTPStatus.BAD_REQUEST)
        if words[0] not in ("GET", "HEAD"):
            return _answer(HTTPStatus.NOT_IMPLEMENTED)
        try:
            status, body, content_type = self._answer_of(words[1].partition("?")[0])
        except Exception:
            # One page failed; the next reader gets an answer.
            logger.exception("metrics.failed")
            return _answer(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _answer(status, body, content_type, has_body=words[0] == "GET")

    def _answer_of(self, path: str) -> tuple[HTTPStatus, bytes, str]:
        if path == "/metrics":
            return HTTPStatus.OK, self.metrics_page(), _CONTENT_TYPE
        if path in ("/livez", "/readyz"):
            health = self._observed.health()
            reason = health.stalled or (health.waiting if path == "/readyz" else "")
            status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
            return status, f"{printable(reason) or 'ok'}\n".encode(), TEXT
        return HTTPStatus.NOT_FOUND, b"there are /metrics, /livez and /readyz\n", TEXT

    def metrics_page(self) -> bytes:
        """The metrics, made at most once in `PAGE_KEPT_S`."""
        now = self._clock()
        if now >= self._kept_until:
            self._page, self._kept_until = _encode(self._registry), now + PAGE_KEPT_S
        return self._page

    # --- connections --------------------------------------------------------------------------------------------------

    def _run(self, listener: socket.socket) -> None:
        async def serve() -> None:
            async with asyncio.TaskGroup() as tasks:
                accepting = tasks.create_task(self._accept(listener, tasks))
                await self._ending
                for task in (accepting, *self._connections):
                    task.cancel()

        with listener, closing(self._loop):
            self._loop.run_until_complete(serve())

    async def _accept(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                sock, (address, *_) = await self._loop.sock_accept(listener)
            except OSError:
                # No file descriptor is left, for example; the listener would be ready again at once.
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._connections) >= CONNECTION_COUNT_MAX:
                self._first_to_give_way().cancel()
            task = tasks.create_task(self._serve(sock))
            self._connections[task] = address
            task.add_done_callback(partial(self._forget, sock))
            await asyncio.sleep(0)  # however many come, those that are here are served in between

    def _forget(self, sock: socket.socket, ended: asyncio.Task[None]) -> None:
        self._connections.pop(ended, None)
        sock.close()

    def _first_to_give_way(self) -> asyncio.Task[None]:
        counts = Counter(self._connections.values())
        most = max(counts.values())
        first = next(task for task, address in self._connections.items() if counts[address] == most)
        del self._connections[first]
        return first

    async def _serve(self, sock: socket.socket) -> None:
        # A reader that closed its connection, or has had its time, needs no handling.
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(READER_TIMEOUT_S):
                request = await self._request_from(sock)
                await self._loop.sock_sendall(sock, self._answer_to(request))
                sock.shutdown(socket.SHUT_WR)

    async def _request_from(self, sock: socket.socket) -> bytes:
        asked = b""
        while len(asked) <= REQUEST_BYTES_MAX and not (b"\r\n\r\n" in asked or b"\n\n" in asked):
            came = await self._loop.sock_recv(sock, REQUEST_BYTES_MAX + 1 - len(asked))
            if not came:
                raise ConnectionResetError
            asked += came
        return asked
