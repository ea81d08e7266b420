"""What one client may take of the console: bytes, requests, connections and time.

uvicorn bounds the bytes of an incomplete request head and the time between two requests. It bounds neither the time for a
request head, nor that for taking an answer, and beyond its `limit_concurrency` it refuses every client alike. So the time of
each connection is bounded here, and a connection that waits for a request gives way to a new one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger("txlayer.console")

HEAD_BYTES_MAX = 16 * 1024
"""Of a request's path, query and headers. A browser sends 1 KB, with cookies of other programs on the same host some more."""
HEADER_COUNT_MAX = 64
BODY_BYTES_MAX = 4 * 1024 * 1024  # a form: a record of 1 MiB, each of whose bytes becomes up to three
BODY_S = 20.0  # from the first byte of a body to its last
HEAD_S = 10.0  # from the connection, or from the end of an answer, to the end of the next request's head
TAKE_S = 30.0  # how long bytes of an answer may wait for the client to take them
HANDSHAKE_S = 5.0  # For TLS. asyncio's own is 60 s.
LOOK_S = 1.0  # between two looks for connections whose time has ended
CONNECTION_COUNT_MAX = 512
REQUEST_RATE, REQUEST_BURST = 20.0, 100.0  # requests of one client: per second, and at once
CLIENT_COUNT_MAX = 4_096  # clients whose requests are counted; about 1 MB


class TokenBuckets:
    """Lets each key through `burst` times at once and `rate` times a second.

    The key that was used least recently is forgotten beyond `CLIENT_COUNT_MAX`.
    """

    def __init__(self, *, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str, *, now_s: float) -> float:
        """0: it may go on, and this is counted. Else the seconds after which it may."""
        level, at_s = self._levels.pop(key, (self._burst, now_s))
        level = min(self._burst, level + (now_s - at_s) * self._rate)
        is_free = level >= 1
        self._levels[key] = (level - 1 if is_free else level), now_s
        if len(self._levels) > CLIENT_COUNT_MAX:
            self._levels.popitem(last=False)
        return 0.0 if is_free else (1 - level) / self._rate


class RefusedError(Exception):
    """The request gets this answer in one line, and not the app's; then the connection ends."""

    def __init__(self, status: HTTPStatus, text: str, *, retry_s: float | None = None) -> None:
        super().__init__(text)
        headers = {"Connection": "close"} | ({} if retry_s is None else {"Retry-After": str(int(retry_s) + 1)})
        self.answer = PlainTextResponse(f"{text}\n", status, headers)


