"""Where the embedded broker's Java and jars come from: settings as values, and the step that makes both ready."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from txlayer.adapters.kafka.local.class_archive import with_archive
from txlayer.adapters.kafka.local.fetch import Progress, Sources, fetch_jars, ivy_class_path
from txlayer.adapters.kafka.local.jars import KAFKA_ARTIFACT, read_lock
from txlayer.adapters.kafka.local.java import bundled_java, find_java
from txlayer.adapters.kafka.local.processes import JavaCommand
from txlayer.errors import ConfigError

OLDEST_RELEASE = (3, 9)
"""The oldest release that txlayer is tested with (`make kafkas`)."""


def default_home() -> Path:
    """The user's cache folder."""
    return Path.home() / ".cache" / "txlayer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """Settings of the embedded broker that belong to the machine, not to one cluster."""

    home: Path = field(default_factory=default_home)
    """Jars, and the data of clusters without a folder of their own."""
    named_java_home: str | None = None
    """A Java that the user names for txlayer; it must fit."""
    java_home: str | None = None
    """The system's JAVA_HOME; passed over when it does not fit."""
    search_path: str | None = None
    """Where `java` and `mvn` are looked for; None means the process's own PATH."""
    kafka_home: str | None = None
    """An unpacked Kafka, whose `libs` are used instead of the locked jars."""
    maven_url: str | None = None
    """A repository to use instead of the default one."""
    spark_jars: tuple[str, ...] = ()
    """Jars of Spark's Kafka connector that are used instead of the locked ones."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LocalConfig:
        """The settings in `environ`; an empty value counts as none."""
        home = environ.get("TXLAYER_HOME")
        cache = environ.get("XDG_CACHE_HOME")
        return cls(
            home=Path(home) if home else Path(cache) / "txlayer" if cache else default_home(),
            named_java_home=environ.get("TXLAYER_JAVA_HOME") or None,
            java_home=environ.get("JAVA_HOME") or None,
            search_path=environ.get("PATH"),
            kafka_home=environ.get("TXLAYER_KAFKA_HOME") or None,
            maven_url=environ.get("TXLAYER_MAVEN_URL") or None,
            spark_jars=tuple(filter(None, environ.get("TXLAYER_SPARK_JARS", "").split(","))),
        )


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java and the jars of one Kafka, ready to run."""

    command: JavaCommand
    kafka_version: str


class Quiet:
    """Progress that nobody watches."""

    def fetched(self, file_count: int, size_bytes: int) -> None:
        """Nothing."""

    def preparing(self) -> None:
        """Nothing."""


QUIET = Quiet()


def prepare_runtime(config: LocalConfig, *, progress: Progress = QUIET) -> Runtime:
    """Find Java, and find or fetch the jars; the first time takes as long as the network needs, and some 15 s.

    Raises:
        ConfigError: no Java or no Kafka that can be used.
        RepositoryUnreachableError: the jars are not there and could not be fetched.
        WrongChecksumError: a fetched file is not the locked one.
    """
    java = find_java(
        named_home=config.named_java_home,
        java_home=config.java_home,
        search_path=config.search_path,
        bundled=bundled_java(),
    )
    # Absolute: a broker keeps these paths on its command line, wherever it was started from.
    cache = (config.home / "jars").absolute()
    if config.kafka_home:
        folder = Path(config.kafka_home).absolute() / "libs"
        return Runtime(JavaCommand(java, folder), installed_version(folder))
    lock = read_lock()
    folder = fetch_jars(lock, cache=cache, sources=find_sources(config, java), progress=progress)
    command = with_archive(JavaCommand(java, folder), cache=cache, announce=progress.preparing)
    return Runtime(command, lock.version)


def find_sources(config: LocalConfig, java: Path) -> Sources:
    """What this machine has to fetch jars with."""
    maven = shutil.which("mvn", path=config.search_path)
    return Sources(Path(maven) if maven else None, ivy_class_path(), java, config.maven_url)


def installed_version(folder: Path) -> str:
    """The version of the Kafka whose jars lie in `folder`.

    Raises:
        ConfigError: there is none, or an older one than txlayer supports.
    """
    names = sorted(folder.glob(f"{KAFKA_ARTIFACT}-*.jar"))
    version = (
        names[-1].name.removeprefix(f"{KAFKA_ARTIFACT}-").removesuffix(".jar") if names else None
    )
    oldest = ".".join(map(str, OLDEST_RELEASE))
    if version is None or _release(version) < OLDEST_RELEASE:
        raise ConfigError(
            f"no Kafka {oldest} or later there; name the folder of an unpacked one, or unset it to use the locked jars",
            name="TXLAYER_KAFKA_HOME",
            value=str(folder.parent),
            expected=f"a folder with libs/{KAFKA_ARTIFACT}-{oldest}.….jar",
        )
    return version


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version)[:2])
