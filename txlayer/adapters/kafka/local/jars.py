"""The locked jars of the embedded broker and of Spark's Kafka connector, and how they reach the user's cache.

The Ivy that pyspark carries brings the files that the lock names into a temporary folder; each is checked against the
lock, and the folder is put in place in one step. Ivy knows its default repository, and `maven_url` names another one. After an
error nothing was kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from txlayer.errors import ConfigError, InvariantError, RetriableError, UsageError

KAFKA_ARTIFACT = "kafka_2.13"
_FIELDS_PER_LINE = 3


class WrongChecksumError(UsageError):
    """A jar differs from the one that the lock names, and is not used."""

    field_names = ("file", "expected", "found")
    file: str | None
    expected: str | None
    found: str | None


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked file."""

    group: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, slots=True)
class JarPurpose:
    """What a set of jars is for."""

    file: str  # the lock, beside this module
    name: str  # begins the name of the folder in the cache
    title: str  # what messages call it
    artifact: str  # the jar whose version is that of the set
    extra: str  # the extra of txlayer that brings something to fetch with
    instead: str = ""  # what a user may do instead


BROKER = JarPurpose(
    "jars.lock",
    "kafka",
    "Kafka",
    KAFKA_ARTIFACT,
    "local",
    ", or the folder of an unpacked Kafka 3.9 or later with TXLAYER_KAFKA_HOME",
)
CONNECTOR = JarPurpose("connector.lock", "spark-kafka", "Spark's Kafka connector", "spark-sql-kafka-0-10_2.13", "spark")


@dataclass(frozen=True, slots=True)
class JarLock:
    """The jars of one version: everything that its class path needs."""

    jars: tuple[Jar, ...]
    purpose: JarPurpose = BROKER

    @property
    def version(self) -> str:
        return next(jar.version for jar in self.jars if jar.artifact == self.purpose.artifact)

    @property
    def size_bytes(self) -> int:
        return sum(jar.size_bytes for jar in self.jars)

    @property
    def folder_name(self) -> str:
        """Names the content, so a changed lock never meets the files of an older one."""
        content = "".join(jar.sha256 for jar in self.jars)
        return f"{self.purpose.name}-{self.version}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def parse_lock(text: str, purpose: JarPurpose = BROKER) -> JarLock:
    """The lock's lines: `group:artifact:version size sha256`; `#` begins a comment line."""
    jars = []
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if not parts or line.startswith("#"):
            continue
        if len(parts) != _FIELDS_PER_LINE or parts[0].count(":") != 2 or not parts[1].isdigit():
            raise InvariantError(f"line {number} of the jar lock is not `group:artifact:version size sha256`")
        group, artifact, version = parts[0].split(":")
        jars.append(Jar(group, artifact, version, int(parts[1]), parts[2]))
    if not any(jar.artifact == purpose.artifact for jar in jars):
        raise InvariantError(f"the jar lock does not name {purpose.artifact}")
    return JarLock(tuple(jars), purpose)


def read_lock(purpose: JarPurpose = BROKER) -> JarLock:
    """The lock that ships with this version of txlayer."""
    return parse_lock(resources.files(__package__).joinpath(purpose.file).read_text("utf-8"), purpose)


def has_all_sizes(folder: Path, jars: Iterable[Jar]) -> bool:
    """Whether every file is there with its size: cheap enough for every start (46 look-ups)."""
    try:
        return all((folder / jar.file_name).stat().st_size == jar.size_bytes for jar in jars)
    except FileNotFoundError:
        return False


def verify(folder: Path, jars: Iterable[Jar]) -> None:
    """Hold every file against its SHA-256; 44 MB take 0.1 s."""
    for jar in jars:
        path = folder / jar.file_name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        if found != jar.sha256:
            raise WrongChecksumError(
                f"{jar.file_name} is not the file that txlayer was tested with and was not used; "
                "ask who runs your package mirror, then try again",
                file=jar.file_name,
                expected=jar.sha256,
                found=found,
            )


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, waiting for it; it ends with the process, so it is never stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def work_folder(parent: Path, *, prefix: str) -> Iterator[Path]:
    """A temporary folder for the holder of a lock; folders under the prefix that a killed holder left are removed first."""
    for left in parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder:
        yield Path(folder)


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
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca{number}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + _SALT + body).digest()  # noqa: S324 - the form's own sum


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


FETCH_TIMEOUT_S = 900
"""44 MB through a slow line; then something hangs."""
COMPLAINT_LENGTH_MAX = 300

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def say_nothing(_sentence: str) -> None:
    """For callers that do not tell anybody that jars are fetched."""


class RepositoryUnreachableError(RetriableError):
    """The jars could not be fetched; nothing was changed."""

    field_names = ("tool", "said")
    tool: str | None
    said: str | None