class Limits:
    """Bounds the size of each request, the time of its body, and the number of requests of a client.

    An app within may raise `RefusedError`. Another error of it is logged here and becomes a page without details.
    """

    def __init__(
        self, app: ASGIApp, *, client_of: Callable[[Scope], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._client_of = client_of
        self._clock = clock
        self._requests = TokenBuckets(rate=REQUEST_RATE, burst=REQUEST_BURST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal: ASGIApp | None = None
        is_started = False

        async def sending(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, _Body(receive).receive, sending)
        except RefusedError as exc:
            refusal = exc.answer
        except Exception:
            # One request failed; the next one gets its answer. The path may name a transaction, the query a key: neither is logged.
            logger.exception("console.failed")
            why = "this page failed; the console's log says why"
            refusal = RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, why).answer
        if refusal is not None and not is_started:
            await refusal(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in headers)
        # h11 bounds what is incomplete, and takes a head of any size that comes at once.
        if size > HEAD_BYTES_MAX or len(headers) > HEADER_COUNT_MAX:
            raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the address or the headers are too long")
        length = dict(headers).get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > BODY_BYTES_MAX:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the form is too large")
        wait_s = self._requests.wait_s(self._client_of(scope), now_s=self._clock())
        if wait_s:
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "too many requests; wait a moment", retry_s=wait_s)


class _Body:
    """The body of one request, bounded in bytes and in time; afterwards what the server reports."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._size = 0
        self._ends_s: float | None = None
        self._is_complete = False

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        self._ends_s = self._ends_s or asyncio.get_running_loop().time() + BODY_S
        try:
            async with asyncio.timeout_at(self._ends_s):
                message = await self._receive()
        except TimeoutError:
            raise RefusedError(HTTPStatus.REQUEST_TIMEOUT, "the form did not arrive in time") from None
        self._size += len(message.get("body", b""))
        if self._size > BODY_BYTES_MAX:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the form is too large")
        self._is_complete = not message.get("more_body", False)
        return message


# --- connections ------------------------------------------------------------------------------------------------------


class Connections:
    """The open connections of one server, bounded in number and time. Its event loop alone uses it."""

    def __init__(self) -> None:
        self._open: dict[BoundedProtocol, None] = {}  # oldest first
        self._watch: asyncio.TimerHandle | None = None

    def add(self, new: BoundedProtocol) -> None:
        if len(self._open) >= CONNECTION_COUNT_MAX:
            self._first_to_give_way(new).abort()
        self._open[new] = None
        if self._watch is None:
            self._watch = new.loop.call_later(LOOK_S, self._look, new.loop)

    def discard(self, gone: BoundedProtocol) -> None:
        self._open.pop(gone, None)

    def _first_to_give_way(self, new: BoundedProtocol) -> BoundedProtocol:
        """The oldest connection without a request, of the address that has most of these; else the new one."""
        waiting = [each for each in self._open if each.head_due_s is not None]
        if not waiting:
            return new
        counts = Counter(each.address for each in waiting)
        most = max(counts.values())
        return next(each for each in waiting if counts[each.address] == most)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        for each in list(self._open):
            if each.is_overdue(loop.time()):
                each.abort()
        self._watch = loop.call_later(LOOK_S, self._look, loop) if self._open else None


_NO_LINGER = struct.pack("ii", 1, 0)


class BoundedProtocol(H11Protocol):
    """uvicorn's connection, which is aborted when its client takes too long."""

    def __init__(self, *args: Any, connections: Connections, **named: Any) -> None:
        super().__init__(*args, **named)
        self._connections = connections
        self.head_due_s: float | None = None
        """When the head of the next request must be complete; None: a request is being answered."""
        self._take_due_s: float | None = None
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows it, too
        super().connection_made(transport)
        self.address = self.client[0] if self.client is not None else ""
        self.head_due_s = self.loop.time() + HEAD_S
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self.head_due_s = None

    def on_response_complete(self) -> None:
        # Before the next request: it may be here already.
        self.head_due_s = self.loop.time() + HEAD_S
        super().on_response_complete()

    def is_overdue(self, now_s: float) -> bool:
        if self.transport.get_write_buffer_size() or self.transport.is_closing():
            self._take_due_s = self._take_due_s or now_s + TAKE_S
            return now_s > self._take_due_s
        self._take_due_s = None
        return self.head_due_s is not None and now_s > self.head_due_s

    def abort(self) -> None:
        """End the connection at once; what its client has not taken is dropped, also by the kernel."""
        self._connections.discard(self)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()


class Loop(asyncio.SelectorEventLoop):
    """The event loop of the server: uvicorn has no setting for the time of a TLS handshake."""

    async def create_server(self, *args: Any, **named: Any) -> asyncio.Server:
        if named.get("ssl"):
            named["ssl_handshake_timeout"] = HANDSHAKE_S
        return await super().create_server(*args, **named)


def server_settings(connections: Connections) -> dict[str, Any]:
    """What `uvicorn.Config` must be given so that these limits hold, and no header changes the address of a client."""
    return {
        "http": partial(BoundedProtocol, connections=connections),
        "loop": f"{__name__}:{Loop.__name__}",
        "ws": "none",
        "h11_max_incomplete_event_size": HEAD_BYTES_MAX,
        "timeout_keep_alive": int(HEAD_S / 2),
        "timeout_graceful_shutdown": 3,
        "backlog": 128,
        "proxy_headers": False,
        "server_header": False,
        # Its lines would show paths and queries, which may name keys.
        "access_log": False,
        "log_config": None,
        "log_level": "error",
    }
