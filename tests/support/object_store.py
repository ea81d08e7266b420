"""An S3 of moto that keeps what changed it and what it was asked: `python object_store.py PORT`, which imports nothing of ours.

It is put back to what a kill leaves, and says at which other kills a client would have been answered the same.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import unescape
from io import BytesIO
from threading import Condition
from typing import Any
from urllib.parse import parse_qs, unquote

State = Mapping[str, str]
"""{name of an object: the hash of its content}."""
Environ = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Read:
    """A client read an object, or saw that there is none."""

    key: str


@dataclass(frozen=True, slots=True)
class Change:
    """A client wrote or deleted an object."""

    key: str
    content: str | None


@dataclass(slots=True)
class Listing:
    """A client listed the objects under a prefix; `found` were there."""

    prefix: str
    delimiter: str
    limit: int
    found: State
    is_to_end: bool = False
    """Each of them is deleted next, whatever it is, and nothing else is done with it."""

    def shown(self, there: State) -> object:
        """What the client takes from such a listing: Hadoop asks for two to know if a folder is there, and Spark looks at no hidden names."""
        if self.limit <= 2:
            return "nothing" if not there else "marker" if {self.prefix} == there.keys() else "something"
        names = set()
        for key, content in there.items():
            rest = key[len(self.prefix) :]
            name, *more = rest.split(self.delimiter, 1) if self.delimiter else (rest,)
            if not any(part[:1] in ("_", ".") for part in name.split("/")):
                names.add((name, "" if more else content))
        return bool(there), names


Act = Read | Change | Listing


def marked(acts: list[Act]) -> list[Act]:
    """The same acts, with `is_to_end` of listings."""
    for at, act in enumerate(acts):
        if isinstance(act, Listing) and not act.delimiter and act.limit > 2 and act.found:
            left = set(act.found)
            for later in acts[at + 1 :]:
                if not isinstance(later, Listing) and later.key in left:
                    if later != Change(later.key, None):
                        break
                    left.discard(later.key)
            act.is_to_end = not left
    return acts


def is_alike(begun: State, other: State, acts: Iterable[Act]) -> bool:
    """Whether what a client did from one state on it would have done from the other one, too: each answer is the same to it."""
    differs = {key for key in begun.keys() | other.keys() if begun.get(key) != other.get(key)}
    for act in acts:
        if not differs:
            break
        if isinstance(act, Change):
            differs.discard(act.key)
        elif isinstance(act, Read):
            if act.key in differs:
                return False
        elif under := {key for key in differs if key.startswith(act.prefix)}:
            if act.is_to_end:
                differs -= under
                continue
            there = {key: content for key, content in act.found.items() if key not in under}
            if act.shown(act.found) != act.shown(there | {key: other[key] for key in under if key in other}):
                return False
    return True


@dataclass(slots=True)
class Store:
    """Moto behind a door that notes what passes."""

    s3: Callable[..., Any]
    """An application of WSGI."""
    control: Callable[..., Any]
    """Another one, which takes everything out of it."""
    changes: list[tuple[Environ, bytes]] = field(default_factory=list)
    states: list[State] = field(default_factory=lambda: [{}])
    """What the first changes left: none of them, one, …"""
    now: dict[str, str] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    is_recorded: bool = True
    step: int = 0
    turn: int = 0
    left: int = -1
    is_held: bool = False
    lock: Condition = field(default_factory=Condition)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        from werkzeug.wrappers import Request

        method, path, mine = environ["REQUEST_METHOD"], environ["PATH_INFO"], self.turn
        if path.startswith("/-/"):
            with self.lock:
                text = json.dumps(self.order(method, [int(part) for part in path.split("/")[2:] if part]))
            start_response("200 OK", [("Content-Length", str(len(text)))])
            return [text.encode()]
        given = environ, Request(environ, populate_request=False).get_data()
        is_change = method in ("PUT", "POST", "DELETE")
        with self.lock:
            if not is_change or (mine == self.turn and self.left):
                self.left -= is_change
                answer, status, headers = self.asked(*given)
                if is_change and self.is_recorded:
                    self.changes.append(given)
                    self.states.append(dict(self.now))
                start_response(status, list(headers))
                return answer
            self.is_held |= mine == self.turn
            self.lock.wait_for(lambda: mine != self.turn)
        start_response("503 Service Unavailable", [("Content-Length", "0")])
        return []

    def order(self, method: str, numbers: list[int]) -> object:
        """What the test itself asks.

        `PUT /-/7`: as the first seven changes left it. `PUT /-/7/3`: and what comes behind three further ones is not answered.
        `GET /-/5/9`: of the steps from 5 to 9, those at which all since the last order would have been answered the same.
        """
        from werkzeug.test import create_environ, run_wsgi_app

        if method == "PUT":
            self.is_recorded, self.turn, self.is_held = False, self.turn + 1, False
            self.left = numbers[1] if numbers[1:] else -1
            self.lock.notify_all()
            if numbers:
                self.step = numbers[0]
                run_wsgi_app(self.control, create_environ("/moto-api/reset", method="POST"))
                self.now.clear()
                for change in self.changes[: self.step]:
                    self.asked(*change)
            self.acts = []
        elif numbers:
            acts, begun = marked(self.acts), self.states[self.step]
            return [n for n in range(numbers[0], numbers[1] + 1) if is_alike(begun, self.states[n], acts)]
        names = [f"{given['REQUEST_METHOD']} {given['PATH_INFO']}" for given, _ in self.changes]
        return {"changes": names, "is_held": self.is_held}

    def asked(self, environ: Environ, body: bytes) -> tuple[list[bytes], str, Iterable[tuple[str, str]]]:
        """Moto's answer, and what it says of the state noted."""
        from werkzeug.test import create_environ, run_wsgi_app

        whole = {**create_environ(), **environ, "wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        parts, status, headers = run_wsgi_app(self.s3, whole, buffered=True)
        answer = [b"".join(parts)]
        method, (bucket, _, key) = whole["REQUEST_METHOD"], whole["PATH_INFO"].lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(whole["QUERY_STRING"], keep_blank_values=True).items()}
        if not key:
            if method == "GET" and "list-type" in query:
                self.listed(query, answer[0].decode())
            for name in re.findall("<Key>(.*?)</Key>", body.decode()) if "delete" in query else ():
                self.changed(unescape(name), None)
        elif method in ("GET", "HEAD"):
            self.acts.append(Read(key))
            assert (status[0] == "2") == (key in self.now), (status, key)
        elif method == "DELETE":
            self.changed(key, None)
        else:
            assert ("PUT", {}, "2") == (method, query, status[0]), (key, status)
            source = whole.get("HTTP_X_AMZ_COPY_SOURCE")
            if source:
                self.acts.append(Read(unquote(source).lstrip("/").removeprefix(f"{bucket}/")))
            found = re.search(r"[0-9a-f]{32}", dict(headers).get("ETag", "") or answer[0].decode())
            assert found, (key, answer)
            self.changed(key, found[0])
        return answer, status, headers

    def listed(self, query: Mapping[str, str], answer: str) -> None:
        """Note a listing; moto and the notes agree on it."""
        prefix, limit = query.get("prefix", ""), int(query.get("max-keys", "1000"))
        found = {key: content for key, content in self.now.items() if key.startswith(prefix)}
        listing = Listing(prefix, query.get("delimiter", ""), limit, found)
        assert limit <= 2 or len(found) < limit, "more than one page"
        assert bool(found) == ("<Key>" in answer or "<CommonPrefixes>" in answer), (query, answer)
        self.acts.append(listing)

    def changed(self, key: str, content: str | None) -> None:
        self.acts.append(Change(key, content))
        self.now.pop(key, None)
        if content is not None:
            self.now[key] = content


def serve(port: int) -> None:
    """Until it is killed."""
    from moto.server import create_backend_app
    from werkzeug.serving import run_simple

    # Moto's own door looks each request's service up, which takes four times as long as the answer.
    store = Store(create_backend_app("s3"), create_backend_app("moto_api"))
    run_simple("127.0.0.1", port, store, threaded=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