@dataclass(frozen=True, slots=True)
class Sources:
    """What jars are fetched with, and from where."""

    ivy: str | None  # the class path of Ivy
    java: Path  # runs Ivy
    maven_url: str | None  # a repository to use instead of the default one


def fetch_jars(lock: JarLock, *, cache: Path, sources: Sources, say: Callable[[str], None] = say_nothing) -> Path:
    """The folder in `cache` that holds exactly the lock's jars; fetched if it is not there.

    Safe for several processes at once: one fetches, the others wait for it. `say` gets a sentence before it is fetched.
    """
    folder = cache / lock.folder_name
    if has_all_sizes(folder, lock.jars):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with file_lock(cache / ".lock"):
        if has_all_sizes(folder, lock.jars):
            return folder
        say(
            f"Fetching {lock.purpose.title} {lock.version}, once: {len(lock.jars)} jars, {lock.size_bytes / 1e6:.0f} MB"
        )
        with work_folder(cache, prefix=".fetch-") as work:
            fetched = _fetch(lock, work, sources)
            verify(fetched, lock.jars)
            # Only a damaged folder can be here: its sizes were wrong a moment ago.
            shutil.rmtree(folder, ignore_errors=True)
            fetched.replace(folder)
    return folder


def _fetch(lock: JarLock, work: Path, sources: Sources) -> Path:
    target, what = work / "jars", lock.purpose
    if sources.ivy is None:
        why = f'nothing to fetch {what.title} with: pip install "txlayer[{what.extra}]"{what.instead}'
        raise ConfigError(why, name="extra", expected=what.extra)
    settings, module = work / "ivysettings.xml", work / "ivy.xml"
    settings.write_text(ivy_settings(work / "ivy", sources.maven_url), "utf-8")
    module.write_text(ivy_module(lock), "utf-8")
    trust = write_trust_store(work / "trust.jks")
    command = (
        str(sources.java),
        *trust,
        "-cp",
        sources.ivy,
        "org.apache.ivy.Main",
        "-warn",
        "-settings",
        str(settings),
        "-ivy",
        str(module),
        "-retrieve",
        f"{target}/[artifact]-[revision].[ext]",
    )
    if (said := _run(command)) is not None:
        raise RepositoryUnreachableError(
            f"the jars of {what.title} could not be fetched; check the network, or name a mirror with TXLAYER_MAVEN_URL"
            f"{what.instead}",
            tool="ivy",
            said=said,
        )
    return target


def _run(command: Sequence[str]) -> str | None:
    """None when Ivy succeeded, else its most telling line."""
    try:
        tool = subprocess.run(  # noqa: S603 - our own command line
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except OSError as exc:
        return f"it could not be started: {exc}"
    except subprocess.TimeoutExpired:
        return f"nothing within {FETCH_TIMEOUT_S} s"
    return None if tool.returncode == 0 else last_complaint(tool.stdout.decode("utf-8", "replace"))


def last_complaint(output: str) -> str:
    """The most telling line of Ivy's output: its first error, else the first file that it did not find."""
    lines = [line.strip() for line in _COLOURS.sub("", output).splitlines()]
    # Ivy's headings say that there are errors, not which.
    lines = [line for line in lines if line and not line.startswith("::::") and line != "[ERROR]"]
    for signs in (("[ERROR]", " error ", "Exception"), ("not found",)):
        for line in lines:
            if any(sign in line for sign in signs):
                return line.removeprefix("[ERROR]").strip(": ")[:COMPLAINT_LENGTH_MAX]
    return (lines or ["nothing"])[-1][:COMPLAINT_LENGTH_MAX]


def ivy_settings(cache: Path, url: str | None) -> str:
    """One repository, the default one unless `url` names another; checksums are judged by the lock alone."""
    root = f" root={quoteattr(url.rstrip('/') + '/')}" if url else ""
    return (
        '<ivysettings><property name="ivy.checksums" value=""/>'
        f'<settings defaultResolver="jars"/><caches defaultCacheDir={quoteattr(str(cache))}/>'
        f'<resolvers><ibiblio name="jars" m2compatible="true" usepoms="false"{root}/></resolvers></ivysettings>\n'
    )


def ivy_module(lock: JarLock) -> str:
    """A module that depends on the lock's jars and on nothing behind them."""
    dependencies = "\n".join(
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" transitive="false" '
        'conf="default->default"/>'
        for jar in lock.jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="txlayer" module="broker"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>\n{dependencies}\n'
        "</dependencies></ivy-module>\n"
    )


def ivy_class_path() -> str | None:
    """Ivy out of the installed pyspark; None without it."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    found = [sorted(folder.glob(pattern)) for pattern in ("ivy-[0-9]*.jar", "commons-cli-[0-9]*.jar")]
    return ":".join(str(files[-1]) for files in found) if all(found) else None
