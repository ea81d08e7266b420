"""The locked jars of the embedded broker and of Spark's Kafka connector, and how they reach the user's cache.

They come from a Maven repository into a temporary folder; each is checked against the lock, and the folder is put in place
in one step. After an error nothing was kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen
from zipfile import ZipFile

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

    file: str  # the lock, beside this module; of Spark's jars the part before -<release of Spark>.lock
    name: str  # begins the name of the folder in the cache
    title: str  # what messages call it
    artifact: str  # begins the name of the jar whose version is that of the set
    extra: str  # the extra of txlayer that brings pyspark
    instead: str = ""  # what a user may do instead


BROKER = JarPurpose(
    "jars.lock",
    "kafka",
    "Kafka",
    KAFKA_ARTIFACT,
    "local",
    ", or the folder of an unpacked Kafka 3.9 or later with TXLAYER_KAFKA_HOME",
)
# Of each there is one lock per release of Spark that it is locked for.
CONNECTOR = JarPurpose("connector", "spark-kafka", "Spark's Kafka connector", "spark-sql-kafka-0-10_2.13", "spark")
TABLES = {
    "delta": JarPurpose("delta", "spark-delta", "Delta Lake", "delta-spark", "spark"),
    "iceberg": JarPurpose("iceberg", "spark-iceberg", "Apache Iceberg", "iceberg-spark-runtime", "spark"),
}


@dataclass(frozen=True, slots=True)
class JarLock:
    """The jars of one version: everything that its class path needs."""

    jars: tuple[Jar, ...]
    purpose: JarPurpose = BROKER

    @property
    def version(self) -> str:
        return next(jar.version for jar in self.jars if jar.artifact.startswith(self.purpose.artifact))

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
    if not any(jar.artifact.startswith(purpose.artifact) for jar in jars):
        raise InvariantError(f"the jar lock does not name {purpose.artifact}")
    return JarLock(tuple(jars), purpose)


def read_lock(purpose: JarPurpose = BROKER, *, spark: str = "") -> JarLock:
    """The lock that ships with this version of txlayer; `spark`: the release that its jars are for.

    Raises:
        ConfigError: the jars are locked for other releases of Spark alone.
    """
    here = resources.files(__package__)
    if not spark:
        return parse_lock(here.joinpath(purpose.file).read_text("utf-8"), purpose)
    if spark not in (known := locked_releases(purpose)):
        raise ConfigError(
            f"txlayer knows the checksums of {purpose.title} for pyspark {', '.join(known)} alone: install one of these, or "
            f"run the jobs with spark-submit and the jars for {spark}",
            name="pyspark",
            value=spark,
            expected=" or ".join(known),
        )
    return parse_lock(here.joinpath(f"{purpose.file}-{spark}.lock").read_text("utf-8"), purpose)


def locked_releases(purpose: JarPurpose) -> list[str]:
    """The releases of Spark that a set of jars is locked for, the oldest first."""
    names = (entry.name for entry in resources.files(__package__).iterdir())
    return sorted(
        name.removeprefix(f"{purpose.file}-").removesuffix(".lock")
        for name in names
        if name.startswith(f"{purpose.file}-")
    )


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


FETCH_TIMEOUT_S = 60
"""How long a repository may say nothing."""
FETCHES_AT_ONCE = 4

_DEFAULTS = "org/apache/ivy/core/settings/repository.properties"
_DEFAULT_URL = re.compile(r"^ivy\.ibiblio\.default\.artifact\.root *= *(\S+)", re.MULTILINE)


def say_nothing(_sentence: str) -> None:
    """For callers that do not tell anybody that jars are fetched."""


class RepositoryUnreachableError(RetriableError):
    """The jars could not be fetched; nothing was changed."""

    field_names = ("file", "said")
    file: str | None
    said: str | None


def fetch_jars(lock: JarLock, *, cache: Path, maven_url: str | None, say: Callable[[str], None] = say_nothing) -> Path:
    """The folder in `cache` that holds exactly the lock's jars; fetched from `maven_url` if it is not there.

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
            fetched = work / "jars"
            fetched.mkdir()
            fetch = partial(_fetch, fetched, maven_url or default_url(lock.purpose), lock.purpose)
            with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
                list(pool.map(fetch, lock.jars))
            verify(fetched, lock.jars)
            # Only a damaged folder can be here: its sizes were wrong a moment ago.
            shutil.rmtree(folder, ignore_errors=True)
            fetched.replace(folder)
    return folder


def _fetch(folder: Path, url: str, purpose: JarPurpose, jar: Jar) -> None:
    path = f"{jar.group.replace('.', '/')}/{jar.artifact}/{jar.version}/{jar.file_name}"
    try:
        with urlopen(f"{url.rstrip('/')}/{path}", timeout=FETCH_TIMEOUT_S) as answer:  # noqa: S310 - the user's own address
            content = answer.read(jar.size_bytes + 1)
    except (OSError, HTTPException, ValueError) as exc:
        raise RepositoryUnreachableError(
            f"the jars of {purpose.title} could not be fetched; check the network, or name a mirror with TXLAYER_MAVEN_URL"
            f"{purpose.instead}",
            file=jar.file_name,
            said=str(exc),
        ) from exc
    (folder / jar.file_name).write_bytes(content)


def default_url(purpose: JarPurpose) -> str:
    """The repository that Ivy, which is part of pyspark, uses by default: txlayer itself names no server.

    Raises:
        ConfigError: pyspark is not installed.
    """
    spec = find_spec("pyspark")
    for place in (spec and spec.submodule_search_locations) or ():
        for ivy in Path(place).glob("jars/ivy-[0-9]*.jar"):
            with ZipFile(ivy) as files:
                if found := _DEFAULT_URL.search(files.read(_DEFAULTS).decode()):
                    return found[1]
    raise ConfigError(
        f'no repository is named for {purpose.title}: pip install "txlayer[{purpose.extra}]"{purpose.instead}',
        name="TXLAYER_MAVEN_URL",
        expected="the address of a Maven repository",
    )
