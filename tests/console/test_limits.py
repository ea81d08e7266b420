"""What one client may take: sizes and rates by themselves, and on a real server what slow and many clients do."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.support.asgi import ask, served
from tests.support.certificates import Authority
from tests.support.waiting import wait_until
from txlayer.console import limits
from txlayer.console.limits import (
    BODY_BYTES_MAX,
    CLIENT_COUNT_MAX,
    HEAD_BYTES_MAX,
    HEADER_COUNT_MAX,
    REQUEST_BURST,
    REQUEST_RATE,
    Connections,
    Limits,
    TokenBuckets,
)

BIG = 32 * 1024 * 1024
"""More than all buffers between a server and a client that takes nothing."""


class Site:
    """An app with a page, a form, something big and an answer without an end, and what happened to it."""

    def __init__(self) -> None:
        self.connections = Connections()
        self.got: list[int] = []
        self._pages = Starlette(
            routes=[
                Route("/", lambda _: PlainTextResponse("a page")),
                Route("/big", lambda _: Response(b"x" * BIG)),
                Route("/endless", lambda _: StreamingResponse(_endless())),
            ]
        )
        self.app = Limits(self._answer, client_of=lambda scope: dict(scope["headers"]).get(b"client", b"").decode())

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The pages, and a form that is read before them, as `Access` does."""
        if scope["type"] != "http" or scope["path"] != "/form":
            await self._pages(scope, receive, send)
            return
        self.got.append(len(await Request(scope, receive).body()))
        await PlainTextResponse("taken")(scope, receive, send)


async def _endless() -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.Future()


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def port(site: Site, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server whose limits of time and number are those of the test's marker, or as they are."""
    for name, value in getattr(request, "param", {}).items():
        monkeypatch.setattr(limits, name, value)
    with served(site.app, site.connections) as found:
        yield found


def limited(**values: float) -> pytest.MarkDecorator:
    """Run the test with these limits, so that it takes seconds."""
    return pytest.mark.parametrize("port", [values], indirect=True, ids=["limited"])


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def request(port: int, sent: bytes) -> socket.socket:
    """A connection on which this was sent."""
    sock = connect(port)
    with suppress(ConnectionResetError, BrokenPipeError):  # the server ended it, as the next read shows
        sock.sendall(sent)
    return sock


def get(target: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {target} HTTP/1.1", "Host: 127.0.0.1", *headers, "", "")).encode()


def read(sock: socket.socket, until: bytes = b"") -> bytes:
    """What comes until these bytes, or until the connection ends."""
    found = bytearray()
    try:
        while not (until and until in found):
            came = sock.recv(65_536)
            if not came:
                break
            found += came
    except ConnectionResetError:
        pass  # it ended
    return bytes(found)


def page_of(port: int) -> bytes:
    with suppress(ConnectionResetError), request(port, get("/", "Connection: close")) as sock:
        return read(sock)
    return b""  # the server ended it before it was a connection


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.threat("reach the port of the console")
@pytest.mark.parametrize(
    "sent",
    [
        get("/", f"X: {'x' * HEAD_BYTES_MAX}"),
        get(f"/{'x' * HEAD_BYTES_MAX}"),
        get(f"/?{'x' * HEAD_BYTES_MAX}"),
        get("/", *(f"X{n}: x" for n in range(HEADER_COUNT_MAX))),
    ],
    ids=["a header", "a path", "a query", "many headers"],
)
def test_a_head_that_is_too_large_is_refused_also_when_it_comes_at_once(port: int, sent: bytes) -> None:
    with request(port, sent) as sock:
        assert b" 431 " in read(sock)[:20]


def test_a_head_without_an_end_is_refused(port: int) -> None:
    with connect(port) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 2 * HEAD_BYTES_MAX)
        assert b" 400 " in read(sock)[:20]


@pytest.mark.threat("reach the port of the console")
def test_a_form_that_says_it_is_too_large_is_refused_before_it_comes(site: Site, port: int) -> None:
    head = f"POST /form HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {BODY_BYTES_MAX + 1}\r\n\r\n"
    with request(port, head.encode()) as sock:
        assert b" 413 " in read(sock)[:20]
    assert [] == site.got


def test_a_form_that_does_not_say_its_size_is_read_up_to_the_limit(site: Site, port: int) -> None:
    chunk = b"x" * 65_536
    with connect(port) as sock:
        sock.sendall(b"POST /form HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(BODY_BYTES_MAX // len(chunk) + 1):
                sock.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was refused meanwhile
        answered = read(sock)
    assert b" 413 " in answered[:20] or not answered
    assert [] == site.got


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 19, "x", "+5"])
def test_a_length_that_is_no_number_is_refused(site: Site, length: str) -> None:
    assert 413 == ask(site.app, "/form", form=b"", headers={"content-length": length}).status


def test_a_form_within_the_limit_is_taken(site: Site) -> None:
    assert 200 == ask(site.app, "/form", form=b"x" * BODY_BYTES_MAX).status
    assert [BODY_BYTES_MAX] == site.got


# --- rates ------------------------------------------------------------------------------------------------------------


def test_a_bucket_lets_its_burst_through_and_then_its_rate() -> None:
    buckets = TokenBuckets(rate=2, burst=3)

    assert [0, 0, 0, 0.5] == [buckets.wait_s("a", now_s=0) for _ in range(4)]
    assert 0 == buckets.wait_s("b", now_s=0)
    assert [0, 0.5] == [buckets.wait_s("a", now_s=0.5) for _ in range(2)]
    assert [0, 0, 0, 0.5] == [buckets.wait_s("a", now_s=1_000) for _ in range(4)]


