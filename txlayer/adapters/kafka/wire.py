"""A question that librdkafka does not ask: the features of a broker and of its cluster, which tell Kafka's version.

It is one request of Kafka's public protocol over a connection of its own, which a broker answers before a client signs in.
Source: the Kafka protocol guide, ApiVersions (key 18, version 3).
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

_API_VERSIONS, _VERSION = 18, 3
_CLIENT = b"txlayer-doctor"
_ANSWER_BYTES_MAX = 16 * 1024 * 1024
_CORRELATION = 7

T = TypeVar("T")


class Features(NamedTuple):
    """The features of a broker and of its cluster."""

    supported: Mapping[str, tuple[int, int]]  # {feature: lowest and highest level its software knows}
    finalized: Mapping[str, int]  # {feature: level in force in the cluster}


class Door(NamedTuple):
    """How to reach one broker."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    timeout_s: float


class WireError(Exception):
    """The broker's answer does not have the form of the protocol; it stays inside this package."""


def tls_of(settings: Mapping[str, str]) -> ssl.SSLContext | None:
    """TLS as the client's settings ask for it; None: plain text.

    Raises:
        OSError, ssl.SSLError: a file of certificates cannot be read.
    """
    if settings.get("security.protocol", "PLAINTEXT").upper() not in ("SSL", "SASL_SSL"):
        return None
    context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
    if certificate := settings.get("ssl.certificate.location"):
        context.load_cert_chain(certificate, settings.get("ssl.key.location"), settings.get("ssl.key.password"))
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    return context


def ask_features(door: Door) -> Features:
    """What the broker supports and what is in force.

    Raises:
        OSError, WireError: no answer, or none that can be read.
    """
    body = _text(_CLIENT) + _text(b"1") + b"\0"
    return read_features(_ask(door, body))


def read_features(answer: bytes) -> Features:
    """The body of an ApiVersions answer.

    Raises:
        WireError: it has another form.
    """

    def features(reader: _Reader) -> Features:
        reader.refuse_error()

        def request_kind() -> None:
            reader.skip(6)
            reader.tags()

        reader.each(request_kind)
        reader.skip(4)
        tagged = reader.tags()
        supported = _Reader(tagged.get(0, b"\1")).levels()
        finalized = _Reader(tagged.get(2, b"\1")).levels()
        # Supported: (lowest, highest). Finalized: (highest, lowest).
        return Features(supported, {name: levels[0] for name, levels in finalized.items()})

    return _read(answer, features)


def _ask(door: Door, body: bytes) -> bytes:
    header = struct.pack(">hhih", _API_VERSIONS, _VERSION, _CORRELATION, len(_CLIENT)) + _CLIENT + b"\0"
    message = header + body
    with socket.create_connection((door.host, door.port), timeout=door.timeout_s) as plain:
        link = plain if door.tls is None else door.tls.wrap_socket(plain, server_hostname=door.host)
        with link:
            link.sendall(struct.pack(">i", len(message)) + message)
            (size,) = struct.unpack(">i", _receive(link, 4))
            if not 4 <= size <= _ANSWER_BYTES_MAX:
                raise WireError(f"an answer of {size} bytes")
            answer = _receive(link, size)
    if struct.unpack(">i", answer[:4])[0] != _CORRELATION:
        raise WireError("an answer to another question")
    return answer[4:]


def _receive(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = link.recv(size - len(found))
        if not more:
            raise WireError("the broker closed the connection")
        found += more
    return found


def _read(answer: bytes, read: Callable[[_Reader], T]) -> T:
    try:
        return read(_Reader(answer))
    except (IndexError, struct.error, UnicodeDecodeError) as exc:
        raise WireError(f"an answer that cannot be read: {exc}") from exc


def _length(number: int) -> bytes:
    return bytes([number])  # ours are all shorter than 128


def _text(value: bytes) -> bytes:
    return _length(len(value) + 1) + value


class _Reader:
    """Kafka's compact types, one behind the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise WireError("an answer that ends too early")
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def skip(self, size: int) -> None:
        self.take(size)

    def number(self) -> int:
        """An unsigned varint."""
        found = shift = 0
        while True:
            (byte,) = self.take(1)
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7

    def refuse_error(self) -> None:
        (code,) = struct.unpack(">h", self.take(2))
        if code:
            raise WireError(f"the broker refused with error {code}")

    def text(self) -> str | None:
        size = self.number()
        return None if not size else self.take(size - 1).decode()

    def each(self, item: Callable[[], object]) -> None:
        for _ in range(max(self.number() - 1, 0)):
            item()

    def tags(self) -> dict[int, bytes]:
        return {self.number(): self.take(self.number()) for _ in range(self.number())}

    def levels(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}

        def feature() -> None:
            name = self.text() or ""
            found[name] = struct.unpack(">hh", self.take(4))
            self.tags()

        self.each(feature)
        return found
