"""A certification authority of the test's own, what it signs, and one that nobody trusts. Keys never leave the test's folder."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path
    both: Path
    """Key and certificate in one file, as Kafka wants them."""


class Authority:
    """Signs certificates for this machine; `root` is what clients trust."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _begun(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.root = folder / f"{name}.pem"
        self.root.write_bytes(_pem(certificate))

    def sign(self, name: str) -> Signed:
        """A certificate for a server of this machine, or for a client whose principal is `CN=<name>`."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [_alternative(host) for host in ("127.0.0.1", "localhost")]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            _begun(_named(name), self._name, key)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = [self._folder / f"{name}.{kind}" for kind in ("crt", "key", "both")]
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        signed = _pem(certificate)
        for path, content in zip(files, (signed, private, private + signed), strict=True):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return Signed(*files)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    if host[0].isdigit():
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
