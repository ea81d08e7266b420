"""A schema registry over HTTP: what Confluent's clients ask for, as Confluent's own answers it, in memory.

Source: https://docs.confluent.io/platform/current/schema-registry/develop/api.html (subjects, schemas, errors).
"""

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Answer = tuple[int, Any]

_NO_SUBJECT = (404, {"error_code": 40401, "message": "Subject not found."})
_NO_VERSION = (404, {"error_code": 40402, "message": "Version not found."})
_NO_SCHEMA = (404, {"error_code": 40403, "message": "Schema not found"})
_NO_PAGE = (404, {"error_code": 404, "message": "HTTP 404 Not Found"})
_BROKEN = (500, {"error_code": 50001, "message": "Error in the backend data store"})
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class Schemas:
    """What is registered. Any thread may ask."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Method and path of every request."""
        self.is_broken = False
        """True: everything is answered with an error of the server."""
        self._by_id: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """(status, body) of one request."""
        with self._lock:
            self.asked.append(f"{method} {path}")
            if self.is_broken:
                return _BROKEN
            for wanted, form, act in self._pages():
                found = re.fullmatch(form, path)
                if wanted == method and found is not None:
                    return act(*map(unquote, found.groups()), *([] if body is None else [body]))
            return _NO_PAGE

    def _pages(self) -> list[tuple[str, str, Callable[..., Answer]]]:
        return [
            ("POST", "/subjects/([^/]+)/versions", self._register),
            ("POST", "/subjects/([^/]+)", self._look_up),
            ("GET", "/subjects", lambda: (200, list(self._subjects))),
            ("GET", "/subjects/([^/]+)/versions/([^/]+)", self._version),
            ("GET", "/schemas/ids/([0-9]+)", self._schema),
            ("GET", "/schemas/guids/([^/]+)", self._schema_by_guid),
        ]

    def _register(self, subject: str, body: dict[str, Any]) -> Answer:
        known = self._id_of(body)
        if known is None:
            known = len(self._by_id) + 1
            self._by_id[known] = {**_schema_in(body), "guid": str(uuid.uuid4())}
        versions = self._subjects.setdefault(subject, [])
        if known not in versions:
            versions.append(known)
        return 200, {"id": known, **self._by_id[known], "version": versions.index(known) + 1}

    def _look_up(self, subject: str, body: dict[str, Any]) -> Answer:
        if subject not in self._subjects:
            return _NO_SUBJECT
        known = self._id_of(body)
        if known not in self._subjects[subject]:
            return _NO_SCHEMA
        return self._version(subject, str(self._subjects[subject].index(known) + 1))

    def _version(self, subject: str, version: str) -> Answer:
        if subject not in self._subjects:
            return _NO_SUBJECT
        versions = self._subjects[subject]
        number = len(versions) if version == "latest" else int(version)
        if not 0 < number <= len(versions):
            return _NO_VERSION
        known = versions[number - 1]
        return 200, {"subject": subject, "version": number, "id": known, **self._by_id[known]}

    def _schema(self, known: str) -> Answer:
        found = self._by_id.get(int(known))
        return _NO_SCHEMA if found is None else (200, found)

    def _schema_by_guid(self, guid: str) -> Answer:
        return next(((200, s) for s in self._by_id.values() if s["guid"] == guid), _NO_SCHEMA)

    def _id_of(self, body: dict[str, Any]) -> int | None:
        wanted = _schema_in(body)
        for known, schema in self._by_id.items():
            if {name: value for name, value in schema.items() if name != "guid"} == wanted:
                return known
        return None


def _schema_in(body: dict[str, Any]) -> dict[str, Any]:
    """The schema of a request; Avro is the type of one that names none, and is not named in answers."""
    kept = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
    return {name: value for name, value in kept.items() if (name, value) != ("schemaType", "AVRO")}


class Registry:
    """A running registry."""

    def __init__(self, server: ThreadingHTTPServer, schemas: Schemas) -> None:
        self.schemas = schemas
        host, port = server.server_address[:2]
        self.url = f"http://{host!s}:{port}"


@contextmanager
def schema_registry() -> Iterator[Registry]:
    """A registry on a free port of this machine, gone at the end."""
    schemas = Schemas()

    class Asked(BaseHTTPRequestHandler):
        """One connection."""

        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, told = schemas.answer(self.command, urlsplit(self.path).path, body)
            raw = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", _MEDIA_TYPE)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the names that http.server asks for

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Asked)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="schema-registry", daemon=True)
    thread.start()
    try:
        yield Registry(server, schemas)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
