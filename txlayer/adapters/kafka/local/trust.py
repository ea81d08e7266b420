"""The certificate authorities that Python trusts, in a form that Java reads.

The Java of a wheel trusts its own list only and does not know the authorities of a company's network; Python does,
through the system's list or SSL_CERT_FILE. The form is the Java KeyStore, version 2: its trusted entries are plain.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path

_MAGIC = 0xFEEDFEED
_VERSION = 2
_TRUSTED_CERTIFICATE = 2
# Not a secret: the form demands a checksum that is salted with a password, and this is Java's own default.
_PASSWORD = "changeit"  # noqa: S105 - no secret
_SALT = b"Mighty Aphrodite"


def write_trust_store(path: Path) -> tuple[str, ...]:
    """Flags that make a JVM trust what Python trusts; none (Java's own list) when Python names no authorities."""
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return ()
    path.write_bytes(key_store(certificates))
    return (
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    )


def key_store(certificates: Sequence[bytes]) -> bytes:
    """DER certificates as one Java KeyStore.

    Source: the class JavaKeyStore of OpenJDK, method engineStore.
    """
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        body += (
            struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca{number}") + struct.pack(">Q", 0)
        )
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body).digest()  # noqa: S324 - the form's own sum


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
