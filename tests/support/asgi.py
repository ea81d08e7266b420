"""Asks an ASGI app in this process, as one client that follows nothing and keeps no cookie by itself; or serves it on a port."""

import asyncio
import re
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode

import uvicorn
from starlette.types import ASGIApp, Message

from tests.support.waiting import wait_until
from txlayer.console.limits import Connections, server_settings

FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def cookie(self) -> str:
        """The first part of the cookie that was set, as a browser sends it back."""
        return self.headers["set-cookie"].partition(";")[0]

    @property
    def form_token(self) -> str:
        """The hidden field of the page's first form."""
        found = re.search(r'name="form_token" value="([^"]+)"', self.text)
        assert found is not None, self.text
        return found[1]


def ask(
    app: ASGIApp,
    target: str,
    *,
    form: Mapping[str, str] | bytes | None = None,
    method: str | None = None,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    client: str = "127.0.0.1",
    scheme: str = "http",
    host: str = "127.0.0.1:8080",
) -> Answer:
    """One request; with a form it is a POST from the same origin, unless `headers` say otherwise."""
    given = list(headers.items() if isinstance(headers, Mapping) else headers)
    names = {name.lower() for name, _ in given}
    own = {"host": host}
    body = b""
    if form is not None:
        body = form if isinstance(form, bytes) else urlencode(form).encode()
        own |= {"content-type": FORM, "content-length": str(len(body)), "origin": f"{scheme}://{host}"}
    path, _, query = target.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method or ("GET" if form is None else "POST"),
        "scheme": scheme,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [
            (name.lower().encode(), value.encode("latin-1"))
            for name, value in [*((n, v) for n, v in own.items() if n not in names), *given]
        ],
        "client": (client, 50_000),
        "server": ("127.0.0.1", 8080),
        "state": {},
    }
    return asyncio.run(_asked(app, scope, body))


async def _asked(app: ASGIApp, scope: dict[str, Any], body: bytes) -> Answer:
    sent: list[Message] = []
    to_come: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return to_come.pop() if to_come else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *bodies = sent
    return Answer(
        start["status"],
        {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]},
        b"".join(each.get("body", b"") for each in bodies).decode(),
    )


@contextmanager
def served(app: ASGIApp, connections: Connections, *, port: int = 0, **settings: object) -> Iterator[int]:
    """The port of a real server of this app, which ends with the block."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1_024)
    server = uvicorn.Server(uvicorn.Config(app, **server_settings(connections), **settings))  # type: ignore[arg-type]  # by name
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started, within=30, what="the server listens")
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive()
