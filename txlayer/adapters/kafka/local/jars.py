"""The jars of the embedded broker and of Spark's Kafka connector: locked lists, and folders of the user's cache that hold
exactly these.

Nothing here reaches the network: `fetch.py` brings the files, this module says which, and whether they are right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from txlayer.errors import InvariantError, UsageError

KAFKA_ARTIFACT = "kafka_2.13"
_FIELDS_PER_LINE = 3


class WrongChecksumError(UsageError):
    """A jar is not the one that the lock names; it is not used."""

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
        """Its name in a folder of jars."""
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, slots=True)
class JarPurpose:
    """What a set of jars is for, and what a user may name instead of them."""

    file: str
    """The lock, beside this module."""
    name: str
    """Begins the name of the folder in the cache."""
    title: str
    """What users are told."""
    artifact: str
    """The jar whose version is that of the set."""
    extra: str
    """The extra of txlayer that brings something to fetch with."""
    own: str
    """The setting that names jars of one's own."""
    own_is: str
    """What that setting holds."""


BROKER = JarPurpose(
    "jars.lock", "kafka", "Kafka", KAFKA_ARTIFACT, "local",
    own="TXLAYER_KAFKA_HOME", own_is="the folder of an unpacked Kafka 3.9 or later",
)  # fmt: skip
CONNECTOR = JarPurpose(
    "connector.lock", "spark-kafka", "Spark's Kafka connector", "spark-sql-kafka-0-10_2.13", "spark",
    own="TXLAYER_SPARK_JARS", own_is="the connector's four jars, comma between",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JarLock:
    """The jars of one version, all that has to be on a class path for their purpose."""

    jars: tuple[Jar, ...]
    purpose: JarPurpose = BROKER

    @property
    def version(self) -> str:
        """The version of Kafka, or of the Spark that the connector belongs to."""
        return next(jar.version for jar in self.jars if jar.artifact == self.purpose.artifact)

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(jar.size_bytes for jar in self.jars)

    @property
    def folder_name(self) -> str:
        """Names the content, so a changed lock never meets the files of an older one."""
        content = "".join(jar.sha256 for jar in self.jars)
        return f"{self.purpose.name}-{self.version}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def parse_lock(text: str, purpose: JarPurpose = BROKER) -> JarLock:
    """The lock's lines: `group:artifact:version size sha256`; `#` begins a comment line.

    Raises:
        InvariantError: a line has another form, or the chief jar is missing (the lock is part of txlayer).
    """
    jars = []
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if not parts or line.startswith("#"):
            continue
        if len(parts) != _FIELDS_PER_LINE or parts[0].count(":") != 2 or not parts[1].isdigit():
            raise InvariantError(
                f"line {number} of the jar lock is not `group:artifact:version size sha256`"
            )
        group, artifact, version = parts[0].split(":")
        jars.append(Jar(group, artifact, version, int(parts[1]), parts[2]))
    if not any(jar.artifact == purpose.artifact for jar in jars):
        raise InvariantError(f"the jar lock does not name {purpose.artifact}")
    return JarLock(tuple(jars), purpose)


def read_lock(purpose: JarPurpose = BROKER) -> JarLock:
    """The lock that ships with this version of txlayer."""
    return parse_lock(
        resources.files(__package__).joinpath(purpose.file).read_text("utf-8"), purpose
    )


def has_all_sizes(folder: Path, jars: Iterable[Jar]) -> bool:
    """Whether every file is there with its size: cheap enough for every start (46 look-ups)."""
    try:
        return all((folder / jar.file_name).stat().st_size == jar.size_bytes for jar in jars)
    except FileNotFoundError:
        return False


def verify(folder: Path, jars: Iterable[Jar]) -> None:
    """Hold every file against its SHA-256; 44 MB take 0.1 s.

    Raises:
        WrongChecksumError: the first file that is missing or has other bytes. Nothing was changed.
    """

    def found_sum(jar: Jar) -> str:
        path = folder / jar.file_name
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"

    wanted = list(jars)
    with ThreadPoolExecutor(max_workers=2) as pool:
        for jar, found in zip(wanted, pool.map(found_sum, wanted), strict=True):
            if found != jar.sha256:
                raise WrongChecksumError(
                    f"{jar.file_name} is not the file that txlayer was tested with and was not used; "
                    "ask who runs your package mirror, then try again",
                    file=jar.file_name, expected=jar.sha256, found=found,
                )  # fmt: skip