def test_only_so_many_clients_are_remembered() -> None:
    buckets = TokenBuckets(rate=1, burst=1)
    for number in range(CLIENT_COUNT_MAX):
        buckets.wait_s(f"client {number}", now_s=0)

    assert 0 < buckets.wait_s("client 0", now_s=0)  # the last one that was used
    buckets.wait_s("one more", now_s=0)
    assert 0 == buckets.wait_s("client 1", now_s=0)
    assert 0 < buckets.wait_s("client 0", now_s=0)


@pytest.mark.threat("reach the port of the console")
def test_a_client_that_asks_too_often_waits_and_another_does_not() -> None:
    now_s = 0.0
    site = Site()
    app = Limits(site.app, client_of=lambda scope: str(scope["client"][0]), clock=lambda: now_s)
    site.app._requests = TokenBuckets(rate=1e9, burst=1e9)  # only the outer one counts
    seen = [ask(app, "/", client="10.0.0.1") for _ in range(int(REQUEST_BURST) + 1)]

    assert 200 == seen[-2].status
    assert (429, "1") == (seen[-1].status, seen[-1].headers["retry-after"])
    assert 200 == ask(app, "/", client="10.0.0.2").status
    now_s += 1 / REQUEST_RATE
    assert 200 == ask(app, "/", client="10.0.0.1").status


# --- slow clients -----------------------------------------------------------------------------------------------------


@pytest.mark.threat("reach the port of the console")
@limited(HEAD_S=0.5, LOOK_S=0.1)
@pytest.mark.parametrize("said", [b"", b"GET / HT", get("/")[:-2]], ids=["nothing", "a line", "all but the end"])
def test_a_client_that_sends_no_whole_head_is_hung_up_on(port: int, said: bytes) -> None:
    with request(port, said) as sock:
        assert b"" == read(sock)
    assert b"a page" in page_of(port)


@limited(HEAD_S=0.2, LOOK_S=0.05)
def test_a_client_that_sends_its_head_byte_by_byte_is_hung_up_on(port: int) -> None:
    with connect(port) as sock:

        def is_over() -> bool:
            try:
                sock.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(is_over, within=20, what="the server hangs up")


@limited(HEAD_S=1.0, LOOK_S=0.1)
def test_a_second_request_has_the_same_time(port: int) -> None:
    with request(port, get("/")) as sock:
        assert read(sock, b"a page").endswith(b"a page")
        sock.sendall(b"GET")
        assert b"" == read(sock)


@pytest.mark.threat("reach the port of the console")
@limited(BODY_S=0.2, LOOK_S=0.05)
def test_a_form_that_does_not_arrive_is_given_up(site: Site, port: int) -> None:
    head = b"POST /form HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nabc"
    with request(port, head) as sock:
        assert b" 408 " in read(sock)[:20]
    assert [] == site.got


@pytest.mark.threat("reach the port of the console")
@limited(TAKE_S=0.5, HEAD_S=0.5, LOOK_S=0.1)
def test_a_client_that_does_not_take_its_page_is_hung_up_on(port: int) -> None:
    with request(port, get("/big")) as slow:
        # No byte is read before the server has given up.
        assert b"a page" in page_of(port)
        wait_until(lambda: _is_reset(slow), within=20, what="the server hangs up")
        assert len(read(slow)) < BIG


def _is_reset(sock: socket.socket) -> bool:
    """True if the other end has aborted the connection; reads nothing."""
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) or _state(sock) != ESTABLISHED


ESTABLISHED = 1


def _state(sock: socket.socket) -> int:
    """The first byte of Linux' `tcp_info`."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


@pytest.mark.slow
@limited(HEAD_S=0.5, LOOK_S=0.1)
def test_a_quick_client_gets_a_big_page_whole(port: int) -> None:
    with request(port, get("/big", "Connection: close")) as sock:
        assert read(sock).endswith(b"x" * 1_000)


# --- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.threat("reach the port of the console")
@limited(CONNECTION_COUNT_MAX=8)
def test_connections_that_wait_give_way_to_a_request(port: int) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(port)) for _ in range(20)]

        assert b"a page" in page_of(port)
        assert b"" == read(idle[0])


@limited(CONNECTION_COUNT_MAX=8)
def test_connections_that_are_answered_do_not_give_way(port: int) -> None:
    with ExitStack() as stack:
        for each in [stack.enter_context(request(port, get("/endless"))) for _ in range(8)]:
            assert b"first" in read(each, b"first")

        assert b"" == page_of(port)


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tls_port(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    signed = Authority(tmp_path, "ours").sign("console")
    monkeypatch.setattr(limits, "HANDSHAKE_S", 0.5)
    with served(site.app, site.connections, ssl_certfile=str(signed.certificate), ssl_keyfile=str(signed.key)) as found:
        yield found


def test_pages_come_by_tls_and_a_handshake_has_little_time(tls_port: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with connect(tls_port) as silent:
        with connect(tls_port) as sock, context.wrap_socket(sock) as secure:
            secure.sendall(get("/", "Connection: close"))
            assert b"a page" in read(secure)
            assert secure.version() in ("TLSv1.2", "TLSv1.3")
        assert b"" == read(silent)
