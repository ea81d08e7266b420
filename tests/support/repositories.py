"""A package repository on this machine, for tests of what fetches from one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Repository:
    """Where it is, and how often each file was fetched."""

    url: str
    fetched: Counter[str] = field(default_factory=Counter)


@contextmanager
def serve(files: Mapping[str, bytes]) -> Iterator[Repository]:
    """A repository that holds exactly `files`, by path."""
    fetched: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(has_body=True)

        def do_HEAD(self) -> None:
            self._answer(has_body=False)

        def _answer(self, *, has_body: bool) -> None:
            content = files.get(self.path.lstrip("/"))
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if has_body and content is not None:
                fetched[self.path.rpartition("/")[2]] += 1
                self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            """Nothing: a test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Repository(f"http://127.0.0.1:{server.server_port}", fetched)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
